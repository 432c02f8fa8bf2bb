"""Binds the server's sockets. It imports little, so that a port in use is the first thing that `srb serve` says."""

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from srb.errors import SettingsError
from srb.options.settings import Settings

SOCKET_UMASK = 0o117
"""Only the owner and the group of a Unix socket may connect: a proxy in front of the server, for example."""


@contextmanager
def bound(settings: Settings) -> Iterator[list[socket.socket]]:
    """Sockets for each address of the settings. At the end they are closed, and a Unix socket is removed.

    Raises `SettingsError` if the server can't listen there.
    """
    path, port, sockets = settings.uds, settings.port, list[socket.socket]()
    where, option = str(path), "--port" if path is None else "--uds"
    with ExitStack() as at_end:
        try:
            if path:
                sockets.append(at_end.enter_context(_bind_path(path)))
                at_end.callback(path.unlink, missing_ok=True)
            for host in () if path else settings.host.split(","):
                where = f"{host}:{port}"
                found = socket.getaddrinfo(host.strip(), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
                for family, _, _, _, address in dict.fromkeys(found):
                    sockets.append(at_end.enter_context(_bind(family, (address[0], port, *address[2:]))))
                    port = sockets[0].getsockname()[1]  # the system chooses a port if it was 0; all addresses get it
        except OSError as error:
            raise SettingsError(f"can't listen on {where}: {error.strerror or error}; try another {option}") from None
        yield sockets


def _bind(family: int, address: tuple[object, ...]) -> socket.socket:
    sock = socket.socket(family)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, True)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, True)
        sock.bind(address)
    except BaseException:
        sock.close()
        raise
    return sock


def _bind_path(path: Path) -> socket.socket:
    """A socket at this path. It replaces the socket of a server that has ended. Raises `OSError`."""
    if path.is_socket():
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1)
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:  # no server listens there; if one does, bind() fails
                path.unlink()
            except OSError:
                pass
    sock = socket.socket(socket.AF_UNIX)
    umask = os.umask(SOCKET_UMASK)
    try:
        sock.bind(str(path))
    except BaseException:
        sock.close()
        raise
    finally:
        os.umask(umask)
    return sock
