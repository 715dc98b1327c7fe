"""The order of samples: every sample once per epoch, a function of seed and epoch alone."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bert_trainer.training.data_loader as data_module
from bert_job.evaluation import DataRangeSpec
from bert_trainer.dataset.shards import ShardFolder
from bert_trainer.errors import InputError
from bert_trainer.training.data_loader import SampleOrder, StageReader
from tiny_run import PREDICTIONS, SEQUENCE_LENGTH, write_dataset

ROWS = (40, 40, 30)
TOTAL = sum(ROWS)


@given(
    rows=st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(any),
    seed=st.integers(0, 2**31),
    window=st.integers(1, 30),
    epoch=st.integers(0, 3),
)
@settings(max_examples=100)
def test_every_sample_is_seen_once_in_each_epoch(rows: list[int], seed: int, window: int, epoch: int) -> None:
    before, data_module.WINDOW_SAMPLES = data_module.WINDOW_SAMPLES, window
    try:
        order = SampleOrder(tuple(rows), seed)
        total = sum(rows)
        seen = order.sample_numbers(epoch * total, (epoch + 1) * total)
    finally:
        data_module.WINDOW_SAMPLES = before
    assert sorted(seen.tolist()) == list(range(total))


def test_any_cut_of_the_order_is_the_same_order() -> None:
    order = SampleOrder(ROWS, seed=3)
    whole = order.sample_numbers(0, 3 * TOTAL).tolist()
    pieces = [number for start in range(0, 3 * TOTAL, 7) for number in order.sample_numbers(start, start + 7).tolist()]
    assert pieces[: 3 * TOTAL] == whole


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    order, other = SampleOrder(ROWS, seed=3), SampleOrder(ROWS, seed=4)
    first = order.sample_numbers(0, TOTAL).tolist()
    assert first != order.sample_numbers(TOTAL, 2 * TOTAL).tolist()
    assert first != other.sample_numbers(0, TOTAL).tolist()
    assert first != list(range(TOTAL))


def test_samples_of_different_shards_are_mixed_within_a_window() -> None:
    first_step = SampleOrder(ROWS, seed=3).sample_numbers(0, 16)
    assert len({int(number) // 40 for number in first_step}) > 1


def test_a_range_of_the_data_uses_just_that_part() -> None:
    order = SampleOrder(ROWS, seed=3, data_range=DataRangeSpec(start=0.1, end=0.5))
    assert order.num_samples == 55 - 11
    assert sorted(order.sample_numbers(0, 44).tolist()) == list(range(11, 55))


def test_an_empty_range_is_refused() -> None:
    with pytest.raises(InputError, match="holds none"):
        SampleOrder((3,), seed=3, data_range=DataRangeSpec(start=0.5, end=0.51))


def test_an_order_travels_between_ranks() -> None:
    order = SampleOrder(ROWS, seed=3)
    assert pickle.loads(pickle.dumps(order)).sample_numbers(0, 9).tolist() == order.sample_numbers(0, 9).tolist()


@given(
    rows=st.lists(st.integers(1, 9), min_size=2, max_size=6),
    window=st.integers(1, 30),
    moments=st.lists(st.integers(0, 90), min_size=1, max_size=3),
)
@settings(max_examples=100)
def test_without_a_shard_the_others_keep_their_order(rows: list[int], window: int, moments: list[int]) -> None:
    """As plainly as it can be said: walk the whole order, and take away what was left out by then."""
    before, data_module.WINDOW_SAMPLES = data_module.WINDOW_SAMPLES, window
    try:
        whole = SampleOrder(tuple(rows), seed=5)
        everything = whole.sample_numbers(0, 95 * sum(rows)).tolist()
        shard_of = [shard for shard, count in enumerate(rows) for _ in range(count)]
        order, expected = whole, list(enumerate(everything))
        for shard, position in zip(range(len(rows) - 1), sorted(moments), strict=False):
            place = expected[position][0]
            assert order.place_of(position) == place
            order = order.leave_out(shard, position)
            expected = [(at, it) for at, it in expected if at < place or shard_of[it] != shard]
        wanted = [it for _, it in expected][:200]
        assert order.sample_numbers(0, len(wanted)).tolist() == wanted
        # In parts of any size, as steps ask for them; and after a journey, or a checkpoint.
        again = pickle.loads(pickle.dumps(order))
        parts = [again.sample_numbers(at, min(at + 7, len(wanted))) for at in range(0, len(wanted), 7)]
        assert np.concatenate(parts).tolist() == wanted
    finally:
        data_module.WINDOW_SAMPLES = before


def test_an_order_without_any_shard_is_refused() -> None:
    with pytest.raises(InputError, match="every shard of this stage is left out"):
        SampleOrder((4, 3), seed=3).leave_out(0, 2).leave_out(1, 2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> ShardFolder:
    dataset = write_dataset(tmp_path_factory.mktemp("dataset"), rows=ROWS)
    return ShardFolder.open(
        dataset / f"seq_len_{SEQUENCE_LENGTH}_max_pred_{PREDICTIONS}",
        split="training",
        sequence_length=SEQUENCE_LENGTH,
        max_predictions=PREDICTIONS,
        vocabulary=None,
    )


def reader(folder: ShardFolder, rank: int, world_size: int, **changes: int) -> StageReader:
    settings = {"global_batch_size": 13, "micro_batch_size": 3, "first_step": 0, "last_step": 20}
    order = SampleOrder(folder.rows, seed=3)
    return StageReader(folder, order, rank=rank, world_size=world_size, **{**settings, **changes})


@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_the_ranks_rows_together_are_the_steps_samples_each_in_their_order(
    folder: ShardFolder, world_size: int
) -> None:
    order = SampleOrder(folder.rows, seed=3)
    for step in (0, 8, 9):  # step 8 runs over the end of the first epoch
        wanted = order.sample_numbers(13 * step, 13 * step + 13).tolist()
        by_rank = [
            [int(n) for batch in reader(folder, rank, world_size).read_step(step)[0] for n in batch.sample_numbers_B]
            for rank in range(world_size)
        ]
        assert sorted(number for numbers in by_rank for number in numbers) == sorted(wanted)
        assert all(numbers == [number for number in wanted if number in numbers] for numbers in by_rank)


def test_unbalanced_the_ranks_rows_laid_end_to_end_are_the_order(folder: ShardFolder) -> None:
    order = SampleOrder(folder.rows, seed=3)
    for step in (0, 8, 9):
        readers = [reader(folder, rank, 5, balanced=False) for rank in range(5)]
        numbers = np.concatenate([batch.sample_numbers_B for part in readers for batch in part.read_step(step)[0]])
        assert numbers.tolist() == order.sample_numbers(13 * step, 13 * step + 13).tolist()


def test_rows_hold_the_samples_that_their_numbers_name(folder: ShardFolder) -> None:
    padded = [folder.read_ragged(shard).to_padded(SEQUENCE_LENGTH, PREDICTIONS) for shard in range(3)]
    ids = np.concatenate([samples.input_ids for samples in padded])
    for batch in reader(folder, 0, 1).read_step(4)[0]:
        for row, number in enumerate(batch.sample_numbers_B):
            tokens = batch.tokens_N[batch.token_row_N == row].numpy()
            assert tokens.tolist() == ids[number][ids[number] > 0].tolist()


def test_reading_ahead_gives_the_steps_in_order_and_ends_with_the_stage(folder: ShardFolder) -> None:
    with reader(folder, 0, 1, first_step=5, last_step=9) as ahead:
        for step in range(5, 9):
            expected = reader(folder, 0, 1).read_step(step)[0]
            found = ahead.next_step()
            assert [b.sample_numbers_B.tolist() for b in found] == [b.sample_numbers_B.tolist() for b in expected]
    assert not ahead._thread.is_alive()


def test_a_reader_that_is_left_early_ends_its_thread(folder: ShardFolder) -> None:
    with reader(folder, 0, 1, last_step=10_000) as ahead:
        ahead.next_step()
    assert not ahead._thread.is_alive()


def test_a_damaged_shard_reaches_the_training_thread_by_name(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path, rows=(20,))
    path = tmp_path / f"seq_len_{SEQUENCE_LENGTH}_max_pred_{PREDICTIONS}"
    damaged = ShardFolder.open(
        path, split="training", sequence_length=SEQUENCE_LENGTH, max_predictions=PREDICTIONS, vocabulary=None
    )
    shard = dataset / path.name / "training_0000.hdf5"
    shard.write_bytes(shard.read_bytes()[:600])
    with (
        reader(damaged, 0, 1) as ahead,
        pytest.raises(InputError, match=r"training_0000\.hdf5: not the shard .*, now it has 600"),
    ):
        ahead.next_step()
