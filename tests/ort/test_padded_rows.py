"""The model on padded rows, of which ONNX Runtime makes a graph, is the one on real tokens: the same are dropped.

Plain operations on both sides, in fp64. Measured: losses equal to 3e-14, gradients to 4e-15 of the largest one.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bert_trainer.model.backends.eager import EagerBackend
from bert_trainer.model.backends.ort import engine
from bert_trainer.model.backends.ort.engine import OrtBackend
from bert_trainer.model.backends.ort.keep_masks import keep_masks
from bert_trainer.model.batch import Batch
from bert_trainer.model.bert import Bert
from bert_trainer.model.padded import PaddedEncoder, PaddedPretraining, PaddedRows
from random_rows import model_config, random_batch, random_model

MODELS: dict[str, dict[str, Any]] = {
    "bert": {},
    "tanh": {"objective": "mlm", "hidden_activation": "gelu_new"},
    "distilbert": {"architecture": "distilbert", "objective": "mlm"},
}


def make(name: str, dropout: float) -> tuple[Bert, Batch]:
    config = model_config(64, **MODELS[name], hidden_dropout=dropout, attention_dropout=dropout)
    batch = random_batch((2, 40, 16, 17, 33), sequence_length=40, predictions=6, vocabulary_size=101, seed=1)
    return random_model(config, 101, seed=2, dtype=torch.float64), batch


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("name", list(MODELS))
def test_losses_and_gradients_are_those_of_real_tokens(name: str, dropout: float) -> None:
    model, batch = make(name, dropout)
    keys = batch.dropout_keys(1, 1) if dropout else None
    sums = model(batch, keys)
    (sums.masked_lm + sums.next_sentence).backward()
    expected = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    wanted = torch.cat([batch.masked_index_M, *([] if model.nsp is None else [batch.row_starts_B])])
    keeps = keep_masks(model, keys, batch.longest, wanted)
    rows = PaddedRows.of(batch, wanted).tensors
    found = PaddedPretraining(model)(*rows, batch.masked_labels_M, batch.next_sentence_B, *keeps)
    losses = [sums.masked_lm, sums.masked_lm_correct]
    losses += [] if model.nsp is None else [sums.next_sentence, sums.next_sentence_correct]
    for got, want in zip(found, losses, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-13, atol=0)
    torch.stack([value for value in found if value.requires_grad]).sum().backward()
    largest = max(float(gradient.abs().max()) for gradient in expected.values())
    for parameter_name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[parameter_name], rtol=0, atol=1e-13 * largest)


def test_what_stands_in_padding_changes_nothing() -> None:
    model, batch = make("bert", 0.0)
    padded = PaddedRows.of(batch, torch.arange(batch.num_tokens))
    other = padded.tokens_BT.masked_fill(~batch.row_mask_BT, 50)
    assert not torch.equal(other, padded.tokens_BT)
    encoder = PaddedEncoder(model)
    torch.testing.assert_close(encoder(other, *padded.tensors[1:]), encoder(*padded.tensors), rtol=0, atol=0)


@pytest.mark.parametrize("name", list(MODELS))
def test_its_backend_computes_passes_with_gradients_by_one_graph_for_each_use(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """With the module itself in place of the graph: the losses of pretraining, and all hidden states or a few."""
    made: list[tuple[nn.Module, str]] = []
    monkeypatch.setattr(engine, "make_graph", lambda module, precision: made.append((module, precision)) or module)
    model, batch = make(name, 0.1)
    keys, some = batch.dropout_keys(1, 1), torch.tensor([3, 0])

    def passes() -> list[Tensor]:
        sums = model(batch, keys)
        encoded = [model.encode(batch, keys), model.encode(batch, keys, some)]
        return [sums.masked_lm, sums.next_sentence, sums.masked_lm_correct, sums.next_sentence_correct, *encoded]

    plain = passes()
    model.use(OrtBackend(model, EagerBackend(), "fp64"))
    found = [value for _ in range(2) for value in passes()]
    assert [(type(module), precision) for module, precision in made] == [
        (PaddedPretraining, "fp64"), (PaddedEncoder, "fp64")
    ]  # fmt: skip
    for got, want in zip(found, plain * 2, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-13)
    with torch.no_grad():
        assert torch.equal(passes()[0], plain[0])
