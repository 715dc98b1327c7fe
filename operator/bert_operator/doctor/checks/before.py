"""Before the operator is installed: what whoever installs it may do, and what stands in the way."""

from __future__ import annotations

from collections.abc import Iterator

from bert_operator.doctor.checks.definition import NAME
from bert_operator.doctor.finding import Finding, error, note, warning
from bert_operator.doctor.objects import name_of, place_of
from bert_operator.doctor.snapshot import Snapshot
from bert_operator.json_paths import entries
from bert_operator.names import API_VERSION

INSTALLING = (
    ("create", "apiextensions.k8s.io", "customresourcedefinitions", ""),
    ("create", "", "namespaces", ""),
    ("create", "rbac.authorization.k8s.io", "clusterroles", ""),
    ("create", "scheduling.k8s.io", "priorityclasses", ""),
    ("create", "rbac.authorization.k8s.io", "clusterrolebindings", ""),
    ("escalate", "rbac.authorization.k8s.io", "clusterroles", ""),
    ("create", "apps", "deployments", "bert-operator"),
    ("create", "", "configmaps", "bert-operator"),
    ("create", "", "services", "bert-operator"),
    ("create", "", "serviceaccounts", "bert-operator"),
    ("create", "rbac.authorization.k8s.io", "roles", "bert-operator"),
)
"""What an installation does: (verb, group, resource, namespace). escalate: roles grant what the installer need not
have; whoever holds all that they grant can do without it."""

_FILE_SHARES = (
    "nfs", "cephfs", "file.csi.azure.com", "azure-file", "efs.csi.aws.com", "filestore", "glusterfs", "juicefs",
    "beegfs", "weka", "lustre", "gpfs", "spectrumscale", "netapp", "trident", "portworx", "longhorn", "manila",
)  # fmt: skip
"""Parts of the names of provisioners whose volumes pods on several nodes can share."""


def check_rights(snapshot: Snapshot) -> Iterator[Finding]:
    """Check whether the current user may install the operator."""
    refused = [right for right in INSTALLING if snapshot.allowed.get(right) is False]
    wanted = [f"{verb} {resource}{f'.{group}' if group else ''}{f' in {place}' if place else ''}"
              for verb, group, resource, place in refused if verb != "escalate"]  # fmt: skip
    if wanted:
        yield error(
            f"you may not: {', '.join(wanted)}",
            "kubectl apply and helm install stop half-way",
            "have somebody with cluster-admin install the operator; those who submit jobs need the role edit alone",
        )
    elif refused:
        yield note(
            "you may create ClusterRoles, but not grant more than you have yourself (escalate)",
            "the API server refuses the operator's ClusterRole unless you hold all of its rights",
            "install as cluster-admin if kubectl apply says so",
        )


def check_obstacles(snapshot: Snapshot) -> Iterator[Finding]:
    """Check whether objects of the operator's names exist already."""
    definition = snapshot.one("definition")
    if definition is not None:
        served = [str(item.get("name")) for item in entries(definition, "spec", "versions") if item.get("served")]
        if API_VERSION.rpartition("/")[2] not in served:
            yield error(
                f"CustomResourceDefinition {NAME} is there and serves {', '.join(served)}, not {API_VERSION}",
                "another project, or a release that is not known here, owns it",
                f"kubectl get crd {NAME} -o yaml; remove it only with all of its jobs",
            )
    for deployment in snapshot.operators():
        yield note(
            f"Deployment {place_of(deployment)}: an operator is installed already",
            "a second one would work on the same jobs",
            "upgrade it (docs/guides/install.md, Upgrade), and run the doctor without --pre",
        )
    if snapshot.one("mpijob definition") is None:
        yield note(
            "mpi-operator is not installed",
            "jobs with more than one worker need it; jobs with one worker do not",
            "kubectl apply --server-side -k deploy/kustomize/mpi-operator (docs/guides/install.md, mpi-operator)",
        )


def check_volumes(snapshot: Snapshot) -> Iterator[Finding]:
    """Check whether a StorageClass provides volumes that pods on several nodes can share."""
    classes = snapshot.items("storage classes")
    shared = [name_of(item) for item in classes if _is_shared(str(item.get("provisioner")))]
    if not shared:
        listed = ", ".join(f"{name_of(item)} ({item.get('provisioner')})" for item in classes) or "none"
        yield warning(
            f"no storage class is known here to make volumes that nodes share (ReadWriteMany); there are: {listed}",
            "workers of a job, and its attempts on other nodes, need one file system",
            "make a PersistentVolume of an NFS export (deploy/kustomize/overlays/gpu-nfs/volumes.yaml), or ask what "
            "the classes can do",
        )
    for name in [name_of(item) for item in classes if item.get("reclaimPolicy") == "Delete"]:
        if name not in shared:
            continue
        yield note(
            f"storage class {name}: reclaimPolicy Delete",
            "results go with the claim when somebody deletes it",
            "keep results on a class, or PersistentVolume, with Retain",
        )


def _is_shared(provisioner: str) -> bool:
    return any(word in provisioner for word in _FILE_SHARES)
