"""The real Kueue beside a control plane, with a node or without: its release's controller as a process of this host.

``with Kueue(control_plane) as kueue: ...``. It runs under the ServiceAccount and the rights that its release ships, and
knows Jobs and MPIJobs. Its webhooks stand at the API server's address with the API server's own certificate, since
nobody here routes Services. Webhooks refuse what they cannot be asked about: once it was started, Jobs of this control
plane need it. Not here: the visibility API, which wants an API server that aggregates, and leader election.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from component import Component, free_ports
from control_plane import ControlPlane, answers, built_programs, load_documents, namespace_of

NAMESPACE = "kueue-system"
ACCOUNT = "kueue-controller-manager"
VERSION = "kueue.x-k8s.io/v1beta2"
FRAMEWORKS = ("batch/job", "kubeflow.org/mpijob")
PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"
WORKLOADS, LOCAL_QUEUES, CLUSTER_QUEUES = (
    f"{VERSION}/{plural}" for plural in ("workloads", "localqueues", "clusterqueues")
)
MPI_JOB_STATUS = Path(__file__).parents[2] / "deploy/kustomize/mpi-operator/job-status.yaml"
"""The right without which mpi-operator resumes no MPIJob that was suspended after its start."""

Json = dict[str, Any]

_PREFIX = "kueue-"
_RIGHTS = ("role", "role_binding", "manager_secrets_role", "manager_secrets_role_binding", "metrics_auth_role",
           "metrics_auth_role_binding")  # fmt: skip
_WEBHOOKS = ("job.kb.io", "mpijob.kb.io", "clusterqueue.kb.io", "cohort.kb.io", "resourceflavor.kb.io",
             "workload.kb.io")  # fmt: skip
"""Those of what it serves here, without their first letter, which says whether they change or check."""


class Kueue(Component):
    """Kueue's controller: ``with Kueue(control_plane) as kueue: ...`` installs it and waits until it is ready."""

    def __init__(
        self, control_plane: ControlPlane, *, feature_gates: Mapping[str, bool] | None = None, **configuration: Any
    ) -> None:
        """Prepare it for a control plane that runs, with mpi-operator's CRD; builds it where the cache is empty.

        Args:
            control_plane: To be managed; a cluster with a node is one as well.
            feature_gates: Such as {"PriorityBoost": True}.
            configuration: Added to its Configuration, as ``waitForPodsReady={"timeout": "5m"}``.
        """
        self._control_plane, self._api = control_plane, control_plane.api
        self.folder = control_plane.folder / "kueue"
        self.folder.mkdir(exist_ok=True)
        programs = built_programs("kueue")
        self._manifests = programs / "kueue-manifests"
        self._host = urlsplit(control_plane.url).hostname or ""
        self._webhook_port, health_port, metrics_port = free_ports(3)
        self._installed = False
        own = {
            "apiVersion": "config.kueue.x-k8s.io/v1beta2",
            "kind": "Configuration",
            "namespace": NAMESPACE,
            "health": {"healthProbeBindAddress": f"127.0.0.1:{health_port}"},
            "metrics": {"bindAddress": f"127.0.0.1:{metrics_port}"},
            "webhook": {"host": self._host, "port": self._webhook_port, "certDir": str(self.folder)},
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {"enable": False},
            "clientConnection": {"qps": 300, "burst": 500},
            "integrations": {"frameworks": list(FRAMEWORKS)},
        }
        (self.folder / "configuration.yaml").write_text(json.dumps({**own, **configuration}))
        gates = {"VisibilityOnDemand": False, **(feature_gates or {})}
        command = [
            str(programs / "kueue"),
            f"--config={self.folder / 'configuration.yaml'}",
            f"--kubeconfig={self.folder / 'kubeconfig'}",
            f"--feature-gates={','.join(f'{name}={str(on).lower()}' for name, on in gates.items())}",
        ]
        super().__init__(
            "kueue",
            command,
            self.folder / "kueue.log",
            lambda: answers("http", health_port, "/readyz"),
            environment={"KUBECONFIG": ""},
            before_launch=self._prepare,
        )

    def install(self) -> None:
        """Apply what its release ships, without the controller: definitions, account, rights and webhooks.

        And what this project's manifests add to mpi-operator's rights.
        """
        self._api.server_side_apply(namespace_of(NAMESPACE)).expect()
        for path in sorted((self._manifests / "crd/bases").glob("*.yaml")):
            for document in load_documents(path):
                self._api.apply_crd(self._converted_here(document))
        for document in (*self._rights(), *load_documents(MPI_JOB_STATUS), *self._webhooks()):
            self._api.server_side_apply(document, NAMESPACE).expect()
        self._installed = True

    def _prepare(self) -> None:
        if not self._installed:
            self.install()
        certificates = self._control_plane.ca_file.parent
        for name, source in (("tls.crt", "apiserver.crt"), ("tls.key", "apiserver.key")):
            (self.folder / name).unlink(missing_ok=True)
            (self.folder / name).symlink_to(certificates / source)
        token = self._control_plane.service_account_token(NAMESPACE, ACCOUNT)
        (self.folder / "kubeconfig").unlink(missing_ok=True)
        (self.folder / "kubeconfig").symlink_to(self._control_plane.kubeconfig(token))

    def _converted_here(self, definition: Json) -> Json:
        """Return a definition whose versions this process converts, where its release has them converted."""
        plural = definition["spec"]["names"]["plural"]
        # Of ResourceFlavors there is a patch that its kustomization leaves out.
        if plural != "resourceflavors" and (self._manifests / f"crd/patches/webhook_in_{plural}.yaml").exists():
            webhook = {"clientConfig": self._reached_at("/convert"), "conversionReviewVersions": ["v1"]}
            definition["spec"]["conversion"] = {"strategy": "Webhook", "webhook": webhook}
        return definition

    def _rights(self) -> Iterator[Json]:
        """Yield account, roles and bindings, with the names and the namespace that its kustomization gives them."""
        for name in ("service_account", *_RIGHTS):
            for document in load_documents(self._manifests / f"rbac/{name}.yaml"):
                document["metadata"]["name"] = f"{_PREFIX}{document['metadata']['name']}"
                document["metadata"].pop("namespace", None)
                for subject in document.get("subjects", ()):
                    subject |= {"name": f"{_PREFIX}{subject['name']}", "namespace": NAMESPACE}
                if "roleRef" in document:
                    document["roleRef"]["name"] = f"{_PREFIX}{document['roleRef']['name']}"
                yield document

    def _webhooks(self) -> Iterator[Json]:
        for document in load_documents(self._manifests / "webhook/manifests.yaml"):
            document["metadata"]["name"] = f"{_PREFIX}{document['metadata']['name']}"
            document["webhooks"] = [hook for hook in document["webhooks"] if hook["name"][1:] in _WEBHOOKS]
            for hook in document["webhooks"]:
                hook["clientConfig"] = self._reached_at(hook["clientConfig"]["service"]["path"])
            yield document

    def _reached_at(self, path: str) -> Json:
        bundle = base64.b64encode(self._control_plane.ca_file.read_bytes()).decode()
        return {"url": f"https://{self._host}:{self._webhook_port}{path}", "caBundle": bundle}


# What administrators make, as documents.


def flavor(name: str, node_labels: Mapping[str, str] | None = None) -> Json:
    """Return a ResourceFlavor, of the nodes with these labels or of all."""
    return _document("ResourceFlavor", name, {"nodeLabels": dict(node_labels)} if node_labels else {})


def cluster_queue(name: str, quotas: Mapping[str, str], *, flavor: str, **spec: Any) -> Json:
    """Return a ClusterQueue for all namespaces in which lower priorities are preempted.

    Args:
        name: Of the queue.
        quotas: By resource; whatever pods ask for has to be among them. Quotas that one job takes admit one at a time.
        flavor: The ResourceFlavor that they are of.
        spec: Added to its spec, as ``stopPolicy="HoldAndDrain"``.
    """
    resources = [{"name": resource, "nominalQuota": quota} for resource, quota in quotas.items()]
    group = {"coveredResources": list(quotas), "flavors": [{"name": flavor, "resources": resources}]}
    own = {
        "namespaceSelector": {},
        "preemption": {"withinClusterQueue": "LowerPriority"},
        "resourceGroups": [group],
    }
    return _document("ClusterQueue", name, {**own, **spec})


def local_queue(name: str, namespace: str, *, cluster_queue: str) -> Json:
    """Return a LocalQueue, which jobs of its namespace name."""
    document = _document("LocalQueue", name, {"clusterQueue": cluster_queue})
    document["metadata"]["namespace"] = namespace
    return document


def workload_priority(name: str, value: int) -> Json:
    """Return a WorkloadPriorityClass; PRIORITY_LABEL on a Job or MPIJob asks for it."""
    return {"apiVersion": VERSION, "kind": "WorkloadPriorityClass", "metadata": {"name": name}, "value": value}


def _document(kind: str, name: str, spec: Json) -> Json:
    return {"apiVersion": VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}
