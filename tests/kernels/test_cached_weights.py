"""Weights are put into the precision of products once a step, and anew after it."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from bert_trainer.config.checks import parse_run_config
from bert_trainer.model.backends.cpu import linear as linear_module
from bert_trainer.model.backends.cpu.encoder import CpuBackend
from bert_trainer.model.backends.cpu.library import Library
from bert_trainer.model.backends.cpu.linear import cached_weights, linear
from bert_trainer.output.metrics import read_metrics
from bert_trainer.training.run import train
from patience import PATIENCE_S
from tiny_run import pretrain_stage, run_document, write_dataset

pytestmark = pytest.mark.usefixtures("flavour")


def test_a_block_sees_the_weights_of_its_beginning_and_the_next_one_what_they_have_become(library: Library) -> None:
    first, second = (torch.nn.Parameter(torch.randn(3, 16)) for _ in range(2))
    x = torch.randn(5, 16, dtype=torch.bfloat16)

    def product() -> torch.Tensor:
        return linear(library, x, first, second).detach()

    before = product()
    with cached_weights():
        assert torch.equal(product(), before)
        assert torch.equal(product(), before)
        assert torch.equal(linear(library, x, second).detach(), before[:, 3:])
    with torch.no_grad():
        first.mul_(2)
    with cached_weights():
        assert torch.equal(product()[:, :3], 2 * before[:, :3])
    assert linear_module._cache.weights is None


def test_threads_keep_their_own() -> None:
    """Two blocks that begin and end in turns: the one that ends last leaves nothing of the other's behind."""
    begun, ended = threading.Event(), threading.Event()

    def hold() -> None:
        with cached_weights():
            begun.set()
            assert ended.wait(timeout=PATIENCE_S)

    other = threading.Thread(target=hold)
    with cached_weights():
        other.start()
        assert begun.wait(timeout=PATIENCE_S)
    ended.set()
    other.join(timeout=PATIENCE_S)
    assert linear_module._cache.weights is None


def test_weights_that_are_gone_are_not_taken_for_others(library: Library) -> None:
    x = torch.ones(1, 16)
    with cached_weights():
        for value in range(20):
            weight = torch.nn.Parameter(torch.full((2, 16), float(value)))
            assert linear(library, x, weight, weight).detach().eq(16 * value).all()
            del weight


def test_training_goes_on_with_the_weights_of_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three steps of several micro-batches in bf16: the losses of a run that keeps nothing."""
    dataset = write_dataset(tmp_path / "data")
    losses = []
    for name, keeps in (("kept", True), ("converted", False)):
        if not keeps:
            monkeypatch.setattr(CpuBackend, "step_context", lambda _: nullcontext())
        stage = pretrain_stage(global_batch_size=8, micro_batch_size=2, length={"steps": 3})
        train(parse_run_config(run_document(tmp_path / name, dataset, precision="bf16", stages=[stage])), attempt=1)
        losses.append([record["loss"] for record in read_metrics(tmp_path / name) if record["event"] == "progress"])
    assert losses[0] == losses[1]
    assert len(set(losses[0])) > 1
