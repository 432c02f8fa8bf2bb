"""The exceptions that srb raises, in one tree.

    SrbError
    ├── SettingsError          an option, variable or settings file is wrong
    ├── ModelLoadError         the model file can't be found, read or used
    ├── InvalidRequestError    400  a field is malformed or out of range
    │   ├── ContextSizeError        400  the prompt is longer than the context
    │   ├── RequestTimeoutError     408  the body isn't arriving
    │   ├── PayloadTooLargeError    413  the body is too large
    │   └── UnsupportedMediaTypeError    415  the body is compressed
    ├── AuthenticationError    401  no API key, or a wrong one
    ├── OriginError            403  a page served from another origin sent a request
    ├── NotFoundError          404  no such path, request or alternative
    ├── MethodNotAllowedError  405  the path has no such method
    ├── ConflictError          409  somebody else has changed it meanwhile
    ├── GoneError              410  the request has finished and was deleted
    ├── MisdirectedRequestError    421  the host name isn't allowed
    ├── QueueFullError         429  the queue is full; try again later
    ├── NotSupportedError      501  the model or the server's options don't support it
    ├── UnavailableError       503  the model is loading, the server is shutting down, or a wait timed out
    │   ├── EngineRestartError 503  the engine failed and is restarting
    │   └── EngineDeadError    503  the engine failed permanently
    ├── HistoryError           503  the history file can't be read or written
    └── BackendError           500  llama.cpp reported an error
        ├── NoTokenError       400  the grammar and settings of an alternative allow no token
        └── LogitsProcessorError    the function of an alternative raised an error, or left no logits

Each has an HTTP `status`, a `type` and a `code` for the JSON response, and the wrong field in `param`. The message
names the problem, the value, the limit and the way out.
"""

import re
from typing import Any, ClassVar


class SrbError(Exception):
    """Base class of the exceptions that srb raises.

    Attributes:
        message: What is wrong, and what to do.
        param: The wrong request field or option, if there is one.
        code: A word for programs.
    """

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    code: str | None = None
    retry_after: ClassVar[int | None] = None
    """Seconds after which the client may retry the request."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        return self.message  # which a caller that knows more may have changed

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions unpickle by calling the class with the message only, and some classes need more arguments.
        return restored, (type(self), self.args, self.__dict__)

    def body(self) -> dict[str, Any]:
        """Return the `error` object of a JSON response or an `error` event."""
        return {"message": self.message, "type": self.type, "param": self.param, "code": self.code}


def restored(kind: type[SrbError], args: tuple[Any, ...], state: dict[str, Any]) -> SrbError:
    """Rebuild an exception from its class, the arguments of `Exception`, and its attributes."""
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


class SettingsError(SrbError):
    """An option, an `SRB_...` variable or the settings file is wrong."""


class ModelLoadError(SrbError):
    """The model file is missing, isn't a complete GGUF file, or has a model that srb can't run."""

    code = "model_load_failed"


class InvalidRequestError(SrbError):
    """A request field is malformed or out of range."""

    status = 400
    type = "invalid_request_error"
    code = "invalid_value"

    def rename(self, name: str) -> None:
        """Give the field another name, also in the message if that begins with the field."""
        if self.param and re.match(rf"{re.escape(self.param)}(?!\w)", self.message):
            self.message = name + self.message.removeprefix(self.param)
        self.param = name


def in_use(request_id: str) -> InvalidRequestError:
    """Return the error for a request id that is in use."""
    return InvalidRequestError(
        f"the request id {request_id:.100} is in use; send another id, or wait until that request has ended", param="id"
    )


_CELLS_STEP = 256
"""The cells of each text in a divided context are a multiple of this."""


def context_of(n_ctx: int, n_texts: int) -> str:
    """Describe a context with `n_ctx` cells for each of `n_texts` texts."""
    return f"the {n_ctx} cells " + ("of the context" if n_texts == 1 else "that --reproducible gives each alternative")


def larger_context(n_cells: int, n_texts: int) -> str:
    """Say how to fit a text of `n_cells` into a context that is divided among `n_texts` texts."""
    if n_texts == 1:
        return "start with a larger --ctx-size"
    each = (n_cells // _CELLS_STEP + 1) * _CELLS_STEP
    return f"start with --ctx-size {each * n_texts} or more, or with a smaller --parallel"


class ContextSizeError(InvalidRequestError):
    """The prompt is longer than the context. Clients know its type and fields from llama-server.

    Args:
        n_prompt_tokens: The number of tokens in the prompt.
        n_ctx: The number of tokens that fit.
        exact: Whether `n_prompt_tokens` is exact, or a lower bound.
        n_texts: The number of texts that divide the context. If it is more than 1, the context can't be shifted.
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
        """Return the `error` object, with both numbers."""
        return super().body() | {"n_prompt_tokens": self.n_prompt_tokens, "n_ctx": self.n_ctx}


class RequestTimeoutError(InvalidRequestError):
    """The request's body stopped arriving."""

    status = 408
    code = "request_timeout"


class PayloadTooLargeError(InvalidRequestError):
    """The request body is too large."""

    status = 413
    code = "payload_too_large"


class UnsupportedMediaTypeError(InvalidRequestError):
    """The request body is compressed, which the server doesn't support."""

    status = 415
    code = "unsupported_media_type"


class AuthenticationError(SrbError):
    """The request has none of the server's API keys."""

    status = 401
    type = "authentication_error"
    code = "invalid_api_key"


class OriginError(SrbError):
    """A page served from an origin that isn't allowed tried to run or change something."""

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


class ConflictError(SrbError):
    """Somebody else has changed it since the change that this one is based on."""

    status = 409
    type = "invalid_request_error"
    code = "conflict"


class GoneError(SrbError):
    """The request has finished and was deleted."""

    status = 410
    type = "invalid_request_error"
    code = "gone"


class MisdirectedRequestError(SrbError):
    """The request's host name isn't allowed."""

    status = 421
    type = "invalid_request_error"
    code = "host_not_allowed"


class QueueFullError(SrbError):
    """The queue is full."""

    status = 429
    type = "rate_limit_error"
    code = "queue_full"
    retry_after = 2


class NotSupportedError(SrbError):
    """The model or the server's options don't support this."""

    status = 501
    type = "not_supported_error"
    code = "not_supported"


class UnavailableError(SrbError):
    """The model is loading, the server is shutting down, or a request waited too long."""

    status = 503
    type = "unavailable_error"
    code = "unavailable"
    retry_after: ClassVar[int | None] = 2


CLOSED = "the server is shutting down, or its engine restarts: the model is no longer loaded"
"""The message of an `UnavailableError` for a caller that uses the model after it was closed."""


class EngineRestartError(UnavailableError):
    """The engine failed and is restarting."""

    code = "engine_restart"


class EngineDeadError(UnavailableError):
    """The engine failed permanently; restart the server."""

    code = "engine_dead"
    retry_after = None


class HistoryError(SrbError):
    """The history file can't be read or written: the disk is full, or the file is damaged or from a newer version."""

    status = 503
    code = "history_unavailable"


class BackendError(SrbError):
    """llama.cpp reported an error during decoding or sampling.

    Args:
        message: What is wrong.
        param: The field that caused it, if known.
        seq_ids: The sequences that caused it, if known.
    """

    code = "backend_error"

    def __init__(self, message: str, *, param: str | None = None, seq_ids: tuple[int, ...] = ()) -> None:
        super().__init__(message, param=param)
        self.seq_ids = seq_ids


class NoTokenError(BackendError):
    """The grammar and settings of an alternative allow no next token."""

    status = 400
    type = "invalid_request_error"
    code = "no_token"


class LogitsProcessorError(BackendError):
    """An alternative's `logits_processor` raised an error, which is the `__cause__`, or left no finite logits."""

    code = "logits_processor_error"

    def __init__(self, message: str) -> None:
        super().__init__(message, param="logits_processor")
