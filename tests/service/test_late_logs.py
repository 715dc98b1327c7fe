"""Logs come as late as they like, and jobs come again under their names: what is newest counts, of the very job."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import cast

import pytest

from bert_operator.cluster import log_reader
from bert_operator.cluster.client import ApiClient, ApiError
from bert_operator.cluster.index import Index
from bert_operator.cluster.log_reader import LogReader
from bert_operator.cluster.metrics import Metrics
from bert_operator.cluster.work_queue import Requeue
from bert_operator.names import JobRef
from bert_operator.render import names
from child_documents import NAMESPACE, child_document, pod_document

REF = JobRef(NAMESPACE, "demo")


class LogsOnDemand:
    """Logs that come when the test has them come."""

    def __init__(self) -> None:
        self.asked: list[asyncio.Future[bytes]] = []

    async def get_log(self, path: str, **_: str) -> bytes:
        answer = asyncio.get_running_loop().create_future()
        self.asked.append(answer)
        return await answer

    def now_s(self) -> float:
        return 0.0

    async def wait(self, count: int) -> None:
        """Return when so many have been asked for."""
        async with asyncio.timeout(10):
            while len(self.asked) < count:
                await asyncio.sleep(0.01)


class World:
    """One job, its reader and its logs."""

    def __init__(self) -> None:
        self.index, self.logs = Index(), LogsOnDemand()
        self.looks: asyncio.Queue[JobRef] = asyncio.Queue()
        self.reader = LogReader(cast(ApiClient, self.logs), self.index, self.looks.put_nowait, Metrics())

    def put(self, uid: str, attempt: int = 1) -> None:
        """Have a job of this uid run this attempt."""
        metadata = {"name": REF.name, "namespace": NAMESPACE, "uid": uid, "resourceVersion": "1", "generation": 1}
        self.index.put_job(
            {"kind": "BertPretrainJob", "metadata": metadata, "spec": {}, "status": {"phase": "Running"}}
        )
        self.index.put_child(child_document("Job", REF.name, attempt=attempt, uid=f"{uid}-{attempt}", owner=uid))
        self.index.put_pod(pod_document(names.SINGLE, job=REF.name, attempt=attempt, owner=f"{uid}-{attempt}"))

    async def ask_to_end(self, attempt: int = 1) -> None:
        """Begin to read the log of an attempt to its end."""
        entry = self.index.job(REF)
        assert entry is not None
        (child,) = (child for child in self.index.children(REF) if child.attempt == attempt)
        with pytest.raises(Requeue):
            await self.reader.read_final(REF, entry, child)

    async def answer(self, number: int, text: str) -> None:
        """Have a log come, and be read."""
        self.logs.asked[number].set_result(text.encode())
        for _ in range(10):
            await asyncio.sleep(0)

    @property
    def step(self) -> int | None:
        progress = self.reader.latest(REF).progress
        return progress and progress.count("step")


def record(uid: str, step: int, *, attempt: int = 1, event: str = "progress") -> str:
    return f"bert-trainer/1 event={event} job={uid} attempt={attempt} stage=phase1 step={step} steps=100\n"


def test_a_log_that_was_asked_for_earlier_and_comes_later_changes_nothing() -> None:
    async def follow() -> None:
        world = World()
        world.put("first")
        running = asyncio.create_task(world.reader.run())
        await world.logs.wait(1)
        await world.ask_to_end()
        await world.answer(1, record("first", 100))
        await world.answer(0, record("first", 50))
        assert world.step == 100
        running.cancel()

    asyncio.run(follow())


def test_the_log_of_an_attempt_changes_nothing_once_a_later_one_has_been_read() -> None:
    async def follow() -> None:
        world = World()
        world.put("first")
        world.put("first", attempt=2)
        await world.ask_to_end(attempt=2)
        await world.answer(0, record("first", 7, attempt=2))
        await world.ask_to_end(attempt=1)
        await world.answer(1, record("first", 90))
        assert world.step == 7

    asyncio.run(follow())


def test_a_job_that_is_applied_again_under_its_name_inherits_no_progress_and_no_checkpoint() -> None:
    async def follow() -> None:
        world = World()
        world.put("first")
        await world.ask_to_end()
        await world.answer(0, record("first", 90) + record("first", 90, event="checkpoint"))
        assert world.reader.latest(REF).checkpoint is not None
        world.put("second")
        world.index.drop(child_document("Job", REF.name, uid="first-1", owner="first"))
        world.index.put_child(child_document("Job", REF.name, uid="second-1", owner="second"))
        await world.ask_to_end()
        await world.answer(1, record("second", 1))
        assert (world.step, world.reader.latest(REF).checkpoint) == (1, None)

    asyncio.run(follow())


def test_a_child_of_another_owner_hides_nobody_s_progress() -> None:
    """Labels are anybody's to write: a stranger's child with this job's name and a higher attempt is no child of it."""

    async def follow() -> None:
        world = World()
        world.put("first")
        world.index.put_child(child_document("Job", REF.name, attempt=9, uid="stranger-9", owner="stranger"))
        world.index.put_pod(pod_document(names.SINGLE, job=REF.name, attempt=9, owner="stranger-9"))
        running = asyncio.create_task(world.reader.run())
        await world.logs.wait(1)
        await world.answer(0, record("first", 30))
        assert world.step == 30
        running.cancel()

    asyncio.run(follow())


@pytest.mark.parametrize(("status", "readings"), [(403, 2), (0, 2), (503, 2), (404, 1)])
def test_the_last_log_is_read_again_after_a_refusal_and_not_once_it_is_gone(status: int, readings: int) -> None:
    """What refuses logs refuses the status as well: an outcome without its last evaluation would stay so for good."""

    async def follow() -> None:
        world = World()
        world.put("first")
        await world.ask_to_end()
        world.logs.asked[0].set_exception(ApiError(status, "", "no"))
        for _ in range(10):
            await asyncio.sleep(0)
        entry = world.index.job(REF)
        assert entry is not None
        (child,) = world.index.children(REF)
        with contextlib.suppress(Requeue):
            await world.reader.read_final(REF, entry, child)
        assert len(world.logs.asked) == readings
        if readings > 1:
            await world.answer(1, record("first", 100))
            assert world.step == 100

    asyncio.run(follow())


@pytest.mark.parametrize(
    ("condition", "max_s"), [("Failed", log_reader.FINAL_READ_S), ("Complete", log_reader.SUCCESS_READ_S)]
)
def test_the_last_evaluations_of_a_success_may_come_late_and_a_failure_waits_for_nothing(
    condition: str, max_s: float
) -> None:
    async def follow() -> None:
        world = World()
        world.put("first")
        ended = child_document("Job", REF.name, uid="first-1", owner="first", version=11, true={condition: ""})
        world.index.put_child(ended)
        entry, (child,) = world.index.job(REF), world.index.children(REF)
        assert entry is not None
        with pytest.raises(Requeue) as again:
            await world.reader.read_final(REF, entry, child)
        assert max_s - 5 < again.value.after_s < max_s

    assert log_reader.SUCCESS_READ_S > 30 > log_reader.FINAL_READ_S
    asyncio.run(follow())


def test_a_reading_that_fails_unexpectedly_is_logged_and_costs_no_other(caplog: pytest.LogCaptureFixture) -> None:
    async def follow() -> None:
        world = World()
        world.put("first")
        running = asyncio.create_task(world.reader.run())
        await world.logs.wait(1)
        world.logs.asked[0].set_exception(LookupError("a codec that nobody knows"))
        await world.ask_to_end()
        assert not running.done()
        await world.answer(1, record("first", 5))
        assert world.step == 5
        running.cancel()

    with caplog.at_level(logging.ERROR):
        asyncio.run(follow())
    (told,) = (entry for entry in caplog.records if entry.name == "bert_operator.cluster.log_reader")
    assert "demo" in told.getMessage()


def test_of_two_pods_of_an_attempt_the_one_counts_that_its_queue_has_let_begin() -> None:
    """The one that was suspended takes its time to leave, and writes its last lines meanwhile."""

    async def follow() -> None:
        world = World()
        world.put("first")
        running = asyncio.create_task(world.reader.run())
        await world.logs.wait(1)
        await world.answer(0, record("first", 90) + "bert-trainer/1 event=hung message=stuck job=first attempt=1\n")
        assert world.reader.latest(REF).hang is not None
        leaving = pod_document(names.SINGLE, job=REF.name, owner="first-1", version=21)
        leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        world.index.put_pod(leaving)
        begun = pod_document(names.SINGLE, 1, job=REF.name, owner="first-1", created=300)
        world.index.put_pod(begun)
        assert [item.pod.uid for item in world.reader._next_round()] == [begun["metadata"]["uid"]]
        await world.ask_to_end()
        await world.answer(1, record("first", 60))
        latest = world.reader.latest(REF)
        assert (world.step, latest.hang, latest.pod) == (60, None, begun["metadata"]["uid"])
        running.cancel()

    asyncio.run(follow())
