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
from bert_job.run_config import RunConfig
from bert_trainer.dataset.shards import ShardFolder, read_header, read_shard, write_shard
from bert_trainer.dataset.shards.ragged import RaggedSamples
from bert_trainer.errors import (
    EXIT_BAD_INPUT,
    EXIT_INFRASTRUCTURE,
    DataUnreadable,
    InputError,
    Stopped,
    StorageFailed,
    TrainerError,
)
from bert_trainer.output.run_folder import RunFolder
from bert_trainer.parallel.world import PeerFailed, SingleRank, World
from bert_trainer.training import data_loader
from bert_trainer.training.run import run_stages
from bert_trainer.training.run_data import open_data
from bert_trainer.training.session import Session
from relayout import relayout
from shard_runs import (
    SHARDS,
    STEPS,
    describe_build,
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
    config = make_config(tmp_path / "out", dataset, skip=True, stages=stages)
    data = open_data(RunFolder.claim(config, attempt=2), SingleRank())
    assert (data.evaluation[1].first, data.evaluation[1].last) == (88, 110)


@pytest.mark.parametrize("has_learnt", [False, True])
def test_what_a_build_held_out_is_evaluated_on_without_a_shard_that_is_lost(
    tmp_path: Path, dataset: Path, second: Path, *, has_learnt: bool
) -> None:
    """``dataset.json`` names all files of the build; those that are evaluated on have to be there."""
    describe_build(dataset, complete=True)
    stages = [stage(), evaluate_stage()]
    if has_learnt:
        with pytest.raises(Stopped):
            train(tmp_path / "out", dataset, StopAt(8), skip=True, stages=stages)
    else:
        train_two_steps(tmp_path / "out", dataset, skip=True, stages=stages)
    second.unlink()
    train(tmp_path / "out", dataset, attempt=2, skip=True, stages=stages)
    assert [record["path"] for record in events(tmp_path / "out", "shard_left_out")] == [str(second)]
    (dataset / SHARDS / "held_out_0000.hdf5").unlink()
    with pytest.raises(InputError, match="1 of 1 shards are missing, first held_out_0000.hdf5"):
        train(tmp_path / "out", dataset, attempt=3, skip=True, stages=stages)


def test_files_without_masks_are_no_files_to_be_evaluated_on_whatever_is_left_out(
    tmp_path: Path, dataset: Path
) -> None:
    for path in (dataset / SHARDS).iterdir():
        header = read_header(path)
        samples, sha256 = read_shard(path), header.vocabulary_sha256
        write_shard(path, samples, vocabulary_sha256=sha256, generator_version=1, masked=False)
    stages = [
        stage(masking="dynamic", data_range={"start": 0.0, "end": 0.8}),
        evaluate_stage(data_range={"start": 0.8, "end": 1.0}),
    ]
    for skip in (False, True):
        with pytest.raises(InputError, match=r"training_0000.hdf5: its samples hold no masks"):
            train(tmp_path / f"out-{skip}", dataset, skip=skip, stages=stages)


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
    describe_build(dataset, complete=False)
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
        session, paths = open_with_own_data(config, world, tmp_path / f"data-{world.rank}", dataset)
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


def test_a_run_resumes_where_one_host_has_lost_a_shard(tmp_path: Path, dataset: Path) -> None:
    config = make_config(tmp_path / "out", dataset, ranks=3, skip=True)

    def rank(world: World) -> None:
        world.local_rank = 0  # type: ignore[misc] # each on a host of its own
        own = tmp_path / f"data-{world.rank}"
        session, paths = open_with_own_data(config, world, own, dataset)
        with pytest.raises((Stopped, PeerFailed)):
            run_stages(session, StopAt(14))  # type: ignore[arg-type]
        if world.rank == 2:
            paths[1].unlink()
        session, _ = open_with_own_data(config, world, own, dataset, attempt=2)
        run_stages(session, AtStep())  # type: ignore[arg-type]

    run_threads(3, rank)
    (told,) = events(tmp_path / "out", "shard_left_out")
    assert told["message"] == "rank 2 cannot use it"


@pytest.mark.parametrize(
    ("lost", "attempt", "skip"),
    [("training_0001", 1, True), ("training_0001", 2, False), ("training_0002", 2, True), ("held_out_0000", 2, True)],
)
def test_what_one_host_lacks_and_nobody_may_leave_out_is_told_before_the_first_step(
    tmp_path: Path, dataset: Path, lost: str, attempt: int, *, skip: bool
) -> None:
    """Where the run begins, where it stops for a lost shard, and of what it is evaluated on: here the third shard."""
    evaluated = {} if lost.startswith("held_out") else {"data_range": {"start": 0.8, "end": 1.0}}
    stages = [stage(data_range={"start": 0.0, "end": 0.8}), evaluate_stage(**evaluated)]
    config = make_config(tmp_path / "out", dataset, ranks=2, skip=skip, stages=stages)
    if attempt == 2:
        with pytest.raises(Stopped):
            train(tmp_path / "out", dataset, StopAt(8), skip=skip, stages=stages)

    def rank(world: World) -> str:
        world.local_rank = 0  # type: ignore[misc] # each on a host of its own
        session, paths = open_with_own_data(config, world, tmp_path / f"data-{world.rank}", dataset, attempt=attempt)
        if world.rank == 1:
            (paths[0].parent / f"{lost}.hdf5").unlink()
        try:
            run_stages(session, AtStep())  # type: ignore[arg-type]
        except InputError as error:
            return error.message
        return "trained"

    told = run_threads(2, rank)
    assert all(f"{lost}.hdf5: rank 1 sees another file than rank 0, or none" in message for message in told)


def test_what_finished_stages_were_evaluated_on_is_not_asked_for(tmp_path: Path, dataset: Path) -> None:
    stages = [
        stage(length={"steps": 6}, data_range={"start": 0.0, "end": 0.8}),
        evaluate_stage(data_range={"start": 0.8, "end": 1.0}),
        stage("phase2", length={"steps": 6}),
    ]
    config = make_config(tmp_path / "out", dataset, ranks=2, skip=True, stages=stages)

    def rank(world: World) -> None:
        world.local_rank = 0  # type: ignore[misc] # each on a host of its own
        own = tmp_path / f"data-{world.rank}"
        session, paths = open_with_own_data(config, world, own, dataset)
        with pytest.raises((Stopped, PeerFailed)):
            run_stages(session, StopAt(10))  # type: ignore[arg-type]
        if world.rank == 1:
            paths[2].unlink()
        session, _ = open_with_own_data(config, world, own, dataset, attempt=2)
        run_stages(session, AtStep())  # type: ignore[arg-type]

    run_threads(2, rank)
    assert len(events(tmp_path / "out", "succeeded")) == 1


@pytest.mark.parametrize("skip", [True, False])
def test_where_a_rank_s_volume_is_in_trouble_another_s_damaged_shard_is_no_matter(
    tmp_path: Path, dataset: Path, monkeypatch: pytest.MonkeyPatch, *, skip: bool
) -> None:
    """Which of them is at fault cannot be told from one attempt, and the attempt may be retried."""
    monkeypatch.setattr(data_loader, "READ_AGAIN_AFTER_S", (0.0,))
    config = make_config(tmp_path / "out", dataset, ranks=2, skip=skip)
    read = ShardFolder.read_ragged

    def read_ragged(self: ShardFolder, shard: int, rows: slice = slice(None)) -> RaggedSamples:
        path = self.paths[shard]
        if shard == 1 and not path.exists():
            if "data-1" in str(path):
                cause = OSError(errno.EIO, os.strerror(errno.EIO))
                raise DataUnreadable(f"{path}: cannot be read ({cause.strerror})") from cause
            raise DataUnreadable(f"{path}: damaged")
        return read(self, shard, rows)

    monkeypatch.setattr(ShardFolder, "read_ragged", read_ragged)

    def rank(world: World) -> str:
        session, paths = open_with_own_data(config, world, tmp_path / f"data-{world.rank}", dataset)
        try:
            run_stages(session, AtStep(4, paths[1].unlink))  # type: ignore[arg-type]
        except TrainerError as error:
            return f"{type(error).__name__} {error.exit_code}"
        return "trained"

    assert run_threads(2, rank) == ["StorageFailed 4", "StorageFailed 4"]
    assert not events(tmp_path / "out", "shard_left_out")


def open_with_own_data(
    config: RunConfig, world: World, own: Path, dataset: Path, *, attempt: int = 1
) -> tuple[Session, tuple[Path, ...]]:
    """Open a session of a rank whose host has a copy of the data of its own; return also its files."""
    if not own.exists():
        shutil.copytree(dataset, own)
    session = Session.open(config, world, attempt=attempt)

    def owned(folder: ShardFolder) -> ShardFolder:
        # Threads share what rank 0 has read.
        return replace(folder, paths=tuple(own / SHARDS / path.name for path in folder.paths), _modified_ns={})

    training = {index: replace(it, folder=owned(it.folder)) for index, it in session.data.training.items()}
    evaluation = {index: replace(it, folder=owned(it.folder)) for index, it in session.data.evaluation.items()}
    data = replace(session.data, training=training, evaluation=evaluation)
    return replace(session, data=data), training[0].folder.paths
