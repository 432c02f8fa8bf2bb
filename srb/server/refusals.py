"""How errors look on the way out."""

import logging
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from srb.errors import AuthenticationError, MethodNotAllowedError, NotFoundError, SrbError, UnsupportedMediaTypeError
from srb.request_log import logfmt

logger = logging.getLogger("srb")

Shape = Callable[[SrbError], dict[str, Any]]

SHAPES: web.AppKey[dict[tuple[str, str], Shape]] = web.AppKey("shapes")
"""What makes the body of an error, for the methods of paths where it isn't `{"error": SrbError.body()}`."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answers with an error where one is raised."""
    try:
        return await handler(request)
    except SrbError as error:
        return _refuse(request, error)
    except web.HTTPNotFound:
        return _refuse(request, NotFoundError(f"there is no {request.path}"))
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        response = _refuse(request, MethodNotAllowedError(f"{request.path} takes {allowed}, not {request.method}"))
        response.headers["Allow"] = allowed
        return response
    except (web.HTTPException, ConnectionError):  # from aiohttp itself, which knows what to do with them
        raise
    except Exception:
        fault = uuid.uuid4().hex
        logger.exception("fault %s in %s %s", fault, request.method, request.path)
        return error_response(request, SrbError(f"a fault in the server; its log has it under {fault}"))


def _refuse(request: web.Request, error: SrbError) -> web.Response:
    """Answers with an error, and logs that."""
    line = logfmt(
        event="error",
        method=request.method,
        path=request.path,
        status=error.status,
        code=error.code,
        param=error.param,
        message=error.message,
    )
    logger.info("%s", line)
    return error_response(request, error)


def error_response(
    request: web.Request, error: SrbError, body: dict[str, Any] | None = None, status: int | None = None
) -> web.Response:
    """An error in the format of the path, beside what else the body has."""
    headers = {}
    if error.retry_after is not None:
        headers["Retry-After"] = str(error.retry_after)
    if isinstance(error, AuthenticationError):
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, UnsupportedMediaTypeError):
        headers["Accept-Encoding"] = "identity"
    shape = request.app[SHAPES].get((request.method, request.path), _body)
    return web.json_response((body or {}) | shape(error), status=status or error.status, headers=headers)


def _body(error: SrbError) -> dict[str, Any]:
    return {"error": error.body()}
