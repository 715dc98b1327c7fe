"""Data of a run that has learnt nothing yet: made anew, which is allowed, or gone and damaged, which is told.

Inputs: the toy data set, of which a run takes two steps; then files are really damaged, exchanged or moved away, and
the next attempts begin. Observed: errors and metrics.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from at_step import StopAt
from bert_job.dataset_names import LayoutName
from bert_trainer.checkpoints.checkpoint import MANIFEST_FILE
from bert_trainer.checkpoints.store import CHECKPOINTS_FOLDER
from bert_trainer.dataset.shards import ShardHeader, read_header
from bert_trainer.dataset.shards import folder as shard_folder
from bert_trainer.errors import (
    EXIT_INFRASTRUCTURE,
    DataUnreadable,
    FencedError,
    InputError,
    Stopped,
    StorageFailed,
)
from bert_trainer.output.run_folder import RunFolder
from bert_trainer.parallel.world import SingleRank
from bert_trainer.training.run_data import open_data
from bert_trainer.training.shard_record import SHARDS_FILE
from relayout import relayout
from shard_runs import (
    SHARDS,
    events,
    exchange,
    make_config,
    shard,
    stage,
    train,
    train_two_steps,
    truncate,
    write_all_as,
    write_of_other_size,
)
from tiny_run import write_dataset


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return write_dataset(tmp_path / "dataset")


@pytest.fixture
def second(dataset: Path) -> Path:
    return dataset / SHARDS / "training_0001.hdf5"


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
    train_two_steps(tmp_path / "out", dataset)
    change(dataset / SHARDS)
    train(tmp_path / "out", dataset, attempt=2)


@pytest.mark.parametrize("skip", [False, True])
def test_before_the_first_checkpoint_data_without_checksums_may_be_made_anew_in_fewer_parts(
    tmp_path: Path, dataset: Path, *, skip: bool
) -> None:
    for path in (dataset / SHARDS).iterdir():
        relayout(path, "intel")
    train_two_steps(tmp_path / "out", dataset, skip=skip)
    before = (dataset / SHARDS / "training_0001.hdf5").stat().st_size
    make_fewer(dataset / SHARDS)
    for path in (dataset / SHARDS).iterdir():
        relayout(path, "intel")
    assert (dataset / SHARDS / "training_0001.hdf5").stat().st_size == before, (
        "nothing that is recorded tells them apart"
    )
    train(tmp_path / "out", dataset, attempt=2, skip=skip)
    assert events(tmp_path / "out", "shard_left_out") == []


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


def test_a_last_shard_that_is_gone_beside_a_changed_one_is_not_taken_for_data_made_anew(
    tmp_path: Path, dataset: Path
) -> None:
    """What is left has no gap in its numbers; the second shard is the very same."""
    train_two_steps(tmp_path / "out", dataset)
    exchange(shard(dataset, 0))
    shard(dataset, 2).unlink()
    with pytest.raises(DataUnreadable, match="training_0000.hdf5 has changed, training_0002.hdf5 is gone\n"):
        train(tmp_path / "out", dataset, attempt=2)


def test_other_samples_without_checksums_beside_a_gap_are_never_trained_on_silently(
    tmp_path: Path, dataset: Path
) -> None:
    """Nothing but its time tells the shard from the one before, so nobody who reads it could leave it out."""
    write_all_as("intel", dataset)
    train_two_steps(tmp_path / "out", dataset)
    exchange(shard(dataset, 0))
    shard(dataset, 1).unlink()
    for skip in (False, True):
        with pytest.raises(DataUnreadable, match="0000.hdf5 was written anew, training_0001.hdf5 is gone\n") as told:
            train(tmp_path / "out", dataset, attempt=2, skip=skip)
        assert "delete damaged ones first" in str(told.value)
        assert "Skip" not in str(told.value)


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


@pytest.mark.parametrize("layout", ["compact", "intel", "tfrecord"])
@pytest.mark.parametrize(("rows", "num_lost"), [((30, 30, 30, 30), 1), ((30, 40, 40, 30), 1), ((30, 40, 40, 30), 2)])
def test_before_the_first_checkpoint_shards_may_be_numbered_anew(
    tmp_path: Path, layout: LayoutName, rows: tuple[int, ...], num_lost: int
) -> None:
    """As the hint about a gap in the numbers says; they may have as many rows as the ones whose names they take."""
    dataset = write_dataset(tmp_path / "dataset", rows=rows)
    write_all_as(layout, dataset)
    suffix = ".tfrecord" if layout == "tfrecord" else ".hdf5"
    for path in list((dataset / SHARDS).iterdir()):
        path.rename(path.with_suffix(suffix))
    train_two_steps(tmp_path / "out", dataset)
    paths = [shard(dataset, number).with_suffix(suffix) for number in range(4)]
    for path in paths[1 : 1 + num_lost]:
        path.unlink()
    for path, place in zip(paths[1 + num_lost :], paths[1:], strict=False):
        path.rename(place)
    train(tmp_path / "out", dataset, attempt=2, skip=True)
    assert events(tmp_path / "out", "shard_left_out") == []


def test_a_checkpoint_that_is_being_written_is_none(tmp_path: Path, dataset: Path) -> None:
    train_two_steps(tmp_path / "out", dataset)
    staged = tmp_path / "out" / CHECKPOINTS_FOLDER / ".phase1-00000003-0a"
    staged.mkdir(parents=True)
    (staged / MANIFEST_FILE).write_text("{}")
    make_fewer(dataset / SHARDS)
    train(tmp_path / "out", dataset, attempt=2)


def test_an_attempt_that_has_lost_the_folder_records_no_data(tmp_path: Path, dataset: Path) -> None:
    config = make_config(tmp_path / "out", dataset)
    late = RunFolder.claim(config, attempt=1)
    RunFolder.claim(config, attempt=2)
    with pytest.raises(FencedError):
        open_data(late, SingleRank())
    assert not (tmp_path / "out" / SHARDS_FILE).exists()


def test_shards_that_are_new_are_named(tmp_path: Path, dataset: Path) -> None:
    with pytest.raises(Stopped):
        train(tmp_path / "out", dataset, StopAt(8))
    shutil.copy(shard(dataset, 2), shard(dataset, 3))
    with pytest.raises(DataUnreadable, match="(?s)1 shards were not there .*: training_0003.hdf5\n.*move them out"):
        train(tmp_path / "out", dataset, attempt=2)


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

    for attempt in (1, 2, 3):
        train_two_steps(tmp_path / "out", dataset, attempt=attempt, skip=True, stages=stages)
        shard(dataset, 2).unlink(missing_ok=True)
    told = events(tmp_path / "out", "shard_left_out")
    assert {record["path"] for record in told} == {str(shard(dataset, 2))}
    assert {record["attempt"] for record in told} == {2, 3}


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

    train_two_steps(tmp_path / "out", dataset)
    shards.rename(tmp_path / "away")
    for attempt in (2, 3):
        with pytest.raises(StorageFailed, match="none of the shards is there") as gone:
            train(tmp_path / "out", dataset, attempt=attempt)
        assert gone.value.exit_code == EXIT_INFRASTRUCTURE
        shards.mkdir(exist_ok=True)  # an empty mount point
