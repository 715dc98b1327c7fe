"""Periodic checkpoints come at the steps that were asked for, and at no others."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from bert_trainer.errors import InputError, Stopped
from bert_trainer.output.metrics import read_metrics
from bert_trainer.parallel.world import SingleRank
from bert_trainer.training.run import run_stages
from bert_trainer.training.session import Session
from in_process import losses, train
from signed_manifest import read_manifest, write_manifest
from tiny_run import pretrain_stage, run_config, write_dataset


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("dataset"))


def stage(name: str = "phase1", *, steps: int) -> dict[str, Any]:
    """Return a stage of batches of 16."""
    return pretrain_stage(name, global_batch_size=16, micro_batch_size=16, length={"steps": steps})


def saved(folder: Path) -> list[str]:
    return [f"{record['stage']}-{record['step']}" for record in read_metrics(folder) if record["event"] == "checkpoint"]


@pytest.mark.parametrize(
    ("policy", "steps"),
    [
        pytest.param({"every_samples": 40}, [3, 5, 8, 10], id="48, 80, 128 and 160 samples"),
        pytest.param({"every_samples": 48}, [3, 6, 9, 10], id="a multiple of the batch"),
        pytest.param({"every_samples": 16}, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], id="the batch"),
        pytest.param({"every_samples": 5}, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], id="less than the batch"),
        pytest.param({"every_samples": 1000}, [10], id="more than the stage"),
        pytest.param({"every_steps": 4, "every_samples": 48}, [3, 4, 6, 8, 9, 10], id="both"),
        pytest.param({"every_steps": 2, "min_samples_to_start": 96}, [6, 8, 10], id="from 96 samples on"),
        pytest.param({"every_steps": 2, "min_samples_to_start": 97}, [8, 10], id="from 97 samples on"),
        pytest.param({"every_steps": 2, "every_samples": 16, "periodic": False}, [10], id="the end alone"),
    ],
)
def test_checkpoints_come_at_exactly_these_steps(
    tmp_path: Path, dataset: Path, policy: dict[str, object], steps: list[int]
) -> None:
    train(run_config(tmp_path, dataset, stages=[stage(steps=10)], checkpoint=policy))
    assert saved(tmp_path) == [f"phase1-{step}" for step in steps]


def test_samples_before_the_first_checkpoint_are_counted_over_all_stages(tmp_path: Path, dataset: Path) -> None:
    stages = [stage(steps=4), {"kind": "evaluate", "sequence_length": 32, "max_predictions_per_sequence": 5}]
    policy = {"every_steps": 1, "min_samples_to_start": 16 * 6}
    train(run_config(tmp_path, dataset, stages=[*stages, stage("phase2", steps=4)], checkpoint=policy))
    assert saved(tmp_path) == ["phase1-4", "phase2-2", "phase2-3", "phase2-4"]


def test_multiples_of_samples_are_counted_in_each_stage_anew(tmp_path: Path, dataset: Path) -> None:
    stages = [stage(steps=4), stage("phase2", steps=4)]
    train(run_config(tmp_path, dataset, stages=stages, checkpoint={"every_samples": 48}))
    assert saved(tmp_path) == ["phase1-3", "phase1-4", "phase2-3", "phase2-4"]


def test_a_graceful_stop_writes_one_all_the_same(tmp_path: Path, dataset: Path) -> None:
    policy = {"every_steps": 1, "periodic": False, "min_samples_to_start": 1000}
    session = Session.open(run_config(tmp_path, dataset, checkpoint=policy), SingleRank(), attempt=1)
    asked: Any = SimpleNamespace(received=True, listen=lambda: None)
    with pytest.raises(Stopped):
        run_stages(session, asked)
    assert saved(tmp_path) == ["phase1-0"]


def test_checkpoints_are_deleted_after_success_if_asked_for(tmp_path: Path, dataset: Path) -> None:
    train(run_config(tmp_path, dataset, checkpoint={"delete_after_success": True}))
    assert not (tmp_path / "checkpoints").exists()
    assert losses(tmp_path)


def test_a_lower_keep_takes_effect_before_anything_is_written(tmp_path: Path, dataset: Path) -> None:
    settings: dict[str, Any] = {"stages": [stage(steps=5)]}
    train(run_config(tmp_path, dataset, **settings, checkpoint={"every_steps": 1, "keep": 9}))
    shutil.rmtree(tmp_path / "checkpoints" / "phase1-00000005")
    Session.open(run_config(tmp_path, dataset, **settings, checkpoint={"keep": 1}), SingleRank(), attempt=2).close()
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["phase1-00000004"]


def test_a_checkpoint_of_another_vocabulary_is_refused_by_name(tmp_path: Path, dataset: Path) -> None:
    own = shutil.copytree(dataset, tmp_path / "data")
    train(run_config(tmp_path / "out", own, stages=[stage(steps=3)]))
    for name in ("model", "optimizer"):
        file = tmp_path / "out" / "checkpoints" / "phase1-00000003" / f"{name}.safetensors"
        tensors = load_file(file)
        narrowed = {key: tensor[:-8] if "embeddings.tokens" in key else tensor for key, tensor in tensors.items()}
        save_file({key: tensor.contiguous() for key, tensor in narrowed.items()}, file)
    sign_again(file.parent)
    with pytest.raises(InputError, match="phase1-00000003: its tensors are not this model's"):
        train(run_config(tmp_path / "out", own, stages=[stage(steps=3)]))


def sign_again(checkpoint: Path) -> None:
    """Write the sums of files as they are now into a manifest."""
    manifest = read_manifest(checkpoint)
    for name in manifest["sha256"]:
        manifest["sha256"][name] = hashlib.sha256((checkpoint / name).read_bytes()).hexdigest()
    write_manifest(checkpoint, manifest)
