"""What is told of the tokens of a request: nothing but their text, or their ids, or their probabilities, too."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice

from srb.engine.asking.model import Tokenizer
from srb.engine.asking.request import CompletionRequest
from srb.engine.backend import Backend, Logits, Logprobs
from srb.engine.ports import Line, Report
from srb.engine.telling.events import Event, StopEvent, StreamEvent, Token


def report_of(request: CompletionRequest, backend: Backend) -> Report:
    """The report that a request asks for."""
    if request.logprobs is not None:
        return Probabilities(request, backend)
    return Ids(request) if request.return_tokens else TextOnly(request)


def token_of(tokenizer: Tokenizer, token: int, logprobs: Logprobs) -> Token:
    """A token with its log-probability, and with the likeliest tokens at its place."""
    special, (logprob, top) = tokenizer.special_piece, logprobs
    return Token(token, special(token), logprob, tuple(Token(each, special(each), p) for each, p in top))


class TextOnly:
    """Tells the text alone. Implements `srb.engine.ports.Report`, as the others here do."""

    def __init__(self, request: CompletionRequest) -> None:
        self.echoes = request.echo and not request.resumed
        self._id = request.id

    def of(self, line: Line, token: int, logits: Logits) -> list[Token]:
        """See `Report.of`."""
        return []

    def say(self, line: Line, tokens: list[Token], text: str, *, is_last: bool = False) -> Iterable[Event]:
        """See `Report.say`."""
        if not text:
            return ()
        drawn, line.untold = tuple(line.untold), []
        return (StreamEvent(self._id, line.index, text, drawn=drawn),)

    def end(self, event: StopEvent, sum_logprob: float) -> Iterable[Event]:
        """See `Report.end`."""
        return (event,)


class Ids(TextOnly):
    """Tells the ids of the tokens with the text that they came from. They wait until this text is whole."""

    def __init__(self, request: CompletionRequest) -> None:
        super().__init__(request)
        self._waiting: dict[int, tuple[list[Token], str]] = {}  # by index

    def of(self, line: Line, token: int, logits: Logits) -> list[Token]:
        """See `Report.of`."""
        return [Token(token, b"", None)]

    def say(self, line: Line, tokens: list[Token], text: str, *, is_last: bool = False) -> Iterator[Event]:
        """See `Report.say`."""
        waiting, before = self._waiting.pop(line.index, ([], ""))
        tokens, text = waiting + tokens, before + text
        if line.is_whole or is_last:
            yield from self._whole(line, tokens, text)
        else:
            self._waiting[line.index] = tokens, text

    def _whole(self, line: Line, tokens: list[Token], text: str) -> Iterator[Event]:
        if text or tokens:
            ids = tuple(token.id for token in tokens)
            yield StreamEvent(self._id, line.index, text, ids, drawn=tuple(line.untold))
            line.untold = []


class Probabilities(Ids):
    """Tells each token in an event of its own, with its log-probability and the likeliest tokens at its place."""

    def __init__(self, request: CompletionRequest, backend: Backend) -> None:
        super().__init__(request)
        assert request.logprobs is not None
        self._top = request.logprobs
        self._are_samplers = request.post_sampling_probs
        self._tells_ids = request.return_tokens
        self._backend = backend

    def of(self, line: Line, token: int, logits: Logits) -> list[Token]:
        """See `Report.of`."""
        if self._are_samplers:
            assert line.sampler is not None
            logprobs = line.sampler.logprobs(token, self._top)
        else:
            logprobs = self._backend.logprobs(logits, token, self._top)
        return [token_of(self._backend.tokenizer, token, logprobs)]

    def end(self, event: StopEvent, sum_logprob: float) -> Iterable[Event]:
        """See `Report.end`."""
        return (replace(event, mean_logprob=sum_logprob / event.length) if event.length else event,)

    def _whole(self, line: Line, tokens: list[Token], text: str) -> Iterator[Event]:
        drawn = iter(line.untold)  # one for each of the tokens, or none if these are the prompt's
        for token in tokens:
            said = text if token is tokens[-1] else ""
            ids = (token.id,) if self._tells_ids else ()
            yield StreamEvent(self._id, line.index, said, ids, token, tuple(islice(drawn, 1)))
        line.untold = []
