"""Claims that jobs mount: there, bound, and such that several pods may share them; and the classes behind them."""

from __future__ import annotations

from collections.abc import Iterator

from bert_operator.doctor.demands import Demand, find_demands
from bert_operator.doctor.finding import Finding, error, warning
from bert_operator.doctor.objects import Json, dig, name_of, namespace_of, place_of
from bert_operator.doctor.snapshot import Snapshot

SHARED = {"ReadWriteMany", "ReadOnlyMany"}
_DEFAULT = "storageclass.kubernetes.io/is-default-class"


def _used(snapshot: Snapshot) -> Iterator[tuple[Demand, str, str]]:
    """Yield who mounts which claim of which namespace; the default profile in namespaces without jobs, too."""
    default = snapshot.settings.document.get("defaultProfile") if snapshot.settings else None
    with_jobs = {namespace_of(job) for job in snapshot.items("jobs")}
    for demand in find_demands(snapshot):
        places = [demand.namespace] if demand.namespace else []
        if demand.owner == f"profile {default}":
            places = [name for name in snapshot.watched_namespaces() if name not in with_jobs]
        for place in places:
            for claim in sorted(demand.claims):
                yield demand, place, claim


def check_claims(snapshot: Snapshot) -> Iterator[Finding]:
    """See whether every claim that a job mounts exists, is bound, and can be mounted by all of its pods."""
    claims = {(namespace_of(item), name_of(item)): item for item in snapshot.items("claims")}
    classes = {name_of(item): item for item in snapshot.items("storage classes")}
    for demand, place, name in _used(snapshot):
        claim = claims.get((place, name))
        if claim is None:
            there = ", ".join(known for home, known in sorted(claims) if home == place) or "none"
            yield error(
                f"{demand.owner}: mounts the claim {place}/{name}, which does not exist; the namespace has: {there}",
                "its pods stay Pending",
                "create the claim (deploy/kustomize/overlays/gpu-nfs/volumes.yaml is one), or correct the name",
            )
            continue
        modes = set(dig(claim, "spec", "accessModes") or [])
        if demand.workers > 1 and not modes & SHARED:
            yield error(
                f"{demand.owner}: {demand.workers} workers mount the claim {place}/{name}, which is "
                f"{', '.join(sorted(modes))}; allowed: ReadWriteMany",
                "workers on a second node cannot mount it, and stay Pending; checkpoints need one file system for all",
                "make a claim with accessModes [ReadWriteMany] of a file share (NFS, CephFS, Azure Files, EFS, "
                "Filestore), and name it in the job or profile",
            )
        yield from _binding(claim, classes)


def _binding(claim: Json, classes: dict[str, Json]) -> Iterator[Finding]:
    phase = dig(claim, "status", "phase")
    if phase == "Lost":
        why = "the volume that it was bound to is gone, and its files with it, or out of reach"
        yield error(f"claim {place_of(claim)} is Lost", why, "restore the PersistentVolume, or make a new claim")
    if phase != "Pending":
        return
    name = dig(claim, "spec", "storageClassName")
    waits_for = classes.get(name) if name else next(iter(_defaults(classes)), None)
    if name != "" and waits_for is None:
        return  # check_classes says so
    if name == "" or dig(waits_for, "volumeBindingMode") != "WaitForFirstConsumer":
        yield warning(
            f"claim {place_of(claim)} is Pending: no volume has been bound to it",
            "pods that mount it stay Pending",
            f"kubectl -n {namespace_of(claim)} describe pvc {name_of(claim)} says what its provisioner reports",
        )


def check_classes(snapshot: Snapshot) -> Iterator[Finding]:
    """See whether claims that wait name a class that there is."""
    classes = {name_of(item): item for item in snapshot.items("storage classes")}
    used = {(place, name) for _, place, name in _used(snapshot)}
    for claim in snapshot.items("claims"):
        if (namespace_of(claim), name_of(claim)) not in used or dig(claim, "status", "phase") != "Pending":
            continue
        name = dig(claim, "spec", "storageClassName")
        there = ", ".join(sorted(classes)) or "none"
        if name and name not in classes:
            yield error(
                f"claim {place_of(claim)}, storageClassName: got {name}; allowed: a class of this cluster: {there}",
                "no volume is ever made for it, and pods that mount it stay Pending",
                "delete the claim and make it with a class that there is (a claim's class cannot be changed)",
            )
        elif name is None and not _defaults(classes):
            yield error(
                f"claim {place_of(claim)} names no storage class, and the cluster has no default one; it has: {there}",
                "no volume is ever made for it, and pods that mount it stay Pending",
                "make the claim with storageClassName, or mark a class as default",
            )


def _defaults(classes: dict[str, Json]) -> list[Json]:
    return [item for item in classes.values() if dig(item, "metadata", "annotations", _DEFAULT) == "true"]
