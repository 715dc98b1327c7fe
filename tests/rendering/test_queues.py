"""What children and their pods carry for Kueue, whose names for it are those of its release 0.19.2."""

from __future__ import annotations

from typing import Any

import pytest

from bert_operator.api.parsing.validation import parse_job
from bert_operator.names import PREPARE_RUN, TRAINING_RUN
from bert_operator.render.children import render_child
from bert_operator.render.frozen import freeze
from bert_operator.state.runs import ChildSpec
from sample_job import Document, sample_document

CLAIM = {"persistentVolumeClaim": {"claimName": "shared"}}
REQUIRED = "kueue.x-k8s.io/podset-required-topology"
PREFERRED = "kueue.x-k8s.io/podset-preferred-topology"
UNCONSTRAINED = "kueue.x-k8s.io/podset-unconstrained-topology"
FORCE = "kueue.x-k8s.io/safe-to-forcefully-delete"


def child(run: str = TRAINING_RUN, attempt: int = 1, **spec: Any) -> Document:
    fields = {"output": {"path": "runs", "volume": CLAIM}, "queueName": "team", **spec}
    document = sample_document(lambda own: own.update(fields))
    document["metadata"] |= {"namespace": "default", "uid": "u"}
    frozen = freeze(parse_job(document), default_image="trainer:1")
    return render_child(frozen, ChildSpec(run=run, attempt=attempt, stages=("phase1",), ranks=1))


def annotations(document: Document) -> dict[str, dict[str, str]]:
    """Return what Kueue reads of each pod template, by role."""
    replicas = document["spec"].get("mpiReplicaSpecs") or {"Single": document["spec"]}
    given = {role: of["template"]["metadata"]["annotations"] for role, of in replicas.items()}
    return {role: {key: text for key, text in of.items() if "kueue" in key} for role, of in given.items()}


@pytest.mark.parametrize("workers", [1, 2])
def test_every_attempt_has_the_queue_and_its_priority(workers: int) -> None:
    for run, attempt in ((PREPARE_RUN, 1), (TRAINING_RUN, 2), (TRAINING_RUN, 3)):
        labels = child(run, attempt, workers=workers, workloadPriorityClass="overnight")["metadata"]["labels"]
        assert labels["kueue.x-k8s.io/queue-name"] == "team"
        assert labels["kueue.x-k8s.io/priority-class"] == "overnight"
    assert "kueue.x-k8s.io/priority-class" not in child(workers=workers)["metadata"]["labels"]


@pytest.mark.parametrize(
    ("topology", "expected"),
    [
        ({"required": "example.com/rack"}, {REQUIRED: "example.com/rack"}),
        ({"preferred": "example.com/rack"}, {PREFERRED: "example.com/rack"}),
        ({"unconstrained": True}, {UNCONSTRAINED: "true"}),
        (None, {}),
    ],
)
def test_workers_ask_for_a_topology_and_the_launcher_does_not(
    topology: Document | None, expected: dict[str, str]
) -> None:
    scheduling = {"topology": topology}
    assert annotations(child(scheduling=scheduling)) == {"Single": expected}
    assert annotations(child(PREPARE_RUN, scheduling=scheduling)) == {"Single": expected}
    assert annotations(child(workers=2, scheduling=scheduling)) == {"Launcher": {}, "Worker": expected}


def test_pods_that_look_who_owns_their_output_may_be_deleted_by_force() -> None:
    scheduling = {"safeToForcefullyDelete": True}
    said = {FORCE: "true"}
    assert annotations(child(scheduling=scheduling)) == {"Single": said}
    assert annotations(child(workers=2, scheduling=scheduling)) == {"Launcher": said, "Worker": said}
    assert annotations(child(scheduling={"safeToForcefullyDelete": False})) == {"Single": {}}
    workspace = {"volume": CLAIM, "command": ["own"]}
    assert annotations(child(scheduling=scheduling, workspace=workspace)) == {"Single": {}}, "it may write anywhere"
    assert annotations(child(PREPARE_RUN, scheduling=scheduling, workspace=workspace)) == {"Single": said}
