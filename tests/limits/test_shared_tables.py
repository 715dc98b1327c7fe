"""What one namespace floods the operator with pushes out nothing of another, and memory stays bounded."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

import pytest

from bert_operator.cluster.client import ApiClient
from bert_operator.cluster.events import JobEvent
from bert_operator.cluster.fair_table import FairTable
from bert_operator.cluster.index import MAX_WARNINGS, Index
from bert_operator.cluster.metrics import Metrics
from bert_operator.cluster.object_summaries import read_child
from bert_operator.cluster.recorder import MAX_WAITING, EventRecorder
from bert_operator.cluster.warning_summaries import read_warning
from bert_operator.names import JobRef
from patience import PATIENCE_S


def warning(namespace: str, name: str, *, reason: str = "FailedMount", uid: str = "u") -> dict[str, Any]:
    return {
        "metadata": {"namespace": namespace, "name": f"{name}.1"},
        "type": "Warning",
        "reason": reason,
        "message": "m",
        "involvedObject": {"kind": "Pod", "namespace": namespace, "name": name, "uid": uid},
    }


def pod(namespace: str, uid: str) -> dict[str, Any]:
    labels = {"bert-operator.dev/job": "demo", "bert-operator.dev/run": "training", "bert-operator.dev/attempt": "1"}
    return {"kind": "Pod", "metadata": {"namespace": namespace, "name": "demo-a1-x", "uid": uid, "labels": labels}}


def test_the_namespace_with_most_loses_its_own_oldest() -> None:
    table: FairTable[int] = FairTable(4)
    for number in range(3):
        table.put("loud", f"k{number}", number)
    for key in ("k0", "k1"):
        table.put("quiet", key, 7)
    assert [table.get("loud", f"k{number}") for number in range(3)] == [None, 1, 2]
    assert [table.get("quiet", key) for key in ("k0", "k1")] == [7, 7]
    table.put("loud", "k9", 9)
    assert (table.get("loud", "k1"), table.get("quiet", "k0"), len(table)) == (None, 7, 4)
    table.put("loud", "k2", 3)
    assert (table.get("loud", "k9"), len(table)) == (9, 4), "what is put again takes no place of its own"
    assert (table.pop("loud", "k9"), table.pop("loud", "k9"), len(table)) == (9, None, 3)


def test_warnings_of_a_flooding_namespace_push_out_their_own_alone() -> None:
    index = Index()
    index.put_warning(warning("quiet", "demo-a1-x"))
    for number in range(2 * MAX_WARNINGS):
        index.put_warning(warning("loud", f"pod-{number}"))
    assert index.warnings(JobRef("quiet", "demo"), ["demo-a1-x"])
    assert index.count()["warnings"] == MAX_WARNINGS


def test_deletions_in_a_flooding_namespace_bring_back_nothing_in_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bert_operator.cluster.index._MAX_TOMBSTONES", 10)
    index = Index()
    index.drop(pod("quiet", "gone"))
    for number in range(100):
        index.drop(pod("loud", f"u{number}"))
    assert index.put_pod(pod("quiet", "gone")) is None
    assert index.count()["pods"] == 0
    assert index.put_pod(pod("loud", "u0")) is not None, "its own oldest is forgotten"


def test_nothing_that_others_may_write_at_any_length_is_kept_at_that_length() -> None:
    long = "x" * 100_000
    assert read_warning(warning("a", long)) is None
    read = read_warning(warning("a", "demo", reason=long, uid=long))
    assert read is not None
    assert max(map(len, (read[2].reason, read[2].uid))) <= 253
    labels = pod("a", "u")["metadata"]["labels"]
    body = {
        "kind": "MPIJob",
        "metadata": {"name": "demo-a1", "labels": labels, "finalizers": [f"{long}{number}" for number in range(1000)]},
        "status": {"conditions": [{"type": f"{long}{n}", "status": "True", "reason": long} for n in range(1000)]},
    }
    child = read_child(body)
    assert child is not None
    assert len(repr(child[1])) < 20_000


class Recording(ApiClient):
    """An API server that takes every Event."""

    def __init__(self, most: int) -> None:
        self.written: list[str] = []
        self._most = most
        self.is_done = asyncio.Event()

    def now_s(self) -> float:
        return 0.0

    async def create(self, path: str, document: Mapping[str, Any]) -> dict[str, Any]:
        self.written.append(document["metadata"]["namespace"])
        if len(self.written) >= self._most:
            self.is_done.set()
        return {}


def events_after_a_flood(flood: int, wanted: int) -> tuple[list[str], str]:
    metrics, api = Metrics(), Recording(wanted)

    async def write() -> None:
        recorder = EventRecorder(api, metrics)
        recorder.emit(JobRef("quiet", "demo"), "uid", JobEvent("Normal", "Running", "first"))
        for number in range(flood):
            recorder.emit(JobRef("loud", "demo"), f"uid-{number}", JobEvent("Normal", "Running", "one of many jobs"))
        recorder.emit(JobRef("quiet", "demo"), "uid", JobEvent("Normal", "Running", "last"))
        task = asyncio.create_task(recorder.run())
        await asyncio.wait_for(api.is_done.wait(), PATIENCE_S)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(write())
    return api.written, metrics.render().decode()


def test_namespaces_take_turns_in_having_their_events_written() -> None:
    written, _ = events_after_a_flood(1000, 6)
    assert written[:4] == ["quiet", "loud", "quiet", "loud"]


def test_events_of_a_flooding_namespace_are_dropped_and_nobody_else_s() -> None:
    written, figures = events_after_a_flood(MAX_WAITING + 500, 10)
    assert written.count("quiet") == 2
    assert "bert_operator_events_dropped_total 502.0" in figures
