"""The model's step on a GPU: padding-free batches, attention inside rows, compiled parts, and a choice of them."""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody knows it by
from torch import Tensor

from bert_trainer.errors import TrainerError
from bert_trainer.model.backends.backend import LayeredBackend
from bert_trainer.model.backends.gpu import functions
from bert_trainer.model.backends.gpu.attention import WAYS, Attention, Rows, choose_attention, seed_generator, way_of
from bert_trainer.model.backends.gpu.bucket_padding import MicroBatchShape, pad_to_bucket
from bert_trainer.model.backends.gpu.compilation import compile_function, mark_dynamic, why_not_compiled
from bert_trainer.model.backends.gpu.functions import Keys, LayerSettings, ModernLayerSettings
from bert_trainer.model.backends.gpu.self_test import find_fault
from bert_trainer.model.batch import Batch
from bert_trainer.model.dropout import EMBEDDINGS_SITE, DropoutKeys, spread_places
from bert_trainer.model.layers import BertParameters, EncoderParameters, Layer, ModernLayer, gelu_approximation
from bert_trainer.model.operations import Linear, linear_of, modern_weights_of, norm_of
from bert_trainer.model.operations import weights_of as _weights_of

logger = logging.getLogger(__name__)

_FIRST_GPU = torch.device("cuda", 0)
_SITES_PER_CALL = 3


@dataclass(frozen=True, slots=True)
class Functions:
    """The parts of the step, compiled or plain."""

    embed: Callable[..., Tensor] = functions.embed
    encode_layer: Callable[..., Tensor] = functions.encode_layer
    encode_modern_layer: Callable[..., Tensor] = functions.encode_modern_layer
    masked_lm: Callable[..., tuple[Tensor, Tensor]] = functions.masked_lm

    @classmethod
    def compiled(cls) -> Functions:
        """Return them compiled when they are first called: one encoder layer, which serves all of its kind."""
        return cls(
            compile_function(functions.embed),
            compile_function(functions.encode_layer),
            compile_function(functions.encode_modern_layer),
            compile_function(functions.masked_lm),
        )


@dataclass(frozen=True, slots=True)
class GpuBackend(LayeredBackend):
    """The backend of a GPU. Nothing in a pass waits for the device."""

    attention: Attention
    dtype: torch.dtype
    """Of products and activations."""
    functions: Functions = field(default_factory=Functions)
    not_compiled: str | None = "not asked for"
    """Why the functions are plain; None where they are compiled."""
    device: torch.device = _FIRST_GPU

    def describe(self, rank: int, precision: str) -> str:
        """Return what a rank computes with, in one line."""
        card = torch.cuda.get_device_properties(self.device)
        return render_gpu(
            f"rank {rank} on {socket.gethostname()}: {self.device}",
            card.name,
            (card.major, card.minor),
            card.total_memory,
            precision,
            self,
        )

    def stage_batch(self, batch: Batch, *, sequence_length: int, micro_batch_size: int) -> Batch:
        """Pad a micro-batch to its bucket, in memory that the GPU can read while the host goes on."""
        padded = pad_to_bucket(batch, MicroBatchShape(sequence_length, micro_batch_size))
        # A thread's current device is 0 at first; pinning there would start CUDA on a GPU that is another rank's.
        with torch.cuda.device(self.device):
            return padded.pinned()

    def embed(self, model: EncoderParameters, batch: Batch, dropout: DropoutKeys | None) -> Tensor:
        """Return the sum of embeddings, normalised and dropped, (N, D)."""
        embeddings, config = model.embeddings, model.config
        tables = [(batch.tokens_N, embeddings.tokens)]
        if embeddings.positions is not None:
            tables.append((batch.positions_N, embeddings.positions))
        summed = tuple(mark_dynamic(F.embedding(index_N, table.weight)) for index_N, table in tables)
        segments = None
        if embeddings.segments is not None:
            segments = (mark_dynamic(batch.segments_N), embeddings.segments.weight)
        with _autocast_off(summed[0].device):
            return self.functions.embed(
                summed,
                segments,
                norm_of(embeddings.norm),
                _keys_at(dropout, EMBEDDINGS_SITE, config.hidden_size),
                config.hidden_dropout,
                config.layer_norm_epsilon,
                self.dtype,
            )

    def encode_layer(
        self, layer: Layer, x_ND: Tensor, batch: Batch, dropout: DropoutKeys | None, output_index_K: Tensor | None
    ) -> Tensor:
        """x_ND: (N, D) to (N, D), or to (K, D) of the tokens asked for."""
        reach = layer.reach if isinstance(layer, ModernLayer) else None
        way = way_of(self.attention, reach)
        rows = Rows(mark_dynamic(batch.row_bounds))
        if way == "padded":
            rows = Rows(rows.bounds, mark_dynamic(batch.padded_index_N), mark_dynamic(batch.row_mask_BT))
        if dropout is not None and layer.attention_dropout > 0:
            # For every layer: activation checkpointing computes a layer again, after others have drawn their bits.
            seed_generator(x_ND.device, dropout.site_seed(layer.first_site))
        keys = _keys_at(dropout, layer.first_site, x_ND.shape[1])
        shared: dict[str, Any] = {
            "attend": WAYS[way],
            "num_heads": layer.num_heads,
            "longest": batch.longest,
            "attention_dropout": layer.attention_dropout,
            "hidden_dropout": layer.hidden_dropout,
            "approximate": layer.approximate,
            "epsilon": layer.epsilon,
        }
        with _autocast_off(x_ND.device):
            x_ND = mark_dynamic(x_ND)
            output_index_K = output_index_K if output_index_K is None else mark_dynamic(output_index_K)
            if isinstance(layer, ModernLayer):
                of_kind = ModernLayerSettings(**shared, reach=reach, rope_theta=layer.rope_theta)
                positions_N = mark_dynamic(batch.positions_N)
                return self.functions.encode_modern_layer(
                    x_ND, rows, positions_N, modern_weights_of(layer), keys, output_index_K, of_kind
                )
            settings = LayerSettings(**shared, drops_attention_output=layer.drops_attention_output)
            return self.functions.encode_layer(x_ND, rows, _weights_of(layer), keys, output_index_K, settings)

    def masked_lm(self, model: BertParameters, x_MD: Tensor, labels_M: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sum of the masked-LM losses in nats and the number of right answers."""
        with _autocast_off(x_MD.device):
            return self.functions.masked_lm(
                mark_dynamic(x_MD),
                mark_dynamic(labels_M),
                linear_of(model.mlm_transform),
                norm_of(model.mlm_norm),
                Linear(model.embeddings.tokens.weight, model.mlm_bias),
                model.vocabulary_size,
                gelu_approximation(model.config),
                model.mlm_norm.eps,
            )


@cache
def find(device: torch.device, dtype: torch.dtype, head_size: int) -> GpuBackend:
    """Return the fastest backend that works on a GPU. The first call tries it out, which takes seconds.

    Raises:
        TrainerError: none works.
    """
    # Cached: the self-test and the trial compilation run once per process, whatever models it has.
    attention = choose_attention(torch.cuda.get_device_capability(device), dtype, head_size)
    # A model of no run has it called from the middle of a forward pass, which may be an evaluation's.
    with torch.enable_grad(), _autocast_off(device):
        fault = find_fault(attention, device, dtype, head_size)
        if fault is not None and attention != "padded":
            logger.warning("%s; falling back to padded rows, which are slower", fault)
            attention = "padded"
            fault = find_fault(attention, device, dtype, head_size)
    if fault is not None:
        raise TrainerError(f"{device}: {fault}", hint="use another build of PyTorch, another GPU or device 'cpu'")
    reason = why_not_compiled(device)
    if reason is not None:
        return GpuBackend(attention, dtype, not_compiled=reason, device=device)
    return GpuBackend(attention, dtype, Functions.compiled(), not_compiled=None, device=device)


def render_gpu(
    place: str, name: str, capability: tuple[int, int], memory_bytes: int, precision: str, backend: GpuBackend
) -> str:
    """Describe a GPU and how it computes, for the log."""
    compiled = "compiled" if backend.not_compiled is None else f"not compiled ({backend.not_compiled})"
    return (
        f"{place} {name} (sm_{capability[0]}{capability[1]}), {memory_bytes / 2**30:.1f} GiB, precision {precision}, "
        f"attention {backend.attention}, layers {compiled}"
    )


def _autocast_off(device: torch.device) -> AbstractContextManager[object]:
    """Return the context in which types are those that the functions name, whatever the caller's autocast says."""
    if torch.amp.is_autocast_available(device.type):
        return torch.autocast(device.type, enabled=False)
    return contextlib.nullcontext()


@cache
def _sites(first: int, device: torch.device) -> Tensor:
    """Return the numbers of a call's sites on a device."""
    # As a tensor: a number would be compiled into the function, once for each layer.
    return torch.arange(first, first + _SITES_PER_CALL, dtype=torch.int32, device=device)


_places = cache(spread_places)


def _keys_at(dropout: DropoutKeys | None, first_site: int, features: int) -> Keys | None:
    if dropout is None:
        return None
    device = dropout.rows_B.device
    return Keys(
        mark_dynamic(dropout.rows_B),
        mark_dynamic(dropout.token_row_N),
        mark_dynamic(dropout.token_position_N),
        _sites(first_site, device),
        _places(features, device),
    )
