"""Profiles: fields of a job's spec that belong to a cluster, kept in the operator's settings, overridden by the job's.

A job's own fields win, one by one (``spec_documents``). Documents are merged before defaults are filled in: a default
is not the user's choice and must not override the profile. For the same reason the definition has no defaults for these
fields, or the API server would write them into every job (``crd``). Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from bert_job.problems import Problem, render_value
from bert_job.section import FROM_PROFILE, keys_of
from bert_operator import names
from bert_operator.api.parsing.validation import parse_job
from bert_operator.api.schema.bert_pretrain_job import JobSpec
from bert_operator.api.schema.scheduling import OBJECT_NAME_PATTERN
from bert_operator.errors import InvalidJob
from bert_operator.spec_documents import SECTIONS_WITH_VOLUME, merge_profile, without_nulls

Document = dict[str, Any]
Profiles = Mapping[str, Document]

_MARKED = {
    key: JobSpec.model_fields[name].annotation
    for name, key in keys_of(JobSpec).items()
    if FROM_PROFILE in JobSpec.model_fields[name].metadata
}
PLATFORM_FIELDS = frozenset(_MARKED)
"""Fields of the spec that a profile may hold, whole."""


def complete(document: Document, profiles: Profiles, default_profile: str | None = None) -> Document:
    """Return a job's document with the fields that its profile adds; the job itself where it has none.

    Raises:
        InvalidJob: there is no such profile.
    """
    spec = document.get("spec")
    if not isinstance(spec, dict):
        return document
    profile = profile_of(spec, profiles, default_profile)
    return document if profile is None else {**document, "spec": merge_profile(spec, profile, PLATFORM_FIELDS)}


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
