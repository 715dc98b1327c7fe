"""A fine-tuned model's losses depend neither on how rows share micro-batches, nor on padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bert_trainer.model.backends.gpu.bucket_padding import MicroBatchShape, pad_to_bucket
from bert_trainer.model.bert import Bert
from bert_trainer.model.task_model import Head, TaskModel
from random_rows import model_config, random_model
from task_rows import random_task_model, task_rows

ENTRIES = 61
LENGTHS = (31, 8, 17, 9, 26)
KINDS = ("classification", "regression", "spans")
DROPPED = {"hidden_dropout": 0.1, "attention_dropout": 0.1}

each_kind = pytest.mark.parametrize("kind", KINDS)


def run(model: TaskModel, kind: str, parts: Sequence[Sequence[int]], step: int | None = None) -> tuple[Tensor, Any]:
    """Return the loss summed over rows and all gradients. step: of dropout; None for none."""
    rows = task_rows(kind, LENGTHS, vocabulary_size=ENTRIES, seed=3)
    model.zero_grad()
    total = torch.zeros((), dtype=torch.float64)
    for part in parts:
        batch, targets = rows.batch(part)
        loss = model(batch, targets, None if step is None else batch.dropout_keys(1, step))
        loss.backward()
        total += loss.detach()
    return total, {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@each_kind
@pytest.mark.parametrize("architecture", ["bert", "distilbert"])
@pytest.mark.parametrize("size", [32, 24], ids=["kernels", "plain"])
def test_dropout_is_the_same_for_any_split_into_micro_batches(architecture: str, kind: str, size: int) -> None:
    config = model_config(size, architecture=architecture, objective="mlm", **DROPPED)
    model = random_task_model(config, kind, ENTRIES)
    assert model.head_config.dropout > 0 or (architecture, kind) == ("bert", "spans")
    whole, gradients = run(model, kind, [[0, 1, 2, 3, 4]], step=7)
    for parts in ([[0, 1], [2, 3, 4]], [[4], [1], [3], [0], [2]]):
        total, found = run(model, kind, parts, step=7)
        torch.testing.assert_close(total, whole, rtol=1e-5, atol=0)
        for name, gradient in found.items():
            torch.testing.assert_close(gradient, gradients[name], rtol=1e-3, atol=1e-4, msg=name)
    other, _ = run(model, kind, [[0, 1, 2, 3, 4]], step=8)
    without, _ = run(model, kind, [[0, 1, 2, 3, 4]])
    assert len({float(whole), float(other), float(without)}) == 3, "another step drops other elements"


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_the_heads_own_dropout_takes_part(kind: Any) -> None:
    config = model_config(32)
    model = TaskModel(config, ENTRIES, Head.of(kind, 1 if kind == "regression" else 3, config, dropout=0.5))
    model.initialize(1)
    assert float(run(model, kind, [[0, 1, 2]], step=1)[0]) != float(run(model, kind, [[0, 1, 2]], step=2)[0])


def test_a_heads_dropout_is_what_the_architectures_authors_have() -> None:
    bert, distilbert = (
        model_config(32, hidden_dropout=0.15, architecture=name, objective="mlm") for name in ("bert", "distilbert")
    )
    of = {kind: (Head.of(kind, 2, bert).dropout, Head.of(kind, 2, distilbert).dropout) for kind in KINDS}
    assert of == {"classification": (0.15, 0.2), "regression": (0.15, 0.2), "spans": (0.0, 0.1)}
    assert Head.of("spans", 2, bert, dropout=0.3).dropout == 0.3
    assert Head.of("regression", 1, distilbert, dropout=0.0).dropout == 0.0


@each_kind
def test_rows_of_padding_change_neither_loss_nor_gradients(kind: str) -> None:
    """Micro-batches on GPUs have some; half precision and kernels aside, the mathematics is the same here."""
    model = random_task_model(model_config(32), kind, ENTRIES, dtype=torch.float64)
    total, gradients = run(model, kind, [range(len(LENGTHS))])
    batch, targets = task_rows(kind, LENGTHS, vocabulary_size=ENTRIES, seed=3).batch(range(len(LENGTHS)))
    padded = pad_to_bucket(replace(batch, targets=targets), MicroBatchShape(sequence_length=40, rows=6))
    assert len(padded.row_starts_B) > len(LENGTHS)
    model.zero_grad()
    loss = model(padded, padded.targets)
    loss.backward()
    torch.testing.assert_close(loss.detach(), total, rtol=1e-10, atol=0)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name], rtol=1e-8, atol=1e-10, msg=name)


@each_kind
def test_recomputed_activations_give_the_same_gradients(kind: str) -> None:
    model = random_task_model(model_config(32, **DROPPED), kind, ENTRIES)
    _, gradients = run(model, kind, [[0, 1, 2]], step=3)
    model.activation_checkpointing = True
    _, again = run(model, kind, [[0, 1, 2]], step=3)
    assert all(torch.equal(gradient, gradients[name]) for name, gradient in again.items())


@each_kind
def test_a_head_computes_in_single_precision_whatever_the_encoder_does(kind: str) -> None:
    model = random_task_model(model_config(32), kind, ENTRIES)
    batch, _ = task_rows(kind, LENGTHS, vocabulary_size=ENTRIES, seed=3).batch(range(len(LENGTHS)))
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model.logits(batch)
    assert logits.dtype == torch.float32
    assert not torch.equal(logits, logits.bfloat16().float()), "more digits than bf16 has"


def test_the_encoder_starts_as_a_pretraining_model_of_the_same_seed() -> None:
    config = model_config(32)
    bert, model = Bert(config, ENTRIES), TaskModel(config, ENTRIES, Head.of("classification", 2, config))
    bert.initialize(9)
    model.initialize(9)
    theirs = dict(bert.named_parameters())
    encoder = {name: it for name, it in model.named_parameters() if name.startswith(("embeddings.", "layers."))}
    assert len(encoder) == 5 + 2 * 16
    assert all(torch.equal(parameter, theirs[name]) for name, parameter in encoder.items())


@pytest.mark.parametrize("objective", ["mlm", "mlm+nsp"])
@each_kind
def test_pretrained_weights_are_taken_over_and_the_head_stays_as_drawn(kind: Any, objective: str) -> None:
    config = model_config(32, objective=objective)
    bert = random_model(config, ENTRIES, seed=5, dtype=torch.float32)
    model = TaskModel(config, ENTRIES, Head.of(kind, 2, config))
    model.initialize(1)
    drawn = {name: parameter.clone() for name, parameter in model.named_parameters()}
    weights = dict(bert.named_parameters())
    model.load_encoder(weights)
    for name, parameter in model.named_parameters():
        is_taken = name.startswith(("embeddings.", "layers.")) or (
            name.startswith("pooler.") and objective == "mlm+nsp"
        )
        assert torch.equal(parameter, weights[name] if is_taken else drawn[name]), name


def test_weights_of_another_shape_are_never_stretched_to_fit() -> None:
    model = TaskModel(model_config(32), ENTRIES, Head("spans", 2, 0.0))
    weights = {name: torch.zeros(parameter.shape) for name, parameter in model.named_parameters()}
    weights["embeddings.norm.weight"] = torch.zeros(1)
    with pytest.raises(AssertionError, match=r"embeddings.norm.weight: \(1,\), here \(32,\)"):
        model.load_encoder(weights)


@each_kind
def test_one_row_alone_has_a_loss(kind: str) -> None:
    model = random_task_model(model_config(32), kind, ENTRIES)
    batch, targets = task_rows(kind, LENGTHS, vocabulary_size=ENTRIES, seed=3).batch([1])
    loss = model(batch, targets)
    assert loss.shape == ()
    assert np.isfinite(loss.item())
