"""Run configurations of tests, made whole: every field that the operator renders, with the value it has by default.

The trainer has no defaults for these fields, so a test names what it is about and takes the rest from here.
"""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

from bert_job.optimization import WarmupSpec
from bert_job.reporting import LoggingSpec
from bert_job.run_config import ModelConfig, OptimizerConfig

Document = dict[str, Any]

_SECTIONS: dict[str, Document] = {
    "job": {"namespace": "default"},
    "world": {"ranks": 1, "hosts": 1},
    "model": {
        "architecture": "bert",
        "max_position_embeddings": 512,
        "hidden_activation": "gelu",
        "hidden_dropout": 0.1,
        "attention_dropout": 0.1,
        "initializer_range": 0.02,
        "layer_norm_epsilon": 1e-12,
        "vocabulary_size": None,
        "vocabulary_pad_multiple": 8,
        "objective": "mlm+nsp",
    },
    "optimizer": {
        "name": "lamb",
        "beta1": 0.9,
        "beta2": 0.999,
        "epsilon": 1e-6,
        "weight_decay": 0.01,
        "bias_correction": True,
        "max_gradient_norm": 1.0,
        "partitioning": "none",
    },
    "reduction": {"compression": "none", "overlap": True},
    "dataset": {"vocabulary_file": None},
    "checkpoint": {
        "every_steps": None,
        "every_seconds": None,
        "every_samples": None,
        "min_samples_to_start": 0,
        "periodic": True,
        "delete_after_success": False,
        "keep": 3,
    },
    "logging": {"every_steps": 10, "tensorboard": True, "prometheus_port": None, "sample_ledger": False},
}
ADAMW: Document = {**_SECTIONS["optimizer"], "name": "adamw", "epsilon": 1e-8}
"""Fine-tuning's optimizer."""
_VALUES: Document = {
    "contract_version": 2,
    "if_exists": "Fail",
    "seed": 42,
    "precision": "fp32",
    "activation_checkpointing": False,
    "initial_checkpoint": None,
    "gpu_memory_limit_gib": None,
    "profile_steps": None,
}
_STAGES: dict[str, Document] = {
    "prepare": {},
    "pretrain": {
        "warmup": {"steps": 0},
        "optimizer_state": "keep",
        "loss_normalization": "global",
        "masking": "static",
        "masked_lm_probability": 0.15,
        "whole_word_masking": False,
        "shards": None,
        "data_range": {"start": 0.0, "end": 1.0},
    },
    "evaluate": {"name": "evaluate", "micro_batch_size": 32, "max_samples": None, "shards": None},
    "finetune": {
        "task": "classification",
        "warmup": {"steps": 0},
        "decay": "linear",
        "after_warmup": "continuous",
        "optimizer": ADAMW,
        "run_seeds": [42],
    },
    "export": {"name": "export", "format": "huggingface"},
}


def whole_document(document: Document) -> Document:
    """Return a run configuration with every field that is missing filled in; those that are given stay."""
    whole = {**_VALUES, **document}
    for name, fields in _SECTIONS.items():
        whole[name] = {**fields, **document.get(name, {})}
    if whole["initial_checkpoint"] is not None:
        whole["initial_checkpoint"] = {"format": "bert-trainer", "load": "weights", **whole["initial_checkpoint"]}
    if whole["profile_steps"] is not None:
        whole["profile_steps"] = {"stage": None, "all_ranks": False, **whole["profile_steps"]}
    whole["stages"] = [whole_stage(stage) for stage in document["stages"]]
    return copy.deepcopy(whole)


def whole_stage(stage: Document) -> Document:
    """Return a stage with every field that is missing filled in."""
    whole = {**_STAGES[stage["kind"]], **stage}
    return copy.deepcopy(whole)


def model_settings(**given: Any) -> ModelConfig:
    """Return a model section; sizes have to be given."""
    return ModelConfig(**{**_SECTIONS["model"], **given})


def optimizer_settings(**given: Any) -> OptimizerConfig:
    """Return an optimizer section: LAMB with its published settings, but for what is given."""
    return OptimizerConfig(**{**_SECTIONS["optimizer"], **given})


def logging_settings(**given: Any) -> LoggingSpec:
    """Return a logging section."""
    return LoggingSpec(**{**_SECTIONS["logging"], **given})


def schedule_settings(**given: Any) -> SimpleNamespace:
    """Return what a stage says of its learning rate: no warm-up, and NVIDIA's decay, but for what is given."""
    return SimpleNamespace(**{"warmup": WarmupSpec(steps=0), "decay": "poly", "after_warmup": "published", **given})
