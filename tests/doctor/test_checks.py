"""Single judgements of the checks, on objects that are written out here."""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable

import pytest

from bert_operator.doctor.checks.admission import selects
from bert_operator.doctor.command import run
from bert_operator.doctor.rights import Right, find_missing
from bert_operator.doctor.snapshot import Listing, Snapshot
from doctor_cluster import CRDS, KUEUE, OPERATOR, TEAM, MemoryCluster, document, workload
from doctor_faults import CLAIMS, DEPLOYMENTS, DNS_PORT, NODES, SLICES, change_image, change_settings, make_claim

HOOKS = "admissionregistration.k8s.io/v1/validatingwebhookconfigurations"


def said(cluster: MemoryCluster) -> dict[str, list[str]]:
    """Return what was found, by check."""
    report = run(argparse.Namespace(pre=False), cluster)
    return {
        outcome.check: [finding.problem for finding in outcome.findings]
        for outcome in report.outcomes
        if outcome.findings
    }


def test_a_job_of_one_worker_may_have_a_claim_of_one_node() -> None:
    cluster = MemoryCluster()
    make_claim(cluster, phase="Bound", accessModes=["ReadWriteOnce"])
    for name in ("running", "waiting"):
        cluster.change("bert-operator.dev/v1alpha1/bertpretrainjobs", name, TEAM, {"spec": {"workers": 1}})
    assert said(cluster) == {}


def test_a_claim_that_waits_for_its_first_pod_is_well() -> None:
    cluster = MemoryCluster()
    make_claim(cluster, phase="Pending", storageClassName="shared", volumeName="")
    assert said(cluster) == {"claims": ["claim bert/bert is Pending: no volume has been bound to it"]}
    cluster.change("storage.k8s.io/v1/storageclasses", "shared", "", {"volumeBindingMode": "WaitForFirstConsumer"})
    assert said(cluster) == {}


def test_a_claim_without_a_class_needs_a_default_one() -> None:
    cluster = MemoryCluster()
    make_claim(cluster, phase="Pending", volumeName="")
    cluster.change(CLAIMS, "bert", TEAM, {"spec": {"storageClassName": None}})
    (problem,) = said(cluster)["storage-classes"]
    assert problem == "claim bert/bert names no storage class, and the cluster has no default one; it has: shared"
    annotations = {"storageclass.kubernetes.io/is-default-class": "true"}
    cluster.change("storage.k8s.io/v1/storageclasses", "shared", "", {"metadata": {"annotations": annotations}})
    assert "storage-classes" not in said(cluster)


def test_a_claim_that_is_not_there_is_named_once_for_all_its_jobs() -> None:
    cluster = MemoryCluster()
    cluster.remove(CLAIMS, "bert", TEAM)
    (problem,) = said(cluster)["claims"]
    assert problem == (
        "claim bert/bert does not exist, and job bert/running, job bert/waiting mounts it; the namespace has: none"
    )


def test_a_job_that_has_ended_asks_for_nothing() -> None:
    cluster = MemoryCluster()
    cluster.remove(CLAIMS, "bert", TEAM)
    for name in ("running", "waiting"):
        done = {"status": {"phase": "Succeeded"}}
        cluster.change("bert-operator.dev/v1alpha1/bertpretrainjobs", name, TEAM, done)
    assert said(cluster) == {}


def test_a_job_of_another_controller_asks_for_nothing_here() -> None:
    cluster = MemoryCluster()
    spec = {"managedBy": "kueue.x-k8s.io/multikueue", "profile": "of-there", "queueName": "of-there", "workers": 999}
    cluster.change("bert-operator.dev/v1alpha1/bertpretrainjobs", "waiting", TEAM, {"spec": spec})
    assert said(cluster) == {}
    cluster.change("bert-operator.dev/v1alpha1/bertpretrainjobs", "waiting", TEAM, {"spec": {"managedBy": None}})
    assert {"queues", "settings"} <= said(cluster).keys()


def test_a_quota_counts_for_jobs_that_wait_and_says_where_none_will_ever_fit() -> None:
    cluster = MemoryCluster()
    quota = {"hard": {"pods": "2"}, "used": {"pods": "0"}}
    cluster.change("v1/resourcequotas", "team", TEAM, {"status": quota})
    report = run(argparse.Namespace(pre=False), cluster)
    (finding,) = [finding for outcome in report.outcomes for finding in outcome.findings]
    assert finding.problem == "ResourceQuota bert/team, pods: 2 of 2 are left, and job bert/waiting needs 3"
    assert finding.why == "the job is Blocked with QuotaExceeded for good"


@pytest.mark.parametrize(
    ("rule", "is_found"),
    [
        ("{ports: [{port: 9053, protocol: UDP}]}", False),
        ("{ports: [{port: 9000, endPort: 9100}]}", False),
        ("{to: [{podSelector: {}}]}", False),
        ("{ports: [{port: 9054}]}", True),
    ],
)
def test_a_port_of_names_that_the_settings_open_is_well(rule: str, *, is_found: bool) -> None:
    cluster = MemoryCluster()
    cluster.change(SLICES, "kube-dns-1", "kube-system", {"ports": [{**DNS_PORT, "port": 9053}]})
    change_settings(cluster, "jobEgress: []", f"jobEgress: [{rule}]")
    assert ("network-policies" in said(cluster)) is is_found


@pytest.mark.parametrize(
    ("selector", "is_found"),
    [
        ({}, True),
        ({"matchLabels": {"kubernetes.io/metadata.name": "other"}}, False),
        ({"matchExpressions": [{"key": "policy", "operator": "NotIn", "values": ["off"]}]}, True),
        ({"matchExpressions": [{"key": "policy", "operator": "Exists"}]}, False),
    ],
)
def test_a_webhook_matters_where_it_sees_a_namespace_with_jobs(selector: dict, is_found: bool) -> None:
    cluster = MemoryCluster()
    cluster.remove("discovery.k8s.io/v1/endpointslices", "kueue-webhook-service-1", KUEUE)
    (webhook,) = copy.deepcopy(cluster.find(HOOKS, "kueue-validating")["webhooks"])
    cluster.change(HOOKS, "kueue-validating", "", {"webhooks": [{**webhook, "namespaceSelector": selector}]})
    assert ("webhooks" in said(cluster)) is is_found
    cluster.change(HOOKS, "kueue-validating", "", {"webhooks": [{**webhook, "failurePolicy": "Ignore"}]})
    assert said(cluster) == {}


def test_selectors_take_what_kubernetes_says_that_they_take() -> None:
    terms = [{"key": "a", "operator": "In", "values": ["1", "2"]}, {"key": "b", "operator": "DoesNotExist"}]
    assert selects({"matchExpressions": terms}, {"a": "2"})
    assert not selects({"matchExpressions": terms}, {"a": "2", "b": "x"})
    assert not selects({"matchExpressions": terms}, {})


def drop_kueue(cluster: MemoryCluster) -> None:
    cluster.objects = {path: item for path, item in cluster.objects.items() if "kueue" not in path}


def miss_local_queue(cluster: MemoryCluster) -> None:
    cluster.remove("kueue.x-k8s.io/v1beta2/localqueues", "bert", TEAM)


def serve_another_version(cluster: MemoryCluster) -> None:
    (version,) = copy.deepcopy(cluster.find(CRDS, "mpijobs.kubeflow.org")["spec"]["versions"])
    cluster.change(CRDS, "mpijobs.kubeflow.org", "", {"spec": {"versions": [{**version, "name": "v1"}]}})


def install_twice(cluster: MemoryCluster) -> None:
    again = copy.deepcopy(cluster.find(DEPLOYMENTS, "bert-operator", OPERATOR))
    again["metadata"] = {**again["metadata"], "name": "nlp-operator"}
    cluster.add(again)


CASES: list[tuple[Callable[[MemoryCluster], None], str, str]] = [
    (drop_kueue, "queues", "names a queue, and Kueue is not installed"),
    (miss_local_queue, "queues", "queueName: got bert; allowed: a LocalQueue of its namespace, which has: none"),
    (serve_another_version, "mpi-operator-version", "mpijobs.kubeflow.org: got v1; allowed: v2beta1"),
    (
        install_twice,
        "operator",
        "2 Deployments of the operator: bert-operator/bert-operator, bert-operator/nlp-operator",
    ),
    (
        lambda it: it.change(DEPLOYMENTS, "bert-operator", OPERATOR, {"spec": {"replicas": 0}, "status": None}),
        "operator",
        "Deployment bert-operator/bert-operator is scaled to 0",
    ),
    (
        lambda it: change_image(it, "bert-operator", OPERATOR, "registry.invalid/bert-operator/operator:0.2.0"),
        "images",
        "its image is registry.invalid/bert-operator/operator:0.2.0",
    ),
    (
        lambda it: change_settings(it, "defaultProfile: gpu-nfs", "defaultProfile: gpu"),
        "settings",
        "defaultProfile: got gpu; allowed: gpu-nfs",
    ),
    (
        lambda it: (
            it.change(NODES, "node-a", "", {"metadata": {"labels": {"nvidia.com/gpu.present": None}}})
            or it.change(NODES, "node-b", "", {"metadata": {"labels": {"nvidia.com/gpu.present": None}}})
        ),
        "node-fit",
        "no node has the labels nvidia.com/gpu.present=true, which profile gpu-nfs, job bert/running",
    ),
    (lambda it: setattr(it, "version", "v1.29.4"), "kubernetes", "the API server is of v1.29.4; tested: 1.31 to 1.36"),
    (
        lambda it: setattr(it, "server_time_s", it.now_s - 90),
        "clocks",
        " s ahead of the server's",
    ),
    (
        lambda it: it.change(CRDS, "bertpretrainjobs.bert-operator.dev", "", {"status": {"conditions": []}}),
        "definition",
        "is not established",
    ),
    (
        lambda it: it.add(workload("Deployment", "old", "kubeflow", "mpioperator/mpi-operator:0.8.2")),
        "mpi-operator",
        "2 Deployments run mpi-operator",
    ),
]


@pytest.mark.parametrize(("plant", "check", "words"), CASES, ids=[words for _, _, words in CASES])
def test_it_is_said_what_is_wrong(plant: Callable[[MemoryCluster], None], check: str, words: str) -> None:
    cluster = MemoryCluster()
    plant(cluster)
    problems = said(cluster)[check]
    assert any(words in problem for problem in problems), problems


def test_features_of_processors_count_where_they_are_known_and_nothing_has_gpus() -> None:
    cluster = MemoryCluster()
    labels = {"feature.node.kubernetes.io/cpu-cpuid.AVX512F": "true"}
    cluster.change(NODES, "node-a", "", {"metadata": {"labels": {**labels, f"{[*labels][0][:-7]}AMXBF16": "true"}}})
    cluster.change(NODES, "node-b", "", {"metadata": {"labels": labels}})
    assert said(cluster) == {}
    # A job without accelerators, which a profile with them cannot be told to be.
    change_settings(cluster, "      accelerator: {resourceName: nvidia.com/gpu}\n", "")
    cluster.change("bert-operator.dev/v1alpha1/bertpretrainjobs", "waiting", TEAM, {"spec": {"precision": "bf16"}})
    assert said(cluster) == {"node-features": ["job bert/waiting: 1 of its 2 nodes have AMX"]}


def bound(role: dict, subject: dict, namespace: str = "") -> Snapshot:
    kind = "RoleBinding" if namespace else "ClusterRoleBinding"
    version = "rbac.authorization.k8s.io/v1"
    binding = document(version, kind, "b", namespace, roleRef={"kind": role["kind"], "name": "r"}, subjects=[subject])
    roles, bindings = ("roles", "role bindings") if role["kind"] == "Role" else ("cluster roles", "role bindings")
    if not namespace:
        bindings = "cluster role bindings"
    return Snapshot(listings={roles: Listing((role,)), bindings: Listing((binding,))})


RULE = {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["get", "create"]}
ACCOUNT = {"kind": "ServiceAccount", "name": "a", "namespace": "home"}
GET, STATUS = Right("batch", "jobs", "get"), Right("batch", "jobs/status", "update")


@pytest.mark.parametrize(
    ("kind", "namespace", "rule", "subject", "where", "missing"),
    [
        ("ClusterRole", "", RULE, ACCOUNT, "", [STATUS]),
        ("ClusterRole", "", RULE, {**ACCOUNT, "namespace": "elsewhere"}, "", [GET, STATUS]),
        ("ClusterRole", "", {**RULE, "resources": ["*"], "verbs": ["*"]}, ACCOUNT, "", []),
        ("ClusterRole", "", {**RULE, "resources": ["*/status"], "verbs": ["update"]}, ACCOUNT, "", [GET]),
        ("ClusterRole", "", {**RULE, "resourceNames": ["one"]}, ACCOUNT, "", [GET, STATUS]),
        ("ClusterRole", "", RULE, {"kind": "Group", "name": "system:serviceaccounts:home"}, "", [STATUS]),
        ("ClusterRole", "", RULE, {"kind": "User", "name": "system:serviceaccount:home:a"}, "", [STATUS]),
        ("ClusterRole", "team", RULE, ACCOUNT, "team", [STATUS]),
        ("ClusterRole", "team", RULE, ACCOUNT, "", [GET, STATUS]),
        ("Role", "team", RULE, ACCOUNT, "team", [STATUS]),
        ("Role", "team", RULE, ACCOUNT, "other", [GET, STATUS]),
    ],
)
def test_rights_are_what_roles_and_bindings_grant(
    kind: str, namespace: str, rule: dict, subject: dict, where: str, missing: list[Right]
) -> None:
    role = document("rbac.authorization.k8s.io/v1", kind, "r", namespace if kind == "Role" else "", rules=[rule])
    snapshot = bound(role, subject, namespace)
    assert find_missing(snapshot, "a", "home", [GET, STATUS], where) == missing


def test_a_quota_that_is_just_enough_is_enough() -> None:
    cluster = MemoryCluster()
    cluster.change("v1/resourcequotas", "team", TEAM, {"status": {"used": {"requests.nvidia.com/gpu": "48"}}})
    assert said(cluster) == {}
