"""Refuses requests that this model, or these options, can't serve. This happens when the request comes."""

from srb.engine.asking.infill import most_rows, n_rows_here
from srb.engine.asking.request import CompletionRequest
from srb.engine.backend import Backend
from srb.engine.ways.shifting import LEAST_CELLS, may_shift
from srb.errors import InvalidRequestError


def check_supported(request: CompletionRequest, backend: Backend, default_max_tokens: int) -> None:
    """Raises `InvalidRequestError` if the backend can't do what a request asks. May be called from any thread."""
    n_rows, most = n_rows_here(request, backend), most_rows(backend)
    if n_rows > most:
        rows = "beams" if request.suffix is None else "candidates"
        spare = ", with the one that scores the suffix," if n_rows > request.n_rows else ""
        raise InvalidRequestError(
            f"{n_rows} {rows}{spare} are more than the {most} sequences that can run at once; "
            f"ask for fewer {rows}, or start with a larger --parallel",
            param=rows,
        )
    _check_spare(request, backend)
    if request.guided and backend.n_parallel < 2:
        raise _not_here(
            "guidance_scale",
            "guidance_scale takes two sequences for each alternative, and there is one; "
            "leave it out, or start with a larger --parallel",
        )
    if not (backend.can_unify or backend.block_size):
        _check_unified(request)
    if may_shift(request, backend.n_cells, default_max_tokens):
        _check_shift(request, backend)
    if request.explore and backend.window is not None:
        memory = "a sliding window" if backend.window else "a recurrent state"
        raise _not_here(
            "explore",
            f"explore needs a model that can go back to any token, and this one has {memory}; leave it out",
        )


def _check_spare(request: CompletionRequest, backend: Backend) -> None:
    """Refuses a bridge that has room without the row that scores the suffix, and not with it."""
    n_rows = n_rows_here(request, backend)
    begun = (1 + len(each.tokens) for each in request.resumed if each.finished is None)
    wanted = max(request.branches[0].max_tokens or 0, *begun, 0)
    cells = max(map(len, request.prompts)) + n_rows * (max(0, wanted - 1) + request.cells_behind)
    if n_rows > request.n_rows and cells > backend.n_cells:
        raise InvalidRequestError(
            f"a bridge of {request.n_rows} candidates needs {cells} cells on this model, which scores the suffix in "
            f"cells apart; the context has {backend.n_cells}; ask for fewer candidates or tokens, or start "
            "with a larger --ctx-size",
            param="max_tokens",
            code="context_length_exceeded",
        )


def _check_shift(request: CompletionRequest, backend: Backend) -> None:
    reason, most = None, min(backend.n_parallel, backend.n_cells // LEAST_CELLS)
    if not backend.can_shift:
        reason = (
            "the positions of this model's cells can't change, or not with --reproducible or such a --cache-type-k "
            "(a server with --context-shift takes another one than srb tune chose, if it must); leave it out"
        )
    elif request.count > most:
        reason = f"{request.count} alternatives are more than the {most} that can run at once; ask for fewer"
    if reason:
        message = f"context_shift can't be done here: {reason}, or start with a larger --ctx-size"
        raise _not_here("context_shift", message)


def _check_unified(request: CompletionRequest) -> None:
    asked = {"search": request.search == "beam", "suffix": request.suffix is not None, "explore": request.explore}
    for param, is_asked in asked.items():
        if is_asked:
            raise _not_here(param, f"{param} takes a unified KV cache; start the server without --kv-layout streams")


def _not_here(param: str, message: str) -> InvalidRequestError:
    return InvalidRequestError(message, param=param, code="unsupported_parameter")
