"""Nodes are read one by one, those below our pods alone, and what cannot be read is left alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bert_operator.cluster import node_reader
from bert_operator.cluster.client import ApiError
from bert_operator.cluster.index import Index
from bert_operator.cluster.node_reader import NodeReader
from child_documents import NAMESPACE, pod_document

NOT_READY = {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}


class Server:
    """An API client that knows nodes by name, and counts what it is asked."""

    def __init__(self, **nodes: Any) -> None:
        self.nodes, self.asked = nodes, list[str]()

    async def get(self, path: str) -> Any:
        self.asked.append(path)
        node = self.nodes[path.rpartition("/")[2]]
        if isinstance(node, Exception):
            raise node
        return node


def read(server: Server, *names: str, pods: int = 1, rounds: float = 0.0) -> tuple[Index, list[str]]:
    index, queued = Index(), list[str]()
    for name in ("demo", "other")[:pods]:
        metadata = {"name": name, "namespace": NAMESPACE, "uid": f"{name}-uid", "resourceVersion": "1"}
        index.put_job({"kind": "BertPretrainJob", "metadata": metadata, "spec": {}, "status": {}})
        index.put_pod(pod_document(job=name, node="n1"))

    async def follow() -> None:
        reader = NodeReader(server, index, lambda ref: queued.append(ref.name))  # type: ignore[arg-type]
        for name in names:
            await reader.refresh(name)
        if rounds:
            running = asyncio.create_task(reader.run())
            async with asyncio.timeout(10):
                while not server.asked:
                    await asyncio.sleep(0.01)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(follow())
    return index, queued


def test_the_jobs_above_a_sick_node_are_queued() -> None:
    server = Server(n1=NOT_READY)
    index, queued = read(server, pods=2, rounds=1)
    assert server.asked == ["/api/v1/nodes/n1"], "no list, and no node without a pod of ours"
    assert sorted(queued) == ["demo", "other"]
    assert [problem.kind for problem in index.nodes()["n1"].problems] == ["Ready"]


def test_a_node_that_was_just_read_is_not_read_again() -> None:
    server = Server(n1=NOT_READY)
    read(server, "n1", "n1")
    assert len(server.asked) == 1


def test_a_node_that_was_not_there_is_asked_for_again_at_once() -> None:
    server = Server(n1=ApiError(404, "NotFound", ""))
    read(server, "n1", "n1")
    assert len(server.asked) == 2, "it may just be joining"


def test_without_the_right_nobody_asks_again_for_a_while() -> None:
    server = Server(n1=ApiError(403, "Forbidden", "nodes is forbidden"), n2=NOT_READY)
    index, queued = read(server, "n1", "n2", "n1")
    assert len(server.asked) == 1
    assert (dict(index.nodes()), queued) == ({}, [])


def test_in_single_namespaces_nobody_asks_for_nodes() -> None:
    async def follow() -> None:
        await NodeReader(server, Index(), lambda ref: None, is_allowed=False).refresh("n1")  # type: ignore[arg-type]

    server = Server(n1=NOT_READY)
    asyncio.run(follow())
    assert server.asked == []


def test_a_node_that_is_gone_or_that_cannot_be_read_is_not_sick() -> None:
    server = Server(n1=ApiError(404, "NotFound", ""), n2=ApiError(500, "", ""), n3=ValueError("no JSON"))
    index, queued = read(server, "n1", "n2", "n3")
    assert [node.problems for node in index.nodes().values()] == [()]
    assert queued == []


def test_a_slow_api_server_does_not_keep_the_next_attempt_waiting(monkeypatch: Any) -> None:
    class Slow(Server):
        async def get(self, path: str) -> Any:
            await asyncio.Event().wait()

    monkeypatch.setattr(node_reader, "_NEWEST_WITHIN_S", 0.01)
    index, _ = read(Slow(), "n1")
    assert dict(index.nodes()) == {}


def follow(server: Server, *moments: tuple[float, Any], monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Refresh a node at moments, at which the server has these answers; return what is known of it after each."""
    index, found, now_s = Index(), list[list[str]](), [0.0]

    async def look() -> None:
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now_s[0], raising=False)
        reader = NodeReader(server, index, lambda ref: None)  # type: ignore[arg-type]
        for at_s, answer in moments:
            now_s[0], server.nodes["n1"] = at_s, answer
            await reader.refresh("n1")
            known = index.nodes().get("n1")
            found.append([problem.kind for problem in known.problems] if known else [])

    asyncio.run(look())
    return found


REFUSED = ApiError(403, "Forbidden", "nodes is forbidden")
ROTATED = ApiError(401, "Unauthorized", "")
BUSY = ApiError(503, "", "")


def test_a_node_that_may_not_be_asked_any_more_is_forgotten_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server()
    moments = ((100, NOT_READY), (110, REFUSED), (112, NOT_READY), (130, NOT_READY))
    assert follow(server, *moments, monkeypatch=monkeypatch) == [["Ready"], [], [], ["Ready"]]
    assert len(server.asked) == 3, "not while it is refused, and soon after"


@pytest.mark.parametrize("error", [BUSY, ROTATED])
def test_an_old_answer_counts_for_a_few_rounds_only(error: ApiError, monkeypatch: pytest.MonkeyPatch) -> None:
    moments = ((100, NOT_READY), (150, error), (180, error), (200, error))
    assert follow(Server(), *moments, monkeypatch=monkeypatch) == [["Ready"], ["Ready"], ["Ready"], []]
