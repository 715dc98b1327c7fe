"""``bert-train finetune`` from weights to predictions and an export, and again over its own output folder.

Inputs: a small model as a folder of Hugging Face, tables with a planted rule. Observed: exit codes, what is printed,
the files that it names.
"""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bert_job.progress import format_line
from bert_trainer.__main__ import main
from bert_trainer.errors import InputError, Stopped
from bert_trainer.output.console import displayed
from bert_trainer.output.report_page import PAGE_FILE
from bert_trainer.output.run_folder import CONFIG_FILE
from bert_trainer.output.runs_page import INDEX_FILE
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
    output = tmp_path / "runs" / "out"
    words = [*options(tmp_path), "--epochs=1", "--seeds=2", "--export=huggingface", f"--output={output}"]
    assert main(words) == 0
    said = capsys.readouterr().out.splitlines()
    assert not any(line.startswith("bert-trainer/1 ") for line in said)
    assert sum(line.startswith("Evaluation in classification, seed ") for line in said) == 2
    found = next(line for line in said if line.startswith("classification: best accuracy "))
    assert "over 2 runs; majority 0.5" in found
    folder = output / "finetune" / "classification"
    places = ("output", "checkpoint", "model", "predictions", "report")
    assert dict(line.split(maxsplit=1) for line in said if line.startswith(places)) == {
        "output": str(output),
        "checkpoint": str(max(output.glob("checkpoints/*"))),
        "model": str(output / "export" / "huggingface"),
        "predictions": str(folder / "predictions"),
        "report": str(output / "report.html"),
    }
    index = (tmp_path / "runs" / INDEX_FILE).read_text()
    assert f'href="out/{PAGE_FILE}"' in index
    best = found.removeprefix("classification: best accuracy ").partition(" ")[0]
    assert f">accuracy {float(best):.3f}<" in index
    assert json.loads((output / CONFIG_FILE).read_text())["job"]["name"] == "classification-model"
    assert [run["seed"] for run in json.loads((folder / "results.json").read_text())["runs"]] == [42, 43]

    assert main(words) == 2
    refused = capsys.readouterr().err
    assert "already holds a run of local/classification-model" in refused
    assert main([*words, "--if-exists=Resume", "--plain"]) == 0
    records = capsys.readouterr().out.splitlines()
    assert {line.partition("event=")[0] for line in records} == {"bert-trainer/1 "}
    assert not any("event=progress" in line for line in records), "nothing is trained again"


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_an_executor_s_rank_prints_records_and_a_terminal_shows_a_bar(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bert_trainer", *options(tmp_path), "--epochs=1", "--if-exists=New"]
    command.append(f"--output={tmp_path}/out")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TERM": "xterm", "COLUMNS": "120"}
    done = subprocess.run(
        command, env={**environment, "BERT_ATTEMPT": "3"}, capture_output=True, text=True, check=True, timeout=120
    )
    ours = [line for line in done.stdout.splitlines() if not line.startswith("rank 0 on ")]
    assert all(line.startswith("bert-trainer/1 ") and line.endswith("attempt=3") for line in ours)
    ours_end, theirs_end = pty.openpty()
    with subprocess.Popen(command, env=environment, stdout=theirs_end, stderr=theirs_end) as run:
        os.close(theirs_end)
        drawn = b""
        # The end of a terminal is an error on Linux.
        with contextlib.suppress(OSError):
            while part := os.read(ours_end, 65_536):
                drawn += part
        os.close(ours_end)
    assert run.returncode == 0
    assert b"\x1b[" in drawn
    assert b"bert-trainer/1 " not in drawn
    assert "━".encode() in drawn
    assert b"report.html" in drawn


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_an_error_is_told_once(tmp_path: Path) -> None:
    words = [*options(tmp_path), f"--output={tmp_path}/out", "--learning-rate=1e-3", "--epochs=1"]
    (tmp_path / "out").write_text("a file")
    command = [sys.executable, "-m", "bert_trainer", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 2
    assert (done.stdout + done.stderr).count(f"{tmp_path}/out") == 1, done.stdout + done.stderr


def test_the_hint_of_an_error_is_left_to_standard_error_too(capsys: pytest.CaptureFixture[str]) -> None:
    error = InputError("a.csv:1: no column 'label'", hint="name columns as they are called there")

    def fail() -> None:
        print(format_line({"event": "failed", "message": str(error)}))
        print("half a line", end="")
        raise error

    with pytest.raises(InputError), displayed(Path("nowhere"), {}, plain=False):
        fail()
    assert capsys.readouterr().out == "half a line\n"


def test_a_stop_is_left_to_standard_error_too(capsys: pytest.CaptureFixture[str]) -> None:
    def stop() -> None:
        print(format_line({"event": "stopped", "stage": "mrpc", "message": "mrpc: stopped on request at step 2"}))
        raise Stopped("mrpc: stopped on request at step 2")

    with pytest.raises(Stopped), displayed(Path("nowhere"), {}, plain=False):
        stop()
    assert capsys.readouterr().out == ""


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_ctrl_c_stops_with_a_checkpoint(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bert_trainer", *options(tmp_path), "--epochs=100000", "--plain"]
    command.append(f"--output={tmp_path}/out")
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


def test_a_terminal_of_another_alphabet_and_no_output_at_all_end_no_run(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from bert_job.progress import format_line
from bert_trainer.output.console import displayed
with displayed(Path("nowhere"), {}, plain=False):
    print(format_line({"event": "task_read", "message": "caf\u00e9"}))
"""
    shown = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "caf\\xe9" in shown.stdout
    subprocess.run(["bash", "-c", f"{sys.executable} -c '{code}' >&-"], check=True)
