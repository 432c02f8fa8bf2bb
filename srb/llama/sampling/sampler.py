"""Samples tokens with llama.cpp's samplers, in a chain with llama-server's order."""

import ctypes
import hashlib
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

import llama_cpp
import numpy as np

from srb.engine.backend import Logprobs
from srb.engine.model import Ranked
from srb.engine.sampling_params import SamplingParams
from srb.errors import NoTokenError
from srb.llama.grammar.matcher import GrammarMatcher
from srb.llama.model.tokenizer import LlamaTokenizer
from srb.llama.sampling.candidates import Candidates, Floats, Places, logprobs, narrowing_top_k, only, rows_of
from srb.llama.sampling.compiled import CompiledSampling, checked
from srb.llama.sampling.own_samplers import Mirostat, ProcessorCall, XtcGuard, drop_impossible, smoothing

_SMALLEST_TEMPERATURE = 1e-30  # logits divided by less may overflow a float
_BAN = float("-inf")


class LlamaRanker:
    """Ranks tokens by the model's probabilities, after adding biases. Implements `srb.engine.model.Ranker`."""

    def __init__(self, tokenizer: LlamaTokenizer, params: SamplingParams) -> None:
        self._ends = np.fromiter(tokenizer.ends.union(params.stop_token_ids), np.intp)
        biases = dict.fromkeys(tokenizer.suppressed, -np.inf) | dict(params.logit_bias)
        if params.ignore_eos:
            biases |= dict.fromkeys(tokenizer.ends, -np.inf)
        self._biased = np.fromiter(biases.keys(), np.intp)
        self._biases = np.fromiter(biases.values(), np.float32)

    def rank(self, logits: Floats, top: int, *, may_end: bool) -> list[Ranked]:
        """Return the most probable tokens with their log-probabilities."""
        scores = logits.copy()
        scores[self._biased] += self._biases
        if not may_end:
            scores[self._ends] = -np.inf
        if scores.max() == -np.inf:
            return []
        _, best = logprobs(scores, 0, top + len(self._ends))
        return [(token, logprob) for token, logprob in best if logprob > _BAN]


class _Snapshot(NamedTuple):
    """The state of a sampler before a token. n_sampled: how many tokens it had sampled."""

    chain: Any
    constraint: GrammarMatcher | None
    n_sampled: int


class LlamaSampler:
    """The sampler chain of one sequence, with a random stream of its own. Implements `srb.engine.backend.Sampler`.

    The tokens of the prompt count for penalties, as in llama-server. A grammar is applied as in llama-server: the chain
    samples, and the grammar checks this one token. Only if the grammar refuses the token, it masks all tokens, and the
    chain samples again.

    llama.cpp's samplers walk the whole vocabulary until one of them narrows it, and the penalties look up each token.
    But only tokens that were seen, or that have a bias, can get other logits. So if `top_k` narrows, the chain gets
    only these tokens and the `top_k` most probable others. The result is the same.
    """

    def __init__(
        self,
        candidates: Candidates,
        tokenizer: LlamaTokenizer,
        params: SamplingParams,
        compiled: CompiledSampling,
        prompt: tuple[int, ...],
        resumed_tokens: tuple[int, ...] = (),
        healed: bytes = b"",
    ) -> None:
        self._candidates = candidates
        self._n_vocab = tokenizer.n_vocab
        self._ends = tokenizer.ends
        self._seed = params.seed
        # Whether the last sampler of the chain uses one random number per token, and has no other state.
        self._uses_one_random_number = params.mirostat != 2 and (params.mirostat == 1 or params.adaptive_target < 0)
        self._n_sampled = 0
        self._forced: list[int] = []  # the rest of the last result of `forced`, up to the first other token
        self._first = tokenizer.beginning_with(healed) if healed else None  # the tokens that may come first; None: all
        self._top_k = narrowing_top_k(params, self._n_vocab)
        self._changed: Places = np.empty(0, np.intp)  # the tokens that the chain may give other logits
        self._changed_set: set[int] = set()
        self._penalizes = False  # whether a sampler of the chain changes the logits of tokens that it has seen
        self._min_tokens = 0 if params.ignore_eos and not params.stop_token_ids else params.min_tokens
        self._snapshots: deque[_Snapshot] = deque()  # before each of the last tokens, if they may be taken back
        self._own: list[Any] = []  # interfaces to which llama.cpp has pointers
        self._mirostat: Mirostat | None = None
        self._processor = ProcessorCall(params.logits_processor, prompt) if params.logits_processor else None
        with ExitStack() as stack:
            chain_params = llama_cpp.llama_sampler_chain_default_params()
            chain_params.no_perf = True
            self._chain: Any = checked(llama_cpp.llama_sampler_chain_init(chain_params))
            stack.callback(self.close)
            self._fill(tokenizer, params, compiled, prompt)
            self._constraint = compiled.constraint(params)
            self._reports_all = self._constraint is not None and compiled.post_sampling_probs
            if self._penalizes:
                self._may_change(set(prompt))
            for token in resumed_tokens:
                self._replay(token)
            stack.pop_all()

    def _replay(self, token: int) -> None:
        """Accept a token that was sampled before the sequence was interrupted.

        The chain samples from this token only, which uses up one random number. So the next random numbers are the same
        as without the interruption. Samplers for which this isn't so get their tokens by `sample` again
        (`SamplingParams.learns`).
        """
        if self._uses_one_random_number:
            llama_cpp.llama_sampler_apply(self._chain, ctypes.byref(only(token)))
        if self._constraint and not self._constraint.allows(token):
            raise NoTokenError("the grammar doesn't allow the tokens that were sampled before", param="grammar")
        self._accept(token)

    def _fill(
        self, tokenizer: LlamaTokenizer, params: SamplingParams, compiled: CompiledSampling, prompt: tuple[int, ...]
    ) -> None:
        if self._min_tokens:
            ends = tokenizer.ends.union(params.stop_token_ids)
            self._add(self._bias(dict.fromkeys(ends, _BAN)))  # at index 0, where `_accept` later removes it
        biases = dict.fromkeys(tokenizer.suppressed, _BAN) | dict(params.logit_bias)
        if params.ignore_eos:
            biases |= dict.fromkeys(tokenizer.ends, _BAN)
        if biases:
            self._add(self._bias(biases))
        if params.mirostat:
            self._add(llama_cpp.llama_sampler_init_temp(_temperature(params)))
            if params.mirostat == 2:
                self._add(
                    llama_cpp.llama_sampler_init_mirostat_v2(
                        _fixed_seed(params.seed), params.mirostat_tau, params.mirostat_eta
                    )
                )
                return
            self._mirostat = Mirostat(self._n_vocab, params.mirostat_tau, params.mirostat_eta)
            self._add_own(drop_impossible)
            self._add_own(self._mirostat.narrow)
            self._add(llama_cpp.llama_sampler_init_dist(_fixed_seed(params.seed)))
            return
        for name in params.samplers:
            sampler = self._narrowing(name, tokenizer, params, compiled, prompt)
            if sampler is not None:
                self._add(sampler)
                self._penalizes |= name in ("penalties", "dry")
        if not _temperature(params) and "temperature" not in params.samplers:
            self._add(llama_cpp.llama_sampler_init_temp(0))
        if params.adaptive_target >= 0:
            self._add(
                llama_cpp.llama_sampler_init_adaptive_p(
                    params.adaptive_target, params.adaptive_decay, _fixed_seed(params.seed)
                )
            )
        else:
            self._add(llama_cpp.llama_sampler_init_dist(_fixed_seed(params.seed)))

    def _narrowing(
        self,
        name: str,
        tokenizer: LlamaTokenizer,
        params: SamplingParams,
        compiled: CompiledSampling,
        prompt: tuple[int, ...],
    ) -> Any:
        """Return the sampler with this name, after adding others that it needs; None if its parameters turn it off."""
        min_keep = params.min_keep
        match name:
            case "penalties":
                return compiled.penalties(params, self._n_vocab, prompt)
            case "dry":
                return compiled.dry(params, prompt)
            case "top_n_sigma" if params.top_n_sigma > 0:
                return llama_cpp.llama_sampler_init_top_n_sigma(params.top_n_sigma)
            case "top_k" if params.top_k > 0:
                return llama_cpp.llama_sampler_init_top_k(params.top_k)
            case "typ_p" if params.typical_p < 1:
                self._add_own(drop_impossible)
                return llama_cpp.llama_sampler_init_typical(params.typical_p, min_keep)
            case "top_p" if params.top_p < 1:
                return llama_cpp.llama_sampler_init_top_p(params.top_p, min_keep)
            case "min_p" if params.min_p > 0:
                return llama_cpp.llama_sampler_init_min_p(params.min_p, min_keep)
            case "xtc" if params.xtc_probability > 0:
                seed = _fixed_seed(_derived_seed(params.seed, name))
                guard = XtcGuard(np.append(tokenizer.text_and_line_ends, np.array(params.stop_token_ids, np.intp)))
                self._add_own(drop_impossible)
                self._add_own(guard.before)
                self._add(
                    llama_cpp.llama_sampler_init_xtc(params.xtc_probability, params.xtc_threshold, min_keep, seed)
                )
                self._add_own(guard.after)
            case "temperature":
                spread = params.dynatemp_range if _temperature(params) else 0
                if spread:
                    self._add_own(drop_impossible)
                self._add(llama_cpp.llama_sampler_init_temp_ext(_temperature(params), spread, params.dynatemp_exponent))
                if params.smoothing_factor:
                    self._add_own(partial(_smooth, params))
        return None

    def _bias(self, biases: dict[int, float]) -> Any:
        self._may_change(biases)
        # Each alternative makes this in the engine's thread, maybe for all tokens, so there is no loop in Python.
        rows = np.empty(len(biases), [("token", np.int32), ("bias", np.float32)])
        rows["token"], rows["bias"] = list(biases), list(biases.values())
        array = rows.ctypes.data_as(ctypes.POINTER(llama_cpp.llama_logit_bias))
        return llama_cpp.llama_sampler_init_logit_bias(self._n_vocab, len(rows), array)

    def _may_change(self, tokens: Collection[int]) -> None:
        if self._top_k and (new := set(tokens) - self._changed_set):
            self._changed_set |= new
            self._changed = np.append(self._changed, np.fromiter(new, np.intp))

    def _add_own(self, change: Callable[[Any], None]) -> None:
        """Add a sampler without a state: a function that changes a `llama_token_data_array`."""
        apply = llama_cpp.llama_sampler_i_apply(lambda _context, array: change(array.contents))
        self._own.append(llama_cpp.llama_sampler_i(apply=apply))
        self._add(llama_cpp.llama_sampler_init(self._own[-1], None))

    def _add(self, sampler: Any) -> None:
        llama_cpp.llama_sampler_chain_add(self._chain, checked(sampler))

    def sample(self, logits: Floats, excluded: Collection[int] = (), biases: Mapping[int, float] | None = None) -> int:
        """Sample a token from these logits. Raises `NoTokenError` and `LogitsProcessorError`."""
        token = self._draw(logits, excluded, biases)
        self._learn(token)
        return token

    def sample_again(
        self, token: int, logits: Floats, excluded: Collection[int] = (), biases: Mapping[int, float] | None = None
    ) -> None:
        """Sample a token that is known from before an interruption. Raises as `sample` does."""
        if self._draw(logits, excluded, biases) != token and token not in self._candidates.remaining[0]:
            # The logits have other last bits this time.
            self._candidates.fill(np.zeros(self._n_vocab, np.float32), np.array([token], np.intp))
        self._learn(token)

    def _draw(self, logits: Floats, excluded: Collection[int], biases: Mapping[int, float] | None) -> int:
        if self._processor:
            logits = self._processor.process(logits)
        if not biases:
            return self._choose(logits, excluded)
        others = logits.copy()
        others[list(biases)] += np.fromiter(biases.values(), np.float32)
        n_banned = sum(bias == _BAN for bias in biases.values())
        try:
            return self._choose(others, excluded, n_banned)
        except NoTokenError:
            return self._choose(logits, excluded)

    def _learn(self, token: int) -> None:
        if self._mirostat:
            self._mirostat.accept(self.logprobs(token, 0)[0])
        self._accept(token)

    def _choose(self, logits: Floats, excluded: Collection[int], n_banned: int = 0) -> int:
        # The chain's next random number is the one that chose the banned token. With this number the chain would always
        # choose a neighbour of that token in the distribution, so another random stream is used.
        if excluded or (n_banned and self._uses_one_random_number):
            return self._sample_other(logits, excluded, n_banned)
        return self._sample(logits)

    def _accept(self, token: int) -> None:
        if self._constraint:
            self._constraint.accept(token)
            self._forced = self._forced[1:] if self._forced[:1] == [token] else []
        if self._processor:
            self._processor.accept(token)
        llama_cpp.llama_sampler_accept(self._chain, token)
        if self._penalizes:
            self._may_change((token,))
        self._n_sampled += 1
        if self._n_sampled == self._min_tokens:
            llama_cpp.llama_sampler_free(llama_cpp.llama_sampler_chain_remove(self._chain, 0))

    def forced(self, most: int) -> list[int]:
        """Return the usual tokens of the text that the grammar requires next."""
        if self._constraint and not self._forced:
            self._forced = self._constraint.forced(most)
        return self._forced

    def hold(self, n_tokens: int) -> None:
        """Take a snapshot before a token, so that up to `n_tokens` more can be taken back."""
        # This takes 4 µs, and 20 to 50 with XTC or DRY.
        chain = checked(llama_cpp.llama_sampler_clone(self._chain))
        self._snapshots.append(_Snapshot(chain, self._constraint and self._constraint.copy(), self._n_sampled))
        while len(self._snapshots) > n_tokens + 1:
            llama_cpp.llama_sampler_free(self._snapshots.popleft().chain)

    def go_back(self, n_tokens: int) -> None:
        """Take back the last tokens, with the states of all samplers.

        Only the random numbers of adaptive_p start anew, because llama.cpp doesn't copy them.
        """
        before = _Snapshot(self._chain, self._constraint, self._n_sampled)
        for _ in range(n_tokens):
            llama_cpp.llama_sampler_free(before.chain)
            before = self._snapshots.pop()
        self._chain, self._constraint, self._n_sampled = before
        if self._processor:
            self._processor.go_back(n_tokens)
        if self._mirostat:
            self._mirostat.go_back(n_tokens)

    def logprobs(self, token: int, top: int) -> Logprobs:
        """Return log-probabilities of a token and of the most probable ones, among the candidates of the last token."""
        ids, logits = self._candidates.remaining
        logprob, largest = logprobs(logits, int(np.flatnonzero(ids == token)[0]), top)
        return logprob, [(int(ids[index]), p) for index, p in largest if p > _BAN]

    def _sample(self, logits: Floats) -> int:
        token = self._apply(logits)
        if not self._constraint:
            return token
        if self._reports_all:
            return self._sample_reported(logits, token, self._constraint)
        if not self._constraint.allows(token):
            token = self._apply(logits, self._constraint)
            if not self._constraint.allows(token):
                token = self._end(self._constraint)
        return token

    def _sample_reported(self, logits: Floats, token: int, constraint: GrammarMatcher) -> int:
        """Go on after the chain's first sample as `_sample` does, and leave the distribution of both as candidates.

        A token is sampled if it is the first sample, or if the grammar refuses that one and it is the second.
        """
        first = self._probabilities()
        first[constraint.banned()] = 0
        if constraint.allows(token):
            with self._restored():
                self._apply(logits, constraint)
        elif not constraint.allows(token := self._apply(logits, constraint)):
            return self._end(constraint)
        either = first + max(0.0, 1 - first.sum()) * self._probabilities()
        with np.errstate(divide="ignore"):
            self._candidates.fill(np.log(either).astype(np.float32))
        return token

    def _probabilities(self) -> "np.ndarray[Any, np.dtype[np.float64]]":
        """Return the probability of each token of the vocabulary among the remaining candidates."""
        ids, logits = self._candidates.remaining
        result = np.zeros(self._n_vocab)
        if (highest := logits.max()) > _BAN:
            result[ids] = np.exp(logits.astype(np.float64) - highest)
            result /= result.sum()
        return result

    @contextmanager
    def _restored(self) -> Iterator[None]:
        """Give the chain its state back afterwards."""
        chain, self._chain = self._chain, checked(llama_cpp.llama_sampler_clone(self._chain))
        try:
            yield
        finally:
            llama_cpp.llama_sampler_free(self._chain)
            self._chain = chain

    def _end(self, constraint: GrammarMatcher) -> int:
        """End a complete text that nothing else can follow, even if the settings ban its end. Else `NoTokenError`."""
        end = next(filter(constraint.allows, self._ends), None)
        if end is None:
            raise NoTokenError("the grammar and the other settings leave no token to go on with", param="grammar")
        self._candidates.fill(np.zeros(self._n_vocab, np.float32), np.array([end], np.intp))
        return end

    def _sample_other(self, logits: Floats, excluded: Collection[int], n_banned: int) -> int:
        """Sample from the tokens that the chain leaves, except the excluded ones, with a random stream for this token.

        Sequences that exclude each other's tokens sample without replacement: each takes the largest of the
        Gumbel-perturbed logits. This is Gumbel-top-k, one step at a time (Kool, van Hoof and Welling, ICML 2019).

        Args:
            n_banned: how many tokens were banned at this position so far. Each number has its own random stream.
        """
        self._fill_candidates(logits, self._constraint)
        array = ctypes.byref(self._candidates.array)
        for i in range(llama_cpp.llama_sampler_chain_n(self._chain) - 1):  # without the last sampler, which selects
            llama_cpp.llama_sampler_apply(llama_cpp.llama_sampler_chain_get(self._chain, i), array)
        ids, remaining = self._candidates.remaining
        if n_banned and not np.isfinite(remaining).any():
            raise NoTokenError("there is no other token to go on with", param="banned_strings")
        is_excluded = np.isin(ids, list(excluded))
        if not np.isneginf(remaining[~is_excluded]).all():
            remaining[is_excluded] = _BAN
        noise = np.random.default_rng((self._seed, self._n_sampled, n_banned)).gumbel(size=len(remaining))
        token = int(ids[np.argmax(remaining + noise)])
        if self._constraint and not self._constraint.allows(token):
            return self._end(self._constraint)
        if self._uses_one_random_number:  # use up one random number of the chain for this token
            last = llama_cpp.llama_sampler_chain_get(self._chain, llama_cpp.llama_sampler_chain_n(self._chain) - 1)
            llama_cpp.llama_sampler_apply(last, ctypes.byref(only(token)))
        return token

    def _apply(self, logits: Floats, constraint: GrammarMatcher | None = None) -> int:
        """Return the token that the chain selects from these logits, or from those that the constraint allows."""
        self._fill_candidates(logits, constraint)
        llama_cpp.llama_sampler_apply(self._chain, ctypes.byref(self._candidates.array))
        return self._candidates.selected

    def _fill_candidates(self, logits: Floats, constraint: GrammarMatcher | None) -> None:
        """Set the candidates of the next token: the allowed tokens, or only those that can be selected."""
        if self._first is not None and self._n_sampled == 0:
            self._candidates.fill(logits, self._first)
        elif constraint:
            self._candidates.fill(logits)
            self._candidates.ban(constraint.banned())
        elif self._top_k:
            self._candidates.fill(logits, self._candidates.likeliest(logits, self._top_k, self._changed))
        else:
            self._candidates.fill(logits)

    def close(self) -> None:
        """Free the chain and its snapshots."""
        for chain in (self._chain, *(each.chain for each in self._snapshots)):
            llama_cpp.llama_sampler_free(chain)


def _smooth(params: SamplingParams, array: Any) -> None:
    rows = rows_of(array)
    rows["logit"] = smoothing(params.smoothing_factor, params.smoothing_curve, rows["logit"])
    array.sorted = False


def _temperature(params: SamplingParams) -> float:
    return params.temperature if params.temperature >= _SMALLEST_TEMPERATURE else 0.0


def _derived_seed(seed: int, name: str) -> int:
    """Return the seed of a sampler with random numbers besides those that choose the tokens, which has this name."""
    return int.from_bytes(hashlib.blake2b(f"{name} {seed}".encode(), digest_size=4).digest())


def _fixed_seed(seed: int) -> int:
    """Return the seed for llama.cpp, where the largest seed means a random one. That is replaced by a distant seed."""
    return seed ^ 0x8000_0000 if seed == llama_cpp.LLAMA_DEFAULT_SEED else seed
