"""Logs come from nodes by way of the API server; a node that hangs holds up nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress

import pytest
from kubernetes.aio.client.configuration import Configuration

from api_stand_in import ApiStandIn
from bert_operator.cluster import log_reader
from bert_operator.cluster.client import ApiClient
from bert_operator.cluster.index import Index
from bert_operator.cluster.log_reader import LogReader
from bert_operator.cluster.metrics import Metrics
from bert_operator.cluster.work_queue import Requeue
from bert_operator.names import JobRef
from bert_operator.render import names
from child_documents import NAMESPACE, child_document, pod_document

HANGING, OTHERS = 20, 5
BAR_S = 5.0


@pytest.fixture
def server() -> Iterator[ApiStandIn]:
    with ApiStandIn() as running:
        yield running


@asynccontextmanager
async def reading(server: ApiStandIn, index: Index) -> AsyncIterator[LogReader]:
    async with ApiClient(Configuration(host=server.url)) as api:
        yield LogReader(api, index, lambda _: None, Metrics())


def add_job(index: Index, server: ApiStandIn, name: str, log: str | None) -> JobRef:
    """Have a job run; log: None for one on a node that hangs."""
    metadata = {"name": name, "namespace": NAMESPACE, "uid": f"{name}-uid", "resourceVersion": "1", "generation": 1}
    index.put_job({"kind": "BertPretrainJob", "metadata": metadata, "spec": {}, "status": {"phase": "Running"}})
    index.put_child(child_document("Job", name, owner=f"{name}-uid"))
    pod = pod_document(names.SINGLE, job=name)
    index.put_pod(pod)
    server.logs[pod["metadata"]["name"]] = log
    return JobRef(NAMESPACE, name)


def record(job: str, step: int) -> str:
    return f"bert-trainer/1 event=progress job={job}-uid attempt=1 stage=phase1 step={step} steps=100\n"


def steps(reader: LogReader, refs: list[JobRef]) -> list[int | None]:
    reports = (reader.latest(ref).progress for ref in refs)
    return [report and report.count("step") for report in reports]


def test_twenty_hanging_nodes_make_the_progress_of_others_no_later_than_five_seconds(server: ApiStandIn) -> None:
    index = Index()
    for number in range(HANGING):
        add_job(index, server, f"hangs-{number}", None)
    others = [add_job(index, server, f"works-{number}", record(f"works-{number}", 7)) for number in range(OTHERS)]

    async def follow() -> None:
        async with reading(server, index) as reader:
            running = asyncio.create_task(reader.run())
            async with asyncio.timeout(BAR_S):
                while steps(reader, others) != [7] * OTHERS:
                    await asyncio.sleep(0.05)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(follow())


def test_a_log_that_hangs_is_not_asked_for_a_second_time_meanwhile(
    server: ApiStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_reader, "MIN_ROUND_S", 0.01)
    monkeypatch.setattr(log_reader, "READS_PER_SECOND", 1000)
    index = Index()
    add_job(index, server, "hangs", None)
    works = add_job(index, server, "works", record("works", 1))

    async def follow() -> None:
        async with reading(server, index) as reader:
            running = asyncio.create_task(reader.run())
            async with asyncio.timeout(10):
                while server.requests["GET"] < 20 or steps(reader, [works]) != [1]:
                    await asyncio.sleep(0.01)
            assert server.hanging == 1
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(follow())


def test_the_final_read_of_a_log_does_not_occupy_a_worker(server: ApiStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "FINAL_READ_S", 1.0)
    index = Index()
    hangs, works = add_job(index, server, "hangs", None), add_job(index, server, "works", record("works", 100))

    async def look() -> None:
        async with reading(server, index) as reader:
            for ref in (works, hangs):
                entry, (child,) = index.job(ref), index.children(ref)
                assert entry is not None
                if ref == works:
                    with suppress(Requeue):  # on a machine that is busy it may take longer than a worker waits
                        await reader.read_final(ref, entry, child)
                    async with asyncio.timeout(BAR_S):
                        while steps(reader, [ref]) != [100]:
                            await asyncio.sleep(0.01)
                    continue
                # The log never comes: its worker is given back, and asked to look again.
                with pytest.raises(Requeue) as again:
                    await reader.read_final(ref, entry, child)
                assert 0 < again.value.after_s <= 1.0
                await asyncio.sleep(again.value.after_s)
                await reader.read_final(ref, entry, child)
                assert reader.latest(ref).progress is None

    asyncio.run(look())
