"""The model's parts made of kernels: the mathematics of ``model.operations``, and the same elements dropped."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody knows it by
from torch import Tensor

from bert_trainer.model.backends.backend import Backend, LayeredBackend
from bert_trainer.model.backends.cpu import functions, library
from bert_trainer.model.backends.cpu.functions import Drop
from bert_trainer.model.backends.cpu.library import Library
from bert_trainer.model.backends.cpu.linear import cached_weights, linear, look_up
from bert_trainer.model.backends.eager import EagerBackend
from bert_trainer.model.backends.processor import describe_processor
from bert_trainer.model.batch import Batch
from bert_trainer.model.dropout import EMBEDDINGS_SITE, DropoutKeys
from bert_trainer.model.layers import (
    BertLayer,
    BertParameters,
    EncoderParameters,
    Layer,
    ModernLayer,
    gelu_approximation,
)
from bert_trainer.model.operations import rotary_tables, sum_embeddings

_LANES = 16
_OTHER_TYPES = {torch.float16: "fp16", torch.float64: "fp64"}
"""Which no kernel has."""


@dataclass(frozen=True, slots=True)
class CpuBackend(LayeredBackend):
    """The backend made of kernels."""

    library: Library
    dtype: torch.dtype
    """Of products and activations: fp32 or bf16."""

    def describe(self, rank: int, precision: str) -> str:
        """Return what a rank on processors computes with, in one line."""
        return describe_processor(rank, precision, self.library.flavour)

    def step_context(self) -> AbstractContextManager[object]:
        """Return the context in which each weight is converted to the type of products once."""
        return cached_weights()

    def embed(self, model: EncoderParameters, batch: Batch, dropout: DropoutKeys | None) -> Tensor:
        """Return embeddings, normalised and dropped, (N, D)."""
        # In the parameters' type: a sum of three rounded embeddings would lose a bit or two in bf16.
        x_ND = look_up(self.library, model.embeddings.tokens.weight, batch.tokens_N)
        x_ND = sum_embeddings(model.embeddings, x_ND, batch.positions_N, batch.segments_N).to(self.dtype)
        drop = _drop_hidden(dropout, model.config.hidden_dropout, EMBEDDINGS_SITE)
        return x_ND if drop is None else functions.dropout(self.library, x_ND, drop)

    def encode_layer(
        self, layer: Layer, x_ND: Tensor, batch: Batch, dropout: DropoutKeys | None, output_index_K: Tensor | None
    ) -> Tensor:
        """x_ND: (N, D) to (N, D), or to (K, D) of the tokens asked for."""
        encode = self._encode_modern if isinstance(layer, ModernLayer) else self._encode_bert
        return encode(layer, x_ND, batch, dropout, output_index_K)  # type: ignore[arg-type]

    def _encode_bert(
        self, layer: BertLayer, x_ND: Tensor, batch: Batch, dropout: DropoutKeys | None, output_index_K: Tensor | None
    ) -> Tensor:
        library, site, hidden = self.library, layer.first_site, layer.hidden_dropout
        q, k, v = layer.query, layer.key, layer.value
        # One product for all three: (N, 3 * D), q, k and v side by side.
        qkv_N3D = linear(library, x_ND, q.weight, k.weight, v.weight)
        qkv_N3D = functions.add_bias(library, qkv_N3D, q.bias, k.bias, v.bias)
        drop_weights = _drop_weights(layer, dropout)
        y_ND = functions.attention(library, qkv_N3D, batch.row_starts_B, layer.num_heads, drop_weights)
        if output_index_K is not None:
            x_ND, y_ND = x_ND.index_select(0, output_index_K), y_ND.index_select(0, output_index_K)
            dropout = dropout and dropout.of_tokens(output_index_K)
        y_ND = linear(library, y_ND, layer.attention_output.weight)
        drop = _drop_hidden(dropout, hidden, site + 1) if layer.drops_attention_output else None
        x_ND = functions.drop_add_norm(library, y_ND, layer.attention_output.bias, x_ND, layer.attention_norm, drop)
        inner_NF = linear(library, x_ND, layer.ffn_in.weight)
        inner_NF = functions.bias_gelu(library, inner_NF, layer.ffn_in.bias, by_tanh=layer.approximate == "tanh")
        y_ND = linear(library, inner_NF, layer.ffn_out.weight)
        drop = _drop_hidden(dropout, hidden, site + 2)
        return functions.drop_add_norm(library, y_ND, layer.ffn_out.bias, x_ND, layer.ffn_norm, drop)

    def _encode_modern(
        self, layer: ModernLayer, x_ND: Tensor, batch: Batch, dropout: DropoutKeys | None, output_index_K: Tensor | None
    ) -> Tensor:
        library, site, hidden = self.library, layer.first_site, layer.hidden_dropout
        y_ND = x_ND if layer.attention_norm is None else functions.norm(library, x_ND, layer.attention_norm)
        qkv_N3D = linear(library, y_ND, layer.qkv.weight)
        tables = _tables(batch.longest, x_ND.shape[1] // layer.num_heads, layer.rope_theta)
        qkv_N3D = functions.rotate(library, qkv_N3D, *tables, batch.positions_N, layer.num_heads)
        drop_weights = _drop_weights(layer, dropout)
        y_ND = functions.attention(library, qkv_N3D, batch.row_starts_B, layer.num_heads, drop_weights, layer.reach)
        if output_index_K is not None:
            x_ND, y_ND = x_ND.index_select(0, output_index_K), y_ND.index_select(0, output_index_K)
            dropout = dropout and dropout.of_tokens(output_index_K)
        y_ND = linear(library, y_ND, layer.attention_output.weight)
        x_ND, y_ND = functions.add_norm(library, y_ND, x_ND, layer.ffn_norm, _drop_hidden(dropout, hidden, site + 1))
        y_ND = linear(library, y_ND, layer.ffn_in.weight)
        y_ND = functions.gated_gelu(library, y_ND, by_tanh=layer.approximate == "tanh")
        y_ND = linear(library, y_ND, layer.ffn_out.weight)
        drop = _drop_hidden(dropout, hidden, site + 2)
        return x_ND + (y_ND if drop is None else functions.dropout(library, y_ND, drop))

    def masked_lm(self, model: BertParameters, x_MD: Tensor, labels_M: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sum of the masked-LM losses in nats and the number of right answers."""
        library = self.library
        x_MD = linear(library, x_MD, model.mlm_transform.weight)
        by_tanh = gelu_approximation(model.config) == "tanh"
        if model.mlm_transform.bias is None:
            x_MD = F.gelu(x_MD, approximate="tanh" if by_tanh else "none")
        else:
            x_MD = functions.bias_gelu(library, x_MD, model.mlm_transform.bias, by_tanh=by_tanh)
        # No kernel for it: nothing is dropped or added before this LayerNorm, and M is about 15 % of N.
        x_MD = model.mlm_norm(x_MD.float()).to(x_MD.dtype)
        logits_MV = linear(library, x_MD, model.embeddings.tokens.weight)
        logits_MV = functions.add_bias(library, logits_MV, model.mlm_bias)
        return functions.cross_entropy(library, logits_MV, labels_M, model.vocabulary_size)


def find(device: torch.device, dtype: torch.dtype, head_size: int) -> Backend:
    """Return the backend of a model on processors: kernels where they compute its heads in this type, else operations.

    head_size: features of a head.
    """
    kernels, reason = library.find()
    if kernels is None:
        return EagerBackend(kernels=f"none ({reason})")
    if library.usable(device, dtype) is None:
        return EagerBackend(kernels=f"none in {_OTHER_TYPES[dtype]}")
    # Attention's tiles are whole vectors of a head's features; see ``native/attention.cpp``.
    if head_size % _LANES:
        return EagerBackend(kernels=f"none for heads of {head_size} features")
    return CpuBackend(kernels, dtype)


@lru_cache(8)
def _tables(length: int, head_size: int, theta: float) -> tuple[Tensor, Tensor]:
    """Return the tables of rotary positions for rows of so many tokens; a few, since micro-batches differ in length."""
    return rotary_tables(torch.arange(length), head_size, theta)


def _drop_weights(layer: Layer, dropout: DropoutKeys | None) -> Drop | None:
    """Return the dropout of attention weights, None where nothing is dropped."""
    if dropout is None or layer.attention_dropout == 0:
        return None
    return Drop(dropout.row_keys(layer.first_site), layer.attention_dropout)


def _drop_hidden(dropout: DropoutKeys | None, probability: float, site: int) -> Drop | None:
    """Return the dropout of features at a site, None where nothing is dropped."""
    return Drop(dropout.token_keys(site), probability) if dropout is not None and probability > 0 else None
