"""What may compute training passes in place of a backend: an engine that runs the model as a whole.

Letters: N real tokens of a micro-batch, D hidden size, K tokens whose output is asked for.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from bert_trainer.model.batch import Batch
from bert_trainer.model.dropout import DropoutKeys


class Engine(Protocol):
    """Of one model, and of passes with gradients alone: the others are computed by the backend that fits."""

    def encode(self, batch: Batch, dropout: DropoutKeys | None, output_index_K: Tensor | None) -> Tensor:
        """Return the last hidden states, (N, D), or (K, D) of the tokens asked for."""

    def pretraining_losses(self, batch: Batch, dropout: DropoutKeys | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the sums of ``LossSums`` in the order of its fields."""
