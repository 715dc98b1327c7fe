"""BERT with its two pretraining heads, computed on real tokens only by the backend that fits device and type.

Letters in names: N real tokens of a micro-batch, B rows, D hidden size, M masked positions, K tokens whose output is
asked for, V entries of the padded vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody knows it by
from torch import Tensor

from bert_trainer.model.backends import eager
from bert_trainer.model.backends.choice import choose_backend
from bert_trainer.model.batch import Batch
from bert_trainer.model.dropout import DropoutKeys
from bert_trainer.model.encoding import encode
from bert_trainer.model.layers import BertParameters


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


class Bert(BertParameters):
    """The encoder and both heads; ``forward`` returns sums of losses, never means."""

    def encode(self, batch: Batch, dropout: DropoutKeys | None = None, output_index_K: Tensor | None = None) -> Tensor:
        """Return the last hidden states, as ``encoding.encode`` does."""
        return encode(self, batch, dropout, output_index_K)

    def masked_lm_logits(self, x_MD: Tensor) -> Tensor:
        """Return (M, V); columns of the vocabulary's padding are -inf."""
        return eager.masked_lm_logits(self, x_MD)

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
        if self.engine is not None and torch.is_grad_enabled():
            return LossSums(*self.engine.pretraining_losses(batch, dropout))
        wanted = [batch.masked_index_M, *([] if self.nsp is None else [batch.row_starts_B])]
        masked_MD, *first_BD = torch.split(self.encode(batch, dropout, torch.cat(wanted)), [len(k) for k in wanted])
        masked_lm, masked_lm_correct = choose_backend(self).masked_lm(self, masked_MD, batch.masked_labels_M)
        next_sentence = masked_lm.new_zeros(())
        next_sentence_correct = masked_lm_correct.new_zeros(())
        if self.nsp is not None:
            logits_B2 = eager.at_least_fp32(self._classify_pairs(*first_BD))
            next_sentence = F.cross_entropy(logits_B2, batch.next_sentence_B, reduction="sum")
            next_sentence_correct = (logits_B2.argmax(-1) == batch.next_sentence_B).sum()
        return LossSums(masked_lm, next_sentence, masked_lm_correct, next_sentence_correct)
