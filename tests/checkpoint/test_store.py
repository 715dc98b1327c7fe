"""Checkpoints are whole or absent, and the newest good one is found.

Inputs: small tensors, a claimed folder. Observed: the files, the errors. A full disk is a real one (a small
tmpfs) where the test may mount it, and the operating system's error otherwise.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import bert_trainer.checkpoints.checkpoint as checkpoint_module
import bert_trainer.checkpoints.store as store_module
from bert_trainer.checkpoints.checkpoint import Environment, Position, read_checkpoint
from bert_trainer.checkpoints.store import CheckpointStore
from bert_trainer.errors import FencedError, TrainerError
from bert_trainer.output.run_folder import RunFolder
from signed_manifest import read_manifest, write_manifest
from small_disk import mounted
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
    return CheckpointStore(claimed, ENVIRONMENT, keep, on_saved=lambda _position, _path, _seconds: None)


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
    found = store.latest_valid()
    assert found is not None
    assert found.position == position(7)
    assert found.environment == ENVIRONMENT
    assert torch.equal(found.load()["second_moment"]["layer.weight"], torch.full((8,), 7.0))


def test_a_later_stage_is_newer_whatever_its_step(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    save(store, 90)
    save(store, 3, stage_index=1)
    found = store.latest_valid()
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
    found = store.latest_valid()
    assert found is not None
    assert found.position.step == 1
    assert damage == "manifest missing" or "phase1-00000002" in caplog.text


def test_a_checkpoint_of_another_format_says_so(tmp_path: Path) -> None:
    path = save(make_store(tmp_path), 1)
    manifest = path / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"contract_version": 1', '"contract_version": 9'))
    with pytest.raises(TrainerError, match="written in format 9, this trainer reads 1"):
        read_checkpoint(path)


def test_a_fenced_attempt_commits_and_prunes_nothing(tmp_path: Path) -> None:
    old = make_store(tmp_path, keep=1)
    save(old, 1)
    new = make_store(tmp_path, keep=1, attempt=2)
    old.save(position(2), tensors(2.0))
    with pytest.raises(FencedError, match="claimed by attempt 2"):
        old.wait()
    assert names(new) == ["phase1-00000001"]


def test_an_attempt_that_is_taken_over_while_it_writes_commits_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, real = make_store(tmp_path), store_module.save_tensors

    def save_late(*arguments: Any) -> None:
        real(*arguments)
        RunFolder.claim(run_config(tmp_path, tmp_path / "data"), attempt=2)

    monkeypatch.setattr(store_module, "save_tensors", save_late)
    old.save(position(1), tensors(1.0))
    with pytest.raises(FencedError, match="claimed by attempt 2"):
        old.wait()
    assert old.latest_valid() is None


def test_every_file_and_folder_of_a_checkpoint_reaches_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before its name says that it is there, and then the folder that holds the name."""
    synced, real = list[str](), os.fsync

    def watched(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").resolve().name)
        real(descriptor)

    store = make_store(tmp_path)
    monkeypatch.setattr(os, "fsync", watched)
    target = save(store, 1)
    files = {path.name for path in target.iterdir()}
    assert files == {"manifest.json", "model.safetensors", "optimizer.safetensors"} <= set(synced)
    assert synced[-1] == store.root.name


def test_a_half_written_folder_is_never_found(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    save(store, 1)
    half = store.root / ".phase1-00000002.4711"
    (store.root / "phase1-00000001").rename(half)
    assert store.latest_valid() is None


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


def flip_a_byte(file: Path, at: int = -1) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)


def rewrite_manifest(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a manifest as another release or job would have written it, with its own sum."""
    manifest = read_manifest(path)
    change(manifest)
    write_manifest(path, manifest)


def test_a_checkpoint_of_a_run_that_had_gone_back_is_gone_on_from(tmp_path: Path) -> None:
    """By itself, as releases before this one did."""
    path = save(make_store(tmp_path), 41)
    rewrite_manifest(path, lambda it: it["position"].update(num_rollbacks=2))
    rewrite_manifest(path, lambda it: it.update(rollbacks=[{"stage": "phase1"}]))
    assert read_checkpoint(path).position == position(41)


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda path: flip_a_byte(path / "model.safetensors"), id="a flipped byte of the model"),
        pytest.param(lambda path: flip_a_byte(path / "optimizer.safetensors", 60), id="of the moments"),
        pytest.param(lambda path: (path / "optimizer.safetensors").unlink(), id="a missing file"),
        pytest.param(lambda path: (path / "manifest.json").write_text("{"), id="a cut manifest"),
        pytest.param(lambda path: (path / "manifest.json").write_text("[1]"), id="a manifest that is a list"),
        pytest.param(
            lambda path: rewrite_manifest(path, lambda it: it.update(contract_version=9)), id="another contract version"
        ),
        pytest.param(
            lambda path: rewrite_manifest(path, lambda it: it["run"].update(job="default/x")), id="another job"
        ),
        pytest.param(lambda path: rewrite_manifest(path, lambda it: it.update(sha256={})), id="no sums"),
        pytest.param(
            lambda path: rewrite_manifest(path, lambda it: it["position"].update(step="41")), id="a step as text"
        ),
        pytest.param(lambda path: rewrite_manifest(path, lambda it: it["position"].update(step=43)), id="another step"),
    ],
)
def test_what_does_not_verify_pushes_out_nothing_and_is_set_aside_by_name(
    tmp_path: Path, spoil: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    spoil(save(make_store(tmp_path, keep=1), 41))
    store = make_store(tmp_path, keep=1, attempt=2)
    assert store.latest_valid() is None
    for step in (10, 20, 30, 32):
        save(store, step)
    assert names(store) == ["phase1-00000032", "refused"]
    assert [path.name for path in (store.root / "refused").iterdir()] == ["phase1-00000041"]
    assert "Set a checkpoint aside: " in caplog.text
    assert "refused/phase1-00000041" in caplog.text
    found = store.latest_valid()
    assert found is not None
    assert found.position.step == 32


def test_a_checkpoint_that_is_damaged_while_the_run_goes_on_does_not_count_either(tmp_path: Path) -> None:
    store = make_store(tmp_path, keep=2)
    for step in (10, 20):
        damaged = save(store, step)
    flip_a_byte(damaged / "model.safetensors")
    save(store, 30)
    assert names(store) == ["phase1-00000010", "phase1-00000030", "refused"]


def test_a_flipped_byte_anywhere_in_a_manifest_changes_nothing_that_is_believed(tmp_path: Path) -> None:
    path = save(make_store(tmp_path), 41)
    whole, before = (path / "manifest.json").read_bytes(), read_checkpoint(path)
    for place in range(0, len(whole), 7):
        flip_a_byte(path / "manifest.json", place)
        with contextlib.suppress(TrainerError):
            assert read_checkpoint(path) == before, whole[place - 10 : place + 10]
        (path / "manifest.json").write_bytes(whole)


def test_two_damaged_ones_of_a_name_are_both_kept_and_success_leaves_them(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    for _ in range(2):
        flip_a_byte(save(store, 7) / "model.safetensors")
        assert store.latest_valid() is None
    save(store, 7)
    store.remove_all()
    assert names(store) == ["refused"]
    assert sorted(path.name for path in (store.root / "refused").iterdir()) == ["phase1-00000007", "phase1-00000007.2"]


def test_an_error_that_may_pass_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make_store(tmp_path)
    save(store, 1)
    save(store, 2)

    def fail(path: Path) -> str:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint_module, "sha256_of", fail)
        with pytest.raises(TrainerError, match="phase1-00000002: cannot be read .*Stale"):
            make_store(tmp_path, attempt=2).latest_valid()
    assert names(store) == ["phase1-00000001", "phase1-00000002"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk", size="256k") as disk:
        yield disk


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
    found = store.latest_valid()
    assert found is not None
    assert found.position.step == 1


def save_larger(store: CheckpointStore, *steps: int) -> None:
    """Save checkpoints of which three fit the small disk and four do not."""
    for step in steps:
        store.save(position(step), tensors(float(step), elements=5_000))
        store.wait()


def test_on_a_full_disk_the_one_that_a_write_pushes_out_goes_before_it(small_disk: Path) -> None:
    store = make_store(small_disk, keep=3)
    save_larger(store, 1, 2, 3, 4)
    assert names(store) == ["phase1-00000002", "phase1-00000003", "phase1-00000004"]
    for path in store.root.iterdir():
        read_checkpoint(path)


def test_on_a_full_disk_a_lower_keep_helps(small_disk: Path) -> None:
    store = make_store(small_disk, keep=3)
    save_larger(store, 1, 2, 3)
    store.save(position(4), tensors(4.0, elements=10_000))
    with pytest.raises(TrainerError, match=r"No space left[\s\S]*hint: free space.*lower checkpoint\.keep"):
        store.wait()
    assert names(store) == ["phase1-00000002", "phase1-00000003"]
    lower = make_store(small_disk, keep=1, attempt=2)
    lower.save(position(4), tensors(4.0, elements=10_000))
    lower.wait()
    assert names(lower) == ["phase1-00000004"]


def test_on_a_full_disk_nothing_goes_on_the_word_of_a_damaged_one(small_disk: Path) -> None:
    store = make_store(small_disk, keep=2)
    save_larger(store, 1, 2)
    flip_a_byte(store.root / "phase1-00000002" / "model.safetensors")
    (small_disk / "others").write_bytes(bytes(60_000))
    with pytest.raises(TrainerError, match="No space left"):
        save_larger(store, 3)
    found = store.latest_valid()
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


def failing_saves(monkeypatch: pytest.MonkeyPatch, code: int, times: int) -> list[int]:
    """Let the next writes fail; return a list that gets an entry for each write."""
    write, seen = checkpoint_module.save_file, []

    def fail(*arguments: Any, **options: Any) -> None:
        seen.append(code)
        if len(seen) <= times:
            raise OSError(code, os.strerror(code))
        write(*arguments, **options)

    monkeypatch.setattr(checkpoint_module, "save_file", fail)
    return seen


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_trouble_that_passes_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    store = make_store(tmp_path)
    store.again_after_s = (0.0, 0.0)
    failing_saves(monkeypatch, code, times=2)
    save(store, 1)
    assert names(store) == ["phase1-00000001"]
    assert caplog.text.count(f"phase1-00000001: could not be written ({os.strerror(code)}); trying again in 0 s") == 2


@pytest.mark.parametrize("code", [errno.EROFS, errno.EINVAL])
def test_what_does_not_pass_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    store = make_store(tmp_path)
    store.again_after_s = (3600.0,)
    seen = failing_saves(monkeypatch, code, times=9)
    with pytest.raises(TrainerError, match="could not be written"):
        save(store, 1)
    assert len(seen) == 1


def test_an_attempt_that_ends_waits_for_no_volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make_store(tmp_path)
    store.again_after_s = (3600.0,)
    failing_saves(monkeypatch, errno.EIO, times=9)
    store.save(position(1), tensors(1.0))
    store.hurry()
    with pytest.raises(TrainerError, match="Input/output error"):
        store.wait()
