"""What texts of one kind have in common: how likely, how long, how much alike they are."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any


@dataclass(frozen=True)
class Result:
    """A finished alternative. length: in tokens. mean_logprob: of its tokens, by the model; None without tokens."""

    prompt: str
    setting: str
    seed: int
    text: str
    length: int
    finish_reason: str
    stop_reason: str | None
    mean_logprob: float | None


@dataclass(frozen=True)
class Measures:
    """What is measured of a cell: the alternatives of one prompt with one setting.

    count: alternatives. different: different texts among them.
    mean_logprob: the mean natural log-probability of all tokens, by the model and before the samplers.
    perplexity: e to the power of -mean_logprob.
    length: the mean, in tokens.
    distinct_1, distinct_2, self_bleu: see the functions.
    """

    count: int
    different: int
    mean_logprob: float | None
    perplexity: float | None
    length: float | None
    distinct_1: float | None
    distinct_2: float | None
    self_bleu: float | None


def measure(results: Sequence[Result]) -> Measures:
    """The measures of a cell; None where too little is there to measure."""
    texts = [result.text for result in results]
    scored = [(result.mean_logprob, result.length) for result in results if result.mean_logprob is not None]
    n_scored = sum(length for _, length in scored)
    mean_logprob = sum(logprob * length for logprob, length in scored) / n_scored if n_scored else None
    return Measures(
        count=len(results),
        different=len(repeats(texts)),
        mean_logprob=mean_logprob,
        perplexity=perplexity(mean_logprob),
        length=sum(result.length for result in results) / len(results) if results else None,
        distinct_1=distinct(texts, 1),
        distinct_2=distinct(texts, 2),
        self_bleu=self_bleu(texts),
    )


def perplexity(mean_logprob: float | None) -> float | None:
    """e to the power of the negative mean log-probability; infinite where that is too much for a float."""
    if mean_logprob is None:
        return None
    try:
        return math.exp(-mean_logprob)
    except OverflowError:
        return math.inf


def repeats(texts: Sequence[str]) -> list[tuple[str, int]]:
    """The different texts, each with how often it's there, the most frequent first. Space around them doesn't count."""
    return Counter(text.strip() for text in texts).most_common()


def distinct(texts: Sequence[str], n: int) -> float | None:
    """distinct-n of Li et al. 2016 (arXiv:1510.03055): the different n-grams, divided by all words; 0 to 1.

    Words are what stands between spaces.
    """
    words = [text.split() for text in texts]
    total = sum(map(len, words))
    grams = {tuple(each[i : i + n]) for each in words for i in range(len(each) - n + 1)}
    return len(grams) / total if total else None


def self_bleu(texts: Sequence[str]) -> float | None:
    """Self-BLEU of Zhu et al. 2018 (arXiv:1802.01886): the mean BLEU of each text against all others, 0 to 100.

    BLEU is sacreBLEU's sentence score with up to 4-grams, or less where a text is shorter.
    """
    if len(texts) < 2:
        return None
    bleu = _bleu()
    others = [[*texts[:k], *texts[k + 1 :]] for k in range(len(texts))]
    scores = [bleu.sentence_score(text, rest).score for text, rest in zip(texts, others, strict=True)]
    return float(sum(scores) / len(scores))


@cache
def _bleu() -> Any:
    from sacrebleu.metrics.bleu import BLEU  # here, because it belongs to an extra

    return BLEU(effective_order=True)
