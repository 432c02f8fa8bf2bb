"""Every error that srb raises on purpose, in one tree.

    SrbError
    ├── SettingsError          an option, variable or settings file is wrong; the server doesn't start
    ├── ModelLoadError         the model file can't be found, read or used
    ├── InvalidRequestError    400  a field is malformed or out of range; `param` names it
    │   ├── ContextSizeError        400  the prompt is longer than the context
    │   ├── RequestTimeoutError     408  the body makes no progress
    │   ├── PayloadTooLargeError    413
    │   └── UnsupportedMediaTypeError    415  the body is compressed
    ├── AuthenticationError    401  no API key, or a wrong one
    ├── OriginError            403  a web page of another origin tries to change or run something
    ├── NotFoundError          404  no such path, request or alternative
    ├── MethodNotAllowedError  405
    ├── GoneError              410  the request has finished, and is no longer kept
    ├── MisdirectedRequestError    421  the server doesn't answer under this host name
    ├── QueueFullError         429  as many requests wait as the server allows; come back later
    ├── NotSupportedError      501  this model or this server's options don't have it
    ├── UnavailableError       503  the model is loading, the server shutting down, or a wait was too long
    │   ├── EngineRestartError 503  the engine has failed and restarts
    │   └── EngineDeadError    503  the engine has failed for good
    ├── HistoryError           503  the history's file can't be read or written now
    └── BackendError           500  llama.cpp reported a fault
        ├── NoTokenError       400  the grammar and the settings of an alternative leave no token
        └── LogitsProcessorError    the function of an alternative raised an error, or left no logits to draw from

Each error knows how it looks on the wire: its HTTP `status`, its `type` and `code`, and the request field that is
wrong. The message says what is wrong, with the value and the limit, and what to do.
"""

from typing import Any, ClassVar


class SrbError(Exception):
    """The base of all errors that srb raises on purpose."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    code: str | None = None
    retry_after: ClassVar[int | None] = None
    """Seconds after which the client may send the same request again."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        if code is not None:
            self.code = code

    def __reduce__(self) -> tuple[Any, ...]:
        # Python would unpickle an error by calling its class with the message alone. Some classes need more arguments.
        return restored, (type(self), self.args, self.__dict__)

    def body(self) -> dict[str, Any]:
        """The object under `error` in a JSON reply and in an `error` event."""
        return {"message": self.message, "type": self.type, "param": self.param, "code": self.code}


def restored(kind: type[SrbError], args: tuple[Any, ...], state: dict[str, Any]) -> SrbError:
    """An error as it was: its class, the arguments of `Exception`, and its attributes (`vars`)."""
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


class SettingsError(SrbError):
    """An option, an `SRB_...` variable or the settings file is wrong."""


class ModelLoadError(SrbError):
    """The model file is missing, is not a whole GGUF file, or holds a model that srb can't run."""

    code = "model_load_failed"


class InvalidRequestError(SrbError):
    """A request field is malformed or out of range."""

    status = 400
    type = "invalid_request_error"
    code = "invalid_value"


def in_use(request_id: str) -> InvalidRequestError:
    """The error for a request whose id another one has."""
    return InvalidRequestError(
        f"the request id {request_id:.100} is in use; send another id, or wait until that request has ended", param="id"
    )


_CELLS_STEP = 256
"""A context that is divided gives each text a multiple of so many cells."""


def context_of(n_ctx: int, n_texts: int) -> str:
    """What an error calls a context with `n_ctx` cells for each of `n_texts` texts."""
    return f"the {n_ctx} cells " + ("of the context" if n_texts == 1 else "that --reproducible gives each alternative")


def larger_context(n_cells: int, n_texts: int) -> str:
    """What to do so that a text of `n_cells` fits. n_texts: among how many the context is divided; 1: it isn't."""
    if n_texts == 1:
        return "start with a larger --ctx-size"
    each = (n_cells // _CELLS_STEP + 1) * _CELLS_STEP
    return f"start with --ctx-size {each * n_texts} or more, or with a smaller --parallel"


class ContextSizeError(InvalidRequestError):
    """The prompt is longer than the context. Its type and its numbers are llama-server's, which clients look for.

    n_prompt_tokens: how many tokens the prompt has, or has at least. n_ctx: how many fit.
    exact: whether n_prompt_tokens is the exact number; False: the prompt has at least so many.
    n_texts: among how many texts the context is divided, see `larger_context`; then the context can't be shifted.
    """

    type = "exceed_context_size_error"
    code = "context_length_exceeded"

    def __init__(self, n_prompt_tokens: int, n_ctx: int, *, exact: bool = True, n_texts: int = 1) -> None:
        tokens = f"{'' if exact else 'at least '}{n_prompt_tokens} tokens"
        shift = "send context_shift, " if n_texts == 1 else ""
        super().__init__(
            f"prompt has {tokens}, more than {context_of(n_ctx, n_texts)}; "
            f"shorten the prompt, {shift}or {larger_context(n_prompt_tokens, n_texts)}",
            param="prompt",
        )
        self.n_prompt_tokens = n_prompt_tokens
        self.n_ctx = n_ctx

    def body(self) -> dict[str, Any]:
        """The object under `error`, with both numbers."""
        return super().body() | {"n_prompt_tokens": self.n_prompt_tokens, "n_ctx": self.n_ctx}


class RequestTimeoutError(InvalidRequestError):
    """Nothing of the request's body has come for a while."""

    status = 408
    code = "request_timeout"


class PayloadTooLargeError(InvalidRequestError):
    """The request body is larger than the server reads."""

    status = 413
    code = "payload_too_large"


class UnsupportedMediaTypeError(InvalidRequestError):
    """The request body is compressed, and the server reads no compressed bodies."""

    status = 415
    code = "unsupported_media_type"


class AuthenticationError(SrbError):
    """The request has none of the server's API keys."""

    status = 401
    type = "authentication_error"
    code = "invalid_api_key"


class OriginError(SrbError):
    """A web page tries to change or run something, and its origin isn't allowed to."""

    status = 403
    type = "permission_error"
    code = "origin_not_allowed"


class NotFoundError(SrbError):
    """There is no such path, request or alternative."""

    status = 404
    type = "invalid_request_error"
    code = "not_found"


class MethodNotAllowedError(SrbError):
    """The path exists, but not for this HTTP method."""

    status = 405
    type = "invalid_request_error"
    code = "method_not_allowed"


class GoneError(SrbError):
    """The request has finished, and is no longer kept."""

    status = 410
    type = "invalid_request_error"
    code = "gone"


class MisdirectedRequestError(SrbError):
    """The request is for a host name under which the server doesn't answer."""

    status = 421
    type = "invalid_request_error"
    code = "host_not_allowed"


class QueueFullError(SrbError):
    """As many requests are waiting as the server allows."""

    status = 429
    type = "rate_limit_error"
    code = "queue_full"
    retry_after = 2


class NotSupportedError(SrbError):
    """The model, or the server with its options, can't do this."""

    status = 501
    type = "not_supported_error"
    code = "not_supported"


class UnavailableError(SrbError):
    """The server can't take requests now: the model is loading, it is shutting down, or a request waited too long."""

    status = 503
    type = "unavailable_error"
    code = "unavailable"
    retry_after: ClassVar[int | None] = 2


class EngineRestartError(UnavailableError):
    """The engine has failed, and another one replaces it."""

    code = "engine_restart"


class EngineDeadError(UnavailableError):
    """The engine has failed and won't recover; the server must be restarted."""

    code = "engine_dead"
    retry_after = None


class HistoryError(SrbError):
    """The history's file can't be read or written: its disk is full, it is damaged, or a newer srb has written it."""

    status = 503
    code = "history_unavailable"


class BackendError(SrbError):
    """llama.cpp reported a fault while it evaluated or sampled.

    seq_ids: the sequences that caused it, if llama.cpp has named them.
    """

    code = "backend_error"

    def __init__(self, message: str, *, param: str | None = None, seq_ids: tuple[int, ...] = ()) -> None:
        super().__init__(message, param=param)
        self.seq_ids = seq_ids


class NoTokenError(BackendError):
    """The grammar and the other settings of an alternative leave no token to go on with: a caller's fault."""

    status = 400
    type = "invalid_request_error"
    code = "no_token"


class LogitsProcessorError(BackendError):
    """An alternative's `logits_processor` raised an error, or left no logits to draw from.

    The error that it raised is the `__cause__` of this one.
    """

    code = "logits_processor_error"

    def __init__(self, message: str) -> None:
        super().__init__(message, param="logits_processor")
