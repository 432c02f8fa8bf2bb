"""`Replay`: what is told of a request that begins anew after an interruption, with the same draws as before."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Protocol

from srb.engine.backend import Backend, Logits, Logprobs, Sampler
from srb.engine.events import Event, StopEvent, StreamEvent, Token
from srb.engine.model import Tokenizer
from srb.engine.request import CompletionRequest, Resumed


class ReportedSequence(Protocol):
    """What a report needs of an alternative: the text that it has said."""

    index: int
    unreported_tokens: list[int]
    """The tokens that were drawn, and that no event has yet."""

    @property
    def is_whole(self) -> bool:
        """Whether no text is kept back."""

    @property
    def sampler(self) -> Sampler | None:
        """What has drawn its last token."""


class TokenReport(Protocol):
    """What is told of the tokens of a request. It is chosen once, when the request comes."""

    echoes: bool
    """Whether the text of an alternative begins with its prompt."""

    def of(self, line: ReportedSequence, token: int, logits: Logits) -> list[Token]:
        """What is to be told of a token that was just drawn from these logits. Raises `BackendError`."""

    def say(self, line: ReportedSequence, tokens: list[Token], text: str, *, is_last: bool = False) -> Iterable[Event]:
        """The events of text, and of the reported tokens that it came from."""

    def end(self, event: StopEvent, sum_logprob: float) -> Iterable[Event]:
        """The event of an alternative's end, with the mean of its tokens' log-probabilities if this is to be told."""


# What is told of the tokens of a request: nothing but their text, or their ids, or their probabilities, too.


def report_of(request: CompletionRequest, backend: Backend) -> TokenReport:
    """The report that a request asks for."""
    if request.logprobs is not None:
        return LogprobsReport(request, backend)
    return TokenIdReport(request) if request.return_tokens else TextReport(request)


def token_of(tokenizer: Tokenizer, token: int, logprobs: Logprobs) -> Token:
    """A token with its log-probability, and with the likeliest tokens at its place."""
    special, (logprob, top) = tokenizer.special_piece, logprobs
    return Token(token, special(token), logprob, tuple(Token(each, special(each), p) for each, p in top))


class TextReport:
    """Tells the text alone. Implements `srb.engine.ports.TokenReport`, as the others here do."""

    def __init__(self, request: CompletionRequest) -> None:
        self.echoes = request.echo and not request.resumed
        self._id = request.id

    def of(self, line: ReportedSequence, token: int, logits: Logits) -> list[Token]:
        """See `TokenReport.of`."""
        return []

    def say(self, line: ReportedSequence, tokens: list[Token], text: str, *, is_last: bool = False) -> Iterable[Event]:
        """See `TokenReport.say`."""
        if not text:
            return ()
        drawn, line.unreported_tokens = tuple(line.unreported_tokens), []
        return (StreamEvent(self._id, line.index, text, drawn=drawn),)

    def end(self, event: StopEvent, sum_logprob: float) -> Iterable[Event]:
        """See `TokenReport.end`."""
        return (event,)


class TokenIdReport(TextReport):
    """Tells the ids of the tokens with the text that they came from. They wait until this text is whole."""

    def __init__(self, request: CompletionRequest) -> None:
        super().__init__(request)
        self._waiting: dict[int, tuple[list[Token], str]] = {}  # by index

    def of(self, line: ReportedSequence, token: int, logits: Logits) -> list[Token]:
        """See `TokenReport.of`."""
        return [Token(token, b"", None)]

    def say(self, line: ReportedSequence, tokens: list[Token], text: str, *, is_last: bool = False) -> Iterator[Event]:
        """See `TokenReport.say`."""
        waiting, before = self._waiting.pop(line.index, ([], ""))
        tokens, text = waiting + tokens, before + text
        if line.is_whole or is_last:
            yield from self._whole(line, tokens, text)
        else:
            self._waiting[line.index] = tokens, text

    def _whole(self, line: ReportedSequence, tokens: list[Token], text: str) -> Iterator[Event]:
        if text or tokens:
            ids = tuple(token.id for token in tokens)
            yield StreamEvent(self._id, line.index, text, ids, drawn=tuple(line.unreported_tokens))
            line.unreported_tokens = []


class LogprobsReport(TokenIdReport):
    """Tells each token in an event of its own, with its log-probability and the likeliest tokens at its place."""

    def __init__(self, request: CompletionRequest, backend: Backend) -> None:
        super().__init__(request)
        assert request.logprobs is not None
        self._top = request.logprobs
        self._are_samplers = request.post_sampling_probs
        self._tells_ids = request.return_tokens
        self._backend = backend

    def of(self, line: ReportedSequence, token: int, logits: Logits) -> list[Token]:
        """See `TokenReport.of`."""
        if self._are_samplers:
            assert line.sampler is not None
            logprobs = line.sampler.logprobs(token, self._top)
        else:
            logprobs = self._backend.logprobs(logits, token, self._top)
        return [token_of(self._backend.tokenizer, token, logprobs)]

    def end(self, event: StopEvent, sum_logprob: float) -> Iterable[Event]:
        """See `TokenReport.end`."""
        return (replace(event, mean_logprob=sum_logprob / event.length) if event.length else event,)

    def _whole(self, line: ReportedSequence, tokens: list[Token], text: str) -> Iterator[Event]:
        drawn = iter(line.unreported_tokens)  # one for each of the tokens, or none if these are the prompt's
        for token in tokens:
            said = text if token is tokens[-1] else ""
            ids = (token.id,) if self._tells_ids else ()
            yield StreamEvent(self._id, line.index, said, ids, token, tuple(islice(drawn, 1)))
        line.unreported_tokens = []


class Replay(TokenReport):
    """Leaves out what was told before the interruption, and tells the rest as `report` does.

    The same draws make the same events, so an event was told whole or not at all.
    resumed: what was told of each alternative.
    """

    echoes = False

    def __init__(self, report: TokenReport, resumed: Sequence[Resumed]) -> None:
        self._report = report
        self._told = [len(each.tokens) for each in resumed]
        self._ended = [each.finished is not None for each in resumed]

    def of(self, line: ReportedSequence, token: int, logits: Logits) -> list[Token]:
        """See `TokenReport.of`."""
        return self._report.of(line, token, logits)

    def say(self, line: ReportedSequence, tokens: list[Token], text: str, *, is_last: bool = False) -> Iterable[Event]:
        """See `TokenReport.say`."""
        for event in self._report.say(line, tokens, text, is_last=is_last):
            if self._ended[line.index]:
                continue
            if self._told[line.index] and isinstance(event, StreamEvent):
                self._told[line.index] -= len(event.drawn)
            else:
                yield event

    def end(self, event: StopEvent, sum_logprob: float) -> Iterable[Event]:
        """See `TokenReport.end`."""
        if not self._ended[event.index]:
            yield from self._report.end(event, sum_logprob)
