"""A request on its way through the engine: its prompts, and the sequences that continue them."""

from srb.engine.backend import Compiled, Logits, Sampler
from srb.engine.events import AbortReason, FinishReason, Token
from srb.engine.kv_cache import Span
from srb.engine.request import CompletionRequest, SamplingParams
from srb.engine.retained import Hit
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

    @property
    def cached(self) -> int:
        """How many tokens of its prompts were known from other requests."""
        return sum(prompt.cached for prompt in self.prompts)

    @property
    def n_evaluated(self) -> int:
        """How many tokens of its prompts were evaluated for it."""
        return sum(prompt.evaluated - prompt.cached for prompt in self.prompts)

    @property
    def pending(self) -> list["Sequence"]:
        """The sequences that there wasn't room for yet."""
        return [seq for seq in self.living if seq.span is None]


class Prompt:
    """A prompt, evaluated once in a sequence of its own, then forked to those that continue it."""

    __slots__ = (
        *("active", "cached", "evaluated", "first_tokens", "hit", "logits"),
        *("seq_id", "sequences", "source", "span", "tokens"),
    )

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
        self.cached = 0  # of these, known from other requests
        self.source: tuple[Prompt | Sequence, int] | None = None  # who is to share so many first tokens with it
        self.hit: Hit | None = None  # what was retained of it
        self.logits: Logits | None = None  # of what follows it
        self.seq_id: int | None = None
        self.span: Span | None = None
        self.first_tokens: set[int] = set()  # those that sequences have begun with
        self.sequences = [
            Sequence(self, number * len(branches) + k, params, stops.get(params.stop))
            for k, params in enumerate(branches)
        ]

    @property
    def living(self) -> list["Sequence"]:
        """The sequences that haven't finished."""
        return [seq for seq in self.sequences if seq.finish_reason is None]


class Sequence:
    """One alternative: its parameters, its text, and what it has leased."""

    __slots__ = (
        *(
            "finish_reason",
            "index",
            "is_greedy",
            "max_tokens",
            "params",
            "prompt",
            "sampler",
            "seq_id",
            "span",
            "sum_logprob",
        ),
        *("text", "tokens", "unsaid", "unsaid_text"),
    )

    def __init__(self, prompt: Prompt, index: int, params: SamplingParams, stops: StopStrings | None) -> None:
        self.prompt = prompt
        self.index = index
        self.params = params
        self.text = TextState(stops)
        self.max_tokens = 0  # set at admission, when the room is known
        self.is_greedy = False  # wants as many as there is room for
        self.tokens: list[int] = []  # generated; the next row evaluates the last one
        self.sum_logprob = 0.0
        self.unsaid: list[Token] = []  # with this text; only where tokens are reported
        self.unsaid_text = ""
        self.seq_id: int | None = None
        self.span: Span | None = None
        self.sampler: Sampler | None = None
        self.finish_reason: FinishReason | None = None

    @property
    def is_running(self) -> bool:
        """Whether each step evaluates a row for it."""
        return bool(self.tokens) and self.finish_reason is None

    @property
    def length(self) -> int:
        """How many tokens were generated."""
        return len(self.tokens)

    @property
    def evaluated(self) -> int:
        """The length of the prompt and of what was generated, but for the last token: that isn't evaluated yet."""
        return len(self.prompt.tokens) + len(self.tokens) - 1

    @property
    def evaluated_tokens(self) -> tuple[int, ...]:
        """These tokens."""
        return (*self.prompt.tokens, *self.tokens[:-1])
