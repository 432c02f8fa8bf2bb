"""Scores tables: every continuation behind its context, in every setting.

A `Table` is cut into requests of at most `ROWS_AT_ONCE` rows (`Part`), of which whoever runs it has `PARTS_AT_ONCE` in
the engine. So a table of any size takes little memory, and leaves room for others. A context is evaluated once for each
setting, and its continuations are forks of it, whose tokens are evaluated together. What contexts share is evaluated
once, as for all other prompts.

`Tabulating` makes the parts one by one, and tells the rows of a context when all of them are there: only then is it
known which is the likeliest.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import fsum

from srb.engine.events import DoneEvent, ErrorEvent, Event, StopEvent, StreamEvent, Token
from srb.engine.request import CompletionRequest, new_request_id
from srb.engine.sampling_params import SamplingParams
from srb.engine.validation.fields import Text, check_text
from srb.errors import InvalidRequestError, SrbError

# Turns what programs give as texts into tokens.

Tokenize = Callable[..., tuple[int, ...]]
"""`Engine.tokenize`."""


def to_tokens(text: Text, tokenize: Tokenize, *, is_prompt: bool, name: str = "prompt") -> tuple[int, ...]:
    """The tokens of a text. Tokens stay as they are. Raises `InvalidRequestError` for anything else."""
    if isinstance(text, list):
        text = tuple(text)
    check_text(name, text)
    return tokenize(text, is_prompt=is_prompt) if isinstance(text, str) else text


def pair_tokens(context: Text, continuation: Text, tokenize: Tokenize) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tokens of a context, and those of a continuation behind it.

    Two texts are tokenized as lm-evaluation-harness does it (`TemplateLM._encode_pair`): spaces at the end of the
    context belong to the continuation, and this has the tokens of both texts together that are behind as many as the
    context has alone. Where none are left, because its letters are in the context's last token, and where one of the
    two is given as tokens, the continuation is tokenized alone.

    Raises `InvalidRequestError` for what `RequestLimits.tokenize` refuses.
    """
    if isinstance(context, str) and isinstance(continuation, str):
        before = context.rstrip() or context
        continuation = context[len(before) :] + continuation
        tokens = tokenize(before)
        if behind := tokenize(before + continuation)[len(tokens) :]:
            return tokens, behind
        context = tokens
    return (
        tokenize(context) if isinstance(context, str) else context,
        tokenize(continuation, is_prompt=False) if isinstance(continuation, str) else continuation,
    )


ROWS_AT_ONCE = 32
"""The most rows of a table that are one request."""

PARTS_AT_ONCE = 2
"""How many requests of a table an engine has at the same time. The second one fills batches that the first leaves."""

_PLAIN = (SamplingParams(seed=0),)

Check = Callable[[CompletionRequest], object]
"""`Engine.check`."""


@dataclass(frozen=True, slots=True)
class Score:
    """How likely a text is after another one.

    logprob: the log-probability of the whole text: the sum of those of its tokens. tokens: the ids of its tokens.
    logprobs: for each token, the natural logarithm of the probability that the model gives it after all tokens before
        it.
    greedy: whether each token is the likeliest one at its place.
    """

    logprob: float = field(init=False)
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    greedy: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "logprob", fsum(self.logprobs))


@dataclass(frozen=True, slots=True)
class ScoredRow:
    """A row of a table.

    context, continuation, branch: their numbers, each from 0; a continuation's is its place behind its context.
    score: None if the row can't be scored; then `error` says why.
    n_characters: how many characters the continuation has, as it was given.
    rank: 1 for the likeliest continuation of its context with this branch, by `logprob`, then 2 and so on.
    reported: the tokens, each with `Table.top` of the likeliest at its place, and at least one.
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
    """What is scored: the continuations of each context, each a text or tokens, with the `lora` of each branch.

    top: how many of the likeliest tokens are reported at the place of each token.
    called: what errors call a continuation.
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
        """A table, with lists in place of tuples, too.

        continuations: those of all contexts, or a list for each context. names: what errors call the two.
        Raises `InvalidRequestError`.
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
        """How many rows it has."""
        return sum(map(len, self.continuations)) * len(self.branches)

    def name(self, context: int, k: int) -> str:
        """What errors call a continuation."""
        return f"{self.called}[{k}]" if len(self.contexts) == 1 else f"{self.called}[{context}][{k}]"


def is_tokens(value: object) -> bool:
    """Whether a list or a tuple is of token ids, and not of texts."""
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
    """A row that is to be scored. name: what errors call its continuation; it is called `text` there if it is one."""

    context: int
    continuation: int
    tokens: tuple[int, ...]
    text: Text


_Contexts = list[tuple[tuple[int, ...], list[_Row]]]
"""The tokens of contexts, each with the rows behind it."""


class Part:
    """A request for some rows of a table. Give its events to `take`, until it `is_done`."""

    def __init__(self, request: CompletionRequest, rows: list[_Row], branch: int) -> None:
        self.request = request
        self.rows = rows
        self.branch = branch
        self.done: DoneEvent | None = None
        self.aborted: str | None = None
        """Why it was ended early, if it was."""
        self.said: list[list[Token]] = [[] for _ in rows]
        self.errors: dict[int | None, SrbError] = {}

    def take(self, events: Iterable[Event]) -> None:
        """Takes events of the request."""
        for event in events:
            if isinstance(event, StreamEvent) and event.token:
                self.said[event.index].append(event.token)
            elif isinstance(event, ErrorEvent):
                self.errors[event.index] = event.error
            elif isinstance(event, StopEvent) and event.finish_reason == "abort":
                self.aborted = event.stop_reason
            elif isinstance(event, DoneEvent):
                self.done = event


class Tabulating:
    """Makes the parts of a table, one after the other, and the rows of what they have said.

    `next` tokenizes, so it may take a while; only one thread may be in it. request_id: the parts have it with a number.
    """

    def __init__(self, table: Table, tokenize: Tokenize, check: Check, request_id: str = "") -> None:
        self._table = table
        self._tokenize = tokenize
        self._check = check
        self._id = request_id or new_request_id()
        self._n_parts = 0
        self._parts = self._make()
        self._rows: dict[tuple[int, int], dict[int, ScoredRow]] = {}  # by context and branch, those that are there
        self._told: list[ScoredRow] = []

    def next(self) -> Part | None:
        """The next part, or None if there are no more."""
        return next(self._parts, None)

    def put(self, part: Part) -> None:
        """Takes a part that is done."""
        for k, (row, said) in enumerate(zip(part.rows, part.said, strict=True)):
            error = part.errors.get(k) or part.errors.get(None)
            if len(said) < len(row.tokens):
                self._add(row, part.branch, None, error or SrbError("the row was ended before it was scored"))
            else:
                self._add(row, part.branch, said)

    def told(self) -> list[ScoredRow]:
        """The rows that have become known since the last call, those of a context together."""
        told, self._told = self._told, []
        return told

    def _add(self, row: _Row, branch: int, said: list[Token] | None, error: SrbError | None = None) -> None:
        scored = ScoredRow(row.context, row.continuation, branch, None, error=error)
        if said is not None:
            logprobs = tuple(token.logprob or 0.0 for token in said)
            greedy = all(token.top_logprobs[0].id == token.id for token in said)
            text = row.text
            if not isinstance(text, str):
                text = b"".join(token.piece for token in said).decode(errors="replace")
            score = Score(row.tokens, logprobs, greedy)
            scored = replace(scored, score=score, n_characters=len(text), reported=tuple(said))
        group = self._rows.setdefault((row.context, branch), {})
        group[row.continuation] = scored
        if len(group) == len(self._table.continuations[row.context]):
            del self._rows[row.context, branch]
            known = sorted((each.score.logprob for each in group.values() if each.score), reverse=True)
            ranks = {logprob: rank for rank, logprob in reversed([*enumerate(known, 1)])}
            for k in sorted(group):
                found = group[k].score
                self._told.append(replace(group[k], rank=ranks[found.logprob]) if found else group[k])

    def _make(self) -> Iterator[Part]:
        """Puts contexts together that have equally many continuations, as far as they are one request."""
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
        """Whether one request may have all these rows."""
        n_each = len(contexts[0][1])
        if len(contexts) * n_each > ROWS_AT_ONCE or any(len(rows) != n_each for _, rows in contexts):
            return False
        try:
            self._check(_request("", contexts, SamplingParams(seed=0), 0))
        except InvalidRequestError:  # the longest context is in one row, and the longest continuation in another
            return False
        return True

    def _of_context(self, number: int) -> Iterator[tuple[tuple[int, ...], list[_Row]]]:
        """The tokens of a context, and rows behind it, as many as one request may have.

        The same context has other tokens if its last spaces belong to continuations, and those that are given as tokens
        don't have them. A row that can't be scored is told as such.
        """
        behind: dict[tuple[int, ...], list[_Row]] = {}
        context = self._table.contexts[number]
        for k, text in enumerate(self._table.continuations[number]):
            row = _Row(number, k, (), text)
            try:
                tokens, own = pair_tokens(context, text, self._tokenize)
                row = replace(row, tokens=own)
                self._check(_request("", [(tokens, [row])], SamplingParams(seed=0), 0))
            except InvalidRequestError as error:
                name = self._table.name(number, k)
                message = error.message.replace("candidates[0]", name)
                if error.code == "context_length_exceeded":
                    numbers = error.message.partition("; ")[0]
                    message = (
                        f"{name} and the text before it are too long together: {numbers}; shorten one of them, or "
                        "start with a larger --ctx-size"
                    )
                error = InvalidRequestError(message, param=self._table.called, code=error.code)
                for branch in range(len(self._table.branches)):
                    self._add(row, branch, None, error)
                continue
            behind.setdefault(tokens, []).append(row)
        for tokens, rows in behind.items():
            for first in range(0, len(rows), ROWS_AT_ONCE):
                yield tokens, rows[first : first + ROWS_AT_ONCE]

    def _parts_of(self, contexts: _Contexts) -> Iterator[Part]:
        rows = [row for _, rows in contexts for row in rows]
        for branch, params in enumerate(self._table.branches):
            request = _request(f"{self._id}.{self._n_parts}", contexts, params, max(1, self._table.top))
            self._n_parts += 1
            yield Part(request, rows, branch)


def _request(request_id: str, contexts: _Contexts, params: SamplingParams, top: int) -> CompletionRequest:
    """A request for these rows. The k-th rows of all contexts have one branch, so they have its `max_tokens`."""
    longest = (max(len(row.tokens) for row in each) for each in zip(*(rows for _, rows in contexts), strict=True))
    branches = (SamplingParams(max_tokens=each, seed=0, lora=params.lora) for each in longest)
    return CompletionRequest(
        tuple(tokens for tokens, _ in contexts),
        tuple(branches),
        logprobs=top,
        candidates=tuple(row.tokens for _, rows in contexts for row in rows),
        id=request_id,
    )
