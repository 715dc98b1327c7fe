"""The last layer computes what the losses need and nothing else; losses and gradients are those of all tokens.

Plain operations in fp64 with dropout 0.1, rows of 4 to 31 tokens. Measured: 2e-15 of the largest gradient.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the name everybody knows it by
from torch import Tensor

from bert_trainer.model.batch import Batch
from bert_trainer.model.bert import Bert
from bert_trainer.model.dropout import DropoutKeys
from random_rows import model_config, random_batch, random_model


def of_all_tokens(model: Bert, batch: Batch, keys: DropoutKeys) -> Tensor:
    """Return the sum of both losses from the hidden states of every token."""
    hidden_ND = model.encode(batch, keys)
    logits_MV = model.masked_lm_logits(hidden_ND[batch.masked_index_M])
    loss = F.cross_entropy(logits_MV, batch.masked_labels_M, reduction="sum")
    if model.nsp is not None:
        pairs_B2 = model.next_sentence_logits(hidden_ND, batch)
        loss = loss + F.cross_entropy(pairs_B2, batch.next_sentence_B, reduction="sum")
    return loss


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize(("architecture", "objective"), [("bert", "mlm+nsp"), ("bert", "mlm"), ("distilbert", "mlm")])
def test_losses_and_gradients_are_those_of_all_tokens(architecture: str, objective: str, checkpointing: bool) -> None:
    config = model_config(16, architecture=architecture, objective=objective)
    config = config.model_copy(update={"hidden_dropout": 0.1, "attention_dropout": 0.1})
    batch = random_batch([31, 4, 17], sequence_length=31, predictions=5, vocabulary_size=53, seed=3)
    keys = batch.dropout_keys(1, 1)
    model = random_model(config, 53, seed=2, dtype=torch.float64)
    of_all_tokens(model, batch, keys).backward()
    expected = {
        name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None
    }
    model.zero_grad()
    model.activation_checkpointing = checkpointing
    sums = model(batch, keys)
    (sums.masked_lm + sums.next_sentence).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-10, atol=1e-12)


def test_places_are_kept_in_their_order() -> None:
    batch = random_batch([9, 12], sequence_length=12, predictions=2, vocabulary_size=29, seed=3)
    keys = batch.dropout_keys(1, 1)
    model = random_model(model_config(16), 29, seed=2, dtype=torch.float64)
    places = torch.tensor([20, 0, 9, 4])
    torch.testing.assert_close(model.encode(batch, keys, places), model.encode(batch, keys)[places])
