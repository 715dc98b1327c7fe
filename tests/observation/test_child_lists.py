"""Children by namespace and those of queues are what a search through all children finds, whatever has happened."""

from __future__ import annotations

import random
from typing import Any

import pytest

from bert_operator.cluster.index import Index
from bert_operator.cluster.object_summaries import ChildSummary
from bert_operator.names import JobRef
from bert_operator.render import names
from child_documents import at, child_document

NAMESPACES = ("red", "blue")
JOBS = ("a", "b", "c")


def search(index: Index) -> list[tuple[JobRef, ChildSummary]]:
    return [(ref, child) for ref in index.all_refs() for child in index.children(ref)]


def is_queued(child: ChildSummary) -> bool:
    return (child.is_suspended or bool(child.queue)) and not child.is_deleting and child.completed_at_s is None


def any_child(draw: random.Random, version: int) -> dict[str, Any]:
    """Return a child of few names and uids, so that namesakes and moves between jobs are frequent."""
    number = draw.randrange(24)
    # A uid has one kind and name for ever; what the labels say of its job may be changed.
    document = child_document(
        ("Job", "MPIJob")[number % 2],
        JOBS[number % 3],
        uid=f"uid-{number}",
        version=version,
        **({"completionTime": at(200)} if draw.random() < 0.2 else {}),
    )
    metadata, spec = document["metadata"], document["spec"]
    metadata["namespace"] = NAMESPACES[number % 4 // 2]
    metadata["labels"][names.JOB_LABEL] = draw.choice(JOBS)
    if draw.random() < 0.3:
        metadata["labels"]["kueue.x-k8s.io/queue-name"] = "team"
    if draw.random() < 0.2:
        metadata["deletionTimestamp"] = at(150)
    if draw.random() < 0.3:
        (spec if document["kind"] == "Job" else spec.setdefault("runPolicy", {}))["suspend"] = True
    return document


@pytest.mark.parametrize("seed", range(20))
def test_lists_are_what_a_search_finds(seed: int) -> None:
    draw, index = random.Random(seed), Index()
    queued_ever = 0
    for version in range(1, 300):
        document = any_child(draw, version)
        if draw.random() < 0.1:
            index.drop(document)
        else:
            index.put_child(document)
        found = search(index)
        for namespace in (*NAMESPACES, "nobody's"):
            expected = [entry for entry in found if entry[0].namespace == namespace]
            assert sorted(index.children_in(namespace)) == sorted(expected)
        expected = [entry for entry in found if is_queued(entry[1])]
        assert sorted(index.queued_children()) == sorted(expected)
        queued_ever += len(expected)
    assert queued_ever, "the walk has no queue"
