"""BERT with its two pretraining heads, computed on real tokens only.

Devlin et al. 2019: embeddings, post-LayerNorm encoder, pooler, masked-LM head tied to the token embeddings,
next-sentence head. DistilBERT (Sanh et al. 2019) is the same without segments, pooler and the dropout after
attention. Rows are concatenated to their real tokens before the embeddings; only attention sees rows, and none
sees another. Everything is spelled out in plain operations here; ``fast_path`` has faster ways to compute the same.

Letters in names: N real tokens of a micro-batch, B rows, T longest row, D hidden size, H heads, E = D / H,
M masked positions, V vocabulary entries.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody knows it by
from torch import Tensor, nn

from bert_trainer.config.run_config import ModelConfig
from bert_trainer.model.activation_checkpointing import run_layer
from bert_trainer.model.backends.choice import FastPath, choose_fast_path
from bert_trainer.model.batch import Batch
from bert_trainer.model.dropout import EMBEDDINGS_SITE, DropoutKeys

# Dropout sites: the embeddings' is 0; layer i uses three numbers from 1 + 3 * i.
_SITES_PER_LAYER = 3


@dataclass(frozen=True, slots=True)
class LossSums:
    """Sums over one micro-batch, to be divided by whatever the step's normalisation says."""

    masked_lm: Tensor
    """Cross-entropy in nats, summed over masked positions; scalar, differentiable."""
    next_sentence: Tensor
    """Cross-entropy in nats, summed over rows; scalar, differentiable, 0 without that objective."""
    masked_lm_correct: Tensor
    """Masked positions whose most likely token is the right one; int64 scalar."""
    next_sentence_correct: Tensor
    """Rows whose pair was classified rightly; int64 scalar."""


class Embeddings(nn.Module):
    """Sum of token, position and segment embeddings, normalised."""

    def __init__(self, config: ModelConfig, padded_vocabulary: int) -> None:
        """padded_vocabulary: rows of the token table."""
        super().__init__()
        size = config.hidden_size
        self.tokens = nn.Embedding(padded_vocabulary, size)
        self.positions = nn.Embedding(config.max_position_embeddings, size)
        self.segments = None
        if config.architecture == "bert":
            self.segments = nn.Embedding(config.type_vocab_size, size)
        self.norm = nn.LayerNorm(size, eps=config.layer_norm_eps)

    def forward(self, batch: Batch) -> Tensor:
        """Return (N, D)."""
        x_ND: Tensor = self.tokens(batch.tokens_N) + self.positions(batch.positions_N)
        if self.segments is not None:
            x_ND = x_ND + self.segments(batch.segments_N)
        return self.norm(x_ND)  # type: ignore[no-any-return]


class Layer(nn.Module):
    """One encoder layer: self-attention and feed-forward, each followed by dropout, residual, LayerNorm."""

    def __init__(self, config: ModelConfig, number: int) -> None:
        """number: counted from 0; it tells the layer's dropout sites from the others'."""
        super().__init__()
        size, eps = config.hidden_size, config.layer_norm_eps
        self.num_heads = config.num_attention_heads
        self.hidden_dropout = config.hidden_dropout_prob
        self.attention_dropout = config.attention_probs_dropout_prob
        # DistilBERT's authors left it out.
        self.drops_attention_output = config.architecture == "bert"
        self.approximate = "tanh" if config.hidden_act == "gelu_new" else "none"
        self.first_site = 1 + _SITES_PER_LAYER * number
        self.query = nn.Linear(size, size)
        self.key = nn.Linear(size, size)
        self.value = nn.Linear(size, size)
        self.attention_output = nn.Linear(size, size)
        self.attention_norm = nn.LayerNorm(size, eps=eps)
        self.ffn_in = nn.Linear(size, config.intermediate_size)
        self.ffn_out = nn.Linear(config.intermediate_size, size)
        self.ffn_norm = nn.LayerNorm(size, eps=eps)

    def forward(
        self,
        x_ND: Tensor,
        batch: Batch,
        dropout: DropoutKeys | None,
        kept_K: Tensor | None = None,
        fast: FastPath | None = None,
    ) -> Tensor:
        """x_ND: (N, D) to (N, D); to (K, D) where only the tokens at some places are asked for, whom all still see.

        fast: computes it in place of the operations below.
        """
        if fast is not None:
            return fast.encode_layer(self, x_ND, batch, dropout, kept_K)
        y_ND = self._attend(x_ND, batch, dropout)
        if kept_K is not None:
            x_ND, y_ND = x_ND.index_select(0, kept_K), y_ND.index_select(0, kept_K)
            dropout = dropout and dropout.of_tokens(kept_K)
        attended_ND = self.attention_output(y_ND)
        if self.drops_attention_output:
            attended_ND = self._drop(attended_ND, dropout, self.first_site + 1)
        x_ND = self.attention_norm(x_ND + attended_ND)
        inner = F.gelu(self.ffn_in(x_ND), approximate=self.approximate)
        fed_ND = self._drop(self.ffn_out(inner), dropout, self.first_site + 2)
        return self.ffn_norm(x_ND + fed_ND)  # type: ignore[no-any-return]

    def _drop(self, x_ND: Tensor, dropout: DropoutKeys | None, site: int) -> Tensor:
        if dropout is None or self.hidden_dropout == 0:
            return x_ND
        return dropout.hidden(x_ND, self.hidden_dropout, site)

    def _attend(self, x_ND: Tensor, batch: Batch, dropout: DropoutKeys | None) -> Tensor:
        """Softmax attention inside each row, on rows padded to the longest of the micro-batch."""
        q, k, v = (self._to_rows(projection(x_ND), batch) for projection in (self.query, self.key, self.value))
        mask_B11T = batch.row_mask_BT[:, None, None, :]
        if dropout is None or self.attention_dropout == 0:
            y_BHTE = F.scaled_dot_product_attention(q, k, v, attn_mask=mask_B11T)
        else:
            scores_BHTT = (q @ k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
            weights_BHTT = scores_BHTT.masked_fill(~mask_B11T, -math.inf).softmax(-1)
            y_BHTE = dropout.attention(weights_BHTT, self.attention_dropout, self.first_site) @ v
        y_BTD = y_BHTE.transpose(1, 2).flatten(2)
        return y_BTD.flatten(0, 1)[batch.padded_index_N]

    def _to_rows(self, x_ND: Tensor, batch: Batch) -> Tensor:
        """(N, D) to (B, H, T, E), zeros where a row has no token."""
        rows, length = batch.row_mask_BT.shape
        padded = x_ND.new_zeros(rows * length, x_ND.shape[-1]).index_copy(0, batch.padded_index_N, x_ND)
        return padded.view(rows, length, self.num_heads, -1).transpose(1, 2)


class Bert(nn.Module):
    """The encoder and both heads; ``forward`` returns sums of losses, never means."""

    def __init__(self, config: ModelConfig, vocabulary_size: int) -> None:
        """vocabulary_size: real entries; the token table is padded to ``config.vocab_pad_multiple``."""
        super().__init__()
        self.config = config
        self.activation_checkpointing = False
        self.vocabulary_size = vocabulary_size
        multiple = config.vocab_pad_multiple
        padded = -(-vocabulary_size // multiple) * multiple
        size = config.hidden_size
        self.embeddings = Embeddings(config, padded)
        self.layers = nn.ModuleList(Layer(config, number) for number in range(config.num_hidden_layers))
        self.mlm_transform = nn.Linear(size, size)
        self.mlm_norm = nn.LayerNorm(size, eps=config.layer_norm_eps)
        self.mlm_bias = nn.Parameter(torch.zeros(padded))
        self.pooler: nn.Linear | None = None
        self.nsp: nn.Linear | None = None
        if config.objective == "mlm+nsp":
            self.pooler = nn.Linear(size, size)
            self.nsp = nn.Linear(size, 2)

    @torch.no_grad()
    def initialize(self, seed: int) -> None:
        """Weights from N(0, initializer_range), biases 0, LayerNorm 1 and 0 (Devlin et al. 2019, appendix A).

        A function of the seed and the shapes alone: drawn in fp32 on the CPU whatever device and precision.
        """
        generator = torch.Generator().manual_seed(seed)
        deviation = self.config.initializer_range
        for name, parameter in self.named_parameters():
            if parameter.ndim == 1:
                parameter.fill_(1.0 if name.endswith("norm.weight") else 0.0)
            else:
                drawn = torch.empty(parameter.shape, dtype=torch.float32).normal_(0, deviation, generator=generator)
                parameter.copy_(drawn)
        self.embeddings.tokens.weight[self.vocabulary_size :] = 0.0

    def encode(self, batch: Batch, dropout: DropoutKeys | None = None, kept_K: Tensor | None = None) -> Tensor:
        """Return the last hidden states, (N, D), or (K, D) of the tokens at some places.

        dropout: None for none (evaluation). kept_K: int64; the last layer computes what follows its attention for those
        tokens alone.
        """
        fast = choose_fast_path(self)
        x_ND = self._embed(batch, dropout) if fast is None else fast.embed(self, batch, dropout)
        last = len(self.layers) - 1
        for number, layer in enumerate(self.layers):
            kept = kept_K if number == last else None
            x_ND = run_layer(layer, x_ND, batch, dropout, kept, fast, recompute=self.activation_checkpointing)
        return x_ND

    def _embed(self, batch: Batch, dropout: DropoutKeys | None) -> Tensor:
        x_ND: Tensor = self.embeddings(batch)
        if dropout is None or self.config.hidden_dropout_prob == 0:
            return x_ND
        return dropout.hidden(x_ND, self.config.hidden_dropout_prob, EMBEDDINGS_SITE)

    def masked_lm_logits(self, x_MD: Tensor) -> Tensor:
        """Return (M, padded V); columns that are no vocabulary entry are -inf."""
        approximate = "tanh" if self.config.hidden_act == "gelu_new" else "none"
        x_MD = self.mlm_norm(F.gelu(self.mlm_transform(x_MD), approximate=approximate))
        logits_MV = F.linear(x_MD, self.embeddings.tokens.weight, self.mlm_bias)
        if logits_MV.shape[-1] > self.vocabulary_size:
            beyond = torch.arange(logits_MV.shape[-1], device=logits_MV.device) >= self.vocabulary_size
            logits_MV = logits_MV.masked_fill(beyond, -math.inf)
        return logits_MV

    def next_sentence_logits(self, x_ND: Tensor, batch: Batch) -> Tensor:
        """Return (B, 2) from each row's first token; label 1 means a random next sentence."""
        return self._classify_pairs(x_ND[batch.row_starts_B])

    def _classify_pairs(self, first_BD: Tensor) -> Tensor:
        if self.pooler is None or self.nsp is None:
            raise TypeError("this model has no next-sentence head")
        return self.nsp(torch.tanh(self.pooler(first_BD)))  # type: ignore[no-any-return]

    def forward(self, batch: Batch, dropout: DropoutKeys | None = None) -> LossSums:
        """Encode a micro-batch and sum both losses; what no loss needs is not computed.

        Logits are those of masked positions; the last layer computes them and each row's first token.
        """
        kept = [batch.masked_index_M, *([] if self.nsp is None else [batch.row_starts_B])]
        masked_MD, *first_BD = torch.split(self.encode(batch, dropout, torch.cat(kept)), [len(k) for k in kept])
        masked_lm, masked_lm_correct = self._masked_lm(masked_MD, batch.masked_labels_M)
        next_sentence = masked_lm.new_zeros(())
        next_sentence_correct = masked_lm_correct.new_zeros(())
        if self.nsp is not None:
            logits_B2 = _at_least_fp32(self._classify_pairs(*first_BD))
            next_sentence = F.cross_entropy(logits_B2, batch.next_sentence_B, reduction="sum")
            next_sentence_correct = (logits_B2.argmax(-1) == batch.next_sentence_B).sum()
        return LossSums(masked_lm, next_sentence, masked_lm_correct, next_sentence_correct)

    def _masked_lm(self, x_MD: Tensor, labels_M: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sum of the masked-LM losses, and how many of the likeliest tokens are right."""
        fast = choose_fast_path(self)
        if fast is not None:
            return fast.masked_lm(self, x_MD, labels_M)
        # In fp32 at least: half-precision sums over a vocabulary lose digits.
        logits_MV = _at_least_fp32(self.masked_lm_logits(x_MD))
        losses = F.cross_entropy(logits_MV, labels_M, reduction="sum")
        return losses, (logits_MV.argmax(-1) == labels_M).sum()


def _at_least_fp32(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()
