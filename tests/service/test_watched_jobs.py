"""What the watch on jobs delivers is in the index and in the queue, and nothing large of it is left with kopf."""

from __future__ import annotations

import asyncio
from typing import Any

from bert_operator.api.crd import PLURAL
from bert_operator.cluster.index import Index
from bert_operator.cluster.watches import build_registry
from bert_operator.names import API_GROUP, JobRef
from sample_job import sample_document

DEMO = JobRef("team", "demo")


def delivered(version: int, **status: Any) -> dict[str, Any]:
    document = sample_document()
    metadata = {"name": DEMO.name, "namespace": DEMO.namespace, "uid": "uid-1", "resourceVersion": str(version)}
    fields = {"f:spec": {f"f:{number}": {} for number in range(40)}}
    metadata["managedFields"] = [{"manager": "kubectl", "operation": "Update", "fieldsV1": fields}]
    return {**document, "metadata": metadata, "status": status}


class Watch:
    """The operator's handler, as kopf calls it."""

    def __init__(self) -> None:
        self.index = Index()
        self.queued: list[JobRef] = []
        self.seen: list[JobRef] = []
        registry = build_registry(self.index, self.queued.append, self.seen.append)
        (handler,) = registry._watching.get_all_handlers()
        assert (handler.selector.group, handler.selector.any_name) == (API_GROUP, PLURAL)
        self._call = handler.fn

    def deliver(self, kind: str | None, body: dict[str, Any]) -> None:
        asyncio.run(self._call(event={"type": kind, "object": body}))


def test_a_change_is_kept_whole_and_leaves_kopf_nothing_but_its_metadata() -> None:
    watch, body = Watch(), delivered(5, phase="Running")
    spec = body["spec"]
    watch.deliver("ADDED", body)
    assert (watch.queued, watch.seen) == ([DEMO], [DEMO])
    summary = watch.index.job(DEMO)
    assert summary is not None
    # At once, as it came, and from its bytes.
    for found in (watch.index.take_document(DEMO, summary), summary.document()):
        assert (found["spec"], found["status"]) == (spec, {"phase": "Running"})
    assert body.keys() == {"apiVersion", "kind", "metadata"}
    assert body["metadata"].keys() == {"name", "namespace", "uid", "resourceVersion"}


def test_what_is_gone_is_dropped_and_what_is_known_wakes_nobody() -> None:
    watch = Watch()
    for kind, version in ((None, 5), ("MODIFIED", 5), ("DELETED", 6)):
        watch.deliver(kind, delivered(version, phase="Pending"))
    assert watch.queued == [DEMO, DEMO], "it came, and it went"
    assert watch.index.job(DEMO) is None
