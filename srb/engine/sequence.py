"""A request on its way through the engine: its prompts, and the sequences that continue them."""

from srb.engine.backend import Compiled, Sampler
from srb.engine.events import AbortReason, FinishReason, Token
from srb.engine.request import CompletionRequest, SamplingParams
from srb.engine.text import StopStrings, TextState


class ActiveRequest:
    """A request that is waiting or running."""

    def __init__(self, request: CompletionRequest, compiled: Compiled, arrived: float) -> None:
        self.request = request
        self.compiled = compiled
        stops = {params.stop: StopStrings(params.stop) for params in request.branches if params.stop}
        self.prompts = [Prompt(self, number, tokens, stops) for number, tokens in enumerate(request.prompts)]
        self.early_aborts: dict[int, AbortReason] = {}  # by index, of those aborted while the request waits
        self.arrived = arrived  # this and what follows: seconds of the engine's clock
        self.admitted: float | None = None
        self.evaluated: float | None = None

    @property
    def id(self) -> str:
        """The request's id."""
        return self.request.id

    @property
    def sequences(self) -> list["Sequence"]:
        """All sequences, by index."""
        return [seq for prompt in self.prompts for seq in prompt.sequences]

    @property
    def living(self) -> list["Sequence"]:
        """The sequences that haven't finished."""
        return [seq for prompt in self.prompts for seq in prompt.living]


class Prompt:
    """A prompt, evaluated once in the seq_id of its first sequence, then forked to the others."""

    __slots__ = ("active", "cached", "evaluated", "first_tokens", "forked", "sequences", "source", "tokens")

    def __init__(
        self,
        active: ActiveRequest,
        number: int,
        tokens: tuple[int, ...],
        stops: dict[tuple[str, ...], StopStrings],
    ) -> None:
        branches = active.request.branches
        self.active = active
        self.tokens = tokens
        self.evaluated = 0  # tokens
        self.cached = 0  # of these, shared with another prompt
        self.source: tuple[Prompt, int] | None = None  # who is to share so many of its tokens
        self.forked = False
        self.first_tokens: set[int] = set()  # those that sequences have begun with
        self.sequences = [
            Sequence(self, number * len(branches) + k, params, stops.get(params.stop))
            for k, params in enumerate(branches)
        ]

    @property
    def holder(self) -> "Sequence":
        """The sequence in whose seq_id the prompt is evaluated, even if it has been aborted since."""
        return self.sequences[0]

    @property
    def living(self) -> list["Sequence"]:
        """The sequences that haven't finished."""
        return [seq for seq in self.sequences if seq.finish_reason is None]

    @property
    def leased(self) -> list["Sequence"]:
        """The sequences that have a seq_id and cells."""
        return [seq for seq in self.sequences if seq.seq_id is not None]

    @property
    def returnable(self) -> list["Sequence"]:
        """The sequences whose lease can end: all that have finished, but the holder not before the fork."""
        finished = [seq for seq in self.leased if seq.finish_reason]
        if self.forked or not self.living:
            return finished
        return [seq for seq in finished if seq is not self.holder]


class Sequence:
    """One alternative: its parameters, its text, and what it has leased."""

    __slots__ = (
        "cells",
        "finish_reason",
        "index",
        "last_token",
        "length",
        "max_tokens",
        "params",
        "prompt",
        "sampler",
        "seq_id",
        "sum_logprob",
        "text",
        "unsaid",
        "unsaid_text",
    )

    def __init__(self, prompt: Prompt, index: int, params: SamplingParams, stops: StopStrings | None) -> None:
        self.prompt = prompt
        self.index = index
        self.params = params
        self.text = TextState(stops)
        self.max_tokens = 0  # set at admission, when the room is known
        self.length = 0  # generated tokens
        self.last_token = -1  # the next row evaluates it
        self.sum_logprob = 0.0
        self.unsaid: list[Token] = []  # with this text; only where tokens are reported
        self.unsaid_text = ""
        self.seq_id: int | None = None
        self.cells = 0  # for its own tokens, beside those of the prompt
        self.sampler: Sampler | None = None
        self.finish_reason: FinishReason | None = None

    @property
    def position(self) -> int:
        """The position of the last token."""
        return len(self.prompt.tokens) + self.length - 1
