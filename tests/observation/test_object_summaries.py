"""What is remembered of objects, which may come from other releases and be half empty."""

from __future__ import annotations

from typing import Any

import pytest

from bert_operator.cluster.object_summaries import read_child, read_job, read_pod, read_version
from bert_operator.cluster.warning_summaries import read_warning
from bert_operator.render import names
from child_documents import CREATED_S, at, child_document, ended, event_document, pod_document


def test_a_job_keeps_its_spec_and_status_and_nothing_that_only_others_read() -> None:
    body = {
        "apiVersion": "bert-operator.dev/v1alpha1",
        "kind": "BertPretrainJob",
        "metadata": {
            "name": "demo",
            "namespace": "team-a",
            "uid": "u",
            "resourceVersion": "17",
            "generation": 3,
            "managedFields": [{"manager": "kubectl"}],
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}" * 1000},
        },
        "spec": {"workers": 2},
        "status": {"phase": "Running"},
    }
    summary = read_job(body)
    assert (summary.uid, summary.version, summary.generation, summary.is_deleting, summary.phase) == (
        "u",
        17,
        3,
        False,
        "Running",
    )
    document = summary.document()
    assert document["spec"] == {"workers": 2}
    assert document["metadata"] == {"name": "demo", "namespace": "team-a", "uid": "u", "generation": 3}
    assert len(summary.content) < 250


def test_a_job_without_a_status_is_pending() -> None:
    assert read_job({"metadata": {"uid": "u"}, "spec": {}, "status": None}).phase == "Pending"


def test_the_names_of_stages_are_known_also_of_a_job_that_is_too_large_to_be_kept() -> None:
    stages = [{"name": "prepare"}, {"name": "phase1"}, {"name": 7}, "phase2", {}]
    assert read_job({"spec": {"stages": stages}}, max_bytes=10).stages == ("prepare", "phase1")
    assert read_job({"spec": {"stages": {}}}).stages == ()


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "CronJob"},
        {"metadata": {"labels": None}},
        {"metadata": {"labels": {"bert-operator.dev/job": "demo", "bert-operator.dev/attempt": "first"}}},
    ],
)
def test_what_is_no_child_of_ours_is_passed_over(change: dict[str, Any]) -> None:
    assert read_child({**child_document(), **change}) is None


def test_a_child_is_read() -> None:
    document = child_document("Job", true={"Failed": "BackoffLimitExceeded"}, startTime=at(3))
    read = read_child(document)
    assert read is not None
    job, summary = read
    assert (job, summary.name, summary.run, summary.attempt) == ("demo", "demo-a1-training", "training", 1)
    assert (summary.owner_uid, summary.version) == ("job-uid", 10)
    assert (summary.has_status, summary.conditions) == (True, (("Failed", "BackoffLimitExceeded"),))
    # A Job that fails has no completionTime.
    assert (summary.created_at_s, summary.completed_at_s) == (CREATED_S, CREATED_S + 100)


def test_an_mpi_job_that_is_evicted_has_no_end_yet() -> None:
    read = read_child(child_document(true={"Failed": "MPIJobEvicted"}))
    assert read is not None
    assert read[1].completed_at_s is None


def test_nobody_s_child_has_no_owner() -> None:
    document = child_document()
    document["metadata"]["ownerReferences"] = [{"kind": "Workload", "uid": "w"}]
    read = read_child(document)
    assert read is not None
    assert read[1].owner_uid == ""


def test_a_pod_is_read() -> None:
    document = pod_document(number=1, phase="Failed", state=ended(137, reason="OOMKilled", message="m" * 9000))
    read = read_pod(document)
    assert read is not None
    job, summary = read
    assert (job, summary.child, summary.role, summary.node) == ("demo", "demo-a1", "worker", "node-1")
    assert (summary.exit_code, summary.ended_by, summary.finished_at_s) == (137, "OOMKilled", CREATED_S + 90)
    assert len(summary.message) == 4096
    assert (summary.owner_uid, summary.created_at_s) == ("demo-a1-uid", CREATED_S)


def test_a_pod_that_says_nothing_yet_is_read_too() -> None:
    document = pod_document("single", phase="")
    document["status"] = None
    read = read_pod(document)
    assert read is not None
    summary = read[1]
    assert (summary.child, summary.phase, summary.exit_code, summary.waiting) == (
        "demo-a1-training",
        "",
        None,
        None,
    )
    assert (summary.unschedulable, summary.disruption, summary.finished_at_s) == ("", "", None)


def test_somebody_else_s_pod_is_passed_over() -> None:
    assert read_pod({"metadata": {"name": "nginx"}, "status": {"phase": "Running"}}) is None


@pytest.mark.parametrize(
    ("status", "disruption"),
    [
        ({"reason": "Evicted"}, "Evicted"),
        (
            {"conditions": ({"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"},)},
            "Preemp",
        ),
        ({"conditions": ({"type": "DisruptionTarget", "status": "True"},)}, "Disrupted"),
        ({"conditions": ({"type": "DisruptionTarget", "status": "False", "reason": "x"},)}, ""),
        ({}, ""),
    ],
)
def test_a_disruption_is_read_from_the_pod(status: dict[str, Any], disruption: str) -> None:
    read = read_pod(pod_document(**status))
    assert read is not None
    assert read[1].disruption.startswith(disruption) and bool(read[1].disruption) == bool(disruption)  # noqa: PT018


def test_a_time_that_is_none_is_no_time() -> None:
    document = child_document()
    document["metadata"]["creationTimestamp"] = "yesterday"
    read = read_child(document)
    assert read is not None
    assert read[1].created_at_s == 0.0


def test_only_warnings_about_jobs_and_pods_are_read() -> None:
    event = event_document("Pod", "demo-a1-worker-0", "FailedMount", "m" * 900)
    read = read_warning(event)
    assert read is not None
    assert (read[0], read[1], read[2].reason, len(read[2].message)) == ("Pod", "demo-a1-worker-0", "FailedMount", 500)
    assert read[2].seen_at_s == CREATED_S + 5
    assert read_warning({**event, "type": "Normal"}) is None
    assert read_warning({**event, "involvedObject": {"kind": "Node", "name": "n"}}) is None
    # events.k8s.io has no lastTimestamp, but microseconds.
    newer = {**event, "lastTimestamp": None, "eventTime": "2023-11-14T22:13:21.500000Z"}
    read = read_warning(newer)
    assert read is not None
    assert read[2].seen_at_s == CREATED_S + 1.5


def test_a_version_is_a_number_or_older_than_all_others() -> None:
    assert read_version({"metadata": {"resourceVersion": "12"}}) == 12
    assert read_version({"metadata": {"resourceVersion": "a7"}}) == 0
    assert read_version({}) == 0


def test_a_pod_belongs_to_the_child_that_made_it_whatever_that_is_called() -> None:
    # As a release before has called it.
    for role, owner in ((names.LAUNCHER, "bert-training-a1-launcher"), (names.WORKER, "bert-training-a1")):
        body = pod_document(role, job="bert-training")
        body["metadata"]["ownerReferences"] = [{"uid": "u", "name": owner, "controller": True}]
        found = read_pod(body)
        assert found is not None
        assert found[1].child == "bert-training-a1"


@pytest.mark.parametrize("labels", [{"attempt": "9" * 63}, {"attempt": "٣"}, {"run": "r0"}, {"run": ""}])
def test_labels_that_no_operator_would_write_make_no_child(labels: dict[str, str]) -> None:
    document = child_document("Job", "demo", owner="uid")
    document["metadata"]["labels"] |= {f"bert-operator.dev/{name}": value for name, value in labels.items()}
    assert read_child(document) is None
