"""`Scorer`: finds the log-probability of a suffix after the candidates of a bridge, with a `Probe` for each.

The tokens of the suffix are evaluated in the cells of the candidate, and removed again. A model with a recurrent state
or a sliding window can't take tokens out of its cells. There a further row evaluates the suffix, for one candidate
after the other, in a fork of it.
"""

from collections.abc import Callable, Collection, Iterator
from collections.abc import Sequence as Many

from srb.engine.asking.request import MAX_REST
from srb.engine.backend import Logits
from srb.engine.sequence import Prompt
from srb.engine.ways.middle import Middle
from srb.engine.ways.rows import OwnRow
from srb.engine.ways.tools import Tools


class Probe(OwnRow):
    """Scores tokens of the suffix after the first tokens of a middle. Implements `srb.engine.ports.Row`.

    It evaluates them as any row does, in the cells of the middle or in a fork, from where they are removed again. The
    first one is scored by the logits of the token before it, so this token has to be evaluated, too, unless its logits
    are at hand (`first`).

    kept: how many tokens of the middle come before the suffix. rest: tokens between these and the suffix.
    first: the log-probability of the first token of the suffix, if it is known.
    """

    def __init__(
        self,
        middle: Middle,
        kept: int,
        rest: Many[int],
        suffix: Many[int],
        *,
        first: float | None = None,
        at_once: bool = True,
    ) -> None:
        line = [*middle.tokens[:kept], *rest[:MAX_REST], *suffix[:-1]]
        super().__init__(middle.way, middle.n_before, line, at_once=at_once)
        self.middle = middle
        self.logprobs = [] if first is None else [first]
        """Those of the suffix's tokens, as far as they are known."""
        self._kept = kept
        self._suffix = suffix
        self._before = kept + len(rest[:MAX_REST])

    @property
    def n_tokens(self) -> int:
        """How many tokens it holds after the prompt."""
        return self.n_held

    @property
    def is_done(self) -> bool:
        """Whether all of the suffix is scored."""
        return len(self.logprobs) == len(self._suffix)

    @property
    def n_usable(self) -> int:
        """How many tokens of the middle's cells it can begin with."""
        return min(self._kept, self._before - (not self.logprobs), self.middle.n_held)

    def next_scored(self) -> int | None:
        """Counts a token as evaluated. Returns the token of the suffix that its logits score, if any."""
        self.n_held += 1
        place = self.n_held - self._before
        return self._suffix[place] if 0 <= place < len(self._suffix) else None


class Scorer:
    """Scores the suffix after the candidates of a prompt.

    spare: the seq_id in which it is evaluated; None: those of the candidates.
    """

    def __init__(self, prompt: Prompt, tools: Tools) -> None:
        self.rows: list[Probe] = []
        """The probes that evaluate."""
        self.spare: int | None = None
        self._queue: list[Probe] = []  # those that wait for the spare seq_id, or for the next step
        self._prompt = prompt
        self._tools = tools

    def add(self, middle: Middle, kept: int, rest: bytes, suffix: Many[int], logits: Logits | None = None) -> None:
        """Scores tokens of the suffix after the first `kept` tokens of a middle and the bytes `rest`.

        logits: those of the last of these tokens, if they are at hand.
        """
        tokens: tuple[int, ...] = ()
        if text := rest.decode(errors="ignore"):
            tokens = self._tools.backend.tokenizer.tokenize(text, is_prompt=False, parse_special=False)
            tokens = tokens if len(tokens) <= MAX_REST else ()
        if not kept + len(tokens):
            logits = self._prompt.logits
        first = None if logits is None else self._logprob(logits, suffix[0])
        self._queue.append(Probe(middle, kept, tokens, suffix, first=first, at_once=not self._prompt.block_size))

    def take(self, probe: Probe, logits: Logits) -> None:
        """Takes the logits of a token that a probe has evaluated."""
        token = probe.next_scored()
        if token is not None:
            probe.logprobs.append(self._logprob(logits, token))

    def follow(self, wanted: Callable[[], Collection[Middle]]) -> Iterator[Probe]:
        """The probes that have scored all. The caller may `add` others meanwhile. Lets the next ones begin.

        wanted: returns the candidates that are still of use.
        """
        while True:
            for probe in [each for each in self.rows if each.is_done or each.middle not in wanted()]:
                self.rows.remove(probe)
                self._put_back(probe)
                if probe.is_done:
                    yield probe
            self._queue = [each for each in self._queue if each.middle in wanted()]
            while self._queue and (self.spare is None or not self.rows):
                probe = self._queue.pop(0)
                self._place(probe)
                self.rows.append(probe)
            if not any(each.is_done for each in self.rows):
                return

    def _logprob(self, logits: Logits, token: int) -> float:
        return self._tools.backend.logprobs(logits, token, 0)[0]

    def _place(self, probe: Probe) -> None:
        """Gives a probe cells with as many tokens before the suffix as possible."""
        middle, prompt, backend = probe.middle, self._prompt, self._tools.backend
        assert middle.seq_id is not None
        assert prompt.seq_id is not None
        probe.n_held = probe.n_usable
        if self.spare is None:
            probe.seq_id = middle.seq_id
            backend.truncate(middle.seq_id, probe.position)
            return
        probe.seq_id = self.spare
        source = middle.seq_id
        if backend.continuable_from(source) > probe.position:
            source, probe.n_held = prompt.seq_id, 0
        self._tools.cells.fork_seq(source, self.spare, probe.position)

    def _put_back(self, probe: Probe) -> None:
        """Removes what a probe has evaluated."""
        middle = probe.middle
        assert middle.seq_id is not None
        if self.spare is not None:
            self._tools.backend.remove(self.spare)
        else:
            middle.n_held = min(middle.n_held, probe.n_usable)
            self._tools.backend.truncate(middle.seq_id, middle.position)
