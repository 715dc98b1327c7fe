"""``bert-train finetune`` from weights to predictions and an export, and again over its own output folder.

Inputs: a small model as a folder of Hugging Face, tables with a planted rule. Observed: exit codes, what is printed,
the files that it names.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bert_trainer.__main__ import main
from tiny_finetune import write_task
from weight_sources import small_model, write_huggingface


@pytest.fixture(autouse=True)
def own_signal_handlers() -> Iterator[None]:
    """A run in this process listens to signals for the rest of it."""
    numbers = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def options(folder: Path) -> list[str]:
    model = write_huggingface(folder / "model", small_model(seed=1, max_position_embeddings=32))
    files = write_task(folder / "task")
    named = [f"--{name}={files / name}.tsv" for name in ("train", "validation", "test")]
    columns = ["--text=sentence", "--label=answer"]
    return [
        "finetune",
        "--task=classification",
        *named,
        *columns,
        f"--model={model}",
        "--sequence-length=16",
        "--max-unknown-share=1",
    ]


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_run_says_what_it_found_and_where_things_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "out"
    words = [*options(tmp_path), "--epochs=1", "--seeds=2", "--export=huggingface", f"--output={output}"]
    assert main(words) == 0
    *log, found, results, best, predictions, report, exported = capsys.readouterr().out.splitlines()
    assert all(line.startswith("bert-trainer/1 ") for line in log)
    assert found.startswith("classification: best accuracy ")
    assert "over 2 runs; majority 0.5" in found
    folder = output / "finetune" / "classification"
    assert results.split() == ["results", str(folder / "results.json")]
    assert best.split() == ["best", "weights", str(folder / "best" / "model.safetensors")]
    assert predictions.split() == ["predictions", str(folder / "predictions")]
    assert report.split() == ["report", str(output / "report.json")]
    assert exported.split() == ["model", str(output / "export" / "huggingface")]
    assert [run["seed"] for run in json.loads((folder / "results.json").read_text())["runs"]] == [42, 43]

    assert main(words) == 2
    refused = capsys.readouterr().err
    assert "already holds a run of local/finetune-classification" in refused
    assert main([*words, "--if-exists=Resume"]) == 0
    assert capsys.readouterr().out.splitlines()[-6] == found, "nothing is trained again"


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_ctrl_c_stops_with_a_checkpoint(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bert_trainer", *options(tmp_path), "--epochs=100000", f"--output={tmp_path}/out"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        for line in run.stdout:
            if "event=progress" in line:
                run.send_signal(signal.SIGINT)
                break
        rest, messages = run.communicate(timeout=60)
    assert run.returncode == 3, messages
    assert "event=stopped" in rest
    assert "a checkpoint is saved" in messages
