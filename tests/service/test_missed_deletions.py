"""A job whose deletion no watch has delivered is forgotten by everybody who remembers something about it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import pytest

from bert_operator.cluster.index import Index
from bert_operator.cluster.resync import Resyncer
from bert_operator.cluster.settings import Settings
from bert_operator.names import KIND, JobRef
from cluster_jobs import job_document
from job_walk import REF, Shape, World
from walking_operator import Operator


class EmptyApi:
    """An API server that has no jobs."""

    async def pages(self, path: str, limit: int, **_: Any) -> AsyncGenerator[dict[str, Any], None]:
        yield {"items": []}


def resync(index: Index) -> list[JobRef]:
    """Return the jobs that a resync queues of a cluster that has none."""
    queued: list[JobRef] = []
    resyncer = Resyncer(EmptyApi(), index, Settings(), queued.append, lambda _: None)  # type: ignore[arg-type]
    asyncio.run(resyncer.resync())
    return queued


def tables_with(ref: JobRef, holder: Any) -> Iterator[str]:
    """Yield what an object of ours, and those that it is made of, keep by the name of a job."""
    for name, value in vars(holder).items():
        if isinstance(value, dict) and ref in value:
            yield name
        elif type(value).__module__ in ("bert_operator.cluster.children", "bert_operator.cluster.freezing"):
            yield from tables_with(ref, value)


def test_a_resync_queues_a_job_that_it_finds_gone() -> None:
    index = Index()
    document = job_document("gone")
    document["metadata"] |= {"namespace": "demo", "uid": "uid-1", "resourceVersion": "7"}
    index.put_job(document)
    assert resync(index) == [JobRef("demo", "gone")]
    assert index.jobs() == []


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
