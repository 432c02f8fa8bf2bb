"""What takes long to make for the samplers of a request: made once, and copied for each alternative."""

import ctypes
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from typing import Any

import llama_cpp

from srb.engine.sampling_params import SamplingParams
from srb.errors import BackendError
from srb.llama.constraint import Constraint, GbnfConstraint, LarkCompiler


class CompiledSampling:
    """What takes long to make for the samplers of a request: grammars and DRY's sequence breakers.

    It is made once and copied for each alternative, and so are the samplers that have seen a prompt. May be made in any
    thread, and belongs to the backend's from then on. Raises `InvalidRequestError` for a grammar that doesn't parse, or
    a JSON schema that can't be enforced.
    """

    def __init__(
        self,
        vocab: int,
        lark: LarkCompiler,
        n_cells: int,
        branches: Iterable[SamplingParams],
        special_tokens: bool = False,
    ) -> None:
        self._n_cells = n_cells
        self._constraints: dict[Any, Constraint] = {}
        self._dry: dict[Any, Any] = {}
        self._fed: dict[tuple[Any, int], tuple[tuple[int, ...], Any]] = {}
        with ExitStack() as stack:
            for params in branches:
                key = _constraint_key(params)
                if key and key not in self._constraints:
                    self._constraints[key] = _constraint(vocab, lark, params, special_tokens)
                    stack.callback(self._constraints[key].close)
                key = _dry_key(params)
                if key and key not in self._dry:
                    self._dry[key] = _dry(vocab, n_cells, params)
                    stack.callback(llama_cpp.llama_sampler_free, self._dry[key])
            self._exit = stack.pop_all()

    def constraint(self, params: SamplingParams) -> Constraint | None:
        """A copy of what the text must match, at its beginning, or None."""
        made = self._constraints.get(_constraint_key(params))
        return made and made.copy()

    def dry(self, params: SamplingParams, prompt: tuple[int, ...]) -> Any:
        """A copy of the DRY sampler that has seen the prompt, or None where it is off."""
        key = _dry_key(params)
        if key is None:
            return None
        last_n = _last_n(params.dry_penalty_last_n, self._n_cells)
        return self._copy_of_fed(key, prompt, last_n, partial(llama_cpp.llama_sampler_clone, self._dry[key]))

    def penalties(self, params: SamplingParams, n_vocab: int, prompt: tuple[int, ...]) -> Any:
        """A sampler for the penalties that has seen the prompt, or None where they are off."""
        penalties = (params.repeat_penalty, params.frequency_penalty, params.presence_penalty)
        last_n = _last_n(params.repeat_last_n, self._n_cells)
        if last_n == 0 or penalties == (1, 0, 0):
            return None
        make = partial(llama_cpp.llama_sampler_init_penalties, n_vocab, last_n, *penalties)
        return self._copy_of_fed((*penalties, last_n), prompt, last_n, make)

    def _copy_of_fed(self, key: Any, prompt: tuple[int, ...], last_n: int, make: Callable[[], Any]) -> Any:
        """A copy of a sampler that has seen the last tokens of a prompt. It sees them once, for all alternatives."""
        _, fed = self._fed.get((key, id(prompt)), (None, None))
        if fed is None:
            fed = checked(make())
            self._exit.callback(llama_cpp.llama_sampler_free, fed)
            self._fed[key, id(prompt)] = prompt, fed  # with the prompt, so that no other one gets its id
            for token in prompt[-last_n:]:
                llama_cpp.llama_sampler_accept(fed, token)
        return checked(llama_cpp.llama_sampler_clone(fed))

    def close(self) -> None:
        """Frees it; the copies live on."""
        self._exit.close()


def _last_n(last_n: int, n_cells: int) -> int:
    """A number of last tokens: -1 is the context, and no text is longer."""
    return n_cells if last_n == -1 else min(last_n, n_cells)


def _dry_key(params: SamplingParams) -> Any:
    """What makes a DRY sampler different from others; None where it is off."""
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
    texts = [text.encode(errors="replace") for text in params.dry_sequence_breakers]
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
    """What makes a constraint different from others; None where there is none."""
    key = params.grammar or None, params.json_schema, params.regex, params.lark
    return None if key == (None, None, None, None) else key


def _constraint(vocab: int, lark: LarkCompiler, params: SamplingParams, special_tokens: bool) -> Constraint:
    if params.json_schema is not None:
        return lark.compile_schema(vocab, params.json_schema)
    if params.regex is not None:
        return lark.compile_regex(vocab, params.regex)
    if params.lark is not None:
        return lark.compile(vocab, params.lark, special_tokens=special_tokens)
    return GbnfConstraint(vocab, params.grammar or "")


def checked(sampler: Any) -> Any:
    """The sampler. Raises `BackendError` if llama.cpp couldn't make it."""
    # `is None` doesn't see a NULL ctypes pointer, its truth does.
    if not sampler:
        raise BackendError("llama.cpp has no memory for a sampler")
    return sampler
