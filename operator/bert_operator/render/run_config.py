"""The run configuration: the job with every default resolved, as the trainer's config module reads it.

Operator and trainer share nothing but this document and its version; tests/contract holds them together. Nothing here
reads files, so what depends on data (the size of the vocabulary, steps per epoch) stays unresolved.
"""

from __future__ import annotations

from functools import partial

from pydantic.alias_generators import to_snake

from bert_operator.api.schema import optimizers, presets, recipes
from bert_operator.api.schema.bert_pretrain_job import (
    BertPretrainJob,
    InitialCheckpointSpec,
    JobSpec,
    ModelSpec,
    PretrainSpec,
    Stage,
)
from bert_operator.api.schema.checkpoints import StageCheckpointSpec
from bert_operator.api.schema.evaluation import EvaluateSpec, EvaluationSpec
from bert_operator.api.schema.preparation import PrepareSpec
from bert_operator.names import PREPARE_RUN
from bert_operator.render.finetuning import render_finetune
from bert_operator.render.run_values import Document, Place, default_micro_batch_size, render_optimizer, set_fields
from bert_operator.state.runs import run_placement

CONTRACT_VERSION = 1
PUBLISHED_VOCABULARY_SIZE = 30522
PUBLISHED_MASKED_LM_PROBABILITY = 0.15
DEFAULT_CHECKPOINT_SECONDS = 600

_CHECKPOINT_INTERVALS = ("every_steps", "every_seconds", "every_samples")

# Every optimizer needs an entry. Where bias correction begins anew over warm moments, AdamW's updates are 0.32 of their
# size at step 1 and 0.15 at step 10. LAMB's trust ratio makes up for that; it keeps NVIDIA's rule.
_DEFAULT_OPTIMIZER_STATES = {"lamb": "keep", "adamw": "keepWithStepCount"}


def render_run_config(
    job: BertPretrainJob,
    *,
    uid: str,
    ranks: int,
    hosts: int,
    output_folder: str,
    data_base: str | None = None,
    in_pods: bool = False,
) -> Document:
    """Return the run configuration of a valid job.

    Args:
        job: The job.
        uid: Of the job, not of an attempt.
        ranks: What the launcher will start.
        hosts: What it will start them on.
        output_folder: Absolute, in the file system of the ranks.
        data_base: Folder that data paths are relative to; None: the working directory of the ranks.
        in_pods: Ranks have the devices that the job asks for, and none are to be done without.
    """
    spec = optimizers.name_optimizer(job.spec)
    place = partial(place_path, base=data_base)
    accelerator = (spec.worker.resources or spec.resources).accelerator
    preparing = run_placement(spec, PREPARE_RUN)
    explicit = next((stage.prepare.num_processes for stage in spec.stages if stage.prepare is not None), None)
    processes = preparing.slots if preparing.workers > 1 else explicit
    return {
        "contract_version": CONTRACT_VERSION,
        "job": {"name": job.ref.name, "namespace": job.ref.namespace, "uid": uid},
        "output_folder": output_folder,
        "if_exists": spec.output.if_exists,
        "world": {"ranks": ranks, "hosts": hosts},
        "seed": spec.seed,
        "precision": spec.precision,
        "activation_checkpointing": spec.activation_checkpointing,
        # Left out for eager: a trainer of the release before does not know the field.
        **({} if spec.engine == "eager" else {"engine": spec.engine}),
        "model": _model(spec.model, place),
        "optimizer": render_optimizer(spec.optimizer),
        "reduction": spec.reduction.model_dump(),
        "dataset": {
            "folder": place(spec.dataset.path) or f"{output_folder}/data",
            "vocabulary_file": place(spec.dataset.vocabulary_file),
            **_given("on_unreadable_shard", spec.dataset.on_unreadable_shard),
        },
        "initial_checkpoint": _initial_checkpoint(spec.initial_checkpoint, place),
        "stages": [_stage(stage, spec, number, place, processes) for number, stage in enumerate(spec.stages)],
        "checkpoint": _checkpoint(spec),
        "logging": spec.logging.model_dump(),
        "profile_steps": None if spec.profile_steps is None else spec.profile_steps.model_dump(),
        "gpu_memory_limit_gib": None if accelerator is None else accelerator.gpu_memory_limit_gib,
        # Otherwise a pod whose driver is missing would train on its few cores, for weeks.
        **({"device": "cuda"} if in_pods and accelerator is not None else {}),
        # Only what is not the default: other jobs keep the document that they have always had.
        **({} if spec.collectives is None else {"collectives": spec.collectives}),
        **({} if spec.health is None else {"health": set_fields(spec.health)}),
    }


def _given(name: str, value: object) -> dict[str, object]:
    """Return an entry for what a job says, and none where it is silent, as jobs of the release before have it."""
    return {} if value is None else {name: value}


def place_path(path: str | None, *, base: str | None) -> str | None:
    """Return a relative path below ``base``; absolute paths, builtin texts and None unchanged."""
    if path is None or base is None or path.startswith(("/", "builtin:")):
        return path
    return f"{base}/{path}"


def _model(model: ModelSpec, place: Place) -> Document:
    if model.config_file is not None:
        # Read by the trainer when the run starts: the operator sees no volumes.
        return {
            "config_file": place(model.config_file),
            "layer_norm_eps": model.layer_norm_epsilon,
            "vocab_pad_multiple": model.vocabulary_pad_multiple,
            "objective": model.objective,
        }
    size = presets.resolve_size(model)
    return {
        "architecture": size.architecture,
        "hidden_size": size.hidden_size,
        "num_hidden_layers": size.num_hidden_layers,
        "num_attention_heads": size.num_attention_heads,
        "intermediate_size": size.intermediate_size,
        "max_position_embeddings": model.max_position_embeddings,
        "hidden_act": model.hidden_activation,
        "hidden_dropout_prob": model.hidden_dropout,
        "attention_probs_dropout_prob": model.attention_dropout,
        "initializer_range": model.initializer_range,
        "layer_norm_eps": model.layer_norm_epsilon,
        "vocab_size": None,  # from the vocabulary file, once that exists
        "vocab_pad_multiple": model.vocabulary_pad_multiple,
        "objective": presets.resolve_objective(model),
    }


def _initial_checkpoint(start: InitialCheckpointSpec | None, place: Place) -> Document | None:
    if start is None:
        return None
    return {"path": place(start.path), "format": start.format, "load": to_snake(start.load)}


def _checkpoint(spec: JobSpec) -> Document:
    checkpoint = spec.checkpoint
    by_default = all(getattr(checkpoint, interval) is None for interval in _CHECKPOINT_INTERVALS)
    return {
        **checkpoint.model_dump(),
        "every_seconds": DEFAULT_CHECKPOINT_SECONDS if by_default else checkpoint.every_seconds,
        "delete_after_success": spec.run_policy.checkpoints_after_success == "Delete",
    }


def _stage_checkpoint(own: StageCheckpointSpec, spec: JobSpec) -> Document:
    """Return a stage's settings in full: its own, else the job's; the intervals are one setting."""
    whole = _checkpoint(spec)
    has_interval = any(getattr(own, interval) is not None for interval in _CHECKPOINT_INTERVALS)
    given = {
        name: value
        for name, value in own.model_dump().items()
        if value is not None or (has_interval and name in _CHECKPOINT_INTERVALS)
    }
    return {name: given.get(name, whole[name]) for name in StageCheckpointSpec.model_fields}


def _stage(stage: Stage, spec: JobSpec, number: int, place: Place, processes: int | None) -> Document:
    """Render one stage; an evaluate stage inherits lengths from the last pretrain stage before it.

    Args:
        stage: The stage.
        spec: The job's.
        number: Index of the stage.
        place: Resolves relative data paths.
        processes: Per worker that prepares data; None: one per core.
    """
    if stage.prepare is not None:
        body = _prepare(stage.prepare, spec, place, processes)
    elif stage.pretrain is not None:
        body = {**_pretrain(stage.pretrain, spec, place), **_evaluated(stage.pretrain, spec, place)}
    elif stage.evaluate is not None:
        trained = [earlier.pretrain for earlier in spec.stages[:number] if earlier.pretrain is not None]
        body = _evaluate(stage.evaluate, trained[-1], spec, place)
    elif stage.finetune is not None:
        body = render_finetune(stage.finetune, spec, place)
    else:
        assert stage.export is not None, "a valid stage has a kind"
        body = {"kind": "export", "format": stage.export.format}
    return {**body, "name": stage.name}


_LATER = ("max_unknown_share",)
"""Fields of a prepare stage that are written only where a job asks for them."""


def _prepare(prepare: PrepareSpec, spec: JobSpec, place: Place, processes: int | None) -> Document:
    corpora = [
        {**corpus.model_dump(), "path": place(corpus.path), "checksums": place(corpus.checksums)}
        for corpus in prepare.corpora or ()
    ]
    return {
        "kind": "prepare",
        # Where a recipe has a number of files, and a layout, the trainer has them as well, and keeps those of a dataset
        # that it finds; the others decide what the stages are rendered with.
        **prepare.model_dump(exclude={"workers", "sequence_lengths", "max_predictions_per_sequence", *_LATER}),
        **{name: value for name in _LATER if (value := getattr(prepare, name)) is not None},
        "dupe_factor": recipes.resolve_dupe_factor(prepare),
        "num_processes": processes,
        "text": place(prepare.text),
        "corpora": corpora,
        "vocabulary_size": prepare.vocabulary_size or PUBLISHED_VOCABULARY_SIZE,
        **({"lengths": _lengths(spec)} if recipes.list_lengths(spec) else {}),
    }


def _lengths(spec: JobSpec) -> list[Document]:
    return [
        {"sequence_length": length, "max_predictions_per_sequence": predictions}
        for length, predictions in recipes.list_lengths(spec)
    ]


def _predictions(section: PretrainSpec | EvaluateSpec, length: int, spec: JobSpec) -> int:
    """Return the predictions per sequence that a stage leaves open."""
    # Shards of a folder of its own are not those that this job prepares.
    of_dataset = section.shards is None
    return recipes.predictions_of_dataset(spec, length) if of_dataset else recipes.predictions_of_length(length)


def _pretrain(pretrain: PretrainSpec, spec: JobSpec, place: Place) -> Document:
    length = pretrain.sequence_length
    # The default must not depend on the number of ranks: a job may resume with another one, and the size of
    # micro-batches decides the order of floating-point sums.
    micro_batch_size = min(default_micro_batch_size(length), pretrain.global_batch_size)
    return {
        "kind": "pretrain",
        "sequence_length": length,
        "max_predictions_per_sequence": pretrain.max_predictions_per_sequence or _predictions(pretrain, length, spec),
        "global_batch_size": pretrain.global_batch_size,
        "micro_batch_size": pretrain.micro_batch_size or micro_batch_size,
        "length": set_fields(pretrain.length),
        "schedule": {
            "learning_rate": pretrain.learning_rate,
            "warmup": set_fields(pretrain.warmup),
            "decay": pretrain.decay,
            "after_warmup": pretrain.after_warmup,
        },
        "optimizer_state": pretrain.optimizer_state or _DEFAULT_OPTIMIZER_STATES[optimizers.optimizer_of(spec)],
        "loss_normalization": pretrain.loss_normalization,
        "masking": pretrain.masking,
        "masked_lm_probability": pretrain.masked_lm_probability or PUBLISHED_MASKED_LM_PROBABILITY,
        "whole_word_masking": pretrain.whole_word_masking or False,
        "shards": place(pretrain.shards),
        "data_range": pretrain.data_range.model_dump(),
    }


def _evaluated(pretrain: PretrainSpec, spec: JobSpec, place: Place) -> Document:
    """Render what a stage has only if the job asks for it: other jobs keep the document that they have always had."""
    own, target, checkpoint = pretrain.evaluation, pretrain.target, pretrain.checkpoint
    return {
        **({} if own is None else {"evaluation": _evaluation(own, pretrain, spec, place)}),
        **({} if target is None else {"target": target.model_dump()}),
        **({} if checkpoint is None else {"checkpoint": _stage_checkpoint(checkpoint, spec)}),
    }


def _evaluation(own: EvaluationSpec, trained: PretrainSpec, spec: JobSpec, place: Place) -> Document:
    length, data_range = trained.sequence_length, own.data_range
    predictions = own.max_predictions_per_sequence or trained.max_predictions_per_sequence
    # A range without a folder is one of the shards that the stage trains on.
    shards = own.shards or (None if data_range is None else trained.shards)
    return {
        **{name: value for name, value in own.model_dump().items() if name.startswith(("every_", "start_")) and value},
        "max_samples": own.max_samples,
        "micro_batch_size": own.micro_batch_size or default_micro_batch_size(length),
        "max_predictions_per_sequence": predictions or _predictions(trained, length, spec),
        "shards": place(shards),
        "data_range": None if data_range is None else data_range.model_dump(),
    }


def _evaluate(evaluate: EvaluateSpec, trained: PretrainSpec, spec: JobSpec, place: Place) -> Document:
    length = evaluate.sequence_length or trained.sequence_length
    predictions = evaluate.max_predictions_per_sequence
    if predictions is None and length == trained.sequence_length:
        predictions = trained.max_predictions_per_sequence or _predictions(trained, length, spec)
    return {
        "kind": "evaluate",
        "sequence_length": length,
        "max_predictions_per_sequence": predictions or _predictions(evaluate, length, spec),
        "micro_batch_size": evaluate.micro_batch_size or default_micro_batch_size(length),
        "max_samples": evaluate.max_samples,
        "shards": place(evaluate.shards),
        **({} if evaluate.data_range is None else {"data_range": evaluate.data_range.model_dump()}),
    }
