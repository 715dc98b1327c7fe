"""Which backend computes a model: the only place where that is decided.

``eager`` spells the mathematics out in plain operations, for any device and type. On CPUs kernels of this project take
its place (``cpu``), on NVIDIA GPUs compiled functions (``gpu``). With ``engine: ort`` passes with gradients are ONNX
Runtime's (``ort``). Tests hold all of them to the eager one.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from bert_trainer.model.backends.backend import Backend
from bert_trainer.model.backends.cpu import encoder as cpu
from bert_trainer.model.backends.eager import EagerBackend
from bert_trainer.model.backends.gpu import encoder as gpu
from bert_trainer.model.backends.ort import capability as ort
from bert_trainer.model.backends.ort.engine import OrtBackend
from bert_trainer.model.layers import EncoderParameters
from bert_trainer.model.precision import autocast

_FINDERS: dict[str, Callable[[torch.device, torch.dtype, int], Backend]] = {
    "cpu": cpu.find,
    "cuda": gpu.find,
}
"""By kind of device: what returns its fastest backend for a compute type and a size of heads, features."""


def choose_backend(model: EncoderParameters, engine: str, precision: str) -> Backend:
    """Return what computes a run's model, on the device where it lies. The first call on a GPU takes seconds."""
    with autocast(model.embeddings.tokens.weight.device, precision):
        fastest = find_backend(model)
    return OrtBackend(model, fastest, precision) if engine == "ort" else fastest


def find_backend(model: EncoderParameters) -> Backend:
    """Return the fastest backend for a model on the device where it lies and under the current autocast."""
    weight = model.embeddings.tokens.weight
    find = _FINDERS.get(weight.device.type)
    if find is None:
        return EagerBackend()
    head_size = model.config.hidden_size // model.config.num_attention_heads
    return find(weight.device, _compute_dtype(weight), head_size)


def check_engine(name: str, device: torch.device, precision: str) -> None:
    """Check that a run's engine can work here, before anything is allocated.

    Raises:
        EngineUnusable: what it needs is missing, or of another release.
        UnsupportedPrecision: it does not compute so on this device.
    """
    if name == "ort":
        ort.check_engine(device, precision)


def _compute_dtype(weight: torch.Tensor) -> torch.dtype:
    """Return the type of products and activations: autocast's on the weight's device, else the weight's own."""
    device = weight.device.type
    if torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return weight.dtype
