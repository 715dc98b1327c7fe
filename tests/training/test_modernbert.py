"""A ModernBERT trains, goes on and comes out as a BERT does.

Inputs: the toy data set, models of four layers, windows of 8 tokens on either side and dropout 0.1. Observed: weights
and losses for other numbers of ranks, and after a kill; what transformers computes with the weights of random and
trained models on a thousand ragged rows, most of them longer than a window.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import ModernBertForMaskedLM

from bert_trainer.checkpoints.huggingface_export import write_config, write_weights
from bert_trainer.config.checks import parse_run_config
from bert_trainer.dataset.tokens.wordpiece import read_vocabulary
from bert_trainer.model.batch import make_batch
from bert_trainer.model.bert import Bert
from bert_trainer.output.metrics import read_metrics
from bert_trainer.training.run import run_stages
from bert_trainer.training.session import Session
from random_rows import MODERN, modern_config, random_model, random_samples
from test_ranks_and_accumulation import final_weights, ledger, worst_difference
from test_resume import assert_bit_identical, started, wait_for_line
from threaded_world import ThreadedWorld, run_threads
from tiny_run import TWO_LAYERS, VOCABULARY_SIZE, pretrain_stage, run_document, run_trainer, write_dataset

ROWS, LONGEST = 1000, 60
MODEL = {**TWO_LAYERS, **MODERN, "hidden_dropout": 0.1, "attention_dropout": 0.1}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("dataset"))


def document(folder: Path, dataset: Path, *, ranks: int = 1, **changes: Any) -> dict[str, Any]:
    settings = {
        "model": MODEL,
        "world": {"ranks": ranks, "hosts": 1},
        "stages": [pretrain_stage(global_batch_size=17, micro_batch_size=4)],
        "logging": {"every_steps": 1, "tensorboard": False, "sample_ledger": True},
    }
    return run_document(folder, dataset, **{**settings, **changes})


def train(folder: Path, dataset: Path, *, ranks: int = 1, **changes: Any) -> Bert:
    """Train with ranks that are threads; return the first one's model."""
    config, models = parse_run_config(document(folder, dataset, ranks=ranks, **changes)), {}

    def rank(world: ThreadedWorld) -> None:
        session = Session.open(config, world, attempt=1)
        run_stages(session, SimpleNamespace(received=False, listen=lambda: None))  # type: ignore[arg-type]
        models[world.rank] = session.learner.model

    run_threads(ranks, rank)
    return models[0]


def losses(folder: Path) -> list[float]:
    return [record["mlm_loss"] for record in read_metrics(folder) if record["event"] == "progress"]


@pytest.mark.parametrize("ranks", [2, 4])
def test_any_number_of_ranks_gives_the_same_curve_and_weights(tmp_path: Path, dataset: Path, ranks: int) -> None:
    for folder, count in (("one", 1), ("many", ranks)):
        train(tmp_path / folder, dataset, ranks=count, precision="fp64")
    one, many = final_weights(tmp_path / "one"), final_weights(tmp_path / "many")
    assert worst_difference(one, many) < 1e-10
    assert losses(tmp_path / "many") == pytest.approx(losses(tmp_path / "one"), rel=1e-10)
    assert ledger(tmp_path / "one") == ledger(tmp_path / "many")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_equal_ranks_repeat_bit_for_bit(tmp_path: Path, dataset: Path, precision: str) -> None:
    for folder in ("first", "second"):
        train(tmp_path / folder, dataset, ranks=2, precision=precision)
    first, second = (final_weights(tmp_path / folder) for folder in ("first", "second"))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_killed_run_ends_with_the_bits_of_an_undisturbed_one(tmp_path: Path, dataset: Path) -> None:
    changes = {"checkpoint": {"every_steps": 2, "keep": 2}, "precision": "fp32"}
    whole = document(tmp_path / "whole", dataset, **changes)
    assert run_trainer(whole, tmp_path / "whole.json").returncode == 0
    killed = document(tmp_path / "killed", dataset, **changes)
    with started(killed, tmp_path / "killed.json") as process:
        wait_for_line(process, " step=3 steps=6 ")
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=30)
    assert not (tmp_path / "killed/checkpoints/phase1-00000006").exists(), "it was killed before its end"
    resumed = run_trainer(killed, tmp_path / "killed.json")
    assert resumed.returncode == 0, resumed.stderr
    assert_bit_identical(*(tmp_path / name / "checkpoints/phase1-00000006" for name in ("whole", "killed")))


@pytest.mark.parametrize("kind", ["random", "trained"])
def test_a_thousand_ragged_rows_come_to_what_transformers_computes(tmp_path: Path, dataset: Path, kind: str) -> None:
    if kind == "random":
        model = random_model(modern_config(64), VOCABULARY_SIZE, seed=4, dtype=torch.float32)
    else:
        model = train(tmp_path / "run", dataset, precision="fp32")
    model.eval()
    (tmp_path / "model").mkdir()
    write_config(model, read_vocabulary(dataset / "vocab.txt"), tmp_path / "model")
    write_weights(model, tmp_path / "model")
    theirs = ModernBertForMaskedLM.from_pretrained(tmp_path / "model").eval()
    lengths = np.random.default_rng(5).integers(2, LONGEST + 1, ROWS)
    assert (lengths > 17).sum() > ROWS / 2, "most rows are longer than a window"
    worst = 0.0
    for first in range(0, ROWS, 100):
        some = lengths[first : first + 100].tolist()
        samples = random_samples(
            some, sequence_length=LONGEST, predictions=6, vocabulary_size=VOCABULARY_SIZE, seed=first
        )
        mask_BT = torch.from_numpy(samples.input_mask).long()
        with torch.no_grad():
            hidden_ND = model.encode(make_batch(samples, np.arange(100)))
            logits_NV = model.masked_lm_logits(hidden_ND)[:, :VOCABULARY_SIZE]
            found = theirs(torch.from_numpy(samples.input_ids).long(), mask_BT, output_hidden_states=True)
        for ours, expected in ((hidden_ND, found.hidden_states[-1]), (logits_NV, found.logits)):
            expected = expected[mask_BT.bool()]
            worst = max(worst, float((ours - expected).norm() / expected.norm()))
    assert worst <= 1e-5
