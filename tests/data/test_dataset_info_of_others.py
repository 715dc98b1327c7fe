"""``dataset.json`` lies beside shards that somebody else may have made: it is read with bounded memory, or refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from bert_trainer.dataset.shards.dataset_info import DATASET_FILE, find_dataset_info
from bert_trainer.errors import InputError

KINDS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a pipe": (os.mkfifo, "got a folder, a pipe or a device; allowed: a file"),
    "a folder": (Path.mkdir, "got a folder, a pipe or a device; allowed: a file"),
    "what never ends": (lambda path: path.symlink_to("/dev/zero"), "got a folder, a pipe or a device; allowed: a file"),
    "terabytes": (lambda path: os.truncate(os.open(path, os.O_CREAT | os.O_RDWR), 1 << 42), "got more than 8 MiB"),
    "brackets alone": (lambda path: path.write_text("[" * 100_000), "cannot be read .maximum recursion depth"),
    "bytes that are no text": (lambda path: path.write_bytes(b"\xff{}"), "cannot be read"),
}


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("kind", KINDS)
def test_whatever_lies_there_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    make, words = KINDS[kind]
    (tmp_path / "shards").mkdir()
    make(tmp_path / DATASET_FILE)
    with pytest.raises(InputError, match=rf"dataset.json: {words}"):
        find_dataset_info(tmp_path / "shards")


def test_without_one_there_is_nothing_to_say(tmp_path: Path) -> None:
    (tmp_path / "shards").mkdir()
    assert find_dataset_info(tmp_path / "shards") is None
