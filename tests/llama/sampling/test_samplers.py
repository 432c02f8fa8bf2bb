"""Each sampler's distribution over thousands of tokens from one row of logits, against an independent numpy reference.

The seeds are fixed, so a test passes always or never.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
from driver import request, run, stops, texts
from tiny_model import EOS, N_VOCAB, write_tiny_model

from srb.engine.backend import Batch
from srb.engine.engine import Engine
from srb.engine.sampling_params import SamplingParams
from srb.errors import InvalidRequestError
from srb.llama.backend import LlamaBackend
from srb.llama.sampling.own_samplers import Mirostat, smoothing
from srb.llama.vocabulary import Vocabulary
from srb.options.settings import Settings

DRAWS = 5_000
FRESH_DRAWS = 1_500
"""Where each draw has a sampler of its own, which takes much longer than the draw."""

PROMPT = tuple(b"the cat and the dog and the cat")

Floats = np.ndarray[Any, np.dtype[np.float64]]


@pytest.fixture(scope="module")
def vocabulary() -> Iterator[Vocabulary]:
    """That of the default model: words of a language, and not the bytes of the tiny model."""
    vocabulary = Vocabulary(Settings())
    yield vocabulary
    vocabulary.close()


class Row:
    """One row of logits in a context, and samplers on it."""

    def __init__(self, backend: LlamaBackend) -> None:
        self.backend = backend
        batch = Batch()
        row = batch.add(PROMPT, 0, 0, outputs=1)
        backend.decode(batch, None)
        self.row = backend.logits(row)
        self.logits: Floats = self.row.astype(np.float64)

    def draw(self, n: int = DRAWS, biases: Mapping[int, float] | None = None, **params: Any) -> Counter[int]:
        """The n tokens that one sampler samples. biases: of each step, as a constraint has them."""
        return self._draw(1, n, PROMPT, params, biases)

    def draw_first(self, seen: tuple[int, ...] = PROMPT, **params: Any) -> Counter[int]:
        """The first token of each of many samplers that have seen these tokens."""
        return self._draw(FRESH_DRAWS, 1, seen, params)

    def _draw(
        self,
        n_samplers: int,
        n: int,
        seen: tuple[int, ...],
        params: dict[str, Any],
        biases: Mapping[int, float] | None = None,
    ) -> Counter[int]:
        result: Counter[int] = Counter()
        compiled = self.backend.compile((SamplingParams(**params),))
        for seed in range(n_samplers):
            sampler = self.backend.sampler(SamplingParams(seed=seed, **params), compiled, seen, ())
            result.update(sampler.sample(self.row, biases=biases) for _ in range(n))
            sampler.close()
        compiled.close()
        return result


@pytest.fixture
def row(load: Callable[..., LlamaBackend]) -> Row:
    return Row(load())


def softmax(logits: Floats) -> Floats:
    weights = np.exp(logits - logits.max())
    return np.asarray(weights / weights.sum())


def masked(logits: Floats, keep: Any) -> Floats:
    """The logits with all but some tokens ruled out."""
    result = np.full_like(logits, -np.inf)
    result[keep] = logits[keep]
    return result


def top_p(logits: Floats, p: float) -> Floats:
    order = np.argsort(-logits)
    n = int(np.searchsorted(np.cumsum(softmax(logits)[order]), p)) + 1
    return masked(logits, order[:n])


def typical(logits: Floats, p: float) -> Floats:
    probabilities = softmax(logits)
    surprise = np.where(probabilities > 0, -np.log(np.maximum(probabilities, 1e-300)), np.inf)
    entropy = (probabilities * np.where(probabilities > 0, surprise, 0)).sum()
    order = np.argsort(np.abs(surprise - entropy))
    n = int(np.searchsorted(np.cumsum(probabilities[order]), p, side="right")) + 1
    return masked(logits, order[:n])


def penalized(logits: Floats, last: tuple[int, ...], repeat: float, frequency: float, presence: float) -> Floats:
    result = logits.copy()
    for token, count in Counter(last).items():
        result[token] = result[token] * repeat if result[token] <= 0 else result[token] / repeat
        result[token] -= count * frequency + presence
    return result


def assert_agrees(sampled: Counter[int], expected: Floats) -> None:
    """A chi-square test; rare tokens are grouped. Fails once in a million for a true match."""
    n = sum(sampled.values())
    assert all(expected[token] > 0 for token in sampled), "a token was sampled that the reference rules out"
    counts, wanted = np.zeros(len(expected)), expected * n
    for token, count in sampled.items():
        counts[token] = count
    rare = wanted < 10
    observed = [*counts[~rare], counts[rare].sum()]
    wanted_bins = [*wanted[~rare], wanted[rare].sum()]
    bins = [(seen, should) for seen, should in zip(observed, wanted_bins, strict=True) if should > 0]
    chi2 = sum((seen - should) ** 2 / should for seen, should in bins)
    df = len(bins) - 1
    if df == 0:
        return
    # Wilson and Hilferty's normal approximation of the chi-square distribution (PNAS 17, 1931).
    z = ((chi2 / df) ** (1 / 3) - (1 - 2 / (9 * df))) / math.sqrt(2 / (9 * df))
    assert z < 4.75, f"chi2 {chi2:.1f} with {df} degrees of freedom"


ONLY: dict[str, Any] = {"top_k": 0, "top_p": 1, "min_p": 0, "temperature": 1}


def assert_independent(texts: Counter[tuple[int, ...]]) -> None:
    """A chi-square test that no token of a text depends on those before it. Fails once in a million if that is true."""
    n, places = sum(texts.values()), range(len(next(iter(texts))))
    single = [Counter[int]() for _ in places]
    for text, count in texts.items():
        for place, token in enumerate(text):
            single[place][token] += count
    wanted = {
        text: n * math.prod(single[k][token] / n for k, token in enumerate(text)) for text in itertools.product(*single)
    }
    chi2 = sum((texts[text] - should) ** 2 / should for text, should in wanted.items())
    df = len(wanted) - 1 - sum(len(each) - 1 for each in single)
    z = ((chi2 / df) ** (1 / 3) - (1 - 2 / (9 * df))) / math.sqrt(2 / (9 * df))
    assert z < 4.75, f"chi2 {chi2:.1f} with {df} degrees of freedom"


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"xtc_probability": 0.5, "xtc_threshold": 0.1},
        {"mirostat": 1, "mirostat_eta": 0},
        {"mirostat": 2, "mirostat_eta": 0},
        {"adaptive_target": 0.3, "adaptive_decay": 0.99},  # so it learns little from two tokens
        {"grammar": "root ::= [a-z]*"},
        {"excluded": True},
        {"banned": True},
    ],
    ids=lambda params: next(iter(params), "plain"),
)
def test_no_token_depends_on_the_random_numbers_of_another_one(row: Row, params: dict[str, Any]) -> None:
    """Of triples of tokens, and so of pairs: samplers with seeds from 0 on each begin a text."""
    best = [int(token) for token in np.argsort(-row.logits) if ord("a") <= token <= ord("z")][:4]
    bias = {token: 20.0 - row.logits[token] - 0.3 * place for place, token in enumerate(best)}
    fields = {name: value for name, value in params.items() if name not in ("excluded", "banned")}
    given: dict[str, Any] = {}
    if "excluded" in params:
        given["excluded"] = best[:1]
    if "banned" in params:
        given["biases"] = {best[0]: -math.inf}
    if "grammar" in params:  # refuses one of them each time, so that the chain samples twice
        fields["grammar"] = f"root ::= [{''.join(map(chr, best[1:]))}]*"
    options = SamplingParams(**ONLY | {"logit_bias": tuple(bias.items()), "top_k": 4} | fields)
    compiled, texts = row.backend.compile((options,)), Counter[tuple[int, ...]]()
    for seed in range(800):
        sampler = row.backend.sampler(replace(options, seed=seed), compiled, PROMPT, ())
        texts[tuple(sampler.sample(row.row, **given) for _ in range(3))] += 1
        sampler.close()
    compiled.close()
    assert_independent(texts)


@pytest.mark.parametrize("spared", [EOS, ord("\n")])
@pytest.mark.parametrize("probability", [0.4, 1])
@pytest.mark.parametrize("place", [0, 3, 200])
def test_xtc_and_the_ends_of_texts_and_lines(row: Row, spared: int, probability: float, place: int) -> None:
    threshold = 0.02
    order = [int(token) for token in np.argsort(-row.logits) if token not in (EOS, ord("\n"))]
    # The other one of the two is far below the threshold.
    biases = [(EOS, -100.0), (ord("\n"), -100.0)]
    wanted = row.logits[order[place]] - 0.01
    biases = [(t, float(np.clip(wanted - row.logits[t], -100, 100)) if t == spared else b) for t, b in biases]
    logits = row.logits.copy()
    for token, bias in biases:
        logits[token] += bias
    probabilities = softmax(logits)
    above = [int(token) for token in np.argsort(-logits) if probabilities[token] >= threshold]
    assert len(above) > 2
    without = softmax(masked(logits, [t for t in range(N_VOCAB) if t not in above[:-1]]))
    expected = probabilities if spared in above[:-1] else probability * without + (1 - probability) * probabilities
    params = {"xtc_probability": probability, "xtc_threshold": threshold, "logit_bias": tuple(biases)}
    assert_agrees(row.draw_first(**ONLY | params), expected)


@pytest.mark.parametrize(("repeat", "frequency", "presence"), [(1.5, 0, 0), (1, 0.4, 0), (1, 0, 0.9), (1.2, 0.3, 0.5)])
@pytest.mark.parametrize("last_n", [-1, 8])
def test_penalties_count_the_prompts_tokens(
    row: Row, last_n: int, repeat: float, frequency: float, presence: float
) -> None:
    likeliest = [int(token) for token in np.argsort(-row.logits)]
    seen = tuple(likeliest[k] for k in (0, 1, 2, 2, 3, 3, 4, 5, 5))  # penalties of rare tokens wouldn't be noticed
    last = seen if last_n == -1 else seen[-last_n:]
    names = {"repeat_penalty": repeat, "frequency_penalty": frequency, "presence_penalty": presence}
    sampled = row.draw_first(seen, **ONLY | names, repeat_last_n=last_n)
    assert_agrees(sampled, softmax(penalized(row.logits, last, repeat, frequency, presence)))


def above_min_p(logits: Floats, p: float) -> Floats:
    return masked(logits, softmax(logits) >= p * softmax(logits).max())


def within_sigma(logits: Floats, n: float) -> Floats:
    return masked(logits, logits >= logits.max() - n * logits[logits > -np.inf].std())


def dynamic(logits: Floats, temperature: float, spread: float) -> Floats:
    probabilities = softmax(logits[logits > -np.inf])
    entropy = -(probabilities * np.log(probabilities)).sum() / np.log(len(probabilities))
    return np.asarray(logits / (temperature - spread + entropy * 2 * spread))


def mirostat_1(logits: Floats, tau: float) -> Floats:
    """The formulas of Basu et al. (ICLR 2021) for the first token, with logarithms."""
    p = -np.sort(-softmax(logits[logits > logits.max() - 80]))
    i = np.arange(1, min(100, len(p)))
    t, b = np.log((i + 1) / i), np.log(p[i - 1] / p[i])
    s = (t * b).sum() / (t * t).sum()
    k = 2 ** ((2 * tau + math.log2((s - 1) / (1 - len(logits) ** (1 - s)))) / s)
    return masked(logits, np.argsort(-logits)[: max(1, int(min(k, len(p))))])


Reference = Callable[[Floats], Floats]

REFERENCES: dict[str, tuple[dict[str, Any], Reference]] = {
    "temperature": ({"temperature": 2.5}, lambda logits: logits / 2.5),
    "top_k": ({"top_k": 20}, lambda logits: masked(logits, np.argsort(-logits)[:20])),
    "top_p": ({"top_p": 0.7}, lambda logits: top_p(logits, 0.7)),
    "min_p": ({"min_p": 0.1}, lambda logits: above_min_p(logits, 0.1)),
    "typical_p": ({"typical_p": 0.6}, lambda logits: typical(logits, 0.6)),
    "top_n_sigma": ({"top_n_sigma": 1.2}, lambda logits: within_sigma(logits, 1.2)),
    "dynatemp": ({"temperature": 2, "dynatemp_range": 1.5}, lambda logits: dynamic(logits, 2, 1.5)),
    "smoothing": (
        {"smoothing_factor": 0.3},
        lambda logits: logits.max() - 0.3 * (logits - logits.max()) ** 2,
    ),
    "smoothing with a curve": (
        {"smoothing_factor": 0.3, "smoothing_curve": 2},
        lambda logits: logits.max() - 0.15 * ((logits - logits.max()) ** 2 - (logits - logits.max()) ** 3),
    ),
    "typical_p after top_n_sigma": (
        {"top_n_sigma": 1.2, "typical_p": 0.6},
        lambda logits: typical(within_sigma(logits, 1.2), 0.6),
    ),
    "dynatemp after top_n_sigma": (
        {"top_n_sigma": 1.2, "temperature": 2, "dynatemp_range": 1.5},
        lambda logits: dynamic(within_sigma(logits, 1.2), 2, 1.5),
    ),
    "mirostat 1": ({"mirostat": 1, "mirostat_tau": 3, "mirostat_eta": 0}, lambda logits: mirostat_1(logits, 3)),
    "mirostat 1 for all": ({"mirostat": 1, "mirostat_tau": 100, "mirostat_eta": 0}, lambda logits: logits),
    "mirostat 2": ({"mirostat": 2, "mirostat_tau": 100, "mirostat_eta": 0}, lambda logits: logits),
}
"""Each sampler's fields, and what it does to logits of which some are -inf."""


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize("ban", ["none", "bias", "bias of -100", "ignore_eos", "min_tokens", "grammar", "one step"])
def test_a_sampler_with_banned_tokens(row: Row, name: str, ban: str) -> None:
    fields, reference = REFERENCES[name]
    likeliest = [int(token) for token in np.argsort(-row.logits)[:40:3]]
    row.logits[EOS] = row.row[EOS] = row.logits.max() - 0.5  # so that its ban matters
    logits = row.logits.copy()
    params: dict[str, Any] = ONLY | fields
    allowed: list[int] = []
    biases: dict[int, float] = {}
    match ban:
        case "bias":
            logits[likeliest] = -np.inf
            params["logit_bias"] = tuple((token, -math.inf) for token in likeliest)
        case "bias of -100":  # the probability is 0 as a float
            least = [int(token) for token in np.argsort(row.logits)[:3]]
            logits[least] -= 100
            params["logit_bias"] = tuple((token, -100.0) for token in least)
        case "ignore_eos" | "min_tokens":
            logits[EOS] = -np.inf
            params[ban] = True if ban == "ignore_eos" else 10**6
        case "grammar":
            row.logits[EOS] = row.row[EOS] = logits[EOS] = -100  # the grammar goes on
            params["grammar"] = "root ::= [a-z]*"
            allowed = [*range(ord("a"), ord("z") + 1), EOS]
        case "one step":
            logits[likeliest] = -np.inf
            biases = dict.fromkeys(likeliest, -math.inf)
    expected = softmax(reference(logits))
    if ban == "grammar":  # the chain samples again if the grammar refuses its token
        rest = 1 - expected[allowed].sum()
        expected = masked(expected, allowed).clip(0) + rest * softmax(reference(masked(logits, allowed)))
    assert_agrees(row.draw(biases=biases, **params), expected)


def test_the_default_chain_and_another_order(row: Row) -> None:
    narrowed = top_p(masked(row.logits, np.argsort(-row.logits)[:40]), 0.95)
    probabilities = softmax(narrowed)
    narrowed = masked(narrowed, probabilities >= 0.05 * probabilities.max())
    assert_agrees(row.draw(), softmax(narrowed / 0.8))
    hot_first = softmax(top_p(row.logits / 3, 0.6))
    assert_agrees(row.draw(temperature=3, top_p=0.6, samplers=("temperature", "top_p")), hot_first)


@pytest.mark.parametrize("more", [{}, {"samplers": ("top_p",)}, {"dynatemp_range": 4}], ids=str)
def test_temperature_0_takes_the_likeliest_token(row: Row, more: dict[str, Any]) -> None:
    assert set(row.draw(50, **ONLY | {"temperature": 0} | more)) == {int(row.logits.argmax())}


@pytest.mark.parametrize(("threshold", "min_keep"), [(0, 0), (0.01, 5)])
def test_xtc_keeps_the_least_probable_of_the_tokens_that_are_left(row: Row, threshold: float, min_keep: int) -> None:
    banned = [int(token) for token in np.argsort(-row.logits)[3:]] + [EOS, ord("\n")]
    biases = tuple((token, -math.inf) for token in {*banned})
    expected = masked(row.logits, [token for token in range(N_VOCAB) if token not in banned])
    if not min_keep:
        expected = masked(expected, expected == expected[expected > -np.inf].min())
    params = {"xtc_probability": 1, "xtc_threshold": threshold, "min_keep": min_keep}
    assert_agrees(row.draw(**ONLY | params, logit_bias=biases), softmax(expected))


def test_min_keep(row: Row) -> None:
    assert len(row.draw(**ONLY | {"top_p": 0.0001, "temperature": 5}, min_keep=7)) == 7


def test_smoothing_leaves_what_is_banned() -> None:
    assert (smoothing(0.3, 2, np.full(3, -np.inf, np.float32)) == -np.inf).all()


def test_mirostat_goes_back_before_the_tokens_that_it_has_seen() -> None:
    """As in a text that is resumed after the end of its process, and rewinds further than that."""
    mirostat = Mirostat(N_VOCAB, 5, 0.1)
    mirostat.accept(-1)
    mirostat.go_back(2)
    mirostat.accept(-1)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("tau", [1.5, 4])
def test_mirostat_keeps_the_surprise_near_tau(row: Row, version: int, tau: float) -> None:
    surprises, compiled = [], row.backend.compile((SamplingParams(),))
    params = SamplingParams(seed=1, mirostat=version, mirostat_tau=tau, temperature=1)
    sampler = row.backend.sampler(params, compiled, PROMPT, ())
    for _ in range(2_000):
        token = sampler.sample(row.row)
        surprises.append(-sampler.logprobs(token, 0)[0] / math.log(2))
    sampler.close()
    compiled.close()
    assert abs(np.mean(surprises[-1_000:]) - tau) < 0.1


def test_distinct_draws_without_replacement_in_proportion(row: Row) -> None:
    params: dict[str, Any] = {"top_k": 6, "top_p": 1, "min_p": 0, "temperature": 1.5}
    p = softmax(masked(row.logits, np.argsort(-row.logits)[:6]) / 1.5)
    second = np.array(
        [sum(p[i] * p[j] / (1 - p[i]) for i in range(N_VOCAB) if i != j and p[i]) for j in range(N_VOCAB)]
    )
    compiled = row.backend.compile((SamplingParams(**params),))
    sampled: tuple[Counter[int], Counter[int]] = (Counter(), Counter())
    for seed in range(0, 2 * FRESH_DRAWS, 2):
        taken: set[int] = set()
        for k in range(2):
            sampler = row.backend.sampler(SamplingParams(seed=seed + k, **params), compiled, (), ())
            token = sampler.sample(row.row, taken)
            sampler.close()
            taken.add(token)
            sampled[k][token] += 1
        assert len(taken) == 2
    compiled.close()
    assert_agrees(sampled[0], p)
    assert_agrees(sampled[1], second)


def test_dry_breaks_a_repetition(load: Callable[..., LlamaBackend]) -> None:
    engine = Engine(load())
    text = "abcabcabcabcabcabc"
    biases = ((97, 30.0), (98, 29.0), (99, 28.0))
    loop: dict[str, Any] = {"temperature": 0, "max_tokens": 12, "ignore_eos": True, "logit_bias": biases}
    assert texts(run(engine, request(text, 1, **loop)))[0] == "a" * 12
    dry = texts(run(engine, request(text, 1, dry_multiplier=10, **loop)))[0]
    assert "aaaa" not in dry


LETTERS = tuple("abcdefghijklmnopqrstuvwxyz")


@pytest.mark.parametrize(
    ("lists", "worst"),
    [
        ([LETTERS], "'e', which has 3"),
        ([tuple("e" + letter for letter in LETTERS)], "'e"),  # few tokens have these, but many begin one
        ([("s" + letter * 39,) for letter in LETTERS], "'s"),
        ([("e\0x", "\0")], "'e"),  # llama.cpp reads a text up to its zero byte
        ([(f"{i}", f"x{i}", f"y{i}", f"z{i}") for i in range(33)], "more branches the same"),
    ],
)
def test_breakers_that_would_take_long_are_refused(
    vocabulary: Vocabulary, lists: list[tuple[str, ...]], worst: str
) -> None:
    branches = [SamplingParams(dry_multiplier=1, dry_sequence_breakers=each) for each in lists]
    with pytest.raises(InvalidRequestError, match="dry_sequence_breakers.*the limit is.*" + worst) as refused:
        vocabulary.check(tuple(branches), n_cells=1024)
    assert refused.value.param == "dry_sequence_breakers"


def test_usual_breakers_are_taken(vocabulary: Vocabulary) -> None:
    usual = ("\n", ":", '"', "*", "<|im_end|>", "### Instruction:", "user", "Anna", "Seraphina", "[INST]", "\nUSER:")
    each = [SamplingParams(dry_multiplier=1 + i, dry_sequence_breakers=usual) for i in range(8)]
    vocabulary.check(tuple(each + [SamplingParams(dry_multiplier=i + 0.5) for i in range(8)]), n_cells=1024)
    off = SamplingParams(dry_sequence_breakers=LETTERS)
    vocabulary.check((off,), n_cells=1024)


def test_min_tokens_holds_the_end_back(load: Callable[..., LlamaBackend]) -> None:
    engine = Engine(load())
    eager: dict[str, Any] = {"temperature": 0, "logit_bias": ((EOS, 100.0),), "max_tokens": 20}
    assert stops(run(engine, request(**eager)))[0].length == 1
    assert stops(run(engine, request(min_tokens=5, **eager)))[0].length == 6
    assert stops(run(engine, request(min_tokens=5, ignore_eos=True, **eager)))[0].length == 20
    eager = {"logit_bias": ((65, 100.0),), "max_tokens": 20, "stop_token_ids": (65,)}
    for ignore_eos in (False, True):
        (stop,) = stops(run(engine, request(min_tokens=5, ignore_eos=ignore_eos, **eager))).values()
        assert (stop.length, stop.stop_reason) == (6, 65)
    beams = replace(request(min_tokens=5, **eager), search="beam", beams=2, early_stopping=True)
    (stop,) = stops(run(engine, beams)).values()
    assert (stop.length, stop.stop_reason) == (6, 65)


def test_the_samplers_of_all_alternatives_see_the_prompt_once(
    load: Callable[..., LlamaBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    accept = llama_cpp.llama_sampler_accept

    def see(sampler: Any, token: int) -> None:
        seen.append(token)
        accept(sampler, token)

    monkeypatch.setattr(llama_cpp, "llama_sampler_accept", see)
    backend, prompt = load(), tuple(range(1, 201))
    settings = {
        "repeat_penalty": 1.2,
        "repeat_last_n": -1,
        "dry_multiplier": 0.5,
        "dry_penalty_last_n": 100,
        "top_k": 1,
    }
    branches = SamplingParams(**settings, seed=1).alternatives(6)  # type: ignore[arg-type]
    compiled = backend.compile(branches)
    samplers = [backend.sampler(params, compiled, prompt, ()) for params in branches]
    assert seen == [*prompt, *prompt[-100:]]
    other = prompt[:50]
    samplers += [backend.sampler(params, compiled, other, ()) for params in branches]
    assert seen[300:] == [*other, *other]
    compiled.close()
    logits = np.ones(N_VOCAB, np.float32)
    greedy = [sampler.sample(logits) for sampler in samplers]
    assert all(token not in prompt for token in greedy[:6])
    for sampler in samplers:
        sampler.close()


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"repeat_penalty": 1.5, "frequency_penalty": 0.3, "presence_penalty": -0.5, "repeat_last_n": 40},
        {"repeat_penalty": 0.5, "repeat_last_n": -1},  # what was seen becomes likelier
        {"dry_multiplier": 2.0, "dry_allowed_length": 1, "dry_penalty_last_n": -1},
        {"logit_bias": tuple((token, 8.0) for token in range(500, 540)), "ignore_eos": True},
        {"min_tokens": 20, "logit_bias": ((EOS, 30.0),)},
        {"samplers": ("top_k", "penalties", "temperature"), "repeat_penalty": 1.5},
        {"top_n_sigma": 1.0},
        {"smoothing_factor": 0.2},
    ],
)
def test_a_chain_with_top_k_draws_from_few_tokens_what_it_draws_from_all(
    load: Callable[..., LlamaBackend], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, params: dict[str, Any]
) -> None:
    backend = load(model=write_tiny_model(tmp_path / "model.gguf", n_vocab=4096))
    rng = np.random.default_rng(0)
    rows = [(3 * rng.normal(size=4096)).astype(np.float32) for _ in range(60)]
    sampled = []
    for _ in range(2):
        each = SamplingParams(seed=1, **({"top_k": 12} | params))
        compiled = backend.compile((each,))
        one = backend.sampler(each, compiled, PROMPT, ())
        sampled.append([(token := one.sample(row), one.logprobs(token, 3)) for row in rows])
        one.close()
        compiled.close()
        monkeypatch.setattr("srb.llama.sampling.sampler.narrowing_top_k", lambda *_: 0)
    assert sampled[0] == sampled[1]


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"repeat_penalty": 1.3, "dry_multiplier": 0.8},
        {"xtc_probability": 0.5, "xtc_threshold": 0.01},
        {"mirostat": 1},
        {"mirostat": 2},
        {"grammar": "root ::= [a-z]+ [0-9]+"},
        {"min_tokens": 12, "logit_bias": ((EOS, 20.0),)},
        {"smoothing_factor": 0.3},
    ],
    ids=str,
)
def test_a_sampler_that_has_gone_back_is_as_it_was(row: Row, params: dict[str, Any]) -> None:
    each = SamplingParams(seed=5, temperature=1.5, **params)
    compiled = row.backend.compile((each,))
    rows = [np.roll(row.row, k) for k in range(40)]
    straight, wandering = (row.backend.sampler(each, compiled, PROMPT, ()) for _ in range(2))
    said: list[int] = []
    for k, logits in enumerate(rows):
        wandering.hold(3)
        said.append(wandering.sample(logits))
        if k % 5 == 4:  # it goes on with other rows, and all that is taken back
            for other in rows[:3]:
                wandering.hold(3)
                wandering.sample(other)
            wandering.go_back(3)
    assert said == [straight.sample(logits) for logits in rows]
    wandering.go_back(1)
    wandering.close()
    straight.close()
    compiled.close()


@pytest.mark.parametrize(
    "params",
    [{"temperature": 2, "top_p": 1, "min_p": 0}, {"temperature": 2, "top_k": 40}, {"temperature": 0}, {"mirostat": 2}],
)
def test_the_reported_distribution_with_a_grammar_is_the_one_that_is_sampled(row: Row, params: dict[str, Any]) -> None:
    branch = SamplingParams(grammar="root ::= [a-h] [x]", **params)
    compiled = row.backend.compile((branch,), post_sampling_probs=True)
    plain = row.backend.compile((branch,))
    sampled, reported = Counter[int](), set()
    for seed in range(FRESH_DRAWS):
        each = replace(branch, seed=seed)
        sampler, other = (row.backend.sampler(each, made, PROMPT, ()) for made in (compiled, plain))
        token = sampler.sample(row.row)
        logprob, top = sampler.logprobs(token, N_VOCAB)
        assert dict(top)[token] == logprob
        assert [token, sampler.sample(row.row)] == [other.sample(row.row) for _ in range(2)]  # the text is the same
        sampler.close()
        other.close()
        sampled[token] += 1
        reported.add(tuple(top))
    compiled.close()
    plain.close()
    assert len(reported) == 1
    expected = np.zeros(N_VOCAB)
    for token, logprob in reported.pop():
        expected[token] = math.exp(logprob)
    assert set(np.flatnonzero(expected)) <= set(b"abcdefgh")
    assert expected.sum() == pytest.approx(1, abs=1e-5)
    assert_agrees(sampled, expected)
