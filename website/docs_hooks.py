"""Hooks of MkDocs: make the site's pages from the repository.

A file is named by its path in the repository, so a relative link between files works on a code host and on the site.
A linked file that is no page becomes one: its text in a code block. The API references are generated.
"""

import ast
import json
import os
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pymdownx.slugs import slugify

ROOT = Path(__file__).parents[1]
OUTSIDE = (
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "bench/README.md",
    "examples/clients/README.md",
    "examples/promptfoo/README.md",
    "tests/README.md",
)
"""The pages outside docs/."""

LINK = re.compile(r"(?<!!)\[([^]]*)\]\(([^)#\s]*)(#[^)\s]*)?\)")
BARE = re.compile(r"(?<![\w/`(\[\].-])(\(?)(docs/[\w/-]+\.md)(?![\w`\]])")
SLUG = slugify(case="lower")
LANGUAGES = {".cfg": "text", ".mjs": "javascript", ".py": "python", ".toml": "toml", ".yaml": "yaml"}

REFERENCE = {
    "Functions": ("generate", "score", "resume"),
    "Engines": ("LLM", "Engine", "AsyncEngine", "LlamaBackend", "Settings", "ModelInfo", "EngineStats"),
    "Requests": ("CompletionRequest", "SamplingParams", "Explore", "Resumed"),
}
"""The order of the Python reference. Events, errors and the rest of `srb.__all__` follow."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Names the files of docs/ by their paths in the repository, and adds the pages outside docs/."""
    result = Files([])
    for each in files:
        if each.src_dir == config.docs_dir:
            result.append(_file(config, f"docs/{each.src_uri}", each.content_bytes))
        else:
            result.append(each)  # the theme's
    for name in OUTSIDE:
        result.append(_file(config, name, (ROOT / name).read_text()))
    result.append(_file(config, "reference/python.md", python_reference()))
    result.append(_file(config, "reference/http.md", http_reference()))
    described = File.generated(config, "openapi.json", content=json.dumps(_description()))
    result.append(described)
    for source in sorted({target for page in list(result) if _is_page(page) for target in _sources(page)}):
        result.append(_file(config, f"{source}.md", _as_page(source)))
    return result


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Shows titles instead of file names, and makes links of the pages that a text names."""
    parts = re.split(r"(^ *```.*?^ *```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if index % 2 else _link(part, page.file, files) for index, part in enumerate(parts))


def on_post_build(config: MkDocsConfig) -> None:
    """Refuses a site that loads anything from another host."""
    for path in sorted(Path(config.site_dir).rglob("*")):
        if path.suffix in (".html", ".css") and (hosts := foreign_hosts(path.read_text())):
            raise PluginError(f"{path} loads from another host: {', '.join(hosts)}; copy it into website/theme instead")


def foreign_hosts(text: str) -> list[str]:
    """The addresses in HTML or CSS that a browser loads by itself from another host. Links are none of them."""
    in_tags = re.findall(
        r"<(?:script|link|img|iframe|source|video|audio|object|embed)\b(?:\"[^\"]*\"|'[^']*'|[^>\"'])*?"
        r"\b(?:src|srcset|href|data)=[\"']?((?:https?:)?//[^\s\"'>]+)",
        text,
    )
    in_css = re.findall(r"(?:url\(|@import )\s*[\"']?((?:https?:)?//[^\s\"')]+)", text)
    return [*in_tags, *in_css]


def python_reference() -> str:
    """The page of the Python reference, as mkdocstrings reads it."""
    [names] = (
        ast.literal_eval(node.value)
        for node in ast.parse((ROOT / "srb" / "public.py").read_text()).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    groups: dict[str, list[str]] = {title: list(each) for title, each in REFERENCE.items()}
    rest = [name for name in names if not any(name in each for each in groups.values())]
    groups["Events"] = [name for name in rest if name.endswith("Event")]
    groups["Errors"] = [name for name in rest if name.endswith("Error")]
    groups["Results"] = [name for name in rest if not name.endswith(("Event", "Error"))]
    lines = [
        "# Python reference",
        "",
        "Every name that `srb` exports. [library.md](../docs/using/library.md) shows how they are used.",
    ]
    for title, each in groups.items():
        lines += ["", f"## {title}", *(f"\n::: srb.{name}" for name in each)]
    return "\n".join(lines)


def http_reference() -> str:
    """The page of the HTTP reference: what `GET /docs` of a server shows."""
    from srb.server import openapi

    body = openapi.render(_description()).partition("</h1>")[2].partition("</body>")[0]
    body = re.sub(r"<h2(?: id='(\w+)')?>(.*?)</h2>", lambda found: f"\n\n## {found[2]}{_id(found[1])}\n\n", body)
    intro = (
        "This page is made from [`/openapi.json`](../openapi.json), which every server has. "
        "[api.md](../docs/http/api.md) explains the fields."
    )
    return f"# All routes and fields\n\n{intro}\n\n{body}\n"


def _id(name: str | None) -> str:
    return f" {{#{name}}}" if name else ""


def _description() -> dict[str, object]:
    """The OpenAPI document of a server with default options."""
    from srb.options.settings import Settings
    from srb.server import openapi
    from srb.server.app import ROUTES
    from srb.wire.limits import Limits

    settings = Settings()
    return openapi.describe(ROUTES, Limits("MODEL", settings.n, settings.max_n), keyed=False)


def _file(config: MkDocsConfig, name: str, content: str | bytes) -> File:
    """A file with its path in the repository as its name. Pages of docs/ have no folder `docs` in their addresses."""
    file = File.generated(config, name, content=content)
    plain = "index.md" if name == "docs/README.md" else name.removeprefix("docs/")
    file.dest_uri = File.generated(config, plain, content="").dest_uri.lower()
    return file


def _is_page(file: File) -> bool:
    return file.src_uri.endswith(".md")


def _sources(page: File) -> list[str]:
    """The files of the repository that a page links to, and that are no pages."""
    targets = (_target(page, match[2]) for match in LINK.finditer(page.content_string))
    return [each for each in targets if not each.endswith((".md", ".png", ".svg")) and (ROOT / each).is_file()]


def _as_page(source: str) -> str:
    if source.endswith(".ipynb"):
        return notebook_page(json.loads((ROOT / source).read_text()))
    language = LANGUAGES.get(Path(source).suffix, "text")
    return f"# {source}\n\n````{language}\n{(ROOT / source).read_text()}\n````\n"


def notebook_page(notebook: dict[str, Any]) -> str:
    """The cells of a notebook, without what they have shown."""
    cells = [(cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"]]
    return "\n\n".join(f"```python\n{text}\n```" if kind == "code" else text for kind, text in cells) + "\n"


def _target(page: File, target: str) -> str:
    """The path in the repository that a relative link leads to."""
    return os.path.normpath(os.path.join(os.path.dirname(page.src_uri), target)) if target else page.src_uri


def _link(text: str, page: File, files: Files) -> str:
    def shown(found: re.Match[str]) -> str:
        label, target, anchor = found[1], found[2], found[3] or ""
        path = _target(page, target)
        if file := files.get_file_from_path(path):
            label = _title(file, anchor[1:]) if label in (path, os.path.basename(path)) else label
        elif files.get_file_from_path(f"{path}.md"):
            target += ".md"
        elif (ROOT / path).is_dir():
            return label  # a folder is no page
        return f"[{label}]({target}{anchor})"

    def named(found: re.Match[str]) -> str:
        file = files.get_file_from_path(found[2])
        if not file:
            return found[0]
        return f"{found[1]}[{_title(file)}]({os.path.relpath(found[2], os.path.dirname(page.src_uri) or '.')})"

    return BARE.sub(named, LINK.sub(shown, text))


def _title(file: File, anchor: str = "") -> str:
    """The heading that a link leads to."""
    text = re.sub(r"^```.*?^```", "", file.content_string, flags=re.MULTILINE | re.DOTALL)
    headings: list[str] = re.findall(r"^#+ (.*)", text, re.MULTILINE)
    return next((each for each in headings if SLUG(each, "-") == anchor), headings[0])
