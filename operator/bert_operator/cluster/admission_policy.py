"""The ValidatingAdmissionPolicy that holds jobs against the operator's settings already at ``kubectl apply``.

Made of a template, admission-policy.yaml. What jobs may ask for are the settings' limits and privileges; what an absent
field is taken for is the schema's default. Each limit is a CEL variable that depends on the job's namespace.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pydantic.alias_generators import to_camel
from ruamel.yaml import YAML

from bert_operator.api.schema.bert_pretrain_job import JobSpec, RunPolicy
from bert_operator.api.schema.cluster import DEFAULT_ACCELERATOR
from bert_operator.cluster.limit_rules import ALLOWS_NONE, find_devices
from bert_operator.cluster.limits import Bounds, Limits
from bert_operator.cluster.settings import Settings
from bert_operator.errors import SettingsError
from bert_operator.spec_documents import NETWORK_DEVICE_PREFIX, network_devices

Document = dict[str, Any]

_TEMPLATE = Path(__file__).with_name("admission-policy.yaml")
NUMBERS = frozenset({"stop_grace_seconds", "ranks_per_namespace", "gpus_per_namespace"})
"""Limits that are the most that a job may ask for; all others list what it may name."""
_NO_LIMIT = 2**63 - 1
_MAX_EXPRESSION = 100_000
"""Characters that the API server reads of one (cel-go's default)."""
# Where a profile has one of these, how many ranks and GPUs a job has cannot be told without it.
_COUNTS = ("cpu", "slotsPerWorker", "worker")
_TOLD_INSTEAD = "this asks for more than the operator's settings let jobs of this namespace ask for; next: ask for less"
"""Where the API server has no room for what a rule says itself."""


def render_admission_policy(settings: Settings) -> list[Document]:
    """Return the policy and its binding, which is for the namespaces that the operator watches.

    Raises:
        SettingsError: a limit lists more than the API server reads.
    """
    policy, binding = YAML(typ="safe", pure=True).load_all(_TEMPLATE.read_text())
    found: list[Document] = _fill([policy, binding], _values(settings))
    spec = found[0]["spec"]
    spec["variables"] = [*_limit_variables(settings.limits), *spec["variables"]]
    spec["validations"] = [_validation(rule) for rule in spec["validations"]]
    for variable in spec["variables"]:
        size = len(variable["expression"])
        if size > _MAX_EXPRESSION:
            raise SettingsError(
                f"limits.{variable['name']}: got {size} characters for all namespaces; allowed in an admission policy: "
                f"{_MAX_EXPRESSION}",
                hint="name folders of registries, or servers, in place of all that is below them",
            )
    if settings.namespaces:
        watched = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": list(settings.namespaces)}
        found[1]["spec"]["matchResources"] = {"namespaceSelector": {"matchExpressions": [watched]}}
    return found


def _validation(rule: Document) -> Document:
    expression = rule["expression"]
    if "variables.stopGraceSeconds" not in expression:
        expression = f"variables.hasStarted || ({expression})"
    return {**rule, "expression": expression, "message": rule.get("message", _TOLD_INSTEAD)}


_PRIVILEGES = tuple(name for name in Settings.model_fields if name.startswith("allow_"))


def _values(settings: Settings) -> dict[str, str]:
    """Return what stands for each @@word of the template, as CEL."""
    profiles = settings.profiles
    devices = {str(asked.value) for profile in profiles.values() for asked in find_devices(profile)}
    return {
        "trainerImage": _literal(settings.trainer_image),
        "defaultProfile": _literal(settings.default_profile or ""),
        "profilesThatCountNothing": _literal(["", *(name for name in profiles if _counts_nothing(profiles[name]))]),
        "profilesNameAccelerators": _literal(
            any("resourceName" in _accelerator_of(profiles[name]) for name in profiles)
        ),
        "profileDevices": _literal(sorted(devices)),
        "profileNamespaces": _literal({name: list(allowed) for name, allowed in settings.profile_namespaces.items()}),
        "networkDevices": _literal(sorted(network_devices(settings.profiles.values()))),
        "networkDevicePrefix": _literal(NETWORK_DEVICE_PREFIX),
        **{to_camel(name): _literal(getattr(settings, name)) for name in _PRIVILEGES},
        "defaultWorkers": _literal(JobSpec.model_fields["workers"].default),
        "defaultSlotsPerWorker": _literal(JobSpec.model_fields["slots_per_worker"].default),
        "defaultStopGraceSeconds": _literal(RunPolicy.model_fields["stop_grace_seconds"].default),
        "defaultAccelerator": _literal(DEFAULT_ACCELERATOR),
    }


def _counts_nothing(profile: Document) -> bool:
    """Tell whether a job under this profile has the ranks and GPUs that it asks for itself."""
    return not any(name in profile for name in _COUNTS) and _accelerator_of(profile).keys() <= {"resourceName"}


def _accelerator_of(profile: Document) -> Document:
    accelerator: Document = profile.get("resources", {}).get("accelerator") or {}
    return accelerator


def _limit_variables(limits: Limits) -> Iterator[Document]:
    for name in Bounds.model_fields:
        variable = to_camel(name)
        if name in NUMBERS:
            yield _variable(variable, limits, partial(_most, name))
            continue
        yield _variable(variable, limits, partial(_listed, name))
        yield _variable(f"any{variable[0].upper()}{variable[1:]}", limits, partial(_is_any, name))
        none, listed = _literal(ALLOWS_NONE), f"variables.{variable}"
        words = f"size({listed}) == 0 ? {none} : {listed}.join(', ')"
        yield {"name": f"{variable}Allowed", "expression": words}


def _variable(name: str, limits: Limits, value_of: Callable[[Bounds], Any]) -> Document:
    """Return a variable whose value depends on the job's namespace where the limits do."""
    general = value_of(limits)
    own = {namespace: value_of(limits.bounds_of(namespace)) for namespace in limits.namespaces}
    differing = {namespace: value for namespace, value in own.items() if value != general}
    expression = _literal(general)
    if differing:
        expression = f"{_literal(differing)}[?object.metadata.namespace].orValue({expression})"
    return {"name": name, "expression": expression}


def _allowed(name: str, bounds: Bounds) -> tuple[str, ...] | None:
    if name == "resource_claims" and bounds.gpus_per_namespace is not None:
        return ()  # how many GPUs a claim brings is not known
    allowed: tuple[str, ...] | None = getattr(bounds, name)
    return allowed


def _listed(name: str, bounds: Bounds) -> list[str]:
    return [*(_allowed(name, bounds) or ())]


def _is_any(name: str, bounds: Bounds) -> bool:
    return _allowed(name, bounds) is None


def _most(name: str, bounds: Bounds) -> int:
    most: int | None = getattr(bounds, name)
    return _NO_LIMIT if most is None else min(most, _NO_LIMIT)


def _fill(part: Any, values: Mapping[str, str]) -> Any:
    if isinstance(part, dict):
        return {key: _fill(value, values) for key, value in part.items()}
    if isinstance(part, list):
        return [_fill(value, values) for value in part]
    return re.sub(r"@@(\w+)", lambda match: values[match[1]], part) if isinstance(part, str) else part


def _literal(value: Any) -> str:
    """Return a value as CEL, whose literals are those of JSON but for surrogates."""
    return json.dumps(value, ensure_ascii=False)
