"""The parts of the step that torch.compile fuses on a GPU: the mathematics of ``model.operations``.

Functions of tensors and constants alone, so that one compiled encoder layer serves all layers: what differs between
layers (weights, dropout sites) comes as tensors. Products and what is kept between them are in the compute type;
LayerNorm, residual sums, GELU and losses are computed in fp32 at least.

Letters: N tokens of a micro-batch with padding, B rows, D hidden size, H heads, E = D / H, M masked positions with
padding, V entries of the padded vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from bert_trainer.model import operations
from bert_trainer.model.backends.gpu.attention import Attend, Rows
from bert_trainer.model.dropout import drop_features, site_token_keys
from bert_trainer.model.operations import LayerWeights, Linear, ModernLayerWeights, Norm


class Keys(NamedTuple):
    """What the bits of feature dropout are hashed from."""

    rows_B: Tensor
    """int32, from ``dropout.row_keys``; rows of padding have some too."""
    token_row_N: Tensor
    token_position_N: Tensor
    sites: Tensor
    """int32, (3,): the numbers of the sites that a function may use."""
    places_D: Tensor
    """int32, from ``dropout.spread_places``; made inside, Inductor's C++ would overflow an index with it."""


class LayerSettings(NamedTuple):
    """What is the same in all layers of BERT and steps."""

    attend: Attend
    num_heads: int
    longest: int
    """No row is longer, tokens."""
    attention_dropout: float
    hidden_dropout: float
    drops_attention_output: bool
    approximate: str
    """Of GELU: ``none`` or ``tanh``."""
    epsilon: float
    """Of LayerNorm."""


class ModernLayerSettings(NamedTuple):
    """What is the same in all steps, and in all layers of ModernBERT of a kind: with a window, or without one."""

    attend: Attend
    num_heads: int
    longest: int
    """No row is longer, tokens."""
    reach: int | None
    """Tokens on either side that a token attends to; None for its whole row."""
    rope_theta: float
    attention_dropout: float
    hidden_dropout: float
    approximate: str
    """Of GELU: ``none`` or ``tanh``."""
    epsilon: float
    """Of LayerNorm."""


def embed(
    summed: tuple[Tensor, ...],
    segments: tuple[Tensor, Tensor] | None,
    norm: Norm,
    keys: Keys | None,
    probability: float,
    epsilon: float,
    dtype: torch.dtype,
) -> Tensor:
    """Sum embeddings, normalise, drop: to (N, D) in the compute type.

    summed: those of tokens and, where there are any, of positions, (N, D) each. segments: the segment of every token,
    int64 (N,), and the table, (types, D); None without segments.
    """
    x_ND = summed[0] if len(summed) == 1 else summed[0] + summed[1]
    if segments is not None:
        of_token_N, table = segments
        # Arithmetic in place of a look-up, whose gradient would add up all N tokens in two rows.
        x_ND = x_ND + torch.where(of_token_N[:, None] == 0, table[0], table[1])
    x_ND = operations.layer_norm(x_ND, norm, epsilon).to(dtype)
    return _drop(x_ND, keys, 0, probability)


def encode_layer(
    x_ND: Tensor, rows: Rows, w: LayerWeights, keys: Keys | None, output_index_K: Tensor | None, settings: LayerSettings
) -> Tensor:
    """One post-LayerNorm layer, (N, D) to (N, D), or to (K, D) of the tokens asked for, int64.

    keys: sites of attention (unused), its output, the feed-forward.
    """
    attention_dropout = 0.0 if keys is None else settings.attention_dropout

    def attend(x_ND: Tensor) -> Tensor:
        # One product for q, k and v. The weights are joined in every call, so that they stay separate parameters.
        parts = (w.query, w.key, w.value)
        biases = [part.bias for part in parts if part.bias is not None]
        joined = Linear(torch.cat([part.weight for part in parts]), torch.cat(biases))
        qkv = operations.linear(x_ND, joined).view(x_ND.shape[0], 3, settings.num_heads, -1)
        return settings.attend(qkv, rows, settings.longest, attention_dropout, None).flatten(1)

    return operations.encode_layer(x_ND, w, settings, attend, _dropper(keys, output_index_K), output_index_K)


def encode_modern_layer(
    x_ND: Tensor,
    rows: Rows,
    positions_N: Tensor,
    w: ModernLayerWeights,
    keys: Keys | None,
    output_index_K: Tensor | None,
    settings: ModernLayerSettings,
) -> Tensor:
    """One pre-LayerNorm layer, as ``encode_layer``; positions_N: int64, the place of every token in its row."""
    attention_dropout = 0.0 if keys is None else settings.attention_dropout

    def attend(x_ND: Tensor) -> Tensor:
        qkv = operations.linear(x_ND, w.qkv).view(x_ND.shape[0], 3, settings.num_heads, -1)
        cosines, sines = operations.rotary_tables(positions_N, qkv.shape[-1], settings.rope_theta)
        turned = operations.rotate(qkv[:, :2], cosines[:, None, None], sines[:, None, None])
        qkv = torch.cat([turned, qkv[:, 2:]], dim=1)
        return settings.attend(qkv, rows, settings.longest, attention_dropout, settings.reach).flatten(1)

    return operations.encode_modern_layer(x_ND, w, settings, attend, _dropper(keys, output_index_K), output_index_K)


def _dropper(keys: Keys | None, output_index_K: Tensor | None) -> operations.Drop:
    if keys is not None and output_index_K is not None:
        keys = _keys_of_tokens(keys, output_index_K)
    return lambda y, place, probability: _drop(y, keys, place, probability)


def masked_lm(
    x_MD: Tensor,
    labels_M: Tensor,
    transform: Linear,
    norm: Norm,
    output: Linear,
    vocabulary_size: int,
    approximate: str,
    epsilon: float,
) -> tuple[Tensor, Tensor]:
    """Return the sum of cross-entropies in nats and how many of the likeliest tokens are right.

    labels_M: int64; negative ones are padding and ignored. output: the token table (V, D) and its bias.
    """
    logits_MV = operations.masked_lm_logits(x_MD, transform, norm, output, vocabulary_size, approximate, epsilon)
    return operations.score(logits_MV, labels_M)


def _keys_of_tokens(keys: Keys, places_K: Tensor) -> Keys:
    rows, positions = keys.token_row_N.index_select(0, places_K), keys.token_position_N.index_select(0, places_K)
    # Not ``_replace``, which Dynamo of torch 2.7 does not trace.
    return Keys(keys.rows_B, rows, positions, keys.sites, keys.places_D)


def _drop(x_ND: Tensor, keys: Keys | None, site: int, probability: float) -> Tensor:
    if keys is None or probability == 0:
        return x_ND
    # The keys that the CPU hashes: the same features of a sample are dropped on every device. torch.compile computes
    # the bits again in the backward pass instead of keeping a mask.
    keys_N = site_token_keys(keys.rows_B, keys.token_row_N, keys.token_position_N, keys.sites[site])
    return drop_features(x_ND, keys_N, keys.places_D, probability)
