"""The reference that is made of the docstrings: it builds without a warning, and its examples run."""

import doctest
import inspect
from pathlib import Path

import pdoc
import pytest

import srb
from srb import api

pytestmark = pytest.mark.e2e  # the one takes some seconds, the other the default model


def test_it_has_every_public_name_and_no_warning(tmp_path: Path) -> None:
    pdoc.pdoc("srb", output_directory=tmp_path)  # warnings are errors here
    page = (tmp_path / "srb.html").read_text()
    assert [name for name in srb.__all__ if f'id="{name}"' not in page] == []


def test_its_examples_run() -> None:
    finder = doctest.DocTestFinder(recurse=True)
    found = finder.find(srb, "srb", globs={"srb": srb})
    for name in srb.__all__:
        value = getattr(srb, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            found += finder.find(value, name, globs={"srb": srb})
    runner = doctest.DocTestRunner()
    for each in found:
        runner.run(each)
    api.loaded_model.close()
    assert runner.summarize().attempted >= 8
    assert runner.summarize().failed == 0
