"""Runs over the toy data set of three shards, and what is done to its files, for tests of shards that go bad."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from at_step import AtStep
from bert_job.dataset_names import LayoutName
from bert_job.run_config import RunConfig
from bert_trainer.config.checks import parse_run_config
from bert_trainer.dataset.shards import read_header, read_shard, write_shard
from bert_trainer.dataset.shards.dataset_info import BuildSettings, DatasetInfo, LengthInfo
from bert_trainer.output.metrics import read_metrics
from bert_trainer.parallel.world import SingleRank
from bert_trainer.training.run import run_stages
from bert_trainer.training.session import Session
from relayout import relayout
from tiny_run import PREDICTIONS, SEQUENCE_LENGTH, pretrain_stage, run_document
from whole_configs import whole_stage

SHARDS = f"seq_len_{SEQUENCE_LENGTH}_max_pred_{PREDICTIONS}"
STEPS = 24
"""11 of 110 rows each; without the second shard's 40 an epoch is over sooner."""


def make_config(
    folder: Path, dataset: Path, *, ranks: int = 1, skip: bool = False, stages: list[dict[str, Any]] | None = None
) -> RunConfig:
    document = run_document(
        folder,
        dataset,
        world={"ranks": ranks, "hosts": 1},
        stages=[stage()] if stages is None else stages,
        checkpoint={"every_steps": 3, "keep": 100},
        logging={"every_steps": 1, "tensorboard": False, "sample_ledger": True},
    )
    document["dataset"]["on_unreadable_shard"] = "Skip" if skip else "Stop"
    return parse_run_config(document)


def stage(name: str = "phase1", **changes: Any) -> dict[str, Any]:
    return pretrain_stage(
        name, **{"global_batch_size": 11, "micro_batch_size": 11, "length": {"steps": STEPS}, **changes}
    )


def evaluate_stage(**changes: Any) -> dict[str, Any]:
    shape = {"sequence_length": SEQUENCE_LENGTH, "max_predictions_per_sequence": PREDICTIONS}
    return whole_stage({"kind": "evaluate", "name": "evaluate", "micro_batch_size": 8, **shape, **changes})


def train(
    folder: Path,
    dataset: Path,
    stop: Any = None,
    *,
    attempt: int = 1,
    skip: bool = False,
    stages: list[dict[str, Any]] | None = None,
) -> None:
    config = make_config(folder, dataset, skip=skip, stages=stages)
    run_stages(Session.open(config, SingleRank(), attempt=attempt), stop or AtStep())


def train_two_steps(folder: Path, dataset: Path, **options: Any) -> None:
    """Begin a run and end it before its first checkpoint. options: as of ``train``."""

    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(folder, dataset, AtStep(2, stop), **options)


def events(folder: Path, name: str) -> list[dict[str, Any]]:
    return [record for record in read_metrics(folder) if record["event"] == name]


def shard(dataset: Path, number: int) -> Path:
    return dataset / SHARDS / f"training_{number:04}.hdf5"


def write_all_as(layout: LayoutName, dataset: Path) -> None:
    if layout != "compact":
        for path in (dataset / SHARDS).iterdir():
            relayout(path, layout)


def describe_build(dataset: Path, *, complete: bool) -> None:
    """Write the ``dataset.json`` of a build that has made the files that are there, or is about to."""
    settings = BuildSettings(
        generator_version=1,
        vocabulary_size=None,
        vocabulary="trained",
        lower_case=True,
        held_out_fraction=0.05,
        near_duplicate_similarity=0.8,
        dupe_factor=1,
        masked_lm_probability=0.15,
        short_sequence_probability=0.1,
        seed=1,
        num_shards=2,
    )
    rows = {path.name: read_header(path).rows for path in sorted((dataset / SHARDS).iterdir())}
    held_out = {name: count for name, count in rows.items() if name.startswith("held_out")}
    length = LengthInfo(
        sequence_length=SEQUENCE_LENGTH,
        max_predictions=PREDICTIONS,
        folder=SHARDS,
        training={name: count for name, count in rows.items() if name not in held_out},
        held_out=held_out,
        samples_training=sum(rows.values()) - sum(held_out.values()),
        samples_held_out=sum(held_out.values()),
    )
    lengths = (length,) if complete else ()
    DatasetInfo(settings=settings, source="text", fingerprint="1", complete=complete, lengths=lengths).write(dataset)


def exchange(path: Path) -> None:
    """Put other samples in place, in as many bytes and rows."""
    samples = read_shard(path)
    samples.next_sentence_labels[:] = 1 - samples.next_sentence_labels
    header = read_header(path)
    write_shard(path, samples, vocabulary_sha256=header.vocabulary_sha256, generator_version=1, layout=header.layout)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def write_of_other_size(path: Path) -> None:
    shutil.copy(path.with_name("training_0002.hdf5"), path)
