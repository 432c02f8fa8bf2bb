"""Downloads the models of `--hf-repo` and `--model-url` once, finds a model in `--models-dir`, and shows progress."""

import dataclasses
import fcntl
import hashlib
import http.client
import importlib.util
import os
import re
import sys
import urllib.error
import urllib.parse
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from srb.errors import ModelLoadError, SettingsError
from srb.options.arguments import pip_install
from srb.options.settings import Settings

if TYPE_CHECKING:
    from rich.console import Console

CHUNK_BYTES = 1 << 20
SILENCE_SECONDS = 60

Progress = Callable[[int, int], object]
"""Gets the number of bytes so far, and of all bytes of the file."""

Count = Callable[..., None]
"""Counts one, or as many as its argument says."""


def fetch_model(settings: Settings) -> Settings:
    """Finds the model file that the settings name, and downloads it if it isn't on this machine.

    A terminal shows the progress.
    Raises `SettingsError` for several models or one that doesn't exist, and `ModelLoadError` if it can't be downloaded.
    """
    given = {"--model": settings.model, "--model-url": settings.model_url, "--hf-repo": settings.hf_repo}
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise SettingsError(f"{' and '.join(names)} name a model each; give one of them")
    if settings.hf_file is not None and settings.hf_repo is None:
        raise SettingsError(f"--hf-file {settings.hf_file} is a file in --hf-repo, which is missing")
    if settings.model_url is not None:
        path = fetch_url(settings.model_url)
    elif settings.hf_repo is not None:
        path = fetch_from_hub(settings.hf_repo, settings.hf_file)
    elif settings.models_dir is not None and not (settings.model and settings.model.exists()):
        path = find_in_folder(settings.models_dir, settings.model)
    else:
        return settings
    return dataclasses.replace(settings, model=path, model_url=None, hf_repo=None, hf_file=None)


def find_in_folder(folder: Path, name: Path | None) -> Path:
    """Finds a model file below a folder: the one with this name, or the only one whose name begins with it.

    `.gguf` may be left out. Without a name there must be one model file. Of a model in several files it is the first.
    Raises `SettingsError`.
    """
    if not folder.is_dir():
        raise SettingsError(f"--models-dir {folder} is not a folder")
    files = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*.gguf"))}
    files = {
        each: path
        for each, path in files.items()
        if not (part := re.search(r"-(\d{5})-of-\d{5}\.gguf$", each)) or int(part[1]) == 1
    }
    prefix = str(name or "").casefold()
    found = [each for each in files if prefix in (each.casefold(), each.casefold().removesuffix(".gguf"))]
    found = found or [each for each in files if each.casefold().startswith(prefix)]
    if len(found) == 1:
        return files[found[0]]
    asked = f"several models for {name}" if found and name else f"no {name}" if name else "several models"
    there = ", ".join(found or files) or "no GGUF file"
    raise SettingsError(f"--models-dir {folder} has {asked}; --model takes one of: {there}")


def fetch_from_hub(repo: str, file: str | None) -> Path:
    """Downloads a file of a Hugging Face repository, unless it is in the hub's own cache. None: its only GGUF file.

    The hub gets the token in HF_TOKEN. huggingface_hub resumes interrupted downloads, and shows its own progress.
    Raises `SettingsError` and `ModelLoadError`.
    """
    if importlib.util.find_spec("huggingface_hub") is None:
        command = pip_install("'llama-srb[hub]'")
        raise SettingsError(f"--hf-repo needs huggingface_hub: {command}")
    import huggingface_hub  # here, because importing it is slow, and it may be missing

    try:
        if file is None:
            files = [name for name in huggingface_hub.HfApi().list_repo_files(repo) if name.endswith(".gguf")]
            if len(files) != 1:
                what = f"these GGUF files: {', '.join(files)}" if files else "no GGUF file"
                raise SettingsError(f"--hf-repo {repo} has {what}; name one with --hf-file")
            file = files[0]
        return Path(huggingface_hub.hf_hub_download(repo, file))
    except (OSError, ValueError) as error:  # all of the hub's errors are one of these
        message = " ".join(str(error).split())
        raise ModelLoadError(f"--hf-repo {repo}: {message} (a private one needs a token in HF_TOKEN)") from None


def models_folder() -> Path:
    """Returns the folder for the files of `--model-url`."""
    return cache_folder() / "models"


def fetch_url(url: str) -> Path:
    """Downloads a file to `models_folder`, unless it is there. Resumes an interrupted download.

    Raises `SettingsError` and `ModelLoadError`.
    """
    parts = urllib.parse.urlsplit(url)
    name = urllib.parse.unquote(parts.path).rpartition("/")[2]
    if parts.scheme not in ("http", "https") or not name.strip("."):
        raise SettingsError(f"--model-url takes the http:// or https:// URL of a file, got {url!r}")
    target = models_folder() / hashlib.sha256(url.encode()).hexdigest()[:16] / name
    if target.exists():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with locked(target.with_name(name + ".lock")), show_download(name) as progress:
            if not target.exists():  # another process may have downloaded it while this one waited
                _download(url, target, progress)
    except urllib.error.HTTPError as error:
        raise ModelLoadError(f"--model-url {url}: the server answered {error.code} {error.reason}") from None
    except urllib.error.URLError as error:
        raise ModelLoadError(f"--model-url {url} can't be fetched: {error.reason}") from None
    except (OSError, http.client.HTTPException) as error:
        raise ModelLoadError(
            f"--model-url {url} can't be fetched: {error}; the same command resumes the download"
        ) from None
    return target


def cache_folder() -> Path:
    """Returns the folder for what srb has downloaded, converted and measured. It may not exist yet."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "llama-srb"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Locks a file during the block, after other processes. Raises `OSError`."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _download(url: str, target: Path, progress: Progress) -> None:
    """Fetches a file, or what is missing of it. Reconnects as long as each connection has brought some bytes."""
    part, validator = (target.with_name(target.name + suffix) for suffix in (".part", ".validator"))
    while True:
        size = _size(part)
        try:
            _fetch_rest(url, part, validator, progress)
        except urllib.error.HTTPError as error:
            if error.code != http.client.REQUESTED_RANGE_NOT_SATISFIABLE or not size:
                raise
            error.close()
            part.unlink()  # it was already as long as the file, or longer
        except (ConnectionError, TimeoutError):
            if _size(part) <= size:
                raise
        else:
            break
    part.rename(target)
    validator.unlink(missing_ok=True)


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _fetch_rest(url: str, part: Path, validator: Path, progress: Progress) -> None:
    """Appends what is missing to a part, or begins it again if the server doesn't confirm that the file is the same."""
    headers, size = {"User-Agent": "srb", "Accept-Encoding": "identity"}, _size(part)
    if size and validator.exists() and (confirmed := validator.read_text()):
        headers |= {"Range": f"bytes={size}-", "If-Range": confirmed}
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=SILENCE_SECONDS) as reply:
        is_rest = reply.status == http.client.PARTIAL_CONTENT
        done, length, sent = size if is_rest else 0, reply.headers["Content-Length"], reply.headers["Content-Range"]
        if length is None:
            raise OSError("the server doesn't send the length of the file")
        if is_rest and not f"{sent}".startswith(f"bytes {done}-"):
            raise OSError(f"the server sent {sent} instead of all bytes from {done} on")
        if not done:
            validator.write_text(_validator(reply.headers))
        total = done + int(length)
        progress(done, total)
        with part.open("ab" if done else "wb") as file:
            while chunk := reply.read1(CHUNK_BYTES):
                file.write(chunk)
                done += len(chunk)
                progress(done, total)
        if done < total:  # read1 raises nothing when the connection ends too early
            raise ConnectionError(f"the connection broke off after {done} of {total} bytes")


def _validator(headers: http.client.HTTPMessage) -> str:
    """Returns the value for If-Range: a strong ETag, or else the date; empty if the server sends neither."""
    etag = headers["ETag"] or ""
    return etag if etag.startswith('"') else headers["Last-Modified"] or ""


# Progress bars, on stderr, if it is a terminal. rich is imported only when something is
# shown: the import takes as long as a tenth of a small model's loading.


def error_console() -> "Console":
    """Makes a console for stderr as it is now: a terminal or not, and its width."""
    from rich.console import Console

    return Console(stderr=True)


@contextmanager
def show_loading(fraction: Callable[[], float]) -> Iterator[None]:
    """Shows the loaded fraction of a model, 0 to 1, while the block runs."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.live import Live
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    def bar() -> Table:
        row = Table.grid(padding=(0, 1))
        row.add_row("loading the model", ProgressBar(total=1, completed=fraction(), width=40), f"{fraction():.0%}")
        return row

    with Live(get_renderable=bar, console=error_console(), transient=True):
        yield


@contextmanager
def show_count(what: str, total: int, *, show: bool = True) -> Iterator[Count]:
    """Shows a count up to `total` in a terminal or a notebook. The block gets a `Count`."""
    console = error_console()
    if not show or not (console.is_terminal or console.is_jupyter):
        yield lambda _n=1: None
    elif console.is_jupyter:
        with _notebook_count(what, total) as count:
            yield count
    else:
        from rich.progress import MofNCompleteColumn, Progress

        columns = (*Progress.get_default_columns(), MofNCompleteColumn())
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task(what, total=total)
            yield lambda n=1: bar.advance(task, n)


@contextmanager
def _notebook_count(what: str, total: int) -> Iterator[Count]:
    """Shows a count in a notebook if tqdm is installed, which needs no widgets, as rich does."""
    try:
        with warnings.catch_warnings():  # without ipywidgets, its count is a line of text
            warnings.simplefilter("ignore")
            from tqdm.auto import tqdm
    except ImportError:
        yield lambda _n=1: None
        return
    with tqdm(total=total, desc=what, leave=False) as bar:

        def count(n: int = 1) -> None:
            bar.update(n)

        yield count


@contextmanager
def show_download(name: str) -> Iterator[Progress]:
    """Shows a download. The block gets a `Progress`."""
    from rich.progress import DownloadColumn, Progress, TransferSpeedColumn

    console = error_console()
    columns = (*Progress.get_default_columns(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(name, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
