"""Pods of failed attempts that are leaving get less time: once each, by their uid, and only where that is allowed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bert_operator.api.schema.status import ChildRef
from bert_operator.cluster.children import HURRIED_GRACE_S, Children
from bert_operator.cluster.client import ApiError
from bert_operator.cluster.index import Index
from bert_operator.names import JobRef
from bert_operator.state.observed import Child
from child_documents import NAMESPACE, at, child_document, pod_document

REF = JobRef(NAMESPACE, "demo")
CHILD = Child(
    run="training",
    attempt=1,
    state="Failed",
    ref=ChildRef(kind="MPIJob", name="demo-a1", uid="demo-a1-uid", attempt=1),
)


class Server:
    """An API client that answers every deletion alike."""

    def __init__(self, error: ApiError | None = None) -> None:
        self.error, self.asked = error, list[tuple[str, str, int]]()

    async def shorten_grace(self, path: str, *, uid: str, grace_s: int) -> Any:
        self.asked.append((path.rpartition("/")[2], uid, grace_s))
        if self.error is not None:
            raise self.error


def leaving(number: int) -> Any:
    pod = pod_document(number=number)
    return {**pod, "metadata": {**pod["metadata"], "deletionTimestamp": at(50)}}


def hurry(server: Server, *pods: Any, times: int = 2) -> None:
    index, now_s = Index(), [0.0]
    index.put_child(child_document())
    for pod in pods:
        index.put_pod(pod)
    made: Any = None
    children = Children(server, index, made, made, made, lambda: now_s[0])  # type: ignore[arg-type]

    async def look() -> None:
        for _ in range(times):
            await children.hurry(REF, CHILD)
            now_s[0] += 1

    asyncio.run(look())


def test_pods_that_are_leaving_are_hurried_once() -> None:
    server = Server()
    hurry(server, leaving(0), pod_document(number=1), leaving(2))
    assert server.asked == [
        ("demo-a1-worker-0", "demo-a1-worker-0-uid", HURRIED_GRACE_S),
        ("demo-a1-worker-2", "demo-a1-worker-2-uid", HURRIED_GRACE_S),
    ], "a pod that nobody has deleted is not touched"


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_has_ended_needs_no_hurry(phase: str) -> None:
    server = Server()
    hurry(server, {**leaving(0), "status": {"phase": phase}})
    assert server.asked == []


@pytest.mark.parametrize("status", [404, 409])
def test_a_pod_that_is_gone_is_no_error(status: int) -> None:
    server = Server(ApiError(status, "", ""))
    hurry(server, leaving(0), leaving(1))
    assert len(server.asked) == 2


def test_without_the_right_pods_take_their_time_and_nobody_asks_again_for_a_while() -> None:
    server = Server(ApiError(403, "Forbidden", "pods is forbidden"))
    hurry(server, leaving(0), leaving(1))
    assert len(server.asked) == 1


def test_another_error_is_tried_again() -> None:
    server = Server(ApiError(500, "", ""))
    with pytest.raises(ApiError):
        hurry(server, leaving(0))
