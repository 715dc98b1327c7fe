"""A fine-tuned model is Hugging Face's: logits, losses, gradients, and 50 steps of training from the same weights.

Two layers, no dropout, rows of unequal length, fp32. Hugging Face computes on padded rows with an attention mask and
updates with ``torch.optim.AdamW``; this trainer computes on real tokens alone, by its kernels and by plain operations,
and updates flat buffers. Heads of 16 features take the kernels, those of 12 none.

Of spans, Hugging Face's softmax runs over padding too. Where rows differ in length, the loss here is compared with the
cross-entropy of its logits without those of padding; in training with its own loss, on rows of equal length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import (
    BertConfig,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    DistilBertConfig,
    DistilBertForQuestionAnswering,
    DistilBertForSequenceClassification,
    ModernBertConfig,
    ModernBertForQuestionAnswering,
    ModernBertForSequenceClassification,
)

from bert_job.optimization import WarmupSpec
from bert_trainer.checkpoints.huggingface_export import huggingface_config, huggingface_name, huggingface_tensors
from bert_trainer.model.backends.cpu.encoder import CpuBackend
from bert_trainer.model.task_model import Head, TaskModel
from bert_trainer.optim.optimizer import Optimizer
from bert_trainer.optim.schedule import learning_rate
from bert_trainer.parallel.flat_parameters import FlatParameters
from random_rows import model_config, modern_config
from task_rows import CLASSES, Rows, random_task_model, task_rows
from whole_configs import optimizer_settings, schedule_settings

ENTRIES = 203  # no multiple of 8: the token table has five rows that are no entry
LENGTHS = (40, 8, 23, 17, 38)
LABELS = [f"class {number}" for number in range(CLASSES)]
KERNELS, PLAIN = 32, 24  # features: heads of 16 and of 12
KINDS = ("classification", "regression", "spans")
HEADS = {"classification": CLASSES, "regression": 1, "spans": 2}
MODELS: dict[str, Any] = {
    "BertForSequenceClassification": BertForSequenceClassification,
    "BertForQuestionAnswering": BertForQuestionAnswering,
    "DistilBertForSequenceClassification": DistilBertForSequenceClassification,
    "DistilBertForQuestionAnswering": DistilBertForQuestionAnswering,
    "ModernBertForSequenceClassification": ModernBertForSequenceClassification,
    "ModernBertForQuestionAnswering": ModernBertForQuestionAnswering,
}
CONFIGS: dict[str, Any] = {"bert": BertConfig, "distilbert": DistilBertConfig, "modernbert": ModernBertConfig}
STEPS, BATCH = 50, 8
ADAMW = optimizer_settings(
    name="adamw", beta1=0.9, beta2=0.999, epsilon=1e-8, weight_decay=0.01, bias_correction=True, max_gradient_norm=1.0
)
SCHEDULE = schedule_settings(learning_rate=3e-3, warmup=WarmupSpec(proportion=0.1), decay="linear")


def settings(architecture: str, size: int = KERNELS) -> Any:
    if architecture == "modernbert":
        return modern_config(size)
    objective = "mlm" if architecture == "distilbert" else "mlm+nsp"
    return model_config(size, architecture=architecture, objective=objective)


def their_model(ours: TaskModel) -> Any:
    """Return Hugging Face's model with our weights, of which none may be missing or left over."""
    entries = huggingface_config(ours, LABELS)
    # Both drop nothing here; a DistilBERT's head would by itself.
    entries |= {"seq_classif_dropout": 0.0, "qa_dropout": 0.0}
    config = CONFIGS[entries["model_type"]](**entries, pad_token_id=0, attn_implementation="eager")
    theirs = MODELS[entries["architectures"][0]](config)
    theirs.load_state_dict(huggingface_tensors(ours), strict=True)
    return theirs.train()


def their_inputs(theirs: Any, rows: Rows, numbers: Sequence[int]) -> dict[str, Tensor]:
    return rows.padded(numbers, segments=theirs.config.model_type == "bert")


def their_logits(theirs: Any, inputs: dict[str, Tensor]) -> Tensor:
    """Return (B, L), or of spans those of real tokens, (N, 2)."""
    found = theirs(**inputs)
    if "logits" in found:
        return found.logits
    return torch.stack([found.start_logits, found.end_logits], dim=-1)[inputs["attention_mask"].bool()]


def their_targets(kind: str, targets: Tensor) -> dict[str, Tensor]:
    if kind == "spans":
        return {"start_positions": targets[:, 0], "end_positions": targets[:, 1]}
    return {"labels": targets}


def without_padding(theirs: Any, inputs: dict[str, Tensor], targets: Tensor) -> Tensor:
    """Return the mean loss of spans over real tokens."""
    found = theirs(**inputs)
    is_padding = ~inputs["attention_mask"].bool()
    losses = [
        torch.nn.functional.cross_entropy(logits.masked_fill(is_padding, -torch.inf), targets[:, end])
        for end, logits in enumerate((found.start_logits, found.end_logits))
    ]
    return sum(losses) / 2


def error(ours: Tensor, theirs: Tensor, floor: float = 0.0) -> float:
    """Return the 2-norm of the difference over that of the reference."""
    assert ours.shape == theirs.shape
    difference, size = (float(torch.linalg.vector_norm(x.detach())) for x in (ours - theirs, theirs))
    return difference / max(size, floor)


@pytest.mark.parametrize("size", [KERNELS, PLAIN], ids=["kernels", "plain"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("architecture", ["bert", "distilbert", "modernbert", "modernbert, rows averaged"])
def test_logits_loss_and_every_gradient_are_equal(architecture: str, kind: str, size: int) -> None:
    architecture, _, averaged = architecture.partition(",")
    ours = random_task_model(settings(architecture, size), kind, ENTRIES, pooling="mean" if averaged else "cls")
    assert isinstance(ours.backend, CpuBackend) == (size == KERNELS)
    theirs = their_model(ours)
    rows = task_rows(kind, LENGTHS, vocabulary_size=ENTRIES, seed=3)
    every = range(len(LENGTHS))
    batch, targets = rows.batch(every)
    inputs = their_inputs(theirs, rows, every)

    assert error(ours.logits(batch), their_logits(theirs, inputs)) <= 1e-5
    loss = ours(batch, targets) / len(LENGTHS)
    loss.backward()
    if kind == "spans":
        expected = without_padding(theirs, inputs, targets)
    else:
        expected = theirs(**inputs, **their_targets(kind, targets)).loss
    expected.backward()
    assert error(loss, expected) <= 1e-5

    reference = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    norms = {name: float(torch.linalg.vector_norm(gradient)) for name, gradient in reference.items()}
    errors = {}
    for name, parameter in ours.named_parameters():
        gradient, their_name = parameter.grad, huggingface_name(name, architecture, spans=kind == "spans")
        if name == "embeddings.tokens.weight":
            assert not gradient[ENTRIES:].any()
            gradient = gradient[:ENTRIES]
        floor = norms[their_name.replace("bias", "weight")] if is_ignored(name, kind) else 0.0
        errors[name] = error(gradient, reference.pop(their_name), floor)
    assert not reference, "every one of their parameters has been compared"
    assert max(errors.values()) <= 1e-5, {name: found for name, found in errors.items() if found > 1e-5}


def is_ignored(name: str, kind: str) -> bool:
    """Return whether a bias adds the same number to everything that a softmax compares: its gradient is rounding.

    A key's does so to the scores of a query; of spans, the last ones to the scores of all tokens.
    """
    return name.endswith("key.bias") or (kind == "spans" and name in ("layers.1.ffn_norm.bias", "head.bias"))


def their_optimizer(theirs: Any) -> torch.optim.AdamW:
    """Return AdamW as transformers' Trainer groups parameters: biases and LayerNorms are not decayed."""
    decayed = [parameter for parameter in theirs.parameters() if parameter.ndim > 1]
    others = [parameter for parameter in theirs.parameters() if parameter.ndim == 1]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, betas=(0.9, 0.999), eps=1e-8)


def train_theirs(theirs: Any, kind: str, rows: Rows, order: list[list[int]]) -> list[float]:
    optimizer, losses = their_optimizer(theirs), []
    for step, numbers in enumerate(order):
        targets = torch.from_numpy(rows.targets[numbers])
        loss = theirs(**their_inputs(theirs, rows, numbers), **their_targets(kind, targets)).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(SCHEDULE, step, STEPS)
        optimizer.step()
        losses.append(loss.item())
    return losses


def train_ours(
    ours: TaskModel, rows: Rows, order: list[list[int]], optimizer_config: Any = ADAMW, rate_factor: float = 1.0
) -> list[float]:
    """Train in micro-batches of 5 and 3 rows."""
    parameters = FlatParameters(ours)
    optimizer, losses = Optimizer(optimizer_config, parameters), []
    for step, numbers in enumerate(order):
        parameters.gradients.zero_()
        total = 0.0
        for part in (numbers[:5], numbers[5:]):
            batch, targets = rows.batch(part)
            loss = ours(batch, targets, batch.dropout_keys(1, step)) / len(numbers)
            loss.backward()
            total += loss.item()
        assert optimizer.step(rate_factor * learning_rate(SCHEDULE, step, STEPS)).applied
        losses.append(total)
    return losses


def rows_to_train_on(kind: str) -> tuple[Rows, list[list[int]]]:
    """Return 64 rows and the rows of every step; of spans, those of one step have one length."""
    rng = np.random.default_rng(7)
    if kind == "spans":
        lengths = np.repeat(rng.integers(8, 41, 64 // BATCH), BATCH)
        order = [list(range(first, first + BATCH)) for first in BATCH * rng.integers(0, 64 // BATCH, STEPS)]
    else:
        lengths = rng.integers(8, 41, 64)
        order = [list(rng.permutation(64)[:BATCH]) for _ in range(STEPS)]
    return task_rows(kind, lengths, vocabulary_size=ENTRIES, seed=9), order


@pytest.mark.parametrize(
    ("architecture", "kind", "size"),
    [
        *(("bert", kind, KERNELS) for kind in KINDS),
        *(("distilbert", kind, KERNELS) for kind in KINDS),
        ("bert", "classification", PLAIN),
    ],
)
def test_fifty_steps_give_the_same_losses_and_then_the_same_predictions(
    architecture: str, kind: str, size: int
) -> None:
    config = settings(architecture, size)
    ours = TaskModel(config, ENTRIES, Head.of(kind, HEADS[kind], config, dropout=0.0))
    ours.initialize(3)
    theirs = their_model(ours)
    rows, order = rows_to_train_on(kind)
    expected = train_theirs(theirs, kind, rows, order)
    losses = train_ours(ours, rows, order)
    assert max(abs(one - other) for one, other in zip(losses, expected, strict=True)) <= 1e-4
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5]), "something was learnt"

    theirs.eval()
    with torch.no_grad():
        for first in range(0, 64, BATCH):
            numbers = list(range(first, first + BATCH))
            batch, _ = rows.batch(numbers)
            found, wanted = ours.logits(batch), their_logits(theirs, their_inputs(theirs, rows, numbers))
            if kind == "spans":  # by row, and as shares: scores may differ by what a softmax ignores
                found, wanted = (it.view(BATCH, -1, 2).transpose(1, 2).log_softmax(-1) for it in (found, wanted))
            torch.testing.assert_close(found, wanted, rtol=0, atol=1e-3)
            if kind != "regression":
                assert torch.equal(found.argmax(-1), wanted.argmax(-1))


def test_lamb_learns_the_same_rows() -> None:
    config = settings("bert")
    ours = TaskModel(config, ENTRIES, Head.of("classification", CLASSES, config, dropout=0.0))
    ours.initialize(3)
    rows, order = rows_to_train_on("classification")
    losses = train_ours(ours, rows, order, optimizer_settings(name="lamb"), rate_factor=20)
    assert np.mean(losses[-5:]) < 0.9 * np.mean(losses[:5])


@pytest.mark.parametrize("kind", KINDS)
def test_the_tolerance_of_losses_would_notice_another_learning_rate(kind: str) -> None:
    """A rate that is 1 % higher is found out within 20 steps."""
    config, (rows, order) = settings("bert"), rows_to_train_on(kind)
    found = []
    for factor in (1.0, 1.01):
        ours = TaskModel(config, ENTRIES, Head.of(kind, HEADS[kind], config, dropout=0.0))
        ours.initialize(3)
        found.append(train_ours(ours, rows, order[:20], rate_factor=factor))
    assert max(abs(one - other) for one, other in zip(*found, strict=True)) > 1e-4
