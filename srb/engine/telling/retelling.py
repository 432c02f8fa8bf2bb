"""`Retelling`: what is told of a request that begins anew after an interruption, with the same draws as before."""

from collections.abc import Iterable, Sequence

from srb.engine.asking.request import Resumed
from srb.engine.backend import Logits
from srb.engine.ports import Line, Report
from srb.engine.telling.events import Event, StopEvent, StreamEvent, Token


class Retelling(Report):
    """Leaves out what was told before the interruption, and tells the rest as `report` does.

    The same draws make the same events, so an event was told whole or not at all.
    resumed: what was told of each alternative.
    """

    echoes = False

    def __init__(self, report: Report, resumed: Sequence[Resumed]) -> None:
        self._report = report
        self._told = [len(each.tokens) for each in resumed]
        self._ended = [each.finished is not None for each in resumed]

    def of(self, line: Line, token: int, logits: Logits) -> list[Token]:
        """See `Report.of`."""
        return self._report.of(line, token, logits)

    def say(self, line: Line, tokens: list[Token], text: str, *, is_last: bool = False) -> Iterable[Event]:
        """See `Report.say`."""
        for event in self._report.say(line, tokens, text, is_last=is_last):
            if self._ended[line.index]:
                continue
            if self._told[line.index] and isinstance(event, StreamEvent):
                self._told[line.index] -= len(event.drawn)
            else:
                yield event

    def end(self, event: StopEvent, sum_logprob: float) -> Iterable[Event]:
        """See `Report.end`."""
        if not self._ended[event.index]:
            yield from self._report.end(event, sum_logprob)
