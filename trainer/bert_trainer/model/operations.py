"""BERT's mathematics in tensor operations, once for every backend but the one made of C++ kernels.

``backends.eager`` runs it as it is, ``backends.gpu.functions`` compiled, ``padded`` as the graph of ONNX Runtime and of
an ONNX file. They differ in how rows are attended to and what drops features, which they pass in, and in the types of
products: a product is computed in the type of its input (or in autocast's), sums and LayerNorm in fp32 at least.

Letters: N tokens of a micro-batch, D hidden size, K tokens whose output is asked for, M masked positions, V entries of
the padded vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody knows it by
from torch import Tensor, nn

from bert_trainer.model.batch import IGNORED_LABEL
from bert_trainer.model.layers import Embeddings, Layer
from bert_trainer.model.precision import at_least_fp32

AFTER_ATTENTION, AFTER_FFN = 1, 2
"""Where a layer drops features, counted from its first dropout site, which is that of attention weights."""


class Linear(NamedTuple):
    """Weight (out, in) and bias (out,) of a product."""

    weight: Tensor
    bias: Tensor


class Norm(NamedTuple):
    """Gain and bias of a LayerNorm, (D,)."""

    weight: Tensor
    bias: Tensor


class LayerWeights(NamedTuple):
    """Parameters of one encoder layer, as they are stored."""

    query: Linear
    key: Linear
    value: Linear
    attention_output: Linear
    attention_norm: Norm
    ffn_in: Linear
    ffn_out: Linear
    ffn_norm: Norm


def linear_of(module: nn.Linear) -> Linear:
    """Return a module's parameters."""
    return Linear(module.weight, module.bias)


def norm_of(module: nn.LayerNorm) -> Norm:
    """Return a module's parameters."""
    return Norm(module.weight, module.bias)


def weights_of(layer: Layer) -> LayerWeights:
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


class LayerConfig(Protocol):
    """What is the same in all layers."""

    @property
    def hidden_dropout(self) -> float:
        """Probability that a feature is dropped."""

    @property
    def drops_attention_output(self) -> bool:
        """Whether features are dropped behind attention too."""

    @property
    def approximate(self) -> str:
        """Of GELU: ``none`` or ``tanh``."""

    @property
    def epsilon(self) -> float:
        """Of LayerNorm."""


Attend = Callable[[Tensor], Tensor]
"""Self-attention inside rows, with the projections to queries, keys and values: (N, D) to (N, D)."""
Drop = Callable[[Tensor, int, float], Tensor]
"""(features (..., D), place in the layer, probability) to the features that are kept, scaled."""


def sum_embeddings(embeddings: Embeddings, tokens: Tensor, positions: Tensor, segments: Tensor) -> Tensor:
    """Return the sum of token, position and segment embeddings, normalised, (..., D), of int64 (...)."""
    x: Tensor = embeddings.tokens(tokens) + embeddings.positions(positions)
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
    if output_index_K is not None:
        # Everything behind attention works on single tokens: the rest of the layer is computed for K of them.
        x_ND, y_ND = (z.flatten(0, -2).index_select(0, output_index_K) for z in (x_ND, y_ND))
    y_ND = linear(y_ND, w.attention_output)
    if config.drops_attention_output:
        y_ND = drop(y_ND, AFTER_ATTENTION, config.hidden_dropout)
    x_ND = _as_type(layer_norm(at_least_fp32(x_ND) + y_ND, w.attention_norm, config.epsilon), dtype)
    inner_NF = F.gelu(linear(x_ND, w.ffn_in), approximate=config.approximate)
    y_ND = drop(linear(inner_NF, w.ffn_out), AFTER_FFN, config.hidden_dropout)
    return _as_type(layer_norm(at_least_fp32(x_ND) + y_ND, w.ffn_norm, config.epsilon), dtype)


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
    return F.linear(x, _as_type(w.weight, x.dtype), _as_type(w.bias, x.dtype))


def layer_norm(x: Tensor, w: Norm, epsilon: float) -> Tensor:
    """Normalise over the last dimension: to fp32 or wider, as half precision would lose digits of variance and mean."""
    x = at_least_fp32(x)
    return F.layer_norm(x, w.weight.shape, _as_type(w.weight, x.dtype), _as_type(w.bias, x.dtype), epsilon)


def _as_type(x: Tensor, dtype: torch.dtype) -> Tensor:
    # Not always ``to``: a traced graph would hold conversions that convert nothing.
    return x if x.dtype == dtype else x.to(dtype)
