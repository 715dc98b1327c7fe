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

import pytest
import torch
from safetensors.torch import load_file

from at_step import AtStep, StopAt
from bert_trainer.dataset.shards import ShardFolder
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
from bert_trainer.parallel.world import Alone, PeerFailed, World
from bert_trainer.training import data_loader
from bert_trainer.training.loop import run_stages
from bert_trainer.training.run_data import open_data
from bert_trainer.training.session import Session
from relayout import relayout
from shard_runs import (
    SHARDS,
    STEPS,
    evaluate_stage,
    events,
    exchange,
    make_config,
    shard,
    stage,
    train,
    train_two_steps,
    truncate,
    write_of_other_size,
)
from threaded_world import run_threads
from tiny_run import write_dataset

SECOND = set(range(40, 80))
FINAL = f"phase1-{STEPS:08d}"


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return write_dataset(tmp_path / "dataset")


@pytest.fixture
def second(dataset: Path) -> Path:
    return dataset / SHARDS / "training_0001.hdf5"


def samples_by_step(folder: Path) -> list[list[int]]:
    entries = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    by_step = {entry["step"]: entry["samples"] for entry in entries if "samples" in entry}
    return [by_step[step] for step in range(STEPS)]


def flip(path: Path) -> None:
    """Change a byte of the tokens: nothing but the checksum can tell."""
    content = bytearray(path.read_bytes())
    content[-200] ^= 1
    state = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))  # as a disk does it, without a word


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
