"""The frozen configuration: everything that decides a run, resolved once before the first attempt. Pure.

Every attempt reads the same immutable ConfigMap, so that a retry after an upgrade of the operator, or after a
change of its defaults, still runs what the first attempt ran.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from bert_operator.api.parsing.validation import parse_started_job
from bert_operator.api.rules import mounts
from bert_operator.api.schema.bert_pretrain_job import BertPretrainJob, Stage
from bert_operator.api.schema.section import Section
from bert_operator.errors import InvalidJob
from bert_operator.names import API_VERSION, KIND
from bert_operator.render import names
from bert_operator.render.run_config import place_path, render_run_config
from bert_operator.render.users import render_files

Document = dict[str, Any]

RUN_CONFIG_KEY = "run-config.json"
SPEC_KEY = "spec.json"

_MAY_DIFFER = frozenset({"contract_version", "delete_after_success"})
"""Of run configurations: what a release says of itself, and what follows from runPolicy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    """What every attempt of a job is rendered from."""

    job: BertPretrainJob
    """With the image filled in, and the ranks counted."""
    uid: str
    output_folder: str
    """Absolute, in the pods."""
    spec_hash: str
    """Of the spec without runPolicy, which may change."""


def freeze(job: BertPretrainJob, *, default_image: str) -> Frozen:
    """Resolve what an empty field means in a cluster. The job passed ``cluster_problems`` and has a uid."""
    assert job.metadata.uid is not None, "the API server gives every object one"
    spec = job.spec.resolve_ranks().model_copy(update={"image": job.spec.image or default_image})
    resolved = job.model_copy(update={"spec": spec})
    folder = place_path(spec.output.path, base=mounts.output_base(spec)) or spec.output.path
    return Frozen(
        job=resolved,
        uid=job.metadata.uid,
        output_folder=folder,
        spec_hash=names.content_hash(spec_document(resolved, without=("run_policy",))),
    )


def spec_document(job: BertPretrainJob, *, without: tuple[str, ...] = ()) -> Document:
    """Return a job's spec with its defaults, as it is written in YAML, without fields that hold nothing.

    A null that stands for something, such as that gradients are never clipped, is kept: left out it would be read
    as the default.
    """
    document: Document = _written(job.spec, without)
    return document


def _written(value: Any, without: tuple[str, ...] = ()) -> Any:
    if isinstance(value, Section):
        return {
            field.alias or name: _written(item)
            for name, field in type(value).model_fields.items()
            if name not in without and ((item := getattr(value, name)) is not None or field.default is not None)
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
            RUN_CONFIG_KEY: json.dumps(run_config, indent=1),
            SPEC_KEY: json.dumps(spec_document(frozen.job)),
            **render_files(spec),
        },
    }


def owner_reference(frozen: Frozen) -> Document:
    """Return what makes the job the controlling owner of a child."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": frozen.job.ref.name,
        "uid": frozen.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def data_hash(config_map: Mapping[str, Any]) -> str:
    """Return the SHA-256 of everything that can be read from a ConfigMap."""
    content = [config_map.get(field) or {} for field in ("data", "binaryData")]
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def read_frozen(data: Mapping[str, str]) -> Document:
    """Return the spec that a ConfigMap holds; raises KeyError or ValueError where it holds none."""
    document = json.loads(data[SPEC_KEY])
    if not isinstance(document, dict):
        raise ValueError(f"{SPEC_KEY} holds no object")
    return document


def thaw(document: Document, data: Mapping[str, str]) -> Frozen:
    """Return what a ConfigMap was made from, with the runPolicy that the job's document has now.

    Raises:
        InvalidJob: this release cannot read the spec.
        KeyError, ValueError: there is none.
    """
    spec = read_frozen(data)
    live = {key: value for key, value in document["spec"].items() if key == "runPolicy"}
    job = parse_started_job({**document, "spec": {**spec, **live}}, by_rules=False)
    # Of the text, not of what was read: a newer release knows more fields, and children carry its sum.
    spec_hash = names.content_hash({key: value for key, value in spec.items() if key != "runPolicy"})
    return replace(freeze(job, default_image=""), spec_hash=spec_hash)


def agrees(config_map: Mapping[str, Any], own: Frozen, was_default: Callable[[str], bool]) -> bool:
    """Tell whether a ConfigMap of an earlier release says what this one would write, as far as both say something.

    was_default: whether an image may stand in it in place of our own. A release adds fields, and moves its own image.
    """
    metadata = {"name": own.job.ref.name, "namespace": own.job.ref.namespace, "uid": own.uid}
    document = {"apiVersion": own.job.api_version, "kind": own.job.kind, "metadata": metadata, "spec": {}}
    try:
        found = thaw(document, config_map["data"]).job.spec
        run_config = json.loads(config_map["data"][RUN_CONFIG_KEY])
    except (InvalidJob, KeyError, RecursionError, TypeError, ValueError):
        return False
    if found.image is None or found.image != own.job.spec.image and not was_default(found.image):
        return False
    spec = own.job.spec.model_copy(update={"stages": _without_former_default(own.job.spec.stages, found.stages)})
    own = replace(own, job=own.job.model_copy(update={"spec": spec}))
    moved = spec.model_copy(update={"image": found.image, "run_policy": found.run_policy})
    expected, data = dict(render_config_map(own)["data"]), dict(config_map["data"])
    own_run_config = json.loads(expected.pop(RUN_CONFIG_KEY))
    for held, key in ((expected, SPEC_KEY), (data, SPEC_KEY), (data, RUN_CONFIG_KEY)):
        del held[key]
    is_fixed = config_map.get("immutable") is True and not config_map.get("binaryData")
    return is_fixed and found == moved and data == expected and _agree(run_config, own_run_config)


def _without_former_default(own: tuple[Stage, ...], found: tuple[Stage, ...]) -> tuple[Stage, ...]:
    """Leave out what the definition of 0.1.0 has filled into a job of a later release while that one was away."""
    return (
        tuple(
            stage.model_copy(update={"pretrain": stage.pretrain.model_copy(update={"optimizer_state": None})})
            if stage.pretrain is not None
            and stage.pretrain.optimizer_state == "keep"
            and before.pretrain is not None
            and before.pretrain.optimizer_state is None
            else stage
            for stage, before in zip(own, found, strict=False)
        )
        + own[len(found) :]
    )


def _agree(found: Any, own: Any) -> bool:
    """Tell whether a document holds nothing else than our own, which may have fields that it has not."""
    if isinstance(found, dict) and isinstance(own, dict):
        return all(key in own and _agree(found[key], own[key]) for key in found.keys() - _MAY_DIFFER)
    if isinstance(found, list) and isinstance(own, list):
        return len(found) == len(own) and all(map(_agree, found, own))
    return bool(found == own)
