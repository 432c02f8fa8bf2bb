"""Measures texts of one kind: how likely, how long and how much alike they are."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from srb.terminal.statistics import Interval, Paired, adjusted, interval, paired

MAX_INTERVALS = 200
"""An interval takes some milliseconds. With more cells than this, only the measures over all prompts have intervals."""


@dataclass(frozen=True)
class Result:
    """An alternative, with everything that it came from, as results.jsonl has it.

    run: the name of the folder, if a report is about several. length: in tokens. finish_reason: `abort` if the text was
    cut off. mean_logprob: the mean log-probability of its tokens, by the model; None without tokens.
    tokens: for each token `[text, logprob, [[text, logprob], ...]]`; the inner list has the likeliest tokens at that
    place. scores: by the names of the scorers.
    """

    prompt: str
    setting: str
    seed: int
    text: str
    length: int
    finish_reason: str
    stop_reason: str | None
    mean_logprob: float | None
    model: str = ""
    prompt_text: str = ""
    variables: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    scores: dict[str, float | None] = field(default_factory=dict)
    tokens: list[Any] = field(default_factory=list)
    run: str = ""

    @property
    def is_whole(self) -> bool:
        """Whether the text came to its end. A text that was cut off counts in no measure."""
        return self.finish_reason != "abort"

    @property
    def kind(self) -> "Kind":
        """The kind of text, which measures and tests compare with other kinds."""
        return self.run, self.model, self.setting


Kind = tuple[str, str, str]
"""A run, a model and a setting."""

Cells = dict[tuple[str, Kind], "Measures"]
"""The measures of each cell, by the names of its prompt and its kind."""


@dataclass(frozen=True)
class Measures:
    """The measures of a cell, which is the alternatives of one prompt and one kind.

    count: how many alternatives there are. different: how many different texts they have.
    mean_logprob: the mean natural log-probability of all tokens, by the model and before the samplers.
    perplexity: e to the power of -mean_logprob.
    length: the mean length, in tokens.
    distinct_1, distinct_2, self_bleu: see the functions.
    scores: the mean of each scorer's scores.
    intervals: those of the means, by their names; see `statistics.interval`.
    """

    count: int
    different: int
    mean_logprob: float | None
    perplexity: float | None
    length: float | None
    distinct_1: float | None
    distinct_2: float | None
    self_bleu: float | None
    scores: dict[str, float | None] = field(default_factory=dict)
    intervals: dict[str, Interval | None] = field(default_factory=dict)

    def value(self, name: str) -> float | None:
        """A measure or a score, by its name."""
        return self.scores[name] if name in self.scores else getattr(self, name, None)


@dataclass(frozen=True)
class Findings:
    """Everything that a report says of results.

    pooled: the measures over all prompts. tests: each kind against the first one.
    """

    results: list[Result]
    cells: Cells
    pooled: dict[Kind, Measures]
    tests: list[Paired]

    @classmethod
    def of(cls, results: list[Result]) -> "Findings":
        """Measures and compares results."""
        cells = measures_of(results)
        return cls(results, cells, pooled(results, cells), tests_of(results))

    @property
    def kinds(self) -> list[Kind]:
        """The kinds of text, in the order of the results."""
        return list(self.pooled)

    @property
    def names(self) -> dict[Kind, str]:
        """The name of each kind in reports."""
        return labels(self.kinds)

    @property
    def scores(self) -> list[str]:
        """The names of the scorers that were used."""
        return names_of_scores(self.results)


def values(results: Sequence[Result], name: str) -> dict[tuple[str, int], float]:
    """The `mean_logprob`, the `length` or a score of each alternative, by its prompt and seed."""
    found = {}
    for each in results:
        value = each.scores[name] if name in each.scores else getattr(each, name, None)
        if value is not None and each.is_whole:
            found[each.prompt, each.seed] = float(value)
    return found


def measure(
    results: Sequence[Result], *, diversity: dict[str, Any] | None = None, with_intervals: bool = True
) -> Measures:
    """The measures of a cell; None for each that the texts are too few for.

    diversity: the measures of diversity, if they are known already.
    """
    results = [each for each in results if each.is_whole]
    scored = [(result.mean_logprob, result.length) for result in results if result.mean_logprob is not None]
    n_scored = sum(length for _, length in scored)
    mean_logprob = sum(logprob * length for logprob, length in scored) / n_scored if n_scored else None
    scores = {name: list(values(results, name).values()) for name in names_of_scores(results)}
    intervals = _intervals(results, scores) if with_intervals else {}
    return Measures(
        count=len(results),
        mean_logprob=mean_logprob,
        perplexity=perplexity(mean_logprob),
        length=sum(result.length for result in results) / len(results) if results else None,
        scores={name: math.fsum(each) / len(each) if each else None for name, each in scores.items()},
        intervals=intervals,
        **(diversity or _diversity([result.text for result in results])),
    )


def _diversity(texts: list[str]) -> dict[str, Any]:
    return {
        "different": len(repeats(texts)),
        "distinct_1": distinct(texts, 1),
        "distinct_2": distinct(texts, 2),
        "self_bleu": self_bleu(texts),
    }


def _intervals(results: Sequence[Result], scores: dict[str, list[float]]) -> dict[str, Interval | None]:
    intervals = {name: interval(each) for name, each in scores.items()}
    intervals["length"] = interval([result.length for result in results])
    scored = [(result.mean_logprob, result.length) for result in results if result.mean_logprob is not None]
    if ends := interval([logprob for logprob, _ in scored], [length for _, length in scored]):
        intervals["mean_logprob"] = ends
        low, high = perplexity(ends[1]), perplexity(ends[0])
        intervals["perplexity"] = None if low is None or high is None else (low, high)
    return intervals


def names_of_scores(results: Sequence[Result]) -> list[str]:
    """The names of the scorers that were used, in their order."""
    return list(dict.fromkeys(name for each in results for name in each.scores))


def measures_of(results: Sequence[Result]) -> Cells:
    """The measures of each cell, in the order of the results."""
    cells: dict[tuple[str, Kind], list[Result]] = {}
    for each in results:
        cells.setdefault((each.prompt, each.kind), []).append(each)
    few = len(cells) <= MAX_INTERVALS
    return {cell: measure(each, with_intervals=few) for cell, each in cells.items()}


def pooled(results: Sequence[Result], cells: Cells) -> dict[Kind, Measures]:
    """The measures of each kind over all prompts.

    Likelihood, length and scores are means over all texts. Measures that compare texts with each other, as self-BLEU
    does, are means over the cells, because only texts of the same prompt are compared. `different` is the sum.
    """
    found = {}
    for kind in dict.fromkeys(each.kind for each in results):
        own = [measures for (_, other), measures in cells.items() if other == kind]
        diversity = {
            name: _mean([getattr(each, name) for each in own]) for name in ("distinct_1", "distinct_2", "self_bleu")
        }
        diversity["different"] = sum(each.different for each in own)
        found[kind] = measure([each for each in results if each.kind == kind], diversity=diversity)
    return found


def _mean(found: Sequence[float | None]) -> Any:
    known = [each for each in found if each is not None]
    return math.fsum(known) / len(known) if known else None


def tests_of(results: Sequence[Result]) -> list[Paired]:
    """Tests each kind against the first one, by prompt and seed, in each measure that a single alternative has."""
    kinds = list(dict.fromkeys(each.kind for each in results))
    names = labels(kinds)
    tests = []
    for name in ("mean_logprob", "length", *names_of_scores(results)):
        by_kind = {kind: values([each for each in results if each.kind == kind], name) for kind in kinds}
        if len({value for each in by_kind.values() for value in each.values()}) < 2:
            continue  # nothing differs here, and a needless test would weaken the others
        for kind in kinds[1:]:
            test = paired(names[kinds[0]], names[kind], name, by_kind[kinds[0]], by_kind[kind])
            tests += [test] if test else []
    return adjusted(tests)


def labels(kinds: Sequence[Kind]) -> dict[Kind, str]:
    """Names for kinds: of run, model and setting the parts in which the kinds differ; if they don't, the setting."""
    parts = [k for k in range(3) if len({kind[k] for kind in kinds}) > 1] or [2]
    return {kind: " · ".join(filter(None, (kind[k] for k in parts))) for kind in kinds}


def perplexity(mean_logprob: float | None) -> float | None:
    """e to the power of the negative mean log-probability; infinite if that is too large for a float."""
    if mean_logprob is None:
        return None
    try:
        return math.exp(-mean_logprob)
    except OverflowError:
        return math.inf


def repeats(texts: Sequence[str]) -> list[tuple[str, int]]:
    """The different texts, each with how often it comes, the most frequent first. Space around texts doesn't count."""
    return Counter(text.strip() for text in texts).most_common()


def distinct(texts: Sequence[str], n: int) -> float | None:
    """distinct-n of Li et al. 2016 (arXiv:1510.03055): the different n-grams, divided by all words; 0 to 1.

    Words are the parts of a text between spaces.
    """
    words = [text.split() for text in texts]
    total = sum(map(len, words))
    grams = {tuple(each[i : i + n]) for each in words for i in range(len(each) - n + 1)}
    return len(grams) / total if total else None


def self_bleu(texts: Sequence[str]) -> float | None:
    """Self-BLEU of Zhu et al. 2018 (arXiv:1802.01886): the mean BLEU of each text against all others, 0 to 100.

    BLEU is sacreBLEU's sentence score with up to 4-grams, or shorter ones if a text is shorter.
    """
    if len(texts) < 2:
        return None
    bleu = _bleu()
    others = [[*texts[:k], *texts[k + 1 :]] for k in range(len(texts))]
    scores = [bleu.sentence_score(text, rest).score for text, rest in zip(texts, others, strict=True)]
    return float(sum(scores) / len(scores))


@cache
def _bleu() -> Any:
    from sacrebleu.metrics.bleu import BLEU  # imported here, because it belongs to an extra

    return BLEU(effective_order=True)
