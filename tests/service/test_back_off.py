"""How long the work queue leaves a failing job alone."""

from __future__ import annotations

import asyncio

import pytest

from bert_operator.cluster.metrics import Metrics
from bert_operator.cluster.work_queue import Requeue, WorkQueue, longest_back_off_s
from bert_operator.names import JobRef

REF = JobRef("demo", "bert")


@pytest.mark.parametrize(("failing", "seconds"), [(0, 8.0), (1, 8.0), (16, 8.0), (40, 20.0), (120, 60.0), (3000, 60.0)])
def test_few_failing_jobs_are_retried_soon_and_many_no_more_than_twice_a_second(failing: int, seconds: float) -> None:
    assert longest_back_off_s(failing) == seconds


def test_a_job_that_is_looked_at_all_the_time_keeps_one_timer() -> None:
    """Of a deadline next year each look makes another one, which takes memory until then."""
    others = [JobRef("demo", f"bert-{number}") for number in range(50)]

    async def wait() -> None:
        queue = WorkQueue(never, Metrics())
        for _ in range(10_000):
            queue.add_after(REF, 3e7)
        for other in others:
            queue.add_after(other, 1e7)
        assert len(queue._timers) < 300
        queue.add_after(REF, 0.0)
        running = asyncio.create_task(queue.run(1))
        async with asyncio.timeout(30):
            await seen.wait()
        running.cancel()

    async def never(ref: JobRef) -> None:
        assert ref == REF
        seen.set()

    seen = asyncio.Event()
    asyncio.run(wait())


@pytest.mark.parametrize(("after_s", "failing"), [(0.0, 1), (0.5, 0)])
def test_a_job_that_comes_through_and_waits_counts_as_failing_no_more(after_s: float, failing: int) -> None:
    """It fails, then wants to be looked at again: at once, in the middle of its work, or when there is time for it."""
    outcomes: list[Exception] = [LookupError("the first look"), Requeue(after_s)]
    seen: list[int] = []

    async def follow() -> None:
        done = asyncio.Event()

        async def reconcile(_: JobRef) -> None:
            seen.append(queue.failing)
            if outcomes:
                raise outcomes.pop(0)
            done.set()

        queue = WorkQueue(reconcile, Metrics())
        queue.add(REF)
        working = asyncio.create_task(queue.run(1))
        async with asyncio.timeout(30):
            await done.wait()
        working.cancel()

    asyncio.run(follow())
    assert seen == [0, 1, failing]
