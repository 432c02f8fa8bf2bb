"""`POST /v1/score`: log-probabilities of continuations given contexts, as native events or one object."""

from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

from pydantic import ConfigDict, Field, StrictBool, WithJsonSchema

from srb.engine.events import Usage
from srb.engine.request import MAX_LOGPROBS, CompletionRequest
from srb.engine.sampling_params import SamplingParams
from srb.engine.score_table import ScoredRow, Table
from srb.engine.validation.fields import Text
from srb.errors import InvalidRequestError, SrbError
from srb.wire.native.reply import token_json, usage_json
from srb.wire.reply import LEAST_LOGPROB
from srb.wire.request.body import check_stream
from srb.wire.request.fields import AdapterScale, SamplingFields, Stream, declared
from srb.wire.request.read import BodyFields, Int, ModelFields, kind_of, read_fields
from srb.wire.route import BOOLEAN, INTEGER, NUMBER, OBJECT, STRING, fields_of, list_of, object_of
from srb.wire.tokens import is_token

MAX_ROWS_IN_OBJECT = 100_000
"""With more rows than this, the response must be a stream, because an object is built in memory."""

MAX_BRANCHES = 100

_TEXT = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "integer"}, "minItems": 1}]}
_TEXTS = {"type": "array", "items": _TEXT, "minItems": 1}

Contexts = Annotated[Any, WithJsonSchema(_TEXTS)]
Continuations = Annotated[Any, WithJsonSchema({"anyOf": [_TEXTS, {"type": "array", "items": _TEXTS, "minItems": 1}]})]


class ScoreBranchFields(BodyFields):
    """One object of the `branches` of `POST /v1/score`."""

    lora: list[AdapterScale] | None = Field(
        None,
        description='the adapters to use, such as [{"id": 0, "scale": 0.5}]. Left out: as the server has set them.',
    )
    label: str | None = Field(None, description="a name for this branch; it comes back in `start`.")


class ScoreFields(ModelFields):
    """The body of `POST /v1/score`."""

    model_config = ConfigDict(json_schema_extra={"required": ["contexts", "continuations"]})

    contexts: Contexts = Field(None, description="a list of texts, or of lists of token ids.")
    continuations: Continuations = Field(
        None,
        description="the texts to score after each context: a list of texts, or of lists of token ids, or such a list "
        "for each context. A text is tokenized together with its context.",
    )
    branches: list[ScoreBranchFields] | None = Field(
        None,
        description="settings that each row is scored with: objects with `lora` and `label`. Fields that only change "
        "sampling are refused.",
    )
    logprobs: Int | StrictBool | None = declared(
        CompletionRequest,
        "logprobs",
        description="report each token of a continuation with its log-probability, and this many of the top tokens at "
        "its position, 0 to 100. Left out: off.",
    )
    stream: Stream | None = Field(
        None, description='false: answer with one object when all is scored. Left out, true or "events": native events.'
    )


@dataclass(frozen=True)
class ScoreRequest:
    """A parsed body. top: how many top tokens to report at each position; None: no tokens at all."""

    table: Table
    top: int | None
    stream: bool
    ignored: list[str]


def parse_score(body: bytes, model: str) -> ScoreRequest:
    """Parses a body. model: the name of the server's model. Raises `InvalidRequestError`."""
    fields = read_fields(body, ScoreFields)
    contexts = texts_of(fields.contexts, "contexts")
    continuations = fields.continuations
    if isinstance(continuations, list) and continuations and all(map(_is_list_of_texts, continuations)):
        continuations = [texts_of(each, f"continuations[{k}]") for k, each in enumerate(continuations)]
    else:
        continuations = texts_of(continuations, "continuations")
    top = None if fields.logprobs is None or fields.logprobs is False else int(fields.logprobs)
    if top is not None and not 0 <= top <= MAX_LOGPROBS:
        raise InvalidRequestError(f"logprobs must be from 0 to {MAX_LOGPROBS}, got {top!s:.60}", param="logprobs")
    top = 0 if fields.logprobs is True else top
    table = Table.of(contexts, continuations, _branches(fields.branches or []), top=top or 0)
    check_stream(fields.stream)
    stream = fields.stream is not False
    if not stream and table.count > MAX_ROWS_IN_OBJECT:
        raise InvalidRequestError(
            f"the table has {table.count} rows, and one object has at most {MAX_ROWS_IN_OBJECT}; leave stream out to "
            "get them one by one",
            param="stream",
        )
    branches = {f"branches.{name}": None for branch in fields.branches or () for name in branch.unread()}
    return ScoreRequest(table, top, stream, [*fields.unread(model), *branches])


def _branches(branches: list[ScoreBranchFields]) -> list[SamplingParams]:
    if len(branches) > MAX_BRANCHES:
        raise InvalidRequestError(f"branches takes at most {MAX_BRANCHES}, got {len(branches)}", param="branches")
    for k, branch in enumerate(branches):
        for name in branch.unread():
            if name in SamplingFields.model_fields:
                raise InvalidRequestError(
                    f"branches[{k}] has {name}, which changes sampling, and no token is sampled here; only lora "
                    "changes the model's own probabilities; leave it out",
                    param="branches",
                )
    loras = (None if each.lora is None else tuple(adapter.asked for adapter in each.lora) for each in branches)
    return [SamplingParams(seed=0, lora=lora, label=each.label) for lora, each in zip(loras, branches, strict=True)]


def _is_list_of_texts(value: Any) -> bool:
    return isinstance(value, list) and not any(map(is_token, value))


def texts_of(values: Any, name: str) -> list[Text]:
    """Texts, and tuples in place of lists of token ids. Raises `InvalidRequestError`, which quotes no text."""
    param = name.partition("[")[0]
    if values is None:
        raise InvalidRequestError(f"{name} is missing", param=param)
    if not isinstance(values, list) or not values:
        what = kind_of(values) if values != [] else "an empty one"
        raise InvalidRequestError(f"{name} takes a list of texts, or of lists of token ids; got {what}", param=param)
    return [text_of(each, f"{name}[{k}]", param) for k, each in enumerate(values)]


def text_of(value: Any, name: str, param: str) -> Text:
    """A text, or a tuple in place of a list of token ids. Raises `InvalidRequestError`, which doesn't quote it."""
    if not isinstance(value, str) and not (isinstance(value, list) and all(map(is_token, value))):
        raise InvalidRequestError(
            f"{name} must be a text, or a list of token ids (whole numbers from 0 on); it is {kind_of(value)}",
            param=param,
        )
    if not value:
        raise InvalidRequestError(f"{name} is empty; it needs at least one token, such as BOS", param=param)
    return value if isinstance(value, str) else tuple(value)


class Run(Protocol):
    """A table that is scored. failure: the error that ended it. aborted: why it was aborted."""

    usage: Usage
    failure: SrbError | None
    aborted: str | None

    def rows(self) -> AsyncGenerator[list[ScoredRow], None]: ...


class ScoreBuilder:
    """Builds the events of a table that was asked for at `created`, in seconds since 1970, or the one object."""

    def __init__(self, request: ScoreRequest, request_id: str, *, model: str, created: int, fingerprint: str) -> None:
        self._request = request
        self._id = request_id
        self._head = {"id": request_id, "created": created, "model": model}
        self._fingerprint = {"fingerprint": fingerprint} if fingerprint else {}
        self._count = 0

    def start(self) -> dict[str, Any]:
        """The first event. `count` is the number of rows."""
        table = self._request.table
        labels = [branch.label for branch in table.branches]
        return {
            "event": "start",
            "count": table.count,
            **self._head,
            "contexts": len(table.contexts),
            "branches": len(labels),
            **({"labels": labels} if any(labels) else {}),
            "ignored": self._request.ignored,
            **self._fingerprint,
        }

    def row(self, row: ScoredRow) -> dict[str, Any]:
        """The event of a row."""
        self._count += 1
        position = {"context": row.context, "continuation": row.continuation, "branch": row.branch}
        if row.score is None:
            assert row.error
            return {"event": "error", **position, "error": row.error.body()}
        score = row.score
        value = {
            "event": "score",
            **position,
            "logprob": round(max(score.logprob, LEAST_LOGPROB), 6),
            "n_tokens": len(score.tokens),
            "n_characters": row.n_characters,
            "greedy": score.greedy,
            "rank": row.rank,
        }
        if score.retokenized:
            value["retokenized"] = True
        if (top := self._request.top) is not None:
            value["logprobs"] = [
                token_json(token) | ({"top_logprobs": list(map(token_json, token.top_logprobs[:top]))} if top else {})
                for token in row.reported
            ]
        return value

    def last(self, run: Run) -> list[dict[str, Any]]:
        """The last events. `count` in `done` is the number of rows that were scored."""
        error = [{"event": "error", "error": run.failure.body()}] if run.failure else []
        reason = "error" if run.failure else "abort" if run.aborted else "stop"
        done = {
            "event": "done",
            "count": self._count,
            "id": self._id,
            "usage": usage_json(run.usage),
            "finish_reason": reason,
            "stop_reason": run.aborted,
        }
        return [*error, done]

    async def events(self, run: Run) -> AsyncGenerator[Iterable[dict[str, Any]], None]:
        """The events of a table that has started."""
        yield [self.start()]
        async for rows in run.rows():
            yield map(self.row, rows)
        yield self.last(run)

    def object(self, rows: Iterable[ScoredRow], run: Run) -> dict[str, Any]:
        """The one object, with the rows in order. Raises the error that ended the whole table, if there was one."""
        if run.failure:
            raise run.failure
        ordered = sorted(rows, key=lambda row: (row.context, row.branch, row.continuation))
        scores = [self.row(row) for row in ordered]
        start, (done,) = self.start(), self.last(run)
        value = self._head | {"object": "srb.scores"}
        value |= {
            name: start[name] for name in ("count", "contexts", "branches", "labels", "fingerprint") if name in start
        }
        value["scores"] = [{name: each[name] for name in each if name != "event"} for each in scores]
        return value | {name: done[name] for name in ("usage", "finish_reason", "stop_reason")}


_ROW = object_of(**fields_of(INTEGER, "context continuation branch"))
_ROW["properties"] |= fields_of(INTEGER, "n_tokens n_characters rank") | fields_of(OBJECT, "error")
_ROW["properties"] |= {"logprob": NUMBER, "greedy": BOOLEAN, "retokenized": BOOLEAN, "logprobs": list_of(OBJECT)}

OBJECT_SCHEMA = object_of(
    **fields_of(STRING, "id object model"),
    **fields_of(INTEGER, "created count contexts branches"),
    scores=list_of(_ROW),
    usage=OBJECT,
)
STREAM_SCHEMA = {
    "description": "lines `data: {...}` with the native events start, score, error and done. A score has the numbers "
    "of its `context`, `continuation` and `branch`, its `logprob`, `n_tokens`, `n_characters`, `greedy` and `rank`, "
    "`retokenized` if it is true, and with logprobs the `logprobs` of its tokens. An error with such numbers belongs "
    "to this row alone"
}
