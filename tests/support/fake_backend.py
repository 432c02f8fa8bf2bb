"""`FakeBackend`: a scripted model and a byte tokenizer, with a KV cache whose cells are checked at every call."""

import hashlib
import heapq
import math
import threading
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from itertools import repeat
from typing import ClassVar

from srb.engine.backend import Batch, Costs, Logprobs, State
from srb.engine.kv_cache.allocator import Layout, Load
from srb.engine.lora import Adapter, Lora, key_of
from srb.engine.media import Media, MediaReader, whole
from srb.engine.model import ChatTemplate, Drafter, Embedder, ModelInfo, Ranked, SpecialTokens
from srb.engine.sampling_params import SamplingParams
from srb.errors import BackendError, InvalidRequestError, NoTokenError

END = 256
N_VOCAB = 257

IN_STEP = Costs(step=0.0, row=1.0, prompt_token=1.0, row_cell=0.0, prompt_cell=0.0)
"""A row takes as long as a token of a prompt. So as many tokens of prompts join a step as it has rows."""

Script = Callable[[SamplingParams, tuple[int, ...]], int]
"""Returns the next token of a sequence, for its parameters and all of its tokens."""


Scores = Callable[[tuple[int, ...]], Sequence[float]]


def babble(params: SamplingParams, tokens: tuple[int, ...]) -> int:
    """Returns a token that depends on the seed and on every token so far; sometimes the end token."""
    value = zlib.crc32(array("i", tokens), params.seed)
    return END if not params.ignore_eos and value % 20 == 0 else value // 20 % 256


def score(context: tuple[int, ...], token: int) -> float:
    """The logit of a token after a context."""
    return scores(context)[token]


_TOKENS = [token.to_bytes(2) for token in range(N_VOCAB)]
_SCORES = [-each / 100 for each in range(1000)]


@lru_cache(maxsize=1000)
def scores(context: tuple[int, ...]) -> tuple[float, ...]:
    """The logits of all tokens after a context."""
    resumed_tokens = zlib.crc32(repr(tuple(context)).encode())
    return tuple(_SCORES[each % 1000] for each in map(zlib.crc32, _TOKENS, repeat(resumed_tokens)))


@cache
def entropy(context: tuple[int, ...], scores: Scores = scores) -> float:
    """The entropy after a context, in nats."""
    all_scores = scores(context)
    weights = [math.exp(each) for each in all_scores]
    total = sum(weights)
    return math.log(total) - sum(w * each for w, each in zip(weights, all_scores, strict=True)) / total


def says(*texts: bytes, prompt: int = 1) -> Script:
    """A script: after a prompt of so many tokens, the alternative with the seed s says texts[s], and ends."""

    def script(params: SamplingParams, tokens: tuple[int, ...]) -> int:
        text = texts[params.seed % len(texts)]
        said = len(tokens) - prompt
        return text[said] if said < len(text) else END

    return script


class ByteTokenizer:
    """Every byte is a token."""

    n_vocab = N_VOCAB
    longest_piece = 1

    special = SpecialTokens(eos=END)

    def tokenize(self, text: str, *, is_prompt: bool = True, parse_special: bool = True) -> tuple[int, ...]:
        return tuple(text.encode())

    def detokenize(self, tokens: Iterable[int]) -> bytes:
        return b"".join(map(self.special_piece, tokens))

    def piece(self, token: int) -> bytes:
        return bytes([token]) if 0 <= token < END else b""

    def special_piece(self, token: int) -> bytes:
        return b"<END>" if token == END else b"" if token < 0 else bytes([token])

    def beginning_with(self, text: bytes) -> Collection[int]:
        return [token for token in range(N_VOCAB) if token != END and self.piece(token).startswith(text)]

    def is_end(self, token: int) -> bool:
        return token == END


class FakeReader:
    """Reads any file as an image, which has as many cells as the file has bytes and stands between two tokens."""

    kinds = ("image", "audio")
    n_encoded = 0
    n_wait = 0
    """How often `is_ready` says no for an image."""

    def __init__(self) -> None:
        self.asked: dict[str, int] = {}
        self.n_waited = 0  # how many images were evaluated before they were ready, so that everybody had to wait

    def is_ready(self, media: Media) -> bool:
        self.asked[media.name] = self.asked.get(media.name, 0) + 1
        return self.asked[media.name] > self.n_wait

    def read(self, file: bytes) -> list[int | Media]:
        if file == b"bad":
            raise InvalidRequestError("this is no image")
        return [ord("<"), Media.of(hashlib.sha256(file).hexdigest(), len(file), file), ord(">")]


@dataclass(eq=False)
class Cell:
    """One KV position: its token and adapters. Cells are compared by identity, so equal tokens aren't equal cells.

    origin: where the tokens of its sequence began that were in the same batch, and how many these were.
    """

    token: int
    lora: Lora = ()
    origin: tuple[int, ...] = ()


class Context(tuple[int, ...]):
    """Stands for the logits behind these tokens.

    negative: the tokens that the guide has seen. lora: the adapters that they were evaluated with, as bytes.
    """

    nbytes = 100
    negative: tuple[int, ...] = ()
    lora: tuple[int, ...] = ()

    def copy(self) -> "Context":
        return self

    def tobytes(self) -> bytes:
        return b"".join(each.to_bytes(4, signed=True) for each in (len(self.lora), *self.lora, *self))


class FakeState(bytearray):
    """A saved state: the tokens of cells, and their adapters."""

    lora: Lora = ()
    start: int = 0
    cells: list[Cell] = []  # noqa: RUF012  # set for each


@dataclass
class FakeCompiled:
    backend: "FakeBackend"
    closed: bool = False

    def close(self) -> None:
        assert not self.closed
        self.closed = True
        self.backend.open_compiled -= 1


@dataclass
class FakeSampler:
    backend: "FakeBackend"
    params: SamplingParams
    seen: list[int]
    first: Collection[int] = ()
    """The tokens that it may begin with; if there are none, with any."""
    closed: bool = False
    held: tuple[tuple[int, Collection[int], tuple[int, ...]], ...] = ()
    script_sees: tuple[int, ...] = ()
    """What the script will see at the next draw, unless the sequence is guided."""

    def sample(self, logits: Context, excluded: Collection[int] = (), biases: Mapping[int, float] | None = None) -> int:
        assert not self.closed
        words = [token for token in logits if token >= 0] if self.backend.media else list(logits)
        assert words == self.seen or self._has_left_out(words), "it hasn't seen what it goes on from"
        if self.params.label == "broken":
            raise BackendError("this sampler is broken")
        if self.params.label == "stuck":
            raise NoTokenError("the grammar leaves no token", param="grammar")
        sees = logits.negative + logits.lora + logits
        token = self.backend.script(self.params, sees)
        avoided = {*excluded, *(biases or ())}
        if self.first:
            token = min(set(self.first) - avoided or self.first, key=lambda each: (each - token) % N_VOCAB)
            self.first = ()
        elif len(avoided) < N_VOCAB:
            while token in avoided:
                token = (token + 1) % N_VOCAB
        self.seen.append(token)
        self.script_sees = (*sees, token)
        return token

    def sample_again(
        self, token: int, logits: Context, excluded: Collection[int] = (), biases: Mapping[int, float] | None = None
    ) -> None:
        self.sample(logits, excluded, biases)  # gives another one where tokens were taken back
        self.seen[-1] = token
        self.script_sees = (*self.script_sees[:-1], token)

    def _has_left_out(self, tokens: list[int]) -> bool:
        """Whether these are the tokens that it has seen, without some in the middle, which have left the context."""
        n_alike = next((k for k, (a, b) in enumerate(zip(tokens, self.seen, strict=False)) if a != b), len(tokens))
        rest = len(tokens) - n_alike
        return (
            self.backend.shifts
            and len(tokens) < len(self.seen)
            and tokens[n_alike:] == self.seen[len(self.seen) - rest :]
        )

    def hold(self, n_tokens: int) -> None:
        self.held = (*self.held, (len(self.seen), self.first, self.script_sees))[-1 - n_tokens :]

    def go_back(self, n_tokens: int) -> None:
        n_seen, self.first, self.script_sees = self.held[-n_tokens]
        assert len(self.seen) - n_seen == n_tokens
        del self.seen[n_seen:]
        self.held = self.held[:-n_tokens]

    def forced(self, most: int) -> tuple[int, ...]:
        return self.backend.forced(self.params, self.script_sees)[:most]

    def logprobs(self, token: int, top: int) -> Logprobs:
        return 0.0, [(token, 0.0)][:top]

    def close(self) -> None:
        assert not self.closed
        self.closed = True
        self.backend.open_samplers -= 1


@dataclass
class FakeRanker:
    """Ranks tokens by `scores`, which it takes for logits."""

    params: SamplingParams
    scores: Scores = scores

    @cached_property
    def _biases(self) -> dict[int, float]:
        """What is added to the logit of each token that may be drawn."""
        biases = dict.fromkeys(range(N_VOCAB), 0.0)
        for token, bias in self.params.logit_bias:
            biases[token] += bias
        return {token: bias for token, bias in biases.items() if bias > -math.inf}

    def rank(self, logits: Context, top: int, *, may_end: bool) -> list[Ranked]:
        all_scores = self.scores(logits)
        biased = {token: all_scores[token] + bias for token, bias in self._biases.items()}
        ends = {END} if self.params.ignore_eos else set()
        for end in ends if may_end else {END, *self.params.stop_token_ids}:
            biased.pop(end, None)
        if not biased:
            return []
        total = math.log(sum(map(math.exp, biased.values())))
        ranked = [(token, each - total) for token, each in biased.items()]
        return sorted(ranked, key=lambda each: -each[1])[: top + 1 + len(self.params.stop_token_ids)]


@dataclass
class FakeBackend:
    """Checks what a real backend would assert, and more: positions without gaps, rows with logits, free cells."""

    sampler_type: ClassVar[type[FakeSampler]] = FakeSampler
    n_cells: int = 256
    n_parallel: int = 8
    n_batch: int = 64
    n_outputs: int = 16
    draft_max: int = 16
    drafter: Drafter | None = None
    costs: Costs = IN_STEP
    tokenizer: ByteTokenizer = field(default_factory=ByteTokenizer)
    chat_template: ChatTemplate | None = None
    embedder: Embedder | None = None
    media: MediaReader | None = None
    model_info: ModelInfo = ModelInfo("fake", "fake", 0, 0, None, N_VOCAB, None, {}, {})  # noqa: RUF009  # frozen
    window: int | None = None
    """As in `Backend.window`. Cells that have left the window are lost at once; llama.cpp loses them only at times."""
    identity: str = "fake"
    fingerprint: str = ""
    cpu_variant: str = "fake"
    adapters: tuple[Adapter, ...] = ()
    can_unify: bool = True
    shifts: bool = False
    """Whether contexts are shifted, so that samplers may have seen tokens that aren't in cells any more."""
    max_seqs: int = 1000
    block_size: int = 0
    """As in `Backend.block_size`. What a row draws then depends on how its cells came: in which block, or alone."""
    script: Script = babble
    forced: Callable[[SamplingParams, tuple[int, ...]], tuple[int, ...]] = lambda _params, _tokens: ()
    """What a sampler takes for forced where the script sees these tokens."""
    fail_decodes: set[int] = field(default_factory=set)
    """The numbers of the decodes that fail halfway, counted from 1."""
    poison: str = ""
    """A decode with one of these characters in it always fails, halfway."""
    names_poisoned: bool = False
    """Whether the error then names the sequence."""
    chooser: "Callable[[FakeBackend, Sequence[Load]], Layout] | None" = None
    """Chooses the layout; None: it stays as it is."""
    has_memory: Callable[[Layout], bool] = lambda _layout: True
    """Whether there is memory for another layout; if not, the present one stays."""
    on_prepare: Callable[[], None] = lambda: None
    """Called in every `prepare`; what it raises comes out of that."""
    scores: Scores = scores
    """The logits of all tokens after a context, as strategies other than sampling see them."""
    entropy_of: Callable[[tuple[int, ...]], float] | None = None
    """The entropy after a context; None: that of `scores`."""
    on_decode: Callable[[], None] = lambda: None
    """Called in the middle of every decode; what it raises comes out of the decode."""

    def __post_init__(self) -> None:
        self.n_seqs = min(2 * self.n_parallel + (0 if self.window is None else 2), self.max_seqs)
        self.layout: Layout = Layout(not self.block_size, self.n_cells, self.n_seqs)
        self.sequences: dict[int, list[Cell]] = {seq_id: [] for seq_id in range(self.n_seqs)}
        self.forgotten = dict.fromkeys(self.sequences, 0)  # how many first positions are lost
        self.rows_with_logits: dict[int, Context] = {}
        self.saved: list[tuple[int, int]] = []
        self.discarded: list[tuple[tuple[int, ...], int, int]] = []
        self.loads: list[Load] = []  # the last argument of `choose`
        self.scales: list[float] = []  # of all calls of `guided`
        self.decodes = 0
        self.rows = 0
        self.open_samplers = 0
        self.open_compiled = 0
        self.closed = False
        self.asleep = threading.Event()

    @property
    def cells(self) -> int:
        """How many cells are in use."""
        return len({id(cell) for cells in self.sequences.values() for cell in cells})

    def sleep(self) -> None:
        assert self.cells == 0, "it may only sleep while it is empty"
        self.asleep.set()

    def reset(self) -> None:
        self.sequences = {seq_id: [] for seq_id in range(self.layout.n_seqs)}
        self.forgotten = dict.fromkeys(self.sequences, 0)
        self.rows_with_logits = {}
        self.asleep.set()

    def choose(self, loads: Sequence[Load], n_held: int) -> Layout:
        assert loads
        self.loads = list(loads)
        return self.chooser(self, loads) if self.chooser else self.layout

    def prepare(self, layout: Layout) -> None:
        self.on_prepare()
        self.asleep.clear()
        assert self.cells == 0, "it may only change its layout while it is empty"
        if layout != self.layout and not self.has_memory(layout):
            return
        self.layout = layout
        self.sequences = {seq_id: [] for seq_id in range(layout.n_seqs)}
        self.forgotten = dict.fromkeys(self.sequences, 0)

    def length(self, seq_id: int) -> int:
        return len(self.sequences[seq_id])

    def decode(self, batch: Batch, interrupted: Callable[[], bool] | None) -> bool:
        assert not self.closed
        assert not self.asleep.is_set()
        assert 0 < len(batch) <= self.n_batch + self.n_parallel or batch.placeholder, (
            len(batch),
            self.n_batch,
            self.n_parallel,
        )
        if batch.placeholder:
            assert isinstance(self.media, FakeReader), "nobody has read this"
            self.media.n_waited += self.media.asked[batch.placeholder.name] <= self.media.n_wait
            assert tuple(batch.tokens) == batch.placeholder.tokens, "media are evaluated whole and alone"
            assert not any(batch.logits)
            self.media.n_encoded += 1
        assert sum(batch.logits) <= self.n_outputs + self.n_parallel
        self.decodes += 1
        self.rows_with_logits = {}
        n_of = Counter(batch.seq_ids)
        rows = zip(batch.tokens, batch.positions, batch.seq_ids, batch.logits, strict=True)
        for row, (token, position, seq_id, logits) in enumerate(rows):
            if row == len(batch) // 2:
                self.on_decode()
                pairs = zip(batch.tokens, batch.seq_ids, strict=True) if self.poison else ()
                poisoned = {seq_id for token, seq_id in pairs if token >= 0 and chr(token) in self.poison}
                if self.decodes in self.fail_decodes or poisoned:
                    named = tuple(poisoned) if self.names_poisoned else ()
                    raise BackendError("llama_decode failed with code -3", seq_ids=named)
                if interrupted and interrupted():
                    return False
            cells = self.sequences[seq_id]
            assert (token < 0) if batch.placeholder else (0 <= token < N_VOCAB)
            assert position == len(cells), "a gap or an overlap in the positions"
            assert position >= self.continuable_from(seq_id), "what the row sees isn't there any more"
            assert not cells or cells[-1].lora == batch.setting, "it goes on from what has other adapters"
            origin = (position - batch.seq_ids[:row].count(seq_id), n_of[seq_id]) if self.block_size else ()
            cells.append(Cell(token, batch.setting, origin))
            if logits:
                self.rows_with_logits[row] = context = Context([cell.token for cell in cells])
                context.lora = tuple(key_of(batch.setting).encode()) + self._origins(cells)
        if self.block_size:
            assert max(n_of.values()) == 1 or len(n_of) == 1, (
                f"{batch.seq_ids} {batch.positions} a block is evaluated beside something else"
            )
            assert all(len(cells) <= self.n_cells for cells in self.sequences.values()), "out of its cells"
            self.rows += len(batch)
            return True
        longest = sum(map(len, self.sequences.values()))  # an upper bound, which is fast to compute
        if self.layout.is_unified:
            assert longest <= self.layout.n_cells or self.cells <= self.layout.n_cells, "out of cells"
        else:
            assert max(map(len, self.sequences.values())) <= self.layout.n_cells, "out of the cells of a stream"
        self.rows += len(batch)
        self._forget()
        return True

    def _origins(self, cells: list[Cell]) -> tuple[int, ...]:
        """How these cells came, if that matters."""
        return tuple(number for cell in cells for number in cell.origin) if self.block_size else ()

    def logits(self, row: int) -> Context:
        return self.rows_with_logits[row]

    def guided(self, logits: Context, negative: Context, scale: float) -> Context:
        guided = Context(logits)
        guided.lora = logits.lora
        guided.negative = tuple(negative)
        self.scales.append(scale)
        return guided

    def logits_of(self, data: bytes) -> Context:
        n_lora, *rest = (int.from_bytes(data[i : i + 4], signed=True) for i in range(0, len(data), 4))
        logits = Context(rest[n_lora:])
        logits.lora = tuple(rest[:n_lora])
        return logits

    def logprobs(self, logits: Context, token: int, top: int) -> Logprobs:
        all_scores = self.scores(logits)
        likeliest = heapq.nlargest(top, range(N_VOCAB), key=all_scores.__getitem__)
        return all_scores[token], [(each, all_scores[each]) for each in likeliest]

    def rank(self, logits: Context, token: int) -> int:
        all_scores = self.scores(logits)
        return sum(all_scores[each] >= all_scores[token] for each in range(N_VOCAB))

    def entropy(self, logits: Context) -> float:
        return self.entropy_of(logits) if self.entropy_of else entropy(logits, self.scores)

    def continuable_from(self, seq_id: int) -> int:
        if self.window == 0:
            return len(self.sequences[seq_id])
        forgotten = self.forgotten[seq_id]
        return forgotten + (self.window or 0) - 1 if forgotten else 0

    @property
    def can_shift(self) -> bool:
        return self.window is None

    def discard(self, seq_ids: list[int], start: int, end: int, shared: int) -> None:
        assert self.can_shift
        assert 0 <= start < end
        own = [self.sequences[seq_id] for seq_id in seq_ids]
        assert all(cells[:shared] == own[0][:shared] for cells in own), "they don't have these in common"
        changed = {id(cell) for cells in own for cell in cells[start:]}
        for seq_id, cells in self.sequences.items():
            assert seq_id in seq_ids or not changed & {id(cell) for cell in cells}, "somebody else has it"
        for k, cells in enumerate(own):
            behind = {id(cell) for cell in cells[max(end, shared) :]}
            assert not behind & {id(cell) for other in own[k + 1 :] for cell in other}, "it changes twice"
            assert end <= len(cells)
            del cells[start:end]
        self.discarded.append((tuple(seq_ids), start, end))

    def fork(self, source: int, target: int, n_tokens: int) -> None:
        assert self.continuable_from(source) <= n_tokens <= len(self.sequences[source])
        assert n_tokens > 0
        self._check_whole(source, n_tokens)
        assert not self.sequences[target]
        cells = self.sequences[source][:n_tokens]
        if not self.layout.is_unified:  # a fork copies them
            cells = [Cell(each.token, each.lora, each.origin) for each in cells]
        self.sequences[target] = cells
        self.forgotten[target] = self.forgotten[source]

    def remove(self, seq_id: int) -> None:
        self.sequences[seq_id] = []
        self.forgotten[seq_id] = 0

    def _check_whole(self, seq_id: int, n_tokens: int) -> None:
        tokens = [cell.token for cell in self.sequences[seq_id]]
        assert whole(tokens, n_tokens) == n_tokens, "media are parted"

    def truncate(self, seq_id: int, n_tokens: int) -> bool:
        self._check_whole(seq_id, n_tokens)
        length = len(self.sequences[seq_id])
        if length < n_tokens or (length > n_tokens and self.window == 0):
            return False
        del self.sequences[seq_id][n_tokens:]
        return n_tokens >= self.continuable_from(seq_id)

    def save(self, seq_id: int, start: int, end: int, max_bytes: int) -> bytearray | None:
        assert 0 <= start < end <= len(self.sequences[seq_id])
        assert end >= self.continuable_from(seq_id)
        self._check_whole(seq_id, start)
        self._check_whole(seq_id, end)
        self.saved.append((start, end))
        if not (self.layout.is_unified or self.block_size):  # all of a stream is saved, or nothing
            start, end = 0, len(self.sequences[seq_id])
        state = FakeState(b"".join(cell.token.to_bytes(4, signed=True) for cell in self.sequences[seq_id][start:end]))
        state.lora = self.sequences[seq_id][start].lora
        state.start, state.cells = start, self.sequences[seq_id].copy()
        return state if len(state) <= max_bytes else None

    def restore(self, state: State, seq_id: int, start: int, end: int) -> bool:
        tokens = [int.from_bytes(state[i : i + 4], signed=True) for i in range(0, len(state), 4)]
        if self.block_size:
            assert isinstance(state, FakeState)
            self.sequences[seq_id] = [Cell(each.token, each.lora, each.origin) for each in state.cells[:end]]
            return True
        begins = state.start if isinstance(state, FakeState) else start
        if not self.layout.is_unified:
            if begins:
                return False
            self.sequences[seq_id], start = [], 0
        tokens = tokens[start - begins :] if begins <= start else []
        assert whole(tokens, end - start) == end - start, "media are parted"
        assert len(self.sequences[seq_id]) == start
        assert start >= self.continuable_from(seq_id)
        assert 0 < end - start <= len(tokens)
        assert self.window is None or end - start == len(tokens) or len(tokens) < self.window
        if self.layout.is_unified and self.cells + len(tokens) > self.layout.n_cells:
            return False
        if not self.layout.is_unified and end > self.layout.n_cells:
            return False
        lora = state.lora if isinstance(state, FakeState) else ()
        assert not start or self.sequences[seq_id][-1].lora == lora, "it goes on from what has other adapters"
        self.sequences[seq_id] += [Cell(token, lora) for token in tokens[: end - start]]
        if self.window and len(tokens) > self.window:
            self.forgotten[seq_id] = end - self.window
        self._forget()
        return True

    def _forget(self) -> None:
        """Forgets cells that have left the window of their only owner, and all cells before them."""
        if not self.window:
            return
        owners = Counter(
            id(cell) for seq_id, cells in self.sequences.items() for cell in cells[self.forgotten[seq_id] :]
        )
        for seq_id, cells in self.sequences.items():
            for position in range(len(cells) - self.window, self.forgotten[seq_id] - 1, -1):
                if owners[id(cells[position])] == 1:
                    self.forgotten[seq_id] = position + 1
                    break

    def compile(
        self, branches: tuple[SamplingParams, ...], special_tokens: bool = False, post_sampling_probs: bool = False
    ) -> "FakeCompiled":
        if any(params.grammar == "bad" for params in branches):
            raise InvalidRequestError("grammar doesn't parse", param="grammar")
        self.open_compiled += 1
        return FakeCompiled(self)

    def sampler(
        self,
        params: SamplingParams,
        compiled: "FakeCompiled",
        prompt: tuple[int, ...],
        resumed_tokens: tuple[int, ...],
        healed: bytes = b"",
    ) -> FakeSampler:
        assert not compiled.closed
        self.open_samplers += 1
        first = self.tokenizer.beginning_with(healed) if healed and not resumed_tokens else ()
        return self.sampler_type(self, params, [*prompt, *resumed_tokens], first)

    def ranker(self, params: SamplingParams) -> FakeRanker:
        return FakeRanker(params, self.scores)

    def close(self) -> None:
        self.closed = True


class Gate:
    """Stops the engine's thread in a decode until it is opened, or lets it take some steps."""

    def __init__(self, backend: FakeBackend) -> None:
        self.holds = False
        """Whether the engine's thread stands in a decode. Only `step` and `open` change this back."""
        self._steps = 0
        self._is_open = False
        self._changed = threading.Condition()
        backend.on_decode = self._wait

    def _wait(self) -> None:
        with self._changed:
            self.holds = not (self._is_open or self._steps)
            assert self._changed.wait_for(lambda: self._is_open or self._steps, timeout=60), "the gate stayed shut"
            self._steps -= not self._is_open

    def step(self, n: int = 1) -> None:
        """Lets so many decodes pass."""
        with self._changed:
            self._steps += n
            self.holds = False
            self._changed.notify()

    def open(self) -> None:
        """Lets all decodes pass from now on."""
        with self._changed:
            self._is_open, self.holds = True, False
            self._changed.notify()
