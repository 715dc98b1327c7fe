"""Profiles: fields of a job's spec that belong to a cluster, kept in the operator's settings, overridden by the job's.

A job's own fields win, one by one. Documents are merged before defaults are filled in: a default is not the user's
choice and must not override the profile. For the same reason the definition has no defaults for these fields, or the
API server would write them into every job (``crd``). Pure.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from bert_job.problems import ABSENT, Problem, render_value
from bert_job.section import FROM_PROFILE, Section, keys_of
from bert_operator import names
from bert_operator.api.parsing.validation import parse_job
from bert_operator.api.schema.bert_pretrain_job import JobSpec
from bert_operator.api.schema.scheduling import OBJECT_NAME_PATTERN
from bert_operator.errors import InvalidJob

Document = dict[str, Any]
Profiles = Mapping[str, Document]

_MARKED = {
    key: JobSpec.model_fields[name].annotation
    for name, key in keys_of(JobSpec).items()
    if FROM_PROFILE in JobSpec.model_fields[name].metadata
}
PLATFORM_FIELDS = frozenset(_MARKED)
"""Fields of the spec that a profile may hold, whole."""
_SECTIONS = tuple(key for key, kind in _MARKED.items() if isinstance(kind, type) and issubclass(kind, Section))
"""Those that are merged field by field, and the sections in them too."""
SECTIONS_WITH_VOLUME = ("dataset", "output")
"""Sections of which a profile may hold ``volume``, and nothing else."""

_BY_NAME = ("env", "volumes")
"""Lists whose entries are merged by name; any other list of the job replaces that of the profile."""
NETWORK_DEVICE_PREFIX = "rdma/"
"""How the resources of the RDMA device plugins begin."""
_WHOLE = frozenset({"affinity", "matchLabels", "nodeSelector", "topology"})
"""Maps and sections that a job replaces as a whole: merged, they would select other nodes than either."""


def complete(document: Document, profiles: Profiles, default_profile: str | None = None) -> Document:
    """Return a job's document with the fields that its profile adds; the job itself where it has none.

    Raises:
        InvalidJob: there is no such profile.
    """
    spec = document.get("spec")
    if not isinstance(spec, dict):
        return document
    profile = profile_of(spec, profiles, default_profile)
    return document if profile is None else {**document, "spec": _complete_spec(spec, profile)}


def profile_of(spec: Document, profiles: Profiles, default_profile: str | None = None) -> Document | None:
    """Return the profile that a spec names, or the default one; raises InvalidJob where there is no such profile."""
    name = spec.get("profile") or default_profile
    if not isinstance(name, str):
        return None  # none, or a mistake that validation reports together with all others
    if name not in profiles:
        known = f"one that the operator's settings have: {', '.join(sorted(profiles))}"
        raise InvalidJob(
            [
                Problem(
                    path="spec.profile",
                    got=render_value(name),
                    allowed=known if profiles else "none: the operator's settings have no profiles",
                    next_step="correct the name, or have the profile added to the operator's settings",
                )
            ]
        )
    return profiles[name]


def _complete_spec(own: Document, profile: Document) -> Document:
    # As in the API server, null is no value: it does not remove the profile's.
    own = {
        key: without_nulls(value) if key in PLATFORM_FIELDS else value
        for key, value in own.items()
        if value is not None
    }
    merged = {**profile, **own}
    for name in _SECTIONS:
        if name in own and name in profile:
            merged[name] = _merge_sections(profile[name], own[name])
    for name in SECTIONS_WITH_VOLUME:
        if name in own and name in profile:
            # A volume is merged as a whole: half of a claim and half of an NFS export would be neither.
            merged[name] = {**own[name], **profile[name]} if _lacks_volume(own[name]) else own[name]
    for name in _BY_NAME:
        if name in own and name in profile:
            merged[name] = _merge_by_name(profile[name], own[name])
    return _count_ranks_once(own, merged)


def _lacks_volume(section: Any) -> bool:
    return isinstance(section, dict) and section.get("volume") is None


def without_nulls(value: Any) -> Any:
    """Return a copy in which no field of a section is null."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


def _merge_sections(profile: Any, own: Any) -> Any:
    if not isinstance(profile, dict) or not isinstance(own, dict):
        return own
    merged = {**profile, **own}
    for name in profile.keys() & own.keys() - _WHOLE:
        merged[name] = _merge_sections(profile[name], own[name])
    return merged


def _merge_by_name(profile: Any, own: Any) -> Any:
    if not isinstance(own, list):
        return own
    taken = [entry.get("name") for entry in own if isinstance(entry, dict)]
    return [*(entry for entry in profile if entry["name"] not in taken), *own]


def _count_ranks_once(own: Document, merged: Document) -> Document:
    """Keep only one of slotsPerWorker and cpu.ranksPerNode: the job's choice replaces the profile's.

    Together they break ranks_are_counted_once, and the user would be blamed for a field of the profile.
    """
    if "slotsPerWorker" in own and "ranksPerNode" in merged.get("cpu", {}):
        cpu = {key: value for key, value in merged["cpu"].items() if key != "ranksPerNode"}
        # Where both are the job's own, the rule shall find them.
        return {**merged, "cpu": cpu} if "ranksPerNode" not in own.get("cpu", {}) else merged
    if isinstance(own.get("cpu"), dict) and "ranksPerNode" in own["cpu"] and "slotsPerWorker" not in own:
        return {key: value for key, value in merged.items() if key != "slotsPerWorker"}
    return merged


def find_profile_problems(profiles: Any, default_profile: Any) -> Iterator[Problem]:
    """Yield what is wrong with the profiles of a settings file; paths count from the file."""
    if not isinstance(profiles, dict):
        yield Problem(
            path="profiles",
            got=render_value(profiles),
            allowed="names with fields of a job's spec",
            next_step="write a mapping from names to such fields",
        )
        return
    for name, profile in profiles.items():
        if not (isinstance(name, str) and len(name) <= 63 and re.fullmatch(OBJECT_NAME_PATTERN, name)):
            yield Problem(
                path=f"profiles.{name}",
                got="a name that no job could write",
                allowed="lower-case letters, digits, and -. between them; at most 63 characters",
                next_step="call it otherwise, here and in defaultProfile and profileNamespaces",
            )
        yield from _problems_of(f"profiles.{name}", profile)
    if default_profile is not None and default_profile not in profiles:
        yield Problem(
            path="defaultProfile",
            got=render_value(default_profile),
            allowed=", ".join(sorted(map(str, profiles))) or "none, since there are no profiles",
            next_step="name one of the profiles, or leave the field out",
        )


def _problems_of(path: str, profile: Any) -> Iterator[Problem]:
    if not isinstance(profile, dict):
        yield Problem(path=path, got=render_value(profile), allowed="fields of a job's spec", next_step="add fields")
        return
    allowed = {*PLATFORM_FIELDS, *SECTIONS_WITH_VOLUME}
    for name in sorted(profile.keys() - allowed):
        yield Problem(
            path=f"{path}.{name}",
            got=render_value(profile[name]),
            allowed=f"what belongs to a cluster: {', '.join(sorted(allowed))}",
            next_step="leave it to the jobs",
        )
    for name in SECTIONS_WITH_VOLUME:
        section = profile.get(name, {})
        for key in sorted(section.keys() - {"volume"}) if isinstance(section, dict) else ():
            yield Problem(
                path=f"{path}.{name}.{key}",
                got=render_value(section[key]),
                allowed="volume: paths belong to jobs",
                next_step="leave it to the jobs",
            )
    # Without what was reported above: the rules would report it a second time, in other words.
    known = without_nulls({key: value for key, value in profile.items() if key in allowed})
    try:
        parse_job(complete(_plain_job(known), {path: known}, path))
    except InvalidJob as invalid:
        for problem in invalid.problems:
            where = problem.path.removeprefix("spec.")
            yield Problem(path=f"{path}.{where}", got=problem.got, allowed=problem.allowed, next_step=problem.next_step)


def _plain_job(profile: Document) -> Document:
    """Return a job that is valid with any valid profile, so that all problems found are the profile's."""
    # The largest batch allowed, for any number of ranks; as many ranks as the profile's pinning asks for, unless it has
    # a number itself.
    cpu = profile.get("cpu")
    spec: Document = {
        "model": {"preset": "tiny"},
        "dataset": {"path": "data"},
        "stages": [
            {
                "name": "any",
                "pretrain": {
                    "sequenceLength": 128,
                    "globalBatchSize": 4_194_304,
                    "learningRate": 1e-3,
                    "length": {"steps": 1},
                },
            }
        ],
        "output": {"path": "results"},
    }
    if "slotsPerWorker" not in profile and isinstance(cpu, dict) and "ranksPerNode" not in cpu:
        places = cpu.get({"socket": "sockets", "numa": "numaNodes"}.get(str(cpu.get("pinning")), ""))
        spec |= {"slotsPerWorker": places} if isinstance(places, int) else {}
    return {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": "any"}, "spec": spec}


def find_privileges(spec: Document, network_devices: Collection[str] = ()) -> Iterator[tuple[str, Any]]:
    """Yield path and value of each privilege in a spec.

    Folders, network, network devices and locked memory of the node, and safeToForcefullyDelete.

    It reads documents and not jobs: profiles and specs frozen by other releases are looked at too.

    Args:
        spec: with any fields missing.
        network_devices: names of resources that are network devices, besides those with the prefix of RDMA plugins.
    """
    sections = [(name, spec.get(name)) for name in ("dataset", "output", "workspace")]
    volumes = [(f"{name}.volume", section.get("volume")) for name, section in sections if isinstance(section, dict)]
    entries = spec.get("volumes") or ()
    volumes += [(f"volumes[{number}].source", entry.get("source")) for number, entry in enumerate(entries)]
    for path, volume in volumes:
        if isinstance(volume, dict) and volume.get("hostPath"):
            yield f"spec.{path}.hostPath", volume["hostPath"].get("path", ABSENT)
    for path in ("resources", "worker.resources"):
        section: Any = spec
        for name in path.split("."):
            section = section.get(name) if isinstance(section, dict) else None
        if isinstance(section, dict) and section.get("rdma"):
            yield f"spec.{path}.rdma", section["rdma"].get("resourceName")
        accelerator = (section.get("accelerator") or {}) if isinstance(section, dict) else {}
        device = accelerator.get("resourceName")
        if device and (device.startswith(NETWORK_DEVICE_PREFIX) or device in network_devices):
            # Asked for as an accelerator, the device is the same.
            yield f"spec.{path}.accelerator", device
    for part, name in (
        ("network", "hostNetwork"),
        ("network", "lockMemory"),
        ("scheduling", "safeToForcefullyDelete"),
    ):
        if (spec.get(part) or {}).get(name):
            yield f"spec.{part}.{name}", True
