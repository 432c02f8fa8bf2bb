"""`Explore`: what a caller asks who wants the tree of likely continuations of a prompt, and no text."""

from dataclasses import dataclass

from srb.engine.asking.kinds import check_ranges, check_types
from srb.engine.asking.meanings import described, documented

MAX_LOGPROBS = 100
MAX_PATH = 128
"""The most tokens of a text that is explored."""

EXPLORE_RANGES: dict[str, tuple[float, float]] = {
    "depth": (1, MAX_PATH),
    "top_k": (1, MAX_LOGPROBS),
    "min_probability": (0, 1),
    "max_nodes": (1, 10_000),
    "min_entropy": (0, 100),
}
"""The lowest and the highest value of each number in `Explore`, both allowed."""


@documented
@dataclass(frozen=True, slots=True)
class Explore:
    """The tree of likely continuations that a request asks for: its nodes come in the order of their probability.

    What a field means stands behind its default; `help(Explore)` shows it. `EXPLORE_RANGES` has the limits.
    Raises `InvalidRequestError` for a value out of range.
    """

    depth: int = described(4, "how many nodes there may be from the prompt to the end of a text.")
    top_k: int = described(5, "how many tokens may follow a node: the likeliest ones.")
    min_probability: float = described(0.01, "tokens that are less likely than this at their place are left out.")
    max_nodes: int = described(100, "how many nodes the answer has: the likeliest of all.")
    min_entropy: float = described(
        0.0,
        "fork only where the entropy of what follows is at least so many nats. Where it isn't, the text runs on with "
        f"the likeliest token, so that a node has all tokens up to the next fork; a text has at most {MAX_PATH}. "
        "0: fork everywhere.",
    )

    def __post_init__(self) -> None:
        check_types(self)
        check_ranges(self, EXPLORE_RANGES)

    @property
    def max_path(self) -> int:
        """The most tokens that a text of the tree may have."""
        return MAX_PATH if self.min_entropy else self.depth
