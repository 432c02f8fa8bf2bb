"""Which request runs, and what goes into the next batch."""

from collections import deque
from dataclasses import dataclass, field

from srb.engine.backend import Batch
from srb.engine.kv_cache import KVCache
from srb.engine.request import CompletionRequest
from srb.engine.sequence import ActiveRequest, Prompt, Sequence
from srb.errors import InvalidRequestError

_LEAST_ROOM = 128
"""A sequence that wants as many tokens as there is room for waits for room for so many."""


@dataclass(slots=True)
class Plan:
    """One decode: its batch, and whose rows are in it.

    rows: each running sequence with the number of its row.
    chunks: each prompt under evaluation with the number of its tokens in the batch and of its last row.
    """

    batch: Batch = field(default_factory=Batch)
    rows: list[tuple[Sequence, int]] = field(default_factory=list)
    chunks: list[tuple[Prompt, int, int]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.batch)

    @property
    def requests(self) -> list[ActiveRequest]:
        """The requests that are in it."""
        prompts = [seq.prompt for seq, _ in self.rows] + [prompt for prompt, _, _ in self.chunks]
        return list(dict.fromkeys(prompt.active for prompt in prompts))


class Scheduler:
    """Requests wait in the order of their arrival, each until there is room for all that it may need.

    prefill_chunk: how many prompt tokens go into a step while sequences are running; 0: half as many as these are.
    """

    def __init__(
        self, cache: KVCache, n_batch: int, n_outputs: int, default_max_tokens: int, prefill_chunk: int = 0
    ) -> None:
        self.waiting: deque[ActiveRequest] = deque()
        self.running: list[ActiveRequest] = []
        self._cache = cache
        self._n_batch = n_batch
        self._n_outputs = n_outputs
        self._default_max_tokens = default_max_tokens
        self._prefill_chunk = prefill_chunk

    def check(self, request: CompletionRequest) -> None:
        """Raises `InvalidRequestError` if there could never be room for the request. May be called from any thread."""
        if request.count > self._cache.n_seqs:
            raise InvalidRequestError(
                f"prompts ({len(request.prompts)}) x n ({len(request.branches)}) is {request.count} alternatives; "
                f"the limit is {self._cache.n_seqs} (--max-n)",
                param="n",
            )
        if request.prompt_tokens > self._cache.n_cells:
            raise self.too_long(str(request.prompt_tokens))
        generated = len(request.prompts) * sum(cells_for(params.max_tokens or 0) for params in request.branches)
        if request.prompt_tokens + generated > self._cache.n_cells:
            raise InvalidRequestError(
                f"max_tokens is too high: {request.prompt_tokens} cells for the prompt and {generated} for what is to "
                f"be generated (n = {request.count}) are more than the {self._cache.n_cells} of the context; "
                "ask for fewer tokens or alternatives, or start with a larger --ctx-size",
                param="max_tokens",
                code="context_length_exceeded",
            )

    def too_long(self, n_tokens: str) -> InvalidRequestError:
        """The error for a prompt of so many tokens."""
        return InvalidRequestError(
            f"prompt has {n_tokens} tokens, more than the {self._cache.n_cells} cells of the context; "
            "shorten the prompt or start with a larger --ctx-size",
            param="prompt",
            code="context_length_exceeded",
        )

    def find(self, request_id: str) -> ActiveRequest | None:
        """The waiting or running request with this id."""
        return next((active for active in (*self.running, *self.waiting) if active.id == request_id), None)

    def remove(self, active: ActiveRequest) -> None:
        """Forgets a request, waiting or running."""
        (self.running if active in self.running else self.waiting).remove(active)

    def admit(self) -> ActiveRequest | None:
        """Moves the next request from waiting to running if there is room for it, and leases what it may need."""
        if not self.waiting:
            return None
        active = self.waiting[0]
        sequences = active.sequences
        self._set_max_tokens(active)
        cells = active.request.prompt_tokens + sum(cells_for(seq.max_tokens) for seq in sequences)
        if not self._cache.has_room(cells, len(sequences)):
            return None
        cells += self._share_out(sequences, self._cache.free_cells - cells)
        for seq, seq_id in zip(sequences, self._cache.lease(cells, len(sequences)), strict=True):
            seq.seq_id = seq_id
            seq.cells = cells_for(seq.max_tokens)
        self.running.append(self.waiting.popleft())
        return active

    def _set_max_tokens(self, active: ActiveRequest) -> None:
        """Sets how many tokens each sequence may generate at least: the default, or less in a small context."""
        open_ended: list[Sequence] = []
        room = self._cache.n_cells - active.request.prompt_tokens
        for seq in active.sequences:
            if seq.params.max_tokens is None or seq.params.max_tokens == -1:
                open_ended.append(seq)
            else:
                seq.max_tokens = seq.params.max_tokens
                room -= cells_for(seq.max_tokens)
        for seq in open_ended:
            wanted = self._wanted(seq)
            seq.max_tokens = min(_LEAST_ROOM if wanted == -1 else wanted, room // len(open_ended) + 1)

    def _wanted(self, seq: Sequence) -> int:
        return self._default_max_tokens if seq.params.max_tokens is None else seq.params.max_tokens

    def _share_out(self, sequences: list[Sequence], free: int) -> int:
        """Gives the free cells to the sequences that want all there is; returns how many it gave."""
        greedy = [seq for seq in sequences if self._wanted(seq) == -1]
        for seq in greedy:
            seq.max_tokens += free // len(greedy)
        return free // len(greedy) * len(greedy) if greedy else 0

    @property
    def sharing(self) -> list[Prompt]:
        """The prompts that wait for another to have evaluated what they share."""
        return [
            prompt
            for active in self.running
            for prompt in active.prompts
            if prompt.source and prompt.holder.seq_id is not None
        ]

    def next_batch(self) -> Plan:
        """A row for every running sequence, and some of the prompts that aren't evaluated yet.

        While sequences are running, only a chunk of prompt joins them, so that they keep more than half their pace: on
        a CPU a row of a prompt takes about as long as one of a sequence, and longer towards the end of a long one.
        """
        plan = Plan()
        prompts = [prompt for active in self.running for prompt in active.prompts]
        for prompt in prompts:
            if prompt.forked:
                for seq in prompt.living:
                    assert seq.seq_id is not None
                    row = plan.batch.add((seq.last_token,), seq.position, seq.seq_id, outputs=1)
                    plan.rows.append((seq, row))
        room, outputs_room = self._n_batch, self._n_outputs
        if plan.rows:
            room = min(room, self._prefill_chunk or -(-len(plan.rows) // 2))
        for prompt in prompts:
            if room > 0 and not prompt.forked and prompt.living and not prompt.source:
                scores = prompt.active.request.scores_prompt
                left = len(prompt.tokens) - prompt.evaluated
                n_tokens = min(left, room)
                if scores:
                    n_tokens = min(n_tokens, _even_piece(left, outputs_room))
                    outputs_room -= n_tokens
                if n_tokens == 0:
                    continue
                chunk = prompt.tokens[prompt.evaluated : prompt.evaluated + n_tokens]
                assert prompt.holder.seq_id is not None
                row = plan.batch.add(
                    chunk, prompt.evaluated, prompt.holder.seq_id, outputs=n_tokens if scores else int(n_tokens == left)
                )
                plan.chunks.append((prompt, n_tokens, row))
                room -= n_tokens
        return plan


def _even_piece(left: int, most: int) -> int:
    """What to take next of `left`, so that all pieces are alike and at most `most`.

    A small one at the end would be computed in another way, and its logits differ (docs/benchmarks.md).
    """
    return -(-left // -(-left // most)) if most > 0 else 0


def cells_for(max_tokens: int) -> int:
    """The cells that so many generated tokens need: the last one is never evaluated."""
    return max(0, max_tokens - 1)
