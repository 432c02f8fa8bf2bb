"""The batch: the rows that one decode evaluates."""

from srb.engine.adapters import Lora
from srb.engine.media import Media


class Batch:
    """The rows of one decode: a token, its position, the sequence it belongs to, and whether its logits are wanted.

    A row's number is its place in the batch, counted from 0.

    lora: the adapters that all rows are evaluated with.
    media: the image or sound that the rows stand for; None: the rows are tokens. A batch with media has exactly all of
        its placeholders.
    """

    __slots__ = ("logits", "lora", "media", "positions", "seq_ids", "tokens")

    def __init__(self, lora: Lora = ()) -> None:
        self.lora = lora
        self.media: Media | None = None
        self.tokens: list[int] = []
        self.positions: list[int] = []
        self.seq_ids: list[int] = []
        self.logits: list[bool] = []

    def __len__(self) -> int:
        return len(self.tokens)

    def add_row(self, token: int, position: int, seq_id: int) -> int:
        """Adds a token that gets logits, and returns the number of its row."""
        self.tokens.append(token)
        self.positions.append(position)
        self.seq_ids.append(seq_id)
        self.logits.append(True)
        return len(self.tokens) - 1

    def add(self, tokens: tuple[int, ...], position: int, seq_id: int, *, outputs: int) -> int:
        """Adds `tokens` from `position` on, and returns the number of the last row. The last `outputs` get logits."""
        n = len(tokens)
        self.tokens += tokens
        self.positions += range(position, position + n)
        self.seq_ids += [seq_id] * n
        self.logits += [False] * (n - outputs) + [True] * outputs
        return len(self.tokens) - 1
