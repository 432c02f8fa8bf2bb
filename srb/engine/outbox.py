"""`Outbox`: turns what happens to requests and sequences into events, and keeps these until the step returns them."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import islice

from srb.engine.active_request import ActiveRequest
from srb.engine.backend import Backend, Logits, Logprobs
from srb.engine.events import (
    DoneEvent,
    ErrorEvent,
    Event,
    FinishReason,
    NodeEvent,
    ProgressEvent,
    StartEvent,
    StopEvent,
    StreamEvent,
    Timings,
    Token,
    Usage,
)
from srb.engine.sequence import Prompt, Sequence
from srb.errors import SrbError

LONGEST_CHARACTER = 4  # bytes of UTF-8


class Outbox:
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
        if request.resumed:
            return  # it told so before it was interrupted
        shared = sum(prompt.beginning.n_tokens for prompt in active.prompts if prompt.beginning)
        self._events.append(
            StartEvent(
                request_id=request.id,
                count=request.count,
                prompt_tokens=request.prompt_tokens,
                cached_tokens=min(active.cached + shared, request.prompt_tokens),
                max_tokens=max(seq.max_tokens for seq in active.sequences),
                seeds=tuple(params.seed for params in request.branches) * len(request.prompts),
                labels=tuple(params.label for params in request.branches) * len(request.prompts),
                guided=request.guided,
                n_cut=active.n_cut,
            )
        )
        self.progress([active])

    def progress(self, requests: Iterable[ActiveRequest]) -> None:
        """Tells how far the prompts of these requests are evaluated, if the requests want to know."""
        for active in dict.fromkeys(requests):
            if active.request.return_progress:
                total = active.request.prompt_tokens - active.n_cut
                self._events.append(ProgressEvent(active.id, active.newly_evaluated, active.cached, total))

    def precede(self, prompt: Prompt) -> None:
        """Begins the texts of a prompt's sequences: with the whole prompt if it is echoed.

        Otherwise they begin with the prompt's last bytes, as these may be the first half of a character.
        """
        request, special = prompt.active.request, self._tokenizer.special_piece
        echo = request.echo and not request.resumed
        asked = request.token_ids[prompt.sequences[0].index // len(request.branches)]
        tokens = asked if echo else asked[-LONGEST_CHARACTER:]
        pieces = [special(token) for token in tokens]
        for seq in prompt.living:
            text = seq.precede(b"".join(pieces))
            for number, token in enumerate(seq.begun):
                piece = self.piece(seq, token, number)
                seq.text.push(piece)
                if seq.watch:
                    seq.watch.skip(piece)
            if echo:
                self._say(seq, [Token(*pair, None) for pair in zip(tokens, pieces, strict=True)], text)

    def score(self, prompt: Prompt, n_tokens: int, last_row: int) -> None:
        """If a prompt is scored, takes and tells the log-probabilities that the last decode has found of its tokens.

        n_tokens: how many of its tokens were in the batch. last_row: the number of the last one.
        """
        scores, end = prompt.scores, prompt.evaluated + n_tokens
        if scores and scores.end > prompt.evaluated:
            for place in range(scores.end, min(end + 1, len(scores.tokens))):
                logits = self._backend.logits(last_row - end + place)
                scores.append(self._backend.logprobs(logits, scores.tokens[place], scores.top))
        self.tell(prompt)

    def tell(self, prompt: Prompt) -> None:
        """If a prompt is scored, reports its tokens whose log-probabilities are known, unless it has done so before."""
        scores, special = prompt.scores, self._tokenizer.special_piece
        if scores is None or scores.told >= scores.end:
            return
        tokens = []
        for place, token in enumerate(scores.tokens[scores.told : scores.end], scores.told):
            is_first = place == 0  # nothing comes before it, so it has no log-probability
            tokens.append(Token(token, special(token), None) if is_first else self._token(token, scores.of(place)))
        scores.told = scores.end
        for seq in prompt.living:
            for reported in tokens:
                self._say(seq, [reported], seq.precede(reported.piece))

    def report(self, seq: Sequence, token: int, logits: Logits) -> list[Token]:
        """The token that was just drawn, with what the request wants to know of it. Raises `BackendError`."""
        request = seq.prompt.active.request
        if request.logprobs is None:
            return [Token(token, b"", None)] if request.return_tokens else []
        if request.post_sampling_probs:
            assert seq.sampler is not None
            logprobs = seq.sampler.logprobs(token, request.logprobs)
        else:
            logprobs = self._backend.logprobs(logits, token, request.logprobs)
        return [self._token(token, logprobs)]

    def _token(self, token: int, logprobs: Logprobs) -> Token:
        special, (logprob, top) = self._tokenizer.special_piece, logprobs
        return Token(token, special(token), logprob, tuple(Token(each, special(each), p) for each, p in top))

    def drawn(self, seq: Sequence, token: int, reported: list[Token], p: float) -> int:
        """Takes a token that a sequence has drawn, which may be an end token. p: as in `Watch.push`.

        Returns how many of its last tokens must be taken back, because their text must not come; most often 0. No event
        has these tokens yet.
        """
        is_end = self._tokenizer.is_end(token)
        piece = b"" if is_end else self.piece(seq, token, seq.length - 1)
        if seq.watch is None:
            self._goes_on(seq, token, reported, piece)
            return 0
        is_last = is_end or len(seq.tokens) == seq.max_tokens
        n_tokens = seq.watch.push(token, reported, piece, len(seq.tokens) - 1, p=p, is_last=is_last)
        for held in seq.watch.sure():
            self._goes_on(seq, held.token, held.reported, held.piece)
        return n_tokens

    def _goes_on(self, seq: Sequence, token: int, reported: list[Token], piece: bytes) -> None:
        """Tells that a sequence has a token which will not be taken back."""
        seq.sum_logprob += sum(each.logprob or 0.0 for each in reported)
        seq.untold.append(token)
        self._say(seq, reported, seq.text.push(piece))

    def piece(self, seq: Sequence, token: int, number: int) -> bytes:
        """The bytes that a drawn token adds to the text. number: how many tokens come before it in the alternative."""
        is_special = seq.prompt.active.request.special_tokens
        piece = self._tokenizer.special_piece(token) if is_special else self._tokenizer.piece(token)
        return piece if number else piece[len(seq.prompt.healed) :]

    def _say(self, seq: Sequence, tokens: list[Token], text: str, *, is_last: bool = False) -> None:
        """Makes events of text and the tokens that it came from. Reported tokens wait until their text is whole."""
        request = seq.prompt.active.request
        if request.reports_tokens:
            seq.unsaid += tokens
            seq.unsaid_text += text
            if not (seq.text.is_whole or is_last):
                return
            tokens, text = seq.unsaid, seq.unsaid_text
            seq.unsaid, seq.unsaid_text = [], ""
        if request.logprobs is None:
            ids = tuple(token.id for token in tokens) if request.return_tokens else ()
            if text or ids:
                self._events.append(StreamEvent(request.id, seq.index, text, ids, drawn=tuple(seq.untold)))
                seq.untold = []
            return
        drawn = iter(seq.untold)  # one for each of the tokens, or none if these are the prompt's
        for token in tokens:
            said = text if token is tokens[-1] else ""
            ids = (token.id,) if request.return_tokens else ()
            self._events.append(StreamEvent(request.id, seq.index, said, ids, token, tuple(islice(drawn, 1))))
        seq.untold = []

    def found(self, nodes: Iterable[NodeEvent]) -> None:
        """Tells the nodes that an exploring request has found."""
        self._events += nodes

    def stop(self, seq: Sequence, finish_reason: FinishReason, stop_reason: str | None) -> None:
        """Tells that a sequence ended, after the text of it that was still held back."""
        active = seq.prompt.active
        watch = seq.watch
        for held in watch.rest() if watch else ():
            self._goes_on(seq, held.token, held.reported, held.piece)
        self._say(seq, [], seq.text.flush(), is_last=True)
        mean = seq.sum_logprob / seq.length if active.request.logprobs is not None and seq.length else None
        timings = self._timings(active, [seq.prompt], len(seq.tokens))
        event = StopEvent(
            active.id,
            seq.index,
            seq.length,
            finish_reason,
            stop_reason,
            mean,
            logprob=seq.logprob,
            weight=seq.weight,
            timings=timings,
        )
        if shift := seq.prompt.shift:
            event = replace(event, truncated=bool(shift.n_cut or shift.n_dropped or seq.n_dropped))
        if watch:
            event = replace(
                event,
                rewinds=watch.rewinds,
                rewound_tokens=watch.rewound_tokens,
                rewinds_exhausted=watch.is_exhausted,
            )
        self._events.append(event)

    def error(self, active: ActiveRequest, index: int | None, error: SrbError) -> None:
        """Tells a fault of a request, or of one of its sequences. The caller also tells what ends because of it."""
        self._events.append(ErrorEvent(active.id, index, error))

    def done(self, active: ActiveRequest) -> None:
        """Tells that the last sequence of a request has ended."""
        self._events.append(
            DoneEvent(
                request_id=active.id,
                count=active.request.count,
                usage=Usage(active.request.prompt_tokens, active.generated, active.cached),
                timings=self._timings(active, active.prompts, active.drawn),
            )
        )

    def fail(self, active: ActiveRequest, error: SrbError) -> None:
        """Tells the end of a request when the engine is broken. Text that was held back is left out."""
        self.error(active, None, error)
        living = {seq.index: seq for seq in active.living}.values()  # several sequences explore for one alternative
        self._events += [StopEvent(active.id, seq.index, seq.length, "error", None) for seq in living]
        self.done(active)

    def _timings(self, active: ActiveRequest, prompts: list[Prompt], generated: int) -> Timings:
        """How much time the parts of a request have taken until now, with the counts for these of its prompts."""
        now = self._clock()
        admitted = now if active.admitted is None else active.admitted
        prefilled = now if active.prefilled is None else active.prefilled
        return Timings(
            queued_ms=(admitted - active.arrived) * 1000,
            prompt_n=sum(prompt.evaluated - prompt.cached for prompt in prompts),
            prompt_ms=(prefilled - admitted) * 1000,
            predicted_n=generated,
            predicted_ms=(now - prefilled) * 1000,
            n_cut=active.n_cut,
        )
