"""`OutputProcessor`: turns what happens to requests and sequences into events, and keeps these until the step returns
them."""

from collections.abc import Callable, Iterable

from srb.engine.backend import Backend
from srb.engine.events import (
    DoneEvent,
    ErrorEvent,
    Event,
    FinishReason,
    NodeEvent,
    ProgressEvent,
    StartEvent,
    StopEvent,
    Timings,
    Token,
    Usage,
)
from srb.engine.sequence import ActiveRequest, Prompt, Sequence
from srb.errors import SrbError

LONGEST_CHARACTER = 4  # bytes of UTF-8


class OutputProcessor:
    """The events that nobody has taken yet, in order.

    Text becomes an event once its characters are complete and it can't become a stop string. Tokens come with it.
    """

    def __init__(self, backend: Backend, clock: Callable[[], float]) -> None:
        self._backend = backend
        self._tokenizer = backend.tokenizer
        self._clock = clock
        self._events: list[Event] = []

    def __len__(self) -> int:
        return len(self._events)

    def take(self) -> list[Event]:
        """All events since the last call."""
        events, self._events = self._events, []
        return events

    def start(self, active: ActiveRequest) -> None:
        """Tells that a request was admitted. By now it is known which of its tokens come from other requests."""
        request = active.request
        shared = sum(prompt.beginning.n_tokens for prompt in active.prompts if prompt.beginning)
        self._events.append(
            StartEvent(
                request_id=request.id,
                count=request.count,
                prompt_tokens=request.prompt_tokens,
                cached_tokens=min(_cached(active) + shared, request.prompt_tokens),
                max_tokens=max(seq.max_tokens for seq in active.sequences),
                seeds=tuple(params.seed for params in request.branches) * len(request.prompts),
                labels=tuple(params.label for params in request.branches) * len(request.prompts),
                guided=request.guided,
                n_cut=_n_cut(active),
                fingerprint=self._backend.fingerprint,
                infill=active.infill,
            )
        )
        self.progress([active])

    def progress(self, requests: Iterable[ActiveRequest]) -> None:
        """Tells how far the prompts of these requests are evaluated, if the requests want to know."""
        for active in dict.fromkeys(requests):
            if active.request.return_progress:
                total = active.request.prompt_tokens - _n_cut(active)
                self._events.append(ProgressEvent(active.id, _evaluated(active.prompts), _cached(active), total))

    def precede(self, prompt: Prompt) -> None:
        """Begins the texts of a prompt's sequences: with the whole prompt if it is echoed.

        Otherwise they begin with the prompt's last bytes, as these may be the first half of a character.
        """
        request, special = prompt.active.request, self._tokenizer.special_piece
        echoes = prompt.active.report.echoes
        asked = request.token_ids[prompt.sequences[0].index // len(request.branches)]
        tokens = asked if echoes else asked[-LONGEST_CHARACTER:]
        pieces = [special(token) for token in tokens]
        for seq in prompt.living:
            text = seq.precede(b"".join(pieces))
            for number, token in enumerate(seq.resumed_tokens):
                piece = self.piece(seq, token, number)
                seq.text.push(piece)
                for constraint in seq.constraints:
                    constraint.skip(piece)
            if echoes:
                self.say(seq, [Token(*pair, None) for pair in zip(tokens, pieces, strict=True)], text)

    def goes_on(self, seq: Sequence, token: int, reported: list[Token], piece: bytes) -> None:
        """Tells that a sequence has a token which will not be taken back, and the bytes that this adds to its text."""
        for each in reported:
            seq.sum_logprob += each.logprob or 0.0
        seq.unreported_tokens.append(token)
        self.say(seq, reported, seq.text.push(piece))

    def piece(self, seq: Sequence, token: int, number: int) -> bytes:
        """The bytes that a drawn token adds to the text. number: how many tokens come before it in the alternative."""
        if self._tokenizer.is_end(token):
            return b""
        is_special = seq.prompt.active.request.special_tokens
        piece = self._tokenizer.special_piece(token) if is_special else self._tokenizer.piece(token)
        return piece if number else piece[len(seq.prompt.repeated) :]

    def say(self, seq: Sequence, tokens: list[Token], text: str, *, is_last: bool = False) -> None:
        """Tells text that can be shown now, and the reported tokens that it came from."""
        self._events += seq.prompt.active.report.say(seq, tokens, text, is_last=is_last)

    def found(self, nodes: Iterable[NodeEvent]) -> None:
        """Tells the nodes that an exploring request has found."""
        self._events += nodes

    def stop(self, seq: Sequence, finish_reason: FinishReason, stop_reason: str | None) -> None:
        """Tells that a sequence ended, after the text of it that was still held back."""
        prompt, active = seq.prompt, seq.prompt.active
        for token, reported, piece in seq.rollback_window:
            self.goes_on(seq, token, reported, piece)
        seq.rollback_window = []
        self.say(seq, [], seq.text.flush(), is_last=True)
        event = StopEvent(
            active.id,
            seq.index,
            seq.length,
            finish_reason,
            stop_reason,
            truncated=bool(prompt.n_cut or prompt.n_shifted or seq.n_shifted),
            timings=self._timings(active, [prompt], [seq], len(seq.tokens)),
        )
        for constraint in seq.constraints:
            event = constraint.ended(event)
        self._events += active.report.end(event, seq.sum_logprob)

    def error(self, active: ActiveRequest, index: int | None, error: SrbError) -> None:
        """Tells a fault of a request, or of one of its sequences. The caller also tells what ends because of it."""
        self._events.append(ErrorEvent(active.id, index, error))

    def done(self, active: ActiveRequest) -> None:
        """Tells that the last sequence of a request has ended."""
        finished = sum(each.finished or 0 for each in active.request.resumed)
        begun = sum(prompt.strategy.n_resumed for prompt in active.prompts)
        drawn = sum(prompt.strategy.n_sampled for prompt in active.prompts)
        self._events.append(
            DoneEvent(
                request_id=active.id,
                count=active.request.count,
                usage=Usage(active.request.prompt_tokens, finished + begun + drawn, _cached(active)),
                timings=self._timings(active, active.prompts, active.sequences, drawn),
            )
        )

    def _timings(
        self, active: ActiveRequest, prompts: list[Prompt], sequences: list[Sequence], generated: int
    ) -> Timings:
        """How much time the parts of a request have taken until now, with the counts for these of its prompts."""
        now = self._clock()
        admitted = now if active.admitted is None else active.admitted
        prefilled = now if active.prefilled is None else active.prefilled
        return Timings(
            queued_ms=(admitted - active.arrived) * 1000,
            prompt_n=_evaluated(prompts),
            prompt_ms=(prefilled - admitted) * 1000,
            predicted_n=generated,
            predicted_ms=(now - prefilled) * 1000,
            n_cut=_n_cut(active),
            n_drafted=sum(seq.n_drafted for seq in sequences),
            n_accepted=sum(seq.n_accepted for seq in sequences),
        )


def _evaluated(prompts: list[Prompt]) -> int:
    """How many tokens of prompts were evaluated for their request."""
    return sum(prompt.n_computed - prompt.cached for prompt in prompts)


def _cached(active: ActiveRequest) -> int:
    """How many tokens of a request's prompts were known from other requests."""
    # Tokens that a resumed alternative has generated belong to its prompt here, but not to the request's prompt.
    return min(sum(prompt.cached for prompt in active.prompts), active.request.prompt_tokens)


def _n_cut(active: ActiveRequest) -> int:
    """How many tokens of its prompt were left out because the context has no room for them."""
    return max(prompt.n_cut for prompt in active.prompts)
