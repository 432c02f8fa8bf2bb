"""Segments: the next tokens of a prompt that are computed in one manner. A plain prompt is one segment."""

from dataclasses import dataclass

from srb.engine.media import Media


@dataclass(frozen=True, slots=True)
class Segment:
    """The tokens of a prompt up to `end`.

    Attributes:
        end: the position after its last token.
        is_whole: its tokens are computed at once, in a batch of their own, as an image is.
        has_logits: each of them gets logits, because the next one is scored.
    """

    end: int
    is_whole: bool = False
    has_logits: bool = False

    @classmethod
    def of(
        cls, start: int, end: int, media_placeholders: dict[int, Media], scored_from: int, block_size: int
    ) -> "Segment":
        """Returns the segment that begins at `start`, in a prompt of `end` tokens.

        Args:
            media_placeholders: images and sounds, by their positions.
            scored_from: see `Prompt.outputs_from`.
            block_size: see `Backend.block_size`. A block's end only depends on the prompt, not on what is cached.
        """
        if start in media_placeholders:
            return cls(start + len(media_placeholders[start].tokens), is_whole=True)
        end = min([end, *(at for at in media_placeholders if at > start)])
        if block_size:
            end = min(end, (start // block_size + 1) * block_size)
            return cls(end, is_whole=True, has_logits=end > scored_from)
        return cls(end, has_logits=True) if start >= scored_from else cls(min(end, scored_from))


def whole_blocks(n_tokens: int, block_size: int, media_placeholders: dict[int, Media]) -> int:
    """Returns how many of the first tokens are in whole blocks and whole images; all of them without blocks."""
    if not block_size:
        return n_tokens
    n_tokens -= n_tokens % block_size
    parted = next((at for at, media in media_placeholders.items() if at < n_tokens < at + len(media.tokens)), None)
    return n_tokens if parted is None else whole_blocks(parted, block_size, media_placeholders)
