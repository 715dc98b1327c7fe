"""The run configuration: the job with every default resolved, as the trainer's config module reads it.

The two sides share nothing but this document and its version; tests/contract holds them together. Nothing
here looks at files, so what depends on data (the size of the vocabulary, steps per epoch) stays open.
"""

from __future__ import annotations

from typing import Any

from bert_operator.api import presets
from bert_operator.api.v1alpha1 import (
    BertPretrainJob,
    CheckpointSpec,
    EvaluateSpec,
    LengthSpec,
    ModelSpec,
    PrepareSpec,
    PretrainSpec,
    Stage,
    WarmupSpec,
)

CONTRACT_VERSION = 1
PUBLISHED_VOCABULARY_SIZE = 30522
TOKENS_PER_PASS = 4096
"""What one pass on one rank takes by default: 32 sequences of 128 tokens, 8 of 512."""
DEFAULT_CHECKPOINT_SECONDS = 600

Document = dict[str, Any]


def render_run_config(job: BertPretrainJob, *, uid: str, ranks: int, hosts: int, output_folder: str) -> Document:
    """Return the run configuration of a valid job.

    uid: of this job, not of an attempt. ranks, hosts: what the launcher will start. output_folder: absolute,
    in the file system that the ranks see.
    """
    spec = job.spec
    return {
        "contract_version": CONTRACT_VERSION,
        "job": {"name": job.ref.name, "namespace": job.ref.namespace, "uid": uid},
        "output_folder": output_folder,
        "if_exists": spec.output.if_exists,
        "world": {"ranks": ranks, "hosts": hosts},
        "seed": spec.seed,
        "precision": spec.precision,
        "model": _model(spec.model),
        "optimizer": spec.optimizer.model_dump(),
        "dataset": {
            "folder": spec.dataset.path or f"{output_folder}/data",
            "vocabulary_file": spec.dataset.vocabulary_file,
        },
        "stages": [_stage(stage, spec.stages[:number]) for number, stage in enumerate(spec.stages)],
        "checkpoint": _checkpoint(spec.checkpoint),
        "logging": spec.logging.model_dump(),
    }


def default_max_predictions(sequence_length: int) -> int:
    """Return 15 % of a sequence, rounded up to a multiple of 4, which gives the published 20 and 80.

    Never more than the tokens that can be masked.
    """
    predictions = -(-sequence_length * 15 // 100)
    return min(-(-predictions // 4) * 4, sequence_length - 3)


def default_micro_batch_size(sequence_length: int) -> int:
    """Return how many sequences one pass on one rank takes, of 4,096 tokens together."""
    return max(1, TOKENS_PER_PASS // sequence_length)


def _model(model: ModelSpec) -> Document:
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
        "vocab_size": None,
        "vocab_pad_multiple": model.vocabulary_pad_multiple,
        "objective": presets.resolve_objective(model),
    }


def _checkpoint(checkpoint: CheckpointSpec) -> Document:
    by_default = checkpoint.every_steps is None and checkpoint.every_seconds is None
    return {
        "every_steps": checkpoint.every_steps,
        "every_seconds": DEFAULT_CHECKPOINT_SECONDS if by_default else checkpoint.every_seconds,
        "keep": checkpoint.keep,
    }


def _stage(stage: Stage, before: tuple[Stage, ...]) -> Document:
    """Render one stage; from those before it an evaluate stage takes its lengths."""
    if stage.prepare is not None:
        body = _prepare(stage.prepare)
    elif stage.pretrain is not None:
        body = _pretrain(stage.pretrain)
    elif stage.evaluate is not None:
        trained = [earlier.pretrain for earlier in before if earlier.pretrain is not None]
        body = _evaluate(stage.evaluate, trained[-1])
    else:
        assert stage.export is not None, "a valid stage has a kind"
        body = {"kind": "export", "format": stage.export.format}
    return {**body, "name": stage.name}


def _prepare(prepare: PrepareSpec) -> Document:
    size = prepare.vocabulary_size or PUBLISHED_VOCABULARY_SIZE
    return {"kind": "prepare", **prepare.model_dump(), "vocabulary_size": size}


def _pretrain(pretrain: PretrainSpec) -> Document:
    length = pretrain.sequence_length
    # The default must not depend on the number of ranks: a job may go on with another one.
    micro_batch_size = min(default_micro_batch_size(length), pretrain.global_batch_size)
    return {
        "kind": "pretrain",
        "sequence_length": length,
        "max_predictions_per_sequence": pretrain.max_predictions_per_sequence or default_max_predictions(length),
        "global_batch_size": pretrain.global_batch_size,
        "micro_batch_size": pretrain.micro_batch_size or micro_batch_size,
        "length": _given(pretrain.length),
        "schedule": {
            "learning_rate": pretrain.learning_rate,
            "warmup": _given(pretrain.warmup),
            "decay": pretrain.decay,
            "after_warmup": pretrain.after_warmup,
        },
        "optimizer_state": pretrain.optimizer_state,
        "loss_normalization": pretrain.loss_normalization,
        "shards": pretrain.shards,
        "data_range": pretrain.data_range.model_dump(),
    }


def _evaluate(evaluate: EvaluateSpec, trained: PretrainSpec) -> Document:
    length = evaluate.sequence_length or trained.sequence_length
    predictions = evaluate.max_predictions_per_sequence
    if predictions is None and length == trained.sequence_length:
        predictions = trained.max_predictions_per_sequence
    return {
        "kind": "evaluate",
        "sequence_length": length,
        "max_predictions_per_sequence": predictions or default_max_predictions(length),
        "micro_batch_size": evaluate.micro_batch_size or default_micro_batch_size(length),
        "max_samples": evaluate.max_samples,
        "shards": evaluate.shards,
    }


def _given(union: LengthSpec | WarmupSpec) -> Document:
    """Render the one field of a union that is set."""
    return {name: value for name, value in union.model_dump().items() if value is not None}
