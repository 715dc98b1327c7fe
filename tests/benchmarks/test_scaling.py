"""The scaling model: its parts by hand, its limits, and how near it comes to published runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import scaling
from scaling import Cluster, Job

# 10 bytes/s inside a node of 4, 8.5 between nodes after the assumed share of the line rate.
TOY = Cluster("toy", 4, 10.0, 10.0, 1000.0, inside_latency_s=0.0, network_latency_s=0.0)
PLAIN = Job(global_batch=64, micro_rows=4, parameters=50, chunks=1, overlapped=False)


def test_a_ring_sends_almost_twice_the_bytes() -> None:
    assert scaling.ring_bytes(1, 100.0) == 0
    assert scaling.ring_bytes(2, 100.0) == 100
    assert scaling.ring_bytes(4, 100.0) == 150


def test_a_reduction_is_scattered_inside_nodes_and_reduced_between_them() -> None:
    assert scaling.time_reduction(TOY, 4, 100.0) == pytest.approx(15.0)
    assert scaling.time_reduction(TOY, 8, 100.0) == pytest.approx(15.0 + 100 / 8.5)
    assert scaling.time_reduction(TOY, 16, 100.0) == pytest.approx(15.0 + 150 / 8.5)


def test_every_chunk_pays_the_latency() -> None:
    slow = replace(TOY, inside_latency_s=0.5, network_latency_s=2.0)
    # A ring of 4 has 6 hops, a tree of 4 nodes 2 levels up and down.
    assert scaling.time_reduction(slow, 16, 0.0, chunks=3) == pytest.approx(3 * (6 * 0.5 + 4 * 2.0))


def test_one_rank_computes_and_updates() -> None:
    step = scaling.model_step(TOY, PLAIN, 1, sequence_s=0.5)
    assert (step.compute, step.waiting, step.exposed) == (32.0, 0.0, 0.0)
    assert step.optimizer == pytest.approx(50 * 38 / 1000)
    assert step.seconds == pytest.approx(32 + 1.9)


def test_partitioning_divides_the_optimizer_and_not_the_bytes_on_the_wire() -> None:
    whole = scaling.model_step(TOY, PLAIN, 8, 0.5)
    part = scaling.model_step(TOY, replace(PLAIN, partitioned=True), 8, 0.5)
    assert part.optimizer == pytest.approx(whole.optimizer / 8)
    assert part.reduction == whole.reduction


def test_a_reduction_hides_behind_the_last_backward_pass_except_for_its_last_chunk() -> None:
    job = replace(PLAIN, overlapped=True, chunks=4)
    fast = scaling.model_step(TOY, job, 4, sequence_s=100.0)
    assert fast.exposed == pytest.approx(fast.reduction / 4)
    # 4 rows of 0.3 s, two thirds of it backward: 0.8 s are hidden of 15.
    slow = scaling.model_step(TOY, job, 4, sequence_s=0.3)
    assert slow.reduction - slow.exposed == pytest.approx(0.8)


def test_more_ranks_than_rows_of_a_micro_batch_leave_less_to_hide_behind() -> None:
    job = replace(PLAIN, overlapped=True, chunks=16, global_batch=8)
    step = scaling.model_step(TOY, job, 8, sequence_s=0.3)
    assert step.reduction - step.exposed == pytest.approx(0.2)


def test_expected_maxima_are_those_of_the_tables() -> None:
    for count, expected in ((1, 0.0), (2, 0.564), (8, 1.424), (100, 2.508)):
        assert scaling.expected_maximum(count) == pytest.approx(expected, abs=0.03)


def test_the_fullest_rank_is_found_in_order_and_dealt_by_length() -> None:
    lengths = [8, 2, 8, 2, 4, 4, 4, 4]
    assert scaling.slowest_rank(lengths, 2, balanced=False) == pytest.approx(24 * 2 / 36)
    assert scaling.slowest_rank(lengths, 2, balanced=True) == pytest.approx(1.0)


def test_dealing_by_length_removes_the_imbalance_of_wikipedia() -> None:
    in_order = scaling.draw_imbalance(8, 256, 512, balanced=False)
    dealt = scaling.draw_imbalance(8, 256, 512, balanced=True)
    assert in_order > 1.1
    assert dealt < 1.01


def test_the_rate_of_the_first_size_is_given_back() -> None:
    for run in (scaling.PUBLISHED[0], scaling.PUBLISHED[6]):
        ranks, batch, rate = run.points[0]
        job = replace(run.job, global_batch=batch)
        sequence_s = scaling.infer_sequence_s(run.cluster, job, ranks, rate)
        assert batch / scaling.model_step(run.cluster, job, ranks, sequence_s).seconds == pytest.approx(rate, rel=1e-6)


def test_published_runs_are_met_within_the_errors_that_the_page_states() -> None:
    errors = [modelled / rate - 1 for run in scaling.PUBLISHED for _, rate, modelled in scaling.check_run(run)]
    assert len(errors) == 10
    assert min(errors) > -0.01
    assert sorted(errors)[5] < 0.06
    assert max(errors) < 0.13


def test_latency_and_rate_are_found_in_measured_points() -> None:
    points = [(num_bytes, 1e-4 + num_bytes / 2e9) for num_bytes in (1e4, 1e6, 1e8)]
    latency, rate = scaling.fit_line(points)
    assert latency == pytest.approx(1e-4, rel=1e-3)
    assert rate == pytest.approx(2e9, rel=1e-3)


def test_measured_parts_are_printed_with_what_they_mean() -> None:
    text = scaling.render_measured([(2.0**20, 0.001), (2.0**26, 0.064)], step_s=0.2, copy_s=0.016, num_parameters=10**7)
    assert "copy of memory 5.0 GB/s" in text
    assert "20.00 ns per parameter, as long as 100 bytes of copying" in text


def test_forecasts_never_gain_more_than_the_ranks_added() -> None:
    lines = scaling.render_forecast(scaling.H100, Job(256, 8, tokens="balanced"), 900.0, (1, 2, 8)).splitlines()[2:]
    shares = [float(line.split(" | ")[2].rstrip("%")) for line in lines]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] == 100.0


def test_the_page_holds_the_table_that_the_program_prints() -> None:
    page = (Path(__file__).parents[2] / "docs/concepts/scaling.md").read_text()
    assert scaling.render_checks() in page
