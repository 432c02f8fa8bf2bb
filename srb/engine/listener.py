"""`Listener`: is told what happens to prompts and sequences."""

from typing import Any


class Listener:
    """Is told what happens to prompts and sequences. Only the engine's thread calls it."""

    def begin_step(self) -> None:
        """Called at the beginning of each step."""

    def before_decode(self) -> None:
        """Called before each decode, when there is nothing to tell a client."""

    def on_computed(self, prompt: Any, n_tokens: int, last_row: int) -> None:
        """Called when so many more tokens of a prompt were evaluated. last_row: the number of the last one's row."""

    def shares(self, source: Any, prompt: Any) -> None:
        """Called before a prompt begins with what another holder, `source`, has evaluated."""

    def inherits(self, prompt: Any, heir: Any) -> None:
        """Called when a prompt has ended for which others wait, and one of these evaluates in its place."""

    def begins(self, prompt: Any) -> None:
        """Called when a prompt is evaluated, before one of its sequences begins."""

    def forked(self, seq: Any) -> None:
        """Called when a sequence has the cells of its prompt. From now on it goes on by itself."""

    def gives_away(self, prompt: Any) -> None:
        """Called before the last sequence that continues a prompt gets the prompt's seq_id, which then has its text."""

    def loses_end(self, prompt: Any) -> None:
        """Called when something is about to change the cells of an evaluated prompt, so that its end is lost."""

    def lets_go(self, seq: Any, *, is_idle: bool, is_waited_for: bool) -> bool:
        """Whether the cells of a finished sequence may be given back now. If not, the sequence waits with its cells.

        is_idle: no sequence is running. is_waited_for: somebody waits for the sequence's cells, or for the engine.
        """
        return True

    def leaves(self, seq: Any) -> None:
        """Called before the cells of a finished sequence are given back."""
