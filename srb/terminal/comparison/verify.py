"""`srb compare --verify`: generates the results of a comparison again, and says which of them are others now."""

from collections.abc import Iterator
from pathlib import Path

from srb.terminal.comparison.measures import Result
from srb.terminal.comparison.results import read_results

_COMPARED = ("text", "tokens", "length", "finish_reason", "stop_reason", "mean_logprob")


def differences(recorded: Path, again: Path) -> Iterator[str]:
    """A line for each recorded result that isn't the same in another folder, to the last bit of a log-probability."""
    there = {_name(each): each for each in read_results(again)}
    for each in read_results(recorded):
        if each.finish_reason == "abort":
            continue
        where = f"{each.prompt}, {each.setting}, seed {each.seed}"
        other = there.get(_name(each))
        if other is None:
            yield f"{where}: it was not generated again"
        elif wrong := _difference(each, other):
            yield f"{where}: {wrong}"


def _difference(before: Result, now: Result) -> str | None:
    found = [name for name in _COMPARED if getattr(before, name) != getattr(now, name)]
    if not found:
        return None
    if before.text != now.text:
        pairs = zip(before.text, now.text, strict=False)
        place = next((k for k, (a, b) in enumerate(pairs) if a != b), min(len(before.text), len(now.text)))
        return f"the text is another one from character {place} on: {_cut(before, place)}, and now {_cut(now, place)}"
    return f"the text is the same, but not {', '.join(found)}"


def _cut(each: Result, place: int) -> str:
    return repr(each.text[place : place + 20])


def _name(each: Result) -> tuple[str, str, str, int]:
    return each.model, each.prompt, each.setting, each.seed
