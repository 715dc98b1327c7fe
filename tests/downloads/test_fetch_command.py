"""``bert-data fetch`` finds files by name, unpacks and verifies them, and lists them without a network."""

from __future__ import annotations

import bz2
import hashlib
import io
import zipfile
from pathlib import Path
from types import MappingProxyType

import pytest

from bert_job.preparation import CorpusSpec
from bert_trainer.dataset.__main__ import main
from bert_trainer.dataset.commands.fetch import describe_progress
from bert_trainer.dataset.corpus.corpora import open_corpora
from bert_trainer.dataset.downloads import catalogue, transfer
from bert_trainer.dataset.downloads.archives import unpack
from bert_trainer.dataset.downloads.catalogue import CATALOGUE, GROUPS, Download, RemoteFile
from bert_trainer.dataset.downloads.transfer import Transfer
from http_stand_in import Answer, Server
from small_dumps import dump, page
from transfer_notes import Notes


def fetch(server: Server, folder: Path, *names: str) -> int:
    return main(["fetch", *names, "--output", str(folder), "--mirror", server.url_of("")])


def zipped(**files: bytes) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, text in files.items():
            archive.writestr(name.replace("__", "/"), text)
    return content.getvalue()


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Download:
    """A download of an archive, in the catalogue under the name ``toy``."""
    members = {"toy/vocab.txt": hashlib.sha256(b"[PAD]\n").hexdigest()}
    file = RemoteFile("https://models.example/toy.zip", "toy.zip", members=members)
    download = Download("toy", "a toy", "nobody", (file,))
    monkeypatch.setattr(catalogue, "CATALOGUE", MappingProxyType({**CATALOGUE, "toy": download}))
    monkeypatch.setattr(transfer, "_TRIES", 1)
    return download


def test_the_list_needs_no_network(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fetch", "--list"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert {"bert-base-uncased", "glue", "squad-v1.1", "wikipedia", "mlperf-text"} <= set(names)
    assert main(["fetch", "--list", "squad"]) == 0
    shown = capsys.readouterr().out
    assert "squad/train-v1.1.json: 30,288,272 bytes, sha256 3527663986b8295af4f7fcdff1ba1ff3" in shown
    assert "https://rajpurkar.github.io/SQuAD-explorer/dataset/dev-v2.0.json" in shown


def test_an_unknown_name_is_answered_with_those_that_are_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fetch", "bert-huge"]) == 2
    assert "got 'bert-huge'; allowed: bert-base-cased," in capsys.readouterr().err


def test_the_catalogue_is_sound() -> None:
    paths = [file.path for download in CATALOGUE.values() for file in download.files]
    assert len(paths) == len(set(paths))
    lengths = {"sha256": 64, "sha1": 40, "md5": 32}
    for download in CATALOGUE.values():
        for file in download.files:
            assert file.url.startswith("https://")
            assert not file.path.startswith("/")
            assert file.checksum is None or len(file.checksum.digest) == lengths[file.checksum.algorithm]
            assert all(len(digest) == 64 for digest in file.members.values())
    assert all(name in CATALOGUE for members in GROUPS.values() for name in members)


def test_archives_are_unpacked_and_their_files_compared(
    tmp_path: Path, server: Server, toy: Download, capsys: pytest.CaptureFixture[str]
) -> None:
    server.files["/models.example/toy.zip"] = zipped(**{"toy__vocab.txt": b"[PAD]\n", "toy__other": b"x"})
    assert fetch(server, tmp_path, "toy") == 0
    assert (tmp_path / "toy" / "vocab.txt").read_bytes() == b"[PAD]\n"
    assert capsys.readouterr().out.splitlines() == [str(tmp_path / "toy.zip")]
    # A second time nothing is fetched, and what was changed since is noticed.
    asked = len(server.requests)
    assert fetch(server, tmp_path, "toy") == 0
    (tmp_path / "toy" / "vocab.txt").write_bytes(b"[UNK]\n")
    assert fetch(server, tmp_path, "toy") == 2
    assert "vocab.txt: has the SHA-256" in capsys.readouterr().err
    assert len(server.requests) == asked


def test_unpacking_is_told_by_bytes(tmp_path: Path) -> None:
    (tmp_path / "toy.zip").write_bytes(zipped(toy__a=b"x" * 3_000_000, toy__b=b"y"))
    notes = Notes()
    assert unpack(tmp_path / "toy.zip", {}, Transfer(notes, wait=lambda _: None)) == [tmp_path / "toy"]
    assert notes.begun == [("unpack toy.zip", 3_000_001, 0)]
    assert notes.num_bytes == 3_000_001
    assert (tmp_path / "toy" / "a").stat().st_size == 3_000_000


def test_a_line_says_rate_and_time_left() -> None:
    assert describe_progress(600_000_000, 1_600_000_000, 200_000_000, 10.0) == "600 of 1,600 MB, 20.0 MB/s, 50 s left"
    assert describe_progress(600_000_000, None, 200_000_000, 10.0) == "600 MB, 20.0 MB/s"
    assert describe_progress(0, 100, 0, 0.0) == "0 of 0 MB, 0.0 MB/s"


def test_an_archive_of_other_content_is_not_unpacked(
    tmp_path: Path, server: Server, toy: Download, capsys: pytest.CaptureFixture[str]
) -> None:
    server.files["/models.example/toy.zip"] = zipped(**{"toy__vocab.txt": b"[UNK]\n"})
    assert fetch(server, tmp_path, "toy") == 2
    assert "vocab.txt: has the SHA-256" in capsys.readouterr().err
    assert not (tmp_path / "toy").exists()
    (tmp_path / "toy.zip").write_bytes(b"PK\x03\x04 cut off")
    assert fetch(server, tmp_path, "toy") == 2
    assert "toy.zip: not a whole zip file" in capsys.readouterr().err


def test_names_in_an_archive_stay_in_its_folder(tmp_path: Path, server: Server, toy: Download) -> None:
    folder = tmp_path / "inner"
    server.files["/models.example/toy.zip"] = zipped(**{"..__..__evil": b"x", "toy__vocab.txt": b"[PAD]\n"})
    fetch(server, folder, "toy")
    assert not (tmp_path / "evil").exists()
    assert not (tmp_path.parent / "evil").exists()


@pytest.mark.parametrize("name", ["//tmp/evil", "/tmp/evil", "../../evil", "toy/../../evil", "empty/"])
def test_odd_members_of_an_archive_end_up_in_its_folder(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "inner"
    folder.mkdir()
    with zipfile.ZipFile(folder / "toy.zip", "w") as archive:
        archive.writestr("toy/vocab.txt", b"[PAD]")
        archive.writestr(name, b"")
    tops = unpack(folder / "toy.zip", {}, Transfer(Notes(), wait=lambda _: None))
    assert all(top.parent == folder and top.exists() for top in tops)
    assert {path.name for path in tmp_path.iterdir()} == {"inner"}


def test_a_dead_address_ends_with_what_to_put_where(
    tmp_path: Path, server: Server, toy: Download, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fetch(server, tmp_path, "toy") == 2
    message = capsys.readouterr().err
    assert "the server answers 404" in message
    assert f"put toy.zip from anywhere at {tmp_path / 'toy.zip'} and run this again" in message


def serve_wikipedia(server: Server, content: bytes, digest: str | None = None) -> None:
    name = "dewiki-20260101-pages-articles-multistream.xml.bz2"
    digest = digest or hashlib.sha1(content).hexdigest()
    listing = f"{'0' * 40}  dewiki-20260101-pages-meta.xml.gz\n{digest}  {name}\n"
    server.files["/dumps.wikimedia.org/dewiki/latest/dewiki-latest-sha1sums.txt"] = listing.encode()
    server.files[f"/dumps.wikimedia.org/dewiki/20260101/{name}"] = content


def test_the_latest_dump_of_a_wiki_is_fetched_by_its_date_and_read(tmp_path: Path, server: Server) -> None:
    serve_wikipedia(server, bz2.compress(dump(page("A", "Ein Satz. Noch einer."))))
    assert fetch(server, tmp_path, "wikipedia", "--language", "de") == 0
    path = tmp_path / "dewiki-20260101-pages-articles-multistream.xml.bz2"
    documents = list(open_corpora([CorpusSpec(path=str(path), language="de")]).documents())
    assert [document.sentences for document in documents] == [("Ein Satz.", "Noch einer.")]


def test_a_dump_of_other_content_than_listed_is_refused(
    tmp_path: Path, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    serve_wikipedia(server, b"other", "1" * 40)
    assert fetch(server, tmp_path, "wikipedia", "--language", "de") == 2
    assert f"published: {'1' * 40}" in capsys.readouterr().err
    assert fetch(server, tmp_path, "wikipedia", "--language", "xx") == 2
    assert "xxwiki-latest-sha1sums.txt: the server answers 404" in capsys.readouterr().err
    assert fetch(server, tmp_path, "wikipedia", "--date", "2026-01-01") == 2
    assert "date '2026-01-01'; allowed: a wiki's code as en, and 20260101" in capsys.readouterr().err


def test_the_mlperf_text_is_fetched_by_its_list_and_read(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = {f"part-{number:05d}-of-00500": f"Part {number}.\nEnd.\n".encode() for number in range(2)}
    base = "/training.mlcommons-storage.org/metadata/bert-preprocessed-wikipedia-dataset"
    server.files[f"{base}.uri"] = b"https://training.mlcommons-storage.org/text\n"
    server.files[f"{base}.md5"] = "".join(
        f"{hashlib.md5(content).hexdigest()}  results4/{name}\n" for name, content in parts.items()
    ).encode()
    for name, content in parts.items():
        server.files[f"/training.mlcommons-storage.org/text/results4/{name}"] = content
    server.plans["/training.mlcommons-storage.org/text/results4/part-00001-of-00500"] = [Answer(breaks_after=3)]
    monkeypatch.setattr("time.sleep", lambda _: None)
    assert fetch(server, tmp_path, "mlperf-text") == 0
    documents = list(open_corpora([CorpusSpec(path=str(tmp_path / "results4"))]).documents())
    assert [document.sentences for document in documents] == [("Part 0.", "End."), ("Part 1.", "End.")]


def test_a_list_that_leads_out_of_its_folder_is_refused(
    tmp_path: Path, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    base = "/training.mlcommons-storage.org/metadata/bert-preprocessed-wikipedia-dataset"
    server.files[f"{base}.uri"] = b"https://training.mlcommons-storage.org/text"
    server.files[f"{base}.md5"] = f"{'0' * 32}  ../../etc/passwd\n".encode()
    assert fetch(server, tmp_path, "mlperf-text") == 2
    assert "names '../../etc/passwd', outside its folder" in capsys.readouterr().err
    server.files[f"{base}.md5"] = b"<html>sign in</html>"
    assert fetch(server, tmp_path, "mlperf-text") == 2
    assert "expected: lines of a checksum and a file name" in capsys.readouterr().err
