"""What the GPU benchmark counts, and the micro-batches that it makes."""

from __future__ import annotations

import gpu_step
import pytest
import torch
from gpu_step import PRESETS, Row, Shape


def rows_of(*lengths: int) -> list[Row]:
    """Rows of given lengths whose tokens are 1, 2, 3 ... and whose first token after [CLS] is masked."""
    one = torch.ones(1, dtype=torch.int64)
    return [Row(torch.arange(1, n + 1), n // 2, one, 7 * one, index % 2) for index, n in enumerate(lengths)]


@pytest.mark.parametrize(
    ("length", "predictions", "tflop"), [(128, 20, 0.2406), (128, 128, 0.2616), (512, 80, 1.0205), (512, 512, 1.1043)]
)
def test_operations_of_a_full_row_are_those_published(length: int, predictions: int, tflop: float) -> None:
    assert gpu_step.count_flop(PRESETS["large"], length, predictions) / 1e12 == pytest.approx(tflop, abs=5e-5)


def test_drawn_lengths_have_the_moments_of_wikipedia() -> None:
    lengths = [gpu_step.length_at((index + 0.5) / 20_000, 512) for index in range(20_000)]
    assert min(lengths) >= 5
    assert sum(lengths) / 20_000 == pytest.approx(255.83, rel=0.003)
    assert sum(length**2 for length in lengths) / 20_000 / 512**2 == pytest.approx(0.377, rel=0.01)
    for limit, share in ((64, 0.176), (128, 0.369), (256, 0.566), (384, 0.684), (511, 0.766)):
        assert sum(length <= limit for length in lengths) / 20_000 == pytest.approx(share, abs=0.001)
    flop = [gpu_step.count_flop(PRESETS["large"], n, gpu_step.count_predictions(n, 512)) for n in lengths]
    assert sum(flop) / 20_000 / 1e12 == pytest.approx(0.500, rel=0.005)


def test_cut_at_128_a_sixth_is_padding_as_published() -> None:
    lengths = [gpu_step.length_at((index + 0.5) / 20_000, 128) for index in range(20_000)]
    assert max(lengths) == 128
    assert 1 - sum(lengths) / 20_000 / 128 == pytest.approx(0.17, abs=0.01)


def test_drawn_lengths_follow_the_seed() -> None:
    drawn = [gpu_step.draw_lengths(50, 512, torch.Generator().manual_seed(seed)) for seed in (3, 3, 4)]
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize(("length", "longest", "count"), [(5, 128, 1), (100, 128, 15), (512, 512, 77), (128, 128, 19)])
def test_fifteen_percent_are_predicted(length: int, longest: int, count: int) -> None:
    assert gpu_step.count_predictions(length, longest) == count


def test_dealing_keeps_every_row_and_balances_tokens() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = rows_of(*gpu_step.draw_lengths(500, 512, generator))
    dealt = gpu_step.deal_rows(rows, 4)
    assert sorted(id(row) for micro in dealt for row in micro) == sorted(map(id, rows))
    tokens = [sum(len(row.tokens) for row in micro) for micro in dealt]
    assert max(tokens) - min(tokens) <= min(len(row.tokens) for row in rows)


def test_a_bucket_is_the_smallest_multiple_that_holds_the_fullest_micro_batch_and_its_filler_rows() -> None:
    steps = [[rows_of(100, 20), rows_of(110)], [rows_of(90), rows_of(80)]]
    shapes = gpu_step.choose_shapes(steps, longest=128, granularity=64)
    # Two rows at most, two more to spare, up to a multiple of 32; each filler row takes a token.
    assert shapes == [Shape(tokens=192, rows=32, masked=128), Shape(tokens=128, rows=32, masked=128)]


def test_filler_rows_take_what_is_left_and_no_loss_looks_at_them() -> None:
    micro = gpu_step.make_micro(rows_of(6, 4), Shape(tokens=17, rows=4, masked=3), (0.5, 0.25))
    assert micro.bounds.tolist() == [0, 6, 10, 14, 17]
    assert micro.bounds.dtype == torch.int32
    assert micro.tokens_N.tolist() == [1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0]
    assert micro.positions_N.tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2]
    assert micro.segments_N.tolist() == [0, 0, 0, 1, 1, 1, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0]
    assert micro.masked_index_M.tolist() == [1, 7, 0]
    assert micro.labels_M.tolist() == [7, 7, gpu_step.IGNORED]
    assert micro.next_sentence_B.tolist() == [0, 1, gpu_step.IGNORED, gpu_step.IGNORED]
    assert micro.row_starts_B.tolist() == [0, 6, 10, 14]


@pytest.mark.parametrize(
    "shape",
    [Shape(10, 3, 3), Shape(11, 4, 3), Shape(12, 2, 3), Shape(20, 3, 1)],
    ids=["full", "thin", "rows", "masked"],
)
def test_rows_that_do_not_fit_are_refused(shape: Shape) -> None:
    with pytest.raises(ValueError, match="10 tokens and 2 masked"):
        gpu_step.make_micro(rows_of(6, 4), shape, (1.0, 1.0))


def test_a_plan_has_one_shape_per_step_and_little_filler() -> None:
    generator = torch.Generator().manual_seed(0)
    steps = [gpu_step.make_rows(256, 512, 2000, generator) for _ in range(3)]
    planned, filler = gpu_step.plan_micros(steps, 512, micro_tokens=16384)
    assert filler < 0.03
    assert len({(len(m.bounds), len(m.labels_M)) for step in planned for m in step}) == 1
    for rows, step in zip(steps, planned, strict=True):
        assert len({len(micro.tokens_N) for micro in step}) == 1
        assert len(step[0].tokens_N) % 256 == 0
        masked = sum(int((micro.labels_M != gpu_step.IGNORED).sum()) for micro in step)
        assert masked == sum(len(row.labels) for row in rows)
        assert float(step[0].scales[0]) == pytest.approx(1 / masked)
        assert float(step[0].scales[1]) == pytest.approx(1 / 256)
        longest = max(int(micro.bounds.diff().max()) for micro in step)
        assert longest <= 512
