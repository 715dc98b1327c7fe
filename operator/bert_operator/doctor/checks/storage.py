"""Claims that jobs mount: there, bound, and such that several pods may share them; and the classes behind them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from bert_operator.doctor.demands import Demand, find_placed
from bert_operator.doctor.finding import Finding, error, warning
from bert_operator.doctor.objects import name_of, namespace_of, place_of, some
from bert_operator.doctor.snapshot import Snapshot
from bert_operator.json_paths import Json, dig

SHARED = {"ReadWriteMany", "ReadOnlyMany"}
_DEFAULT = "storageclass.kubernetes.io/is-default-class"


def _used(snapshot: Snapshot) -> dict[tuple[str, str], list[Demand]]:
    """Return who mounts which claim: by its namespace and name."""
    found: dict[tuple[str, str], list[Demand]] = defaultdict(list)
    for demand, place in find_placed(snapshot):
        for claim in sorted(demand.claims):
            found[place, claim].append(demand)
    return found


def check_claims(snapshot: Snapshot) -> Iterator[Finding]:
    """Check that every claim that a job mounts exists, is bound, and can be mounted by all of its pods."""
    claims = {(namespace_of(item), name_of(item)): item for item in snapshot.items("claims")}
    classes = {name_of(item): item for item in snapshot.items("storage classes")}
    for (place, name), demands in _used(snapshot).items():
        claim = claims.get((place, name))
        if claim is None:
            there = some(known for home, known in sorted(claims) if home == place) or "none"
            yield error(
                f"claim {place}/{name} does not exist, and {some(demand.owner for demand in demands)} mounts it; the "
                f"namespace has: {there}",
                "its pods stay Pending",
                "create the claim (deploy/kustomize/overlays/gpu-nfs/volumes.yaml is one), or correct the name",
            )
            continue
        modes = set(dig(claim, "spec", "accessModes") or [])
        many = [demand.owner for demand in demands if demand.workers > 1]
        if many and not modes & SHARED:
            yield error(
                f"claim {place}/{name} is {', '.join(sorted(modes))}; allowed: ReadWriteMany, since several workers "
                f"mount it: {some(many)}",
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
    """Check that pending claims name an existing StorageClass."""
    classes = {name_of(item): item for item in snapshot.items("storage classes")}
    used = _used(snapshot)
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
