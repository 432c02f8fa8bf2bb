"""Scores tables: the log-probabilities of continuations given a context, for every branch.

A `Table` is cut into requests of at most `ROWS_AT_ONCE` rows (`Part`). Its caller has `PARTS_AT_ONCE` of them in the
engine, so a table of any size takes little memory, and leaves cells for other requests. A context is evaluated once for
each branch. Its continuations are forks of it, and their tokens are evaluated in the same batches. Prefix caching works
as for all prompts.

`TableScorer` makes the parts one by one. It returns the rows of a context when all of them are scored, because only
then their ranks are known.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import fsum

from srb.engine.events import DoneEvent, ErrorEvent, Event, StopEvent, StreamEvent, Token
from srb.engine.model import Tokenize
from srb.engine.request import CompletionRequest, new_request_id
from srb.engine.sampling_params import SamplingParams
from srb.engine.validation.fields import Text, check_text
from srb.errors import InvalidRequestError, SrbError

ROWS_AT_ONCE = 32
"""The largest number of rows in one request."""

PARTS_AT_ONCE = 2
"""The number of requests of a table in an engine at a time. The second fills the batches that the first leaves."""

_PLAIN = (SamplingParams(seed=0),)

Check = Callable[[CompletionRequest], object]
"""`Engine.check`."""


@dataclass(frozen=True, slots=True)
class Score:
    """The log-probability of a text given the text before it.

    Attributes:
        logprob: of the whole text, the sum of `logprobs`.
        tokens: the ids of its tokens.
        logprobs: of each token given all tokens before it, as a natural logarithm.
        greedy: whether each token is the most probable one at its place.
        retokenized: whether the whole text has other tokens than the context and `tokens`, as `"Hello wor"` and
            `"ld!"`. Such scores can't be compared with others; let the context end between two words.
    """

    logprob: float = field(init=False)
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    greedy: bool = False
    retokenized: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "logprob", fsum(self.logprobs))


@dataclass(frozen=True, slots=True)
class ScoredRow:
    """A row of a table.

    Attributes:
        context: the number of its context, from 0.
        continuation: the number of its continuation among those of its context, from 0.
        branch: the number of its branch, from 0.
        score: None if the row can't be scored; then `error` says why.
        n_characters: the number of characters of the continuation as it was given.
        rank: 1 for the most probable continuation of its context in this branch, by `logprob`, then 2 and so on.
        reported: the tokens, each with the `Table.top` most probable ones at its place, and at least one.
    """

    context: int
    continuation: int
    branch: int
    score: Score | None
    n_characters: int = 0
    rank: int = 0
    reported: tuple[Token, ...] = ()
    error: SrbError | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """The continuations of each context that are to be scored.

    Attributes:
        contexts: each is a text or token ids.
        continuations: those of each context; each is a text or token ids.
        branches: every continuation is scored with the `lora` of each.
        top: the number of most probable tokens that are reported at the place of each token.
        called: the name of a continuation in errors.
    """

    contexts: tuple[Text, ...]
    continuations: tuple[tuple[Text, ...], ...]
    branches: tuple[SamplingParams, ...] = _PLAIN
    top: int = 0
    called: str = "continuations"

    @classmethod
    def of(
        cls,
        contexts: Sequence[Text],
        continuations: Sequence[Text] | Sequence[Sequence[Text]],
        branches: Sequence[SamplingParams] = (),
        *,
        top: int = 0,
        names: tuple[str, str] = ("contexts", "continuations"),
    ) -> "Table":
        """Makes a table of lists or tuples.

        Args:
            contexts: texts, or the token ids of each.
            continuations: those that all contexts have, or a list for each context.
            branches: every continuation is scored with the `lora` of each. None: one branch without adapters.
            top: `Table`.
            names: the names of contexts and continuations in errors.

        Raises:
            InvalidRequestError: An argument has a wrong type or length.
        """
        texts = _texts(contexts, names[0])
        if not isinstance(continuations, list | tuple):
            raise InvalidRequestError(
                f"{names[1]} takes a list of texts, or such a list for each context; write [...] around it",
                param=names[1],
            )
        if continuations and all(isinstance(each, list | tuple) and not is_tokens(each) for each in continuations):
            rows = tuple(_texts(each, f"{names[1]}[{k}]") for k, each in enumerate(continuations))
            if len(rows) != len(texts):
                raise InvalidRequestError(
                    f"{names[1]} has lists for {len(rows)} contexts, and there are {len(texts)}; send a list for each, "
                    "or one list of texts for all",
                    param=names[1],
                )
        else:
            rows = (_texts(continuations, names[1]),) * len(texts)
        return cls(texts, rows, tuple(branches) or _PLAIN, top, names[1])

    @property
    def count(self) -> int:
        """The number of rows."""
        return sum(map(len, self.continuations)) * len(self.branches)

    def name(self, context: int, k: int) -> str:
        """The name of a continuation in errors."""
        return f"{self.called}[{k}]" if len(self.contexts) == 1 else f"{self.called}[{context}][{k}]"


def is_tokens(value: object) -> bool:
    """Tells whether a list or a tuple has token ids, and not texts."""
    return isinstance(value, list | tuple) and bool(value) and not isinstance(value[0], str | list | tuple)


def _texts(values: object, name: str) -> tuple[Text, ...]:
    param = name.partition("[")[0]
    if not isinstance(values, list | tuple):
        raise InvalidRequestError(f"{name} takes a list of texts; write [...] around it", param=param)
    if not values:
        raise InvalidRequestError(f"{name} must have at least one text", param=param)
    texts = tuple(tuple(each) if isinstance(each, list) else each for each in values)
    for k, each in enumerate(texts):
        check_text(f"{name}[{k}]", each)
    return texts


@dataclass(frozen=True, slots=True)
class _Row:
    """A row that is to be scored. tokens: those of its continuation, which was given as `text`."""

    context: int
    continuation: int
    tokens: tuple[int, ...]
    text: Text
    retokenized: bool = False


_Contexts = list[tuple[tuple[int, ...], list[_Row]]]
"""The tokens of contexts, each with its rows."""


class Part:
    """A request for some rows of a table. Give its events to `take` until it has `done`."""

    def __init__(self, request: CompletionRequest, rows: list[_Row], branch: int) -> None:
        self.request = request
        self.rows = rows
        self.branch = branch
        self.done: DoneEvent | None = None
        self.aborted: str | None = None
        """The reason if it was ended early."""
        self.reported: list[list[Token]] = [[] for _ in rows]
        self.errors: dict[int | None, SrbError] = {}

    def take(self, events: Iterable[Event]) -> None:
        """Takes events of the request."""
        for event in events:
            if isinstance(event, StreamEvent) and event.token:
                self.reported[event.index].append(event.token)
            elif isinstance(event, ErrorEvent):
                self.errors[event.index] = event.error
            elif isinstance(event, StopEvent) and event.finish_reason == "abort":
                assert not isinstance(event.stop_reason, int)
                self.aborted = event.stop_reason
            elif isinstance(event, DoneEvent):
                self.done = event


class TableScorer:
    """Makes the parts of a table one after the other, and collects its rows.

    Args:
        table: what is scored.
        tokenize: that of the engine.
        check: raises `InvalidRequestError` for a request that the engine can't run.
        request_id: the ids of the parts begin with this.
    """

    def __init__(self, table: Table, tokenize: Tokenize, check: Check, request_id: str = "") -> None:
        self._table = table
        self._tokenize = tokenize
        self._check = check
        self._id = request_id or new_request_id()
        self._n_parts = 0
        self._parts = self._make()
        self._scored: dict[tuple[int, int], dict[int, ScoredRow]] = {}  # incomplete contexts, by context and branch
        self._complete: list[ScoredRow] = []

    def next_part(self) -> Part | None:
        """Makes the next part; None if there are no more. It tokenizes, so only one thread may be in it."""
        return next(self._parts, None)

    def put(self, part: Part) -> None:
        """Takes a part that is done."""
        for k, (row, tokens) in enumerate(zip(part.rows, part.reported, strict=True)):
            error = part.errors.get(k) or part.errors.get(None)
            if len(tokens) < len(row.tokens):
                self._add(row, part.branch, None, error or SrbError("the row was ended before it was scored"))
            else:
                self._add(row, part.branch, tokens)

    def take_rows(self) -> list[ScoredRow]:
        """Returns the rows that are complete since the last call, grouped by context."""
        rows, self._complete = self._complete, []
        return rows

    def _add(self, row: _Row, branch: int, tokens: list[Token] | None, error: SrbError | None = None) -> None:
        scored = ScoredRow(row.context, row.continuation, branch, None, error=error)
        if tokens is not None:
            of_tokens = tuple(token.logprob or 0.0 for token in tokens)
            greedy = all(token.top_logprobs[0].id == token.id for token in tokens)
            text = row.text
            if not isinstance(text, str):
                text = b"".join(token.piece for token in tokens).decode(errors="replace")
            score = Score(row.tokens, of_tokens, greedy, row.retokenized)
            scored = replace(scored, score=score, n_characters=len(text), reported=tuple(tokens))
        group = self._scored.setdefault((row.context, branch), {})
        group[row.continuation] = scored
        if len(group) == len(self._table.continuations[row.context]):
            del self._scored[row.context, branch]
            ranks: dict[float, int] = {}
            logprobs = sorted((each.score.logprob for each in group.values() if each.score), reverse=True)
            for rank, logprob in enumerate(logprobs, 1):
                ranks.setdefault(logprob, rank)
            for k in sorted(group):
                found = group[k].score
                self._complete.append(replace(group[k], rank=ranks[found.logprob]) if found else group[k])

    def _make(self) -> Iterator[Part]:
        """Joins contexts with the same number of continuations, as many as fit one request."""
        waiting: _Contexts = []
        for context in range(len(self._table.contexts)):
            for tokens, rows in self._of_context(context):
                if waiting and not self._fits([*waiting, (tokens, rows)]):
                    yield from self._parts_of(waiting)
                    waiting = []
                waiting.append((tokens, rows))
        if waiting:
            yield from self._parts_of(waiting)

    def _fits(self, contexts: _Contexts) -> bool:
        """Tells whether one request may have all these rows."""
        n_each = len(contexts[0][1])
        if len(contexts) * n_each > ROWS_AT_ONCE or any(len(rows) != n_each for _, rows in contexts):
            return False
        try:
            self._check(_request("", contexts, SamplingParams(seed=0), 0))
        except InvalidRequestError:  # the longest context is in one row, and the longest continuation in another
            return False
        return True

    def _of_context(self, number: int) -> Iterator[tuple[tuple[int, ...], list[_Row]]]:
        """Yields the tokens of a context with its rows, as many at a time as one request may have.

        The same context can have different tokens: its last spaces belong to continuations that are texts, and not to
        those that are given as tokens. A row that can't be scored gets its error at once.
        """
        rows_of: dict[tuple[int, ...], list[_Row]] = {}
        context = self._table.contexts[number]
        for k, text in enumerate(self._table.continuations[number]):
            row = _Row(number, k, (), text)
            try:
                tokens, own, retokenized = pair_tokens(context, text, self._tokenize)
                row = replace(row, tokens=own, retokenized=retokenized)
                self._check(_request("", [(tokens, [row])], SamplingParams(seed=0), 0))
            except InvalidRequestError as error:
                name = self._table.name(number, k)
                if error.param == "candidates[0]":
                    error.rename(name)
                message = error.message
                if error.code == "context_length_exceeded":
                    numbers = message.partition("; ")[0]
                    message = (
                        f"{name} and the text before it are too long together: {numbers}; shorten one of them, or "
                        "start with a larger --ctx-size"
                    )
                error = InvalidRequestError(message, param=self._table.called, code=error.code)
                for branch in range(len(self._table.branches)):
                    self._add(row, branch, None, error)
                continue
            rows_of.setdefault(tokens, []).append(row)
        for tokens, rows in rows_of.items():
            for first in range(0, len(rows), ROWS_AT_ONCE):
                yield tokens, rows[first : first + ROWS_AT_ONCE]

    def _parts_of(self, contexts: _Contexts) -> Iterator[Part]:
        rows = [row for _, rows in contexts for row in rows]
        for branch, params in enumerate(self._table.branches):
            request = _request(f"{self._id}.{self._n_parts}", contexts, params, max(1, self._table.top))
            self._n_parts += 1
            yield Part(request, rows, branch)


def _request(request_id: str, contexts: _Contexts, params: SamplingParams, top: int) -> CompletionRequest:
    """Makes a request for these rows. The k-th rows of all contexts share a branch, and so its `max_tokens`."""
    longest = (max(len(row.tokens) for row in each) for each in zip(*(rows for _, rows in contexts), strict=True))
    branches = (SamplingParams(max_tokens=each, seed=0, lora=params.lora) for each in longest)
    return CompletionRequest(
        tuple(tokens for tokens, _ in contexts),
        tuple(branches),
        logprobs=top,
        candidates=tuple(row.tokens for _, rows in contexts for row in rows),
        id=request_id,
    )


def to_tokens(text: Text, tokenize: Tokenize, *, is_prompt: bool, name: str = "prompt") -> tuple[int, ...]:
    """Tokenizes a text, and leaves token ids as they are. Raises `InvalidRequestError` for anything else."""
    if isinstance(text, list):
        text = tuple(text)
    if text != "" or not is_prompt:  # a prompt may be BOS alone
        check_text(name, text)
    if not isinstance(text, str):
        return text
    try:
        return tokenize(text, is_prompt=is_prompt)
    except InvalidRequestError as error:
        error.rename(name)
        raise


def pair_tokens(context: Text, continuation: Text, tokenize: Tokenize) -> tuple[tuple[int, ...], tuple[int, ...], bool]:
    """Tokenizes a context and a continuation of it.

    Two texts are tokenized like in lm-evaluation-harness (`TemplateLM._encode_pair`). Spaces at the end of the context
    belong to the continuation. Both texts are tokenized as one, and the continuation gets the tokens after the first m,
    where m is the number of tokens of the context alone. The continuation is tokenized alone if no tokens are left
    (its letters are in the last token of the context), or if one of the two is given as tokens.

    Returns:
        The tokens of the context, those of the continuation, and whether both together have other tokens as one text.

    Raises:
        InvalidRequestError: `Tokenize`.
    """
    if isinstance(context, str) and isinstance(continuation, str):
        before = context.rstrip() or context
        continuation = context[len(before) :] + continuation
        tokens = tokenize(before)
        whole = tokenize(before + continuation)
        own = whole[len(tokens) :] or tokenize(continuation, is_prompt=False)
        return tokens, own, tokens + own != whole
    return (
        tokenize(context) if isinstance(context, str) else context,
        tokenize(continuation, is_prompt=False) if isinstance(continuation, str) else continuation,
        False,
    )
