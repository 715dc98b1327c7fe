"""Runs of the trainer inside the test's process, alone, and what they measured."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from bert_job.run_config import RunConfig
from bert_trainer.output.metrics import read_metrics
from bert_trainer.parallel.world import SingleRank
from bert_trainer.training.run import run_stages
from bert_trainer.training.session import Session


def train(config: RunConfig) -> Session:
    """Run every stage and return the session, closed, with the trained model in it."""
    session = Session.open(config, SingleRank(), attempt=1)
    run_to_end(session)
    return session


def run_to_end(session: Session) -> None:
    """Run every stage of a session that a test has opened and perhaps changed."""
    torch.set_num_threads(1)  # fixtures of a module run before the one that sets it for tests
    # StopSignal would install signal handlers.
    never_stopped: Any = SimpleNamespace(received=False, listen=lambda: None)
    run_stages(session, never_stopped)


def progress_records(folder: Path) -> list[dict[str, Any]]:
    """Return the records of a run's logging intervals, in order."""
    return [record for record in read_metrics(folder) if record["event"] == "progress"]


def losses(folder: Path) -> list[float]:
    """Return the loss of every logging interval, in nats."""
    return [float(record["loss"]) for record in progress_records(folder)]
