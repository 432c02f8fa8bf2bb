"""`Stretch`: the next tokens of a prompt that are evaluated in one manner. A plain prompt is one stretch."""

from dataclasses import dataclass

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
