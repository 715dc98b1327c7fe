"""The frozen configuration: everything that determines a run, resolved once before the first attempt. Pure.

Every attempt is rendered from the same immutable ConfigMap, so that a retry after an upgrade of the operator, or after
a change of its defaults, runs what the first attempt ran.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from bert_job.optimizers import name_optimizer
from bert_job.run_config import RunConfig
from bert_job.section import Section, keys_of
from bert_job.upgrades import upgrade
from bert_operator.api.parsing.validation import parse_started_job
from bert_operator.api.rules import mounts
from bert_operator.api.schema.bert_pretrain_job import BertPretrainJob, JobSpec
from bert_operator.errors import InvalidJob
from bert_operator.json_text import write_json
from bert_operator.names import API_VERSION, KIND
from bert_operator.render import names
from bert_operator.render.run_config import place_path, render_run_config
from bert_operator.render.shared_memory import size_shared_memory
from bert_operator.render.users import render_files

Document = dict[str, Any]

RUN_CONFIG_KEY = "run-config.json"
SPEC_KEY = names.SPEC_KEY

_FOR_HASHES: Document = {"sort_keys": True, "separators": (",", ":")}
"""How documents are written to be hashed. Hashes are compared with those of other releases."""
_PLAIN = frozenset({bool, float, int, str})
"""Of most values, which are written as they are."""
_MAY_DIFFER = frozenset({"contract_version", "delete_after_success"})
"""Keys of run configurations that depend on the release, or on runPolicy, which may change."""


@dataclass(frozen=True, kw_only=True)
class Frozen:
    """Frozen configuration: the input from which every attempt of a job is rendered."""

    job: BertPretrainJob
    """With its image and its number of ranks resolved."""
    uid: str
    output_folder: str
    """Absolute, in the pods."""
    found_hash: str | None = None
    """Of the text that it was read from, if it was. A newer release may have frozen fields that this one drops, and its
    children are annotated with the hash of all of them."""

    @cached_property
    def document(self) -> Document:
        """The spec as it is stored."""
        return spec_document(self.job)

    @cached_property
    def spec_hash(self) -> str:
        """Hash of the spec without runPolicy, which may change."""
        return self.found_hash or _hash_of(self.document)


def freeze(job: BertPretrainJob, *, default_image: str) -> Frozen:
    """Resolve the defaults that depend on the cluster or the operator's release.

    The job has passed ``cluster_problems`` and has a uid.
    """
    spec = size_shared_memory(name_optimizer(job.spec.resolve_ranks()))
    spec = spec.model_copy(update={"image": job.spec.image or default_image})
    return _freeze_as_it_is(job, spec)


def _freeze_as_it_is(job: BertPretrainJob, spec: JobSpec) -> Frozen:
    assert job.metadata.uid is not None, "the API server gives every object a uid"
    resolved = job.model_copy(update={"spec": spec})
    folder = place_path(spec.output.path, base=mounts.output_base(spec)) or spec.output.path
    return Frozen(
        job=resolved,
        uid=job.metadata.uid,
        output_folder=folder,
    )


def _hash_of(spec: Document) -> str:
    text = json.dumps({key: value for key, value in spec.items() if key != "runPolicy"}, **_FOR_HASHES)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def spec_document(job: BertPretrainJob) -> Document:
    """Return a job's spec with its defaults, with YAML's field names and without empty fields."""
    document: Document = _written(job.spec)
    return document


def _written(value: Any) -> Any:
    if isinstance(value, Section):
        fields = vars(value)
        return {
            key: item if type(item) in _PLAIN else _written(item)
            for name, key in keys_of(type(value)).items()
            if (item := fields[name]) is not None
        }
    if isinstance(value, tuple):
        return [_written(item) for item in value]
    return dict(value) if isinstance(value, dict) else value


def render_config_map(frozen: Frozen) -> Document:
    """Return the ConfigMap."""
    spec = frozen.job.spec
    run_config = render_run_config(
        frozen.job,
        uid=frozen.uid,
        ranks=spec.ranks,
        hosts=spec.workers,
        output_folder=frozen.output_folder,
        data_base=mounts.dataset_base(spec),
        in_pods=True,
    )
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": names.config_map_name(frozen.job.ref.name),
            "namespace": frozen.job.ref.namespace,
            "labels": {"app.kubernetes.io/managed-by": "bert-operator", names.JOB_LABEL: frozen.job.ref.name},
            "annotations": {names.HASH_ANNOTATION: frozen.spec_hash},
            "ownerReferences": [owner_reference(frozen)],
        },
        "immutable": True,
        "data": {
            RUN_CONFIG_KEY: _write_by_section(run_config),
            SPEC_KEY: write_json(frozen.document).decode(),
            **render_files(spec),
        },
    }


def _write_by_section(document: Document) -> str:
    """Return a document as JSON with a line for each of its sections, for people who look into the ConfigMap."""
    sections = (f'"{name}": {write_json(section).decode()}' for name, section in document.items())
    return "{" + ",\n ".join(sections) + "}"


def owner_reference(frozen: Frozen) -> Document:
    """Return the ownerReference that makes the job the controller of a child."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": frozen.job.ref.name,
        "uid": frozen.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def data_hash(config_map: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a ConfigMap's content: data and binaryData, independent of the order of keys."""
    # binaryData as well: what stands there is mounted into the pods like the rest.
    content = [config_map.get(field) or {} for field in ("data", "binaryData")]
    text = json.dumps(content, **_FOR_HASHES)
    return hashlib.sha256(text.encode()).hexdigest()


def read_frozen(data: Mapping[str, str]) -> Document:
    """Return the spec in a ConfigMap's data. Raises KeyError or ValueError if there is none."""
    document = json.loads(data[SPEC_KEY])
    if not isinstance(document, dict):
        raise ValueError(f"{SPEC_KEY} is not a JSON object")
    return document


def thaw(document: Document, data: Mapping[str, str]) -> Frozen:
    """Return a frozen configuration from its ConfigMap, with the current runPolicy of the job's document.

    Raises:
        InvalidJob: This release cannot read the spec.
        KeyError, ValueError: There is no spec.
    """
    spec = read_frozen(data)
    # runPolicy is live: suspending a started job, or giving it more retries, takes effect at once.
    live = {key: value for key, value in document["spec"].items() if key == "runPolicy"}
    job = parse_started_job({**document, "spec": {**spec, **live}}, by_rules=False)
    # No defaults: a frozen spec has those of the release that froze it.
    return replace(_freeze_as_it_is(job, job.spec.resolve_ranks()), found_hash=_hash_of(spec))


def agrees(config_map: Mapping[str, Any], own: Frozen, was_default: Callable[[str], bool]) -> bool:
    """Return whether a ConfigMap of an earlier release equals what this one would write, in the fields of both.

    A release adds fields, and has another default image.

    Args:
        config_map: The one that exists.
        own: What this release would write.
        was_default: Returns whether an image may be in it in place of our own.
    """
    metadata = {"name": own.job.ref.name, "namespace": own.job.ref.namespace, "uid": own.uid}
    document = {"apiVersion": own.job.api_version, "kind": own.job.kind, "metadata": metadata, "spec": {}}
    try:
        found = thaw(document, config_map["data"]).job.spec
        run_config = _read_run_config(config_map["data"][RUN_CONFIG_KEY])
    except (InvalidJob, KeyError, RecursionError, TypeError, ValueError):
        return False
    if found.image is None or found.image != own.job.spec.image and not was_default(found.image):
        return False
    moved = own.job.spec.model_copy(update={"image": found.image, "run_policy": found.run_policy})
    expected, data = dict(render_config_map(own)["data"]), dict(config_map["data"])
    own_run_config = json.loads(expected.pop(RUN_CONFIG_KEY))
    for held, key in ((expected, SPEC_KEY), (data, SPEC_KEY), (data, RUN_CONFIG_KEY)):
        del held[key]
    is_fixed = config_map.get("immutable") is True and not config_map.get("binaryData")
    return is_fixed and found == moved and data == expected and _agree(run_config, own_run_config)


def _read_run_config(text: str) -> Document:
    """Return a run configuration of any release in today's form, with its defaults; raises ValueError for others."""
    document = json.loads(text)
    if not isinstance(document, dict):
        raise TypeError(f"got {type(document).__name__}; allowed: a run configuration")
    config = RunConfig.model_validate_json(json.dumps(upgrade(document)), by_alias=False, by_name=True)
    return config.model_dump(mode="json")


def _agree(found: Any, own: Any) -> bool:
    """Return whether every field of a document is equal in our own, which may have more fields."""
    if isinstance(found, dict) and isinstance(own, dict):
        return all(key in own and _agree(found[key], own[key]) for key in found.keys() - _MAY_DIFFER)
    if isinstance(found, list) and isinstance(own, list):
        return len(found) == len(own) and all(map(_agree, found, own))
    return bool(found == own)
