"""What fuzzing found stays fixed: each input of ``findings/READER`` is read or refused as it should be.

And what ``make fuzz`` relies on: every reader reads its own sound inputs, and a reader that breaks the rules is told.
"""

from __future__ import annotations

import ast
import importlib
import os
import pickle
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))  # fuzz_reader and its like, which make fuzz imports in the same way

from bert_trainer.errors import InputError  # noqa: E402
from fuzz_reader import Reader  # noqa: E402 - after the path
from fuzz_results import Result, empty_scans  # noqa: E402
from reached import Reached, lines_of, trace  # noqa: E402
from readers import every_reader  # noqa: E402
from trial import judge  # noqa: E402
from untraced import judge_untraced  # noqa: E402

HERE = Path(__file__).parent
MIN_COVERAGE = 0.7
READERS = tuple(every_reader())
BY_NAME = {reader.name: reader for reader in READERS}
KEPT = sorted(path for folder in ("findings", "corpus") for path in (HERE / folder).glob("*/*"))


@pytest.mark.parametrize("path", KEPT, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_what_was_found_stays_fixed(path: Path, tmp_path: Path) -> None:
    reader, given, work = BY_NAME[path.parent.name], tmp_path / "given", tmp_path / "work"
    given.mkdir()
    work.mkdir()
    list(reader.seeds(given))  # writes the sound folder of weights, of which the input is a file
    verdict = judge(reader, path.read_bytes(), work)
    assert not verdict.problem, verdict.place


@dataclass(frozen=True, slots=True)
class Shown:
    """A reader, the sound inputs that it was shown, and what came of them."""

    reader: Reader
    inputs: list[bytes]
    reached: Reached


@pytest.fixture(scope="module", params=READERS, ids=lambda reader: reader.name)
def shown(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Shown:
    reader, given, work = request.param, tmp_path_factory.mktemp("given"), tmp_path_factory.mktemp("work")
    inputs = list(reader.seeds(given))
    return Shown(reader, inputs, trace(reader, inputs, work))


def test_every_reader_reads_a_sound_input(shown: Shown) -> None:
    verdicts = shown.reached.verdicts
    assert [verdict.problem for verdict in verdicts if verdict.problem] == []
    assert any(not verdict.refused for verdict in verdicts), "nothing after the first check is reached"


def test_given_inputs_reach_most_of_a_reader(shown: Shown) -> None:
    """Before anything is changed: what libFuzzer finds comes on top."""
    reader, found, wanted = shown.reader, shown.reached, lines_of(shown.reader)
    assert max(map(len, shown.inputs)) <= reader.max_bytes, "libFuzzer would cut it"
    assert len(found.lines) >= MIN_COVERAGE * len(wanted), sorted(wanted - found.lines)
    assert found.left_out == set()


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


def _remove_beside(path: Path) -> None:
    folder = os.open(path.parent.parent, os.O_RDONLY)
    try:
        os.remove("no-file", dir_fd=folder)
    finally:
        os.close(folder)


def _write_through_a_link(path: Path) -> None:
    link = path.parent / "link"
    link.symlink_to(path.parent.parent)
    (link / "x").write_text("x")


def _stay_at_home(path: Path) -> None:
    """What readers do, and may."""
    folder = path.parent / "folder"
    folder.mkdir()
    shutil.copy(path, folder / "a")
    (folder / "a").write_text("x")
    (folder / "a").rename(folder / "b")
    (folder / "c").symlink_to("/")
    shutil.rmtree(folder)
    ast.literal_eval("{'shape': (1, 2)}")
    importlib.import_module("colorsys")


def test_a_reader_that_keeps_to_its_folder_is_not_told_off(tmp_path: Path) -> None:
    sys.modules.pop("colorsys", None)  # a module that it has not needed before
    reader = Reader(name="sound", read=_stay_at_home, seeds=lambda _: iter(()), modules=())
    assert judge(reader, b"x", tmp_path).problem == ""


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
        (lambda path: Path(f"{path.parent}-other").write_text("x"), "raised Forbidden: 'writes"),
        (lambda path: path.rename(f"{path.parent}-other"), "raised Forbidden: 'os.rename"),
        (lambda path: Path(f"{path.parent}-other").mkdir(), "raised Forbidden: 'os.mkdir"),
        (lambda path: Path(f"{path.parent}-other").symlink_to(path), "raised Forbidden: 'os.symlink"),
        (lambda path: path.parent.with_name("no-file").unlink(), "raised Forbidden: 'os.remove"),
        (_remove_beside, "raised Forbidden: 'os.remove"),
        (_write_through_a_link, "raised Forbidden: 'writes"),
        (lambda _: pickle.loads(b"cbuiltins\nlen\n."), 'raised Forbidden: "pickle.find_class'),  # noqa: S301
        (lambda path: exec(path.read_bytes()), "raised Forbidden: \"compile of '<string>'"),  # noqa: S102
        (lambda path: exec(compile(path.read_bytes(), "<unknown>", "exec")), "raised Forbidden: 'exec of"),  # noqa: S102
        (lambda path: compile(path.read_bytes(), path, "exec"), 'raised Forbidden: "compile of'),
    ],
)
def test_a_reader_that_breaks_the_rules_is_told(read: object, wanted: str, tmp_path: Path) -> None:
    reader = Reader(name="broken", read=read, seeds=lambda _: iter(()), modules=())  # type: ignore[arg-type]
    assert wanted in judge(reader, b"x", tmp_path).problem


def test_an_input_is_judged_in_a_process_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_bytes(b"replicas: [")
    verdict = judge_untraced(BY_NAME["manifests"], path)
    assert verdict is not None
    assert (verdict.problem, verdict.refused) == ("", True)
    assert verdict.seconds > 0
    assert verdict.peak_mb > 1
    assert judge_untraced(BY_NAME["manifests"], tmp_path / "missing") is None


def test_a_reader_that_was_shown_nothing_is_told() -> None:
    sound = Result("sound", inputs=3, coverage=0.5)
    assert empty_scans([sound]) == []
    assert empty_scans([sound, Result("late", coverage=0.5)]) == ["late: was shown no input"]
    assert empty_scans([Result("other", inputs=3)]) == ["other: no input reached a line of it"]


def test_there_are_as_many_readers_as_are_promised() -> None:
    assert len(READERS) >= 12
    assert len(BY_NAME) == len(READERS)
