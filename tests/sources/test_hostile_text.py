"""Text that was made to cost memory or time is read within bounds, or skipped by name."""

from __future__ import annotations

import bz2
import json
import logging
import lzma
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bert_job.preparation import CorpusSpec
from bert_trainer.dataset.corpus.corpora import open_corpora
from bert_trainer.dataset.corpus.document import MAX_DOCUMENT
from bert_trainer.dataset.corpus.formats import streams
from bert_trainer.dataset.corpus.formats.wikitext import MarkupError, extract_paragraphs
from bert_trainer.dataset.corpus.sentences import clean_line, split_sentences
from bert_trainer.errors import InputError
from small_dumps import END, HEADER, dump, page

MAX_MEMORY_MB = 400
PAGE_MB = float(os.environ.get("BERT_TEST_HOSTILE_PAGE_MB", "0.5"))
"""2: the size that the bound is stated for."""

CHILD = """
import sys
from bert_job.run_stages import CorpusSpec
from bert_trainer.dataset.corpus.corpora import open_corpora
from bert_trainer.dataset.tokens.block_files import write_text_blocks
from bert_trainer.dataset.tokens.block_tasks import SurveyTask, survey_block
from bert_trainer.errors import InputError
from pathlib import Path
corpora = open_corpora([CorpusSpec(path=sys.argv[1])])
try:
    for block in write_text_blocks(corpora.documents(), Path(sys.argv[2])):
        survey_block(SurveyTask(block, 0.8, 1))
        block.path.unlink()
    print("read")
except InputError as error:
    print("refused:", error)
lines = open("/proc/self/status").read().splitlines()
print(next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM")))
"""


def read_in_child(path: Path, scratch: Path) -> tuple[str, int]:
    """Read and survey a corpus as a build does; return how that ended, and the most memory that it took, in MB."""
    command = [sys.executable, "-c", CHILD, str(path), str(scratch)]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    *told, megabytes = done.stdout.decode().splitlines()
    return "\n".join(told), int(megabytes)


def bomb(header: bool) -> bytes:
    """Return a dump whose last streams are blanks."""
    first = page("A", "Text of a page. It has two sentences.")
    blanks = bz2.compress(b" " * (96 << 20))
    if not header:
        return bz2.compress(HEADER.encode() + first.encode()) + blanks + bz2.compress(END.encode())
    return b"".join((bz2.compress(HEADER.encode()), bz2.compress(first.encode()), blanks, bz2.compress(END.encode())))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "make", "told"),
    [
        ("a.xml.bz2", lambda: bomb(header=True), "refused: .*holds more than 64 MiB"),
        ("a.xml.bz2", lambda: bomb(header=False), "refused: .*no end of a page within 64 MiB"),
        ("a.txt", lambda: b"ab " * (4 << 20), "read"),
        ("a.jsonl", lambda: b'{"text": "One."}\n{"x": [' + b'{"":0},' * (3 << 20) + b'0], "text": "Two."}', "read"),
    ],
)
def test_no_file_takes_the_memory_that_it_stands_for(
    tmp_path: Path, name: str, make: Callable[[], bytes], told: str
) -> None:
    path = tmp_path / name
    path.write_bytes(make())
    ended, megabytes = read_in_child(path, tmp_path)
    assert megabytes < MAX_MEMORY_MB, ended
    assert re.match(told, ended), ended


PROSE = "The river is long and [[silt|brown]]. It runs south of the hills. "


def repeated(unit: str) -> str:
    return unit * int(PAGE_MB * 1e6 / len(unit))


@pytest.mark.parametrize(
    "hostile",
    [
        lambda: "<" + repeated("a"),
        lambda: repeated("[ftp://x "),
        lambda: repeated("[//x "),
        lambda: repeated("\u201cYes. "),
        lambda: repeated("\u201c"),
        lambda: repeated("\u201a`Yes. "),
        lambda: repeated("\"'Yes. "),
        lambda: repeated("'"),
        lambda: "{{a|" * 90 + repeated(PROSE),
        lambda: "[[a|" * 30 + repeated(PROSE),
        lambda: repeated("{{a [[b }} ]]"),
        lambda: repeated("[[a]]"),
        lambda: repeated("{{a|b=c}}"),
        lambda: repeated("{{quote|" * 30 + "x" + "}}" * 30),
        lambda: "{{quote|" * 90 + repeated("[[a]] ") + "}}" * 90,
        lambda: repeated("*"),
        lambda: repeated(";a:b\n"),
        lambda: repeated("a\n"),
        lambda: repeated("\n\u00a0{|"),
        lambda: repeated("urn:x "),
    ],
)
def test_a_page_of_megabytes_is_cleaned(hostile: Callable[[], str]) -> None:
    # What needs the square of a page's length for it runs into pytest's limit.
    try:
        for paragraph in extract_paragraphs(hostile(), frozenset()):
            split_sentences(clean_line(paragraph), "en")
    except MarkupError:
        pass


def test_a_heading_of_headings_does_not_take_the_stack(tmp_path: Path) -> None:
    path = tmp_path / "a.xml"
    path.write_bytes(dump(page("Endless", "==(====(====" * 80_000), page("Whole", "Text of a page.")))
    assert read_in_child(path, tmp_path)[0] == "read"


def read(path: Path) -> list[tuple[str, ...]]:
    return [document.sentences for document in open_corpora([CorpusSpec(path=str(path))]).documents()]


def test_pages_that_cost_too_much_are_skipped_by_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "a.xml"
    pages = [
        page("Links & more", "[[a]] " * 60_000),
        page("Huge", "A word. " * (1 << 20) + "The end."),
        page("Open", "{{x|" * 500),
        page("Whole", "Text of a page."),
    ]
    path.write_bytes(dump(*pages))
    with caplog.at_level(logging.WARNING):
        assert read(path) == [("Text of a page.",)]
    assert f"{path}: skipped the page 'Links & more', one of the pages with too much markup" in caplog.text
    assert f"{path}: skipped the page 'Huge', one of the pages above 8 MiB" in caplog.text
    assert f"{path}: skipped the page 'Open', one of the pages whose markup cannot be parsed" in caplog.text
    assert "skipped 1 pages above 8 MiB, 1 pages whose markup cannot be parsed, 1 pages with too much" in caplog.text


@pytest.mark.parametrize("documents", ["emptyLines", "files"])
def test_text_without_empty_lines_is_read_in_pieces_that_fit_into_memory(tmp_path: Path, documents: str) -> None:
    path = tmp_path / "a.txt"
    line = "The river runs south of the hills."
    path.write_text(f"{line}\n" * 120_000)
    corpora = open_corpora([CorpusSpec(path=str(path), documents=documents)])  # type: ignore[arg-type]
    found = [document.sentences for document in corpora.documents()]
    assert len(found) == 3
    assert all(sum(map(len, sentences)) < MAX_DOCUMENT for sentences in found)
    assert sum(found, ()) == (line,) * 120_000


@pytest.mark.parametrize("text", ["a bc def \u00e4" * 9, "\U0001f600\u4e2d\u00e4" * 9, "abc" * 9])
def test_a_long_line_is_cut_at_spaces_or_between_characters(
    tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "MAX_PIECE_BYTES", 16)
    path = tmp_path / "a.txt"
    path.write_text(f"x\n{text}\ny\n")
    lines = list(streams.read_lines(path))
    assert "".join(line for _, line in lines) == f"x{text}y"
    for offset, line in lines:
        assert path.read_bytes()[offset:].startswith(line.encode())


def test_a_json_line_that_is_too_long_is_skipped_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(streams, "MAX_LINE_BYTES", 1 << 10)
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": f"One. {'w ' * length}"}) + "\n" for length in (1, 2000, 5000, 2)))
    with caplog.at_level(logging.WARNING):
        assert len(read(path)) == 2
    assert f"{path}:2: skipped: longer than" in caplog.text
    assert f"{path}:3: skipped: longer than" in caplog.text
    assert "skipped 2 lines above" in caplog.text


def test_a_compressed_file_may_not_ask_for_more_memory_than_xz_itself_does(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.xz"
    path.write_bytes(lzma.compress(b"One.\n", filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 512 << 20}]))
    with pytest.raises(InputError, match=r"a\.txt\.xz: takes more than 128 MiB of memory to decompress"):
        read(path)
    path.write_bytes(lzma.compress(b"One.\n", preset=9) + bytes(4) + lzma.compress(b"Two.\n"))
    assert read(path) == [("One.", "Two.")]


# Of straight marks nobody can tell from a piece whether they open or close: those are cut in pieces otherwise.
@pytest.mark.parametrize("quotes", ["\u201c\u201d", "\u201e\u201c", "\u00bb\u00ab", "\u300c\u300d"])
def test_a_long_text_with_quotations_is_cut_as_a_short_one_is(quotes: str) -> None:
    paragraph = f"{quotes[0]}We go. All of us.{quotes[1]} He said so at 5.30 p.m. and left. Mr. Bell didn't. "
    once = split_sentences(paragraph, "en")
    assert split_sentences(paragraph * 500, "en") == once * 500
