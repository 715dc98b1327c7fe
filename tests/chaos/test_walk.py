"""What a random walk draws: the same for the same seed, and only what its jobs can have."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from bench import Bench
from fault import GROUPS
from walk import LONG_S, Walk, Walker, fitting_faults


def drawn(seed: int, count: int, workers: int = 2) -> list[Any]:
    walk = Walk(cast(Bench, None), seed, Path("findings"))
    walker = Walker(cast(Any, None), cast(Any, None), workers=workers)
    return [walk.draw_fault(walker) for _ in range(count)]


def test_the_same_seed_draws_the_same_faults() -> None:
    assert drawn(1, 50) == drawn(1, 50)
    assert drawn(1, 50) != drawn(2, 50)


def test_faults_of_every_kind_come_and_long_ones_seldom() -> None:
    faults = drawn(1, 400)
    assert {fault.group for fault in faults} == set(GROUPS)
    long = [fault for fault in fitting_faults() if fault.hold_s >= LONG_S]
    share = sum(fault in long for fault in faults) / len(faults)
    assert 0 < share < len(long) / len(fitting_faults()) / 2


@pytest.mark.parametrize(("workers", "groups"), [(1, {"control plane"}), (2, set(GROUPS))])
def test_a_single_pod_has_nothing_that_only_an_mpi_job_has(workers: int, groups: set[str]) -> None:
    assert {fault.group for fault in drawn(3, 200, workers)} == groups


def test_a_job_survives_what_it_meets_on_a_walk() -> None:
    for fault in fitting_faults():
        assert fault.ends == "Succeeded", fault.name
        assert not fault.faulty_volume, fault.name
        assert not fault.own_namespace, fault.name
