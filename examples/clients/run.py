"""Install the client programs, each in a folder of its own, and run them against a server.

    ./build.sh serve
    python examples/clients/run.py --url http://localhost:9090

Each file in `programs/` is a client. Its first line lists its packages from PyPI or npm. It exits without an error if
the client got the expected answers. At the end this program prints a Markdown table with a row for each client.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

PROGRAMS = Path(__file__).parent / "programs"
SECONDS = 900
"""Time limit for installing a client, and for running it."""


def main() -> None:
    """Print the table; the exit code is 1 if any of them failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--url", default="http://localhost:9090", help="the server's address")
    parser.add_argument("--folder", type=Path, help="where to install; the folder is kept and reused")
    parser.add_argument("names", nargs="*", help="only these, by the names of their files without the ending")
    options = parser.parse_args()
    try:
        with urllib.request.urlopen(f"{options.url}/v1/models", timeout=10) as answer:
            model = json.load(answer)["data"][0]["id"]
    except OSError as error:
        sys.exit(f"Cannot connect to {options.url} ({error}). Start the server first: ./build.sh serve")
    paths = [path for path in sorted(PROGRAMS.iterdir()) if not options.names or path.stem in options.names]
    failed = False
    with tempfile.TemporaryDirectory() as scratch:
        folder = (options.folder or Path(scratch)).resolve()
        print("| client | version | result |\n|---|---|---|", flush=True)
        for path in paths:
            version, result = attempt(path, folder / path.name, os.environ | {"HOST": options.url, "MODEL": model})
            failed = failed or result != "works"
            print(f"| {path.stem} ({path.suffix[1:]}) | {version} | {result} |", flush=True)
    sys.exit(failed)


def attempt(path: Path, folder: Path, environment: dict[str, str]) -> tuple[str, str]:
    """Return the version of a client, and "works" or the reason why it fails."""
    folder.mkdir(parents=True, exist_ok=True)
    packages = path.read_text().partition("\n")[0].lstrip("#/ ").removeprefix("needs: ").split()
    version = ""
    try:
        if path.suffix == ".py":
            python = folder / "venv" / "bin" / "python"
            install_python(python, packages)
            version = version_of(python, packages[0])
            command = [str(python), str(path)]
        else:
            run(["npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), *packages], folder)
            about = json.loads((folder / "node_modules" / packages[0] / "package.json").read_text())
            version = about["version"]
            shutil.copy(path, folder)  # node looks for packages next to the file
            command = ["node", str(folder / path.name)]
        run(command, folder, environment)
    except subprocess.TimeoutExpired:
        return version, f"took longer than {SECONDS} s"
    except (subprocess.CalledProcessError, OSError) as error:
        return version, reason(error)
    return version, "works"


def install_python(python: Path, packages: list[str]) -> None:
    """Create a virtual environment with these packages, using uv if it exists, which is faster."""
    uv = shutil.which("uv")
    if not python.exists():
        folder = str(python.parent.parent)
        run([uv, "venv", "-q", "--python", sys.executable, folder] if uv else [sys.executable, "-m", "venv", folder])
    installer = [uv, "pip", "install", "-q", "--python", str(python)] if uv else [str(python), "-m", "pip", "install"]
    run([*installer, *packages])


def version_of(python: Path, package: str) -> str:
    """Return the installed version of a package."""
    name = re.split(r"[\[=<>]", package)[0]
    code = f"import importlib.metadata as m; print(m.version({name!r}))"
    return run([str(python), "-c", code]).strip()


def run(command: list[str], folder: Path | None = None, environment: dict[str, str] | None = None) -> str:
    """Return the output of a command. Raises `CalledProcessError` and `TimeoutExpired`."""
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS, check=True
    )
    return done.stdout


def reason(error: subprocess.CalledProcessError | OSError) -> str:
    """Return the last line with an error, or else the last line."""
    text = (error.stderr or error.stdout or "") if isinstance(error, subprocess.CalledProcessError) else str(error)
    lines = [line.strip() for line in text.splitlines() if re.search(r"[A-Za-z]{3}", line)]
    said = [line for line in lines if "Error" in line] or lines or [str(error)]
    return said[-1][:200].replace("|", "\\|")


if __name__ == "__main__":
    main()
