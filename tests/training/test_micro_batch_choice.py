"""The choice among measured sizes is a function of literals."""

from __future__ import annotations

import pytest

from bert_trainer.training.micro_batch_size import (
    Measurement,
    candidate_sizes,
    choose_size,
    expected_peak,
    is_getting_slower,
    render_measurements,
)

GIB = 2**30


def ran(size: int, speed: float, peak_gib: float = 1.0) -> Measurement:
    return Measurement(size=size, sequences_per_s=speed, peak_bytes=int(peak_gib * GIB))


@pytest.mark.parametrize(
    ("rows", "sizes"),
    [
        (1, [1]),
        (8, [1, 2, 4, 8]),
        (64, [1, 2, 4, 8, 16, 32, 64]),
        (96, [1, 2, 4, 8, 16, 32, 48, 96]),
        # 17 has no divisor between 1 and 17: 9 + 8, 6 + 6 + 5 and so on are as even as it gets.
        (17, [1, 2, 4, 6, 9, 17]),
        (30, [1, 2, 3, 6, 15, 30]),
    ],
)
def test_divisors_come_first_and_even_parts_fill_the_gaps(rows: int, sizes: list[int]) -> None:
    assert candidate_sizes(rows) == sizes


@pytest.mark.parametrize("rows", [1, 2, 7, 360, 509, 1000, 4096])
def test_no_pass_is_much_emptier_than_the_others(rows: int) -> None:
    for size in candidate_sizes(rows):
        passes = -(-rows // size)
        assert rows > size * (passes - 1)  # the last pass has a row
        assert size == -(-rows // passes)  # and fewer rows per pass would take more passes


def test_the_smallest_size_that_is_nearly_the_fastest_is_taken() -> None:
    speeds = [ran(1, 10), ran(2, 50), ran(4, 98), ran(8, 100), ran(16, 99)]
    assert choose_size(speeds, None) == 4
    assert choose_size([ran(1, 10), ran(2, 50), ran(4, 96), ran(8, 100)], None) == 8


def test_what_does_not_fit_is_not_taken() -> None:
    sizes = [ran(1, 10, 2), ran(2, 20, 3), ran(4, 40, 7.3), Measurement(size=8, note="out of memory")]
    assert choose_size(sizes, 8 * GIB) == 2  # 7.3 of 8 GiB leaves no headroom
    assert choose_size(sizes, 9 * GIB) == 4
    assert choose_size(sizes, GIB) is None
    assert choose_size([], None) is None


def test_the_peak_grows_with_the_sequences_above_what_is_there_without_them() -> None:
    assert expected_peak(2 * GIB, ran(4, 1, 3), 8) == 4 * GIB
    assert expected_peak(2 * GIB, ran(4, 1, 1.5), 8) == 2 * GIB  # memory was given back: never less than without


def test_two_clearly_slower_sizes_are_enough() -> None:
    assert not is_getting_slower([ran(1, 10), ran(2, 20), ran(4, 10)])
    assert is_getting_slower([ran(1, 10), ran(2, 20), ran(4, 17), ran(8, 15)])
    assert not is_getting_slower([ran(1, 10), ran(2, 20), ran(4, 17), ran(8, 19)])


def test_the_table_shows_what_was_tried_and_what_is_taken() -> None:
    tried = [ran(1, 10.04, 0.5), ran(2, 20, 1.25), Measurement(size=4, note="out of memory")]
    assert render_measurements("phase1", tried, 2).splitlines() == [
        "phase1",
        "    size  sequences/s  peak GiB",
        "       1         10.0      0.50",
        "       2         20.0      1.25  chosen",
        "       4            -         -  out of memory",
    ]
