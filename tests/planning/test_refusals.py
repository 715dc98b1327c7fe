"""Why the API server refuses a child, reported in the job's status with the next step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from bert_operator.names import JobRef
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
