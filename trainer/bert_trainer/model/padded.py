"""The model on rows padded to the longest of a micro-batch: the form in which it becomes a graph.

``backends.ort`` trains by it and ``checkpoints.onnx_export`` writes it down. The mathematics is that of ``operations``.
What dropout keeps comes in as masks (``backends.ort.keep_masks``), because a graph's own dropout draws from a
generator. The modules here hold the model's parameters, none of their own, and nothing in them depends on sizes of one
micro-batch: a graph is traced once.

Letters: B rows, T longest row, D hidden size, H heads, E = D / H, K tokens whose output is asked for, M masked
positions, V entries of the padded vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bert_trainer.model import operations
from bert_trainer.model.batch import Batch
from bert_trainer.model.layers import BertParameters, EncoderParameters, Layer, ModernLayer, gelu_approximation


@dataclass(frozen=True, slots=True)
class PaddedRows:
    """A micro-batch as the graph takes it."""

    tokens_BT: Tensor
    """int64; 0 where a row has no token."""
    segments_BT: Tensor
    positions_T: Tensor
    """int64: 0 to T - 1."""
    attention_bias_B11T: Tensor
    """fp32: 0 where a row has a token, else -inf."""
    output_index_K: Tensor
    """int64, among the B * T."""

    @classmethod
    def of(cls, batch: Batch, output_index_K: Tensor) -> PaddedRows:
        """output_index_K: int64, places among the N real tokens."""
        rows, length = batch.row_mask_BT.shape
        device = batch.tokens_N.device

        def pad(values_N: Tensor) -> Tensor:
            return values_N.new_zeros(rows * length).index_copy(0, batch.padded_index_N, values_N).view(rows, length)

        bias_BT = torch.zeros(rows, length, device=device).masked_fill(~batch.row_mask_BT, -math.inf)
        return cls(
            pad(batch.tokens_N),
            pad(batch.segments_N),
            torch.arange(length, device=device),
            bias_BT[:, None, None, :],
            batch.padded_index_N.index_select(0, output_index_K),
        )

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """In the order of the graph's inputs."""
        return (
            self.tokens_BT,
            self.segments_BT,
            self.positions_T,
            self.attention_bias_B11T,
            self.output_index_K,
        )


class PaddedEncoder(nn.Module):
    """The encoder; its inputs are ``PaddedRows.tensors`` and the masks that ``keep_masks`` returns."""

    def __init__(self, model: EncoderParameters) -> None:
        """model: whose parameters these are."""
        super().__init__()
        self.config = model.config
        self.embeddings = model.embeddings
        self.layers = model.layers
        self.final_norm = model.final_norm

    def forward(
        self,
        tokens_BT: Tensor,
        segments_BT: Tensor,
        positions_T: Tensor,
        bias_B11T: Tensor,
        index_K: Tensor | None,
        *keeps: Tensor,
    ) -> Tensor:
        """Return the last hidden states, (K, D) of the tokens asked for, or (B, T, D) of all."""
        masks = _Masks(keeps)
        x = operations.sum_embeddings(self.embeddings, self.embeddings.tokens(tokens_BT), positions_T, segments_BT)
        x = masks.drop(x, self.config.hidden_dropout)
        last = len(self.layers) - 1
        for number, layer in enumerate(self.layers):
            x = _encode_layer(layer, x, bias_B11T, index_K if number == last else None, masks)  # type: ignore[arg-type]
        if self.final_norm is None:
            return x
        return operations.layer_norm(x, operations.norm_of(self.final_norm), self.final_norm.eps)


class PaddedPretraining(PaddedEncoder):
    """The encoder with both heads and their losses."""

    def __init__(self, model: BertParameters) -> None:
        """model: whose parameters these are."""
        super().__init__(model)
        self.mlm_transform, self.mlm_norm, self.mlm_bias = model.mlm_transform, model.mlm_norm, model.mlm_bias
        self.pooler, self.nsp = model.pooler, model.nsp
        beyond_V = torch.arange(model.padded_vocabulary_size) >= model.vocabulary_size
        bias_V = torch.zeros(len(beyond_V)).masked_fill(beyond_V, -math.inf)
        # Added to the bias: entries of the vocabulary's padding get logits of -inf, without a pass over (M, V).
        self.padding_bias_V: Tensor
        self.register_buffer("padding_bias_V", bias_V.to(model.mlm_bias.device), persistent=False)

    def forward(  # type: ignore[override]
        self,
        tokens_BT: Tensor,
        segments_BT: Tensor,
        positions_T: Tensor,
        bias_B11T: Tensor,
        index_K: Tensor,
        labels_M: Tensor,
        next_sentence_B: Tensor,
        *keeps: Tensor,
    ) -> tuple[Tensor, ...]:
        """Return both losses, summed, and how many masked tokens and pairs were right; the last of both with that head.

        index_K: first the M masked positions, then each row's first token.
        """
        x_KD = super().forward(tokens_BT, segments_BT, positions_T, bias_B11T, index_K, *keeps)
        if self.nsp is None or self.pooler is None:
            return self._masked_lm(x_KD, labels_M)
        rows = next_sentence_B.shape[0]
        masked_lm = self._masked_lm(x_KD[:-rows], labels_M)
        return (*masked_lm, *operations.score(self.nsp(torch.tanh(self.pooler(x_KD[-rows:]))), next_sentence_B))

    def _masked_lm(self, x_MD: Tensor, labels_M: Tensor) -> tuple[Tensor, Tensor]:
        transform, norm = operations.linear_of(self.mlm_transform), operations.norm_of(self.mlm_norm)
        x_MD = operations.transform_masked(x_MD, transform, norm, gelu_approximation(self.config), self.mlm_norm.eps)
        output = operations.Linear(self.embeddings.tokens.weight, self.mlm_bias + self.padding_bias_V)
        return operations.score(operations.linear(x_MD, output), labels_M)


class _Masks:
    """The masks in the order in which they are used; none where nothing is dropped."""

    def __init__(self, keeps: Sequence[Tensor]) -> None:
        self._left = list(keeps)
        self._drops = bool(keeps)

    def drop(self, x: Tensor, probability: float) -> Tensor:
        """Zero what is not kept and scale the rest."""
        if not self._drops or probability == 0:
            return x
        keep = self._left.pop(0)
        return torch.where(keep, x * (1.0 / (1.0 - probability)), 0.0)


def _encode_layer(layer: Layer, x_BTD: Tensor, bias_B11T: Tensor, index_K: Tensor | None, masks: _Masks) -> Tensor:
    """Return (B, T, D), or (K, D) of the tokens asked for."""

    def attend(y_BTD: Tensor) -> Tensor:
        return _attend(layer, y_BTD, bias_B11T, masks)

    def drop(y: Tensor, _: int, probability: float) -> Tensor:
        return masks.drop(y, probability)

    if isinstance(layer, ModernLayer):
        weights = operations.modern_weights_of(layer)
        return operations.encode_modern_layer(x_BTD, weights, layer, attend, drop, index_K)
    return operations.encode_layer(x_BTD, operations.weights_of(layer), layer, attend, drop, index_K)


def _attend(layer: Layer, x_BTD: Tensor, bias_B11T: Tensor, masks: _Masks) -> Tensor:
    """Softmax attention inside each row, (B, T, D) to (B, T, D)."""
    rows, length, size = x_BTD.shape
    shape = (rows, length, layer.num_heads, size // layer.num_heads)
    if isinstance(layer, ModernLayer):
        q, k, v = (part.view(shape).transpose(1, 2) for part in layer.qkv(x_BTD).chunk(3, -1))
        q, k, bias_B11T = _turn(layer, q, k, bias_B11T)
    else:
        q, k, v = (linear(x_BTD).view(shape).transpose(1, 2) for linear in (layer.query, layer.key, layer.value))
    scores_BHTT = q @ k.transpose(-1, -2) / math.sqrt(shape[-1]) + bias_B11T
    weights_BHTT = masks.drop(scores_BHTT.softmax(-1), layer.attention_dropout)
    y_BTD: Tensor = (weights_BHTT @ v).transpose(1, 2).flatten(2)
    return y_BTD


def _turn(layer: ModernLayer, q_BHTE: Tensor, k_BHTE: Tensor, bias_B11T: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries and keys turned by their positions, and the bias with the layer's window, (B, 1, T, T)."""
    places_T = torch.arange(q_BHTE.shape[2], device=q_BHTE.device)
    tables = operations.rotary_tables(places_T, q_BHTE.shape[3], layer.rope_theta)
    q_BHTE, k_BHTE = operations.rotate(q_BHTE, *tables), operations.rotate(k_BHTE, *tables)
    if layer.reach is None:
        return q_BHTE, k_BHTE, bias_B11T
    beyond_TT = (places_T[:, None] - places_T).abs() > layer.reach
    # The smaller of both, not their sum: that of two lowest numbers is -inf, and a row of padding would become NaN.
    return q_BHTE, k_BHTE, torch.where(beyond_TT, torch.finfo(torch.float32).min, bias_B11T)
