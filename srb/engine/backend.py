"""What the engine needs from a model runtime. `srb.llama` is one; the tests have another.

A backend belongs to one thread. Only its `tokenizer`, `chat_template` and `compile` may be used from any.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from srb.engine.adapters import Adapter
from srb.engine.batch import Batch as Batch  # a part of this protocol
from srb.engine.costs import Costs
from srb.engine.media import MediaReader
from srb.engine.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """The ids of the tokens that have a meaning of their own; None where the model has no such token.

    bos, eos: the beginning and the end of a text.
    fim_pre, fim_suf, fim_mid: stand before the prefix, the suffix and the middle in fill-in-the-middle.
    fim_rep, fim_sep: stand before the name of a repository and of a file.
    """

    bos: int | None = None
    eos: int | None = None
    fim_pre: int | None = None
    fim_suf: int | None = None
    fim_mid: int | None = None
    fim_rep: int | None = None
    fim_sep: int | None = None


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a model's file says of it.

    n_bytes: the size of the file, or of all of its files. n_params: how many weights. n_trained: the tokens of the
    longest text that it was trained for. chat_template: the file's own, in Jinja. special_tokens: the id and the text
    of each, by its name: bos, eos and so on. metadata: all keys of the file, with numbers, texts and lists.
    """

    name: str
    architecture: str
    n_bytes: int
    n_params: int
    n_trained: int | None
    n_vocab: int
    chat_template: str | None
    special_tokens: Mapping[str, tuple[int, str]]
    metadata: Mapping[str, Any] = field(repr=False)


class Tokenizer(Protocol):
    """Text to tokens and back. May be used from any thread."""

    @property
    def n_vocab(self) -> int:
        """The number of tokens; ids go from 0 to n_vocab - 1."""

    @property
    def longest_piece(self) -> int:
        """The length in bytes of the longest text that one token stands for."""

    @property
    def special(self) -> SpecialTokens: ...

    def tokenize(self, text: str, *, is_prompt: bool = True, parse_special: bool = True) -> tuple[int, ...]:
        """The tokens of a text. A prompt gets BOS where the model wants it.

        parse_special: the names of special tokens in the text stand for these tokens.
        """

    def detokenize(self, tokens: Iterable[int]) -> bytes:
        """The bytes that tokens stand for, with the names of the special ones; not always valid UTF-8."""

    def piece(self, token: int) -> bytes:
        """The bytes that a generated token adds to the text: nothing for control tokens, not always valid UTF-8."""

    def special_piece(self, token: int) -> bytes:
        """The bytes that a token stands for in a prompt: control tokens have names, the BOS that is added has none."""

    def beginning_with(self, text: bytes) -> Collection[int]:
        """The tokens whose `piece` begins with these bytes, in the order of their ids."""

    def is_end(self, token: int) -> bool:
        """Whether the token ends the generation."""


class ChatTemplate(Protocol):
    """The way to write a conversation, most often the model's own. May be used from any thread."""

    @property
    def source(self) -> str:
        """Its text, in Jinja."""

    @property
    def stop(self) -> tuple[str, ...]:
        """Strings that end the assistant's message, where no token does."""

    def render(
        self,
        messages: list[dict[str, Any]],
        variables: dict[str, Any],
        tools: list[dict[str, Any]] | None = None,
    ) -> str:
        """The prompt for the assistant's next message, without the BOS that tokenizing it adds.

        messages: each with its `role` and `content`, and whatever else the template may know.
        variables: what else the template gets, under its names.
        tools: what the model may call, in OpenAI's notation.
        Raises `InvalidRequestError` if the template fails, or refuses.
        """


class Embedder(Protocol):
    """Turns texts into vectors, or into scores. May be used from any thread."""

    @property
    def max_tokens(self) -> int:
        """The most tokens of one text."""

    @property
    def pools(self) -> bool:
        """Whether a text gets one vector, and not one for each of its tokens."""

    @property
    def rank_template(self) -> str | None:
        """How a text to score is written, with {query} and {document} in it; None: there are no scores, but embeddings.

        A vector has scores then, and the first is the one to rank by.
        """

    def embed(self, tokens: tuple[int, ...]) -> list[list[float]]:
        """The vectors of 1 to `max_tokens` tokens, not normalized. Raises `BackendError` and `UnavailableError`."""


class Compiled(Protocol):
    """What takes long to make for the samplers of a request, made once for all of them."""

    def close(self) -> None:
        """Frees it. Must be called once; the samplers live on."""


State = bytearray | memoryview
"""What cells held, as the backend has it. It isn't changed any more."""


class Logits(Protocol):
    """A row of logits, one for each token of the vocabulary. It is the backend's; the engine only passes it on."""

    @property
    def nbytes(self) -> int:
        """Its size."""

    def copy(self) -> Self:
        """One that stays valid."""

    def tobytes(self) -> bytes:
        """What `Backend.logits_of` makes the same of again."""


Logprobs = tuple[float, list[tuple[int, float]]]
"""The natural logarithm of a token's probability, and (token, logprob) of the likeliest tokens, the likeliest first."""


Ranked = tuple[int, float, float]
"""A token, the natural logarithm of its probability, and its score."""


class Ranker(Protocol):
    """Tells a search how its texts may go on. It keeps nothing of what it was asked."""

    def rank(self, logits: Any, top: int, *, may_end: bool, noise: tuple[int, ...] | None) -> list[Ranked]:
        """The tokens with the highest scores, the highest first, of those that have a probability.

        top: so many that don't end the text are among them, if there are so many.
        may_end: whether the tokens that end the text have a probability.
        noise: a token's score is its log-probability, or the sum of this and Gumbel noise, drawn with this seed.
        """


class Sampler(Protocol):
    """Draws the tokens of one sequence, from a random stream of its own."""

    def sample(self, logits: Any, excluded: Collection[int] = (), biases: Mapping[int, float] | None = None) -> int:
        """Draws from these logits. Raises `BackendError`.

        excluded: tokens not to draw, unless the samplers leave no other.
        biases: what is added to the logits of tokens before the samplers see them. Those with -inf are drawn only if
        there is no other that can be; then there are no biases.
        """

    def logprobs(self, token: int, top: int) -> Logprobs:
        """The token's and the `top` largest ones in what it drew from. To be asked before anything else is drawn."""

    def close(self) -> None:
        """Frees it. Must be called once."""


class Backend(Protocol):
    """A model with a KV cache of `n_cells` cells that all sequences share."""

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def chat_template(self) -> ChatTemplate | None:
        """The model's, if it has one."""

    @property
    def n_cells(self) -> int:
        """How many KV positions there are, shared by all sequences."""

    @property
    def n_parallel(self) -> int:
        """How many sequences one decode can continue."""

    @property
    def n_seqs(self) -> int:
        """How many sequences there can be, at least `n_parallel`; seq_ids go from 0 to n_seqs - 1.

        With a model that forgets at least 6, or 3 where `n_parallel` is 1: an alternative takes that many, if it has to
        go back, and a negative prompt.
        """

    @property
    def n_batch(self) -> int:
        """How many prompt tokens one decode takes, beside `n_parallel` rows."""

    @property
    def n_outputs(self) -> int:
        """How many of those prompt tokens may have logits."""

    @property
    def costs(self) -> Costs:
        """What its decodes take. `prepare` may change it."""

    @property
    def model_info(self) -> ModelInfo:
        """What the model's file says of it; may be asked for from any thread."""

    @property
    def embedder(self) -> Embedder | None:
        """What makes embeddings, where these are wanted."""

    @property
    def adapters(self) -> tuple[Adapter, ...]:
        """What was loaded with the model."""

    def sleep(self) -> None:
        """Called when no sequence holds a cell, to free what `prepare` can make again. What was saved stays good."""

    @property
    def media(self) -> MediaReader | None:
        """What turns images and sounds into parts of prompts, if the model takes any."""

    def prepare(self, work: list[tuple[int, int, int]]) -> None:
        """Called when no sequence holds a cell, with what comes next, so that the fastest way can be chosen for it.

        work: the number of tokens of each prompt, how many sequences continue it, and what these may generate.
        """

    def decode(self, batch: Batch, interrupted: Callable[[], bool] | None) -> bool:
        """Evaluates the rows and keeps the logits of those that want them until the next decode.

        A batch that is of media has no logits; the media are evaluated in place of its tokens.
        `interrupted` is asked from time to time, in this thread; once it says True the decode may end early
        and return False. Otherwise returns True. After False, or a `BackendError`, the sequences in the batch
        may hold any part of it: they must be truncated or removed.
        """

    def logits(self, row: int) -> Logits:
        """What the last decode left in this row, valid until the next. Raises `BackendError`."""

    def guided(self, logits: Any, negative: Any, scale: float) -> Any:
        """Logits `scale` times as far from the `negative` ones as these are: negative + scale * (logits - negative).

        That is classifier-free guidance: Sanchez et al., "Stay on topic with classifier-free guidance" (2023).
        """

    def logits_of(self, data: bytes) -> Logits:
        """The row that these are the bytes of."""

    def logprobs(self, logits: Any, token: int, top: int) -> Logprobs:
        """The token's and the `top` largest ones in a row of logits, as the model has them."""

    def entropy(self, logits: Any) -> float:
        """The entropy of what a row of logits foretells, in nats."""

    @property
    def identity(self) -> str:
        """Names all that a state must fit: the model, how its cache is laid out, and the build that wrote it."""

    @property
    def window(self) -> int | None:
        """How many last tokens a saved sequence remembers: None: all of them; else the size of the model's sliding
        window, or 0 for a recurrent state, which is of the sequence's end alone."""

    def continuable_from(self, seq_id: int) -> int:
        """After how many of its tokens at least the sequence can be continued.

        It can also after any more of them, up to its end. 0 for a full cache. It's the length of the sequence where
        nothing but the state of its end is there. A sliding window is in between, and grows into it: llama.cpp takes
        over cells that no row of the sequence sees any more.
        """

    @property
    def can_shift(self) -> bool:
        """Whether `discard` works: not where the model forgets, or has positions that can't be moved."""

    def discard(self, seq_ids: list[int], start: int, end: int, shared: int) -> None:
        """Takes the positions from `start` to `end` out of sequences; those behind become `end - start` less.

        shared: the sequences have all cells before that position in common, and share none with others.
        """

    def fork(self, source: int, target: int, n_tokens: int) -> None:
        """Makes the empty sequence `target` share the first `n_tokens` cells of `source`.

        n_tokens: at least `continuable_from(source)`.
        """

    def truncate(self, seq_id: int, n_tokens: int) -> bool:
        """Leaves the sequence its first `n_tokens`. Returns False if it can't be continued after these."""

    def remove(self, seq_id: int) -> None:
        """Empties the sequence; cells that no other sequence shares become free."""

    def save(self, seq_id: int, start: int, end: int, max_bytes: int) -> bytearray | None:
        """What the cells of a sequence's positions from `start` to `end` hold.

        end: at least `continuable_from(seq_id)`. None if that can't be had, or is more than `max_bytes`.
        """

    def restore(self, state: State, seq_id: int, start: int, end: int, moved: int = 0) -> bool:
        """Adds the positions from `start` to `end` of what `save` returned to a sequence that ends at `start`.

        moved: they become so much less; only where `can_shift`. The sequence ends at `start - moved` then.
        While it works it needs cells for all of the state. Returns False if it can't, and nothing has changed.
        """

    def compile(self, branches: tuple[SamplingParams, ...], special_tokens: bool = False) -> Compiled:
        """What the samplers with these parameters share. Raises `InvalidRequestError`, for a bad grammar say.

        special_tokens: whether control tokens have their names in the text, and so count as these for a grammar.
        """

    def sampler(
        self,
        params: SamplingParams,
        compiled: Any,
        prompt: tuple[int, ...],
        begun: tuple[int, ...],
        healed: bytes = b"",
    ) -> Sampler:
        """A sampler that has seen the prompt; its parameters' seed is drawn already. Raises `BackendError`.

        compiled: what `compile` made of these parameters.
        begun: the tokens that the sequence has already. It goes on as if it had drawn them.
        healed: what the first token of the sequence begins with.
        """

    def ranker(self, params: SamplingParams) -> Ranker:
        """Ranks tokens by the model's probabilities, after what these parameters ban and bias."""

    def close(self) -> None:
        """Frees everything."""
