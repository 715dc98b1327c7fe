"""Many jobs in one namespace: those of another are reconciled, read and told of as if they were alone."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Coroutine, Mapping
from typing import Any, cast

import pytest

from bert_operator.cluster import log_reader
from bert_operator.cluster.client import ApiClient, ApiError
from bert_operator.cluster.events import JobEvent
from bert_operator.cluster.index import Index
from bert_operator.cluster.log_reader import LogReader
from bert_operator.cluster.metrics import Metrics
from bert_operator.cluster.recorder import (
    EVENTS_PER_SECOND,
    MAX_BUDGETS,
    MAX_BURST,
    SECONDS_EACH,
    EventRecorder,
)
from bert_operator.cluster.round_robin import RoundRobin
from bert_operator.cluster.work_queue import FEW_BACK_OFF_S, MAX_BACK_OFF_S, WorkQueue, longest_back_off_s
from bert_operator.names import JobRef
from bert_operator.render import names
from child_documents import child_document, pod_document
from patience import PATIENCE_S

QUIET = JobRef("quiet", "demo")


def loud(count: int) -> list[JobRef]:
    return [JobRef("loud", f"job-{number}") for number in range(count)]


def run_until(done: Coroutine[Any, Any, object], *parts: Coroutine[Any, Any, None]) -> None:
    """Run parts of the operator until something has come to its end."""

    async def run() -> None:
        tasks = [asyncio.create_task(part) for part in parts]
        await asyncio.wait_for(done, PATIENCE_S)
        for task in tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    asyncio.run(run())


# The work queue.

RETRIES = 10
"""Enough for the longest back-off."""


async def add_all(queue: WorkQueue, refs: list[JobRef]) -> None:
    for ref in refs:
        queue.add(ref)


def test_a_namespace_with_thousands_of_queued_jobs_has_every_second_turn_at_most() -> None:
    reconciled: list[JobRef] = []
    others = [JobRef("quiet", f"job-{number}") for number in range(3)]
    done = asyncio.Event()

    async def reconcile(ref: JobRef) -> None:
        reconciled.append(ref)
        if others[-1] in reconciled:
            done.set()

    queue = WorkQueue(reconcile, Metrics())
    run_until(done.wait(), add_all(queue, [*loud(2000), *others]), queue.run(1))
    assert [reconciled.index(ref) for ref in others] == [1, 3, 5]


class Retrying(WorkQueue):
    """Looks at a job again at once that has failed, and notes for how long it would have waited."""

    def __init__(self) -> None:
        self.pauses_s: dict[JobRef, list[float]] = {}
        self.done = asyncio.Event()
        super().__init__(self._fail, Metrics())

    async def _fail(self, ref: JobRef) -> None:
        raise ApiError(500, "InternalError", "for ever")

    def add_after(self, ref: JobRef, seconds: float) -> None:
        self.pauses_s.setdefault(ref, []).append(seconds)
        if min(map(len, self.pauses_s.values())) >= RETRIES:
            self.done.set()
        super().add_after(ref, 0.0)


def test_failing_jobs_of_one_namespace_do_not_have_those_of_another_wait() -> None:
    queue, many = Retrying(), loud(200)
    run_until(queue.done.wait(), add_all(queue, [*many, QUIET]), queue.run(4))
    assert len(queue.pauses_s) == 201
    assert max(queue.pauses_s[QUIET]) < 1.2 * FEW_BACK_OFF_S + 0.1
    assert min(queue.pauses_s[ref][RETRIES - 1] for ref in many) >= 0.8 * MAX_BACK_OFF_S


def test_all_retries_together_are_no_more_for_the_number_of_namespaces() -> None:
    assert [longest_back_off_s(*of) for of in ((1, 1), (10, 10), (1, 100), (1, 2), (999, 2))] == [8, 50, 50, 8, 60]


# Logs.


class Logs:
    """An API server with an empty log for every pod."""

    def __init__(self, enough: int) -> None:
        self.read: list[JobRef] = []
        self.done = asyncio.Event()
        self._enough = enough

    async def get_log(self, path: str, **_: Any) -> bytes:
        parts = path.split("/")
        self.read.append(
            JobRef(parts[parts.index("namespaces") + 1], parts[parts.index("pods") + 1].rpartition("-a1")[0])
        )
        if len(self.read) >= self._enough:
            self.done.set()
        return b""


def index_of(refs: list[JobRef]) -> Index:
    index = Index()
    for ref in refs:
        metadata = {"name": ref.name, "namespace": ref.namespace, "uid": f"{ref.name}-uid", "resourceVersion": "1"}
        index.put_job({"kind": "BertPretrainJob", "metadata": metadata, "spec": {}, "status": {"phase": "Running"}})
        for put, document in (
            (index.put_child, child_document("Job", ref.name, owner=f"{ref.name}-uid")),
            (index.put_pod, pod_document(names.SINGLE, job=ref.name)),
        ):
            document["metadata"]["namespace"] = ref.namespace
            put(document)
    return index


def test_hundreds_of_running_jobs_delay_no_log_of_another_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "READS_PER_SECOND", 1000)
    monkeypatch.setattr(log_reader, "MIN_ROUND_S", 0.02)
    in_a_round, others = 20, [JobRef(f"quiet-{number}", f"demo-{number}") for number in range(5)]
    logs = Logs(10 * in_a_round)
    index = index_of([*loud(300), *others])
    reader = LogReader(cast(ApiClient, logs), index, lambda _: None, Metrics())
    run_until(logs.done.wait(), reader.run())
    counts = Counter(logs.read[: 10 * in_a_round])
    assert {counts[ref] for ref in others} == {10}, "each of them in every round"
    assert max(counts[ref] for ref in loud(300)) == 1, "and each of the many once before any of them again"


@pytest.mark.parametrize("of_others", [1, 20])
def test_more_namespaces_than_a_round_has_reads_are_read_in_turn(
    of_others: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With twenty jobs each, all others always have one that was read before the only job of the thirteenth."""
    monkeypatch.setattr(log_reader, "READS_PER_SECOND", 1000)
    monkeypatch.setattr(log_reader, "MIN_ROUND_S", 0.005)
    others = [JobRef(f"other-{number}", f"demo-{number}-{job}") for number in range(12) for job in range(of_others)]
    logs = Logs(13 * 5)
    reader = LogReader(cast(ApiClient, logs), index_of([*others, QUIET]), lambda _: None, Metrics())
    run_until(logs.done.wait(), reader.run())
    assert set(Counter(ref.namespace for ref in logs.read[: 13 * 5]).values()) == {5}


# Events.


class Taking(ApiClient):
    """An API server that takes every Event."""

    def __init__(self, enough: int) -> None:
        self.written = 0
        self.done = asyncio.Event()
        self._enough = enough

    def now_s(self) -> float:
        return 0.0

    async def create(self, path: str, document: Mapping[str, Any]) -> dict[str, Any]:
        self.written += 1
        if self.written >= self._enough:
            self.done.set()
        return {}


def dropped(metrics: Metrics) -> float:
    found = metrics.registry.get_sample_value("bert_operator_events_dropped_total")
    assert found is not None
    return found


def test_events_of_a_job_have_a_budget_that_comes_back() -> None:
    now_s, metrics = [0.0], Metrics()
    recorder = EventRecorder(Taking(0), metrics, lambda: now_s[0])

    def emit(count: int, uid: str = "uid") -> float:
        before = dropped(metrics)
        for number in range(count):
            recorder.emit(QUIET, uid, JobEvent("Normal", "Running", str(number)))
        return dropped(metrics) - before

    assert emit(MAX_BURST) == 0
    assert emit(100) == 100
    assert emit(1, "of-another-job") == 0
    now_s[0] += 3 * SECONDS_EACH
    assert emit(5) == 2
    now_s[0] += 10_000 * SECONDS_EACH
    assert emit(MAX_BURST + 1) == 1, "a job that was quiet has saved no more than a burst"


def test_jobs_that_come_and_go_in_one_namespace_give_no_budget_back_to_another() -> None:
    metrics = Metrics()
    recorder = EventRecorder(Taking(0), metrics, lambda: 0.0)
    for _ in range(MAX_BURST):
        recorder.emit(QUIET, "uid", JobEvent("Normal", "Running", "m"))
    for number in range(MAX_BUDGETS + 100):
        recorder.emit(loud(1)[0], f"uid-{number}", JobEvent("Normal", "Running", "m"))
    before = dropped(metrics)
    recorder.emit(QUIET, "uid", JobEvent("Normal", "Running", "m"))
    assert dropped(metrics) == before + 1


@pytest.mark.parametrize("at_once", [True, False])
def test_events_of_a_namespace_are_written_at_a_bounded_rate(at_once: bool) -> None:
    count = 6
    api = Taking(count)
    recorder = EventRecorder(api, Metrics())

    async def emit() -> None:
        for number, ref in enumerate(loud(count)):
            recorder.emit(ref, ref.name, JobEvent("Normal", "Running", "m"))
            # A queue that is always empty again is no way around the rate.
            while not at_once and api.written <= number:
                await asyncio.sleep(0.001)
        await api.done.wait()

    began_s = time.monotonic()
    run_until(emit(), recorder.run())
    assert time.monotonic() - began_s >= (count - 1) / EVENTS_PER_SECOND - 0.01


def test_items_that_wait_are_counted_and_the_largest_loses_its_oldest() -> None:
    fair: RoundRobin[int] = RoundRobin()
    for number in range(3):
        fair.put("loud", number)
    fair.put("quiet", 7)
    assert (fair.drop(), len(fair)) == (0, 3)
    assert [fair.take() for _ in range(3)] == [7, 1, 2]
    assert not fair
