"""Which request runs, with which cells, and what it shares with others."""

from srb.engine.kv_cache import KVCache, common_prefix
from srb.engine.request import CompletionRequest
from srb.engine.retained import Retained
from srb.engine.sequence import ActiveRequest, Prompt, Sequence
from srb.errors import InvalidRequestError

_LEAST_ROOM = 128
"""A sequence that wants as many tokens as there is room for waits for room for so many."""

_WORTH_SHARING = 16
"""Fewer tokens aren't."""

_PATIENCE = 5.0
"""How many seconds after a request's arrival others may pass it."""


class Scheduler:
    """Requests wait in the order of their arrival, each until there is room for all that it may need.

    One that needs more than there is begins with as many sequences as there can be room for at once, and the others
    begin as these finish. A request that needs less may pass others that wait, as long as these haven't waited long.

    shares_prefixes: whether a prompt may begin with what another sequence has evaluated.
    """

    def __init__(
        self,
        cache: KVCache,
        retained: Retained,
        n_parallel: int,
        default_max_tokens: int,
        *,
        shares_prefixes: bool,
    ) -> None:
        self.waiting: list[ActiveRequest] = []
        self.running: list[ActiveRequest] = []
        self.has_news = False  # since the last admission: somebody came, or something became free
        self.leased = 0  # sequences
        self._cache = cache
        self._retained = retained
        self._n_parallel = n_parallel
        self._default_max_tokens = default_max_tokens
        self._shares_prefixes = shares_prefixes

    def check(self, request: CompletionRequest) -> None:
        """Raises `InvalidRequestError` if there could never be room for the request. May be called from any thread."""
        n_cells = self._cache.n_cells
        longest = max(map(len, request.prompts))
        if longest > n_cells:
            raise self.too_long(str(longest))
        generated = max(cells_for(params.max_tokens or 0) for params in request.branches)
        if longest + generated > n_cells:
            raise InvalidRequestError(
                f"max_tokens is too high: {longest} cells for the prompt and {generated} for what is to be generated "
                f"are more than the {n_cells} of the context; ask for fewer tokens, or start with a larger --ctx-size",
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

    def add(self, active: ActiveRequest) -> None:
        """Queues a request."""
        self.waiting.append(active)
        self.has_news = True

    def remove(self, active: ActiveRequest) -> None:
        """Forgets a request, waiting or running."""
        (self.running if active in self.running else self.waiting).remove(active)
        self.has_news = True

    def admit(self, now: float) -> list[Prompt]:
        """Leases what the next requests and sequences need, and returns the prompts that are to be evaluated for them.

        now: seconds of the clock that the requests' arrival was taken from.
        """
        if not self.has_news:
            return []
        self.has_news = False
        admitted: list[Prompt] = []
        # Only one may have begun in part: two that wait for each other's cells would wait for ever.
        partial = next((active for active in self.running if active.pending), None)
        for active in [*([partial] if partial else []), *self.waiting]:
            if active is partial:
                self._continue(active, admitted)
            elif wave := self._wave(active, all_of_it=partial is not None):
                self._begin(active, wave, admitted)
                partial = active if active.pending else partial
            if active.pending and now - active.arrived > _PATIENCE:
                break
        return admitted

    def _begin(self, active: ActiveRequest, wave: list[Sequence], admitted: list[Prompt]) -> None:
        """Moves a request from waiting to running if there is room for the wave."""
        prompts = list(dict.fromkeys(seq.prompt for seq in wave))
        living = self.prompts
        for k, prompt in enumerate(prompts):
            self._find_prefix(prompt, [*living, *prompts[:k]])
        cells = sum(map(_new_cells, prompts)) + sum(cells_for(seq.max_tokens) for seq in wave)
        if not self._has_room(cells, len(wave), len(prompts)):
            return
        self._share_out(wave, self._cache.free_cells - cells)
        self.waiting.remove(active)
        self.running.append(active)
        admitted += prompts
        for prompt in prompts:
            self._lease_prompt(prompt)
        for seq in wave:
            self._lease(seq)

    def _continue(self, active: ActiveRequest, admitted: list[Prompt]) -> None:
        """Leases for the next sequences of a running request, one by one, while there is room."""
        for seq in active.pending:
            prompt = seq.prompt
            is_new = prompt.span is None
            if is_new:
                self._find_prefix(prompt, self.prompts)
            cells = cells_for(seq.max_tokens) + (_new_cells(prompt) if is_new else 0)
            if not self._has_room(cells, 1, int(is_new)):
                return
            if is_new:
                self._lease_prompt(prompt)
                admitted.append(prompt)
            self._lease(seq)

    def _has_room(self, cells: int, sequences: int, prompts: int) -> bool:
        return (
            cells <= self._cache.free_cells
            and self.leased + sequences <= self._n_parallel
            and sequences + prompts <= self._cache.free_seqs
        )

    def _lease_prompt(self, prompt: Prompt) -> None:
        source, n_tokens = prompt.source or (None, 0)
        prompt.span = self._cache.lease(source.span if source else None, n_tokens, len(prompt.tokens))
        prompt.seq_id = self._cache.lease_seq()

    def _lease(self, seq: Sequence) -> None:
        start = len(seq.prompt.tokens)
        seq.span = self._cache.lease(seq.prompt.span, start, start + cells_for(seq.max_tokens))
        seq.seq_id = self._cache.lease_seq()
        self.leased += 1

    def release(self, holder: Prompt | Sequence) -> None:
        """Takes back what a prompt or a sequence has leased. The only place that does."""
        assert holder.span is not None
        assert holder.seq_id is not None
        self._cache.close(holder.span)
        self._cache.release_seq(holder.seq_id)
        holder.seq_id = None
        self.leased -= isinstance(holder, Sequence)
        self.has_news = True

    def _wave(self, active: ActiveRequest, *, all_of_it: bool) -> list[Sequence]:
        """The sequences of a waiting request that begin together: as many as there is room for in an empty cache.

        Nothing if that must be all and isn't.
        """
        self._set_max_tokens(active)
        wave: list[Sequence] = []
        cells = 0
        for seq in active.living:
            cells += cells_for(seq.max_tokens)
            if not wave or wave[-1].prompt is not seq.prompt:
                cells += len(seq.prompt.tokens)
            if cells > self._cache.n_cells or len(wave) == self._n_parallel:
                return [] if all_of_it else wave
            wave.append(seq)
        return wave

    def _set_max_tokens(self, active: ActiveRequest) -> None:
        """Sets how many tokens each sequence may generate at least: what it wants, or less in a small context."""
        greedy = []
        for seq in active.living:
            wanted = self._default_max_tokens if seq.params.max_tokens is None else seq.params.max_tokens
            seq.max_tokens = min(wanted, self._cache.n_cells - len(seq.prompt.tokens) + 1)
            if wanted == -1:
                greedy.append(seq)
        taken = active.request.prompt_tokens + sum(cells_for(seq.max_tokens) for seq in active.living)
        for seq in greedy:
            room = self._cache.n_cells - taken
            if room < 0:  # not all begin at once
                room = self._cache.n_cells - len(seq.prompt.tokens)
            seq.max_tokens = min(_LEAST_ROOM, room // len(greedy) + 1)
            seq.is_greedy = True

    def _share_out(self, wave: list[Sequence], free: int) -> None:
        """Gives the free cells to the sequences that want all there is."""
        greedy = [seq for seq in wave if seq.is_greedy]
        for seq in greedy:
            seq.max_tokens += free // len(greedy)

    @property
    def prompts(self) -> list[Prompt]:
        """The running requests' prompts that have a sequence, and sequences that haven't finished."""
        return [
            prompt
            for active in self.running
            for prompt in active.prompts
            if prompt.seq_id is not None and prompt.living
        ]

    def _find_prefix(self, prompt: Prompt, others: list[Prompt]) -> None:
        """Finds who holds, or will hold, the longest beginning of a prompt: a sequence, or what was retained."""
        prompt.source = prompt.hit = None
        if not (self._shares_prefixes and prompt.active.request.cache_prompt) or prompt.active.request.scores_prompt:
            return
        shared = [_shared(prompt.tokens, other) for other in others if other.active.request.cache_prompt]
        n_tokens, source = max(shared, key=lambda pair: pair[0], default=(0, None))
        hit = self._retained.find(prompt.tokens)
        if hit and hit.n_tokens > max(n_tokens, _WORTH_SHARING - 1):
            prompt.hit = hit
        elif source and n_tokens >= _WORTH_SHARING:
            prompt.source = source, n_tokens

    @property
    def shared_cells(self) -> int:
        """How many of the leased cells are of prompts that several sequences continue."""
        spans = [prompt.span for prompt in self.prompts]
        return sum(span.end - span.start for span in spans if span and len(span.children) > 1)

    def bequeath(self, prompt: Prompt) -> tuple[Prompt, int] | None:
        """Lets one of the prompts that wait for this one evaluate what they share, and the others wait for that.

        Returns which, and how many tokens of this one it is to share as they are.
        """
        heirs = [(other, other.source[1]) for other in self.sharing if other.source and other.source[0] is prompt]
        if not heirs:
            return None
        # One that ends there is preferred: others may end there, too, and want its logits.
        heir, most = max(heirs, key=lambda pair: (pair[1], -len(pair[0].tokens)))
        for other, n_tokens in heirs:
            other.source = heir, n_tokens
        heir.source = None
        return heir, min(most, prompt.evaluated)

    @property
    def sharing(self) -> list[Prompt]:
        """The prompts that wait for another to have evaluated what they share."""
        return [prompt for prompt in self.prompts if prompt.source]


def _new_cells(prompt: Prompt) -> int:
    """The cells that a prompt needs beside those that it shares."""
    return len(prompt.tokens) - (prompt.source[1] if prompt.source else 0)


def _shared(tokens: tuple[int, ...], other: Prompt) -> tuple[int, Prompt | Sequence]:
    """How many tokens another prompt, or one of its sequences, can share, and which of them.

    The last one is evaluated again, but where a prompt ends there, too: its logits are kept.
    """
    n_tokens = common_prefix(tokens, other.tokens)
    shared: list[tuple[int, Prompt | Sequence]] = [(n_tokens - (n_tokens == len(tokens) < len(other.tokens)), other)]
    if n_tokens == len(other.tokens) < len(tokens):
        running = [seq for seq in other.sequences if seq.is_running]
        shared += [(common_prefix(tokens[:-1], seq.evaluated_tokens), seq) for seq in running]
    return max(shared, key=lambda pair: pair[0])


def cells_for(max_tokens: int) -> int:
    """The cells that so many generated tokens need: the last one is never evaluated."""
    return max(0, max_tokens - 1)
