"""Kernels compute what the plain operations of torch compute, forward and backward, and drop the same elements.

Inputs: rows of 1 to 70 tokens, heads of 16 and 32 features, both GELUs. Reference: the eager backend in fp64. Measured:
fp32 within 3e-6 of the largest gradient, bf16 within 2 %.
"""

from __future__ import annotations

import pytest
import torch

from bert_trainer.model.batch import Batch
from bert_trainer.model.bert import Bert
from random_rows import MODERN, random_batch
from whole_configs import model_settings

VOCABULARY = 101
pytestmark = pytest.mark.usefixtures("flavour")
Found = tuple[list[float], int, dict[str, torch.Tensor]]


def make_model(**changes: object) -> Bert:
    config = model_settings(
        **{
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 176,
            "max_position_embeddings": 80,
            **changes,
        }
    )
    model = Bert(config, VOCABULARY)
    model.initialize(1)
    with torch.no_grad():  # away from the first values, at which biases and gains hide mistakes
        for number, parameter in enumerate(model.parameters()):
            parameter += 0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
    return model


def make_rows() -> Batch:
    lengths = [2, 70, 16, 17, 33, 5, 64, 48, 31]
    return random_batch(lengths, sequence_length=70, predictions=11, vocabulary_size=VOCABULARY, seed=3)


def run(model: Bert, batch: Batch, *, dtype: torch.dtype, drops: bool) -> Found:
    model.zero_grad()
    keys = batch.dropout_keys(5, 7) if drops else None
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
        sums = model(batch, keys)
    (0.37 * sums.masked_lm + 1.9 * sums.next_sentence).backward()
    losses = [float(sums.masked_lm.detach()), float(sums.next_sentence.detach())]
    return (
        losses,
        int(sums.masked_lm_correct),
        {name: parameter.grad.double() for name, parameter in model.named_parameters()},
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("drops", [False, True], ids=["whole", "dropped"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_attention_heads": 4, "hidden_activation": "gelu_new"},
        {"architecture": "distilbert", "objective": "mlm", "hidden_dropout": 0.3},
        MODERN,
        {**MODERN, "hidden_activation": "gelu_new", "attention_window": 128},
    ],
    ids=["bert", "tanh", "distilbert", "modernbert", "modernbert, tanh, windows wider than rows"],
)
def test_losses_and_gradients_are_those_of_the_plain_operations(
    dtype: torch.dtype, drops: bool, changes: dict[str, object]
) -> None:
    model, batch = make_model(**changes), make_rows()
    losses, correct, found = run(model, batch, dtype=dtype, drops=drops)
    expected_losses, expected_correct, expected = run(model.double(), batch, dtype=torch.float64, drops=drops)
    tolerance = 2e-5 if dtype == torch.float32 else 4e-2
    assert losses == pytest.approx(expected_losses, rel=tolerance / 10)
    if dtype == torch.float32:
        assert correct == expected_correct
    for name, gradient in expected.items():
        error = float((found[name] - gradient).norm() / (gradient.norm() + 1e-12))
        # The keys' biases have no gradient: a softmax does not see what it adds to all of them.
        assert error < tolerance or name.endswith("key.bias"), f"{name}: off by {error:.1e} of its norm"
