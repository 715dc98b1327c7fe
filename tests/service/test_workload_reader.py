"""Workloads are read of queued children alone, and where Kueue is not installed hardly anything is asked."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml

from bert_operator.cluster import workload_reader
from bert_operator.cluster.client import ApiError
from bert_operator.cluster.index import Index
from bert_operator.cluster.workload_reader import WorkloadReader
from child_documents import NAMESPACE, child_document

WORKLOADS = yaml.safe_load((Path(__file__).parents[1] / "fixtures/workloads.yaml").read_text(encoding="utf-8"))
CHILD_UID = "child-uid"
ABSENT = ApiError(404, "NotFound", "the server could not find the requested resource")
FORBIDDEN = ApiError(403, "Forbidden", "workloads is forbidden")


class Server:
    """An API client that has one Workload, or refuses, and counts what it is asked."""

    def __init__(self, answer: Any, *, version: str = "v1beta2", owner: str = CHILD_UID) -> None:
        self.answer, self.version, self.owner = answer, version, owner
        self.asked = list[str]()

    async def list_metadata(self, path: str, **query: str) -> Any:
        self._note(f"list {path} {query['labelSelector']}", path)
        items = [] if self.answer is None else [{"metadata": {"name": "w", "ownerReferences": [{"uid": self.owner}]}}]
        return {"items": items}

    async def get(self, path: str) -> Any:
        self._note(f"get {path}", path)
        return self.answer

    def _note(self, request: str, path: str) -> None:
        self.asked.append(request)
        if isinstance(self.answer, Exception):
            raise self.answer
        if f"/{self.version}/" not in path:
            raise ABSENT


class Bench:
    """A reader, the index that it fills, and a clock that is set."""

    def __init__(self, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        self.server, self.index, self.queued = server, Index(), list[str]()
        self.reader = WorkloadReader(server, self.index, lambda ref: self.queued.append(ref.name))  # type: ignore[arg-type]
        self._monkeypatch = monkeypatch
        monkeypatch.setattr(workload_reader, "READS_PER_SECOND", float("inf"))
        metadata = {"name": "demo", "namespace": NAMESPACE, "uid": "job-uid", "resourceVersion": "1"}
        self.index.put_job({"kind": "BertPretrainJob", "metadata": metadata, "spec": {}, "status": {}})

    def hold(self, suspended: bool, *, version: int = 10, queue: str = "team", **rest: Any) -> None:
        """Have the child suspended by its queue, or let go."""
        document = child_document("Job", uid=CHILD_UID, version=version, **rest)
        document["spec"] = {"suspend": suspended}
        if queue:
            document["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = queue
        self.index.put_child(document)

    def look(self, at_s: float) -> int:
        """Return how many requests a round at that time takes."""
        before = len(self.server.asked)

        async def round_() -> None:
            self._monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: at_s, raising=False)
            await self.reader.read_due()

        asyncio.run(round_())
        return len(self.server.asked) - before


def test_a_held_child_is_looked_up_by_label_and_its_job_told(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(Server(WORKLOADS["waiting"]), monkeypatch)
    bench.hold(True)
    bench.look(100)
    where = f"/apis/kueue.x-k8s.io/v1beta2/namespaces/{NAMESPACE}/workloads"
    assert bench.server.asked == [f"list {where} kueue.x-k8s.io/job-uid={CHILD_UID}", f"get {where}/w"]
    found = bench.index.workload(CHILD_UID)
    assert found is not None
    assert found.queue == "team"
    assert bench.queued == ["demo"]
    assert (bench.look(101), bench.look(103)) == (0, 1), "every two seconds at first, by name"
    assert bench.queued == ["demo"], "the same words are no news"


def test_who_waits_long_is_asked_for_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(Server(WORKLOADS["waiting"]), monkeypatch)
    bench.hold(True)
    assert [bench.look(at_s) for at_s in (0, 1000, 1050, 1061)] == [2, 1, 0, 1]


def test_an_admitted_child_is_read_once_more_and_then_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(Server(WORKLOADS["waiting"]), monkeypatch)
    bench.hold(True)
    bench.look(100)
    bench.server.answer = WORKLOADS["running"]
    bench.hold(False, version=11)
    assert [bench.look(at_s) for at_s in (100.5, 200, 5000)] == [1, 0, 0]
    found = bench.index.workload(CHILD_UID)
    assert found is not None
    assert found.cluster_queue == "cq"
    bench.hold(True, version=12)
    assert bench.look(5001) == 1, "suspended again: at once"


def test_without_queued_children_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(Server(WORKLOADS["running"]), monkeypatch)
    bench.hold(False, queue="")
    assert bench.look(100) == 0
    bench.hold(True, version=11)
    bench.look(200)
    bench.hold(True, version=12, true={"Failed": "BackoffLimitExceeded"}, completionTime="2026-11-25T20:30:24Z")
    assert bench.look(300) == 0
    assert bench.index.workload(CHILD_UID) is None, "nothing is kept of children that ended"


@pytest.mark.parametrize(("refusal", "requests"), [(ABSENT, 2), (FORBIDDEN, 1)])
def test_without_kueue_or_the_right_nobody_asks_again_for_a_while(
    refusal: ApiError, requests: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(Server(refusal), monkeypatch)
    bench.hold(True)
    assert [bench.look(at_s) for at_s in (100, 101, 129)] == [requests, 0, 0]
    assert bench.queued == []
    bench.server.answer = WORKLOADS["waiting"]
    assert bench.look(131) == 2, "it may be installed, or a right be given, at any time"


def test_an_older_kueue_is_asked_in_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(Server(WORKLOADS["waiting"], version="v1beta1"), monkeypatch)
    bench.hold(True)
    assert (bench.look(100), bench.look(103)) == (3, 1)
    assert bench.index.workload(CHILD_UID) is not None


def test_a_workload_that_only_bears_the_label_is_not_the_child_s(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(Server(WORKLOADS["waiting"], owner="another-uid"), monkeypatch)
    bench.hold(True)
    bench.look(100)
    assert bench.index.workload(CHILD_UID) is None


def test_an_unreadable_answer_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(Server(ValueError("no JSON")), monkeypatch)
    bench.hold(True)
    assert [bench.look(at_s) for at_s in (100, 101, 103)] == [1, 0, 1]
