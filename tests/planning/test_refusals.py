"""Why the API server refuses a child, reported in the job's status with the next step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from bert_operator.cluster.settings import Settings
from bert_operator.names import JobRef
from bert_operator.render import names
from cluster_jobs import job_document
from fake_cluster import NAMESPACE, FakeCluster
from walking_operator import Operator

NOBODY: Any = SimpleNamespace(created=lambda _: None, described=lambda *_: None, deleted=lambda _: None)
TERMINATING = (
    'configmaps "bert-frozen" is forbidden: unable to create new content in namespace team-a because it is being '
    "terminated"
)
TOO_LARGE = "Request entity too large: limit is 3145728"
TOO_LARGE_FOR_ETCD = "etcdserver: request is too large"


@pytest.mark.parametrize("kind", ["ConfigMap", "Job"])
@pytest.mark.parametrize(
    ("refusal", "reason", "remedy"),
    [
        ((403, "Forbidden", TERMINATING), "NamespaceTerminating", "apply the job in another namespace"),
        ((413, "RequestEntityTooLarge", TOO_LARGE), "Rejected", "make the spec smaller"),
        ((500, "", TOO_LARGE_FOR_ETCD), "Rejected", "make the spec smaller"),
        ((422, "Invalid", "spec.template: Invalid value"), "Rejected", "correct the field that is named"),
    ],
)
def test_a_refusal_reaches_the_status_with_its_remedy(
    kind: str, refusal: tuple[int, str, str], reason: str, remedy: str
) -> None:
    cluster = FakeCluster()
    cluster.add({"apiVersion": "bert-operator.dev/v1alpha1", "kind": "BertPretrainJob", **job_document("bert")})
    cluster.refusals[kind] = refusal
    operator = Operator(cluster, NOBODY)
    for _ in range(4):
        operator.look(JobRef(NAMESPACE, "bert"))
        operator.catch_up()
    (job,) = cluster.all("BertPretrainJob")
    blocked = {condition["type"]: condition for condition in job["status"]["conditions"]}["Blocked"]
    assert (blocked["status"], blocked["reason"]) == ("True", reason)
    assert refusal[2] in blocked["message"]
    assert f"Next: {remedy}" in blocked["message"]


ORPHANS = (("ConfigMap", "bert-frozen"), ("Job", "bert-a1-training"), ("NetworkPolicy", "bert-pods"))
API_OF = {"ConfigMap": "v1", "Job": "batch/v1", "NetworkPolicy": "networking.k8s.io/v1"}


def blocked_by(*left: tuple[str, str], spec: Any = None, **metadata: Any) -> tuple[FakeCluster, Operator, list[Any]]:
    """Return a cluster in which a job is applied over objects that are left of a namesake, and has been looked at."""
    cluster = FakeCluster()
    labels = {"bert-operator.dev/job": "bert", "bert-operator.dev/run": "training", "bert-operator.dev/attempt": "1"}
    objects = [
        cluster.add(
            {
                "apiVersion": API_OF[kind],
                "kind": kind,
                "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels, **metadata},
                "spec": {},
            }
        )
        for kind, name in left
    ]
    document = job_document("bert", **(spec or {}))
    cluster.add({"apiVersion": "bert-operator.dev/v1alpha1", "kind": "BertPretrainJob", **document})
    operator = Operator(cluster, NOBODY)
    operator.restart(Settings(job_network_policy=True, allow_host_network=True))
    for _ in range(3):
        operator.look(JobRef(NAMESPACE, "bert"))
        operator.catch_up()
    return cluster, operator, objects


def blocked_message(cluster: FakeCluster) -> str:
    (job,) = cluster.all("BertPretrainJob")
    blocked = {condition["type"]: condition for condition in job["status"]["conditions"]}["Blocked"]
    assert (blocked["status"], blocked["reason"]) == ("True", "NameTaken")
    return str(blocked["message"])


def test_all_that_is_in_the_way_is_told_at_once_with_one_command() -> None:
    cluster, operator, left = blocked_by(*ORPHANS)
    assert blocked_message(cluster) == (
        "Job bert-a1-training, ConfigMap bert-frozen and NetworkPolicy bert-pods exist and are not this job's. Next: "
        f"delete them (kubectl -n {NAMESPACE} delete jobs.batch/bert-a1-training configmaps/bert-frozen "
        "networkpolicies/bert-pods), or rename the job"
    )
    for item in left:
        cluster.remove(item)
    operator.catch_up()
    operator.look(JobRef(NAMESPACE, "bert"))  # at once: the deletion of a Job with the job's labels was seen
    assert [child["metadata"]["name"] for child in cluster.all("Job")] == ["bert-a1-training"]


def test_a_policy_that_a_job_does_not_need_is_nobody_s_to_delete() -> None:
    left = (("ConfigMap", "bert-frozen"), ("NetworkPolicy", "bert-pods"))
    cluster, _, _ = blocked_by(*left, spec={"network": {"hostNetwork": True}})
    assert blocked_message(cluster) == (
        f"ConfigMap bert-frozen exists and is not this job's. Next: delete it (kubectl -n {NAMESPACE} delete "
        "configmaps/bert-frozen), or rename the job"
    )


def test_a_stranger_s_object_of_a_child_s_name_is_left_alone_and_the_child_called_otherwise() -> None:
    cluster, operator, _ = blocked_by()
    (first,) = cluster.all("Job")
    stranger = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "bert-a1-training"}, "spec": {}}
    for item in (first, *cluster.all("BertPretrainJob"), *cluster.all("ConfigMap"), *cluster.all("NetworkPolicy")):
        cluster.remove(item)
    cluster.add(stranger)
    cluster.add({"apiVersion": "bert-operator.dev/v1alpha1", "kind": "BertPretrainJob", **job_document("bert")})
    operator.catch_up()
    for _ in range(3):
        operator.look(JobRef(NAMESPACE, "bert"))
        operator.catch_up()
    (child,) = (item for item in cluster.all("Job") if item["metadata"]["name"] != "bert-a1-training")
    (job,) = cluster.all("BertPretrainJob")
    other = names.child_name("bert", "training", 1, is_mpi=False, uid=job["metadata"]["uid"])
    assert child["metadata"]["name"] == other
    # The name has become free, the labels are gone, and the operator has begun anew: it is found all the same.
    cluster.update(child, metadata={**child["metadata"], "labels": {}})
    cluster.remove(next(item for item in cluster.all("Job") if item["metadata"]["name"] == "bert-a1-training"))
    operator.restart()
    for _ in range(3):
        operator.look(JobRef(NAMESPACE, "bert"))
        operator.catch_up()
    assert [item["metadata"]["name"] for item in cluster.all("Job")] == [other]


def test_a_name_that_no_watch_tells_of_is_tried_every_few_seconds() -> None:
    cluster, operator, (left,) = blocked_by(("ConfigMap", "bert-frozen"))
    waits = []
    for _ in range(8):
        look = operator.look(JobRef(NAMESPACE, "bert"))
        waits.append(look.again_in_s or 0.0)
        cluster.now_s += waits[-1]
    assert 0 < max(waits) <= 5
    cluster.remove(left)
    operator.look(JobRef(NAMESPACE, "bert"))
    assert len(cluster.all("Job")) == 1


def test_a_finalizer_that_holds_an_object_in_the_way_is_named_with_what_to_do() -> None:
    deleted = {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["team.example.com/keep"]}
    cluster, _, _ = blocked_by(("ConfigMap", "bert-frozen"), **deleted)
    message = blocked_message(cluster)
    assert "bert-frozen of an earlier job or attempt is still being deleted, held by the finalizer " in message
    assert f"kubectl -n {NAMESPACE} patch configmaps/bert-frozen --type merge" in message
