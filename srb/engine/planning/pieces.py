"""How many tokens of which prompts are in the next batch."""

from collections.abc import Iterable
from dataclasses import dataclass

from srb.engine.costs import Costs
from srb.engine.planning.order import left
from srb.engine.prompts.media import MediaReader
from srb.engine.sequence import Prompt, Sequence


@dataclass(frozen=True, slots=True)
class Budget:
    """What the pieces of one batch may take together.

    n_tokens, seconds, outputs: in tokens, in time, and in tokens with logits.
    least: the first piece has at least so many tokens, if its prompt has so many left.
    is_alone: no sequence is running. joins: the pieces are in one batch with the rows.
    """

    n_tokens: int
    seconds: float
    outputs: int
    least: int = 1
    is_alone: bool = False
    joins: bool = False


class Pieces:
    """Chooses pieces of prompts, of at most `n_batch` tokens, or of `n_outputs` tokens with logits.

    reader: knows which atoms (images and sounds) are ready to be evaluated; None: there are none.
    """

    def __init__(self, n_batch: int, n_outputs: int, reader: MediaReader | None) -> None:
        self._n_batch = n_batch
        self._n_outputs = n_outputs
        self._reader = reader

    def ready(self, prefilling: list[Prompt], *, must: bool) -> list[Prompt]:
        """The prompts that needn't wait for an atom now. If all wait, and nobody else works (`must`): all of them.

        To ask whether an atom is ready also starts its preparation.
        """
        if self._reader is None:
            return prefilling
        found = [prompt for prompt in prefilling if self._is_ready(prompt, self._reader)]
        return prefilling if must and not found else found

    def _is_ready(self, prompt: Prompt, reader: MediaReader) -> bool:
        ahead = next((at for at in prompt.atoms if at >= prompt.evaluated), None)
        return ahead is None or reader.is_ready(prompt.atoms[ahead]) or ahead > prompt.evaluated

    def choose(
        self, in_turn: list[Prompt], awaiting: list[Prompt], costs: Costs, budget: Budget
    ) -> list[tuple[Prompt, int]]:
        """Chooses prompts, and how many tokens of each are next. Those with logits come first.

        A stretch that is whole has a batch of its own, and is never split, however long it takes.

        awaiting: the prompts that wait until another one has evaluated what they share with it.
        """
        pieces: list[tuple[Prompt, int]] = []
        with_logits: list[tuple[Prompt, int]] = []
        most, seconds, outputs, least = budget.n_tokens, budget.seconds, budget.outputs, budget.least
        pauses = _pauses(awaiting)
        for prompt in in_turn:
            is_first = not (pieces or with_logits)
            stretch, evaluated = prompt.stretch, prompt.evaluated
            if stretch.is_whole:
                if is_first:
                    return [(prompt, stretch.end - evaluated)]
                continue
            rest, fitting = left(prompt), costs.largest_piece(seconds, evaluated, joins=budget.joins)
            pause = min([*pauses.get(prompt, ()), *prompt.checkpoints[-1:], stretch.end])
            if stretch.has_logits:
                n_tokens = _even_piece(pause - evaluated, self._n_outputs)
                if n_tokens > outputs or not (is_first or n_tokens <= min(most, fitting)):
                    continue
                if with_logits and not (prompt.shares and with_logits[0][0].shares):
                    continue
                with_logits.append((prompt, n_tokens))
                outputs -= n_tokens
            else:
                n_tokens = max(fitting, least if is_first else 0)
                if budget.is_alone:
                    n_tokens = _even_piece(rest, self._n_batch)
                if is_first and n_tokens < rest < n_tokens + least:  # else only a small piece would be left
                    n_tokens = rest - least if rest >= 2 * least else rest
                n_tokens = min(n_tokens, rest, most, pause - evaluated)
                if n_tokens <= 0 or (n_tokens == rest and not outputs):
                    continue
                if budget.is_alone and n_tokens < rest and any(n == left(each) for each, n in with_logits + pieces):
                    break  # a prompt becomes complete with this batch: it needn't wait for more tokens of others
                pieces.append((prompt, n_tokens))
                outputs -= n_tokens == rest
            most -= n_tokens
            seconds -= costs.of_piece(n_tokens, evaluated, joins=budget.joins)
        return with_logits + pieces


def _pauses(awaiting: Iterable[Prompt]) -> dict[Prompt | Sequence, list[int]]:
    """For each prompt, after how many of its tokens others will fork off it.

    The prompt stops at the first of these points. The rest of it is then evaluated in one batch with the rests of the
    others.
    """
    pauses: dict[Prompt | Sequence, list[int]] = {}
    for prompt in awaiting:
        if prompt.beginning and prompt.beginning.source:
            pauses.setdefault(prompt.beginning.source, []).append(prompt.beginning.shared)
    return pauses


def _even_piece(left: int, most: int) -> int:
    """The size of the next piece of `left` tokens, so that all pieces have about the same size, of at most `most`.

    A small piece at the end would be computed in another way, and its logits would differ (docs/figures/older.md).
    """
    return -(-left // -(-left // most))
