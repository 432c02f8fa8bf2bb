"""`Stretch`: the next tokens of a prompt that are evaluated in one manner. A plain prompt is one stretch."""

from dataclasses import dataclass, replace

from srb.engine.prompts.media import Media


@dataclass(frozen=True, slots=True)
class Stretch:
    """The tokens of a prompt up to `end`.

    is_whole: they are evaluated all at once, in a batch of their own, as an image is.
    has_logits: each of them gets logits, because the next one is scored.
    """

    end: int
    is_whole: bool = False
    has_logits: bool = False

    @classmethod
    def of(cls, start: int, end: int, atoms: dict[int, Media], scored_from: int) -> "Stretch":
        """The stretch that begins at `start`, in a prompt of `end` tokens.

        atoms: images and sounds, by their positions. scored_from: see `Prompt.outputs_from`.
        """
        if start in atoms:
            return cls(start + len(atoms[start].tokens), is_whole=True)
        stops = [at for at in atoms if at > start]
        if start >= scored_from:
            return cls(min([end, *stops]), has_logits=True)
        return cls(min([scored_from, *stops]))

    def in_block(self, start: int, size: int, asked: int) -> "Stretch":
        """The part of it that is one block: so it depends on nothing but the prompt; see `Backend.block_size`.

        asked: from this token on, the tokens were generated before an interruption, each in a row of its own. They are
            evaluated so again.
        """
        end = start + 1 if start >= asked else min(self.end, asked, (start // size + 1) * size)
        return self if self.is_whole else replace(self, end=end, is_whole=True)
