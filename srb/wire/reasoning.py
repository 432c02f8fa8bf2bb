"""Thoughts of a model: the tags around them, and a parser that splits an answer into thoughts, text and calls."""

import re
from dataclasses import dataclass, replace

from srb.engine.model import ChatTemplate
from srb.wire.tools.calls import CallFormat, CallReader, Delta

_BEGIN = re.compile(r"(<)([\w:]*th(?:ink|ought)[\w:]*)(>)", re.IGNORECASE)
_END = re.compile(r"([<\[◁])/([\w:]*th(?:ink|ought)[\w:]*)([>\]▷])|<\|END_THINKING\|>", re.IGNORECASE)


@dataclass(frozen=True)
class ReasoningFormat:
    """How a model writes its thoughts, before its answer.

    Attributes:
        begin: The tag before the thoughts.
        end: The tag after them.
        is_open: Whether the prompt ends within thoughts, so that the model doesn't write `begin`.
    """

    begin: str
    end: str
    is_open: bool = False

    @property
    def is_special(self) -> bool:
        """Whether the tags are control tokens, as `[THINK]` is, which aren't part of a text by default."""
        return not re.match(r"<\w", self.begin)

    def opening(self, prompt: str) -> str:
        """The tag at the end of a prompt, and the space after it. Empty if the prompt ends with something else."""
        return prompt[prompt.rindex(self.begin) :] if prompt.rstrip().endswith(self.begin) else ""

    def close(self, prompt: str) -> str:
        """The prompt, which has no thoughts if its end is an opening tag."""
        return f"{prompt.rstrip()}\n\n{self.end}\n\n" if self.opening(prompt) else prompt

    def write(self, thoughts: str, text: str) -> str:
        """A message with thoughts. Without a text, its thoughts haven't ended."""
        thoughts = f"{self.begin}\n{thoughts.strip()}"
        return f"{thoughts}\n{self.end}\n\n{text}" if text else thoughts

    def of_message(self, prefill: str) -> "ReasoningFormat":
        """The format for the rest of a message that has begun."""
        return replace(self, is_open=prefill.rfind(self.begin) > prefill.rfind(self.end))


def reasoning_format(template: ChatTemplate | None) -> ReasoningFormat | None:
    """The tags around thoughts in a template's source. None if it has none.

    Many templates only remove the thoughts of earlier messages, so the closing tag is looked for first.
    """
    found = (_END.search(template.source) or _BEGIN.search(template.source)) if template else None
    if not found:
        return None
    left, name, right = found.groups()
    if not name:
        return ReasoningFormat(found[0].replace("END", "START"), found[0])
    return ReasoningFormat(f"{left}{name}{right}", f"{left}/{name}{right}")


class AnswerReader:
    """Parses the text of an alternative, as it arrives, into thoughts, text and calls.

    Without a format of calls it may call nothing, and without one of thoughts these aren't split off. A prefix is shown
    before the answer's own text.
    """

    def __init__(
        self, calls: CallFormat | None = None, reasoning: ReasoningFormat | None = None, prefix: str = ""
    ) -> None:
        self._calls = CallReader(calls) if calls else None
        self._thoughts = _ThoughtReader(reasoning) if reasoning else None
        self._prefix = prefix

    @property
    def is_plain(self) -> bool:
        """Whether the answer is one text."""
        return not self._calls and not self._thoughts

    @property
    def may_call(self) -> bool:
        """Whether the answer may have calls."""
        return self._calls is not None

    @property
    def has_answer(self) -> bool:
        """Whether the thoughts are over, and what comes after them has begun."""
        return not self._thoughts or self._thoughts.has_ended

    @property
    def is_complete(self) -> bool:
        """Whether there are calls, and all of them are complete."""
        return bool(self._calls and self._calls.is_complete)

    def push(self, text: str) -> list[Delta]:
        """Parses the next text. Text that may be the beginning of a tag or a call is buffered."""
        shown = ""
        if text:
            shown, self._prefix = self._prefix, ""
        thoughts, text = self._thoughts.push(text) if self._thoughts else ("", text)
        return _deltas(thoughts, shown) + (self._calls.push(text) if self._calls else _deltas("", text))

    def flush(self) -> list[Delta]:
        """The buffered text, when no more follows."""
        thoughts, text = self._thoughts.flush() if self._thoughts else ("", "")
        rest = [*self._calls.push(text), *self._calls.flush()] if self._calls else _deltas("", text)
        return _deltas(thoughts, "") + rest


def _deltas(thoughts: str, text: str) -> list[Delta]:
    found = [Delta("reasoning", thoughts)] if thoughts else []
    return [*found, Delta("text", text)] if text else found


class _ThoughtReader:
    """Splits a text into the thoughts that it begins with, and the rest. The space around thoughts is dropped."""

    def __init__(self, form: ReasoningFormat) -> None:
        self._form = form
        self._place = "before"  # before the thoughts, in them, after them, or in the answer
        self._buffer = ""
        self._has_thoughts = False

    @property
    def has_ended(self) -> bool:
        """Whether the rest of the text has begun."""
        return self._place == "answer"

    def push(self, text: str) -> tuple[str, str]:
        """The next part of the thoughts, and of the answer."""
        if self._place == "answer":
            return "", text
        self._buffer += text
        thoughts = ""
        if self._place == "before" and not self._is_decided():
            return "", ""
        if self._place == "in":
            thoughts = self._read()
        if self._place == "after":
            self._buffer = self._buffer.lstrip()
            self._place = "answer" if self._buffer else "after"
        return thoughts, self._rest() if self._place == "answer" else ""

    def flush(self) -> tuple[str, str]:
        """The buffered text, when no more follows."""
        is_thought = self._place == "in" or (self._place == "before" and self._form.is_open)
        return (self._shown(self._rest()), "") if is_thought else ("", self._rest())

    def _is_decided(self) -> bool:
        """Whether it is known if the text begins with thoughts. A model may repeat the tag of the prompt."""
        start = self._buffer.lstrip()
        if start.startswith(self._form.begin):
            self._place, self._buffer = "in", start[len(self._form.begin) :]
        elif self._form.begin.startswith(start):
            return False
        else:
            self._place = "in" if self._form.is_open else "answer"
        return True

    def _read(self) -> str:
        end = self._form.end
        at = self._buffer.find(end)
        if at >= 0:
            thoughts, self._buffer, self._place = self._buffer[:at], self._buffer[at + len(end) :], "after"
            return self._shown(thoughts)
        held = next((n for n in range(len(end) - 1, 0, -1) if self._buffer.endswith(end[:n])), 0)
        shown = len(self._buffer[: len(self._buffer) - held].rstrip())
        thoughts, self._buffer = self._buffer[:shown], self._buffer[shown:]
        return self._shown(thoughts)

    def _shown(self, thoughts: str) -> str:
        thoughts = thoughts.rstrip()
        if not self._has_thoughts:
            thoughts = thoughts.lstrip()
            self._has_thoughts = bool(thoughts)
        return thoughts

    def _rest(self) -> str:
        rest, self._buffer = self._buffer, ""
        return rest
