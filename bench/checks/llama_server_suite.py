#!/usr/bin/env python3
"""Run llama-server's own tests, from llama.cpp's sources, against srb.

    python bench/checks/llama_server_suite.py llama.cpp/tools/server/tests [pytest arguments]

Each test starts its server through this file, which translates llama-server's options into srb's. The model is srb's
default model, not that of the tests. So texts aren't compared, and tests that count a prompt's tokens fail.
The program needs pytest, `requests` and `openai`. docs/http/llama-server.md has the results.
"""

import os
import sys
import types
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

FLAGS = {
    "--port": "--port",
    "--host": "--host",
    "--alias": "--alias",
    "--ctx-size": "--ctx-size",
    "--batch-size": "--batch-size",
    "--ubatch-size": "--ubatch-size",
    "--parallel": "--max-n",
    "--n-predict": "--max-tokens",
    "--pooling": "--pooling",
    "-fa": "--flash-attn",
    "--api-key": "--api-key",
    "--cors-origins": "--cors-origins",
    "--chat-template": "--chat-template",
    "--chat-template-file": "--chat-template-file",
    "--slot-save-path": "--slot-save-path",
    "--sleep-idle-seconds": "--sleep-idle-seconds",
    "--lora": "--lora",
}
SWITCHES = {
    "--slots": "--slots",
    "--no-slots": "--no-slots",
    "--embedding": "--embeddings",
    "--reranking": "--reranking",
    "--context-shift": "--context-shift",
}


def serve(arguments: list[str]) -> None:
    """Replace this process by `srb serve`, with those of llama-server's options that srb supports."""
    options = ["--n", "1"]
    for name, value in zip(arguments, [*arguments[1:], ""], strict=True):
        if name in FLAGS:
            options += [FLAGS[name], value]
        elif name in SWITCHES:
            options.append(SWITCHES[name])
    if "--max-n" not in options:
        options += ["--max-n", "4"]
    if "--embeddings" in options and "--pooling" not in options:
        options += ["--pooling", "mean"]  # the tests' embedding model sets a pooling in its file
    os.execv(sys.executable, [sys.executable, "-m", "srb", "serve", *options])


def with_options(request: Callable[..., Any]) -> Callable[..., Any]:
    """Add a seed and n_predict to a body. llama-server has options for their defaults, srb doesn't."""

    def make(server: Any, method: str, path: str, data: Any = None, *more: Any, **named: Any) -> Any:
        if data is not None and path in ("/completion", "/completions", "/infill"):
            data = {"seed": server.seed} | ({"n_predict": server.n_predict} if server.n_predict else {}) | data
        return request(server, method, path, data, *more, **named)

    return make


def run_tests(folder: Path, arguments: list[str]) -> int:
    """Run the tests in the folder, and return pytest's exit code."""
    import pytest

    for name, attributes in {"wget": {}, "filelock": {"FileLock": lambda _path: nullcontext()}}.items():
        sys.modules[name] = types.ModuleType(name)  # the tests import these to download their models
        vars(sys.modules[name]).update(attributes)
    sys.path.insert(0, str(folder))
    os.chdir(folder)
    os.environ["LLAMA_SERVER_BIN_PATH"] = __file__
    import utils  # type: ignore[import-not-found]

    utils.ServerPreset.load_all = lambda: None
    utils.match_regex = lambda _pattern, _text: True
    for name in ("make_request", "make_stream_request"):
        setattr(utils.ServerProcess, name, with_options(getattr(utils.ServerProcess, name)))
    return int(pytest.main(["-p", "no:cacheprovider", "-q", *arguments]))


if __name__ == "__main__":
    if "--port" in sys.argv:
        serve(sys.argv[1:])
    sys.exit(run_tests(Path(sys.argv[1]).resolve(), sys.argv[2:]))
