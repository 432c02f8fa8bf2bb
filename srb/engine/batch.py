"""The batch: the rows that one decode evaluates."""

from srb.engine.prompts.adapters import Lora
from srb.engine.prompts.media import Media


class Batch:
    """The rows of one decode: a token, its position, the sequence it belongs to, and whether its logits are wanted.

    A row's number is its place in the batch, counted from 0.

    setting: the adapters that all rows are evaluated with.
    atom: the image or sound that the rows stand for; None: the rows are tokens. A batch with an atom has exactly all of
        its placeholders.
    """

    __slots__ = ("atom", "logits", "positions", "seq_ids", "setting", "tokens")

    def __init__(self, setting: Lora = ()) -> None:
        self.setting = setting
        self.atom: Media | None = None
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
