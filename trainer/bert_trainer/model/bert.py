"""BERT with its two pretraining heads, computed on real tokens only by the model's backend.

Letters in names: N real tokens of a micro-batch, B rows, D hidden size, M masked positions, V entries of the padded
vocabulary.
"""

from __future__ import annotations

from torch import Tensor

from bert_trainer.model.backends import eager
from bert_trainer.model.backends.backend import classify_pairs
from bert_trainer.model.batch import Batch
from bert_trainer.model.dropout import DropoutKeys
from bert_trainer.model.encoder import Encoder
from bert_trainer.model.layers import BertParameters
from bert_trainer.model.losses import LossSums


class Bert(BertParameters, Encoder):
    """The encoder and both heads; ``forward`` returns sums of losses, never means."""

    def masked_lm_logits(self, x_MD: Tensor) -> Tensor:
        """Return (M, V); columns of the vocabulary's padding are -inf."""
        return eager.masked_lm_logits(self, x_MD)

    def next_sentence_logits(self, x_ND: Tensor, batch: Batch) -> Tensor:
        """Return (B, 2) from each row's first token; label 1 means a random next sentence."""
        return classify_pairs(self, x_ND[batch.row_starts_B])

    def forward(self, batch: Batch, dropout: DropoutKeys | None = None) -> LossSums:
        """Encode a micro-batch and sum both losses, as ``Backend.pretraining_losses`` does."""
        return self.backend.pretraining_losses(self, batch, dropout)
