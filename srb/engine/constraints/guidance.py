"""Guidance: an alternative with a negative prompt keeps away from what the model would say behind that.

An alternative with a negative prompt (the leader) has a companion: a sequence behind the negative prompt that has the
leader's own list of tokens. The plan adds the companion's row behind the leader's. A companion never draws, and is
leased, repaired, saved and finished together with its leader. Negative prompts are prompts like others, so what they
share is found.
"""

from srb.engine.backend import Backend
from srb.engine.constraints.base import Constraint, SamplingInput
from srb.engine.constraints.setup import ConstraintSetup
from srb.engine.request import Resumed
from srb.engine.resume import groups
from srb.engine.sequence import Prompt, Sequence


class Guidance(Constraint):
    """Draws from logits that are further away from those of the alternative's companion.

    The companion begins with the negative prompt, and goes on with the tokens of the alternative.
    """

    def __init__(self, seq: Sequence, backend: Backend) -> None:
        self._scale = seq.params.guidance_scale
        self._backend = backend

    def before(self, draw: SamplingInput) -> None:
        """See `Constraint.before`."""
        draw.logits = self._backend.guided(draw.logits, draw.beside[0], self._scale)


def give(setup: ConstraintSetup) -> None:
    """Gives a companion and the rule to each alternative that is guided.

    Each prompt has negative prompts of its own, so that a companion begins together with its leader. What negative
    prompts share is found as for any prompts.
    """
    active, tokenizer = setup.active, setup.backend.tokenizer
    begun: dict[tuple[Prompt, tuple[int, ...]], dict[int, Resumed]] = {}
    guided = {seq.index: seq for seq in active.sequences if seq.params.is_guided}
    for index, seq in guided.items():
        negative = seq.params.negative_ids or seq.prompt.asked[-1:]
        if seq.prompt.repeated and len(negative) > 1 and tokenizer.piece(negative[-1]) == seq.prompt.repeated:
            negative = negative[:-1]
        begun.setdefault((seq.prompt, negative), {})[index] = setup.resumed[index]
        seq.constraints.append(Guidance(seq, setup.backend))
    for (prompt, asked), each in begun.items():
        active.negatives += [Prompt(active, asked, group, {}, prompt.setting) for group in groups(each)]
    for member in (seq for prompt in active.negatives for seq in prompt.sequences):
        positive = guided[member.index]
        positive.negatives, member.positive, member.tokens = (member,), positive, positive.tokens
    for prompt in active.prompts:
        # Those with the same negative prompt begin one after the other. Otherwise an alternative that waits could
        # keep the cells of its negative prompt from the one before it, and each would wait for the other for ever.
        alike: dict[Prompt | None, list[Sequence]] = {}
        for seq in prompt.sequences:
            alike.setdefault(seq.negatives[0].prompt if seq.negatives else None, []).append(seq)
        prompt.sequences = [seq for each in alike.values() for seq in each]
