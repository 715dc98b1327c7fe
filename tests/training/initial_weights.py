"""Runs of the toy data set that start from weights, and what they compute and say before their first step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from bert_job.run_config import RunConfig
from bert_trainer.model.batch import make_batch
from bert_trainer.model.bert import Bert
from bert_trainer.output.metrics import read_metrics
from bert_trainer.parallel.world import SingleRank
from bert_trainer.training.session import Session
from random_rows import MODERN, random_samples
from tiny_run import TWO_LAYERS, VOCABULARY_SIZE, run_config, run_document

SAMPLES = random_samples([24, 5, 17], sequence_length=24, predictions=4, vocabulary_size=VOCABULARY_SIZE, seed=1)
MODEL = run_document(Path("unused"), Path("unused"), model=TWO_LAYERS)["model"]
MASKED_WORDS = {**MODEL, "objective": "mlm"}
DISTILBERT = {**MASKED_WORDS, "architecture": "distilbert"}
MODERNBERT = {**MODEL, **MODERN}


def start_from(path: Path, **rest: object) -> dict[str, Any]:
    return {"initial_checkpoint": {"path": str(path), **rest}}


def two_layer_config(folder: Path, dataset: Path, **changes: Any) -> RunConfig:
    """Return ``run_config`` of two layers, so that a weight has neighbours of its name."""
    return run_config(folder, dataset, **{"model": MODEL, **changes})


def open_session(folder: Path, dataset: Path, options: dict[str, Any]) -> Session:
    """Set a run up without training it."""
    session = Session.open(two_layer_config(folder, dataset, **options), SingleRank(), attempt=1)
    session.close()
    return session


def loss(model: Bert) -> torch.Tensor:
    """Return the means of both losses over the same rows, added up, without dropout; scalar, in nats."""
    batch = make_batch(SAMPLES, np.arange(len(SAMPLES.input_ids)))
    with torch.no_grad():
        sums = model(batch)
    return sums.masked_lm / batch.num_masked + sums.next_sentence / batch.num_rows  # type: ignore[no-any-return]


def told(folder: Path) -> str:
    """Return the sentence that a run has started with."""
    (message,) = [record["message"] for record in read_metrics(folder) if record["event"] == "initialized"]
    assert isinstance(message, str)
    return message
