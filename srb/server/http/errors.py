"""Error responses: middleware that turns errors into JSON, in the format of each path."""

import errno
import logging
import re
import uuid
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

from srb.errors import (
    AuthenticationError,
    MethodNotAllowedError,
    NotFoundError,
    SrbError,
    UnavailableError,
    UnsupportedMediaTypeError,
)
from srb.server.http.connections import CONNECTIONS
from srb.serving.logs import logfmt, loggable
from srb.wire.route import SRB_ERRORS, ErrorFormat

logger = logging.getLogger("srb")

ERROR_FORMATS: web.AppKey[dict[tuple[str, str], ErrorFormat]] = web.AppKey("error_formats")
"""The formats of errors, by method and path. The default is `SRB_ERRORS`."""


PATH_PARTS = 8
"""The number of parts of a path without a route that are logged."""


def route_of(request: web.Request) -> str:
    """The request's route, for the log.

    Without a route it is the path, so that a wrong base address can be found. A path may contain a key, so only parts
    that routes have are shown, and the others are `*`.
    """
    if resource := request.match_info.route.resource:
        return resource.canonical
    parts = request.path.split("/", PATH_PARTS + 1)[: PATH_PARTS + 1]
    paths = [path for _, path in request.app[ERROR_FORMATS]]
    known = {"", "v2", "v3", *(part for path in paths for part in path.split("/") if "{" not in part)}
    return "/".join(part if part in known else "*" for part in parts)


@web.middleware
async def error_middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Middleware: answers with the error that a handler raises, or cuts the connection if a response has begun."""
    try:
        return await handler(request)
    except SrbError as error:
        _raise_if_started(request, error)
        return log_and_answer(request, error)
    except web.HTTPNotFound:
        return log_and_answer(request, NotFoundError(f"there is no {request.path}"))
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        response = log_and_answer(
            request, MethodNotAllowedError(f"{request.path} takes {allowed}, not {request.method}")
        )
        response.headers["Allow"] = allowed
        return response
    except (web.HTTPException, ConnectionError):  # aiohttp answers its own errors
        raise
    except Exception as error:
        if shortage := _shortage(error):
            log = request.app[CONNECTIONS].log
            log.log(logging.WARNING, "%s %s failed: the server has %s", request.method, route_of(request), shortage)
            _raise_if_started(request, error)
            return error_response(request, UnavailableError(f"the server has {shortage}; try again soon"))
        error_id = uuid.uuid4().hex
        logger.exception("internal error %s in %s %s", error_id, request.method, route_of(request))
        _raise_if_started(request, error)
        return error_response(request, SrbError(f"internal error; the server's log has it under {error_id}"))


def _shortage(error: Exception) -> str | None:
    """Say what the server ran out of, if this is the error's cause."""
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return "too many open files"
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return "no memory left"
    if isinstance(error, RuntimeError) and "start new thread" in str(error):
        return "no memory left for a thread, or as many threads as it may have"
    return None


def _raise_if_started(request: web.Request, error: Exception) -> None:
    """Raises `ConnectionResetError` if a response has begun: a second one would be sent inside its body."""
    if request.writer.output_size:
        raise ConnectionResetError("the response had begun") from error


def log_and_answer(request: web.Request, error: SrbError) -> web.Response:
    """Answers with an error, and logs it."""
    line = logfmt(
        event="error",
        method=request.method,
        path=route_of(request),
        status=error.status,
        code=error.code,
        param=re.split(r"\W", error.param)[0] if error.param else None,  # names that clients sent may follow
        message=loggable(error),
    )
    logger.info("%s", line)
    return error_response(request, error)


def error_response(
    request: web.Request, error: SrbError, body: dict[str, Any] | None = None, status: int | None = None
) -> web.Response:
    """A response with an error, in the format of the path, with its own status or another."""
    headers = {}
    if error.retry_after is not None:
        headers["Retry-After"] = str(error.retry_after)
    if isinstance(error, AuthenticationError):
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, UnsupportedMediaTypeError):
        headers["Accept-Encoding"] = "identity"
    form = _format_of(request)
    return web.json_response((body or {}) | form.to_json(error), status=status or error.status, headers=headers)


def _format_of(request: web.Request) -> ErrorFormat:
    """The format of errors at the request's path. Without a route, it is that of all routes next to the path."""
    formats, folder = request.app[ERROR_FORMATS], request.path.rpartition("/")[0]
    if found := formats.get((request.method, request.path)):
        return found
    near = [form for (_, path), form in formats.items() if path.rpartition("/")[0] == folder]
    return near[0] if near and all(form is near[0] for form in near) else SRB_ERRORS
