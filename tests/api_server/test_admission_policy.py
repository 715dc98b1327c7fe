"""The admission policy that is made of settings refuses what they forbid with path, value and next step, and no more.

Every case is told twice: to the API server under the policy, and to the operator under the settings.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from bert_operator.cluster.admission_policy import render_admission_policy
from bert_operator.cluster.settings import Settings
from bert_operator.cluster.settings_rules import read_cluster_job
from bert_operator.errors import InvalidJob
from cluster_api import Answer, Api, wait_until
from cluster_jobs import CLAIM
from control_plane import ControlPlane, namespace_of
from image_prefixes import BELOW, DIGEST, NOT_BELOW
from job_changes import Change, both, drop, only, put
from sample_job import PHASE1, sample_document

Json = dict[str, Any]
NAMESPACE, OTHER = "limited", "unlimited"
GROUP = "admissionregistration.k8s.io/v1"
POLICY = f"{GROUP}/validatingadmissionpolicies"
CLAIMED = {"name": "gpu", "resourceClaimTemplateName": "one-gpu"}
SETTINGS = Settings.model_validate(
    {
        "limits": {
            "images": ["registry.invalid/bert-operator"],
            "workloadPriorityClasses": ["batch"],
            "tolerations": ["nvidia.com/gpu"],
            "nodeLabels": ["kubernetes.io/arch", "topology.kubernetes.io/zone"],
            "affinityNamespaces": [],
            "stopGraceSeconds": 600,
            "nfsExports": ["nfs.example.com:/exports/bert"],
            "extendedResources": ["nvidia.com/gpu"],
            "resourceClaims": [],
            "schedulerNames": ["default-scheduler"],
            "runtimeClasses": ["nvidia"],
            "serviceAccounts": ["gcs"],
            "podLabels": ["team"],
            "podAnnotations": ["karpenter.sh/do-not-disrupt"],
            "schedulingQueues": ["nlp"],
            "ranksPerNamespace": 512,
            "gpusPerNamespace": 64,
        },
        "profiles": {
            "azure-infiniband": {"resources": {"rdma": {"resourceName": "example.com/hca"}}},
            "amd": {"resources": {"accelerator": {"resourceName": "amd.com/gpu"}}},
            "by-claim": {"resources": {"accelerator": {"resourceClaim": "gpu"}, "resourceClaims": [CLAIMED]}},
            "one-node": {"cpu": {"pinning": "numa", "numaNodes": 1}},
        },
        "profileNamespaces": {"azure-infiniband": ["bert"]},
    }
)
MUST, SHOULD = "requiredDuringSchedulingIgnoredDuringExecution", "preferredDuringSchedulingIgnoredDuringExecution"


def scheduling(**fields: Any) -> Change:
    return put("scheduling", value=fields)


def nodes(key: str, kind: str = "matchExpressions") -> Json:
    return {kind: [{"key": key, "operator": "In", "values": ["x"]}]}


def preparing(**fields: Any) -> Change:
    """Make it a job that prepares data alone."""
    prepare = {"text": "builtin:python-docs", "sequenceLengths": [128], **fields}
    return put("stages", value=[{"name": "prepare", "prepare": prepare}])


def image_of(reference: str) -> Json:
    return {"image": {"reference": reference}, "mountPath": "/mnt/x"}


def nfs_of(path: str, server: str = "nfs.example.com") -> Json:
    return {"nfs": {"server": server, "path": path}, "mountPath": "/mnt/x"}


def near(*namespaces: str) -> Json:
    return {"topologyKey": "kubernetes.io/hostname", "labelSelector": {}, "namespaces": list(namespaces)}


LET: dict[str, Change] = {
    "a plain job": lambda _: None,
    "an image": put("image", value=f"registry.invalid/bert-operator/trainer:1@{DIGEST}"),
    "an image below": put("image", value="registry.invalid/bert-operator/a/b_c/d--e"),
    "data of an image": put(
        "volumes", value=[{"name": "v", "source": image_of("registry.invalid/bert-operator/data:1")}]
    ),
    "a priority in a queue": both(put("queueName", value="bert"), put("workloadPriorityClass", value="batch")),
    "a scheduler": scheduling(schedulerName="default-scheduler"),
    "a runtime": scheduling(runtimeClassName="nvidia"),
    "an account and keys": both(
        put("workers", value=2),
        put("serviceAccountName", value="gcs"),
        put(
            "podMetadata",
            value={"labels": {"team": "nlp"}, "annotations": {"karpenter.sh/do-not-disrupt": "true"}},
        ),
        scheduling(schedulingPolicy={"queue": "nlp", "minAvailable": 3}),
    ),
    "GPUs": both(put("workers", value=16), put("resources", value={"accelerator": {"perWorker": 4}})),
    "no GPUs in workers of their own": both(
        put("workers", value=33),
        put("resources", value={"accelerator": {}}),
        put("worker", value={"resources": {}}),
        put("stages", 0, "pretrain", "globalBatchSize", value=66),
    ),
    "ranks that prepare data alone": both(put("workers", value=300), put("slotsPerWorker", value=2), preparing()),
    "a device without a name, of a profile": both(
        put("profile", value="amd"), put("resources", value={"accelerator": {}})
    ),
    "a profile's device, written again": both(
        put("profile", value="amd"), put("resources", value={"accelerator": {"resourceName": "amd.com/gpu"}})
    ),
    "GPUs of a profile's claim": both(
        put("profile", value="by-claim"),
        put("workers", value=2),
        put("resources", value={"accelerator": {"perWorker": 40}}),
    ),
    "ranks of a profile's nodes": both(
        drop("slotsPerWorker"),
        put("profile", value="one-node"),
        put("workers", value=257),
        put("cpu", value={"ranksPerNode": "auto", "sockets": 2}),
        put("stages", 0, "pretrain", "globalBatchSize", value=514),
    ),
    "an accelerator by name": put("resources", value={"accelerator": {"resourceName": "nvidia.com/gpu"}}),
    "a share": put("output", value={"path": "x", "volume": nfs_of("/exports/bert")}),
    "folders of a share": put(
        "volumes",
        value=[{"name": n, "source": nfs_of(f"/exports/bert/{n}/..x") | {"mountPath": f"/mnt/{n}"}} for n in "ab"],
    ),
    "no force": scheduling(safeToForcefullyDelete=False),
    "a toleration": scheduling(tolerations=[{"key": "nvidia.com/gpu", "operator": "Exists"}]),
    "nodes": scheduling(nodeSelector={"kubernetes.io/arch": "amd64"}),
    "nodes by affinity": scheduling(
        affinity={"nodeAffinity": {MUST: {"nodeSelectorTerms": [nodes("topology.kubernetes.io/zone")]}}}
    ),
    "its own pods": scheduling(affinity={"podAntiAffinity": {MUST: [near(NAMESPACE)]}}),
    "time": put("runPolicy", value={"stopGraceSeconds": 600}),
    "ranks": both(put("workers", value=256), put("stages", 0, "pretrain", "globalBatchSize", value=4096)),
}
REFUSED: dict[str, tuple[Change, str]] = {
    "an image": (put("image", value="evil.example/x:1"), "spec.image"),
    "an image beside": (
        put("image", value="registry.invalid/bert-operatorx/trainer"),
        "registry.invalid/bert-operatorx/trainer",
    ),
    "an image above": (put("image", value="registry.invalid/bert-operator/../x"), "spec.image"),
    "a registry at another port": (put("image", value="registry.invalid/bert-operator:5000/x"), "spec.image"),
    "data of an image": (
        put("volumes", value=[{"name": "v", "source": image_of("evil.example/x:1")}]),
        "evil.example/x:1",
    ),
    "a dataset of an image": (
        put("dataset", value={"path": "d", "volume": {"image": {"reference": "evil.example/x"}}}),
        "evil.example/x",
    ),
    "a priority": (scheduling(priorityClassName="system-node-critical"), "spec.scheduling.priorityClassName"),
    "a priority in a queue": (
        both(put("queueName", value="bert"), put("workloadPriorityClass", value="first")),
        "spec.workloadPriorityClass: got first",
    ),
    "a scheduler": (scheduling(schedulerName="mine"), "spec.scheduling.schedulerName: got mine"),
    "a runtime": (scheduling(runtimeClassName="kata"), "spec.scheduling.runtimeClassName: got kata"),
    "an account": (put("serviceAccountName", value="admin"), "spec.serviceAccountName: got admin; allowed: gcs"),
    "a label": (
        put("podMetadata", value={"labels": {"cost": "7"}}),
        "spec.podMetadata.labels: got cost; allowed: team",
    ),
    "an annotation": (
        put("podMetadata", value={"annotations": {"linkerd.io/inject": "disabled"}}),
        "spec.podMetadata.annotations: got linkerd.io/inject",
    ),
    "a queue of a gang": (
        scheduling(schedulingPolicy={"queue": "other"}),
        "spec.scheduling.schedulingPolicy.queue: got other; allowed: nlp",
    ),
    "a priority of a gang": (
        scheduling(schedulingPolicy={"priorityClass": "system-node-critical"}),
        "spec.scheduling.schedulingPolicy.priorityClass: got system-node-critical",
    ),
    "GPUs": (
        both(put("workers", value=16), put("resources", value={"accelerator": {"perWorker": 5}})),
        "got 80 GPUs",
    ),
    "a GPU per slot": (
        both(
            put("workers", value=33),
            put("resources", value={"accelerator": {}}),
            put("stages", 0, "pretrain", "globalBatchSize", value=66),
        ),
        "got 66 GPUs",
    ),
    "GPUs of workers": (
        both(put("workers", value=2), put("worker", value={"resources": {"accelerator": {"perWorker": 33}}})),
        "got 66 GPUs",
    ),
    "claims": (put("resources", value={"resourceClaims": [CLAIMED]}), "resourceClaims"),
    "claims of workers": (put("worker", value={"resources": {"resourceClaims": [CLAIMED]}}), "resourceClaims"),
    "a device": (
        put("resources", value={"accelerator": {"resourceName": "example.com/fuse"}}),
        "resourceName of accelerator or rdma in spec.resources, spec.worker or spec.launcher: got example.com/fuse",
    ),
    "a device of workers": (
        put("worker", value={"resources": {"accelerator": {"resourceName": "example.com/fuse"}}}),
        "got example.com/fuse",
    ),
    "a network device": (put("resources", value={"rdma": {"resourceName": "rdma/hca"}}), "a network device"),
    "a network device of workers": (
        put("worker", value={"resources": {"rdma": {"resourceName": "rdma/hca"}}}),
        "a network device",
    ),
    "a network device as an accelerator": (
        put("resources", value={"accelerator": {"resourceName": "rdma/hca"}}),
        "a network device",
    ),
    "a profile's network device as an accelerator": (
        put("resources", value={"accelerator": {"resourceName": "example.com/hca"}}),
        "a network device",
    ),
    "locked memory": (put("network", value={"lockMemory": True}), "network.lockMemory"),
    "the node's network": (put("network", value={"hostNetwork": True}), "spec.network.hostNetwork: got true"),
    "a folder of the node": (
        put("volumes", value=[{"name": "v", "source": {"hostPath": {"path": "/data"}, "mountPath": "/mnt/x"}}]),
        "hostPath of a volume",
    ),
    "another server": (
        put("output", value={"path": "x", "volume": nfs_of("/exports/bert", server="nfs.example.com.evil")}),
        "nfs of a volume: got nfs.example.com.evil:/exports/bert",
    ),
    "another folder": (
        put("dataset", value={"path": "d", "volume": nfs_of("/exports/bertha")}),
        "got nfs.example.com:/exports/bertha",
    ),
    "a folder above": (
        put("volumes", value=[{"name": "v", "source": nfs_of("/exports/bert/../etc")}]),
        "got nfs.example.com:/exports/bert/../etc",
    ),
    "force": (scheduling(safeToForcefullyDelete=True), "spec.scheduling.safeToForcefullyDelete: got true"),
    "a toleration": (scheduling(tolerations=[{"key": "a", "operator": "Exists"}]), "tolerations"),
    "every taint": (scheduling(tolerations=[{"operator": "Exists"}]), "every taint"),
    "a toleration of a role": (put("launcher", value={"tolerations": [{"operator": "Exists"}]}), "tolerations"),
    "nodes": (scheduling(nodeSelector={"pool": "a"}), "nodeSelector"),
    "nodes of a role": (put("worker", value={"nodeSelector": {"pool": "a"}}), "nodeSelector"),
    "nodes by affinity": (
        scheduling(affinity={"nodeAffinity": {MUST: {"nodeSelectorTerms": [nodes("pool")]}}}),
        "nodeAffinity",
    ),
    "nodes by name": (
        scheduling(
            affinity={
                "nodeAffinity": {SHOULD: [{"weight": 1, "preference": nodes("metadata.name", kind="matchFields")}]}
            }
        ),
        "nodeAffinity",
    ),
    "others' pods": (scheduling(affinity={"podAntiAffinity": {MUST: [near(OTHER)]}}), "namespaces"),
    "others' nodes": (
        scheduling(affinity={"podAffinity": {SHOULD: [{"weight": 1, "podAffinityTerm": near(OTHER)}]}}),
        "namespaces",
    ),
    "time": (put("runPolicy", value={"stopGraceSeconds": 601}), "spec.runPolicy.stopGraceSeconds: got 601"),
    "ranks": (
        both(put("workers", value=257), put("stages", 0, "pretrain", "globalBatchSize", value=514)),
        "got 514 ranks",
    ),
    "ranks that prepare data": (
        preparing(workers=20, numProcesses=64),
        "1280 to prepare data",
    ),
    "ranks of sockets": (
        both(
            drop("slotsPerWorker"),
            put("workers", value=257),
            put("cpu", value={"ranksPerNode": "auto", "sockets": 2}),
            put("stages", 0, "pretrain", "globalBatchSize", value=514),
        ),
        "got 514 ranks",
    ),
    "ranks of NUMA nodes": (
        both(
            drop("slotsPerWorker"),
            put("workers", value=65),
            put("cpu", value={"ranksPerNode": "auto", "pinning": "numa", "numaNodes": 8, "sockets": 2}),
            put("stages", 0, "pretrain", "globalBatchSize", value=520),
        ),
        "got 520 ranks",
    ),
    "a profile": (put("profile", value="azure-infiniband"), "spec.profile: got azure-infiniband"),
}


def document_of(change: Change, namespace: str) -> Json:
    plain = both(only(PHASE1), put("output", value={"path": "x", "volume": CLAIM}), put("dataset", value={"path": "d"}))
    document = sample_document(both(plain, change))
    document["metadata"]["namespace"] = namespace
    return document


def try_to_create(api: Api, change: Change, namespace: str = NAMESPACE) -> Answer:
    return api.create(document_of(change, namespace), namespace, dry_run=True)


def is_valid(change: Change, settings: Settings, namespace: str = NAMESPACE) -> bool:
    document = document_of(change, namespace)
    document["metadata"]["uid"] = "u"
    try:
        read_cluster_job(document, settings)
    except InvalidJob:
        return False
    return True


OWN_IMAGE = "own.example/trainer:1"
PREFIXES = {prefix: f"prefix-{number}" for number, prefix in enumerate(dict(BELOW + NOT_BELOW))}
"""And a namespace for each."""
PREFIXED = Settings.model_validate(
    {
        "trainerImage": OWN_IMAGE,
        "allowLockMemory": True,
        "limits": {
            "resourceClaims": ["one-gpu", "shared"],
            "nfsExports": ["fd00::1", "nfs.example.com:/"],
            "extendedResources": [],
            "namespaces": {namespace: {"images": [prefix]} for prefix, namespace in PREFIXES.items()},
        },
    }
)


@pytest.fixture(scope="module")
def prefixed(control_plane: ControlPlane) -> Iterator[Api]:
    """The administrator's client; in each of some namespaces the policy allows images below another prefix."""
    api = control_plane.api
    policy, binding = render_admission_policy(PREFIXED)
    policy["metadata"]["name"] = binding["metadata"]["name"] = binding["spec"]["policyName"] = "prefixed"
    names = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": list(PREFIXES.values())}
    binding["spec"]["matchResources"] = {"namespaceSelector": {"matchExpressions": [names]}}
    for document in (*map(namespace_of, PREFIXES.values()), policy, binding):
        api.create(document).expect()
    foreign = put("image", value="evil.example/x")
    for namespace in PREFIXES.values():
        wait_until(lambda name=namespace: try_to_create(api, foreign, name).status == 422, "the policy to be in force")
    yield api
    for resource in (f"{GROUP}/validatingadmissionpolicybindings", POLICY):
        api.delete(resource, "prefixed").expect()
    for name in PREFIXES.values():
        api.delete("v1/namespaces", name).expect()


@pytest.mark.parametrize(
    ("prefix", "image", "is_let"),
    [(*case, True) for case in BELOW]
    + [(*case, False) for case in NOT_BELOW]
    + [("docker.io/foo", OWN_IMAGE, True), ("docker.io/foo", "own.example/trainer:2", False)],
)
def test_names_of_images_are_read_by_both_alike(prefixed: Api, prefix: str, image: str, is_let: bool) -> None:
    change, namespace = put("image", value=image), PREFIXES[prefix]
    answer = try_to_create(prefixed, change, namespace)
    assert (answer.status == 201, is_valid(change, PREFIXED, namespace)) == (is_let, is_let), answer.message


BY_CLAIM = {"accelerator": {"resourceClaim": "gpu"}, "resourceClaims": [CLAIMED]}


@pytest.mark.parametrize(
    ("change", "is_let"),
    [
        (put("resources", value=BY_CLAIM), True),
        (put("resources", value={"resourceClaims": [{"name": "one-gpu", "resourceClaimName": "shared"}]}), True),
        (put("resources", value={"resourceClaims": [{"name": "shared", "resourceClaimName": "own"}]}), False),
        (put("resources", value={"accelerator": {}}), False),
        (put("network", value={"lockMemory": True}), True),
        (put("volumes", value=[{"name": "v", "source": nfs_of("/a/../b", server="fd00::1")}]), True),
        (put("volumes", value=[{"name": "v", "source": nfs_of("/a", server="fd00::11")}]), False),
        (put("volumes", value=[{"name": "v", "source": nfs_of("//a")}]), True),
        (put("volumes", value=[{"name": "v", "source": nfs_of("/..")}]), False),
    ],
)
def test_claims_devices_and_servers_are_read_by_both_alike(prefixed: Api, change: Change, is_let: bool) -> None:
    namespace = PREFIXES["docker.io/foo"]
    answer = try_to_create(prefixed, change, namespace)
    assert (answer.status == 201, is_valid(change, PREFIXED, namespace)) == (is_let, is_let), answer.message


@pytest.fixture(scope="module")
def limited(control_plane: ControlPlane) -> Iterator[Api]:
    """The administrator's client; in one namespace jobs are held against the policy."""
    api = control_plane.api
    policy, binding = render_admission_policy(SETTINGS)
    # The server is shared with other tests.
    only_here = {"matchLabels": {"kubernetes.io/metadata.name": NAMESPACE}}
    binding["spec"]["matchResources"] = {"namespaceSelector": only_here}
    before = document_of(REFUSED["an image"][0], NAMESPACE)
    before["metadata"] |= {"name": "before", "finalizers": ["example.com/hold"]}
    for document in (namespace_of(NAMESPACE), namespace_of(OTHER), before, policy, binding):
        api.create(document, document["metadata"].get("namespace", "")).expect()
    wait_until(lambda: try_to_create(api, REFUSED["an image"][0]).status == 422, "the policy to be in force")
    yield api
    for resource in (f"{GROUP}/validatingadmissionpolicybindings", POLICY):
        api.delete(resource, policy["metadata"]["name"]).expect()
    for name in (NAMESPACE, OTHER):
        api.delete("v1/namespaces", name).expect()


@pytest.mark.parametrize("change", LET.values(), ids=LET)
def test_what_is_within_the_bounds_is_let_through(limited: Api, change: Change) -> None:
    try_to_create(limited, change).expect(201)
    assert is_valid(change, SETTINGS)


@pytest.mark.parametrize(("change", "words"), REFUSED.values(), ids=REFUSED)
def test_what_is_beyond_them_is_refused_by_both(limited: Api, change: Change, words: str) -> None:
    answer = try_to_create(limited, change)
    assert (answer.status, words in answer.message, "; next: " in answer.message) == (422, True, True), answer.message
    assert "allowed: " in answer.message
    assert not is_valid(change, SETTINGS)
    try_to_create(limited, change, OTHER).expect(201)


def test_a_job_that_another_controller_runs_is_let_through(limited: Api) -> None:
    """The operator reads nothing of it."""
    elsewhere = put("managedBy", value="kueue.x-k8s.io/multikueue")
    try_to_create(limited, both(REFUSED["an image"][0], elsewhere)).expect(201)


def test_the_policy_has_no_expression_that_the_api_server_doubts(limited: Api) -> None:
    name = "bert-operator-job-limits"
    wait_until(lambda: "status" in limited.get(POLICY, name).expect(), "the types to be checked")
    assert limited.get(POLICY, name).expect()["status"].get("typeChecking", {}).get("expressionWarnings", []) == []


def test_a_job_from_before_is_held_up_in_nothing_but_its_spec(limited: Api) -> None:
    kind, suspend = "bert-operator.dev/v1alpha1/bertpretrainjobs", {"spec": {"runPolicy": {"suspend": True}}}
    limited.patch(kind, "before", {"metadata": {"labels": {"a": "b"}, "finalizers": []}}, NAMESPACE).expect()
    answer = limited.patch(kind, "before", suspend, NAMESPACE)
    assert (answer.status, "spec.image" in answer.message) == (422, True)
    limited.patch(kind, "before", {"status": {"attempt": 1}}, NAMESPACE, subresource="status").expect()
    limited.patch(kind, "before", suspend, NAMESPACE).expect()
    answer = limited.patch(kind, "before", {"spec": {"runPolicy": {"stopGraceSeconds": 86400}}}, NAMESPACE)
    assert (answer.status, "stopGraceSeconds: got 86400" in answer.message) == (422, True), answer.message
    limited.patch(kind, "before", {"spec": {"runPolicy": {"stopGraceSeconds": 60}}}, NAMESPACE).expect()
    limited.delete(kind, "before", NAMESPACE).expect()
