"""Files in and out: import, export, formatted text from the clipboard, and printing."""

import json
import re
import zipfile
from pathlib import Path

import pytest
from playwright.sync_api import Dialog, expect
from web.conftest import Story

from srb.errors import NotSupportedError
from srb.server.run import pandoc

pytestmark = pytest.mark.web

PASTE = """(html) => {
    const clipboardData = new DataTransfer();
    clipboardData.setData("text/html", html);
    clipboardData.setData("text/plain", "plain");
    const event = new ClipboardEvent("paste", { clipboardData, bubbles: true, cancelable: true });
    return document.querySelector("#story").dispatchEvent(event);
}"""


def export(story: Story, selector: str, kind: str, folder: Path) -> Path:
    story.reach(f"{selector}-format").select_option(kind)
    with story.page.expect_download() as download:
        story.reach("#export-path" if selector == "#path" else "#export").click()
    path = folder / download.value.suggested_filename
    download.value.save_as(path)
    return path


def test_stories_go_to_files_and_come_back(story: Story, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "Löwe.txt").write_bytes("# One\r\n\r\nHe *left*, naïve.".encode("windows-1252"))
    story.find("#open-stories").click()
    story.find("#import").set_input_files(tmp_path / "Löwe.txt")
    encoding = story.find("#encoding")
    expect(encoding.locator("blockquote")).to_have_text("He *left*, naïve.")
    encoding.locator("select").select_option("KOI8-R")
    expect(encoding.locator("blockquote")).to_have_text("He *left*, naОve.")  # noqa: RUF001
    encoding.locator("select").select_option("Windows-1252")
    story.pictures("encoding", axe=True)
    with story.leaving():
        encoding.locator("[value=import]").click()
    story.reads("# One\n\nHe *left*, naïve.")
    story.find("#open-stories").click()
    expect(story.find("#story-list [aria-current]")).to_have_text("Löwe")
    expect(story.find("#story-list li:has([aria-current]) small")).to_contain_text("4 words")
    assert export(story, "#path", "md", tmp_path).read_text() == "# One\n\nHe *left*, naïve.\n"
    assert export(story, "#path", "txt", tmp_path).read_text() == "# One\n\nHe *left*, naïve.\n"
    for kind in ("loomsidian", "loom"):
        path = export(story, "#tree", kind, tmp_path)
        assert path.name == "Löwe.json"
        assert "He *left*, naïve." in path.read_text()

    woven = export(story, "#tree", "tapestry", tmp_path)
    assert woven.name == "Löwe.tapestry"
    story.take(woven)
    story.reads("# One\n\nHe *left*, naïve.")
    story.find("#open-stories").click()

    def missing() -> str:
        raise NotSupportedError("docx and epub need pandoc")

    monkeypatch.setattr(pandoc, "find_pandoc", missing)
    story.reach("#path-format").select_option("docx")
    story.reach("#export-path").click()
    expect(story.find("#error")).to_contain_text("docx and epub need pandoc")
    story.excuse("501")

    (converter := tmp_path / "pandoc").write_text(
        "#!/bin/sh\ncat >/dev/null\nprintf 'The boat\\n2\\n\\n# Two\\n\\nNo'\n"
    )
    converter.chmod(0o755)
    monkeypatch.setattr(pandoc, "find_pandoc", lambda: str(converter))
    document = export(story, "#path", "epub", tmp_path)
    assert document.name == "Löwe.epub"
    with zipfile.ZipFile(document, "w") as archive:
        archive.writestr("META-INF/container.xml", "")
    asked: list[str] = []

    def agree(dialog: Dialog) -> None:
        asked.append(dialog.message)
        dialog.accept()

    story.page.once("dialog", agree)
    story.take(document)
    assert asked == ["The story will be without these parts of Löwe.epub: 2 pictures. Import it?"]
    story.reads("# Two\n\nNo")
    story.find("#open-stories").click()
    expect(story.find("#story-list [aria-current]")).to_have_text("The boat")
    expect(story.find("#story-list li")).to_have_count(4)
    story.pictures("files", axe=True)


def test_a_tree_of_another_loom_becomes_a_story(story: Story, tmp_path: Path) -> None:
    nodes = {
        "a": {"text": "Once", "parentId": None, "bookmarked": False},
        "b": {"text": " upon", "parentId": "a", "bookmarked": True},
        "c": {"text": " more", "parentId": "a", "bookmarked": False},
    }
    (tmp_path / "Tale.odt").write_text("binary")
    story.find("#import").set_input_files(tmp_path / "Tale.odt")
    expect(story.find("#error")).to_contain_text("Tale.odt can't be imported; the page reads txt, md,")
    (tmp_path / "Old.docx").write_bytes(b"\xd0\xcf\x11\xe0")
    story.find("#import").set_input_files(tmp_path / "Old.docx")
    expect(story.find("#error")).to_contain_text("save it as docx without a password")
    expect(story.find("#status")).to_be_empty()
    story.excuse("400")
    (tmp_path / "Tale.json").write_text(json.dumps({"current": "b", "nodes": nodes}))
    story.find("#open-stories").click()
    story.take(tmp_path / "Tale.json")
    story.reads("Once upon")
    story.find("#open-stories").click()
    expect(story.find("#tree [role=treeitem]")).to_have_count(3)

    asked: list[str] = []

    def agree(dialog: Dialog) -> None:
        asked.append(dialog.message)
        dialog.accept()

    story.page.once("dialog", agree)
    story.take(Path(__file__).parent / "tapestry" / "low_tide.tapestry")
    assert "low_tide.tapestry has notes, which a story can't have: Ask Ann about the tide." in asked[0]
    expect(story.find("#story")).to_have_text(re.compile("She waved 👋 and stayed for the whole"))
    story.find("#open-stories").click()
    expect(story.find("#story-list [aria-current]")).to_have_text("Low tide")
    (tmp_path / "New.tapestry").write_bytes(b"VersionedTapestryWeave__" + bytes([1, *[0] * 15]))
    story.find("#import").set_input_files(tmp_path / "New.tapestry")
    expect(story.find("#error")).to_contain_text("version 1 of Tapestry Loom's format; the page reads version 0")


def test_formatting_is_pasted_as_markdown_and_plain_text_as_it_is(story: Story) -> None:
    story.find("#story").fill("Before  after")
    story.select(7)
    assert not story.page.evaluate(
        PASTE, "<p>a <b>bold</b> <i onclick='x()'>word</i><script>window.bad = 1</script></p>"
    )
    story.reads("Before a **bold** *word* after")
    story.page.evaluate(PASTE, "<p>nothing special</p>")
    story.reads("Before a **bold** *word*plain after")
    for _ in range(2):
        story.find("#undo").click()
    story.reads("Before  after")
    assert not story.page.evaluate("window.bad")
    docs = "<b style='font-weight:normal'><p style='font-weight:700'>x</p><p style='font-style:italic'>y</p></b>"
    docs = f"<!--StartFragment-->{docs}<!--EndFragment-->"  # as Windows copies it
    assert not story.page.evaluate(PASTE, docs)  # as Google Docs copies it
    expect(story.find("#story")).to_have_text(re.compile(r"\*\*x\*\*\*y\*"))
    story.excuse("inline event handler", "inline style")  # Chromium says that it has blocked them


def test_the_manuscript_is_printed_alone(story: Story) -> None:
    story.find("#story").fill("# One\n\nHe *left*.\nNow.\n***\n## Two\n\n3 < 4")
    story.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    story.page.emulate_media(media="print")
    expect(story.find("header")).to_be_hidden()
    expect(story.find("#printed h2").first).to_have_text("One")
    expect(story.find("#printed em")).to_have_text("left")
    assert " ".join(story.find("#printed").inner_text().split()) == "One He left. Now. * * * Two 3 < 4"
    visible = story.page.evaluate(
        "[...document.body.children].filter((each) => each.checkVisibility()).map(({id}) => id)"
    )
    assert visible == ["printed"]
    breaks = [each.evaluate("(each) => getComputedStyle(each).breakBefore") for each in story.find("#printed h2").all()]
    assert breaks == ["auto", "page"]
    story.page.emulate_media(media="screen")
    story.page.evaluate("dispatchEvent(new Event('afterprint'))")
    expect(story.find("#printed")).to_have_count(0)
    story.page.once("dialog", lambda dialog: dialog.accept("The boat"))
    with story.panel("stories"):
        story.find("#rename").click()
    expect(story.page).to_have_title("The boat")  # which a browser prints, and names a PDF by
