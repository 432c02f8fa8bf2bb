"""The protocols of a backend: what the engine needs from a model runtime. `srb.llama` is one; tests have another.

A backend belongs to one thread. Only its `tokenizer`, `chat_template` and `compile` may be used from any thread.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

from srb.engine.kv_cache.allocator import Layout, Load
from srb.engine.lora import Adapter, Lora
from srb.engine.media import Media, MediaReader
from srb.engine.model import ChatTemplate, Drafter, Embedder, ModelInfo, Ranker, Tokenizer
from srb.engine.sampling_params import SamplingParams

TRY_AGAIN_SECONDS = 30.0
"""For how long a layout isn't chosen again that there was no memory for."""

_MIN_COST = 1e-9  # no token is free


@dataclass(frozen=True, slots=True)
class Costs:
    """How long the parts of a decode take on this machine, in seconds; measured once, or estimated.

    The planner computes the size of prefill chunks from these and not from the times of the moment, so that the same
    requests make the same batches.

    Attributes:
        step: any decode, however few rows it has.
        row: the row of a running sequence.
        prompt_token: each token of a chunk.
        row_cell, prompt_cell: how much longer such a row, or such a token, takes for each token that comes before it in
            its own sequence.
        in_turn: whether chunks have decodes of their own, in turn with the rows of sequences. On a processor this is
            about as fast as one decode for both, and in streams llama.cpp computes them one after the other anyway.
        walks_all: whether `row_cell` and `prompt_cell` count for every token in the cells instead, whatever its
            sequence. This is so without flash attention.
        lone_step: a decode with one row and nothing else, which has faster kernels; 0: it takes `step + row`, as a line
            through the times of several rows says.
    """

    step: float
    row: float
    prompt_token: float
    row_cell: float
    prompt_cell: float
    in_turn: bool = False
    walks_all: bool = False
    lone_step: float = 0.0

    def among(self, in_use: int) -> "Costs":
        """Returns the costs while `in_use` tokens are in the cells, of all sequences."""
        if not self.walks_all:
            return self
        row, token = self.row_cell * in_use, self.prompt_token + self.prompt_cell * in_use
        lone_step = self.lone_step and self.lone_step + row
        return Costs(self.step, self.row + row, token, 0.0, 0.0, in_turn=self.in_turn, lone_step=lone_step)

    def of_rows(self, lengths: list[int]) -> float:
        """Returns the seconds of a decode that has a row for each sequence of these lengths."""
        step = self.step + self.row * len(lengths)
        return (self.lone_step if len(lengths) == 1 and self.lone_step else step) + self.row_cell * sum(lengths)

    def of_prompt_token(self, before: int) -> float:
        """Returns the seconds that a token of a chunk takes after `before` others."""
        return max(self.prompt_token + self.prompt_cell * before, _MIN_COST)


class Batch:
    """The rows of one decode: a token, its position, the sequence it belongs to, and whether its logits are wanted.

    A row's number is its place in the batch, counted from 0.

    Attributes:
        setting: the adapters that all rows are computed with.
        placeholder: the image or sound that the rows stand for; None: the rows are tokens. A batch with one has exactly
            all of its placeholders.
        logits: whether each row's logits are wanted.
    """

    __slots__ = ("logits", "placeholder", "positions", "seq_ids", "setting", "tokens")

    def __init__(self, setting: Lora = ()) -> None:
        self.setting = setting
        self.placeholder: Media | None = None
        self.tokens: list[int] = []
        self.positions: list[int] = []
        self.seq_ids: list[int] = []
        self.logits: list[bool] = []

    def __len__(self) -> int:
        return len(self.tokens)

    def add_row(self, token: int, position: int, seq_id: int) -> int:
        """Adds a token that gets logits, and returns the number of its row."""
        self.tokens.append(token)
        self.positions.append(position)
        self.seq_ids.append(seq_id)
        self.logits.append(True)
        return len(self.tokens) - 1

    def add(self, tokens: tuple[int, ...], position: int, seq_id: int, *, outputs: int) -> int:
        """Adds `tokens` from `position` on, and returns the number of the last row. The last `outputs` get logits."""
        n = len(tokens)
        self.tokens += tokens
        self.positions += range(position, position + n)
        self.seq_ids += [seq_id] * n
        self.logits += [False] * (n - outputs) + [True] * outputs
        return len(self.tokens) - 1


class Compiled(Protocol):
    """The parts of a request's samplers that take long to make, such as a grammar. They are made once per request."""

    def close(self) -> None:
        """Frees them. Must be called once. Samplers that were made with them stay valid."""


State = bytearray | memoryview
"""The saved contents of cells, in the backend's own format. Nobody changes them any more."""


class Logits(Protocol):
    """A row of logits, one for each token of the vocabulary. It is the backend's; the engine only passes it on."""

    @property
    def nbytes(self) -> int:
        """The size of the row, in bytes."""

    def copy(self) -> Self:
        """A copy that stays valid after the next decode."""

    def tobytes(self) -> bytes:
        """The row as bytes, which `Backend.logits_of` turns into the same row again."""


Logprobs = tuple[float, list[tuple[int, float]]]
"""The natural logarithm of a token's probability, and (token, logprob) of the likeliest tokens, the likeliest first."""


class Sampler(Protocol):
    """Samples the tokens of one sequence, from a random stream of its own."""

    def sample(self, logits: Any, excluded: Collection[int] = (), biases: Mapping[int, float] | None = None) -> int:
        """Samples a token from these logits.

        Args:
            logits: those after the sequence.
            excluded: tokens not to sample, unless the samplers leave no other.
            biases: what is added to the logits of tokens before the samplers see them. A token with -inf is only
                sampled if no other token can be. In that case no bias counts.

        Raises:
            BackendError: the samplers failed.
        """

    def sample_again(
        self, token: int, logits: Any, excluded: Collection[int] = (), biases: Mapping[int, float] | None = None
    ) -> None:
        """Samples a token that is known from before an interruption, to have the same state as then."""

    def hold(self, n_tokens: int) -> None:
        """Remembers what it needs to take back its last n tokens, and the next one. Called before each such sample."""

    def go_back(self, n_tokens: int) -> None:
        """Takes back its last tokens, as if they had never been sampled: at most those of `hold`, and one more."""

    def forced(self, most: int) -> Sequence[int]:
        """Returns the usual tokens, up to `most`, of the text that must come next, as far as this is easily known."""

    def logprobs(self, token: int, top: int) -> Logprobs:
        """Returns the log-probabilities of a token and of the `top` likeliest ones, as they were last sampled from.

        Must be called before the next sample.
        """

    def close(self) -> None:
        """Frees the sampler. Must be called once."""


class Backend(Protocol):
    """A model with a KV cache."""

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def chat_template(self) -> ChatTemplate | None:
        """The model's chat template, if it has one."""

    @property
    def n_cells(self) -> int:
        """The longest context of one request, in KV positions."""

    @property
    def layout(self) -> Layout:
        """How the cells are laid out now, or will be when `prepare` makes the context."""

    @property
    def can_unify(self) -> bool:
        """Whether the unified layout may be chosen."""

    @property
    def block_size(self) -> int:
        """The size of the blocks in which prompts are computed; 0: sequences share cells, and chunks have any size.

        With blocks the cells are always in streams, and a sequence's logits are the same to the last bit whatever else
        is computed, if each block of its prompt is in a batch of its own.
        """

    @property
    def n_parallel(self) -> int:
        """How many sequences one decode can continue. If there are more, they take turns."""

    @property
    def n_seqs(self) -> int:
        """How many sequences the layout with most of them has, at least `n_parallel`.

        With a model that forgets there are at least 6, or 3 if `n_parallel` is 1. An alternative that may go back needs
        three: for its prompt, for itself and for its mark. A negative prompt needs another three.
        """

    @property
    def n_batch(self) -> int:
        """How many prompt tokens one decode takes, besides `n_parallel` rows."""

    @property
    def n_outputs(self) -> int:
        """How many of those prompt tokens may have logits."""

    @property
    def draft_max(self) -> int:
        """The most draft tokens of a sequence; 0: none."""

    @property
    def drafter(self) -> Drafter | None:
        """A small model that proposes them; None: there is none."""

    @property
    def costs(self) -> Costs:
        """How long decodes take. `prepare` may change this."""

    @property
    def model_info(self) -> ModelInfo:
        """What the model's file says about the model. May be read from any thread."""

    @property
    def embedder(self) -> Embedder | None:
        """Makes embeddings; None: they aren't wanted."""

    @property
    def adapters(self) -> tuple[Adapter, ...]:
        """The adapters that were loaded with the model."""

    def sleep(self) -> None:
        """Frees what `prepare` can make again, but no saved state. Called only when no sequence has a cell."""

    def reset(self) -> None:
        """Frees the KV cache with all its sequences, whatever state it is in. `prepare` makes it anew."""

    @property
    def media(self) -> MediaReader | None:
        """Turns images and sounds into parts of prompts; None: the model takes neither."""

    def choose(self, loads: Sequence[Load], n_held: int) -> Layout:
        """Returns the layout that suits what runs and waits: the present one, unless another one pays.

        A layout that `prepare` had no memory for isn't chosen again for `TRY_AGAIN_SECONDS`.

        Args:
            loads: in the order in which they will run.
            n_held: how many cells are in use, which a change would move.
        """

    def prepare(self, layout: Layout) -> None:
        """Makes the cells with this layout, if they aren't there.

        Called only when no sequence has a cell. If there is no memory for them, the present ones stay.

        Raises:
            SrbError: it can't compute now. It is called again then.
        """

    def length(self, seq_id: int) -> int:
        """Returns how many tokens a sequence has."""

    def decode(self, batch: Batch, interrupted: Callable[[], bool] | None) -> bool:
        """Computes the rows. The logits that are wanted stay valid until the next decode.

        If the batch has a placeholder, this image is computed in place of its tokens, and there are no logits. After
        False, or a `BackendError`, the sequences in the batch may have any part of it: they must be truncated or
        removed.

        Args:
            batch: the rows.
            interrupted: asked from time to time, in this thread. Once it returns True, the decode may end early.

        Returns:
            False if it ended early.
        """

    def logits(self, row: int) -> Logits:
        """Returns the logits of this row of the last decode, valid until the next decode. Raises `BackendError`."""

    def guided(self, logits: Any, negative: Any, scale: float) -> Any:
        """Returns negative + scale * (logits - negative).

        That is classifier-free guidance: Sanchez et al., "Stay on topic with classifier-free guidance" (2023).
        """

    def logits_of(self, data: bytes) -> Logits:
        """Returns the row of logits that `Logits.tobytes` made these bytes of."""

    def logprobs(self, logits: Any, token: int, top: int) -> Logprobs:
        """Returns the log-probabilities of a token and of the `top` likeliest ones, by the model without samplers."""

    def rank(self, logits: Any, token: int) -> int:
        """Returns how many tokens have at least the logit of this one, itself included."""

    def entropy(self, logits: Any) -> float:
        """Returns the entropy of the distribution that a row of logits stands for, in nats."""

    @property
    def fingerprint(self) -> str:
        """If there are blocks (`block_size`): a hash of all that an answer depends on but its request. Else empty."""

    @property
    def identity(self) -> str:
        """Names all that a state must fit: the model, how its cache is laid out, and the build that wrote it."""

    @property
    def cpu_variant(self) -> str:
        """The kernels that compute on the processor: "native" if they were compiled for one kind of processor."""

    @property
    def window(self) -> int | None:
        """How many of its last tokens a saved sequence remembers. None: all of them. A number: the size of the model's
        sliding window. 0: the model has a recurrent state, which belongs to the sequence's end alone."""

    def continuable_from(self, seq_id: int) -> int:
        """Returns the smallest number of its first tokens after which the sequence can be continued.

        It can also be continued after any larger number, up to its length. The number is 0 for a full cache, and the
        length of the sequence for a recurrent state. For a sliding window it is in between, and it grows while the
        sequence does: llama.cpp gives cells to others once they have left the window.
        """

    @property
    def can_shift(self) -> bool:
        """Whether positions can be moved.

        They can't if the model forgets, if its positions stand for more than the order of tokens, or with some types of
        keys.
        """

    def discard(self, seq_ids: list[int], start: int, end: int, shared: int) -> None:
        """Takes the positions from `start` to `end` out of sequences. Later positions become `end - start` less.

        Only if `can_shift`.

        Args:
            shared: the sequences have all cells before this position in common, and share none with other sequences.
        """

    def fork(self, source: int, target: int, n_tokens: int) -> None:
        """Makes the empty `target` share the first `n_tokens` cells of `source`: `continuable_from(source)` or more."""

    def truncate(self, seq_id: int, n_tokens: int) -> bool:
        """Cuts the sequence to its first `n_tokens`. Returns False if it can't be continued after these."""

    def remove(self, seq_id: int) -> None:
        """Empties the sequence. Cells that no other sequence shares become free."""

    def save(self, seq_id: int, start: int, end: int, max_bytes: int) -> bytearray | None:
        """Returns the state of a sequence's positions from `start` to `end`.

        Args:
            end: at least `continuable_from(seq_id)`.

        Returns:
            None if there is no such state, or it is larger than `max_bytes`.
        """

    def restore(self, state: State, seq_id: int, start: int, end: int) -> bool:
        """Adds the positions from `start` to `end` of a saved state to a sequence that ends at `start`.

        While the call runs, it needs cells for the whole state.

        Returns:
            False if it can't restore the positions; the sequence is then as it was before.
        """

    def compile(
        self, branches: tuple[SamplingParams, ...], special_tokens: bool = False, post_sampling_probs: bool = False
    ) -> Compiled:
        """Makes what the samplers with these parameters share.

        Args:
            special_tokens: whether control tokens appear in the text by name. A grammar then matches these names.
            post_sampling_probs: whether `Sampler.logprobs` will be called.

        Raises:
            InvalidRequestError: a grammar is invalid, for example.
        """

    def sampler(
        self,
        params: SamplingParams,
        compiled: Any,
        prompt: tuple[int, ...],
        resumed_tokens: tuple[int, ...],
        healed: bytes = b"",
    ) -> Sampler:
        """Makes a sampler that has seen the prompt.

        Args:
            params: with a seed.
            compiled: what `compile` made of these parameters.
            prompt: its tokens.
            resumed_tokens: the tokens that the sequence has already. The sampler continues as if it had sampled them.
            healed: the bytes that the first token of the sequence must begin with.

        Raises:
            BackendError: it can't be made.
        """

    def ranker(self, params: SamplingParams) -> Ranker:
        """Makes a ranker by the model's probabilities, with the bans and biases of these parameters."""

    def close(self) -> None:
        """Frees everything."""
