"""The encoder: its parameters with the backend that computes them, which every model here begins with.

Letters: N real tokens of a micro-batch, D hidden size, K tokens whose output is asked for.
"""

from __future__ import annotations

from torch import Tensor

from bert_trainer.model.backends.backend import Backend
from bert_trainer.model.backends.choice import find_backend
from bert_trainer.model.batch import Batch
from bert_trainer.model.dropout import DropoutKeys
from bert_trainer.model.layers import EncoderParameters


class Encoder(EncoderParameters):
    """A model that a backend computes: a run chooses one for it, once; without one, each pass finds the fastest."""

    _backend: Backend | None = None

    def use(self, backend: Backend | None) -> None:
        """Have a backend compute all passes from now on. None: the fastest one where the model then lies."""
        self._backend = backend

    @property
    def backend(self) -> Backend:
        """What computes the next pass."""
        # Found for every pass unless it was said: a model of no run moves between devices, and autocast, which
        # decides the compute type, is the caller's.
        return self._backend or find_backend(self)

    def encode(self, batch: Batch, dropout: DropoutKeys | None = None, output_index_K: Tensor | None = None) -> Tensor:
        """Return the last hidden states, (N, D), or (K, D) of the tokens asked for, as ``Backend.encode`` does."""
        return self.backend.encode(self, batch, dropout, output_index_K)
