"""How routes read and write the history: with the owner of their request, and through the app's `Keeper`."""

import asyncio
import sqlite3
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from aiohttp import web

from srb.server.guards.auth import owner_of
from srb.server.run.keeper import Keeper

KEEPER = web.AppKey("keeper", Keeper)

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


async def read_file(
    request: web.Request,
    function: Callable[Concatenate[sqlite3.Connection, str | None, Arguments], Result],
    *args: Arguments.args,
    **kwargs: Arguments.kwargs,
) -> Result:
    """Calls a function that reads the history's file, with the owner of this request. Returns its result."""
    history, owner = request.app[KEEPER].history, owner_of(request)
    return await asyncio.to_thread(lambda: history.read(function, owner, *args, **kwargs))


async def write_file(
    request: web.Request,
    function: Callable[Concatenate[sqlite3.Connection, str | None, Arguments], Result],
    *args: Arguments.args,
    **kwargs: Arguments.kwargs,
) -> Result:
    """Calls a function that writes to the history's file, and tells those who watch the story.

    Both happen even if the client leaves meanwhile.
    """
    writing = asyncio.wrap_future(request.app[KEEPER].history.write(function, owner_of(request), *args, **kwargs))
    if story := request.match_info.get("story"):
        writing.add_done_callback(lambda _: request.app[KEEPER].feeds.tell(story))
    return await asyncio.shield(writing)
