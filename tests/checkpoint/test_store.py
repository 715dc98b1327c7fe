"""Checkpoints are whole or absent, and the newest good one is found.

Inputs: small tensors, a claimed folder. Observed: the files, the errors. A full disk is a real one (a small
tmpfs) where the test may mount it, and the operating system's error otherwise.
"""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import bert_trainer.checkpoint as checkpoint_module
from bert_trainer.checkpoint import CheckpointStore, Environment, Position, read_checkpoint
from bert_trainer.errors import TrainerError
from bert_trainer.run_folder import FencedError, RunFolder
from tiny_run import run_config

ENVIRONMENT = Environment(1, "fp32", "x86_64", 1, "AVX512", {"torch": "2.15.0"})


def position(step: int, *, stage_index: int = 0, total_steps: int = 100) -> Position:
    return Position(
        stage_index=stage_index,
        stage=f"phase{stage_index + 1}",
        step=step,
        total_steps=total_steps,
        num_applied=step,
        samples_seen=16 * step,
        sample_hash="ab" * 32,
        loss_scale=1.0,
        finite_steps=0,
    )


def tensors(value: float, elements: int = 8) -> dict[str, dict[str, torch.Tensor]]:
    return {
        part: {"layer.weight": torch.full((elements,), value)} for part in ("model", "first_moment", "second_moment")
    }


def make_store(folder: Path, *, keep: int = 3, attempt: int = 1) -> CheckpointStore:
    claimed = RunFolder.claim(run_config(folder, folder / "data"), attempt=attempt)
    return CheckpointStore(claimed, ENVIRONMENT, keep, on_saved=lambda _position, _path: None)


def save(store: CheckpointStore, step: int, **changes: int) -> Path:
    at = position(step, **changes)
    store.save(at, tensors(float(step)))
    store.wait()
    return store.root / f"{at.stage}-{at.step:08d}"


def names(store: CheckpointStore) -> list[str]:
    return sorted(path.name for path in store.root.iterdir())


def test_what_was_saved_is_loaded_with_its_position(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    save(store, 7)
    found = store.newest_good()
    assert found is not None
    assert found.position == position(7)
    assert found.environment == ENVIRONMENT
    assert torch.equal(found.load()["second_moment"]["layer.weight"], torch.full((8,), 7.0))


def test_a_later_stage_is_newer_whatever_its_step(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    save(store, 90)
    save(store, 3, stage_index=1)
    found = store.newest_good()
    assert found is not None
    assert found.position.stage == "phase2"


def test_only_the_newest_are_kept_and_the_last_of_each_finished_stage(tmp_path: Path) -> None:
    store = make_store(tmp_path, keep=2)
    for step in (50, 100):
        save(store, step)
    for step in (10, 20, 30):
        save(store, step, stage_index=1)
    assert names(store) == ["phase1-00000100", "phase2-00000020", "phase2-00000030"]


@pytest.mark.parametrize("damage", ["cut", "flipped", "model missing", "manifest missing", "manifest cut"])
def test_a_damaged_checkpoint_is_passed_over_by_name(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = make_store(tmp_path)
    save(store, 1)
    newest = save(store, 2)
    file = newest / ("manifest.json" if "manifest" in damage else "model.safetensors")
    content = file.read_bytes()
    if "missing" in damage:
        file.unlink()
    elif "cut" in damage:
        file.write_bytes(content[: len(content) // 2])
    else:
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    found = store.newest_good()
    assert found is not None
    assert found.position.step == 1
    assert damage == "manifest missing" or "phase1-00000002" in caplog.text


def test_a_checkpoint_of_another_contract_version_says_so(tmp_path: Path) -> None:
    path = save(make_store(tmp_path), 1)
    manifest = path / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"contract_version": 1', '"contract_version": 9'))
    with pytest.raises(TrainerError, match="contract version 9, this is 1"):
        read_checkpoint(path)


def test_a_fenced_attempt_commits_and_prunes_nothing(tmp_path: Path) -> None:
    old = make_store(tmp_path, keep=1)
    save(old, 1)
    new = make_store(tmp_path, keep=1, attempt=2)
    old.save(position(2), tensors(2.0))
    with pytest.raises(FencedError, match="claimed by attempt 2"):
        old.wait()
    assert names(new) == ["phase1-00000001"]


def test_a_half_written_folder_is_never_found(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    save(store, 1)
    half = store.root / ".phase1-00000002.4711"
    (store.root / "phase1-00000001").rename(half)
    assert store.newest_good() is None


def test_what_a_killed_attempt_had_begun_to_write_is_removed(tmp_path: Path) -> None:
    save(make_store(tmp_path), 1)
    (tmp_path / "checkpoints" / ".phase1-00000002.4711").mkdir()
    store = make_store(tmp_path, attempt=2)
    store.remove_leftovers()
    assert [path.name for path in store.root.iterdir()] == ["phase1-00000001"]


def test_a_good_checkpoint_of_the_same_position_is_never_taken_away_and_a_damaged_one_is_replaced(
    tmp_path: Path,
) -> None:
    store = make_store(tmp_path)
    path = save(store, 1)
    inode = path.stat().st_ino
    assert save(store, 1).stat().st_ino == inode
    (path / "model.safetensors").write_bytes(b"damaged")
    assert save(store, 1).stat().st_ino != inode
    assert read_checkpoint(path).position == position(1)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB; needs the right to mount."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("requires the right to mount a tmpfs (root)")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_is_named_and_harms_no_earlier_checkpoint(small_disk: Path) -> None:
    store = make_store(small_disk, keep=1)
    save(store, 1)
    store.save(position(2), tensors(2.0, elements=50_000))
    with pytest.raises(
        TrainerError, match=r"phase1-00000002: the checkpoint could not be written.*No space left"
    ) as error:
        store.wait()
    assert "free space on the output volume" in str(error.value)
    assert error.value.exit_code == 1
    assert names(store) == ["phase1-00000001"]
    found = store.newest_good()
    assert found is not None
    assert found.position.step == 1


def test_any_error_of_the_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make_store(tmp_path)
    save(store, 1)

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(checkpoint_module, "save_file", fail)
    store.save(position(2), tensors(2.0))
    with pytest.raises(TrainerError, match=r"phase1-00000002: .*Input/output error"):
        store.wait()
    assert names(store) == ["phase1-00000001"]
