"""Six faults of ``make chaos`` (docs/reliability.md), each at one moment; none that another test here has already.

Killed and stopped ranks are in test_healing.py, an eviction is in test_graceful_stop.py.

Every verdict must be right or late, not wrong: how long recovery takes, and how much is trained again, is measured by
``make chaos``, not by a test. An interruption that may not be, and files left behind, are wrong here as well.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bench import Bench
from campaign import plan_moments, run_fault
from catalog import FAULTS
from real_jobs import RealJob, side_by_side
from verdict import is_right_or_late

pytestmark = pytest.mark.timeout(400)
SEED = 22
NO_BAR_S = float("inf")
CHOSEN = (
    "newest checkpoint damaged",
    "memory limit hit",
    "network of a pod cut for 30 s",
    "volume full for 20 s",
    "volume read-only for 20 s",
    "owner references removed",
)


@pytest.fixture(scope="module")
def judged(whole: RealJob) -> Iterator[Callable[[str], list[dict[str, Any]]]]:
    """Waits for what became of the jobs of a fault."""
    if whole.namespace.folder is None:
        pytest.skip("faults need the node of this machine; KUBECONFIG names another cluster")
    bench = Bench.of_run(whole, NO_BAR_S, slower=1)
    faults = {fault.name: fault for fault in FAULTS}
    stories = {
        name: functools.partial(run_fault, bench, faults[name], plan_moments(faults[name], SEED, 1)) for name in CHOSEN
    }
    # Three: a job that is hit waits for pods and for the next attempt. More at a time only share the processors.
    with side_by_side(stories, at_a_time=3) as end:
        yield end
    bench.close()


@pytest.mark.parametrize("name", CHOSEN)
def test_the_right_result_comes_out_after(
    judged: Callable[[str], list[dict[str, Any]]], say: Callable[[str], None], name: str
) -> None:
    (job,) = judged(name)
    say(f"{name}: {job['verdict']}, {[moment['recovery_s'] for moment in job['moments']]} s")
    assert is_right_or_late(job), job
