"""Turns errors into answers, each in the format of its path."""

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
from srb.wire.route import OWN_ERRORS, Errors

logger = logging.getLogger("srb")

ERRORS: web.AppKey[dict[tuple[str, str], Errors]] = web.AppKey("errors")
"""How errors look, by method and path. Paths that aren't here have `OWN_ERRORS`."""


def route_of(request: web.Request) -> str | None:
    """The path of the request's route, as the log has it: what stands in an own path may be a key; None: no route."""
    resource = request.match_info.route.resource
    return resource.canonical if resource else None


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Middleware: it answers with an error when a handler raises one, or cuts the connection if an answer has begun."""
    try:
        return await handler(request)
    except SrbError as error:
        _raise_if_begun(request, error)
        return _refuse(request, error)
    except web.HTTPNotFound:
        return _refuse(request, NotFoundError(f"there is no {request.path}"))
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        response = _refuse(request, MethodNotAllowedError(f"{request.path} takes {allowed}, not {request.method}"))
        response.headers["Allow"] = allowed
        return response
    except (web.HTTPException, ConnectionError):  # these are aiohttp's own, and aiohttp answers them
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            log = request.app[CONNECTIONS].log
            log.log(logging.WARNING, "%s %s has failed: %s", request.method, route_of(request), error.strerror)
            _raise_if_begun(request, error)
            return error_response(request, UnavailableError("the server has too many files open; try again soon"))
        fault = uuid.uuid4().hex
        logger.exception("fault %s in %s %s", fault, request.method, route_of(request))
        _raise_if_begun(request, error)
        return error_response(request, SrbError(f"a fault in the server; its log has it under {fault}"))


def _raise_if_begun(request: web.Request, error: Exception) -> None:
    """Raises `ConnectionResetError` if some of an answer was sent: a second answer would be in the first one's body."""
    if request.writer.output_size:
        raise ConnectionResetError("the answer had begun") from error


def _refuse(request: web.Request, error: SrbError) -> web.Response:
    """Answers with an error, and logs a line about it."""
    line = logfmt(
        event="error",
        method=request.method,
        path=route_of(request),
        status=error.status,
        code=error.code,
        param=re.split(r"\W", error.param)[0] if error.param else None,  # behind that come names that somebody has sent
        message=loggable(error),
    )
    logger.info("%s", line)
    return error_response(request, error)


def error_response(
    request: web.Request, error: SrbError, body: dict[str, Any] | None = None, status: int | None = None
) -> web.Response:
    """An answer with an error in the format of the path. body: other fields of the answer, beside those of the error.

    status: the HTTP status, if it isn't that of the error.
    """
    headers = {}
    if error.retry_after is not None:
        headers["Retry-After"] = str(error.retry_after)
    if isinstance(error, AuthenticationError):
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, UnsupportedMediaTypeError):
        headers["Accept-Encoding"] = "identity"
    errors = request.app[ERRORS].get((request.method, request.path), OWN_ERRORS)
    return web.json_response((body or {}) | errors.shape(error), status=status or error.status, headers=headers)
