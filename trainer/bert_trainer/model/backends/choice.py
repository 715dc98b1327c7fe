"""The ways to compute the model, and which one is taken: the only place where that is decided.

``eager`` spells the mathematics out in plain operations, for any device and type. On CPUs kernels of this project take
its place (``cpu``), on NVIDIA GPUs compiled functions (``gpu``). With ``engine: ort`` passes with gradients are ONNX
Runtime's (``ort``). Tests hold all of them to the eager one.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from bert_trainer.model.backends.cpu import encoder as cpu
from bert_trainer.model.backends.eager import EagerBackend
from bert_trainer.model.backends.gpu import encoder as gpu
from bert_trainer.model.backends.ort import capability as ort
from bert_trainer.model.backends.ort.engine import OrtEngine
from bert_trainer.model.batch import Batch
from bert_trainer.model.dropout import DropoutKeys
from bert_trainer.model.engine import Engine
from bert_trainer.model.layers import BertParameters, EncoderParameters, Layer


class Backend(Protocol):
    """What computes a model's parts; ``dropout`` is None for none."""

    def embed(self, model: EncoderParameters, batch: Batch, dropout: DropoutKeys | None) -> Tensor:
        """Return embeddings, normalised and dropped, (N, D)."""

    def encode_layer(
        self, layer: Layer, x_ND: Tensor, batch: Batch, dropout: DropoutKeys | None, output_index_K: Tensor | None
    ) -> Tensor:
        """x_ND: (N, D) to (N, D), or to (K, D) of the tokens asked for, to which all tokens of their row attend."""

    def masked_lm(self, model: BertParameters, x_MD: Tensor, labels_M: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sum of the masked-LM losses in nats and the number of right answers."""


def choose_backend(model: EncoderParameters) -> Backend:
    """Return the fastest backend for a model on the device where it lies and under the current autocast."""
    weight = model.embeddings.tokens.weight
    if weight.device.type == "cuda":
        return gpu_backend(model)
    # fp16, fp64, heads that fill no vector and machines without a built library take plain operations.
    return cpu.find(weight.device, _compute_dtype(weight), _head_size(model)) or EagerBackend()


def gpu_backend(model: EncoderParameters) -> gpu.GpuBackend:
    """Return the backend of a model that lies on a GPU. The first call tries it out, which takes seconds."""
    weight = model.embeddings.tokens.weight
    return gpu.find(weight.device, _compute_dtype(weight), _head_size(model))


def check_engine(name: str, device: torch.device, precision: str) -> None:
    """Check that a run's engine can work here, before anything is allocated.

    Raises:
        EngineUnusable: what it needs is missing, or of another release.
        UnsupportedPrecision: it does not compute so on this device.
    """
    if name == "ort":
        ort.check_engine(device, precision)


def make_engine(name: str, model: EncoderParameters, precision: str) -> Engine | None:
    """Return what computes a model's passes with gradients; None where backends do."""
    return OrtEngine(model, precision) if name == "ort" else None


def describe_engine(name: str) -> str:
    """Return what executes training passes in place of the backend, as the end of a line; empty where nothing does."""
    return f", {ort.describe_engine()}" if name == "ort" else ""


def _compute_dtype(weight: Tensor) -> torch.dtype:
    """Return the type of products and activations: autocast's on the weight's device, else the weight's own."""
    device = weight.device.type
    if device in ("cpu", "cuda") and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return weight.dtype


def _head_size(model: EncoderParameters) -> int:
    return model.config.hidden_size // model.config.num_attention_heads
