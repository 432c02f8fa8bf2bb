"""What is reported of the tokens of a request: their text alone, their ids, or their log-probabilities, too.

Tokens are reported when their text is complete, one event each. So a text and its probabilities never disagree, and a
stop string's text isn't shown while its tokens are.
"""

from __future__ import annotations

from collections import abc
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from srb.engine.backend import Backend, Logits, Logprobs
from srb.engine.events import ErrorEvent, Event, StopEvent, StreamEvent, Token
from srb.engine.model import Tokenizer
from srb.engine.request import CompletionRequest, Resumed

if TYPE_CHECKING:
    from srb.engine.sequence import Sequence


def report_of(request: CompletionRequest, backend: Backend) -> TokenReport:
    """Return the report that a request asks for."""
    if request.logprobs is not None:
        return LogprobsReport(request, backend)
    return TokenIdReport(request) if request.return_tokens else TokenReport(request)


def token_of(tokenizer: Tokenizer, token: int, logprobs: Logprobs) -> Token:
    """Return a token with its log-probability, and with the most probable tokens at its place."""
    special, (logprob, top) = tokenizer.special_piece, logprobs
    return Token(token, special(token), logprob, tuple(Token(each, special(each), p) for each, p in top))


class TokenReport:
    """Reports the text alone. The base of the other reports; there is one for each request.

    Attributes:
        echoes: Whether the text of an alternative begins with its prompt.
    """

    def __init__(self, request: CompletionRequest) -> None:
        self.echoes = request.echo and not request.resumed
        self._id = request.id

    def details(self, seq: Sequence, token: int, logits: Logits) -> list[Token]:
        """Return what is reported of a token that was just sampled from these logits. Raises `BackendError`."""
        return []

    def text_events(self, seq: Sequence, details: list[Token], text: str, *, is_last: bool = False) -> Iterable[Event]:
        """Return the events of text that can be shown now."""
        if not text:
            return ()
        tokens, seq.unreported_tokens = tuple(seq.unreported_tokens), []
        return (StreamEvent(self._id, seq.index, text, sampled=tokens),)

    def error_events(self, event: ErrorEvent) -> Iterable[Event]:
        """Return the event of an error of the request or of an alternative."""
        return (event,)

    def stop_events(self, event: StopEvent, sum_logprob: float) -> Iterable[Event]:
        """Return the event of an alternative's end, with the mean of its tokens' log-probabilities if reported."""
        return (event,)


class TokenIdReport(TokenReport):
    """Reports the ids of the tokens with the text that they came from. They wait until this text is complete."""

    def __init__(self, request: CompletionRequest) -> None:
        super().__init__(request)
        self._waiting: dict[int, tuple[list[Token], str]] = {}  # by index

    def details(self, seq: Sequence, token: int, logits: Logits) -> list[Token]:
        return [Token(token, b"", None)]

    def text_events(self, seq: Sequence, details: list[Token], text: str, *, is_last: bool = False) -> Iterator[Event]:
        """Yield the events of all waiting tokens if their text is complete."""
        waiting, before = self._waiting.pop(seq.index, ([], ""))
        details, text = waiting + details, before + text
        if seq.text.is_whole or is_last:
            yield from self._complete(seq, details, text)
        else:
            self._waiting[seq.index] = details, text

    def _complete(self, seq: Sequence, details: list[Token], text: str) -> Iterator[Event]:
        if text or details:
            ids = tuple(token.id for token in details)
            yield StreamEvent(self._id, seq.index, text, ids, sampled=tuple(seq.unreported_tokens))
            seq.unreported_tokens = []


class LogprobsReport(TokenIdReport):
    """Reports each token in an event of its own, with its log-probability and the most probable tokens there."""

    def __init__(self, request: CompletionRequest, backend: Backend) -> None:
        super().__init__(request)
        assert request.logprobs is not None
        self._top = request.logprobs
        self._is_post_sampling = request.post_sampling_probs
        self._has_ids = request.return_tokens
        self._backend = backend

    def details(self, seq: Sequence, token: int, logits: Logits) -> list[Token]:
        if self._is_post_sampling:
            assert seq.sampler is not None
            logprobs = seq.sampler.logprobs(token, self._top)
        else:
            logprobs = self._backend.logprobs(logits, token, self._top)
        return [token_of(self._backend.tokenizer, token, logprobs)]

    def stop_events(self, event: StopEvent, sum_logprob: float) -> Iterable[Event]:
        return (replace(event, mean_logprob=sum_logprob / event.length) if event.length else event,)

    def _complete(self, seq: Sequence, details: list[Token], text: str) -> Iterator[Event]:
        sampled = iter(seq.unreported_tokens)  # one for each of the tokens, or none if these are the prompt's
        for token in details:
            shown = text if token is details[-1] else ""
            ids = (token.id,) if self._has_ids else ()
            yield StreamEvent(self._id, seq.index, shown, ids, token, tuple(islice(sampled, 1)))
        seq.unreported_tokens = []


class Replay(TokenReport):
    """The report of a request that begins again after an interruption, and samples the same tokens as before.

    It leaves out what was reported before the interruption, and reports the rest as `report` does. The same tokens make
    the same events, so an event was reported as a whole or not at all.

    Args:
        report: The report that the request asks for.
        resumed: What was reported of each alternative.
    """

    echoes = False

    def __init__(self, report: TokenReport, resumed: abc.Sequence[Resumed]) -> None:
        self._report = report
        self._n_reported = [len(each.tokens) for each in resumed]
        self._has_ended = [each.finished is not None for each in resumed]

    def details(self, seq: Sequence, token: int, logits: Logits) -> list[Token]:
        return self._report.details(seq, token, logits)

    def text_events(self, seq: Sequence, details: list[Token], text: str, *, is_last: bool = False) -> Iterator[Event]:
        for event in self._report.text_events(seq, details, text, is_last=is_last):
            if self._has_ended[seq.index]:
                continue
            if self._n_reported[seq.index] and isinstance(event, StreamEvent):
                self._n_reported[seq.index] -= len(event.sampled)
            else:
                yield event

    def error_events(self, event: ErrorEvent) -> Iterable[Event]:
        return () if event.index is not None and self._has_ended[event.index] else (event,)

    def stop_events(self, event: StopEvent, sum_logprob: float) -> Iterator[Event]:
        if not self._has_ended[event.index]:
            yield from self._report.stop_events(event, sum_logprob)
