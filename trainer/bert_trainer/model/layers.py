"""A model's parameters, without anything that computes with them: what checkpoints hold and every backend reads.

Devlin et al. 2019: embeddings, post-LayerNorm encoder, pooler, masked-LM head tied to the token embeddings,
next-sentence head. DistilBERT (Sanh et al. 2019) is the same without segments, pooler and the dropout after
attention. ModernBERT (Warner et al. 2024, section 2) has another layer, no table of positions, and one bias alone, the
tied decoder's. ``backends`` computes; none of the modules here has a ``forward``.

Attribute names are the keys of the state dict, and the order of their assignment is the order of ``parameters()``:
checkpoints, the flat buffers (``parallel.flat_parameters``) and the draw of initial weights depend on both.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from bert_job.run_config import ModelConfig

# Dropout sites: the embeddings' is 0; layer i uses three numbers from 1 + 3 * i.
_SITES_PER_LAYER = 3

_ENDS_OF_BRANCHES = ("attention_output.weight", "ffn_out.weight", "mlm_transform.weight")

BY_ENTRY = ("embeddings.tokens.weight", "mlm_bias")
"""Parameters with a row for every vocabulary entry, and rows of padding behind the last one."""


class Embeddings(nn.Module):
    """Tables of tokens, positions and segments, whose sum is normalised."""

    def __init__(self, config: ModelConfig, padded_vocabulary: int) -> None:
        """padded_vocabulary: rows of the token table."""
        super().__init__()
        size = config.hidden_size
        self.tokens = nn.Embedding(padded_vocabulary, size)
        self.positions = None
        if config.architecture != "modernbert":
            self.positions = nn.Embedding(config.max_position_embeddings, size)
        self.segments = None
        if config.architecture == "bert":
            self.segments = nn.Embedding(config.segment_types, size)
        self.norm = _norm(config)


class BertLayer(nn.Module):
    """One encoder layer: self-attention and feed-forward, each followed by dropout, residual, LayerNorm."""

    def __init__(self, config: ModelConfig, number: int) -> None:
        """number: counted from 0; the layer's dropout sites follow from it."""
        super().__init__()
        size, eps = config.hidden_size, config.layer_norm_epsilon
        self.num_heads = config.num_attention_heads
        self.hidden_dropout = config.hidden_dropout
        self.attention_dropout = config.attention_dropout
        # DistilBERT's authors left it out.
        self.drops_attention_output = config.architecture == "bert"
        self.approximate = gelu_approximation(config)
        self.epsilon = eps
        self.first_site = 1 + _SITES_PER_LAYER * number
        self.query = nn.Linear(size, size)
        self.key = nn.Linear(size, size)
        self.value = nn.Linear(size, size)
        self.attention_output = nn.Linear(size, size)
        self.attention_norm = nn.LayerNorm(size, eps=eps)
        self.ffn_in = nn.Linear(size, config.intermediate_size)
        self.ffn_out = nn.Linear(config.intermediate_size, size)
        self.ffn_norm = nn.LayerNorm(size, eps=eps)


class ModernLayer(nn.Module):
    """One encoder layer of ModernBERT: LayerNorm, self-attention or gated feed-forward, dropout and residual, twice."""

    def __init__(self, config: ModelConfig, number: int) -> None:
        """number: counted from 0; the layer's dropout sites, window and rotary positions follow from it."""
        super().__init__()
        size = config.hidden_size
        self.num_heads = config.num_attention_heads
        self.hidden_dropout = config.hidden_dropout
        self.attention_dropout = config.attention_dropout
        self.approximate = gelu_approximation(config)
        self.epsilon = config.layer_norm_epsilon
        self.first_site = 1 + _SITES_PER_LAYER * number
        # A model of this architecture is resolved with all of its settings; the numbers here are for types alone.
        is_global = number % (config.global_attention_every or 1) == 0
        # Tokens on either side that a token attends to; None for all of its row.
        self.reach = None if is_global else (config.attention_window or 0) // 2
        self.rope_theta: float = (config.global_rope_theta if is_global else config.local_rope_theta) or 0.0
        # The embeddings are normalised already.
        self.attention_norm = None if number == 0 else _norm(config)
        self.qkv = nn.Linear(size, 3 * size, bias=False)
        self.attention_output = nn.Linear(size, size, bias=False)
        self.ffn_norm = _norm(config)
        # What is activated, then the gate.
        self.ffn_in = nn.Linear(size, 2 * config.intermediate_size, bias=False)
        self.ffn_out = nn.Linear(config.intermediate_size, size, bias=False)


Layer = BertLayer | ModernLayer


class EncoderParameters(nn.Module):
    """The parameters of the encoder, which every model here begins with (``encoder.Encoder``)."""

    def __init__(self, config: ModelConfig, vocabulary_size: int) -> None:
        """vocabulary_size: real entries; the token table is padded to ``config.vocabulary_pad_multiple``."""
        super().__init__()
        self.config = config
        self.vocabulary_size = vocabulary_size
        self.activation_checkpointing = False
        self.embeddings = Embeddings(config, self.padded_vocabulary_size)
        layer = ModernLayer if config.architecture == "modernbert" else BertLayer
        self.layers = nn.ModuleList(layer(config, number) for number in range(config.num_hidden_layers))
        self.final_norm = _norm(config) if config.architecture == "modernbert" else None

    @property
    def padded_vocabulary_size(self) -> int:
        """Rows of the token table."""
        multiple = self.config.vocabulary_pad_multiple
        return -(-self.vocabulary_size // multiple) * multiple

    @property
    def head_dropout_site(self) -> int:
        """Number of the dropout site behind those of the layers."""
        return 1 + _SITES_PER_LAYER * self.config.num_hidden_layers

    @torch.no_grad()
    def initialize(self, seed: int) -> None:
        """Weights from N(0, initializer_range), biases 0, LayerNorm 1 and 0 (Devlin et al. 2019, appendix A).

        Of ModernBERT Megatron's (Warner et al. 2024, appendix A): cut off at two deviations, and smaller by the square
        root of twice the layers where a residual branch ends and in the head.

        A function of the seed and the shapes alone: drawn in fp32 on the CPU whatever device and precision.
        """
        generator = torch.Generator().manual_seed(seed)
        # One generator for all: a parameter that is added, moved or reshaped changes every weight drawn after it.
        for name, parameter in self.named_parameters():
            if parameter.ndim == 1:
                parameter.fill_(1.0 if name.endswith("norm.weight") else 0.0)
            else:
                parameter.copy_(self._draw(name, parameter.shape, generator))
        # After the draw, in which rows of padding take part: another ``vocabulary_pad_multiple`` gives other weights.
        self.embeddings.tokens.weight[self.vocabulary_size :] = 0.0

    def _draw(self, name: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
        drawn, deviation = torch.empty(shape, dtype=torch.float32), self.config.initializer_range
        if self.config.architecture != "modernbert":
            return drawn.normal_(0, deviation, generator=generator)
        if name.endswith(_ENDS_OF_BRANCHES):
            deviation /= math.sqrt(2 * self.config.num_hidden_layers)
        elif name == "head.weight":
            deviation = self.config.hidden_size**-0.5
        return nn.init.trunc_normal_(drawn, 0.0, deviation, -2 * deviation, 2 * deviation, generator)

    def unpadded_weights(self) -> dict[str, Tensor]:
        """Return the parameters' values by name, as views, without the vocabulary's rows of padding."""
        return {
            name: parameter.detach()[: self.vocabulary_size] if name in BY_ENTRY else parameter.detach()
            for name, parameter in self.named_parameters()
        }


class BertParameters(EncoderParameters):
    """The parameters of the encoder and both pretraining heads."""

    def __init__(self, config: ModelConfig, vocabulary_size: int) -> None:
        """vocabulary_size: real entries; the token table is padded to ``config.vocabulary_pad_multiple``."""
        super().__init__(config, vocabulary_size)
        size = config.hidden_size
        self.mlm_transform, self.mlm_norm = masked_lm_transform(config)
        # The head's weight is ``embeddings.tokens.weight``: one parameter with two gradients.
        self.mlm_bias = nn.Parameter(torch.zeros(self.padded_vocabulary_size))
        self.pooler: nn.Linear | None = None
        self.nsp: nn.Linear | None = None
        if config.objective == "mlm+nsp":
            self.pooler = nn.Linear(size, size)
            self.nsp = nn.Linear(size, 2)


def has_biases(config: ModelConfig) -> bool:
    """Return whether products and LayerNorms have biases; the tied decoder has one in any case."""
    return config.architecture != "modernbert"


def masked_lm_transform(config: ModelConfig) -> tuple[nn.Linear, nn.LayerNorm]:
    """Return the layer before the tied decoder, and the LayerNorm behind its activation."""
    return nn.Linear(config.hidden_size, config.hidden_size, bias=has_biases(config)), _norm(config)


def _norm(config: ModelConfig) -> nn.LayerNorm:
    return nn.LayerNorm(config.hidden_size, eps=config.layer_norm_epsilon, bias=has_biases(config))


def gelu_approximation(config: ModelConfig) -> str:
    """Return what ``torch.nn.functional.gelu`` calls the activation of a model: ``none`` or ``tanh``."""
    return "tanh" if config.hidden_activation == "gelu_new" else "none"
