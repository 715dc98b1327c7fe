"""The operator's benchmark takes its time, and says meanwhile what it does and what it has measured."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

PROGRAM = Path(__file__).parents[2] / "benchmarks/operator/run.py"


@pytest.fixture
def bench() -> ModuleType:
    """Its module, under a name of its own: other benchmarks have a run.py too."""
    spec = importlib.util.spec_from_file_location("operator_bench", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_line_of_a_size_comes_before_the_next_size_is_begun(
    bench: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed: list[str] = []

    def run_round(jobs: int, folder: Path | None) -> Any:
        printed.append(capsys.readouterr().out)
        return bench.Round(jobs, 50.0, 4.0, 0, 5.7 if folder is None else 11.4, 90.0, 1.5, 1.2, 95.0, 2.5, 99.0)

    monkeypatch.setattr(bench, "run_round", run_round)
    monkeypatch.setattr(bench, "run_bare", lambda jobs: next(rates))
    rates = itertools.cycle([60.0, 40.0])
    monkeypatch.setattr(sys, "argv", ["run.py", "--jobs", "100", "1000", "3000"])
    assert bench.main() == 0
    before_any, first, second = printed
    assert before_any.split()[:3] == ["jobs", "jobs/s", "limit"]
    assert [line.split()[:4] for line in (first, second)] == [
        ["100", "50.0", "50.0", "1.00"],
        ["1000", "50.0", "50.0", "1.00"],
    ]
    third, last = capsys.readouterr().out.splitlines()
    assert third.split()[0] == "3000"
    assert last.startswith("bench-operator: jobs=1000 jobs_per_s=50.0 apiserver_limit_jobs_per_s=50.0 rss_mb=95")
    monkeypatch.setattr(sys, "argv", ["run.py", "--jobs", "100", "--before", "elsewhere"])
    assert bench.main() == 0
    _, _, change, _ = capsys.readouterr().out.splitlines()
    assert change.strip() == (
        "100 of before: jobs/s 1.00, writes 1.00, cpu 0.50, rss 1.00, restart 1.00, restart cpu 1.00, steady cpu 1.00"
    )
