"""Runs pandoc, which reads and writes documents. It isn't a part of srb: the extra `documents` brings it."""

import asyncio
import re
import shutil
import subprocess
from functools import cache

from srb.errors import InvalidRequestError, NotSupportedError
from srb.serving.engine_client import EngineClient

HEAP = "-M1G"
"""The most memory of pandoc, as an option of its runtime: documents are compressed, and may grow a thousandfold."""

SECONDS = 120.0

_MAJOR = 3
"""The oldest version. Version 2 can't write documents with --sandbox."""

_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
"""None of the server's variables: they may have secrets, and some change what pandoc does."""

_HOW = "pip install 'llama-srb[documents]' brings pandoc; or install pandoc 3 or later from pandoc.org or your system"


@cache  # an error isn't cached, so pandoc may be installed while the server runs
def find_pandoc() -> str:
    """The path of pandoc: the newer one of the package's and the system's. Raises `NotSupportedError`."""
    try:
        import pypandoc

        path = str(pypandoc.get_pandoc_path())
    except (ImportError, OSError):
        path = shutil.which("pandoc") or ""
    if not path:
        raise NotSupportedError(f"docx and epub need pandoc, which isn't installed: {_HOW}", code="pandoc_missing")
    said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=SECONDS, env=_ENVIRONMENT).stdout
    version = re.match(r"pandoc\S* (\d+)\S*", said)
    if not version or int(version[1]) < _MAJOR:
        found = version[0] if version else path
        raise NotSupportedError(
            f"docx and epub need pandoc {_MAJOR} or later, found {found}: {_HOW}", code="pandoc_missing"
        )
    return path


class Pandoc:
    """Converts documents, one at a time, in a process without access to files and network. count: of conversions."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self.count = 0

    async def convert(self, engine: EngineClient, data: bytes, *arguments: str) -> bytes:
        """The output of pandoc for this input. Raises `NotSupportedError` without pandoc, and `QueueFullError`.

        Raises `InvalidRequestError` if the document can't be read, or is too large or too deep.
        """
        path = await asyncio.to_thread(find_pandoc)
        engine.check_queue(max(0, self.count - 1))
        self.count += 1
        try:
            async with self._lock:
                return await _run([path, "+RTS", HEAP, "-RTS", "--sandbox", *arguments], data)
        finally:
            self.count -= 1


async def _run(command: list[str], data: bytes) -> bytes:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe, env=_ENVIRONMENT)
    try:
        async with asyncio.timeout(SECONDS):
            output, errors = await process.communicate(data)
    except TimeoutError:
        raise InvalidRequestError(
            f"pandoc hasn't converted the document within {SECONDS:g} s; send it in parts", code="document_too_large"
        ) from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        said = errors.decode(errors="replace").strip().splitlines() or [f"it ended with {process.returncode}"]
        raise InvalidRequestError(f"pandoc can't convert the document: {said[0]:.300}", code="document_not_converted")
    return output
