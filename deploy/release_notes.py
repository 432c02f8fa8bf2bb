"""Prints the notes of a release: the section of CHANGELOG.md for a version.

    python3 deploy/release_notes.py v0.1.0

Fails if the tag isn't the version of srb, or if CHANGELOG.md has nothing about it. It needs nothing but Python.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def notes(changelog: str, version: str) -> str:
    """Return what a changelog says about a version, without the heading.

    Raises:
        ValueError: it says nothing.
    """
    sections = re.split(r"^## \[(.+?)\].*\n", changelog, flags=re.MULTILINE)
    text = dict(zip(sections[1::2], sections[2::2], strict=True)).get(version, "").strip()
    if not text:
        raise ValueError(f"CHANGELOG.md has no text below ## [{version}]; move what [Unreleased] has there")
    return text


def main(tag: str) -> None:
    """Print the notes of the version that a tag names, such as `v0.1.0`."""
    found = re.search(r'^__version__ = "(.+)"', (ROOT / "srb" / "__init__.py").read_text(), re.MULTILINE)
    version = found[1] if found else None
    if tag != f"v{version}":
        sys.exit(f"the tag is {tag}, and the version in srb/__init__.py is {version}: the tag must be v{version}")
    try:
        print(notes((ROOT / "CHANGELOG.md").read_text(), tag.removeprefix("v")))
    except ValueError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(*sys.argv[1:2])
