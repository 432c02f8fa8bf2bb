"""When flash attention is worth turning off on a CPU: a rule of what a context takes with it, and without it."""

from collections.abc import Collection
from dataclasses import dataclass

from srb.engine.costs import Costs
from srb.llama.params import is_on_gpu
from srb.settings import Settings

Work = Collection[tuple[int, int, int]]
"""Prompts: the tokens of each, how many sequences continue it, and how many tokens these may generate."""

FEW = 4  # rows of one prompt; both ways compute fewer in a fast way of their own


def can_choose(window: int | None, settings: Settings) -> bool:
    """Whether a context may be made anew for other work: on a CPU, where what was saved can be laid out anew."""
    return window is None and "q" not in str(settings.cache_type_v) and not is_on_gpu(settings)


@dataclass(frozen=True, slots=True)
class Pace(Costs):
    """The costs of one kind of context, in seconds.

    row_cell: with flash attention for each cell of the row's own sequence; without it for each cell in use.
    lone_step, lone_row_cell: a step of one row, and what row_cell is, where fewer than `FEW` rows continue a prompt.
        A line through the steps of many rows would miss these by far.
    """

    lone_step: float = 0.0
    lone_row_cell: float = 0.0

    def seconds(self, work: Work, *, walks_all: bool) -> float:
        """How long the prompts and all that continues them take. walks_all: each row walks all cells in use."""
        in_use = sum(tokens + n * length // 2 for tokens, n, length in work)
        return sum(
            tokens * (self.prompt_token + tokens / 2 * self.prompt_cell)
            + length * self._step(n, in_use if walks_all else tokens + length / 2)
            for tokens, n, length in work
        )

    def _step(self, n: int, cells: float) -> float:
        """A step of n rows that walk so many cells each."""
        if n < FEW:
            return self.lone_step + (n - 1) * self.row + n * cells * self.lone_row_cell
        return self.step + n * (self.row + cells * self.row_cell)


@dataclass(frozen=True, slots=True)
class Paces:
    """Both kinds of context.

    change: how many seconds it takes to change from one to the other and back.
    usual: the kind that suits most work, `auto` or `off`, and that there is as long as nothing is worth a change.
    """

    on: Pace
    off: Pace
    change: float
    usual: str = "auto"

    def best(self, work: Work) -> str:
        """`auto` or `off`: the kind with which the whole of the work takes less time."""
        seconds = {"auto": self.on.seconds(work, walks_all=False), "off": self.off.seconds(work, walks_all=True)}
        return min(seconds, key=lambda kind: seconds[kind] + (self.change if kind != self.usual else 0))


def _differences(row_cell: float, prompt_token: float) -> Pace:
    return Pace(step=0, row=0, prompt_token=prompt_token, row_cell=row_cell, prompt_cell=0)


MEASURED = Paces(_differences(2.6e-6, 0), _differences(1.3e-6, 0.325e-3), 0.26)
"""Where nothing was measured here: how the two differ on a CPU, SmolLM2-135M with an f16 cache (docs/benchmarks.md)."""
