"""Saves evaluated texts in files, for programs, so that another process needn't evaluate them again."""

from pathlib import Path

from srb.engine.asking.request import CompletionRequest
from srb.engine.asking.sampling_params import SamplingParams
from srb.engine.kept.slot_file import read_slot
from srb.engine.kept.slots import SavedSlot, Slots
from srb.engine.kv.radix import WORTH_SHARING, pack
from srb.engine.telling.events import ErrorEvent, Event
from srb.errors import InvalidRequestError

SLOT = 1 << 30
"""The slot of requests that save a text. Its number is so high that no tokens are remembered for it."""


class Saving:
    """Saves a text: first `request` evaluates what isn't known of it, then `found` has what is to be written."""

    def __init__(self, tokens: tuple[int, ...]) -> None:
        self._tokens = tokens
        params = SamplingParams(max_tokens=0, seed=0, lora=())
        self.request = CompletionRequest((tokens,), (params,), slot=SLOT)

    def take(self, event: Event) -> None:
        """Takes an event of the request. Raises `SrbError` for a fault."""
        if isinstance(event, ErrorEvent):
            raise event.error

    def found(self, slots: Slots) -> SavedSlot:
        """The state that is to be written. Raises `InvalidRequestError` if the engine hasn't kept all of it."""
        saved, n_tokens = slots.copies(pack(self._tokens)), len(self._tokens)
        if saved.n_tokens < n_tokens:
            raise InvalidRequestError(
                f"{saved.n_tokens} of the text's {n_tokens} tokens were kept, so it can't be saved: give the engine "
                f"more cache_bytes (--cache-ram), and a text of at least {WORTH_SHARING} tokens",
                param="prompt",
            )
        return saved


def read_saved(path: str | Path, identity: str) -> SavedSlot:
    """The state in a file. Raises `InvalidRequestError` if it isn't such a file, or is of another model."""
    try:
        return read_slot(Path(path), identity)[0]
    except ValueError as error:
        raise InvalidRequestError(f"{path} can't be loaded: {error}", param="path") from None
