"""The interface of every backend: what a run asks of it, and what a model asks of it.

Most backends compute a model part by part (``LayeredBackend``): they have ``embed``, ``encode_layer`` and
``masked_lm``, of which passes are put together here, on real tokens only. ``choice`` says which backend is taken.

Letters: N real tokens of a micro-batch, B rows, D hidden size, M masked positions, K tokens whose output is asked for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from bert_trainer.model.activation_checkpointing import recomputed
from bert_trainer.model.batch import Batch
from bert_trainer.model.dropout import DropoutKeys
from bert_trainer.model.layers import BertParameters, EncoderParameters, Layer
from bert_trainer.model.losses import LossSums
from bert_trainer.model.operations import layer_norm, norm_of, score


class Backend(ABC):
    """Computes a model's passes on one device and in one dtype; ``dropout`` None: no dropout."""

    __slots__ = ()

    @abstractmethod
    def describe(self, rank: int, precision: str) -> str:
        """Describe in one line how a rank computes: device and the choices made there."""

    def stage_batch(self, batch: Batch, *, sequence_length: int, micro_batch_size: int) -> Batch:
        """Convert a micro-batch, still on the CPU, to the form that passes need; called by the reader thread.

        Args:
            batch: As it was read.
            sequence_length: Of its stage, tokens; no row is longer.
            micro_batch_size: Rows of a full micro-batch of its stage.

        Returns:
            The same micro-batch, or one with padding behind its rows.
        """
        return batch

    def step_context(self) -> AbstractContextManager[object]:
        """Return the context of all passes between two updates of the weights: of a step, or of an evaluation."""
        return nullcontext()

    @abstractmethod
    def encode(
        self, model: EncoderParameters, batch: Batch, dropout: DropoutKeys | None, output_index_K: Tensor | None
    ) -> Tensor:
        """Return the last hidden states.

        Args:
            model: Any model that begins with the encoder.
            batch: On the model's device.
            dropout: None for none (evaluation).
            output_index_K: int64, places among the N tokens; the last layer computes what follows its attention for
                those tokens alone.

        Returns:
            (N, D), or (K, D) of the tokens asked for.
        """

    @abstractmethod
    def pretraining_losses(self, model: BertParameters, batch: Batch, dropout: DropoutKeys | None) -> LossSums:
        """Return the sums of the losses of both heads and of right answers, over a micro-batch."""


class LayeredBackend(Backend):
    """A backend that implements embeddings, encoder layers and the masked-LM head separately."""

    __slots__ = ()

    def encode(
        self, model: EncoderParameters, batch: Batch, dropout: DropoutKeys | None, output_index_K: Tensor | None
    ) -> Tensor:
        """Return the last hidden states, (N, D), or (K, D) of the tokens asked for."""
        encode_layer = self.encode_layer
        # Without gradients nothing is kept either way.
        if model.activation_checkpointing and torch.is_grad_enabled():
            encode_layer = recomputed(encode_layer)
        x_ND = self.embed(model, batch, dropout)
        last = len(model.layers) - 1
        for number, layer in enumerate(model.layers):
            wanted = output_index_K if number == last else None
            x_ND = encode_layer(layer, x_ND, batch, dropout, wanted)  # type: ignore[arg-type]
        if model.final_norm is None:
            return x_ND
        return layer_norm(x_ND, norm_of(model.final_norm), model.final_norm.eps).to(x_ND.dtype)

    def pretraining_losses(self, model: BertParameters, batch: Batch, dropout: DropoutKeys | None) -> LossSums:
        """Encode a micro-batch and sum the losses of both heads; what no loss needs is not computed.

        Logits are those of masked positions; the last layer computes them and each row's first token.
        """
        wanted = [batch.masked_index_M, *([] if model.nsp is None else [batch.row_starts_B])]
        hidden_KD = self.encode(model, batch, dropout, torch.cat(wanted))
        masked_MD, *first_BD = torch.split(hidden_KD, [len(index) for index in wanted])
        masked_lm, masked_lm_correct = self.masked_lm(model, masked_MD, batch.masked_labels_M)
        next_sentence = masked_lm.new_zeros(())
        next_sentence_correct = masked_lm_correct.new_zeros(())
        if model.nsp is not None:
            next_sentence, next_sentence_correct = score(classify_pairs(model, *first_BD), batch.next_sentence_B)
        return LossSums(masked_lm, next_sentence, masked_lm_correct, next_sentence_correct)

    @abstractmethod
    def embed(self, model: EncoderParameters, batch: Batch, dropout: DropoutKeys | None) -> Tensor:
        """Return embeddings, normalised and dropped, (N, D)."""

    @abstractmethod
    def encode_layer(
        self, layer: Layer, x_ND: Tensor, batch: Batch, dropout: DropoutKeys | None, output_index_K: Tensor | None
    ) -> Tensor:
        """x_ND: (N, D) to (N, D), or to (K, D) of the tokens asked for, to which all tokens of their row attend."""

    @abstractmethod
    def masked_lm(self, model: BertParameters, x_MD: Tensor, labels_M: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sum of the masked-LM losses in nats and the number of right answers."""


def classify_pairs(model: BertParameters, first_BD: Tensor) -> Tensor:
    """Return (B, 2) from the hidden states of each row's first token; label 1 means a random next sentence.

    Raises:
        TypeError: the model has no next-sentence head.
    """
    if model.pooler is None or model.nsp is None:
        raise TypeError("this model has no next-sentence head")
    return model.nsp(torch.tanh(model.pooler(first_BD)))  # type: ignore[no-any-return]
