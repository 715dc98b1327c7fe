"""What fuzzing found stays mended: each input of ``findings/READER`` is read or refused as it should be.

And what ``make fuzz`` relies on: every reader reads its own sound inputs, and a reader that breaks the rules is told.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))  # fuzz_reader and its like, which make fuzz imports in the same way

from fuzz_reader import Reader  # noqa: E402 - after the path
from readers import READERS  # noqa: E402
from trial import judge  # noqa: E402

from bert_trainer.errors import InputError  # noqa: E402

HERE = Path(__file__).parent
BY_NAME = {reader.name: reader for reader in READERS}
KEPT = sorted(path for folder in ("findings", "corpus") for path in (HERE / folder).glob("*/*"))


@pytest.mark.parametrize("path", KEPT, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_what_was_found_stays_mended(path: Path, tmp_path: Path) -> None:
    reader, given, work = BY_NAME[path.parent.name], tmp_path / "given", tmp_path / "work"
    given.mkdir()
    work.mkdir()
    list(reader.seeds(given))  # writes the sound folder of weights, of which the input is a file
    verdict = judge(reader, path.read_bytes(), work)
    assert not verdict.problem, verdict.place


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_every_reader_reads_a_sound_input(reader: Reader, tmp_path: Path) -> None:
    given, work = tmp_path / "given", tmp_path / "work"
    given.mkdir()
    work.mkdir()
    verdicts = [judge(reader, data, work) for data in reader.seeds(given)]
    assert [verdict.problem for verdict in verdicts if verdict.problem] == []
    assert any(not verdict.refused for verdict in verdicts), "nothing behind the first check is reached"


def _raise_key_error(path: Path) -> None:
    raise KeyError(path.name)


def _refuse_without_a_name(_: Path) -> None:
    raise InputError("no good", hint="take another one")


def _refuse_without_advice(path: Path) -> None:
    raise InputError(f"{path}: no good")


def _refuse_with_an_escape(path: Path) -> None:
    raise InputError(f"{path}: got \x1b[2J; allowed: text")


def _want_memory(path: Path) -> None:
    try:
        raise MemoryError
    except MemoryError as error:
        raise InputError(f"{path}: too large", hint="take a smaller one") from error


@pytest.mark.parametrize(
    ("read", "wanted"),
    [
        (_raise_key_error, "raised KeyError"),
        (_refuse_without_a_name, "does not name the file"),
        (_refuse_without_advice, "neither what is allowed"),
        (_refuse_with_an_escape, "cannot be printed"),
        (_want_memory, "memory that is not there"),
        (lambda _: os.system("true"), 'raised Forbidden: "os.system'),  # noqa: S605, S607
        (lambda _: Path("/tmp/bert-fuzz-escaped").write_text("x"), "raised Forbidden: 'writes"),  # noqa: S108
    ],
)
def test_a_reader_that_breaks_the_rules_is_told(read: object, wanted: str, tmp_path: Path) -> None:
    reader = Reader(name="broken", read=read, seeds=lambda _: iter(()), modules=())  # type: ignore[arg-type]
    assert wanted in judge(reader, b"x", tmp_path).problem


def test_there_are_as_many_readers_as_are_promised() -> None:
    assert len(READERS) >= 12
    assert len(BY_NAME) == len(READERS)
