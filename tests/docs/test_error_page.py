"""docs/reference/errors.md has every message, as tools/error_messages reads it from the source."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import error_messages  # noqa: E402
from error_messages import Message, collect  # noqa: E402

PAGE = (ROOT / "docs/reference/errors.md").read_text()
SOURCE = '''
"""A module."""
import argparse
import sys
from elsewhere import OTHER

LIMIT = 30
SIZE = 4 << 10

class Trouble(ValueError):
    """Something is wrong.

    More of it.
    """
    exit_code = EXIT_ODD

class Worse(Trouble):
    """Much is."""

EXIT_ODD = 7

def check(path, names, error, strict):
    if not names:
        hint = "take fewer" if strict else OTHER
        raise Trouble(f"{path}: got {len(names)}; allowed: up to {LIMIT} lines of {SIZE} bytes", hint=hint)
    if strict:
        raise (Worse if names else Trouble)(
            f"{path.parent.name}: one of {', '.join(sorted(names))} is {'not ' if strict else ''}there"
        ) from error
    raise Worse(f"{error}")
    raise ValueError(f"odd names: {names[0]!r}")
    raise RuntimeError("never seen")
    sys.exit("out of {braces}" + f" in {path}")
    parser.error("--only: unknown")
    return Problem(path="a", got=str(path), allowed="two", next_step="write it")

def local(kind):
    wanted = "never said"
    if kind:
        raise Odd(f"one: {wanted}")
    wanted = "needs ssh" if kind else "needs a file of hosts"
    if kind == 3:
        wanted = "needs a third thing"
    count = 0
    raise Worse(f"{kind['name']}: {wanted}, {count} of {len(kind)} times")

class Reader:
    def read(self):
        self._refuse("has no header", 3, hint="copy it again")
        return Blocker(reason=1, message=f"Pod {self.name} waits")

    def _refuse(self, problem, row, *, hint):
        raise Worse(f"{self.path}:{row}: {problem}", hint=hint)
'''


def found_in(tmp_path: Path, text: str) -> list[Message]:
    (tmp_path / "part").mkdir()
    (tmp_path / "part/module.py").write_text(text)
    return collect(tmp_path, ["part"])[0]


def test_every_kind_of_message_is_read(tmp_path: Path) -> None:
    found = {(it.kind, it.text, it.next_step) for it in found_in(tmp_path, SOURCE)}
    assert found == {
        ("Trouble", "{path}: got {names}; allowed: up to 30 lines of 4096 bytes", "take fewer / {OTHER}"),
        ("ValueError", "odd names: {names}", ""),
        ("Worse", "{name}: one of {names} is [not ]there", ""),
        ("Trouble", "{name}: one of {names} is [not ]there", ""),
        ("exit", "out of {braces} in {path}", ""),
        ("argument", "--only: unknown", ""),
        ("rule", "got {path}; allowed: two", "write it"),
        ("Worse", "{name}: needs a third thing / needs ssh / needs a file of hosts, {count} of {kind} times", ""),
        ("Worse", "{path}:{row}: has no header", "copy it again"),
        ("blocked", "Pod {name} waits", ""),
    }


def test_scripts_are_read(tmp_path: Path) -> None:
    (tmp_path / "part").mkdir()
    (tmp_path / "part/make.sh").write_text('[ -n "$1" ] || die "got \'$name\'; allowed: ${NAMES[*]}, or none"\n')
    assert [it.text for it in collect(tmp_path, ["part"])[0]] == ["got '{name}'; allowed: {NAMES}, or none"]


def test_values_between_functions_are_no_messages(tmp_path: Path) -> None:
    assert not [it for it in found_in(tmp_path, SOURCE.replace("import argparse", "")) if it.kind == "ValueError"]


def test_classes_have_meaning_base_and_exit_code(tmp_path: Path) -> None:
    found_in(tmp_path, SOURCE)
    _, classes = collect(tmp_path, ["part"])
    trouble, worse = classes["part"]["Trouble"], classes["part"]["Worse"]
    assert (trouble.base, trouble.meaning, trouble.exit_code) == ("ValueError", "Something is wrong.", 7)
    assert (worse.base, worse.exit_code) == ("Trouble", None)


@pytest.mark.parametrize(
    "text",
    [
        "{path}: cannot be written, the disk is full ({reason})",
        "{folder}: another process is building here",
        "the build needs about {disk} of disk, {free_disk} are free",
        "allowed: a divisor of hiddenSize",
        "{name}: time is up",
        "duplicate key {key} in one object; keep one",
        "its checksums are others",
        "killed for its memory (OOMKilled), limit {limit}",
        "has no status after",
        "BERT_MPI: got '{mpi}'; allowed: open-mpi, gloo",
    ],
)
def test_known_messages_are_on_the_page(text: str) -> None:
    assert text in PAGE


def test_the_page_is_that_of_the_source() -> None:
    messages, classes = collect(ROOT)
    assert len(messages) > 500
    assert [it for it in messages if it.text.replace("|", "\\|") not in PAGE] == []
    names = {name for found in classes.values() for name in found}
    assert {it.kind for it in messages} - names - {"argument", "exit", "rule", "finding", "blocked"} <= {
        *error_messages.OF_USERS
    }
