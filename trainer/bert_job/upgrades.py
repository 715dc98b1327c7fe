"""Jobs and run configurations of earlier releases, as those of today: runs that have begun go on under a later release.

A run's output folder keeps the document that it began with, and so does a job's ConfigMap.
"""

from __future__ import annotations

from typing import Any, get_args

from bert_job.dataset_names import LayoutName, WrittenLayout

Document = dict[str, Any]
EARLIER_VERSIONS = (1,)
"""Contract versions that ``upgrade`` knows."""

_MODEL_NAMES = {
    "attention_probs_dropout_prob": "attention_dropout",
    "hidden_act": "hidden_activation",
    "hidden_dropout_prob": "hidden_dropout",
    "layer_norm_eps": "layer_norm_epsilon",
    "type_vocab_size": "segment_types",
    "vocab_pad_multiple": "vocabulary_pad_multiple",
    "vocab_size": "vocabulary_size",
}
_DEFAULTS_OF_1 = {
    "max_position_embeddings": 512,
    "hidden_dropout": 0.1,
    "attention_dropout": 0.1,
    "layer_norm_epsilon": 1e-12,
}
_READ_ALONE = tuple(name for name in get_args(LayoutName) if name not in get_args(WrittenLayout))
"""Layouts that ``bert-data`` wrote once."""


def upgrade(document: Document) -> Document:
    """Return a document of any version that this release knows in its own form; one of another version unchanged."""
    found = _from_1(document) if document.get("contract_version") == 1 else document
    return _with_written_layouts(found)


def upgrade_job(document: Document) -> Document:
    """Return a job that an earlier release has started, as this release reads it."""
    spec = document.get("spec")
    if not isinstance(spec, dict):
        return document
    found = _with_written_layouts(spec)
    if isinstance(spec.get("health"), dict):
        found = {**found, "health": _health(spec["health"])}
    return {**document, "spec": found}


def _from_1(document: Document) -> Document:
    """Fields got the names that they have in a job, and a stage's schedule no longer is a section."""
    found = {**document, "contract_version": 2}
    if isinstance(model := document.get("model"), dict):
        found["model"] = _model({str(_MODEL_NAMES.get(name, name)): value for name, value in model.items()})
    if isinstance(document.get("optimizer"), dict):
        found["optimizer"] = _optimizer(document["optimizer"])
    start = document.get("initial_checkpoint")
    if isinstance(start, dict) and start.get("load") == "weights_and_optimizer":
        found["initial_checkpoint"] = {**start, "load": "weightsAndOptimizer"}
    if isinstance(document.get("health"), dict):
        found["health"] = _health(document["health"])
    if isinstance(stages := document.get("stages"), list):
        found["stages"] = [_stage(stage) if isinstance(stage, dict) else stage for stage in stages]
    return found


def _model(model: Document) -> Document:
    """Leave out of a model in a file what stood beside it by default: the file says it."""
    if not model.get("config_file") or model.get("hidden_size") is not None:
        return model
    return {name: value for name, value in model.items() if name not in _DEFAULTS_OF_1 or value != _DEFAULTS_OF_1[name]}


def _stage(stage: Document) -> Document:
    found = {name: value for name, value in stage.items() if name not in ("schedule", "seeds")}
    if isinstance(schedule := stage.get("schedule"), dict):
        found |= schedule
    if isinstance(seeds := stage.get("seeds"), list):
        found |= {"seeds": len(seeds), "run_seeds": seeds}
    if isinstance(stage.get("optimizer"), dict):
        found["optimizer"] = _optimizer(stage["optimizer"])
    return found


def _with_written_layouts(document: Document) -> Document:
    """Replace layouts that are read alone by now, in the stages of a run or of a job's spec.

    Data that has been built is read as before; a build that has begun is refused as one with other settings.
    """
    stages = document.get("stages")
    return {**document, "stages": [_with_written_layout(it) for it in stages]} if isinstance(stages, list) else document


def _with_written_layout(stage: Any) -> Any:
    """Return a stage of a run, or its section ``prepare`` in a job, as this release reads it."""
    if not isinstance(stage, dict):
        return stage
    if isinstance(prepare := stage.get("prepare"), dict):
        return {**stage, "prepare": _with_written_layout(prepare)}
    return {**stage, "layout": "compact"} if stage.get("layout") in _READ_ALONE else stage


def _health(health: Document) -> Document:
    """Nothing goes back to an earlier checkpoint by itself any more: what would have is skipped."""
    kept = {name: value for name, value in health.items() if name not in ("max_rollbacks", "maxRollbacks")}
    return {name: "Skip" if value == "Rollback" else value for name, value in kept.items()}


def _optimizer(optimizer: Document) -> Document:
    """No norm, where nothing was clipped, is 0."""
    return {**optimizer, "max_gradient_norm": optimizer.get("max_gradient_norm") or 0.0}
