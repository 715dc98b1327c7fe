"""Checkpoints that claim anything: tensors of any size in PyTorch's oldest format, and runs with right sums."""

from __future__ import annotations

import pickle
from collections import OrderedDict
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from bert_trainer.checkpoints.checkpoint import (
    FORMAT_KEY,
    FORMAT_VERSION,
    MODEL_FILE,
    OPTIMIZER_FILE,
    Environment,
    sha256_of,
)
from signed_manifest import write_manifest
from weight_sources import small_model


class Legacy(pickle.Pickler):
    """Writes a tensor of the format before PyTorch 1.6 whose storage claims any number of elements."""

    numel = 1 << 40

    def persistent_id(self, thing: Any) -> Any:
        return ("storage", torch.FloatStorage, "0", "cpu", self.numel, None) if thing is Storage else None


class Storage:
    """Stands where a tensor refers to its elements."""


class Claimed:
    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        rebuild: Any = torch._utils._rebuild_tensor_v2
        return (rebuild, (Storage, 0, self.shape, (1,), False, OrderedDict()))


def write_run(folder: Path, **position: object) -> Path:
    """Write a run with one checkpoint whose sums are right; return the checkpoint."""
    checkpoint = folder / "checkpoints" / "phase1-00000001"
    checkpoint.mkdir(parents=True)
    weights = {name: parameter.detach() for name, parameter in small_model().named_parameters()}
    save_file(weights, checkpoint / MODEL_FILE)
    moments = {
        f"{part}.{name}": value.clone() for part in ("first_moment", "second_moment") for name, value in weights.items()
    }
    save_file(moments, checkpoint / OPTIMIZER_FILE)
    places = {"stage_index": 0, "stage": "phase1", "step": 1, "total_steps": 1, "num_applied": 1, "samples_seen": 1}
    manifest: dict[str, Any] = {
        FORMAT_KEY: FORMAT_VERSION,
        "sha256": {name: sha256_of(checkpoint / name) for name in (MODEL_FILE, OPTIMIZER_FILE)},
        "position": {**places, "sample_hash": "", "loss_scale": 1.0, "finite_steps": 1, **position},
        "environment": asdict(Environment(1, "fp32", "x86_64", 1, "AVX2", {})),
        "run": {"job": "a/b"},
    }
    write_manifest(checkpoint, manifest)
    return checkpoint
