"""A file is read or refused by what its first bytes say, whatever its name; zstd and zip are read."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from bert_job.preparation import CorpusSpec
from bert_trainer.dataset.corpus.corpora import digest_corpus, open_corpora, open_corpus
from bert_trainer.dataset.corpus.formats import zip_archives
from bert_trainer.dataset.corpus.formats.streams import zstd
from bert_trainer.errors import InputError
from small_dumps import dump, page

TEXT = b"The river is long.\nIt runs south.\n\nA second document.\n"
SENTENCES = [("The river is long.", "It runs south."), ("A second document.",)]


def read(path: Path, **settings: object) -> list[tuple[str, ...]]:
    corpora = open_corpora([CorpusSpec.model_validate({"path": str(path), **settings})])
    return [document.sentences for document in corpora.documents()]


def zipped(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name.replace("_", "."), content)
    return path


def tar(content: bytes, form: int = tarfile.PAX_FORMAT) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=form) as archive:
        member = tarfile.TarInfo("a.txt")
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    return file.getvalue()


def test_a_text_may_have_a_tar_archives_mark_where_archives_have_it(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Es la manera de aj".rjust(257, "x") + "ustar el precio.\n")
    (sentences,) = read(tmp_path / "a.txt")
    assert sentences[-1].endswith("ajustar el precio.")


def test_a_tar_archive_of_gnu_is_told_as_well(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(tar(TEXT, tarfile.GNU_FORMAT))
    with pytest.raises(InputError, match="a tar archive"):
        read(tmp_path / "a.txt")


@pytest.mark.parametrize("name", ["a.txt.zst", "a.zst", "a.txt", "a"])
def test_zstd_is_read_whatever_the_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    # Two frames, as cat makes them, with one that is skipped between them, as pzstd makes it.
    skipped = b"\x50\x2a\x4d\x18" + struct.pack("<L", 4) + b"size"
    path.write_bytes(skipped + zstd.compress(TEXT[:20]) + skipped + zstd.compress(TEXT[20:]))
    assert read(path) == SENTENCES
    plain = tmp_path / "plain.txt"
    plain.write_bytes(TEXT)
    assert digest_corpus(open_corpus(str(path))) == digest_corpus(open_corpus(str(plain)))


def test_zstd_holds_json_lines_and_dumps_as_well(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.zst").write_bytes(zstd.compress(json.dumps({"text": "The river is long."}).encode()))
    (tmp_path / "b.xml.zst").write_bytes(zstd.compress(dump(page("A", "A page of text."))))
    assert read(tmp_path) == [("The river is long.",), ("A page of text.",)]
    size = os.path.getsize(tmp_path / "a.jsonl.zst")
    assert open_corpus(str(tmp_path / "a.jsonl.zst")).text_bytes == int(3.5 * size)


@pytest.mark.parametrize("cut", [3, 20, -1])
def test_a_zstd_file_that_is_cut_off_or_damaged_is_told(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "a.txt"
    whole = zstd.compress(os.urandom(4096).hex().encode())
    path.write_bytes(whole[: cut if cut > 3 else cut])
    message = r"a\.txt: (the compressed file is cut off|not UTF-8)"
    with pytest.raises(InputError, match=message):
        read(path)
    path.write_bytes(whole[:9] + b"\xff" * 40 + whole[49:])
    with pytest.raises(InputError, match=r"a\.txt: the compressed data is damaged"):
        read(path)


def test_a_zstd_file_may_not_ask_for_any_amount_of_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.zst"
    # A header that asks for a window of 4 GiB, and one byte.
    path.write_bytes(b"\x28\xb5\x2f\xfd\x00" + bytes([22 << 3]) + b"\x09\x00\x00a")
    with pytest.raises(InputError, match=r"takes more than 128 MiB of memory[\s\S]*zstd --long=31"):
        read(path)


def test_the_files_of_a_zip_archive_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    line = json.dumps({"text": "From the web."}).encode()
    members = {"z.txt": b"Last one.", "b/a.txt": TEXT, "a.jsonl": line, "notes.md": b"# No"}
    path = zipped(tmp_path / "all.zip", **members, **{"b/.a.txt": b"Hidden."})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("__MACOSX/b/a.txt", b"Hidden as well.")
    path.rename(tmp_path / "all.bin")
    found = [("From the web.",), *SENTENCES, ("Last one.",)]
    assert read(tmp_path / "all.bin") == found
    (tmp_path / "all.bin").rename(path)
    # In a folder, an archive is known by its name as all files are; each file of it is a document.
    (tmp_path / "zz.txt").write_bytes(b"Beside it.")
    assert read(tmp_path) == [*found, ("Beside it.",)]
    corpora = open_corpora([CorpusSpec(path=str(path), documents="files")])
    names = [document.name for document in corpora.documents()]
    assert names == [f"{path}/a.jsonl#1", f"{path}/b/a.txt#1", f"{path}/z.txt#1"]
    assert corpora.text_bytes == len(line) + len(TEXT) + len(b"Last one.")


def test_a_single_file_in_an_archive_is_told_by_its_content_and_may_be_compressed(tmp_path: Path) -> None:
    assert read(zipped(tmp_path / "a.zip", dump_gz=gzip.compress(dump(page("A", "A page of text."))))) == [
        ("A page of text.",)
    ]


def test_another_archive_is_another_text_to_a_build_that_goes_on(tmp_path: Path) -> None:
    path = zipped(tmp_path / "a.zip", a_txt=TEXT)
    before = open_corpus(str(path)).fingerprint
    assert before == open_corpus(str(path)).fingerprint
    os.utime(path, ns=(1, 1))
    assert before != open_corpus(str(path)).fingerprint


def encrypted(path: Path) -> None:
    content = bytearray(zipped(path, a_txt=TEXT).read_bytes())
    content[6] |= 1
    content[content.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(content)


def with_member(name: str, method: int = zipfile.ZIP_DEFLATED) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        with zipfile.ZipFile(path, "w", method) as archive:
            archive.writestr(name, TEXT)

    return write


def damaged(path: Path) -> None:
    content = bytearray(zipped(path, a_txt=os.urandom(4096).hex().encode()).read_bytes())
    content[200:230] = b"\xff" * 30
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (encrypted, r"the file a\.txt in it has an encrypted file"),
        (with_member("../../etc/passwd.txt"), "has a name that leads out of the archive"),
        (with_member("/etc/passwd.txt"), "has a name that leads out of the archive"),
        (with_member("a.txt", zipfile.ZIP_BZIP2), "has compression method 12"),
        (with_member("mimetype"), "an EPUB book or an OpenDocument text"),
        (with_member("[Content_Types].xml"), "a Word, Excel or PowerPoint document"),
        (lambda path: path.write_bytes(b"PK\x05\x06" + bytes(18)), r"no \.txt, \.jsonl or \.xml file in it"),
        (lambda path: path.write_bytes(zipped(path, a_txt=TEXT).read_bytes()[:90]), "archive is damaged or cut off"),
        (damaged, "the compressed data is damaged"),
        (lambda path: zipped(path, a_zip=zipped(path, a_txt=TEXT).read_bytes()), "a zip archive inside another file"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_an_archive_that_cannot_be_read_is_refused_with_its_path(
    tmp_path: Path, write: Callable[[Path], None], message: str
) -> None:
    path = tmp_path / "a.zip"
    write(path)
    with pytest.raises(InputError, match=rf"a\.zip[\s\S]*{message}"):
        read(path)


def test_an_archive_with_a_list_of_members_that_fills_the_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zip_archives, "_MAX_DIRECTORY_BYTES", 40)
    with pytest.raises(InputError, match="list of members"):
        read(zipped(tmp_path / "a.zip", a_txt=TEXT))


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"7z\xbc\xaf'\x1c" + bytes(26), "a 7z archive"),
        (b"Rar!\x1a\x07\x01\x00" + bytes(26), "a RAR archive"),
        (tar(TEXT), "a tar archive"),
        (gzip.compress(tar(TEXT)), "a tar archive"),
        (zstd.compress(tar(TEXT)), "a tar archive"),
        (bz2.compress(gzip.compress(TEXT)), "compressed by gzip twice"),
        (b"\x04\x22\x4d\x18\x64\x40\xa7" + TEXT, "compressed by lz4"),
        (lzma.compress(TEXT, lzma.FORMAT_ALONE), "compressed by lzma"),
        (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n", "a PDF document"),
        (b"{\\rtf1\\ansi The river.}", "an RTF document"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(500), "a Microsoft Office document"),
        (b"PAR1\x15\x04\x15" + bytes(50), "a Parquet file"),
        (b"\x89HDF\r\n\x1a\n" + bytes(50), "an HDF5 file"),
        (b"SQLite format 3\x00" + bytes(50), "a SQLite database"),
        (TEXT.decode().encode("utf-16"), "text in UTF-16"),
        (TEXT.decode().encode("utf-16-le"), "text in UTF-16"),
        (TEXT.decode().encode("utf-16-be"), "text in UTF-16"),
        (TEXT.decode().encode("utf-32"), "text in UTF-32"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "corpus"])
def test_what_is_no_text_is_refused_by_its_format(tmp_path: Path, content: bytes, named: str, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError, match=f"{name}: got {named}.*by its first bytes; allowed: text in UTF-8") as raised:
        read(path)
    assert raised.value.hint


@pytest.mark.parametrize("text", [b"PAR1 is a word.\n", b"BZh is one.\n", b"a\0b\0 stray zeros.\n", b"LZIP, too.\n"])
def test_words_that_begin_like_a_format_are_text(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "a.txt").write_bytes(text)
    assert len(read(tmp_path / "a.txt")) == 1
