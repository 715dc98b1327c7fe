"""The three ways to compute the model, and which one is taken: the only place where that is decided.

``model.py`` spells the mathematics out in plain operations, for any device and type. On CPUs kernels of this project
take its place (``kernels``), on NVIDIA GPUs compiled functions (``gpu``). All are held to the plain one by tests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from bert_trainer.model.backends.compute_type import compute_dtype
from bert_trainer.model.backends.cpu import encoder as kernels
from bert_trainer.model.backends.gpu import encoder as gpu

if TYPE_CHECKING:
    from bert_trainer.model.batch import Batch
    from bert_trainer.model.bert import Bert, Layer
    from bert_trainer.model.dropout import DropoutKeys


class FastPath(Protocol):
    """What a faster way has to compute; dropout: None for none."""

    def embed(self, model: Bert, batch: Batch, dropout: DropoutKeys | None) -> Tensor:
        """Return embeddings, normalised and dropped, (N, D)."""

    def encode_layer(
        self, layer: Layer, x_ND: Tensor, batch: Batch, dropout: DropoutKeys | None, kept_K: Tensor | None
    ) -> Tensor:
        """x_ND: (N, D) to (N, D), or to (K, D) of the tokens at some places."""

    def masked_lm(self, model: Bert, x_MD: Tensor, labels_M: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sum of the masked-LM losses in nats and the number of right answers."""


def choose_fast_path(model: Bert) -> FastPath | None:
    """Return the fast way for a model where it lies and under the autocast of the moment; None for plain operations."""
    weight, config = model.embeddings.tokens.weight, model.config
    if weight.device.type == "cuda":
        return gpu_path_of(model)
    x = torch.empty(0, dtype=compute_dtype(weight), device=weight.device)
    library = kernels.kernels_for(x, config.hidden_size // config.num_attention_heads)
    return None if library is None else kernels.KernelPath(library)


def gpu_path_of(model: Bert) -> gpu.GpuPath:
    """Return the path of a model that lies on a GPU."""
    weight, config = model.embeddings.tokens.weight, model.config
    return gpu.find(weight.device, compute_dtype(weight), config.hidden_size // config.num_attention_heads)
