"""`OutputProcessor`: turns what happens to requests and sequences into events."""

from collections.abc import Callable, Iterable

from srb.engine.backend import Backend
from srb.engine.events import (
    DoneEvent,
    ErrorEvent,
    Event,
    FinishReason,
    NodeEvent,
    ProgressEvent,
    PromptLogprobsEvent,
    StartEvent,
    StopEvent,
    StopReason,
    Timings,
    Token,
    Usage,
)
from srb.engine.output.detokenizer import LONGEST_CHARACTER
from srb.engine.sequence import ActiveRequest, Prompt, Sequence
from srb.errors import SrbError


class OutputProcessor:
    """Collects the events of a step, in order.

    Text becomes an event once its characters are complete and it can't become a stop string. Tokens come with it.

    Args:
        backend: The model.
        clock: Returns the time in seconds.
    """

    def __init__(self, backend: Backend, clock: Callable[[], float]) -> None:
        self._backend = backend
        self._tokenizer = backend.tokenizer
        self._clock = clock
        self._events: list[Event] = []

    def __len__(self) -> int:
        return len(self._events)

    def take_events(self) -> list[Event]:
        """Return all events since the last call."""
        events, self._events = self._events, []
        return events

    def start(self, active: ActiveRequest) -> None:
        """Add the event of a request's admission. The cached tokens are counted by now."""
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
                n_truncated=_n_truncated(active),
                fingerprint=self._backend.fingerprint,
                infill=active.infill,
            )
        )
        self.progress([active])

    def progress(self, requests: Iterable[ActiveRequest]) -> None:
        """Add an event for each request with `return_progress`: how many of its prompt tokens are evaluated."""
        for active in dict.fromkeys(requests):
            if active.request.return_progress:
                total = active.request.prompt_tokens - _n_truncated(active)
                self._events.append(ProgressEvent(active.id, _evaluated(active.prompts), _cached(active), total))

    def prompt_logprobs(self, prompt: Prompt, tokens: tuple[Token, ...]) -> None:
        """Add the event of a prompt's next tokens with their log-probabilities."""
        indices = tuple(seq.index for seq in prompt.living)
        if indices:
            self._events.append(PromptLogprobsEvent(prompt.active.id, indices, tokens))

    def start_texts(self, prompt: Prompt) -> None:
        """Start the texts of a prompt's sequences: with the whole prompt if it is echoed.

        Otherwise they start with the prompt's last bytes, as these may be the first half of a character. A prompt that
        is echoed with log-probabilities starts them token by token instead (`PromptLogprobs`).
        """
        if prompt.scores and prompt.active.report.echoes and prompt.active.request.logprobs is not None:
            return
        request, special = prompt.active.request, self._tokenizer.special_piece
        echoes = prompt.active.report.echoes
        asked = request.token_ids[prompt.sequences[0].index // len(request.branches)]
        tokens = asked if echoes else asked[-LONGEST_CHARACTER:]
        pieces = [special(token) for token in tokens]
        for seq in prompt.living:
            text = seq.push_prompt(b"".join(pieces))
            for number, token in enumerate(seq.resumed_tokens):
                piece = self.piece(seq, token, number)
                seq.text.push(piece)
                for constraint in seq.constraints:
                    constraint.push_resumed(piece)
            if echoes:
                self.add_text(seq, [Token(*pair, None) for pair in zip(tokens, pieces, strict=True)], text)

    def piece(self, seq: Sequence, token: int, number: int) -> bytes:
        """Return the bytes that a token adds to the text.

        Args:
            number: How many tokens come before it in the alternative.
        """
        tokenizer, params = self._tokenizer, seq.params
        if not params.include_stop_str_in_output and (tokenizer.is_end(token) or token in params.stop_token_ids):
            return b""
        if tokenizer.is_end(token):
            piece = b""
        elif seq.prompt.active.request.special_tokens:
            piece = tokenizer.special_piece(token)
        else:
            piece = tokenizer.piece(token)
        if not piece and params.stop:  # a special token is text where its name is a stop string
            name = tokenizer.detokenize([token])
            piece = name if name.decode(errors="replace") in params.stop else piece
        return piece if number else piece[len(seq.prompt.repeated) :]

    def add_token(self, seq: Sequence, token: int, details: list[Token], piece: bytes) -> None:
        """Add a final token of a sequence.

        Args:
            details: What `TokenReport.details` returned for it.
        """
        for each in details:
            seq.sum_logprob += each.logprob or 0.0
        seq.unreported_tokens.append(token)
        self.add_text(seq, details, seq.text.push(piece))

    def add_text(self, seq: Sequence, details: list[Token], text: str, *, is_last: bool = False) -> None:
        """Add text that can be shown now, and the reported tokens that it came from."""
        self._events += seq.prompt.active.report.text_events(seq, details, text, is_last=is_last)

    def add_nodes(self, nodes: Iterable[NodeEvent]) -> None:
        """Add the nodes that an exploring request has found."""
        self._events += nodes

    def stop(self, seq: Sequence, finish_reason: FinishReason, stop_reason: StopReason) -> None:
        """Add the event of a sequence's end, after the text of it that was still waiting."""
        prompt, active = seq.prompt, seq.prompt.active
        for token, details, piece in seq.rollback_window:
            self.add_token(seq, token, details, piece)
        seq.rollback_window = []
        self.add_text(seq, [], seq.text.flush(), is_last=True)
        event = StopEvent(
            active.id,
            seq.index,
            seq.length,
            finish_reason,
            stop_reason,
            truncated=bool(prompt.strategy.n_truncated or prompt.n_shifted or seq.n_shifted),
            timings=self._timings(active, [prompt], [seq], len(seq.tokens)),
        )
        for constraint in seq.constraints:
            event = constraint.stop_event(event)
        event = prompt.strategy.stop_event(seq, event)
        self._events += active.report.stop_events(event, seq.sum_logprob)

    def error(self, active: ActiveRequest, index: int | None, error: SrbError) -> None:
        """Add an error of a request, or of one of its sequences. The caller also stops what ends because of it."""
        self._events += active.report.error_events(ErrorEvent(active.id, index, error))

    def done(self, active: ActiveRequest) -> None:
        """Add the event of a request's end."""
        finished = sum(each.finished or 0 for each in active.request.resumed)
        resumed = sum(prompt.strategy.n_resumed for prompt in active.prompts)
        sampled = sum(prompt.strategy.n_sampled for prompt in active.prompts)
        self._events.append(
            DoneEvent(
                request_id=active.id,
                count=active.request.count,
                usage=Usage(active.request.prompt_tokens, finished + resumed + sampled, _cached(active)),
                timings=self._timings(active, active.prompts, active.sequences, sampled),
            )
        )

    def _timings(
        self, active: ActiveRequest, prompts: list[Prompt], sequences: list[Sequence], generated: int
    ) -> Timings:
        """Return the time that the parts of a request have taken until now, with the counts for these prompts."""
        now = self._clock()
        admitted = now if active.admitted is None else active.admitted
        prefilled = now if active.prefilled is None else active.prefilled
        return Timings(
            queued_ms=(admitted - active.arrived) * 1000,
            prompt_n=_evaluated(prompts),
            prompt_ms=(prefilled - admitted) * 1000,
            predicted_n=generated,
            predicted_ms=(now - prefilled) * 1000,
            n_truncated=_n_truncated(active),
            n_drafted=sum(seq.n_drafted for seq in sequences),
            n_accepted=sum(seq.n_accepted for seq in sequences),
        )


def _evaluated(prompts: list[Prompt]) -> int:
    """Return how many tokens of prompts were evaluated for their request."""
    return sum(prompt.n_computed - prompt.cached for prompt in prompts)


def _cached(active: ActiveRequest) -> int:
    """Return how many tokens of a request's prompts were cached."""
    # Tokens that a resumed alternative has generated belong to its prompt here, but not to the request's prompt.
    return min(sum(prompt.cached for prompt in active.prompts), active.request.prompt_tokens)


def _n_truncated(active: ActiveRequest) -> int:
    """Return how many tokens were left out of a prompt because the context has no room for them."""
    return max(prompt.strategy.n_truncated for prompt in active.prompts)
