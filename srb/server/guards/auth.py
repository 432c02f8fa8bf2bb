"""Checks API keys, which clients send as those of OpenAI and of llama-server do, and says what a key has for itself."""

import asyncio
import hashlib
import hmac
from functools import cache

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from srb.errors import AuthenticationError

API_KEYS = web.AppKey("api_keys", tuple[bytes, ...])

SHARES_PROMPTS = web.AppKey("shares_prompts", bool)
"""Whether requests with different keys begin with what the others have evaluated (`--share-prompts all`)."""

OPEN = {"/", "/web/{file}", "/health", "/v1/health", "/openapi.json", "/docs"}
"""The paths that may be read without a key: the page, what supervisors ask for, and what says how to send a key."""

HEADER = "x-api-key"

_OWNER = web.RequestKey("owner", str)


def is_open(request: web.Request) -> bool:
    """Whether a request needs no key, because it reads a path of `OPEN`."""
    resource = request.match_info.route.resource
    reads = request.method in (hdrs.METH_GET, hdrs.METH_HEAD)
    return reads and resource is not None and resource.canonical in OPEN


@web.middleware
async def check_key(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Lets requests pass that have one of the keys or need none. Raises `AuthenticationError` for all others."""
    keys = request.app[API_KEYS]
    if keys and not is_open(request):
        sent = _sent_keys(request)
        # Every pair is compared, each in constant time. So the time of the answer tells nothing about the keys.
        matching = [key for each in sent for key in keys if hmac.compare_digest(each, key)]
        if not matching:
            problem = "is not one of this server's" if sent else "is missing"
            raise AuthenticationError(
                f"the API key {problem}; send one as 'Authorization: Bearer KEY' or '{HEADER}: KEY'"
            )
        request[_OWNER] = hashlib.sha256(matching[0]).hexdigest()
    return await handler(request)


def owner_of(request: web.Request) -> str | None:
    """The owner of a request: the hash of its key, or None if the server has no keys. Other owners can't see it."""
    return request.get(_OWNER)


async def shared_within(request: web.Request) -> str:
    """The `CompletionRequest.shared_within` of what comes with this request's key; empty where all share everything."""
    owner = owner_of(request)
    # In a thread, because the first time takes a while.
    return "" if owner is None or request.app[SHARES_PROMPTS] else await asyncio.to_thread(_name_of, owner)


@cache
def _name_of(owner: str) -> str:
    """A name of an owner for files that outlive the key.

    It is always the same for the same key. To guess a key by it takes some hundredths of a second for each guess.
    """
    return hashlib.pbkdf2_hmac("sha256", owner.encode(), b"srb: shared_within", 100_000, 16).hex()


def _sent_keys(request: web.Request) -> list[bytes]:
    scheme, _, credentials = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
    sent = [credentials.strip()] if scheme.lower() == "bearer" else []
    sent += request.headers.getall(HEADER, [])
    return [key.encode(errors="surrogateescape") for key in sent if key]
