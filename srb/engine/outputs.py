"""What a program gets of the alternatives that it asked for: texts with their tokens, and tables of them."""

from collections.abc import Iterable, Iterator, Mapping
from html import escape
from math import fsum, nan
from typing import TYPE_CHECKING, Any, TypeVar

from srb.engine.events import FinishReason, StopReason
from srb.engine.validation.fields import Text
from srb.errors import NotSupportedError

if TYPE_CHECKING:
    from pandas import DataFrame

Each = TypeVar("Each")


class CompletionOutput(str):
    """The text of an alternative: a `str` that also knows how it came about.

    Attributes:
        prompt: the prompt that it continues, as it was given.
        alternative: its number among those of its prompt, from 0; `index` is a method of `str`.
        seed: its seed.
        token_ids: the ids of all tokens that were generated, also of the end token and of a stop string.
        logprobs: the natural logarithm of the probability of each of these tokens; None if they weren't asked for.
        top_logprobs: for each of these tokens, the most probable ones at its place with their log-probabilities, by
            id, the most probable first; None if they weren't asked for.
        finish_reason: why it ended, `stop`: by itself, or `length`: at a limit.
        stop_reason: the stop string or the id of the stop token that ended it, else None.
        settings: the sampling settings that the call gave.
    """

    prompt: Text
    alternative: int
    seed: int
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None
    top_logprobs: tuple[dict[int, float], ...] | None
    finish_reason: FinishReason
    stop_reason: StopReason
    settings: Mapping[str, Any]

    @classmethod
    def of(cls, text: str, **attributes: Any) -> "CompletionOutput":
        """Makes the text of an alternative with these attributes."""
        output = cls(text)
        vars(output).update(attributes)
        return output

    @property
    def cumulative_logprob(self) -> float | None:
        """The sum of `logprobs`, None without them."""
        return None if self.logprobs is None else fsum(self.logprobs)

    @property
    def mean_logprob(self) -> float | None:
        """The mean of `logprobs`, None without them."""
        return fsum(self.logprobs) / len(self.logprobs) if self.logprobs else None

    def _row(self) -> dict[str, Any]:
        """Returns the row of `CompletionOutputs.rows`."""
        row = {
            "prompt": self.prompt,
            "alternative": self.alternative,
            "seed": self.seed,
            "text": str(self),
            "n_tokens": len(self.token_ids),
            "finish_reason": self.finish_reason,
            "stop_reason": self.stop_reason,
            "mean_logprob": nan if self.mean_logprob is None else self.mean_logprob,
        }
        return row | {name: value for name, value in self.settings.items() if name not in row}


class CompletionOutputs(list[Each]):
    """The texts of a prompt, or such a list for each of several prompts. Jupyter shows it as a table."""

    def rows(self) -> list[dict[str, Any]]:
        """Returns a row for each alternative of all prompts, as `to_pandas` has it."""
        return [output._row() for output in self._all()]

    def to_pandas(self) -> "DataFrame":
        """Makes a table with a row for each alternative of all prompts.

        Its columns are `prompt`, `alternative`, `seed`, `text`, `n_tokens`, `finish_reason`, `stop_reason`,
        `mean_logprob` (NaN without `logprobs`), and the sampling settings that the call gave.

        Raises:
            NotSupportedError: pandas isn't installed.
        """
        try:
            from pandas import DataFrame
        except ImportError:
            raise NotSupportedError("to_pandas needs pandas: pip install 'llama-srb[notebook]'") from None
        return DataFrame(self.rows())

    def _all(self) -> Iterator[CompletionOutput]:
        for each in self:
            if isinstance(each, CompletionOutput):
                yield each
            elif isinstance(each, CompletionOutputs):
                yield from each._all()

    def _repr_html_(self) -> str:
        rows = self.rows()
        shown = ["alternative", "text", "n_tokens", "finish_reason"]
        if len({row["prompt"] for row in rows}) > 1:
            shown.insert(0, "prompt")
        if any(output.logprobs for output in self._all()):
            shown.append("mean_logprob")
        lines = [_line("th", shown), *(_line("td", [row[name] for name in shown]) for row in rows)]
        return f"<table>{''.join(lines)}</table>"


def _line(tag: str, cells: Iterable[object]) -> str:
    texts = (f"{value:.3f}" if isinstance(value, float) else str(value) for value in cells)
    style = 'style="text-align: left; white-space: pre-wrap"'
    return f"<tr>{''.join(f'<{tag} {style}>{escape(text)}</{tag}>' for text in texts)}</tr>"
