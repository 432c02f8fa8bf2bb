"""The parts of a request's samplers that take long to make.

The thread that adds a request makes them (`Backend.compile`), so a bad grammar is a 400, and the engine never waits.
"""

import ctypes
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import llama_cpp

from srb.engine.sampling_params import SamplingParams
from srb.errors import BackendError
from srb.llama.grammar.matcher import GrammarMatcher, LarkCompiler
from srb.llama.model.tokenizer import LlamaTokenizer
from srb.llama.sampling.own_samplers import as_read, check_breakers


class CompiledSampling:
    """The parts of a request's samplers that take long to make: grammars, and DRY's sequence breakers.

    They are made once and copied for each alternative, as are samplers that have seen the request's prompt. The object
    may be made in any thread; afterwards only the backend's thread may use it. Raises `InvalidRequestError`.
    """

    def __init__(
        self,
        tokenizer: LlamaTokenizer,
        lark: LarkCompiler,
        n_cells: int,
        branches: Sequence[SamplingParams],
        special_tokens: bool = False,
        post_sampling_probs: bool = False,
    ) -> None:
        self.post_sampling_probs = post_sampling_probs
        dry = {key: params for params in branches if (key := _dry_key(params))}
        if dry:
            check_breakers(tokenizer.texts, (params.dry_sequence_breakers for params in dry.values()))
        self._n_cells = n_cells
        self._constraints: dict[Any, GrammarMatcher] = {}
        self._dry: dict[Any, Any] = {}
        self._with_prompt: dict[tuple[Any, int], tuple[tuple[int, ...], Any]] = {}
        with tokenizer.in_use() as vocab, ExitStack() as stack:
            for params in branches:
                key = _constraint_key(params)
                if key and key not in self._constraints:
                    self._constraints[key] = _constraint(vocab, lark, params, special_tokens)
            for key, params in dry.items():
                self._dry[key] = _dry(vocab, n_cells, params)
                stack.callback(llama_cpp.llama_sampler_free, self._dry[key])
            self._exit = stack.pop_all()

    def constraint(self, params: SamplingParams) -> GrammarMatcher | None:
        """Return a copy of the constraint that the text must match, at its beginning; None if there is none."""
        made = self._constraints.get(_constraint_key(params))
        return made and made.copy()

    def dry(self, params: SamplingParams, prompt: tuple[int, ...]) -> Any:
        """Return a copy of the DRY sampler that has seen the prompt; None if DRY is off."""
        key = _dry_key(params)
        if key is None:
            return None
        last_n = _last_n(params.dry_penalty_last_n, self._n_cells)
        return self._copy_with_prompt(key, prompt, last_n, partial(llama_cpp.llama_sampler_clone, self._dry[key]))

    def penalties(self, params: SamplingParams, n_vocab: int, prompt: tuple[int, ...]) -> Any:
        """Return a penalties sampler that has seen the prompt; None if all penalties are off."""
        penalties = (params.repeat_penalty, params.frequency_penalty, params.presence_penalty)
        last_n = _last_n(params.repeat_last_n, self._n_cells)
        if last_n == 0 or penalties == (1, 0, 0):
            return None
        make = partial(llama_cpp.llama_sampler_init_penalties, n_vocab, last_n, *penalties)
        return self._copy_with_prompt((*penalties, last_n), prompt, last_n, make)

    def _copy_with_prompt(self, key: Any, prompt: tuple[int, ...], last_n: int, make: Callable[[], Any]) -> Any:
        """Return a copy of a sampler that has seen the last tokens of a prompt."""
        _, sampler = self._with_prompt.get((key, id(prompt)), (None, None))
        if sampler is None:
            sampler = checked(make())
            self._exit.callback(llama_cpp.llama_sampler_free, sampler)
            self._with_prompt[key, id(prompt)] = prompt, sampler  # with the prompt, so that no other object gets its id
            for token in prompt[-last_n:]:
                llama_cpp.llama_sampler_accept(sampler, token)
        return checked(llama_cpp.llama_sampler_clone(sampler))

    def close(self) -> None:
        """Free the samplers. Copies stay valid."""
        self._exit.close()


def _last_n(last_n: int, n_cells: int) -> int:
    """Return a number of last tokens, at most the size of the context, which -1 stands for."""
    return n_cells if last_n == -1 else min(last_n, n_cells)


def _dry_key(params: SamplingParams) -> Any:
    """Return the values that branches with the same DRY sampler have in common; None if DRY is off."""
    if "dry" not in params.samplers or params.mirostat or params.dry_multiplier == 0 or params.dry_penalty_last_n == 0:
        return None
    return (
        params.dry_multiplier,
        params.dry_base,
        params.dry_allowed_length,
        params.dry_penalty_last_n,
        params.dry_sequence_breakers,
    )


def _dry(vocab: int, n_cells: int, params: SamplingParams) -> Any:
    texts = as_read(params.dry_sequence_breakers)
    return checked(
        llama_cpp.llama_sampler_init_dry(
            vocab,
            params.dry_multiplier,
            params.dry_base,
            params.dry_allowed_length,
            _last_n(params.dry_penalty_last_n, n_cells),
            (ctypes.c_char_p * len(texts))(*texts),
            len(texts),
        )
    )


def _constraint_key(params: SamplingParams) -> Any:
    """Return the values that branches with the same constraint have in common; None if there is no constraint."""
    key = params.grammar or None, params.json_schema, params.regex
    return None if key == (None, None, None) else key


def _constraint(vocab: int, lark: LarkCompiler, params: SamplingParams, special_tokens: bool) -> GrammarMatcher:
    if params.json_schema is not None:
        return lark.compile_schema(vocab, params.json_schema)
    if params.regex is not None:
        return lark.compile_regex(vocab, params.regex)
    return lark.compile_grammar(vocab, params.grammar or "", special_tokens=special_tokens)


def checked(sampler: Any) -> Any:
    """Return the sampler. Raises `BackendError` if llama.cpp couldn't make it."""
    # A NULL pointer of ctypes is not None, but it is false.
    if not sampler:
        raise BackendError("llama.cpp has no memory for a sampler")
    return sampler
