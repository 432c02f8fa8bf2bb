"""Archives that are refused, with what to do."""

import io
import zipfile

import pytest

from srb.errors import InvalidRequestError
from srb.wire.documents.archive import read_archive


def archive(**files: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as written:
        for name, text in files.items():
            written.writestr(zipfile.ZipInfo(name), text)  # without the time, which would be in the names of tests
    return file.getvalue()


DOCX = archive(**{"[Content_Types].xml": ""})


def epub(algorithm: str) -> bytes:
    encryption = f"<EncryptionMethod Algorithm='{algorithm}'/>"
    return archive(**{"META-INF/container.xml": "", "META-INF/encryption.xml": encryption})


@pytest.mark.parametrize(
    ("data", "kind", "message"),
    [
        (b"\xd0\xcf\x11\xe0\xa1\xb1", "docx", "old Word document .* save it as docx without a password"),
        (b"{\\rtf1 hello}", "docx", "is no docx, or incomplete"),
        (DOCX[:-9], "docx", "is no docx, or incomplete"),
        (DOCX, "epub", "is no epub: it has no META-INF"),
        (archive(mimetype="application/vnd.oasis.opendocument.text"), "docx", r"no docx: .* save it as docx"),
        (epub("http://www.w3.org/2001/04/xmlenc#aes128-cbc"), "epub", r"encrypted \(DRM\)"),
    ],
)
def test_files_that_pandoc_would_misread_are_refused(data: bytes, kind: str, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        read_archive(data, kind)


def test_a_text_that_is_too_large_unpacked_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("srb.wire.documents.archive.MAX_TEXT_BYTES", 1 << 20)
    bomb = archive(**{"[Content_Types].xml": "", "word/document.xml": " " * (1 << 20) + " "})
    with pytest.raises(InvalidRequestError, match="more than 1 MiB of text; import it in parts"):
        read_archive(bomb, "docx")


def test_pictures_are_not_unpacked_and_obfuscated_fonts_are_no_encryption() -> None:
    assert read_archive(archive(**{"[Content_Types].xml": "x", "word/media/a.png": "x" * 99}), "docx") == {
        "[Content_Types].xml": b"x",
        "word/media/a.png": b"",
    }
    read_archive(epub("http://www.idpf.org/2008/embedding"), "epub")
