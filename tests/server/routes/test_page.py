"""The page's files: what they are sent with, and that there are no others."""

import re

import pytest
from fake_backend import FakeBackend
from server.conftest import Connect

from srb.server.routes.about import FOLDER

FILES = sorted(path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*") if path.is_file())


async def test_each_file_is_open_and_strict(connect: Connect) -> None:
    client = await connect(FakeBackend(), api_keys=(b"sk-1",))
    for path in ("/", *(f"/web/{name}" for name in FILES)):
        response = await client.get(path)
        assert response.status == 200, path
        policy = response.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy, path
        assert "unsafe" not in policy, path
        assert response.headers["X-Content-Type-Options"] == "nosniff", path
        assert response.headers["Cache-Control"] == "no-cache", path
        again = await client.get(path, headers={"If-None-Match": response.headers["ETag"]})
        assert again.status == 304, path


@pytest.mark.parametrize(
    "path",
    ["/web/", "/web/none.js", "/web/../server/app.py", "/web/%2e%2e/server/app.py", "/web/" + "a" * 300, "/web/%00"],
)
async def test_nothing_else_is_there(connect: Connect, path: str) -> None:
    client = await connect(FakeBackend())
    assert (await client.get(path)).status in (403, 404)


def test_the_page_loads_its_own_files_and_no_others() -> None:
    index = (FOLDER / "index.html").read_text()
    styles = {f"web/{name}" for name in FILES if name.endswith(".css")}
    assert set(re.findall(r'(?:src|href)="([^"]+)"', index)) == {"web/app/main.js", "web/app/icon.svg", *styles}
    assert "style=" not in index
    for path in FOLDER.rglob("*.js"):
        text = path.read_text()
        # CodeMirror's one address is the name of SVG's namespace.
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|innerHTML|\beval\b", text), path
        for name in re.findall(r' from "(\.[^"]+)"', text):  # relative, so that the page works behind a path prefix
            assert (path.parent / name).resolve().is_file(), (path, name)


@pytest.mark.parametrize(
    ("folder", "others"),
    [
        ("lib", set()),
        ("story", {"lib", "vendor"}),
        ("settings", {"lib", "story"}),
        ("desk", {"lib", "story", "settings", "vendor"}),
        ("app", {"lib", "story", "settings", "desk"}),
    ],
)
def test_modules_import_from_lower_folders_only(folder: str, others: set[str]) -> None:
    for path in (FOLDER / folder).glob("*.js"):
        assert set(re.findall(r' from "\.\./(\w+)/', path.read_text())) <= others, path


def test_only_main_imports_the_desk() -> None:
    importing = re.compile(r'^import .*/desk\.js"', re.MULTILINE)
    assert [path.name for path in FOLDER.rglob("*.js") if importing.search(path.read_text())] == ["main.js"]


async def test_javascript_has_a_type_that_browsers_run(connect: Connect) -> None:
    client = await connect(FakeBackend())
    response = await client.get("/web/app/main.js")
    assert response.content_type in ("text/javascript", "application/javascript")
