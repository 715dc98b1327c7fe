"""The model's parts made of kernels: the mathematics of ``model.operations``, and the same elements dropped."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor

from bert_trainer.model.backends.backend import Backend, LayeredBackend
from bert_trainer.model.backends.cpu import functions, library
from bert_trainer.model.backends.cpu.functions import Drop
from bert_trainer.model.backends.cpu.library import Library
from bert_trainer.model.backends.cpu.linear import cached_weights, linear
from bert_trainer.model.backends.eager import EagerBackend
from bert_trainer.model.backends.processor import describe_processor
from bert_trainer.model.batch import Batch
from bert_trainer.model.dropout import EMBEDDINGS_SITE, DropoutKeys
from bert_trainer.model.layers import BertParameters, EncoderParameters, Layer, gelu_approximation
from bert_trainer.model.operations import sum_embeddings

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
        x_ND = sum_embeddings(model.embeddings, batch.tokens_N, batch.positions_N, batch.segments_N).to(self.dtype)
        drop = _drop_hidden(dropout, model.config.hidden_dropout, EMBEDDINGS_SITE)
        return x_ND if drop is None else functions.dropout(self.library, x_ND, drop)

    def encode_layer(
        self, layer: Layer, x_ND: Tensor, batch: Batch, dropout: DropoutKeys | None, output_index_K: Tensor | None
    ) -> Tensor:
        """x_ND: (N, D) to (N, D), or to (K, D) of the tokens asked for."""
        library, site, hidden = self.library, layer.first_site, layer.hidden_dropout
        q, k, v = layer.query, layer.key, layer.value
        # One product for all three: (N, 3 * D), q, k and v side by side.
        qkv_N3D = linear(library, x_ND, q.weight, k.weight, v.weight)
        qkv_N3D = functions.add_bias(library, qkv_N3D, q.bias, k.bias, v.bias)
        drop_weights = None
        if dropout is not None and layer.attention_dropout > 0:
            drop_weights = Drop(dropout.row_keys(site), layer.attention_dropout)
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

    def masked_lm(self, model: BertParameters, x_MD: Tensor, labels_M: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sum of the masked-LM losses in nats and the number of right answers."""
        library = self.library
        x_MD = linear(library, x_MD, model.mlm_transform.weight)
        by_tanh = gelu_approximation(model.config) == "tanh"
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


def _drop_hidden(dropout: DropoutKeys | None, probability: float, site: int) -> Drop | None:
    """Return the dropout of features at a site, None where nothing is dropped."""
    return Drop(dropout.token_keys(site), probability) if dropout is not None and probability > 0 else None
