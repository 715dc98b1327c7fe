"""What the watch on jobs did not deliver, a list brings; a job that is gone is forgotten by everybody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import pytest

from bert_operator.cluster.index import Index
from bert_operator.cluster.resync import Resync
from bert_operator.cluster.settings import Settings
from bert_operator.names import KIND, JobRef
from cluster_jobs import job_document
from job_walk import REF, Shape, World
from patience import PATIENCE_S
from walking_operator import Operator


class Lists:
    """An API server that answers one list after the other, and then none."""

    def __init__(self, *lists: list[dict[str, Any]]) -> None:
        self._left = list(lists)
        self.is_through = asyncio.Event()

    async def pages(self, path: str, limit: int, query: Any) -> AsyncGenerator[dict[str, Any], None]:
        if not self._left:
            self.is_through.set()
            await asyncio.Event().wait()
        yield {"metadata": {"resourceVersion": "99"}, "items": self._left.pop(0)}


class Listed:
    """What a resync does with some lists."""

    def __init__(self, index: Index, namespace: str, *lists: list[dict[str, Any]]) -> None:
        self.queued: list[JobRef] = []
        api = Lists(*lists)
        settings = Settings(sweep_seconds=0.001)
        self.resync = Resync(api, index, settings, namespace, self.queued.append)  # type: ignore[arg-type]

        async def run() -> None:
            running = asyncio.create_task(self.resync.run())
            await api.is_through.wait()
            running.cancel()

        asyncio.run(asyncio.wait_for(run(), PATIENCE_S))


def job(name: str, version: int = 7, **spec: Any) -> dict[str, Any]:
    document = job_document(name)
    document["metadata"] |= {"namespace": "demo", "uid": f"uid-{name}", "resourceVersion": str(version)}
    return {**document, "spec": {**document["spec"], **spec}}


def tables_with(ref: JobRef, holder: Any) -> Iterator[str]:
    """Yield what an object of ours, and those that it is made of, keep by the name of a job."""
    for name, value in vars(holder).items():
        if isinstance(value, dict) and ref in value:
            yield name
        elif type(value).__module__ in ("bert_operator.cluster.children", "bert_operator.cluster.freezing"):
            yield from tables_with(ref, value)


def test_a_resync_queues_a_job_that_it_finds_gone_and_expects_the_watch_to_say_nothing_of_it() -> None:
    index = Index()
    index.put_job(job("gone"))
    listed = Listed(index, "", [])
    assert listed.queued == [JobRef("demo", "gone")]
    assert index.jobs() == []
    assert listed.resync.lag_s() == 0


def test_a_resync_leaves_other_namespaces_and_what_is_newer_than_the_list_alone() -> None:
    index = Index()
    index.put_job(job("young", version=100))
    assert Listed(index, "", []).queued == [JobRef("demo", "young")], "as at every resync"
    assert Listed(index, "other", []).queued == []
    assert index.jobs() == [JobRef("demo", "young")]


def test_the_watch_lags_until_it_tells_of_a_job_that_a_list_has_brought() -> None:
    index, known, new = Index(), JobRef("demo", "known"), JobRef("demo", "new")
    index.put_job(job("known"))
    listed = Listed(index, "", [job("known"), job("new")])
    assert listed.queued == [new, known, new], "at once, and as at every resync"
    assert listed.resync.lag_s() > 0
    listed.resync.delivered(known)
    assert listed.resync.lag_s() > 0
    listed.resync.delivered(new)
    assert listed.resync.lag_s() == 0


def test_a_watch_owes_nothing_any_more_about_a_job_that_is_gone() -> None:
    listed = Listed(Index(), "", [job("short")], [])
    assert listed.resync.lag_s() == 0
    assert listed.queued.count(JobRef("demo", "short")) == 3, "it came, it was resynced, and it went"


@pytest.mark.parametrize(
    ("status", "remembered"),
    [({}, {"_rests", "_created"}), ({"minOperatorVersion": "99.0.0"}, {"_left_alone"})],
)
def test_nothing_is_remembered_of_a_job_that_is_gone(status: dict[str, Any], remembered: set[str]) -> None:
    world = World(Shape(workers=1, prepares=False, operators=0, run_policy={}))
    job = world.job
    assert job is not None
    world.cluster.update(job, status=status)
    operator = Operator(world.cluster, world)
    operator.look(REF)
    reconciler = operator._reconciler
    assert {*tables_with(REF, reconciler)} == remembered
    operator.index.drop_uid(KIND, REF.namespace, REF.name, job["metadata"]["uid"])
    operator.look(REF)
    assert {*tables_with(REF, reconciler)} == set()
