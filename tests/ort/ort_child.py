"""What tests ask of ONNX Runtime, in a process of the environment that has it (``tools/ort.sh``); results as JSON.

BERT_TRAINER_KERNELS=off compares with plain operations.

ort_child.py passes    losses and gradients of the engine and of plain operations, by case
ort_child.py tasks     the same of fine-tuning's heads
ort_child.py half      the same under autocast to fp16
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from torch import Tensor, nn

from bert_job.tasks import Kind
from bert_trainer.model.backends.choice import choose_backend
from bert_trainer.model.backends.ort.engine import OrtBackend
from bert_trainer.model.batch import Batch
from bert_trainer.model.task_model import Head, TaskModel
from random_rows import make_all_count, model_config, random_batch, random_model
from task_rows import task_rows

VOCABULARY = 101
MODELS: dict[str, dict[str, Any]] = {
    "bert": {},
    "tanh, four heads": {"num_attention_heads": 4, "hidden_activation": "gelu_new"},
    "masked LM alone": {"objective": "mlm"},
    "distilbert": {"architecture": "distilbert", "objective": "mlm"},
}
ROWS = ((2, 40, 16, 17, 33, 5), (2, 40, 16, 17, 33, 5), (31, 7, 24))
"""Of one model one after the other: the same twice, then others, which the same graph has to take."""


def compare_passes() -> dict[str, Any]:
    """Return, by case, how far the engine is from plain operations."""
    found: dict[str, Any] = {}
    for name, changes in MODELS.items():
        for dropout in (0.0, 0.1):
            config = model_config(64, **changes, hidden_dropout=dropout, attention_dropout=dropout)
            model = random_model(config, VOCABULARY, seed=2, dtype=torch.float32)
            engine = choose_backend(model, "ort", "fp32")
            found[f"{name}, dropout {dropout:g}"] = [
                _compare(model, engine, _pretraining_pass, _batch(rows)) for rows in ROWS
            ] + [{"graphs": _graphs(engine)}]
    return found


def compare_tasks() -> dict[str, Any]:
    """Return the same of fine-tuning's heads."""
    found: dict[str, Any] = {}
    kinds: tuple[tuple[Kind, int], ...] = (("classification", 3), ("regression", 1), ("spans", 2))
    for kind, outputs in kinds:
        config = model_config(64, hidden_dropout=0.1, attention_dropout=0.1)
        head = Head.of(kind, outputs, config)
        model = make_all_count(TaskModel(config, VOCABULARY, head), seed=2, dtype=torch.float32)
        engine = choose_backend(model, "ort", "fp32")
        lengths = (40, 8, 23, 17)
        batch, targets = task_rows(kind, lengths, vocabulary_size=VOCABULARY, seed=3).batch(range(len(lengths)))

        def task_pass(model: nn.Module, batch: Batch, targets: Tensor = targets) -> list[Tensor]:
            return [model(batch, targets, batch.dropout_keys(3, 5))]

        found[kind] = [_compare(model, engine, task_pass, batch), {"graphs": _graphs(engine)}]
    return found


def compare_half() -> dict[str, Any]:
    """Return the same under autocast to fp16 on both sides; on processors the graph converts around products."""
    config = model_config(64, hidden_dropout=0.1, attention_dropout=0.1)
    model = random_model(config, VOCABULARY, seed=2, dtype=torch.float32)
    engine = choose_backend(model, "ort", "fp16")

    def half_pass(model: nn.Module, batch: Batch) -> list[Tensor]:
        with torch.autocast("cpu", dtype=torch.float16):
            return _pretraining_pass(model, batch)

    return {"fp16": [_compare(model, engine, half_pass, _batch(ROWS[0])), {"graphs": _graphs(engine)}]}


def _batch(lengths: tuple[int, ...]) -> Batch:
    return random_batch(lengths, sequence_length=40, predictions=6, vocabulary_size=VOCABULARY, seed=1)


def _pretraining_pass(model: nn.Module, batch: Batch) -> list[Tensor]:
    dropout = batch.dropout_keys(3, 5) if model.config.hidden_dropout else None  # type: ignore[union-attr]
    sums = model(batch, dropout)
    return [sums.masked_lm, sums.next_sentence, sums.masked_lm_correct, sums.next_sentence_correct]


def _compare(model: Any, engine: Any, run: Any, batch: Batch) -> dict[str, Any]:
    """Run a pass without and with the engine; differences of losses in nats, of gradients as a share of the largest."""
    results = []
    for used in (None, engine):
        model.use(used)
        model.zero_grad()
        values = run(model, batch)
        sum(value for value in values if value.requires_grad).backward()
        gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
        results.append(([float(value.detach()) for value in values], gradients))
    (plain, expected), (found, gradients) = results
    largest = max(float(gradient.abs().max()) for gradient in expected.values())
    errors = {name: float((gradients[name] - expected[name]).abs().max()) / largest for name in expected}
    return {
        "plain": plain,
        "found": found,
        "gradients": max(errors.values()),
        "worst": max(errors, key=errors.__getitem__),
    }


def _graphs(engine: OrtBackend) -> int:
    """Return how many graphs ONNX Runtime has really executed."""
    managers = [graph._torch_module._execution_manager(True) for graph in engine._graphs.values()]
    return sum(manager._execution_agent is not None for manager in managers)


if __name__ == "__main__":
    commands: dict[str, Any] = {"passes": compare_passes, "tasks": compare_tasks, "half": compare_half}
    sys.stdout.write(json.dumps(commands[sys.argv[1]]()) + "\n")
