"""The documentation as a site: what website/docs_hooks.py makes of the repository's files."""

from functools import cache
from pathlib import Path

import pytest
from docs_hooks import foreign_hosts, notebook_page, on_page_markdown, on_post_build, python_reference
from mkdocs.config.base import load_config
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import srb

ROOT = Path(__file__).parents[1]

OTHER = "# Other *things*\n\n```\n# no heading\n```\n\n## GET /props, /slots\n"
PAGES = {"docs/scope.md": "", "docs/http/api.md": OTHER, "examples/library.py.md": "# examples/library.py\n"}


@cache
def config() -> MkDocsConfig:
    loaded = load_config(str(ROOT / "mkdocs.yml"), plugins=[], hooks=[])
    loaded.plugins.run_event("startup", command="build", dirty=False)
    return loaded


def test_a_notebook_is_a_page_of_its_cells() -> None:
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "text"]},
        {"cell_type": "code", "source": ["a = 1\n", "a"], "outputs": [{"data": {"text/plain": "1"}}]},
    ]
    assert notebook_page({"cells": cells}) == "# Title\ntext\n\n```python\na = 1\na\n```\n"


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("[api.md](http/api.md)", "[Other *things*](http/api.md)"),
        ("[api.md](http/api.md#get-props-slots)", "[GET /props, /slots](http/api.md#get-props-slots)"),
        ("[the routes](http/api.md)", "[the routes](http/api.md)"),
        ("[library.py](../examples/library.py)", "[library.py](../examples/library.py.md)"),
        ("[examples](../examples)", "examples"),
        ("grammars (docs/http/api.md).", "grammars ([Other *things*](http/api.md))."),
        ("`docs/http/api.md`", "`docs/http/api.md`"),
        ("[x](docs/http/api.md)", "[x](docs/http/api.md)"),
        ("```\n[api.md](http/api.md)\n```", "```\n[api.md](http/api.md)\n```"),
        ("![api.md](http/api.md)", "![api.md](http/api.md)"),
        ("[llama.cpp](https://example.org/llama.cpp)", "[llama.cpp](https://example.org/llama.cpp)"),
    ],
)
def test_links_show_titles_and_lead_to_pages(source: str, shown: str) -> None:
    files = Files([File.generated(config(), name, content=text) for name, text in PAGES.items()])
    file = files.get_file_from_path("docs/scope.md")
    assert file
    page = Page(None, file, config())
    assert on_page_markdown(source, page=page, config=config(), files=files) == shown


@pytest.mark.parametrize(
    "text",
    [
        '<script async src="https://cdn.example/a.js"></script>',
        "<link rel=stylesheet href=//fonts.example/css>",
        "<img alt='a > b' src='http://example.org/a.png'>",
        '<link rel="icon" href="https://example.org/icon.png">',
        "body { background: url( 'https://example.org/a.png' ) }",
        '@import "https://fonts.example/css";',
    ],
)
def test_a_file_of_another_host_is_found_and_refuses_the_site(text: str, tmp_path: Path) -> None:
    assert len(foreign_hosts(text)) == 1
    (tmp_path / "a.html").write_text(text)
    with pytest.raises(PluginError, match=r"a\.html loads from another host"):
        on_post_build(load_config(str(ROOT / "mkdocs.yml"), plugins=[], hooks=[], site_dir=str(tmp_path)))


@pytest.mark.parametrize(
    "text",
    [
        '<a href="https://example.org">a link</a>',
        '<script src="../assets/a.js"></script>',
        "<code>&lt;img src=https://example.org&gt;</code>",
        "body { background: url(data:image/png;base64,AAAA) }",
    ],
)
def test_links_and_own_files_are_allowed(text: str) -> None:
    assert foreign_hosts(text) == []


@pytest.mark.llama  # it imports the names
def test_the_python_reference_has_every_public_name_once() -> None:
    names = [line.removeprefix("::: srb.") for line in python_reference().splitlines() if line.startswith(":::")]
    assert sorted(names) == sorted(srb.__all__)
