"""What computes a model: found for each pass, or said once, as a run does; and what a run asks of a backend."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor

from bert_trainer.model.backends import choice
from bert_trainer.model.backends.backend import Backend
from bert_trainer.model.backends.cpu.encoder import CpuBackend
from bert_trainer.model.backends.eager import EagerBackend
from bert_trainer.model.backends.ort import engine
from bert_trainer.model.backends.ort.engine import OrtBackend
from bert_trainer.model.batch import Batch
from bert_trainer.model.bert import Bert
from bert_trainer.model.dropout import DropoutKeys
from bert_trainer.model.layers import EncoderParameters
from in_process import losses, train
from random_rows import model_config, random_batch
from tiny_run import PREDICTIONS, SEQUENCE_LENGTH, pretrain_stage, run_config, write_dataset

VOCABULARY = 50
CPU, BF16 = torch.device("cpu"), torch.bfloat16


class NotedBackend(EagerBackend):
    """A backend of one's own: plain operations that note what is asked of them."""

    asked: Counter[str]
    """How often, and passes by the context that they ran in."""
    contexts: list[str]

    def __init__(self) -> None:
        super().__init__()
        # Backends are frozen.
        object.__setattr__(self, "asked", Counter())
        object.__setattr__(self, "contexts", ["none"])

    def describe(self, rank: int, precision: str) -> str:
        return f"rank {rank}: a backend of one's own, {precision}"

    def stage_batch(self, batch: Batch, *, sequence_length: int, micro_batch_size: int) -> Batch:
        assert batch.longest <= sequence_length == SEQUENCE_LENGTH
        assert batch.num_rows <= micro_batch_size
        self.asked[f"stage_batch of {micro_batch_size}"] += 1
        return batch

    @contextmanager
    def step_context(self) -> Iterator[None]:
        self.contexts.append("step")
        yield
        self.contexts.pop()

    def embed(self, model: EncoderParameters, batch: Batch, dropout: DropoutKeys | None) -> Tensor:
        self.asked[f"pass, context: {self.contexts[-1]}"] += 1
        return super().embed(model, batch, dropout)


def make_model() -> Bert:
    model = Bert(model_config(32), VOCABULARY)
    model.initialize(1)
    return model


def make_rows() -> Batch:
    return random_batch((5, 9), sequence_length=9, predictions=2, vocabulary_size=VOCABULARY, seed=1)


def test_what_was_said_computes_every_pass_until_it_is_taken_back() -> None:
    model, batch, said = make_model(), make_rows(), NotedBackend()
    model.use(said)
    model(batch)
    with torch.autocast("cpu", dtype=BF16):
        model(batch)
        model.encode(batch)
    assert said.asked == {"pass, context: none": 3}
    model.use(None)
    model(batch)
    assert said.asked.total() == 3
    assert isinstance(model.backend, CpuBackend)


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf32", torch.float32), ("bf16", BF16)])
def test_a_run_s_precision_is_that_of_its_backend_whatever_the_context(precision: str, dtype: torch.dtype) -> None:
    chosen = choice.choose_backend(make_model(), "eager", precision)
    assert isinstance(chosen, CpuBackend)
    assert chosen.dtype == dtype


@pytest.mark.parametrize("precision", ["fp16", "fp64"])
def test_a_run_in_a_type_without_kernels_gets_plain_operations(precision: str) -> None:
    model = make_model().to(torch.float64 if precision == "fp64" else torch.float32)
    chosen = choice.choose_backend(model, "eager", precision)
    assert isinstance(chosen, EagerBackend)
    assert chosen.kernels == f"none in {precision}"


def test_a_run_looks_once_and_asks_one_backend_for_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """3 steps of 2 micro-batches, evaluated before and after: 24 rows by 6; by a backend that one line has added."""
    found: list[NotedBackend] = []

    def find(device: torch.device, dtype: torch.dtype, head_size: int) -> Backend:
        assert (device, dtype, head_size) == (CPU, torch.float32, 16)
        found.append(NotedBackend())
        return found[-1]

    dataset = write_dataset(tmp_path / "data")
    shape = {"sequence_length": SEQUENCE_LENGTH, "max_predictions_per_sequence": PREDICTIONS}
    stages = [pretrain_stage(length={"steps": 3}), {"kind": "evaluate", **shape, "micro_batch_size": 6}]
    monkeypatch.setitem(choice._FINDERS, "cpu", find)
    session = train(run_config(tmp_path / "own", dataset, stages=stages))
    (own,) = found
    assert session.learner.model.backend is own
    assert own.asked == {
        "pass, context: step": 3 * 2 + 2 * 4,
        "stage_batch of 8": 3 * 2,
        "stage_batch of 6": 2 * 4,
    }
    monkeypatch.undo()
    monkeypatch.setattr(choice, "_FINDERS", {})
    train(run_config(tmp_path / "plain", dataset, stages=stages))
    assert losses(tmp_path / "own") == losses(tmp_path / "plain")


def test_onnx_runtime_leaves_all_but_passes_with_gradients_to_the_backend_below(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine, "describe_engine", lambda: "engine ort: 1.19.2")
    model, batch, below = make_model(), make_rows(), NotedBackend()
    model.use(OrtBackend(model, below, "fp32"))
    backend = model.backend
    assert backend.describe(2, "fp32") == "rank 2: a backend of one's own, fp32, engine ort: 1.19.2"
    with torch.no_grad(), backend.step_context():
        model(batch)
        model.encode(batch)
    assert below.asked == {"pass, context: step": 2}
    rows = random_batch((5, 9), sequence_length=SEQUENCE_LENGTH, predictions=2, vocabulary_size=VOCABULARY, seed=1)
    assert backend.stage_batch(rows, sequence_length=SEQUENCE_LENGTH, micro_batch_size=2) is rows
    with pytest.raises(AssertionError, match="parameters of one model"):
        backend.pretraining_losses(make_model(), batch, None)
