"""Measures texts: probability, length and diversity, with intervals and tests of differences.

Statistics are computed over groups of texts that don't depend on each other (`groups_of`).
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, overload

CONFIDENCE = 0.95
MAX_EXACT = 13
"""A test of up to this number of groups tries all signs. With more it samples `RESAMPLES` of them."""

RESAMPLES = 9_999
SEED = 0
"""The seed of random choices. It is fixed, so that the same results give the same report."""

Interval = tuple[float, float]


def margin(values: Any) -> Any:
    """Compute half the width of Student's t 95% interval of the mean: `[..., group]` to `[...]`.

    It is NaN for fewer than two values, and for equal values, which have no spread to estimate from.
    """
    import numpy as np  # numpy and scipy are slow to import
    from scipy.special import stdtrit  # the quantile function of Student's t; scipy.stats takes 1 s to import

    n = values.shape[-1]
    if n < 2:
        return np.full(values.shape[:-1], np.nan)
    deviation = values.std(axis=-1, ddof=1)
    scale = np.abs(values).max(axis=-1)
    deviation = np.where(deviation > 1e-12 * scale, deviation, np.nan)  # 0.1 + 0.2 isn't 0.3
    return stdtrit(n - 1, (1 + CONFIDENCE) / 2) * deviation / math.sqrt(n)


def interval(values: Sequence[float]) -> Interval | None:
    """Compute Student's t 95% interval of the mean of groups, or None where `margin` is NaN."""
    import numpy as np

    half, mean = float(margin(np.array(values, dtype=float))), math.fsum(values) / max(1, len(values))
    return (mean - half, mean + half) if math.isfinite(half) else None


def p_value(differences: Any) -> Any:
    """Compute the p of a two-sided sign-flip test of paired differences: `[..., group]` to `[...]`.

    It is the probability of a mean as far from 0 if each difference had a random sign (Fisher 1935, section 21). Signs
    that give exactly the same mean count half (the mid-p of Lancaster 1961), since with scores of 0 and 1 many do; the
    observed signs and their opposites count whole. So with n groups p is at least 2 / 2 ** n.
    """
    import numpy as np

    n = differences.shape[-1]
    own = 2 / 2**n if n <= MAX_EXACT else 1 / (RESAMPLES + 1)  # the share of the observed signs and their opposites
    if n <= MAX_EXACT:
        signs = 1 - 2 * (np.arange(2**n)[:, None] >> np.arange(n) & 1)
    else:
        signs = np.random.default_rng(SEED).choice([-1, 1], size=(RESAMPLES + 1, n))
        signs[0] = 1  # the observed signs are among the possible ones
    sums = np.abs(differences @ signs.T.astype(float))
    observed = sums[..., :1]
    farther, as_far = (sums > observed * (1 + 1e-9)).mean(axis=-1), (sums >= observed * (1 - 1e-9)).mean(axis=-1)
    return np.where(observed[..., 0] > 0, (farther + as_far + own) / 2, 1.0)


@dataclass(frozen=True)
class Paired:
    """A comparison of two kinds of texts, group by group.

    Attributes:
        one, other: The names of the kinds.
        measure: The name of the measure.
        groups: The number of groups that both kinds have.
        difference: The mean of other - one.
        low, high: Its interval, or None.
        p: Its p.
        test: What p and the interval are.
        adjusted: p, adjusted for all tests of a report by Benjamini and Hochberg 1995.
    """

    one: str
    other: str
    measure: str
    groups: int
    difference: float
    low: float | None
    high: float | None
    p: float
    test: str = "sign-flip, 95% interval of Student's t"
    adjusted: float = math.nan


def paired(
    one: str, other: str, measure: str, values: Mapping[Any, float], others: Mapping[Any, float]
) -> Paired | None:
    """Compare the means of the groups that both have. Returns None for fewer than two groups."""
    import numpy as np

    differences = [others[group] - value for group, value in values.items() if group in others]
    if len(differences) < 2:
        return None
    low, high = interval(differences) or (None, None)
    difference = math.fsum(differences) / len(differences)
    return Paired(one, other, measure, len(differences), difference, low, high, float(p_value(np.array(differences))))


def adjusted(tests: Sequence[Paired]) -> list[Paired]:
    """Return the tests with their adjusted p."""
    result, least = list(tests), 1.0
    for rank, k in reversed([*enumerate(sorted(range(len(tests)), key=lambda k: tests[k].p), 1)]):
        least = min(least, tests[k].p * len(tests) / rank)
        result[k] = replace(tests[k], adjusted=least)
    return result


@dataclass(frozen=True)
class Result:
    """An alternative and where it comes from, as in results.jsonl. Before it has ended, it has no text.

    Attributes:
        length: The length in tokens.
        mean_logprob: The mean log-probability of its tokens, by the model; None without tokens.
        scores: The scores, by scorer.
        tokens: For each token `[text, logprob, [[text, logprob], ...]]`, with the top tokens in the inner list.
        run: The name of the folder, if a report is about several.
        first: The lowest seed of the alternatives that it depends on (`Spec.siblings`), or None.
        group: The name of the prompts that its prompt depends on (`Prompt.group`), or "": on none.
        messages: The messages of a chat; None for a text.
        relative: The names of scores that depend on the other texts of the same prompt and kind.
        direction: The line that only its prompt has, or None.
        key: A hash of everything that it depends on.
        fingerprint: What its texts depend on beside the request, with `--reproducible`.
    """

    prompt: str
    setting: str
    seed: int
    text: str = ""
    length: int = 0
    finish_reason: str = ""
    stop_reason: str | None = None
    mean_logprob: float | None = None
    model: str = ""
    prompt_text: str = ""
    variables: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    scores: dict[str, float | None] = field(default_factory=dict)
    tokens: list[Any] = field(default_factory=list)
    run: str = ""
    first: int | None = None
    group: str = ""
    messages: list[dict[str, Any]] | None = None
    relative: list[str] = field(default_factory=list)
    direction: str | None = None
    key: str = ""
    fingerprint: str | None = None

    @property
    def name(self) -> tuple[str, str, str, int]:
        """Its name among the results of a run."""
        return self.model, self.prompt, self.setting, self.seed

    @property
    def row(self) -> dict[str, Any]:
        """Its object in results.jsonl."""
        return {name: value for name, value in vars(self).items() if name != "run"}

    def __str__(self) -> str:
        return f"{self.prompt}, {self.setting}, seed {self.seed}"

    @property
    def kind(self) -> "Kind":
        """The kind of the text. Measures and tests compare kinds."""
        return self.run, self.model, self.setting


Kind = tuple[str, str, str]
"""A run, a model and a setting."""

Place = tuple[str, int]
"""A prompt and a seed."""

Group = tuple[str, int | None]
"""A group of prompts and the lowest seed of a group of texts, or None for all texts of these prompts."""

Means = dict[Group, float]
"""The mean of a measure in each group."""

Cells = dict[tuple[str, Kind], "Measures"]
"""The measures of the texts of each prompt and kind."""


@dataclass(frozen=True)
class Measures:
    """The measures of some texts. Means are means of the groups' means, so that tests of groups can't contradict them.

    Attributes:
        count: The number of texts.
        values: The measures, by name; None for too few texts. `mean_logprob`: the mean of the texts' mean natural
            log-probabilities, by the model and before the samplers. `perplexity`: e to the power of minus that.
            `length`: the mean length in tokens. `different`: the number of different texts. `distinct_1`,
            `distinct_2`: `distinct`. `self_bleu`: `self_bleu`. The others are means of scores.
        intervals: The intervals of the means, by their names.
    """

    count: int
    values: dict[str, float | None]
    intervals: dict[str, Interval | None]


@dataclass(frozen=True)
class Findings:
    """The contents of a report.

    Attributes:
        cells: The measures of each prompt and kind.
        pooled: The measures of each kind, over all prompts.
        tests: The tests of each kind against the first one.
        groups: The groups of texts that don't depend on each other.
    """

    results: list[Result]
    cells: Cells
    pooled: dict[Kind, Measures]
    tests: list[Paired]
    groups: list[Group]

    @classmethod
    def of(cls, results: list[Result], tested: Iterable[tuple[str, Paired]] = ()) -> "Findings":
        """Measure and compare results. `tested` has tests that were made otherwise, each with the name of its run."""
        groups = groups_of(results)
        means = shared_means(results, groups)
        cells = measures_of(results)
        whole = pooled(results, cells, means)
        if len({each.prompt for each in results}) == 1:  # then both are the same, and have the same intervals
            cells = {(prompt, kind): whole[kind] for prompt, kind in cells}
        tests = tests_of(means)
        names = {(run, setting): name for (run, _model, setting), name in labels([*whole]).items()}
        instead = {
            (names.get((run, each.one)), names.get((run, each.other)), each.measure): each for run, each in tested
        }
        if instead:
            tests = adjusted([_instead(each, instead.get((each.one, each.other, each.measure))) for each in tests])
        return cls(results, cells, whole, tests, list(dict.fromkeys(groups.values())))

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


def groups_of(results: Iterable[Result]) -> dict[Place, Group]:
    """Return the group of each prompt and seed. Texts of different groups don't depend on each other.

    Forks of one text, and one text with several rows of variables, are prompts of one group, as is what the spec gives
    the same `group`. With several groups of prompts, each is a group, and findings hold for prompts like these. With
    one, a group is a seed, or the seeds of a request whose alternatives depend on each other, in any prompt and kind.
    """
    group_of: dict[Place, str] = {}
    firsts: dict[int, int] = {}
    for each in results:
        group_of[each.prompt, each.seed] = each.group or each.prompt
        first = each.seed if each.first is None else each.first
        firsts[each.seed] = min(first, firsts.get(each.seed, first))
    if len({*group_of.values()}) > 1:
        return {place: (name, None) for place, name in group_of.items()}
    for seed, first in sorted(firsts.items()):
        firsts[seed] = firsts.get(first, first)  # what that one depends on, in another run
    return {(prompt, seed): (name, firsts[seed]) for (prompt, seed), name in group_of.items()}


def group_means(results: Iterable[Result], name: str, groups: Mapping[Place, Group]) -> Means:
    """Return the means of `mean_logprob`, `length` or a score, for each group with values.

    All texts of a prompt are one group for a score that depends on the others.
    """
    found: dict[Group, list[float]] = {}
    for each in results:
        value = each.scores[name] if name in each.scores else getattr(each, name, None)
        if value is not None:
            group = groups[each.prompt, each.seed]
            found.setdefault((group[0], None) if name in each.relative else group, []).append(float(value))
    return {group: _mean(values) for group, values in found.items()}


def shared_means(results: Sequence[Result], groups: Mapping[Place, Group]) -> dict[str, dict[Kind, Means]]:
    """Return the means of the groups, for each measure of single texts and each kind.

    Only groups that all kinds have are included, so that means are comparable. If there are none, each kind has all of
    its own groups.
    """
    by_kind: dict[Kind, list[Result]] = {}
    for each in results:
        by_kind.setdefault(each.kind, []).append(each)
    found = {}
    for name in names_of_means(results):
        means = {kind: group_means(own, name, groups) for kind, own in by_kind.items()}
        common = set.intersection(*({*each} for each in means.values()))
        if common:
            means = {kind: {group: each[group] for group in each if group in common} for kind, each in means.items()}
        found[name] = means
    return found


def measure(
    results: Sequence[Result], *, means: dict[str, Means] | None = None, diversity: dict[str, Any] | None = None
) -> Measures:
    """Compute the measures of texts. A measure is None if there are too few texts.

    The means of the groups and the measures of diversity are computed from these texts, unless they are given.
    """
    groups = groups_of(results)
    means = means or {name: group_means(results, name, groups) for name in names_of_means(results)}
    values = diversity or _diversity([each.text for each in results])
    values |= {name: _mean([*each.values()]) for name, each in means.items()}  # last: a score may be called self_bleu
    values["perplexity"] = perplexity(values["mean_logprob"])
    intervals = {name: interval([*each.values()]) for name, each in means.items()}
    if ends := intervals["mean_logprob"]:
        intervals["perplexity"] = perplexity(ends[1]), perplexity(ends[0])
    return Measures(len(results), values, intervals)


def _diversity(texts: list[str]) -> dict[str, Any]:
    return {
        "different": len(repeats(texts)),
        "distinct_1": distinct(texts, 1),
        "distinct_2": distinct(texts, 2),
        "self_bleu": self_bleu(texts),
    }


def names_of_scores(results: Sequence[Result]) -> list[str]:
    """Return the names of the scorers, in order."""
    return list(dict.fromkeys(name for each in results for name in each.scores))


def names_of_means(results: Sequence[Result]) -> list[str]:
    """Return the names of the measures of single texts."""
    return ["mean_logprob", "length", *names_of_scores(results)]


def measures_of(results: Sequence[Result]) -> Cells:
    """Compute the measures of each prompt and kind, in the order of the results."""
    cells: dict[tuple[str, Kind], list[Result]] = {}
    for each in results:
        cells.setdefault((each.prompt, each.kind), []).append(each)
    return {cell: measure(each) for cell, each in cells.items()}


def pooled(results: Sequence[Result], cells: Cells, means: dict[str, dict[Kind, Means]]) -> dict[Kind, Measures]:
    """Compute the measures of each kind over all prompts, which have equal weight.

    Measures that compare texts with each other, such as self-BLEU, are means over prompts. `different` is a sum.
    """
    found = {}
    for kind in dict.fromkeys(each.kind for each in results):
        own = [measures for (_, other), measures in cells.items() if other == kind]
        diversity = {
            name: _mean([each.values[name] for each in own]) for name in ("distinct_1", "distinct_2", "self_bleu")
        }
        diversity["different"] = sum(each.values["different"] or 0 for each in own)
        of_kind = {name: by_kind[kind] for name, by_kind in means.items()}
        found[kind] = measure([each for each in results if each.kind == kind], means=of_kind, diversity=diversity)
    return found


def _mean(values: Sequence[float | None]) -> Any:
    known = [each for each in values if each is not None]
    return math.fsum(known) / len(known) if known else None


def tests_of(means: dict[str, dict[Kind, Means]]) -> list[Paired]:
    """Test each kind against the first one, group by group, for each measure of single texts."""
    tests = []
    for name, by_kind in means.items():
        if len({value for each in by_kind.values() for value in each.values()}) < 2:
            continue  # all values are equal, and a needless test would weaken the others
        if len({frozenset(each) for each in by_kind.values()}) > 1:
            continue  # the means in the tables are of different groups, so a test could contradict them
        first, *others = by_kind
        names = labels([*by_kind])
        found = [paired(names[first], names[kind], name, by_kind[first], by_kind[kind]) for kind in others]
        tests += [each for each in found if each]
    return adjusted(tests)


def _instead(one: Paired, other: Paired | None) -> Paired:
    return replace(other, one=one.one, other=one.other) if other else one


def labels(kinds: Sequence[Kind]) -> dict[Kind, str]:
    """Name kinds by the parts of run, model and setting in which they differ, or by the setting."""
    parts = [k for k in range(3) if len({kind[k] for kind in kinds}) > 1] or [2]
    return {kind: " · ".join(filter(None, (kind[k] for k in parts))) for kind in kinds}


@overload
def perplexity(mean_logprob: float) -> float: ...
@overload
def perplexity(mean_logprob: float | None) -> float | None: ...
def perplexity(mean_logprob: float | None) -> float | None:
    """Return e to the power of the negative mean log-probability; infinity if that overflows."""
    if mean_logprob is None:
        return None
    try:
        return math.exp(-mean_logprob)
    except OverflowError:
        return math.inf


def repeats(texts: Sequence[str]) -> list[tuple[str, int]]:
    """Count equal texts, ignoring surrounding space, the most frequent first."""
    return Counter(text.strip() for text in texts).most_common()


def distinct(texts: Sequence[str], n: int) -> float | None:
    """Compute distinct-n of Li et al. 2016 (arXiv:1510.03055): different n-grams divided by all words, 0 to 1.

    Words are separated by spaces.
    """
    words = [text.split() for text in texts]
    total = sum(map(len, words))
    grams = {tuple(each[i : i + n]) for each in words for i in range(len(each) - n + 1)}
    return len(grams) / total if total else None


def self_bleu(texts: Sequence[str]) -> float | None:
    """Compute self-BLEU of Zhu et al. 2018 (arXiv:1802.01886): the mean BLEU of each text against the others, 0 to 100.

    BLEU is sacreBLEU's sentence score with up to 4-grams, or fewer for shorter texts.
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
