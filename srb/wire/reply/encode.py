"""Encodes JSON values in a way that lets other threads run meanwhile.

A large answer is made in a worker thread, and a stream's batch lazily: after each 16 KiB of it others have their turn.
"""

import json
from collections.abc import Iterator
from typing import Any

_CONTAINERS = {dict, list, tuple}

_FEW = 500
"""So many objects and lists, or ten times as many numbers, are encoded at once, which takes about a millisecond."""


def encode(value: Any) -> bytes:
    """The JSON of a value, as `json.dumps` writes it. The names in objects must be strings.

    json's encoder lets no other thread run until it has finished. For an answer of 50 MB that takes seconds. So this
    function gives it a large value in parts.
    """
    return "".join(_parts(value)).encode()


def _parts(value: Any) -> Iterator[str]:
    if type(value) not in _CONTAINERS or _count(value, _FEW) >= 0:
        yield json.dumps(value)
    elif type(value) is dict:
        before = "{"
        for name, each in value.items():
            yield f"{before}{json.dumps(name)}: "
            yield from _parts(each)
            before = ", "
        yield "}"
    else:
        before = "["
        for each in value:
            yield before
            yield from _parts(each)
            before = ", "
        yield "]"


def _count(value: Any, left: int) -> int:
    """`left` minus the number of objects and lists in a value, and minus a tenth of the number of all entries.

    Counting stops when the result is negative.
    """
    left -= len(value) // 10
    for each in value.values() if type(value) is dict else value:
        if type(each) in _CONTAINERS:
            left = _count(each, left - 1)
            if left < 0:
                break
    return left
