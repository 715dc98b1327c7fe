"""What a job's spec asks for, read from its document: with what its profile adds, and with which privileges. Pure.

For whoever has a document and not a job: profiles, specs that other releases have frozen, and the doctor, which needs
the standard library alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

from bert_operator.json_paths import Json, dig, entries, mapping

SECTIONS_WITH_VOLUME = ("dataset", "output")
"""Sections of which a profile may hold ``volume``, and nothing else."""
NETWORK_DEVICE_PREFIX = "rdma/"
"""How the resources of the RDMA device plugins begin."""

_BY_NAME = ("env", "volumes")
"""Lists whose entries are merged by name; any other list of the job replaces that of the profile."""
_WHOLE = frozenset({"affinity", "matchLabels", "nodeSelector", "topology"})
"""Maps and sections that a job replaces as a whole: merged, they would select other nodes than either."""


def merge_profile(own: Json, profile: Json, fields: Collection[str]) -> Json:
    """Return a job's spec with what its profile adds. fields: those that a profile may hold."""
    # As in the API server, null is no value: it does not remove the profile's.
    own = {key: without_nulls(value) if key in fields else value for key, value in own.items() if value is not None}
    merged = {**profile, **own}
    for name in profile.keys() & own.keys():
        if name in SECTIONS_WITH_VOLUME:
            # A volume is merged as a whole: half of a claim and half of an NFS export would be neither.
            merged[name] = {**own[name], **mapping(profile, name)} if _lacks_volume(own[name]) else own[name]
        elif name in _BY_NAME:
            merged[name] = _merge_by_name(profile[name], own[name])
        else:
            merged[name] = _merge_sections(profile[name], own[name])
    return _count_ranks_once(own, merged)


def without_nulls(value: Any) -> Any:
    """Return a copy in which no field of a section is null."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


def _lacks_volume(section: Any) -> bool:
    return isinstance(section, dict) and section.get("volume") is None


def _merge_sections(profile: Any, own: Any) -> Any:
    if not isinstance(profile, dict) or not isinstance(own, dict):
        return own
    merged = {**profile, **own}
    for name in profile.keys() & own.keys() - _WHOLE:
        merged[name] = _merge_sections(profile[name], own[name])
    return merged


def _merge_by_name(profile: Any, own: Any) -> Any:
    if not isinstance(profile, list) or not isinstance(own, list):
        return own
    taken = [entry.get("name") for entry in own if isinstance(entry, dict)]
    return [*(entry for entry in profile if dig(entry, "name") not in taken), *own]


def _count_ranks_once(own: Json, merged: Json) -> Json:
    """Keep only one of slotsPerWorker and cpu.ranksPerNode: the job's choice replaces the profile's.

    Together they break ranks_are_counted_once, and the user would be blamed for a field of the profile.
    """
    if "slotsPerWorker" in own and "ranksPerNode" in mapping(merged, "cpu"):
        cpu = {key: value for key, value in merged["cpu"].items() if key != "ranksPerNode"}
        # Where both are the job's own, the rule shall find them.
        return {**merged, "cpu": cpu} if "ranksPerNode" not in mapping(own, "cpu") else merged
    if "ranksPerNode" in mapping(own, "cpu") and "slotsPerWorker" not in own:
        return {key: value for key, value in merged.items() if key != "slotsPerWorker"}
    return merged


def list_volumes(spec: Json) -> Iterator[tuple[str, Json]]:
    """Yield the path and the source of each volume of a spec."""
    for section in (*SECTIONS_WITH_VOLUME, "workspace"):
        if source := mapping(spec, section, "volume"):
            yield f"{section}.volume", source
    for number, entry in enumerate(entries(spec, "volumes")):
        yield f"volumes[{number}].source", mapping(entry, "source")


def find_privileges(spec: Json, network_devices: Collection[str] = ()) -> Iterator[tuple[str, Any]]:
    """Yield path and value of each privilege in a spec.

    Folders, network, network devices and locked memory of the node, and safeToForcefullyDelete.

    Args:
        spec: with any fields missing.
        network_devices: names of resources that are network devices, besides those with the prefix of RDMA plugins.
    """
    for path, volume in list_volumes(spec):
        if volume.get("hostPath"):
            yield f"spec.{path}.hostPath", dig(volume, "hostPath", "path") or "nothing"
    for names in (("resources",), ("worker", "resources")):
        path, section = ".".join(names), mapping(spec, *names)
        if section.get("rdma"):
            yield f"spec.{path}.rdma", dig(section, "rdma", "resourceName")
        device = str(dig(section, "accelerator", "resourceName") or "")
        if device and (device.startswith(NETWORK_DEVICE_PREFIX) or device in network_devices):
            # Asked for as an accelerator, the device is the same.
            yield f"spec.{path}.accelerator", device
    for part, name in (
        ("network", "hostNetwork"),
        ("network", "lockMemory"),
        ("scheduling", "safeToForcefullyDelete"),
    ):
        if dig(spec, part, name):
            yield f"spec.{part}.{name}", True


def network_devices(profiles: Iterable[Json]) -> frozenset[str]:
    """Return the resources that profiles use as network devices: a job might request one as its accelerator."""
    found = (path_and_name for profile in profiles for path_and_name in find_privileges(profile))
    return frozenset(str(name) for path, name in found if path.endswith(".rdma"))


def count_ranks(spec: Json) -> int:
    """Return the training processes of one worker: ``JobSpec.ranks_per_worker`` of a document."""
    cpu = mapping(spec, "cpu")
    places = "numaNodes" if cpu.get("pinning") == "numa" else "sockets"
    number = spec.get("slotsPerWorker") if cpu.get("ranksPerNode") is None else cpu.get(places)
    return number if isinstance(number, int) and number > 0 else 1
