"""Models that a GPU's backend computes on any device, and what they compute: losses, counts and gradients."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bert_trainer.model.backends.backend import Backend
from bert_trainer.model.backends.gpu.bucket_padding import MicroBatchShape
from bert_trainer.model.batch import Batch
from bert_trainer.model.bert import Bert
from random_rows import MODERN, model_config, random_batch, random_model

VOCABULARY = 101
LONGEST = 40
LENGTHS = (2, 40, 16, 17, 33, 5, 1 + 1, 31)
SHAPE = MicroBatchShape(LONGEST, rows=12)

SETTINGS: dict[str, dict[str, object]] = {
    "bert": {},
    "tanh": {"num_attention_heads": 4, "hidden_activation": "gelu_new"},
    "distilbert": {"architecture": "distilbert", "objective": "mlm"},
    "modernbert": MODERN,
}


@dataclass(frozen=True, slots=True)
class Found:
    """What one forward and backward pass gave."""

    losses: tuple[float, float]
    correct: tuple[int, int]
    gradients: dict[str, Tensor]


def make_model(dtype: torch.dtype = torch.float64, **changes: object) -> Bert:
    """Return a small model whose parameters all count."""
    return random_model(model_config(64, **changes), VOCABULARY, seed=2, dtype=dtype)


def make_batch(lengths: tuple[int, ...] = LENGTHS, seed: int = 1) -> Batch:
    """Return rows of some lengths."""
    return random_batch(lengths, sequence_length=LONGEST, predictions=6, vocabulary_size=VOCABULARY, seed=seed)


def run(model: Bert, batch: Batch, backend: Backend, *, step: int | None = None) -> Found:
    """Run a forward and a backward pass by a backend. step: drops; None for no dropout.

    Under autocast where the backend computes in half precision, as a run would.
    """
    model.use(backend)
    dtype = getattr(backend, "dtype", torch.float32)
    device = batch.tokens_N.device.type
    model.zero_grad()
    with torch.autocast(device, dtype=dtype, enabled=dtype in (torch.float16, torch.bfloat16)):
        sums = model(batch, None if step is None else batch.dropout_keys(5, step))
    (0.37 * sums.masked_lm + 1.9 * sums.next_sentence).backward()
    return Found(
        (float(sums.masked_lm.detach()), float(sums.next_sentence.detach())),
        (int(sums.masked_lm_correct), int(sums.next_sentence_correct)),
        {name: parameter.grad.double().cpu() for name, parameter in model.named_parameters()},
    )


def largest_difference(found: Found, expected: Found) -> float:
    """Return how far gradients are apart at most, as a share of the largest of all."""
    scale = max(float(gradient.abs().amax()) for gradient in expected.gradients.values())
    pairs = ((found.gradients[name], wanted) for name, wanted in expected.gradients.items())
    return max(float((got - wanted).abs().amax()) for got, wanted in pairs) / scale
