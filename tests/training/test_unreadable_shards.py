"""Shards that go bad while a run reads them: named, left out on request, and never a wrong batch.

Inputs: the toy data set of three shards, read anew in every epoch of 10 steps; files are really damaged, exchanged or
moved away before a step. Observed: errors, metrics, ledger, weights. Ranks are threads, or real processes.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from at_step import AtStep, StopAt
from bert_trainer.config.checks import parse_run_config
from bert_trainer.config.dataset_names import LayoutName
from bert_trainer.config.run_config import RunConfig
from bert_trainer.dataset.shards import ShardFolder, ShardHeader, read_header, read_shard, write_shard
from bert_trainer.dataset.shards import folder as shard_folder
from bert_trainer.dataset.shards.dataset_info import BuildSettings, DatasetInfo
from bert_trainer.dataset.shards.ragged import RaggedSamples
from bert_trainer.errors import (
    EXIT_BAD_INPUT,
    EXIT_INFRASTRUCTURE,
    DataUnreadable,
    InputError,
    Stopped,
    StorageFailed,
)
from bert_trainer.output.metrics import read_metrics
from bert_trainer.parallel.world import Alone, PeerFailed, World
from bert_trainer.training import data_loader
from bert_trainer.training.loop import run_stages
from bert_trainer.training.run_data import open_data
from bert_trainer.training.session import Session
from relayout import relayout
from threaded_world import run_threads
from tiny_run import PREDICTIONS, SEQUENCE_LENGTH, pretrain_stage, run_document, write_dataset
from whole_configs import whole_stage

SHARDS = f"seq_len_{SEQUENCE_LENGTH}_max_pred_{PREDICTIONS}"
STEPS = 24
"""11 of 110 rows each; without the second shard's 40 an epoch is over sooner."""
SECOND = set(range(40, 80))
FINAL = f"phase1-{STEPS:08d}"


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return write_dataset(tmp_path / "dataset")


@pytest.fixture
def second(dataset: Path) -> Path:
    return dataset / SHARDS / "training_0001.hdf5"


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
        name, **{"global_batch_size": 11, "micro_batch_size": 4, "length": {"steps": STEPS}, **changes}
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
    run_stages(Session.open(config, Alone(), attempt=attempt), stop or AtStep())


def samples_by_step(folder: Path) -> list[list[int]]:
    entries = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    by_step = {entry["step"]: entry["samples"] for entry in entries if "samples" in entry}
    return [by_step[step] for step in range(STEPS)]


def events(folder: Path, name: str) -> list[dict[str, Any]]:
    return [record for record in read_metrics(folder) if record["event"] == name]


def flip(path: Path) -> None:
    """Change a byte of the tokens: nothing but the checksum can tell."""
    content = bytearray(path.read_bytes())
    content[-200] ^= 1
    state = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))  # as a disk does it, without a word


def exchange(path: Path) -> None:
    """Put other samples in place, in as many bytes and rows."""
    samples = read_shard(path)
    samples.next_sentence_labels[:] = 1 - samples.next_sentence_labels
    header = read_header(path)
    write_shard(path, samples, vocabulary_sha256=header.vocabulary_sha256, generator_version=1, layout=header.layout)


def write_of_other_size(path: Path) -> None:
    shutil.copy(path.with_name("training_0002.hdf5"), path)


@pytest.mark.parametrize("trouble", [Path.unlink, flip, exchange, write_of_other_size], ids=lambda it: it.__name__)
def test_a_shard_that_goes_bad_stops_the_run_by_name(
    tmp_path: Path, dataset: Path, second: Path, trouble: Callable[[Path], None]
) -> None:
    with pytest.raises(DataUnreadable, match="training_0001") as stopped:
        train(tmp_path / "out", dataset, AtStep(4, lambda: trouble(second)))
    assert stopped.value.exit_code == EXIT_BAD_INPUT
    assert "onUnreadableShard: Skip" in str(stopped.value) or "bert-data verify" in str(stopped.value)
    (failed,) = events(tmp_path / "out", "failed")
    assert failed["reason"] == "DataUnreadable"


@pytest.mark.parametrize("trouble", [Path.unlink, flip, exchange], ids=lambda it: it.__name__)
def test_a_shard_is_left_out_on_request_and_a_resumed_run_leaves_out_the_same(
    tmp_path: Path, dataset: Path, second: Path, trouble: Callable[[Path], None]
) -> None:
    whole = tmp_path / "whole"
    train(whole, dataset, AtStep(4, lambda: trouble(second)), skip=True)
    (told,) = events(whole, "shard_left_out")
    assert (told["stage"], told["step"], told["path"]) == ("phase1", 10, str(second))
    seen = samples_by_step(whole)
    assert sorted(sum(seen[:10], [])) == list(range(110)), "what was read before the damage is whole"
    behind = sum(seen[10:], [])
    assert not SECOND & set(behind)
    assert sorted(behind[:70]) == sorted(set(range(110)) - SECOND), "the others come once in an epoch"
    counts = [record.get("shards_left_out") for record in events(whole, "progress")]
    assert counts == [None] * 10 + [1] * (STEPS - 10)

    resumed = tmp_path / "resumed"
    shutil.copytree(whole, resumed)
    for checkpoint in (resumed / "checkpoints").iterdir():
        if checkpoint.name > "phase1-00000015":
            shutil.rmtree(checkpoint)
    train(resumed, dataset, attempt=2, skip=True)
    assert samples_by_step(resumed) == seen
    assert len(events(resumed, "shard_left_out")) == 1, "it is remembered, not found again"
    for name in ("model.safetensors", "optimizer.safetensors"):
        one, other = load_file(whole / "checkpoints" / FINAL / name), load_file(resumed / "checkpoints" / FINAL / name)
        assert all(torch.equal(one[key], other[key]) for key in one)


def test_a_run_that_stopped_may_go_on_without_the_shard(tmp_path: Path, dataset: Path, second: Path) -> None:
    with pytest.raises(DataUnreadable):
        train(tmp_path / "out", dataset, AtStep(4, second.unlink))
    with pytest.raises(DataUnreadable, match="training_0001.hdf5 is gone"):
        train(tmp_path / "out", dataset, attempt=2)
    train(tmp_path / "out", dataset, attempt=3, skip=True)
    assert not SECOND & set(sum(samples_by_step(tmp_path / "out")[10:], []))


def test_a_folder_that_is_gone_is_the_infrastructure_s_fault_and_nothing_is_lost(tmp_path: Path, dataset: Path) -> None:
    shards, away = dataset / SHARDS, tmp_path / "away"
    train(tmp_path / "whole", dataset)
    for attempt, skip in ((1, True), (2, False)):
        with pytest.raises(StorageFailed, match="the folder of shards is gone") as gone:
            train(tmp_path / "out", dataset, AtStep(4, lambda: shards.rename(away)), attempt=attempt, skip=skip)
        assert gone.value.exit_code == EXIT_INFRASTRUCTURE
        with pytest.raises(StorageFailed, match="none of the shards is there") as still_gone:
            train(tmp_path / "out", dataset, attempt=attempt + 1, skip=skip)
        assert still_gone.value.exit_code == EXIT_INFRASTRUCTURE, "no mistyped path: it was there before"
        away.rename(shards)
    train(tmp_path / "out", dataset, attempt=4)
    assert samples_by_step(tmp_path / "out") == samples_by_step(tmp_path / "whole")
    one, other = (load_file(tmp_path / run / "checkpoints" / FINAL / "model.safetensors") for run in ("whole", "out"))
    assert all(torch.equal(one[key], other[key]) for key in one)


def test_an_empty_mount_point_is_a_folder_that_is_gone(tmp_path: Path, dataset: Path) -> None:
    def unmount() -> None:
        (dataset / SHARDS).rename(tmp_path / "away")
        (dataset / SHARDS).mkdir()

    with pytest.raises(StorageFailed, match="none of its files is there"):
        train(tmp_path / "out", dataset, AtStep(4, unmount), skip=True)


def test_data_copied_anew_are_the_same_data(tmp_path: Path, dataset: Path) -> None:
    def copy_anew() -> None:
        for path in (dataset / SHARDS).iterdir():
            content = path.read_bytes()
            path.unlink()
            path.write_bytes(content)
            os.utime(path, (1, 1))

    train(tmp_path / "out", dataset, AtStep(4, copy_anew))


def test_of_a_layout_without_checksums_the_time_has_to_do(tmp_path: Path, dataset: Path, second: Path) -> None:
    for path in (dataset / SHARDS).iterdir():
        relayout(path, "intel")
    with pytest.raises(DataUnreadable, match="training_0001.hdf5: .*its layout has no checksums"):
        train(tmp_path / "out", dataset, AtStep(4, lambda: os.utime(second, (1, 1))))


def test_other_data_of_the_same_size_are_found_when_a_run_resumes(tmp_path: Path, dataset: Path, second: Path) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "out", dataset, AtStep(5, stop))
    exchange(second)
    with pytest.raises(DataUnreadable, match="1 of 3 shards are not those .*: training_0001.hdf5 has changed"):
        train(tmp_path / "out", dataset, attempt=2)


def rename(shards: Path) -> None:
    for path in list(shards.glob("training_*")):
        path.rename(path.with_name(path.name.replace("training_", "training_anew_")))


def make_fewer(shards: Path) -> None:
    """Make the data anew in two parts."""
    for path in shards.glob("training_*"):
        exchange(path)
    (shards / "training_0002.hdf5").unlink()


@pytest.mark.parametrize("change", [lambda shards: exchange(shards / "training_0001.hdf5"), rename, make_fewer])
def test_before_the_first_checkpoint_data_may_be_made_anew(
    tmp_path: Path, dataset: Path, change: Callable[[Path], None]
) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "out", dataset, AtStep(2, stop))
    change(dataset / SHARDS)
    train(tmp_path / "out", dataset, attempt=2)


@pytest.mark.parametrize("skip", [False, True])
def test_before_the_first_checkpoint_data_without_checksums_may_be_made_anew_in_fewer_parts(
    tmp_path: Path, dataset: Path, *, skip: bool
) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    for path in (dataset / SHARDS).iterdir():
        relayout(path, "intel")
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "out", dataset, AtStep(2, stop), skip=skip)
    before = (dataset / SHARDS / "training_0001.hdf5").stat().st_size
    make_fewer(dataset / SHARDS)
    for path in (dataset / SHARDS).iterdir():
        relayout(path, "intel")
    assert (dataset / SHARDS / "training_0001.hdf5").stat().st_size == before, (
        "nothing that is recorded tells them apart"
    )
    train(tmp_path / "out", dataset, attempt=2, skip=skip)
    assert events(tmp_path / "out", "shard_left_out") == []


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def train_two_steps(folder: Path, dataset: Path) -> None:
    """Begin a run and end it before its first checkpoint."""

    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(folder, dataset, AtStep(2, stop))


def shard(dataset: Path, number: int) -> Path:
    return dataset / SHARDS / f"training_{number:04}.hdf5"


def write_all_as(layout: LayoutName, dataset: Path) -> None:
    if layout != "compact":
        for path in (dataset / SHARDS).iterdir():
            relayout(path, layout)


@pytest.mark.parametrize("layout", ["compact", "intel"])
@pytest.mark.parametrize(
    ("troubles", "wrong"),
    [
        ({1: Path.unlink}, {1: "is gone"}),
        ({2: Path.unlink}, {2: "is gone"}),
        ({1: truncate}, {1: "is damaged"}),
        ({0: truncate, 2: Path.unlink}, {0: "is damaged", 2: "is gone"}),
        ({0: write_of_other_size, 1: Path.unlink}, {0: "has changed", 1: "is gone"}),
    ],
    ids=lambda it: " ".join(getattr(trouble, "__name__", "") for trouble in it.values()).strip() or None,
)
def test_before_the_first_checkpoint_shards_that_are_gone_or_damaged_are_named_and_left_out_on_request(
    tmp_path: Path,
    dataset: Path,
    troubles: dict[int, Callable[[Path], None]],
    wrong: dict[int, str],
    layout: LayoutName,
) -> None:
    write_all_as(layout, dataset)
    train_two_steps(tmp_path / "out", dataset)
    for number, trouble in troubles.items():
        trouble(shard(dataset, number))
    named = ", ".join(f"{shard(dataset, number).name} {what}" for number, what in wrong.items())
    for attempt in (2, 3):
        with pytest.raises(DataUnreadable, match=f": {len(wrong)} of 3 shards are not those .*: {named}\n"):
            train(tmp_path / "out", dataset, attempt=attempt)
    train(tmp_path / "out", dataset, attempt=4, skip=True)
    left_out = {record["path"] for record in events(tmp_path / "out", "shard_left_out")}
    assert left_out == {str(shard(dataset, number)) for number in wrong}


def test_other_samples_without_checksums_beside_a_gap_are_never_trained_on_silently(
    tmp_path: Path, dataset: Path
) -> None:
    """Nothing but its time tells the shard from the one before, so nobody who reads it could leave it out."""
    write_all_as("intel", dataset)
    train_two_steps(tmp_path / "out", dataset)
    exchange(shard(dataset, 0))
    shard(dataset, 1).unlink()
    for skip in (False, True):
        with pytest.raises(DataUnreadable, match=r"0000.hdf5 was written anew, training_0001.hdf5 is gone\n"):
            train(tmp_path / "out", dataset, attempt=2, skip=skip)


def test_records_that_end_before_the_last_one_are_damage(tmp_path: Path, dataset: Path) -> None:
    """What is left of the file can be read, also where that is nothing."""
    for path in list((dataset / SHARDS).iterdir()):
        relayout(path, "tfrecord").rename(path.with_suffix(".tfrecord"))
    train_two_steps(tmp_path / "out", dataset)
    second = shard(dataset, 1).with_suffix(".tfrecord")
    second.write_bytes(b"")
    with pytest.raises(DataUnreadable, match=f"1 of 3 shards are not those .*: {second.name} is damaged"):
        train(tmp_path / "out", dataset, attempt=2)
    train(tmp_path / "out", dataset, attempt=3, skip=True)
    assert [record["path"] for record in events(tmp_path / "out", "shard_left_out")] == [str(second)]


@pytest.mark.parametrize("layout", ["compact", "intel"])
def test_before_the_first_checkpoint_shards_may_be_numbered_anew(
    tmp_path: Path, dataset: Path, layout: LayoutName
) -> None:
    """As the hint about a gap in the numbers says."""
    write_all_as(layout, dataset)
    train_two_steps(tmp_path / "out", dataset)
    shard(dataset, 1).unlink()
    shard(dataset, 2).rename(shard(dataset, 1))
    train(tmp_path / "out", dataset, attempt=2, skip=True)
    assert events(tmp_path / "out", "shard_left_out") == []


def test_a_shard_without_samples_shows_nothing(tmp_path: Path) -> None:
    """It is alike in every data set."""
    dataset = write_dataset(tmp_path / "dataset", rows=(0, 40, 40, 30))
    train_two_steps(tmp_path / "out", dataset)
    for number in (1, 2):
        exchange(shard(dataset, number))
    shard(dataset, 3).unlink()
    train(tmp_path / "out", dataset, attempt=2)


def test_a_later_attempt_before_the_first_checkpoint_knows_the_same(tmp_path: Path, dataset: Path) -> None:
    """The second stage's data are as they were, and what the first one began with is not forgotten."""
    other = write_dataset(tmp_path / "other", seed=2)
    stages = [stage(), stage("phase2", shards=str(other / SHARDS))]
    for folder in (dataset, other):
        write_all_as("intel", folder)

    def stop() -> None:
        raise KeyboardInterrupt

    for attempt in (1, 2, 3):
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path / "out", dataset, AtStep(2, stop), attempt=attempt, skip=True, stages=stages)
        shard(dataset, 2).unlink(missing_ok=True)
    told = events(tmp_path / "out", "shard_left_out")
    assert {record["path"] for record in told} == {str(shard(dataset, 2))}
    assert {record["attempt"] for record in told} == {2, 3}


@pytest.mark.parametrize("number", [0, 1])
def test_a_run_that_leaves_a_shard_out_is_evaluated_at_its_end(tmp_path: Path, dataset: Path, number: int) -> None:
    stages = [stage(), evaluate_stage()]
    train(tmp_path / "out", dataset, AtStep(4, shard(dataset, number).unlink), skip=True, stages=stages)
    assert events(tmp_path / "out", "shard_left_out")
    measured = {record["when"]: record["unigram_baseline"] for record in events(tmp_path / "out", "evaluated")}
    assert measured.keys() == {"before", "after"}
    assert 0 < measured["after"] < 1, "of the shards that are left"


@pytest.mark.parametrize("number", [0, 2])
def test_a_range_of_the_samples_that_is_evaluated_on_stays_where_it_is(
    tmp_path: Path, dataset: Path, number: int
) -> None:
    """Where a shard is lost, samples that were trained on do not move into it."""
    stages = [
        stage(data_range={"start": 0.0, "end": 0.8}),
        evaluate_stage(data_range={"start": 0.8, "end": 1.0}),
    ]
    with pytest.raises(Stopped):
        train(tmp_path / "out", dataset, StopAt(8), skip=True, stages=stages)
    shard(dataset, number).unlink()
    data = open_data(make_config(tmp_path / "out", dataset, skip=True, stages=stages), Alone())
    assert (data.evaluation[1].first, data.evaluation[1].last) == (88, 110)


def test_masks_are_drawn_without_a_first_shard(tmp_path: Path, dataset: Path) -> None:
    stages = [stage(masking="dynamic")]
    with pytest.raises(Stopped):
        train(tmp_path / "out", dataset, StopAt(8), skip=True, stages=stages)
    shard(dataset, 0).unlink()
    train(tmp_path / "out", dataset, attempt=2, skip=True, stages=stages)
    assert [record["path"] for record in events(tmp_path / "out", "shard_left_out")] == [str(shard(dataset, 0))]


def test_a_damaged_shard_is_named_when_a_run_resumes(tmp_path: Path, dataset: Path, second: Path) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "out", dataset, AtStep(5, stop))
    truncate(second)
    with pytest.raises(DataUnreadable, match="1 of 3 shards are not those .*: training_0001.hdf5 is damaged"):
        train(tmp_path / "out", dataset, attempt=2)
    train(tmp_path / "out", dataset, attempt=3, skip=True)
    assert [record["path"] for record in events(tmp_path / "out", "shard_left_out")] == [str(second)]


@pytest.mark.parametrize("has_learnt", [False, True])
@pytest.mark.parametrize("skip", [False, True])
def test_data_that_are_being_built_anew_are_told_as_that(
    tmp_path: Path, dataset: Path, *, skip: bool, has_learnt: bool
) -> None:
    """Not as files that are gone, although some of the old ones are still there."""
    if has_learnt:
        with pytest.raises(Stopped):
            train(tmp_path / "out", dataset, StopAt(8))
    else:
        train_two_steps(tmp_path / "out", dataset)
    (dataset / SHARDS / "training_0002.hdf5").unlink()
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
    DatasetInfo(settings=settings, source="text", fingerprint="1").write(dataset)
    with pytest.raises(InputError, match="the dataset is not complete") as stopped:
        train(tmp_path / "out", dataset, attempt=2, skip=skip)
    assert not isinstance(stopped.value, DataUnreadable)


def test_a_volume_in_trouble_is_no_damaged_shard(
    tmp_path: Path, dataset: Path, second: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_two_steps(tmp_path / "out", dataset)

    def fail(path: Path) -> ShardHeader:
        if path == second:
            raise InputError(f"{path}: damaged or not an HDF5 file") from OSError(errno.EIO, os.strerror(errno.EIO))
        return read_header(path)

    monkeypatch.setattr(shard_folder, "read_header", fail)
    with pytest.raises(StorageFailed, match="training_0001.hdf5: damaged or not") as failed:
        train(tmp_path / "out", dataset, attempt=2)
    assert failed.value.exit_code == EXIT_INFRASTRUCTURE, "the run has read this very file"


def test_before_the_first_checkpoint_a_folder_that_is_gone_is_no_mistyped_path(tmp_path: Path, dataset: Path) -> None:
    shards = dataset / SHARDS

    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "out", dataset, AtStep(2, stop))
    shards.rename(tmp_path / "away")
    for attempt in (2, 3):
        with pytest.raises(StorageFailed, match="none of the shards is there") as gone:
            train(tmp_path / "out", dataset, attempt=attempt)
        assert gone.value.exit_code == EXIT_INFRASTRUCTURE
        shards.mkdir(exist_ok=True)  # an empty mount point


def failing(code: int, *, times: int) -> Callable[..., RaggedSamples]:
    """Return a ``read_ragged`` that fails some times at the second shard, from the second epoch on."""
    read, calls = ShardFolder.read_ragged, {"left": times, "seen": 0}

    def read_ragged(self: ShardFolder, shard: int, rows: slice = slice(None)) -> RaggedSamples:
        calls["seen"] += shard == 1
        if shard == 1 and calls["seen"] > 1 and calls["left"]:
            calls["left"] -= 1
            cause = OSError(code, os.strerror(code))
            raise DataUnreadable(f"{self.paths[1]}: cannot be read ({cause.strerror})") from cause
        return read(self, shard, rows)

    return read_ragged


def test_trouble_that_passes_costs_nothing(
    tmp_path: Path, dataset: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(data_loader, "READ_AGAIN_AFTER_S", (0.0, 0.0))
    monkeypatch.setattr(ShardFolder, "read_ragged", failing(errno.EIO, times=2))
    train(tmp_path / "out", dataset, skip=True)
    assert caplog.text.count("training_0001.hdf5: cannot be read (Input/output error); trying again") == 2
    assert not events(tmp_path / "out", "shard_left_out")


@pytest.mark.parametrize("code", [errno.EIO, errno.ETIMEDOUT, errno.ESTALE], ids=errno.errorcode.get)
@pytest.mark.parametrize("skip", [True, False])
def test_trouble_that_lasts_is_the_volume_s_fault_and_leaves_nothing_out(
    tmp_path: Path, dataset: Path, monkeypatch: pytest.MonkeyPatch, code: int, skip: bool
) -> None:
    """The names are still there, as on a mount whose server is away."""
    monkeypatch.setattr(data_loader, "READ_AGAIN_AFTER_S", (0.0,))
    monkeypatch.setattr(ShardFolder, "read_ragged", failing(code, times=9))
    with pytest.raises(StorageFailed, match="training_0001.hdf5: cannot be read") as failed:
        train(tmp_path / "out", dataset, skip=skip)
    assert failed.value.exit_code == EXIT_INFRASTRUCTURE
    assert not events(tmp_path / "out", "shard_left_out")


def test_a_data_set_of_which_nothing_is_left_ends_the_run_by_name(tmp_path: Path, dataset: Path) -> None:
    shards = sorted((dataset / SHARDS).glob("training_*"))
    with pytest.raises(
        DataUnreadable, match="was the first shard that could not be used; .* no other is left"
    ) as ended:
        train(tmp_path / "out", dataset, AtStep(4, lambda: [flip(path) for path in shards]), skip=True)
    assert ended.value.exit_code == EXIT_BAD_INPUT
    assert len(events(tmp_path / "out", "shard_left_out")) == len(shards) - 1


@pytest.mark.parametrize("skip", [True, False])
def test_all_ranks_take_the_decision_of_the_one_that_cannot_read(
    tmp_path: Path, dataset: Path, second: Path, skip: bool
) -> None:
    """Of three ranks one sees a damaged file: each has a copy of the data of its own."""
    config = make_config(tmp_path / "out", dataset, ranks=3, skip=skip)

    def rank(world: World) -> str:
        own = tmp_path / f"data-{world.rank}"
        shutil.copytree(dataset, own)
        session = Session.open(config, world, attempt=1)
        stage = session.data.training[0]
        paths = tuple(own / SHARDS / path.name for path in stage.folder.paths)
        # Threads share what rank 0 has read.
        training = {0: replace(stage, folder=replace(stage.folder, paths=paths, _modified_ns={}))}
        session = replace(session, data=replace(session.data, training=training))
        try:
            run_stages(session, AtStep(4, lambda: flip(paths[1]) if world.rank == 2 else None))  # type: ignore[arg-type]
        except (DataUnreadable, PeerFailed) as error:
            return f"{type(error).__name__} {error.exit_code}"
        return "trained"

    ended = run_threads(3, rank)
    if skip:
        assert ended == ["trained"] * 3
        (told,) = events(tmp_path / "out", "shard_left_out")
        assert (told["step"], told["message"]) == (10, "rank 2 cannot use it")
        assert not SECOND & set(sum(samples_by_step(tmp_path / "out")[10:], []))
    else:
        assert ended == ["DataUnreadable 2", "PeerFailed 2", "DataUnreadable 2"]
        (failed,) = events(tmp_path / "out", "failed")
        assert "training_0001.hdf5: rank 2 cannot read it" in failed["message"]
