"""What goes into the next batch."""

from dataclasses import dataclass, field

from srb.engine.backend import Batch
from srb.engine.sequence import ActiveRequest, Prompt, Sequence

_SLOWER_AFTER = 512
"""After so many tokens of a prompt its rows count double, after twice as many three times: they take longer."""


@dataclass(slots=True)
class Plan:
    """One decode: its batch, and whose rows are in it.

    rows: each running sequence with the number of its row.
    chunks: each prompt under evaluation with the number of its tokens in the batch and of its last row.
    passed: the prompt that came first of all, and was passed by shorter ones: it's next.
    """

    batch: Batch = field(default_factory=Batch)
    rows: list[tuple[Sequence, int]] = field(default_factory=list)
    chunks: list[tuple[Prompt, int, int]] = field(default_factory=list)
    passed: Prompt | None = None

    def __len__(self) -> int:
        return len(self.batch)

    @property
    def holders(self) -> list[Prompt | Sequence]:
        """The sequences and prompts that are in it."""
        return [*(seq for seq, _ in self.rows), *(prompt for prompt, _, _ in self.chunks)]

    @property
    def requests(self) -> list[ActiveRequest]:
        """The requests that are in it."""
        prompts = [holder.prompt if isinstance(holder, Sequence) else holder for holder in self.holders]
        return list(dict.fromkeys(prompt.active for prompt in prompts))


def next_batch(
    prompts: list[Prompt], n_batch: int, n_outputs: int, prefill_chunk: int = 0, passed: Prompt | None = None
) -> Plan:
    """A row for every running sequence, and some of the prompts that aren't evaluated yet.

    While sequences are running, only a chunk of prompt joins them, so that they keep more than half their pace: on
    a CPU a row of a prompt takes no longer than one of a sequence, but longer towards the end of a long one.
    What has the least left goes first, so that nobody waits for a long prompt, but in every other batch at most.

    prompts: those of the running requests. n_batch, n_outputs: how many prompt tokens fit, and how many with logits.
    prefill_chunk: how many prompt tokens join running sequences; 0: as many as these are, and fewer towards the end of
        a long prompt.
    passed: the one that was passed in the last batch.
    """
    plan = Plan()
    for prompt in prompts:
        for seq in prompt.sequences:
            if seq.is_running:
                assert seq.seq_id is not None
                plan.rows.append((seq, plan.batch.add((seq.tokens[-1],), seq.evaluated, seq.seq_id, outputs=1)))
    room, outputs_room = n_batch, n_outputs
    if plan.rows:
        room = min(room, prefill_chunk or len(plan.rows))
    forks: dict[Prompt | Sequence, int] = {}  # where the next one forks
    for prompt in prompts:
        if prompt.source:
            source, n_tokens = prompt.source
            forks[source] = min(n_tokens, forks.get(source, n_tokens))
    unevaluated = [prompt for prompt in prompts if prompt.evaluated < len(prompt.tokens) and not prompt.source]
    for prompt in sorted(unevaluated, key=lambda each: (each is not passed, len(each.tokens) - each.evaluated)):
        left = len(prompt.tokens) - prompt.evaluated
        scores = prompt.active.request.scores_prompt
        weight = 1 + prompt.evaluated // _SLOWER_AFTER if plan.rows and not prefill_chunk else 1
        n_tokens = min(left, max(room // weight, int(not plan.chunks)))
        if scores:
            n_tokens = min(n_tokens, _even_piece(left, outputs_room))
            outputs_room -= n_tokens
        elif prompt in forks:
            # What comes after the fork goes together with what those that fork there have left.
            n_tokens = min(n_tokens, forks[prompt] - prompt.evaluated)
        if n_tokens == 0:
            continue
        if n_tokens == room // weight < left and any(
            each.evaluated + n == len(each.tokens) for each, n, _ in plan.chunks
        ):
            break  # those whose prompts are complete with this batch needn't wait for more
        chunk = prompt.tokens[prompt.evaluated : prompt.evaluated + n_tokens]
        assert prompt.seq_id is not None
        outputs = n_tokens if scores else int(n_tokens == left)
        plan.chunks.append((prompt, n_tokens, plan.batch.add(chunk, prompt.evaluated, prompt.seq_id, outputs=outputs)))
        room -= weight * n_tokens
    evaluated = [prompt for prompt, _, _ in plan.chunks]
    plan.passed = next((prompt for prompt in unevaluated[:1] if prompt not in evaluated), None)
    return plan


def _even_piece(left: int, most: int) -> int:
    """What to take next of `left`, so that all pieces are alike and at most `most`.

    A small one at the end would be computed in another way, and its logits differ (docs/benchmarks.md).
    """
    return -(-left // -(-left // most)) if most > 0 else 0
