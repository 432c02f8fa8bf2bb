"""A request on its way through the engine: the prompts and sequences that are made of it, and sums over these."""

from dataclasses import replace
from typing import TYPE_CHECKING

from srb.engine.adapters import Lora
from srb.engine.backend import Compiled
from srb.engine.banned import BannedStrings, Watch
from srb.engine.diversity import Diversity
from srb.engine.events import AbortReason
from srb.engine.given import Given
from srb.engine.model import Tokenizer
from srb.engine.opening import Opening, Openings, opening_of
from srb.engine.request import CompletionRequest, Resumed
from srb.engine.scores import Scores
from srb.engine.sequence import Prompt, Sequence
from srb.engine.text import StopStrings

if TYPE_CHECKING:
    from srb.engine.walkers import Walkers


class ActiveRequest:
    """A request that is waiting or running."""

    def __init__(
        self,
        request: CompletionRequest,
        compiled: Compiled,
        arrived: float,
        tokenizer: Tokenizer,
        loras: list[Lora],
    ) -> None:
        """loras: the setting of adapters that each branch is evaluated with."""
        self.request = request
        self.compiled = compiled
        stops = {strings: StopStrings(strings) for strings in {params.stop for params in request.branches} if strings}
        resumed = request.resumed or (Resumed(),) * request.count
        self.prompts: list[Prompt] = []
        asked = [_healed(tokens, tokenizer) if request.heal else (tokens, b"") for tokens in request.token_ids]
        for number, (tokens, healed) in enumerate(asked):
            first, alike = number * len(request.branches), list[Prompt]()
            for lora in dict.fromkeys(loras):
                begun = {first + k: resumed[first + k] for k, each in enumerate(loras) if each == lora}
                alike += Prompt.of(self, tokens, begun, stops, lora, healed)
            first_tokens = {each.tokens[0] for each in resumed[first : first + len(loras)] if each.tokens}
            for prompt in alike:
                prompt.first_tokens = first_tokens
                if request.scores_prompt:
                    prompt.scores = Scores(prompt.packed, request.logprobs or 0)
            self.prompts += alike
        self._give(resumed)
        self._watch(resumed, [len(healed) for _, healed in asked], stops, tokenizer)
        self._is_diverse = any(params.diversity for params in request.branches)
        if self._is_diverse:
            diversities = [Diversity(tokens) for tokens, _ in asked]
            for index, each in enumerate(resumed):
                diversities[index // len(request.branches)].tell(index, each.tokens)
            for seq in self.sequences:
                seq.diversity = diversities[seq.index // len(request.branches)]
        self.walkers: Walkers | None = None  # set in a request that explores, when its prompt is evaluated
        self.negatives = self._guide(resumed, tokenizer)
        self.first_wave: list[Sequence] = []  # the sequences that begin together; set when the request is queued
        self.early_aborts: dict[int, AbortReason] = {}  # by index: alternatives aborted while the request waits
        self.arrived = arrived  # this time and the next two are seconds of the engine's clock
        self.admitted: float | None = None
        self.prefilled: float | None = None
        self.has_tokens = False

    def _give(self, resumed: tuple[Resumed, ...]) -> None:
        """Gives the alternatives their tokens, if these are scored and not drawn."""
        for seq in self.sequences if self.request.candidates else ():
            seq.given = self.request.candidates[seq.index]
            seq.params = replace(seq.params, max_tokens=len(seq.given))
            seq.sampler = Given(seq.given[len(resumed[seq.index].tokens) :])

    def _watch(
        self,
        resumed: tuple[Resumed, ...],
        healed: list[int],
        stops: dict[tuple[str, ...], StopStrings],
        tokenizer: Tokenizer,
    ) -> None:
        """Gives a `Watch` to each alternative that has `banned_strings` or `avoid`.

        healed: of each prompt, how many bytes at the beginning of the drawn tokens belong to its text.
        """
        branches = self.request.branches
        banned = {strings: BannedStrings(strings) for strings in {params.banned_strings for params in branches}}
        lists = {params.avoid for params in branches if params.avoid is not None}
        avoided = {texts: frozenset(opening_of(text, tokenizer) for text in texts) for texts in lists}
        said: list[set[Opening]] = [set() for _ in self.request.prompts]
        for index, each in enumerate(resumed) if lists else ():
            if each.tokens:
                number = index // len(branches)
                said[number].add(opening_of(each.tokens, tokenizer, healed[number]))
        for seq in self.sequences:
            params = seq.params
            if params.banned_strings or params.avoid is not None:
                openings = None
                if params.avoid is not None:
                    openings = Openings(avoided[params.avoid], said[seq.index // len(branches)])
                strings = banned[params.banned_strings]
                seq.watch = Watch(strings, stops.get(params.stop), params.max_rewinds, openings)

    @property
    def shifts(self) -> bool:
        """Whether its context may have to be shifted."""
        return any(prompt.shift for prompt in self.prompts)

    def count_said(self) -> None:
        """Tells `Diversity` the new tokens of all alternatives that are sure to stay.

        This is done between two steps, so that all alternatives draw by the same counts in a step.
        """
        for seq in self.sequences if self._is_diverse else ():
            assert seq.diversity
            if seq.n_counted < seq.n_sure:
                seq.diversity.tell(seq.index, seq.tokens[seq.n_counted : seq.n_sure])
                seq.n_counted = seq.n_sure

    def _guide(self, resumed: tuple[Resumed, ...], tokenizer: Tokenizer) -> list[Prompt]:
        """Makes the negative prompts. Their sequences are the guides of the alternatives that are guided.

        Each prompt has negative prompts of its own, so that a guide begins together with its leader. What negative
        prompts share is found as for any prompts.
        """
        begun: dict[tuple[Prompt, tuple[int, ...]], dict[int, Resumed]] = {}
        guided = {seq.index: seq for seq in self.sequences if seq.params.is_guided}
        for index, seq in guided.items():
            negative = seq.params.negative_ids or seq.prompt.asked[-1:]
            if seq.prompt.healed and len(negative) > 1 and tokenizer.piece(negative[-1]) == seq.prompt.healed:
                negative = negative[:-1]
            begun.setdefault((seq.prompt, negative), {})[index] = resumed[index]
        negatives: list[Prompt] = []
        for (prompt, asked), each in begun.items():
            negatives += Prompt.of(self, asked, each, {}, prompt.lora)
        for guide in (seq for negative in negatives for seq in negative.sequences):
            leader = guided[guide.index]
            leader.guide, guide.leader, guide.tokens = guide, leader, leader.tokens
        for prompt in self.prompts:
            # Those with the same negative prompt begin one after the other. Otherwise an alternative that waits could
            # keep the cells of its negative prompt from the one before it, and each would wait for the other for ever.
            alike: dict[Prompt | None, list[Sequence]] = {}
            for seq in prompt.sequences:
                alike.setdefault(seq.guide.prompt if seq.guide else None, []).append(seq)
            prompt.sequences = [seq for each in alike.values() for seq in each]
        return negatives

    @property
    def id(self) -> str:
        """The request's id."""
        return self.request.id

    @property
    def sequences(self) -> list[Sequence]:
        """All sequences, except those that had finished before the request was resumed."""
        return [seq for prompt in self.prompts for seq in prompt.sequences]

    @property
    def living(self) -> list[Sequence]:
        """The sequences that haven't finished."""
        return [seq for prompt in self.prompts for seq in prompt.living]

    @property
    def waiting(self) -> list[Sequence]:
        """The sequences that wait for room."""
        return [seq for prompt in self.prompts for seq in prompt.sequences if seq.state == "waiting"]

    @property
    def cached(self) -> int:
        """How many tokens of its prompts were known from other requests."""
        # Tokens that a resumed alternative has generated belong to its prompt here, but not to the request's prompt.
        return min(sum(prompt.cached for prompt in self.prompts), self.request.prompt_tokens)

    @property
    def n_cut(self) -> int:
        """How many tokens of its prompt were left out because the context has no room for them."""
        return max(prompt.shift.n_cut if prompt.shift else 0 for prompt in self.prompts)

    @property
    def generated(self) -> int:
        """How many tokens its alternatives have, finished or not. If it explores: how many its told nodes have."""
        if self.walkers:
            return self.walkers.n_tokens
        return sum(each.finished or 0 for each in self.request.resumed) + sum(seq.length for seq in self.sequences)

    @property
    def drawn(self) -> int:
        """How many of the generated tokens came after the request was resumed; all of them if it wasn't."""
        return self.walkers.n_new if self.walkers else sum(len(seq.tokens) for seq in self.sequences)

    @property
    def newly_evaluated(self) -> int:
        """How many tokens of its prompts were evaluated for this request."""
        return sum(prompt.evaluated - prompt.cached for prompt in self.prompts)


def _healed(tokens: tuple[int, ...], tokenizer: Tokenizer) -> tuple[tuple[int, ...], bytes]:
    """A prompt without its last token, and the bytes of that token, if other tokens begin with the same bytes.

    Otherwise the whole prompt, and no bytes. So is a prompt whose last token stands behind an image: there are no
    logits behind an image.
    """
    text = tokenizer.piece(tokens[-1])
    if len(tokens) > 1 and tokens[-2] >= 0 and text and len(tokenizer.beginning_with(text)) > 1:
        return tokens[:-1], text
    return tokens, b""
