"""Finetune stages that run inside the test's process, with ranks as threads, and what they left."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from safetensors.torch import load_file

from bert_trainer.config.checks import parse_run_config
from bert_trainer.output.metrics import read_metrics
from bert_trainer.parallel.world import SingleRank, World
from bert_trainer.training.run import run_stages
from bert_trainer.training.session import Session
from threaded_world import run_threads

Document = dict[str, Any]


class StopAfter:
    """A request to stop that comes after a number of steps."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def listen(self) -> None:
        pass

    @property
    def received(self) -> bool:
        self.left -= 1
        return self.left < 0


def run(document: Document, *, ranks: int = 1, stop_after: int | None = None, attempt: int = 1) -> None:
    """Run the stages of a document, stopped after some steps or to the end; ranks are threads."""
    document = {**document, "world": {"ranks": ranks, "hosts": 1}}

    def act(world: World) -> None:
        never: Any = SimpleNamespace(received=False, listen=lambda: None)
        session = Session.open(parse_run_config(document), world, attempt=attempt)
        run_stages(session, never if stop_after is None else StopAfter(stop_after))

    torch.set_num_threads(1)
    # A third of what such a run costs; runs by ``in_process.train`` draw it.
    with mock.patch("bert_trainer.output.report.plot_loss"):
        if ranks == 1:
            act(SingleRank())
        else:
            run_threads(ranks, act)


def evaluated(folder: Path, when: str = "during") -> list[Document]:
    return [record for record in read_metrics(folder) if record["event"] == "evaluated" and record["when"] == when]


def without_times(record: Document) -> Document:
    return {key: value for key, value in record.items() if key not in ("run_s", "cpu_s", "seconds", "attempt")}


def best(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "finetune/rule/best/model.safetensors")


def assert_same_tensors(one: Path, other: Path) -> None:
    first, second = load_file(one), load_file(other)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def assert_same_run(one: Path, other: Path) -> None:
    """Weights, moments, best weights and results are equal to the bit."""
    last = sorted(path.name for path in (one / "checkpoints").iterdir())[-1]
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert_same_tensors(one / "checkpoints" / last / name, other / "checkpoints" / last / name)
    assert_same_tensors(*(folder / "finetune/rule/best/model.safetensors" for folder in (one, other)))
    for name in ("results.json", "best/result.json", "predictions/predictions.csv"):
        assert (one / "finetune/rule" / name).read_bytes() == (other / "finetune/rule" / name).read_bytes()
