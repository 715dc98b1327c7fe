"""Paths of objects in the Kubernetes API. Strings only."""

from __future__ import annotations

from bert_operator.api.crd import PLURAL
from bert_operator.names import API_VERSION, JobRef

_RESOURCES = {
    "BertPretrainJob": (f"apis/{API_VERSION}", PLURAL),
    "ConfigMap": ("api/v1", "configmaps"),
    "Event": ("api/v1", "events"),
    "Job": ("apis/batch/v1", "jobs"),
    "Lease": ("apis/coordination.k8s.io/v1", "leases"),
    "MPIJob": ("apis/kubeflow.org/v2beta1", "mpijobs"),
    "NetworkPolicy": ("apis/networking.k8s.io/v1", "networkpolicies"),
    "Node": ("api/v1", "nodes"),
    "Pod": ("api/v1", "pods"),
}


def path_of(kind: str, namespace: str | None, name: str = "", *, part: str = "") -> str:
    """Return the path of an object, of a collection (no name), or of a collection in all namespaces (no namespace).

    part: A subresource such as ``status``.
    """
    group, resource = _RESOURCES[kind]
    where = f"/namespaces/{namespace}" if namespace else ""
    return "/".join(filter(None, (f"/{group}{where}/{resource}", name, part)))


def workload_path(version: str, namespace: str, name: str = "") -> str:
    """Return the path of a Workload of Kueue's, or of those of a namespace. version: v1beta2, say."""
    return f"/apis/kueue.x-k8s.io/{version}/namespaces/{namespace}/workloads" + (f"/{name}" if name else "")


def job_path(ref: JobRef, *, part: str = "") -> str:
    """Return the path of a BertPretrainJob."""
    return path_of("BertPretrainJob", ref.namespace, ref.name, part=part)
