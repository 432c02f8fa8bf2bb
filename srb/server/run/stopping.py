"""`stop_signal`: how SIGTERM and SIGINT stop the server, whatever its event loop does."""

import asyncio
import faulthandler
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

STOP_SECONDS = 60.0
"""So long after the first signal the process ends, also if a thread hangs, and says on stderr where each of them is."""

_STOPPING = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stop_signal() -> Iterator[asyncio.Future[None]]:
    """A future that the first SIGTERM or SIGINT completes. The second one ends the process, and so do STOP_SECONDS.

    The signals come to a thread of their own: the event loop may be what hangs. If none has come until the end, they
    mean again what they meant before.
    """
    loop = asyncio.get_running_loop()
    stop: asyncio.Future[None] = loop.create_future()
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    wakeup = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    handlers = {}
    for number in _STOPPING:
        # Without a function of Python's, nothing would come to the socket.
        handlers[number] = signal.signal(number, lambda *_: None)
        signal.siginterrupt(number, False)
    came = threading.Event()

    def watch() -> None:
        with reader:
            numbers = (byte[0] for byte in iter(lambda: reader.recv(1), b"") if byte[0] in _STOPPING)
            if next(numbers, None) is None:
                return
            came.set()
            faulthandler.dump_traceback_later(STOP_SECONDS, exit=True)
            with suppress(RuntimeError):  # the loop has ended by itself
                loop.call_soon_threadsafe(stop.set_result, None)
            os._exit(128 + next(numbers))

    watcher = threading.Thread(target=watch, name="srb-signals", daemon=True)
    watcher.start()
    try:
        yield stop
    finally:
        if not came.is_set():
            signal.set_wakeup_fd(wakeup)
            for number, handler in handlers.items():
                signal.signal(number, handler)
            writer.close()
            watcher.join()
        else:
            writer.detach()  # the watcher reads on until the process ends
