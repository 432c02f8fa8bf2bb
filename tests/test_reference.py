"""The examples of the Python reference run. test_docs_site.py has its names, and `mkdocs build --strict` its links."""

import doctest
import inspect

import srb
from srb import api


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
