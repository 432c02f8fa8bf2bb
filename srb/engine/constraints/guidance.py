"""`negative_prompt`: classifier-free guidance away from what would follow a negative prompt.

An alternative with a negative prompt is a positive sequence. It has a negative sequence: one that continues the
negative prompt with the positive one's tokens. The batch planner adds the negative sequence's row after the positive
one's. A negative sequence is never sampled. It gets its cells, and is repaired, saved and finished, together with its
positive sequence. Negative prompts are prompts like others, so prefix caching works for them.
"""

from srb.engine.backend import Backend
from srb.engine.constraints.base import Constraint, ConstraintSetup, SamplingInput
from srb.engine.request import Resumed
from srb.engine.resume import prompt_groups
from srb.engine.sequence import Prompt, Sequence


class Guidance(Constraint):
    """Moves the logits of an alternative away from those of its negative sequence."""

    def __init__(self, seq: Sequence, backend: Backend) -> None:
        self._scale = seq.params.guidance_scale
        self._backend = backend

    def before_sampling(self, inputs: SamplingInput) -> None:
        inputs.logits = self._backend.guided(inputs.logits, inputs.negative_logits[0], self._scale)


def build(setup: ConstraintSetup) -> None:
    """Add the constraint, and a negative sequence, to each alternative with a negative prompt.

    Each prompt has negative prompts of its own, so that both sequences begin at the same time.
    """
    active, tokenizer = setup.active, setup.backend.tokenizer
    resumed: dict[tuple[Prompt, tuple[int, ...]], dict[int, Resumed]] = {}
    positives = {seq.index: seq for seq in active.sequences if seq.params.is_guided}
    for index, seq in positives.items():
        negative = seq.params.negative_ids or seq.prompt.asked[-1:]
        if seq.prompt.repeated and len(negative) > 1 and tokenizer.piece(negative[-1]) == seq.prompt.repeated:
            negative = negative[:-1]
        resumed.setdefault((seq.prompt, negative), {})[index] = setup.resumed[index]
        seq.constraints.append(Guidance(seq, setup.backend))
    for (prompt, asked), each in resumed.items():
        active.negative_prompts += [Prompt(active, asked, group, {}, prompt.lora) for group in prompt_groups(each)]
    for seq in (seq for prompt in active.negative_prompts for seq in prompt.sequences):
        positive = positives[seq.index]
        positive.negatives, seq.positive = (seq,), positive
    for prompt in active.prompts:
        # Those with the same negative prompt are neighbours. Else the last of them could wait, and keep the negative
        # prompt's cells from an alternative before it that waits for these cells, for ever. Those without a negative
        # prompt come first: the last of all takes the prompt's seq_id, so it waits for all others.
        alike: dict[Prompt | None, list[Sequence]] = {None: []}
        for seq in prompt.sequences:
            alike.setdefault(seq.negatives[0].prompt if seq.negatives else None, []).append(seq)
        prompt.sequences = [seq for each in alike.values() for seq in each]
