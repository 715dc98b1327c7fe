"""A healthy cluster for the doctor: its objects, with the statuses that controllers and kubelets would have written.

The operator, its rights, settings and volumes are those of deploy/kustomize (overlay gpu-nfs), with images of a
registry and two nodes that suit. ``MemoryCluster`` holds the objects without a server; on a real API server
``ApiCluster`` creates the same ones. Both are changed by the same three words, which is how faults are planted.
"""

from __future__ import annotations

import copy
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

import yaml

from bert_operator.api.crd import render_crd
from bert_operator.doctor.reading import NOT_FOUND, Refused
from bert_operator.json_paths import dig
from cluster_jobs import job_document
from fake_cluster import merged

Json = dict[str, Any]

DEPLOY = Path(__file__).parents[2] / "deploy/kustomize"
INSTALL = Path(__file__).parents[2] / "docs/guides/install.md"
OVERLAY = DEPLOY / "overlays/gpu-nfs"
REGISTRY = "registry.example.com/nlp"
CRDS = "apiextensions.k8s.io/v1/customresourcedefinitions"
OPERATOR, MPI, KUEUE, TEAM = "bert-operator", "mpi-operator", "kueue-system", "bert"
SETTINGS = "bert-operator-settings"
PLURALS = {
    "ClusterRole": "clusterroles", "ClusterRoleBinding": "clusterrolebindings", "ClusterQueue": "clusterqueues",
    "ConfigMap": "configmaps", "CustomResourceDefinition": "customresourcedefinitions", "DaemonSet": "daemonsets",
    "Deployment": "deployments", "EndpointSlice": "endpointslices", "Event": "events", "Lease": "leases",
    "BertPretrainJob": "bertpretrainjobs", "LocalQueue": "localqueues", "Namespace": "namespaces", "Node": "nodes",
    "PersistentVolumeClaim": "persistentvolumeclaims", "Pod": "pods", "ResourceQuota": "resourcequotas",
    "PriorityClass": "priorityclasses", "Role": "roles", "RoleBinding": "rolebindings",
    "Service": "services", "ServiceAccount": "serviceaccounts", "StorageClass": "storageclasses",
    "ValidatingWebhookConfiguration": "validatingwebhookconfigurations",
}  # fmt: skip
KUEUE_CONFIGURATION = """\
apiVersion: config.kueue.x-k8s.io/v1beta2
kind: Configuration
integrations:
  frameworks: [batch/job, kubeflow.org/mpijob, pod]
"""


class Cluster(Protocol):
    """What a fault may do to a cluster; resources as paths have them, such as apps/v1/deployments."""

    def change(self, resource: str, name: str, namespace: str, change: Json) -> None:
        """Merge a change into an object, its status included."""

    def remove(self, resource: str, name: str, namespace: str = "") -> None:
        """Delete an object."""

    def add(self, document: Json) -> None:
        """Create an object with its status."""

    def find(self, resource: str, name: str, namespace: str = "") -> Json:
        """Return an object."""


def document(version: str, kind: str, name: str, namespace: str = "", **fields: Any) -> Json:
    """Return an object; labels and annotations are taken out of the fields."""
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    metadata |= {key: fields.pop(key) for key in ("labels", "annotations") if key in fields}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **fields}


def microtime(time_s: float) -> str:
    """Return a time as kubelet writes it into its Lease."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time_s)) + f".{int(time_s % 1 * 1e6):06}Z"


def settings_text() -> str:
    """Return the overlay's settings, with images that somebody has named."""
    return (OVERLAY / "settings.yaml").read_text().replace("registry.invalid/bert-operator", REGISTRY)


def healthy_objects(now_s: float) -> Iterator[Json]:
    """Yield the objects of a healthy cluster in an order in which an API server takes them; definitions left out."""
    for name in (OPERATOR, MPI, KUEUE):
        yield document("v1", "Namespace", name)
    (team,) = _load(OVERLAY / "namespace.yaml")
    yield team
    yield document("v1", "ServiceAccount", "default", TEAM)
    yield document("v1", "ServiceAccount", "default", OPERATOR)
    yield from _nodes(now_s)
    yield from _operator()
    yield from _mpi_operator()
    yield from _kueue()
    yield from _team()
    yield endpoints("kube-system", "kube-dns", protocol="UDP", port=53)
    yield workload("DaemonSet", "calico-node", "kube-system", "docker.io/calico/node:v3.30.0")


def _load(path: Path) -> list[Json]:
    return [item for item in yaml.safe_load_all(path.read_text()) if item]


def _nodes(now_s: float) -> Iterator[Json]:
    for name in ("node-a", "node-b"):
        allocatable = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": "8"}
        status = {
            "allocatable": allocatable,
            "capacity": allocatable,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
            "nodeInfo": {"kubeletVersion": "v1.36.3"} | dict.fromkeys(_NODE_INFO, "x"),
        }
        yield document("v1", "Node", name, labels={"nvidia.com/gpu.present": "true"}, status=status)
        yield lease(name, now_s)


_NODE_INFO = (
    "machineID", "systemUUID", "bootID", "kernelVersion", "osImage", "containerRuntimeVersion", "kubeProxyVersion",
    "operatingSystem", "architecture",
)  # fmt: skip


def lease(node: str, now_s: float) -> Json:
    """Return a node's Lease as kubelet renews it."""
    spec = {"holderIdentity": node, "leaseDurationSeconds": 40, "renewTime": microtime(now_s)}
    return document("coordination.k8s.io/v1", "Lease", node, "kube-node-lease", spec=spec)


def workload(kind: str, name: str, namespace: str, image: str, **spec: Any) -> Json:
    """Return a Deployment or DaemonSet of one container that is available."""
    labels = {"app.kubernetes.io/name": name}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": image}], **spec}}
    body: Json = {"selector": {"matchLabels": labels}, "template": template}
    if kind == "Deployment":
        return document("apps/v1", kind, name, namespace, labels=labels, spec={"replicas": 1, **body}, status=AVAILABLE)
    return document("apps/v1", kind, name, namespace, labels=labels, spec=body)


AVAILABLE = {"replicas": 1, "updatedReplicas": 1, "readyReplicas": 1, "availableReplicas": 1}


def endpoints(namespace: str, service: str, *, protocol: str = "TCP", port: int = 443) -> Json:
    """Return the slice with a Service's only, ready endpoint, and the port of its pod."""
    ready = [{"addresses": ["10.0.0.1"], "conditions": {"ready": True}}]
    labels = {"kubernetes.io/service-name": service}
    body = {"addressType": "IPv4", "endpoints": ready, "ports": [{"name": "main", "protocol": protocol, "port": port}]}
    return document("discovery.k8s.io/v1", "EndpointSlice", f"{service}-1", namespace, labels=labels, **body)


def _operator() -> Iterator[Json]:
    yield from _load(DEPLOY / "base/rbac.yaml")
    yield from _load(DEPLOY / "base/priority-class.yaml")
    yield document("v1", "ConfigMap", SETTINGS, OPERATOR, data={"settings.yaml": settings_text()})
    (deployment,) = _load(DEPLOY / "base/deployment.yaml")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    container["image"] = f"{REGISTRY}/operator:0.2.0"
    yield deployment | {"status": AVAILABLE}
    priority = {"priorityClassName": "bert-operator"}
    yield pod(
        "bert-operator-5d8f-x2k4l",
        OPERATOR,
        deployment["metadata"]["labels"],
        container["image"],
        "operator",
        **priority,
    )


def pod(name: str, namespace: str, labels: Json, image: str, container: str, **spec: Any) -> Json:
    """Return a pod that runs, as the standard restricted allows it."""
    status = {"name": container, "image": image, "imageID": "", "ready": True, "restartCount": 0}
    return document(
        "v1", "Pod", name, namespace,
        labels=labels,
        spec={
            **spec,
            "nodeName": "node-a",
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": container, "image": image, "resources": {"requests": {"cpu": "1", "memory": "1Gi"}},
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
            }],
        },
        status={"phase": "Running", "containerStatuses": [status | {"state": {"running": {}}}]},
    )  # fmt: skip


def _mpi_operator() -> Iterator[Json]:
    image = "docker.io/mpioperator/mpi-operator:0.8.2"
    yield from _load(DEPLOY / "mpi-operator/priority-class.yaml")
    given = {"serviceAccountName": "mpi-operator", "priorityClassName": "mpi-operator"}
    yield workload("Deployment", "mpi-operator", MPI, image, **given)
    yield from _load(DEPLOY / "mpi-operator/job-status.yaml")


def _kueue() -> Iterator[Json]:
    volume = {"name": "manager-config", "configMap": {"name": "kueue-manager-config"}}
    data = {"controller_manager_config.yaml": KUEUE_CONFIGURATION}
    yield document("v1", "ConfigMap", "kueue-manager-config", KUEUE, data=data)
    image = "registry.k8s.io/kueue/kueue:v0.19.2"
    yield workload("Deployment", "kueue-controller-manager", KUEUE, image, volumes=[volume])
    yield endpoints(KUEUE, "kueue-webhook-service")
    rule = {
        "apiGroups": ["kubeflow.org"],
        "apiVersions": ["v2beta1"],
        "operations": ["CREATE"],
        "resources": ["mpijobs"],
    }
    webhook = {
        "name": "vmpijob.kb.io",
        "clientConfig": {"service": {"name": "kueue-webhook-service", "namespace": KUEUE}},
        "failurePolicy": "Fail",
        "rules": [rule],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    kind = "ValidatingWebhookConfiguration"
    yield document("admissionregistration.k8s.io/v1", kind, "kueue-validating", webhooks=[webhook])
    version = "kueue.x-k8s.io/v1beta2"
    active = {"conditions": [{"type": "Active", "status": "True", "reason": "Ready", "message": "Can admit"}]}
    yield document(version, "ClusterQueue", "bert", spec={}, status=active)
    yield document(version, "LocalQueue", "bert", TEAM, spec={"clusterQueue": "bert"})


def _team() -> Iterator[Json]:
    """A job that runs, one that waits, and what they stand on."""
    (claim,) = [item for item in _load(OVERLAY / "volumes.yaml") if item["kind"] == "PersistentVolumeClaim"]
    yield claim | {"status": {"phase": "Bound", "accessModes": ["ReadWriteMany"], "capacity": {"storage": "4Ti"}}}
    fields = {"provisioner": "nfs.csi.k8s.io", "reclaimPolicy": "Retain", "volumeBindingMode": "Immediate"}
    yield document("storage.k8s.io/v1", "StorageClass", "shared", **fields)
    labels = {"bert-operator.dev/job": "running"}
    yield pod("running-a1-worker-0", TEAM, labels, f"{REGISTRY}/trainer:0.2.0", "trainer")
    hard = {"pods": "20", "requests.cpu": "512", "requests.nvidia.com/gpu": "64"}
    used = {"pods": "3", "requests.cpu": "129", "requests.nvidia.com/gpu": "16"}
    yield document("v1", "ResourceQuota", "team", TEAM, spec={"hard": hard}, status={"hard": hard, "used": used})
    yield system_priorities()
    for name, phase in (("running", "Running"), ("waiting", "Pending")):
        job = job_document(name, workers=2, queueName="bert", output={"path": f"runs/{name}"})
        for key in ("scheduling", "image", "slotsPerWorker"):  # those of the profile
            job["spec"].pop(key, None)
        job["metadata"]["namespace"] = TEAM
        yield job | {"status": {"phase": phase}}


def system_priorities() -> Json:
    """Return the quota of docs/guides/install.md: no pods of Kubernetes' own classes."""
    (block,) = re.findall(r"```yaml\n# system-priorities.yaml\n(.*?)```", INSTALL.read_text(), re.DOTALL)
    found: Json = yaml.safe_load(block)
    return merged(found, {"metadata": {"namespace": TEAM}})


def pulled_event(cluster: Cluster, seconds: str) -> Json:
    """Return kubelet's Event about a pull of the running job's image."""
    subject = cluster.find("v1/pods", "running-a1-worker-0", TEAM)
    image = subject["spec"]["containers"][0]["image"]
    about = {"kind": "Pod", "name": subject["metadata"]["name"], "namespace": TEAM, "uid": subject["metadata"]["uid"]}
    message = f'Successfully pulled image "{image}" in {seconds} ({seconds} including waiting). Image size: 7 bytes.'
    fields = {"involvedObject": about, "reason": "Pulled", "type": "Normal", "message": message}
    return document("v1", "Event", "pulled", TEAM, **fields)


def small_definition(group: str, version: str, kind: str, *, is_namespaced: bool = True) -> Json:
    """Return a definition that takes anything: of a project whose own one is large."""
    plural = PLURALS.get(kind, f"{kind.lower()}s")
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    one = {"name": version, "served": True, "storage": True, "schema": schema, "subresources": {"status": {}}}
    names = {"plural": plural, "kind": kind, "singular": kind.lower(), "listKind": f"{kind}List"}
    scope = "Namespaced" if is_namespaced else "Cluster"
    spec = {"group": group, "scope": scope, "names": names, "versions": [one]}
    return document("apiextensions.k8s.io/v1", "CustomResourceDefinition", f"{plural}.{group}", spec=spec)


def queue_definitions() -> list[Json]:
    """Return Kueue's kinds, as far as they are needed here."""
    group, version = "kueue.x-k8s.io", "v1beta2"
    return [
        small_definition(group, version, "LocalQueue"),
        small_definition(group, version, "ClusterQueue", is_namespaced=False),
    ]


def _kubernetes_classes() -> Iterator[Json]:
    """Yield the classes that every API server makes itself."""
    for name, value in (("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)):
        yield document("scheduling.k8s.io/v1", "PriorityClass", name, value=value)


class MemoryCluster:
    """The healthy cluster without a server, and a reader of it.

    Not ``FakeCluster``: that one serves the operator's kinds and has writes, versions and a watch; here are all kinds
    that ``doctor`` reads, with the times and field managers by which it judges, and nobody writes.
    """

    def __init__(self) -> None:
        self.now_s = time.time()
        self.server_time_s = self.now_s
        self.objects: dict[str, Json] = {}
        self.forbidden: set[str] = set()
        """Resources that may not be read."""
        self.version = "v1.36.3"
        established = {"status": {"conditions": [{"type": "Established", "status": "True"}]}}
        for definition in (render_crd(), small_definition("kubeflow.org", "v2beta1", "MPIJob"), *queue_definitions()):
            self.add(definition | established)
        for item in (*healthy_objects(self.now_s), *_kubernetes_classes()):
            self.add(item)
        self.add(pulled_event(self, "41.2s"))

    # What faults do.

    def add(self, document: Json) -> None:
        """Keep an object, as the API server would complete it."""
        stored = copy.deepcopy(document)
        metadata = stored["metadata"]
        resource = f"{stored['apiVersion']}/{PLURALS[stored['kind']]}"
        path = place(resource, metadata["name"], metadata.get("namespace", ""))
        metadata["uid"] = path
        metadata["managedFields"] = [{
            "time": microtime(self.server_time_s)[:19] + "Z",
            "fieldsV1": {"f:spec": {"f:renewTime": {}}},
        }]  # fmt: skip
        self.objects[path] = stored

    def change(self, resource: str, name: str, namespace: str, change: Json) -> None:
        """Merge."""
        path = place(resource, name, namespace)
        self.objects[path] = merged(self.objects[path], change)

    def remove(self, resource: str, name: str, namespace: str = "") -> None:
        """Forget."""
        del self.objects[place(resource, name, namespace)]

    def find(self, resource: str, name: str, namespace: str = "") -> Json:
        """Look up."""
        return self.objects[place(resource, name, namespace)]

    # What a reader does.

    def get(self, path: str) -> Any:
        """Return an object, or a list of those below a path."""
        url = urlsplit(path)
        if url.path == "/version":
            return {"gitVersion": self.version}
        if url.path == "/apis":
            versions = {tuple(word.split("/")[1:3]) for word in self.objects if word.startswith("apis/")}
            served = {(dig(item, "spec", "group"), dig(item, "spec", "versions", 0, "name"))
                      for item in self.objects.values() if item["kind"] == "CustomResourceDefinition"}  # fmt: skip
            groups = [{"name": group, "preferredVersion": {"version": name}} for group, name in versions | served]
            return {"groups": groups}
        if url.path.strip("/").split("/")[-1] in self.forbidden:
            raise Refused(403, f"forbidden: {path}")
        words = url.path.strip("/")
        if words in self.objects:
            return self.objects[words]
        found = [item for key, item in self.objects.items() if is_below(key, words)]
        if not found and words.startswith("apis/"):
            raise Refused(NOT_FOUND, "not found")
        for key, value in parse_qs(url.query).items():
            if key.endswith("Selector"):
                found = [item for item in found if selects(key, value[0], item)]
        return {"items": found, "metadata": {}}

    def post(self, path: str, body: Json) -> Any:
        """Answer a review."""
        stamp = microtime(self.server_time_s)[:19] + "Z"
        return {**body, "metadata": {"creationTimestamp": stamp}, "status": {"allowed": True}}

    def parse_yaml(self, text: str) -> Any:
        """Read YAML, by a library."""
        return parse_yaml(text)


def parse_yaml(text: str) -> Any:
    """Return what YAML means; raises Refused as a reader does."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as problem:
        raise Refused(0, str(problem)) from problem


def place(resource: str, name: str, namespace: str = "") -> str:
    """Return where an object is, without the slash before it."""
    version, _, plural = resource.rpartition("/")
    root = f"apis/{version}" if "/" in version else f"api/{version}"
    return "/".join([root, *(["namespaces", namespace] if namespace else []), plural, name])


def is_below(key: str, collection: str) -> bool:
    """Return whether an object is in a collection: of its namespace, or of all."""
    without = re.sub(r"^(api/\w+|apis/[^/]+/[^/]+)/namespaces/[^/]+/(?=[^/]+/)", r"\1/", key)
    return collection in (key.rpartition("/")[0], without.rpartition("/")[0])


def selects(kind: str, selector: str, item: Json) -> bool:
    """Return whether a selector of one term takes an object."""
    key, is_equal, value = selector.partition("=")
    found = item.get(key) if kind == "fieldSelector" else dig(item, "metadata", "labels", key)
    return found == value if is_equal else found is not None
