"""The model in plain PyTorch operations: any device, any floating-point type. The reference for the other backends.

Rows are concatenated to their real tokens before the embeddings; only attention sees rows, and none sees another.

Letters: N real tokens of a micro-batch, B rows, T longest row, D hidden size, H heads, E = D / H, M masked positions,
K tokens whose output is asked for, V entries of the padded vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody knows it by
from torch import Tensor

from bert_trainer.model import operations
from bert_trainer.model.backends.backend import LayeredBackend
from bert_trainer.model.backends.processor import describe_processor
from bert_trainer.model.batch import Batch
from bert_trainer.model.dropout import EMBEDDINGS_SITE, DropoutKeys
from bert_trainer.model.layers import BertParameters, EncoderParameters, Layer, ModernLayer, gelu_approximation
from bert_trainer.model.operations import (
    Linear,
    encode_layer,
    encode_modern_layer,
    inside_window,
    linear,
    linear_of,
    modern_weights_of,
    norm_of,
    rotary_tables,
    rotate,
    score,
    sum_embeddings,
    weights_of,
)


@dataclass(frozen=True, slots=True)
class EagerBackend(LayeredBackend):
    """Plain PyTorch operations."""

    kernels: str = "none asked for"
    """Why there are none in their place, for the log."""

    def describe(self, rank: int, precision: str) -> str:
        """Return what a rank on processors computes with, in one line."""
        return describe_processor(rank, precision, self.kernels)

    def embed(self, model: EncoderParameters, batch: Batch, dropout: DropoutKeys | None) -> Tensor:
        """Return embeddings, normalised and dropped, (N, D)."""
        x_ND = sum_embeddings(
            model.embeddings, model.embeddings.tokens(batch.tokens_N), batch.positions_N, batch.segments_N
        )
        return _drop(x_ND, dropout, model.config.hidden_dropout, EMBEDDINGS_SITE)

    def encode_layer(
        self, layer: Layer, x_ND: Tensor, batch: Batch, dropout: DropoutKeys | None, output_index_K: Tensor | None
    ) -> Tensor:
        """x_ND: (N, D) to (N, D), or to (K, D) of the tokens asked for."""
        behind = dropout
        if dropout is not None and output_index_K is not None:
            behind = dropout.of_tokens(output_index_K)

        def drop(y: Tensor, place: int, probability: float) -> Tensor:
            return _drop(y, behind, probability, layer.first_site + place)

        def attend(y: Tensor) -> Tensor:
            return _attend(layer, y, batch, dropout)

        if isinstance(layer, ModernLayer):
            return encode_modern_layer(x_ND, modern_weights_of(layer), layer, attend, drop, output_index_K)
        return encode_layer(x_ND, weights_of(layer), layer, attend, drop, output_index_K)

    def masked_lm(self, model: BertParameters, x_MD: Tensor, labels_M: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sum of the masked-LM losses in nats and the number of right answers."""
        return score(masked_lm_logits(model, x_MD), labels_M)


def masked_lm_logits(model: BertParameters, x_MD: Tensor) -> Tensor:
    """Return (M, V); columns of the vocabulary's padding are -inf."""
    return operations.masked_lm_logits(
        x_MD,
        linear_of(model.mlm_transform),
        norm_of(model.mlm_norm),
        Linear(model.embeddings.tokens.weight, model.mlm_bias),
        model.vocabulary_size,
        gelu_approximation(model.config),
        model.mlm_norm.eps,
    )


def _drop(x_ND: Tensor, dropout: DropoutKeys | None, probability: float, site: int) -> Tensor:
    return x_ND if dropout is None or probability == 0 else dropout.hidden(x_ND, probability, site)


def _attend(layer: Layer, x_ND: Tensor, batch: Batch, dropout: DropoutKeys | None) -> Tensor:
    """Softmax attention inside each row, (N, D) to (N, D), on rows padded to the longest of the micro-batch."""
    mask = batch.row_mask_BT[:, None, None, :]
    if isinstance(layer, ModernLayer):
        qkv = linear(x_ND, linear_of(layer.qkv)).chunk(3, dim=-1)
        q_BHTE, k_BHTE, v_BHTE = (_pad_rows(part_ND, batch, layer.num_heads) for part_ND in qkv)
        places_T = torch.arange(q_BHTE.shape[-2], device=x_ND.device)
        tables = rotary_tables(places_T, q_BHTE.shape[-1], layer.rope_theta)
        q_BHTE, k_BHTE = rotate(q_BHTE, *tables), rotate(k_BHTE, *tables)
        mask = inside_window(mask, layer.reach)
    else:
        q_BHTE, k_BHTE, v_BHTE = (
            _pad_rows(projection(x_ND), batch, layer.num_heads) for projection in (layer.query, layer.key, layer.value)
        )
    if dropout is None or layer.attention_dropout == 0:
        y_BHTE = F.scaled_dot_product_attention(q_BHTE, k_BHTE, v_BHTE, attn_mask=mask)
    else:
        # Written out, because PyTorch's function draws its dropout from a generator instead of from these keys.
        scores_BHTT = (q_BHTE @ k_BHTE.transpose(-1, -2)) / math.sqrt(q_BHTE.shape[-1])
        weights_BHTT = scores_BHTT.masked_fill(~mask, -math.inf).softmax(-1)
        y_BHTE = dropout.attention(weights_BHTT, layer.attention_dropout, layer.first_site) @ v_BHTE
    y_BTD = y_BHTE.transpose(1, 2).flatten(2)
    return y_BTD.flatten(0, 1)[batch.padded_index_N]


def _pad_rows(x_ND: Tensor, batch: Batch, num_heads: int) -> Tensor:
    """(N, D) to (B, H, T, E), zeros where a row has no token."""
    rows, length = batch.row_mask_BT.shape
    padded = x_ND.new_zeros(rows * length, x_ND.shape[-1]).index_copy(0, batch.padded_index_N, x_ND)
    return padded.view(rows, length, num_heads, -1).transpose(1, 2)
