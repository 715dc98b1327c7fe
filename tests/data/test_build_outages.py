"""A volume that fills up or fails while a dataset is built ends the attempt only; what can never fit ends the job.

Inputs: a small text, real small file systems that are filled or made read-only, system calls that fail. Observed: the
error, its exit code, and that a later build makes the same files.
"""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bert_job.run_config import DatasetConfig
from bert_trainer.dataset.build.pipeline import build_dataset
from bert_trainer.errors import EXIT_INFRASTRUCTURE, InputError, StorageFailed, TrainerError
from silent import Silent
from small_build import LENGTHS, build, contents, stage_of
from small_disk import fill, mounted


def test_a_full_disk_is_named_and_the_build_resumes_after_it(
    tmp_path: Path, write_corpus: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    text, root = write_corpus(), tmp_path / "data"
    build(text, tmp_path / "whole")
    real, left = os.fsync, [6]

    def full(descriptor: int) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(TrainerError, match=r"\.hdf5: cannot be written, the disk is full") as caught:
            build(text, root)
    assert (type(caught.value), caught.value.exit_code) == (StorageFailed, EXIT_INFRASTRUCTURE), "a job retries it"
    assert not list(root.rglob("*.partial"))
    build(text, root)
    assert contents(root) == contents(tmp_path / "whole")


@pytest.mark.parametrize("num_processes", [1, 2])
def test_others_fill_the_volume_of_a_build(
    num_processes: int, tmp_path: Path, write_corpus: Callable[..., Path]
) -> None:
    text = write_corpus()
    build(text, tmp_path / "whole")
    with mounted(tmp_path / "disk", size="64m") as disk:
        stage = stage_of(text, num_processes=num_processes)
        root, dataset = disk / "data", DatasetConfig(folder=str(disk / "data"))

        def fill_once() -> None:
            if (root / "dataset.json").exists() and not (disk / "others").exists():
                fill(disk)

        with pytest.raises(StorageFailed, match="the disk is full") as met:
            build_dataset(stage, dataset, LENGTHS, Silent(), check=fill_once)
        with pytest.raises(StorageFailed, match="of disk, .* are free") as still_full:
            build_dataset(stage, dataset, LENGTHS, Silent())
        assert {met.value.exit_code, still_full.value.exit_code} == {EXIT_INFRASTRUCTURE}
        (disk / "others").unlink()
        build_dataset(stage, dataset, LENGTHS, Silent())
        assert contents(root) == contents(tmp_path / "whole")


@pytest.mark.parametrize("when", ["at once", "later", "with another length"])
def test_a_build_that_fitted_is_retried_where_it_no_longer_does(
    when: str, tmp_path: Path, write_corpus: Callable[..., Path]
) -> None:
    text = write_corpus()
    with mounted(tmp_path / "disk", size="64m") as disk:
        root, dataset = disk / "data", DatasetConfig(folder=str(disk / "data"))
        if when == "with another length":
            build_dataset(stage_of(text), dataset, LENGTHS[:1], Silent())

        def fill_once() -> None:
            if (root / ".work").exists() and not (disk / "others").exists():
                fill(disk)

        def attempt(lengths: list[tuple[int, int]], check: Callable[[], None] = lambda: None) -> type[TrainerError]:
            with pytest.raises(TrainerError) as met:
                build_dataset(stage_of(text), dataset, lengths, Silent(), check=check)
            return type(met.value)

        if when == "at once":
            # The lock is a file without content, which a full disk still takes.
            root.mkdir()
            (root / ".lock").touch()
            fill(disk)
        else:
            assert attempt(LENGTHS, fill_once) is StorageFailed
        assert attempt(LENGTHS) is StorageFailed
        if when == "later":
            assert attempt([*LENGTHS, (512, 76)]) is InputError, "that much has never fitted"
        (disk / "others").unlink()
        build_dataset(stage_of(text), dataset, LENGTHS, Silent())
        assert not (root / ".work").exists()


@pytest.mark.parametrize(
    ("name", "number", "kind"),
    [
        ("dataset.json", errno.EIO, StorageFailed),
        ("dataset.json", errno.ESTALE, StorageFailed),
        ("dataset.json", errno.EACCES, InputError),
        ("text", errno.EIO, StorageFailed),
        ("text", errno.EACCES, InputError),
    ],
)
def test_a_volume_that_cannot_be_read_is_an_outage_unless_rights_forbid_it(
    name: str,
    number: int,
    kind: type[TrainerError],
    tmp_path: Path,
    write_corpus: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text, root = write_corpus(), tmp_path / "data"
    build(text, root)
    real = Path.open

    def fail(path: Path, *words: Any, **more: Any) -> Any:
        if path.name == name or (name == "text" and path.is_relative_to(text)):
            raise OSError(number, os.strerror(number), str(path))
        return real(path, *words, **more)

    monkeypatch.setattr(Path, "open", fail)
    with pytest.raises(TrainerError) as met:
        build_dataset(stage_of(text), DatasetConfig(folder=str(root)), [*LENGTHS, (48, 8)], Silent())
    assert type(met.value) is kind, met.value


def test_a_volume_below_the_folder_that_was_never_writable_is_bad_input(
    tmp_path: Path, write_corpus: Callable[..., Path]
) -> None:
    text, root = write_corpus(), tmp_path / "data"
    build(text, tmp_path / "other")
    root.mkdir()
    name = next(path.name for path in (tmp_path / "other").iterdir() if path.is_dir())
    with mounted(root / name, size="1m"):
        subprocess.run(["mount", "-o", "remount,ro", str(root / name)], check=True)
        with pytest.raises(InputError, match="Read-only file system"):
            build(text, root)
