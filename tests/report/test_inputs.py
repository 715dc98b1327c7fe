"""The hash of what a run was given: the same for the same request wherever it ran, another one for anything else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bert_trainer.output.run_facts import load_run
from tiny_run import pretrain_stage
from told_run import write_run

STAGES = [pretrain_stage("phase1")]


def hash_of(folder: Path, **changes: Any) -> str:
    return load_run(write_run(folder, [], **{"stages": STAGES, **changes})).inputs.sha256


@pytest.fixture
def usual(tmp_path: Path) -> str:
    return hash_of(tmp_path / "usual")


@pytest.mark.parametrize(
    "changes",
    [
        {},  # another folder, and so other paths
        {"world": {"ranks": 4, "hosts": 2}},
        {"job": {"name": "other", "namespace": "ns", "uid": "uid-2"}},
        {"device": "cuda"},
        {"collectives": "torch"},
        {"logging": {"every_steps": 5, "tensorboard": True}},
        {"stages": [pretrain_stage("phase1", micro_batch_size=4)]},
        {"stages": [pretrain_stage("phase1", shards="/elsewhere")]},
    ],
)
def test_who_ran_it_and_where_changes_nothing(tmp_path: Path, usual: str, changes: dict[str, Any]) -> None:
    assert hash_of(tmp_path / "run", **changes) == usual


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 8},
        {"precision": "bf16"},
        {"stages": [pretrain_stage("phase1", global_batch_size=32)]},
        {"stages": [pretrain_stage("phase1"), pretrain_stage("phase2")]},
        {"stages": [pretrain_stage("phase1", learning_rate=2e-3, decay="linear")]},
    ],
)
def test_another_request_has_another_hash(tmp_path: Path, usual: str, changes: dict[str, Any]) -> None:
    assert hash_of(tmp_path / "run", **changes) != usual


@pytest.mark.parametrize(
    ("name", "part", "old", "new"),
    [
        ("data/dataset.json", "text", "abab", "acab"),
        ("data/dataset.json", "vocabulary", "cdcd", "cecd"),
        ("shards.json", "shards", "1234", "1235"),
    ],
)
def test_other_data_have_another_hash(tmp_path: Path, name: str, part: str, old: str, new: str) -> None:
    folder = write_run(tmp_path / "run", [])
    before = load_run(folder).inputs
    path = folder / name
    path.write_text(path.read_text().replace(old, new))
    after = load_run(folder).inputs
    assert {key for key in before.parts if before.parts[key] != after.parts[key]} == {part}
    assert before.sha256 != after.sha256


def test_a_vocabulary_is_hashed_itself_where_it_lies(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", [])
    (folder / "data/vocab.txt").write_text("")
    assert load_run(folder).inputs.parts["vocabulary"].startswith("e3b0c44298fc1c14")  # SHA-256 of nothing


def test_a_run_that_was_moved_has_the_same_hash(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", [])
    before = load_run(folder)
    moved = load_run(folder.rename(tmp_path / "moved"))
    assert moved.inputs == before.inputs
    assert moved.dataset == before.dataset != {}


def test_what_the_hash_does_not_cover_is_named(tmp_path: Path) -> None:
    start = {"path": "/weights", "format": "huggingface", "load": "weights"}
    folder = write_run(tmp_path / "run", [], stages=STAGES, initial_checkpoint=start)
    (folder / "shards.json").write_text(json.dumps({"stages": [1]}))
    inputs = load_run(folder).inputs
    assert inputs.missing == ("shards", "the weights that it starts from")
    assert set(inputs.parts) == {"settings", "vocabulary", "text", "release"}
