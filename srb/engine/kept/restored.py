"""`Restored`: the part of a prompt's beginning that was retained, and is copied back into cells."""

from dataclasses import dataclass

from srb.engine.backend import Backend
from srb.engine.kept.pieces import Hit
from srb.engine.kept.retained import Retained
from srb.engine.sequence import Prompt


@dataclass(frozen=True, slots=True)
class Restored:
    """The pieces of a hit behind the first `shared` tokens. Implements `srb.engine.ports.Part`."""

    backend: Backend
    retained: Retained
    hit: Hit
    shared: int = 0

    @property
    def n_tokens(self) -> int:
        """How many tokens it has."""
        return self.hit.n_tokens - self.shared

    def apply(self, prompt: Prompt) -> int:
        """See `Part.apply`. A state can be restored only if one of its pieces begins just where the prompt is now."""
        assert prompt.seq_id is not None
        known = prompt.evaluated
        if all(start != known for _, start, _ in self.hit.pieces):
            return known
        for state, start, end in self.retained.states(self.hit, known):
            if not self.backend.restore(state, prompt.seq_id, start, end):
                break
            known = end
        logits = self.retained.logits(self.hit) if known == len(prompt.tokens) else None
        known = len(prompt.tokens) if logits is not None else prompt.begins_at(min(known, len(prompt.tokens) - 1))
        if not self.backend.truncate(prompt.seq_id, known):
            self.backend.remove(prompt.seq_id)
            known = 0
        prompt.saved = known
        prompt.logits = logits if known == len(prompt.tokens) else None
        return known
