"""Faults of a cluster, each by itself, with the one check of the doctor that has to find it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

from bert_operator.timestamps import parse_time
from doctor_cluster import (
    CRDS,
    KUEUE,
    KUEUE_CONFIGURATION,
    MPI,
    OPERATOR,
    REGISTRY,
    SETTINGS,
    TEAM,
    Cluster,
    Json,
    document,
    endpoints,
    lease,
    pulled_event,
    settings_text,
)

PODS, NODES, DEPLOYMENTS = "v1/pods", "v1/nodes", "apps/v1/deployments"
LEASES = "coordination.k8s.io/v1/leases"
CLAIMS, ROLES = "v1/persistentvolumeclaims", "rbac.authorization.k8s.io/v1/clusterroles"
PRIORITIES, JOBS = "scheduling.k8s.io/v1/priorityclasses", "bert-operator.dev/v1alpha1/bertpretrainjobs"
CRITICAL = {"priorityClassName": "system-node-critical"}
SLICES = "discovery.k8s.io/v1/endpointslices"
DNS_PORT: Json = {"name": "main", "protocol": "UDP"}
OPERATOR_POD, JOB_POD = "bert-operator-5d8f-x2k4l", "running-a1-worker-0"


@dataclass(frozen=True)
class Fault:
    """Something that is wrong."""

    words: str
    """For people."""
    check: str
    """Name of the check that finds it."""
    says: str
    """Part of what it says."""
    plant: Callable[[Cluster], None]
    """Makes it so."""


def change_settings(cluster: Cluster, old: str, new: str) -> None:
    text = settings_text()
    assert old in text
    cluster.change("v1/configmaps", SETTINGS, OPERATOR, {"data": {"settings.yaml": text.replace(old, new)}})


def break_settings(cluster: Cluster) -> None:
    change_settings(cluster, "defaultProfile: gpu-nfs", "defaultProfile: [gpu-nfs")


def lock_memory(cluster: Cluster) -> None:
    change_settings(cluster, "    slotsPerWorker: 8", "    network: {lockMemory: true}\n    slotsPerWorker: 8")


def change_frameworks(cluster: Cluster, old: str, new: str) -> None:
    text = KUEUE_CONFIGURATION.replace(old, new)
    assert text != KUEUE_CONFIGURATION
    data = {"controller_manager_config.yaml": text}
    cluster.change("v1/configmaps", "kueue-manager-config", KUEUE, {"data": data})


def take_older_definition(cluster: Cluster) -> None:
    definition = copy.deepcopy(cluster.find(CRDS, "bertpretrainjobs.bert-operator.dev"))
    spec = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    del spec["properties"]["mpi"]["properties"]["workerWaitSeconds"]
    cluster.change(CRDS, "bertpretrainjobs.bert-operator.dev", "", {"spec": definition["spec"]})


def set_container(cluster: Cluster, name: str, namespace: str, **state: object) -> None:
    (status,) = cluster.find(PODS, name, namespace)["status"]["containerStatuses"]
    cluster.change(PODS, name, namespace, {"status": {"containerStatuses": [{**status, **state}]}})


def kill_for_memory(cluster: Cluster) -> None:
    ended = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
    set_container(cluster, OPERATOR_POD, OPERATOR, restartCount=4, lastState=ended)


def crash(cluster: Cluster) -> None:
    cluster.change(DEPLOYMENTS, "bert-operator", OPERATOR, {"status": {"readyReplicas": 0, "availableReplicas": 0}})
    waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s restarting failed container"}}
    ended = {"terminated": {"exitCode": 2, "reason": "Error"}}
    set_container(cluster, OPERATOR_POD, OPERATOR, ready=False, restartCount=7, state=waiting, lastState=ended)


def fail_to_pull(cluster: Cluster) -> None:
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "manifest unknown"}}
    set_container(cluster, JOB_POD, TEAM, ready=False, state=waiting)


def pull_slowly(cluster: Cluster) -> None:
    cluster.remove("v1/events", "pulled", TEAM)
    cluster.add(pulled_event(cluster, "8m14.5s"))


def change_image(cluster: Cluster, name: str, namespace: str, image: str) -> None:
    spec = copy.deepcopy(cluster.find(DEPLOYMENTS, name, namespace)["spec"]["template"]["spec"])
    spec["containers"][0]["image"] = image
    cluster.change(DEPLOYMENTS, name, namespace, {"spec": {"template": {"spec": spec}}})


def lose_a_rule(cluster: Cluster) -> None:
    rules = cluster.find(ROLES, "bert-operator")["rules"]
    cluster.change(ROLES, "bert-operator", "", {"rules": [rule for rule in rules if rule["resources"] != ["mpijobs"]]})


def fill_quota(cluster: Cluster) -> None:
    cluster.change("v1/resourcequotas", "team", TEAM, {"status": {"used": {"requests.nvidia.com/gpu": "56"}}})


def make_claim(cluster: Cluster, *, phase: str, **spec: object) -> None:
    claim = copy.deepcopy(cluster.find(CLAIMS, "bert", TEAM))
    cluster.remove(CLAIMS, "bert", TEAM)
    kept: Json = {"name": "bert", "namespace": TEAM}
    cluster.add({**claim, "metadata": kept, "spec": {**claim["spec"], **spec}, "status": {"phase": phase}})


def share_with_nobody(cluster: Cluster) -> None:
    make_claim(cluster, phase="Bound", accessModes=["ReadWriteOnce"])


def name_no_class(cluster: Cluster) -> None:
    make_claim(cluster, phase="Pending", storageClassName="fast", volumeName="")


def lose_devices(cluster: Cluster) -> None:
    for name in ("node-a", "node-b"):
        cluster.change(NODES, name, "", {"status": {"allocatable": {"nvidia.com/gpu": "0"}}})


def set_clock_back(cluster: Cluster) -> None:
    renewed = cluster.find(LEASES, "node-b", "kube-node-lease")["spec"]["renewTime"]
    before = lease("node-b", parse_time(renewed) - 600)
    cluster.change(LEASES, "node-b", "kube-node-lease", {"spec": before["spec"]})


def lose_a_node(cluster: Cluster) -> None:
    conditions = [{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": "Kubelet stopped"}]
    cluster.change(NODES, "node-b", "", {"status": {"conditions": conditions}})


def rise(cluster: Cluster) -> None:
    for name, value in (("mine", 1000), ("batch", 2000)):
        cluster.add(document("scheduling.k8s.io/v1", "PriorityClass", name, value=value))
    set_priority(cluster, "mine")
    change_settings(cluster, "jobEgress: []", "limits: {priorityClasses: [batch]}\njobEgress: []")
    # Which quota counts these is another question.
    names = ["batch", "bert-operator", "mpi-operator", "system-cluster-critical", "system-node-critical"]
    term = {"scopeName": "PriorityClass", "operator": "In", "values": names}
    cluster.remove("v1/resourcequotas", "system-priorities", TEAM)
    spec = {"hard": {"pods": "0"}, "scopeSelector": {"matchExpressions": [term]}}
    cluster.add(document("v1", "ResourceQuota", "system-priorities", TEAM, spec=spec))


def set_priority(cluster: Cluster, name: str | None) -> None:
    spec = {"template": {"spec": {"priorityClassName": name}}}
    cluster.change(DEPLOYMENTS, "bert-operator", OPERATOR, {"spec": spec})


def hide_proxy(cluster: Cluster) -> None:
    proxy = "    proxy: {http: 'http://squid.bert.svc', https: 'http://squid.bert.svc'}\n    slotsPerWorker: 8"
    change_settings(cluster, "    slotsPerWorker: 8", proxy)
    cluster.add(endpoints(TEAM, "squid", port=3128))


def deactivate_queue(cluster: Cluster) -> None:
    inactive = {"type": "Active", "status": "False", "reason": "FlavorNotFound", "message": "Flavor gpu is not there"}
    cluster.change("kueue.x-k8s.io/v1beta2/clusterqueues", "bert", "", {"status": {"conditions": [inactive]}})


OUR_KIND = "BertPretrainJob.v1alpha1.bert-operator.dev"
PLACEHOLDER = (f"{REGISTRY}/trainer", "registry.invalid/bert-operator/trainer")
ASKED_FOR = (
    Fault("mpi-operator is gone", "mpi-operator", "no Deployment runs mpi-operator",
          lambda it: it.remove(DEPLOYMENTS, "mpi-operator", MPI)),
    Fault("mpi-operator is too old", "mpi-operator-version", "mpi-operator:0.6.0; allowed: 0.8.0 or newer",
          lambda it: change_image(it, "mpi-operator", MPI, "docker.io/mpioperator/mpi-operator:0.6.0")),
    Fault("mpi-operator lacks its release's missing right", "mpi-operator-rights", "may not update jobs.batch/status",
          lambda it: it.remove(ROLES, "mpi-operator-job-status")),
    Fault("the definition is of an older release", "definition", "it lacks spec.mpi.workerWaitSeconds",
          take_older_definition),
    Fault("the settings are not YAML", "settings", "settings.yaml is not YAML", break_settings),
    Fault("the operator is killed for its memory", "operator-memory", "killed for its memory (OOMKilled), limit 512Mi",
          kill_for_memory),
    Fault("Kueue waits for the job's own workload", "kueue", "externalFrameworks: got BertPretrainJob",
          lambda it: change_frameworks(it, "pod]", f"pod]\n  externalFrameworks: [{OUR_KIND}]")),
    Fault("Pod Security forbids what the profile asks for", "pod-security", "enforces restricted, and network",
          lock_memory),
    Fault("a quota leaves no room", "quotas", "gpu: 8 of 64 are left, and job bert/waiting needs 16",
          fill_quota),
    Fault("a webhook fails closed with nobody behind it", "webhooks", "kueue-webhook-service has no ready endpoint",
          lambda it: it.remove(SLICES, "kueue-webhook-service-1", KUEUE)),
    Fault("a claim that one node may mount, for two workers", "claims", "bert/bert is ReadWriteOnce; allowed:",
          share_with_nobody),
    Fault("a claim of a storage class that is not there", "storage-classes", "storageClassName: got fast; allowed:",
          name_no_class),
    Fault("an image that no node can pull", "image-pulls", "ImagePullBackOff of registry.example.com/nlp/trainer",
          fail_to_pull),
    Fault("no node has the profile's GPUs", "node-fit", "asks for nvidia.com/gpu 8, and the largest of 2 nodes has 0",
          lose_devices),
    Fault("a node's clock is ten minutes slow", "clocks", "Node node-b: its clock is", set_clock_back),
)  # fmt: skip
"""One for each thing that was asked for."""
FURTHER = (
    Fault("the operator restarts over and over", "operator", "ended last with Error, exit code 2 (its settings", crash),
    Fault("the operator lost a right", "operator-rights", "lacks get mpijobs.kubeflow.org", lose_a_rule),
    Fault("jobs may name a class above the operator's", "operator-priority",
          "Deployment bert-operator/bert-operator has the priority 1000, and jobs may have a higher one: batch (2000)",
          rise),
    Fault("the operator's class is gone", "operator-priority",
          "Deployment bert-operator/bert-operator, priorityClassName: got bert-operator; allowed: ",
          lambda it: it.remove(PRIORITIES, "bert-operator")),
    Fault("a job names a class that the limits do not", "operator-priority",
          "job bert/waiting, spec.scheduling.priorityClassName: got system-node-critical; allowed: none",
          lambda it: it.change(JOBS, "waiting", TEAM, {"spec": {"scheduling": CRITICAL}})),
    Fault("no quota counts pods of Kubernetes' own classes", "operator-priority",
          "Namespace bert: no ResourceQuota counts pods of the PriorityClass system-cluster-critical, system-node",
          lambda it: it.remove("v1/resourcequotas", "system-priorities", TEAM)),
    Fault("nobody has named the trainer's image", "images", "trainerImage: got registry.invalid/bert-operator/trainer",
          lambda it: change_settings(it, *PLACEHOLDER)),
    Fault("Kueue does not know MPIJobs", "kueue", "integrations.frameworks: got no kubeflow.org/mpijob",
          lambda it: change_frameworks(it, " kubeflow.org/mpijob,", "")),
    Fault("a ClusterQueue is not active", "queues", "bert is not active (FlavorNotFound)", deactivate_queue),
    Fault("an image takes eight minutes", "image-pulls", "a node took 494 s to pull it", pull_slowly),
    Fault("a node does not answer", "nodes", "Node node-b is not ready: Kubelet stopped", lose_a_node),
    Fault("nobody answers for names", "names", "none of the Services kube-system/kube-dns",
          lambda it: it.remove(SLICES, "kube-dns-1", "kube-system")),
    Fault("the pods of names listen on a port that no policy opens", "network-policies",
          "Service kube-system/kube-dns: its pods answer names on port 9053",
          lambda it: it.change(SLICES, "kube-dns-1", "kube-system", {"ports": [{**DNS_PORT, "port": 9053}]})),
    Fault("the Service of a proxy leads to another port", "network-policies",
          "port 80 of Service bert/squid leads to port 3128 of its pods", hide_proxy),
    Fault("nothing enforces NetworkPolicies", "network-policies", "no network plugin is known here",
          lambda it: it.remove("apps/v1/daemonsets", "calico-node", "kube-system")),
)  # fmt: skip
"""What else the doctor knows."""
