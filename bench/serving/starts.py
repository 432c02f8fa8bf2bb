"""Measure how long a server takes from its start until `/health` is ok, and until its first token.

usage: python bench/serving/starts.py [--tries 9] [--binaries FOLDER_OF_LLAMA_SERVER] [--beside FOLDER] [MODEL.gguf]

The servers are started in turn, and each is stopped before the next one. `--beside` is the folder of another version of
srb, which is started with the same Python. For each server the program prints the minimum and the median, in seconds,
and the CPU time until the first token. Other programs and cold files can only slow a start down, so compare
the minimum.
"""

import argparse
import os
import socket
import statistics
import subprocess
import time
from pathlib import Path

from compare import CELLS
from peers import Peer

from srb.llama.model.model_file import find_model
from srb.llama.native.params import physical_cores

ROOT = Path(__file__).parents[2]
BODY = b'{"prompt": "Once upon a time,", "max_tokens": 1, "n_predict": 1}'


def main() -> None:
    """Print a table with a row for each server."""
    parser = argparse.ArgumentParser(description="How long does a server take to start?")
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--tries", type=int, default=9)
    parser.add_argument("--binaries", type=Path, help="the folder of llama-server; without it, only srb is measured")
    parser.add_argument("--beside", type=Path, help="the folder of another version of srb")
    arguments = parser.parse_args()
    servers = {"srb": (Peer("srb", True, ()), ROOT)}
    if arguments.beside:
        servers["the other srb"] = Peer("srb", True, ()), arguments.beside
    if arguments.binaries:
        servers["llama-server"] = Peer("llama-server", False, ()), ROOT
    model, found = find_model(arguments.model).absolute(), {name: list[tuple[float, ...]]() for name in servers}
    for _ in range(arguments.tries):
        for name, (peer, folder) in servers.items():
            found[name].append(start(peer, folder, model, (arguments.binaries or Path()).absolute()))
    print("", "ready", "first token", "processor time", sep="\t")
    for name, tries in found.items():
        numbers = [f"{min(each):.3f} ({statistics.median(each):.3f})" for each in zip(*tries, strict=True)]
        print(name, *numbers, sep="\t")


def start(peer: Peer, folder: Path, model: Path, binaries: Path) -> tuple[float, ...]:
    """Start a server and stop it. Return the seconds until it was ready, until it had a token, and of CPU time."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = peer.command(model, port, CELLS, physical_cores(), binaries)
    path = b"/v1/completions" if peer.is_srb else b"/completion"
    began = time.perf_counter()
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            while not answers(port, b"GET /health HTTP/1.1\r\n"):
                if process.poll() is not None:
                    raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
                time.sleep(0.005)
            ready = time.perf_counter() - began
            head = b"POST %s HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n" % (path, len(BODY))
            assert answers(port, head, BODY)
            first = time.perf_counter() - began
            ticks = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
            return ready, first, sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
        finally:
            process.terminate()


def answers(port: int, head: bytes, body: bytes = b"") -> bool:
    """Send a request and read the answer to its end. Return whether it is 200."""
    try:
        with socket.create_connection(("127.0.0.1", port), 60) as client:
            client.sendall(head + b"Host: 127.0.0.1\r\nConnection: close\r\n\r\n" + body)
            return b" 200 " in b"".join(iter(lambda: client.recv(1 << 16), b"")).partition(b"\n")[0]
    except OSError:
        return False


if __name__ == "__main__":
    main()
