"""The mathematics of BERT and ModernBERT in tensor operations, once for every backend but the one made of C++ kernels.

``backends.eager`` runs it as it is, ``backends.gpu.functions`` compiled, ``padded`` as the graph of ONNX Runtime and of
an ONNX file. They differ in how rows are attended to and what drops features, which they pass in, and in the types of
products: a product is computed in the type of its input (or in autocast's), sums and LayerNorm in fp32 at least.

Letters: N tokens of a micro-batch, D hidden size, K tokens whose output is asked for, M masked positions, V entries of
the padded vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody knows it by
from torch import Tensor, nn

from bert_trainer.model.batch import IGNORED_LABEL
from bert_trainer.model.layers import BertLayer, Embeddings, ModernLayer
from bert_trainer.model.precision import at_least_fp32

AFTER_ATTENTION, AFTER_FFN = 1, 2
"""Where a layer drops features, counted from its first dropout site, which is that of attention weights."""


class Linear(NamedTuple):
    """Weight (out, in) and bias (out,) of a product."""

    weight: Tensor
    bias: Tensor | None


class Norm(NamedTuple):
    """Gain and bias of a LayerNorm, (D,)."""

    weight: Tensor
    bias: Tensor | None


class LayerWeights(NamedTuple):
    """Parameters of one encoder layer of BERT, as they are stored."""

    query: Linear
    key: Linear
    value: Linear
    attention_output: Linear
    attention_norm: Norm
    ffn_in: Linear
    ffn_out: Linear
    ffn_norm: Norm


class ModernLayerWeights(NamedTuple):
    """Parameters of one encoder layer of ModernBERT, as they are stored."""

    attention_norm: Norm | None
    qkv: Linear
    attention_output: Linear
    ffn_norm: Norm
    ffn_in: Linear
    ffn_out: Linear


def linear_of(module: nn.Linear) -> Linear:
    """Return a module's parameters."""
    return Linear(module.weight, module.bias)


def norm_of(module: nn.LayerNorm) -> Norm:
    """Return a module's parameters."""
    return Norm(module.weight, module.bias)


def weights_of(layer: BertLayer) -> LayerWeights:
    """Return a layer's parameters: tensors alone, so that one compiled function serves all layers."""
    return LayerWeights(
        query=linear_of(layer.query),
        key=linear_of(layer.key),
        value=linear_of(layer.value),
        attention_output=linear_of(layer.attention_output),
        attention_norm=norm_of(layer.attention_norm),
        ffn_in=linear_of(layer.ffn_in),
        ffn_out=linear_of(layer.ffn_out),
        ffn_norm=norm_of(layer.ffn_norm),
    )


def modern_weights_of(layer: ModernLayer) -> ModernLayerWeights:
    """Return a layer's parameters, as ``weights_of``."""
    return ModernLayerWeights(
        attention_norm=None if layer.attention_norm is None else norm_of(layer.attention_norm),
        qkv=linear_of(layer.qkv),
        attention_output=linear_of(layer.attention_output),
        ffn_norm=norm_of(layer.ffn_norm),
        ffn_in=linear_of(layer.ffn_in),
        ffn_out=linear_of(layer.ffn_out),
    )


class ModernLayerConfig(Protocol):
    """What is the same in all layers of ModernBERT."""

    @property
    def hidden_dropout(self) -> float:
        """Probability that a feature is dropped."""

    @property
    def approximate(self) -> str:
        """Of GELU: ``none`` or ``tanh``."""

    @property
    def epsilon(self) -> float:
        """Of LayerNorm."""


class LayerConfig(ModernLayerConfig, Protocol):
    """What is the same in all layers of BERT."""

    @property
    def drops_attention_output(self) -> bool:
        """Whether features are dropped behind attention too."""


Attend = Callable[[Tensor], Tensor]
"""Self-attention inside rows, with the projections to queries, keys and values: (N, D) to (N, D)."""
Drop = Callable[[Tensor, int, float], Tensor]
"""(features (..., D), place in the layer, probability) to the features that are kept, scaled."""


def sum_embeddings(embeddings: Embeddings, x: Tensor, positions: Tensor, segments: Tensor) -> Tensor:
    """Return the sum of token, position and segment embeddings, normalised, (..., D).

    x: embeddings of tokens, (..., D). positions, segments: int64, (...).
    """
    if embeddings.positions is not None:
        x = x + embeddings.positions(positions)
    if embeddings.segments is not None:
        x = x + embeddings.segments(segments)
    return embeddings.norm(at_least_fp32(x))  # type: ignore[no-any-return]


def encode_layer(
    x_ND: Tensor, w: LayerWeights, config: LayerConfig, attend: Attend, drop: Drop, output_index_K: Tensor | None
) -> Tensor:
    """Compute a post-LayerNorm encoder layer (Devlin et al. 2019).

    Args:
        x_ND: Hidden states (N, D); padded rows are (B, T, D).
        w: The layer's parameters.
        config: What all layers share.
        attend: Attention to all tokens of a row.
        drop: Dropout of features, of the K tokens where some are asked for.
        output_index_K: int64, places among all tokens; None for all.

    Returns:
        The same shape, or (K, D), in the type of ``x_ND``.
    """
    y_ND, dtype = attend(x_ND), x_ND.dtype
    x_ND, y_ND = _select(output_index_K, x_ND, y_ND)
    y_ND = linear(y_ND, w.attention_output)
    if config.drops_attention_output:
        y_ND = drop(y_ND, AFTER_ATTENTION, config.hidden_dropout)
    x_ND = _as_type(layer_norm(at_least_fp32(x_ND) + y_ND, w.attention_norm, config.epsilon), dtype)
    inner_NF = F.gelu(linear(x_ND, w.ffn_in), approximate=config.approximate)
    y_ND = drop(linear(inner_NF, w.ffn_out), AFTER_FFN, config.hidden_dropout)
    return _as_type(layer_norm(at_least_fp32(x_ND) + y_ND, w.ffn_norm, config.epsilon), dtype)


def encode_modern_layer(
    x_ND: Tensor,
    w: ModernLayerWeights,
    config: ModernLayerConfig,
    attend: Attend,
    drop: Drop,
    output_index_K: Tensor | None,
) -> Tensor:
    """Compute a pre-LayerNorm encoder layer with a gated feed-forward part (Warner et al. 2024, section 2).

    Arguments and result are those of ``encode_layer``; ``attend`` rotates queries and keys and heeds the window.
    """
    dtype = x_ND.dtype
    y_ND = x_ND if w.attention_norm is None else _as_type(layer_norm(x_ND, w.attention_norm, config.epsilon), dtype)
    x_ND, y_ND = _select(output_index_K, x_ND, attend(y_ND))
    y_ND = drop(linear(y_ND, w.attention_output), AFTER_ATTENTION, config.hidden_dropout)
    x_ND = _as_type(at_least_fp32(x_ND) + y_ND, dtype)
    y_ND = _as_type(layer_norm(x_ND, w.ffn_norm, config.epsilon), dtype)
    inner_NF, gate_NF = linear(y_ND, w.ffn_in).chunk(2, dim=-1)
    y_ND = linear(F.gelu(inner_NF, approximate=config.approximate) * gate_NF, w.ffn_out)
    return _as_type(at_least_fp32(x_ND) + drop(y_ND, AFTER_FFN, config.hidden_dropout), dtype)


def _select(output_index_K: Tensor | None, *tensors: Tensor) -> Sequence[Tensor]:
    # Everything behind attention works on single tokens: the rest of a last layer is computed for K of them.
    if output_index_K is None:
        return tensors
    return [x.flatten(0, -2).index_select(0, output_index_K) for x in tensors]


def rotary_tables(positions_T: Tensor, head_size: int, theta: float) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of the angles by which positions turn pairs of features, fp32 (T, head_size / 2).

    RoPE (Su et al. 2021, section 3.2.2): pair i turns by position x theta^(-2i / head_size). In fp32 throughout, as
    transformers has it: in fp64 angles of late positions would differ in the fourth digit.
    """
    pairs = torch.arange(0, head_size, 2, device=positions_T.device, dtype=torch.float32)
    angles = positions_T.to(torch.float32)[:, None] * (1.0 / theta ** (pairs / head_size))
    return angles.cos(), angles.sin()


def rotate(x_BHTE: Tensor, cosines_TE: Tensor, sines_TE: Tensor) -> Tensor:
    """Return queries or keys, (..., T, E), turned by their positions: feature i with feature i + E / 2."""
    first, second = at_least_fp32(x_BHTE).chunk(2, dim=-1)
    turned = (first * cosines_TE - second * sines_TE, second * cosines_TE + first * sines_TE)
    return _as_type(torch.cat(turned, dim=-1), x_BHTE.dtype)


def inside_window(mask_B11T: Tensor, reach: int | None) -> Tensor:
    """Return what each token may attend to, bool (B, 1, T, T), or ``mask_B11T`` itself where there is no window.

    mask_B11T: bool, where a padded row has a token. reach: tokens on either side that one attends to; None for all.
    """
    if reach is None:
        return mask_B11T
    places_T = torch.arange(mask_B11T.shape[-1], device=mask_B11T.device)
    distance_TT = (places_T[:, None] - places_T).abs()
    # Padding sees itself: a softmax over nothing would be NaN, and so would its gradients.
    return mask_B11T & (distance_TT <= reach) | (distance_TT == 0)


def transform_masked(x_MD: Tensor, transform: Linear, norm: Norm, approximate: str, epsilon: float) -> Tensor:
    """Return what the masked-LM head multiplies by the token table, (M, D)."""
    inner_MD = F.gelu(linear(x_MD, transform), approximate=approximate)
    return _as_type(layer_norm(inner_MD, norm, epsilon), x_MD.dtype)


def masked_lm_logits(
    x_MD: Tensor,
    transform: Linear,
    norm: Norm,
    output: Linear,
    vocabulary_size: int,
    approximate: str,
    epsilon: float,
) -> Tensor:
    """Return (M, V), -inf for entries that pad the vocabulary. output: the token table (V, D) and its bias."""
    logits_MV = linear(transform_masked(x_MD, transform, norm, approximate, epsilon), output)
    if logits_MV.shape[-1] == vocabulary_size:
        return logits_MV
    beyond_V = torch.arange(logits_MV.shape[-1], device=logits_MV.device) >= vocabulary_size
    return logits_MV.masked_fill(beyond_V, -math.inf)


def score(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum of cross-entropies in nats and the number of right answers; labels of -100 are ignored."""
    # In fp32 at least: half-precision sums over a vocabulary lose digits.
    logits = at_least_fp32(logits)
    losses = F.cross_entropy(logits, labels, reduction="sum", ignore_index=IGNORED_LABEL)
    return losses, (logits.argmax(-1) == labels).sum()


def linear(x: Tensor, w: Linear) -> Tensor:
    """Multiply by a weight and add its bias, in the type of the input."""
    return F.linear(x, _as_type(w.weight, x.dtype), None if w.bias is None else _as_type(w.bias, x.dtype))


def layer_norm(x: Tensor, w: Norm, epsilon: float) -> Tensor:
    """Normalise over the last dimension: to fp32 or wider, as half precision would lose digits of variance and mean."""
    x = at_least_fp32(x)
    bias = None if w.bias is None else _as_type(w.bias, x.dtype)
    return F.layer_norm(x, w.weight.shape, _as_type(w.weight, x.dtype), bias, epsilon)


def _as_type(x: Tensor, dtype: torch.dtype) -> Tensor:
    # Not always ``to``: a traced graph would hold conversions that convert nothing.
    return x if x.dtype == dtype else x.to(dtype)
