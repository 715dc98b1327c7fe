"""The parts of the report in the order of their weight, each with the time that it may take on one H200."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from gpu_report.part import Part


@dataclass(frozen=True, slots=True)
class Entry:
    """A part of the report."""

    name: str
    title: str
    limit_s: float
    """After which it is ended, with what it has published."""
    timed: bool
    """Whether it measures speed, and so has the machine to itself. Others run beside one another on a card."""


ENTRIES = (
    Entry("environment", "Environment", 60, timed=True),
    Entry("bench-512", "Benchmark's step, BERT-large, length 512", 110, timed=True),
    Entry("train-large-512", "Trainer, BERT-large, length 512", 130, timed=True),
    Entry("tests", "tests/gpu", 120, timed=False),
    Entry("resume", "Killed and resumed", 110, timed=False),
    Entry("loss", "Loss beside a processor's", 90, timed=False),
    Entry("bench-128", "Benchmark's step, BERT-large, length 128", 80, timed=True),
    Entry("train-large-128", "Trainer, BERT-large, length 128", 110, timed=True),
    Entry("profile", "Ten steps, traced", 60, timed=True),
    Entry("train-base-512", "Trainer, BERT-base, length 512", 70, timed=True),
    Entry("ranks", "Ranks on one card", 100, timed=True),
    Entry("micro-batch", "Micro-batch size, auto", 60, timed=True),
    Entry("train-base-128", "Trainer, BERT-base, length 128", 60, timed=True),
    Entry("bench-graphs-512", "Benchmark's step with CUDA graphs, length 512", 110, timed=True),
)


_WORK: Mapping[str, tuple[str, str, tuple[object, ...]]] = MappingProxyType(
    {
        "environment": ("environment", "report_environment", ()),
        "tests": ("tests_on_card", "run_tests", ()),
        "bench-512": ("benchmark", "run_benchmark", (512,)),
        "bench-128": ("benchmark", "run_benchmark", (128,)),
        "bench-graphs-512": ("benchmark", "run_benchmark", (512, True)),
        "train-large-512": ("training", "measure_training", ("large", 512)),
        "train-large-128": ("training", "measure_training", ("large", 128)),
        "train-base-512": ("training", "measure_training", ("base", 512)),
        "train-base-128": ("training", "measure_training", ("base", 128)),
        "resume": ("resume", "compare_resumed", ()),
        "ranks": ("ranks", "compare_ranks", ()),
        "profile": ("profile_table", "tabulate_profile", ()),
        "micro-batch": ("micro_batch", "tune_micro_batch", ()),
        "loss": ("loss_curve", "compare_losses", ()),
    }
)
"""Module, function and what it is called with behind the part."""


def find_work(name: str) -> Callable[[Part], None]:
    """Return what a part does. Its module alone is imported: most need torch, and the report's own process does not."""
    module, function, arguments = _WORK[name]
    work = getattr(importlib.import_module(f"gpu_report.{module}"), function)

    def run(part: Part) -> None:
        work(part, *arguments)

    return run
