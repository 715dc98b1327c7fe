"""One record, four places: metrics.jsonl, the progress line, TensorBoard, Prometheus."""

from __future__ import annotations

import io
import json
import math
import re
import shutil
import socket
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bert_job.progress import format_line
from bert_trainer.errors import InputError
from bert_trainer.output.metrics import MetricsWriter, read_metrics
from bert_trainer.output.progress import Reporter
from whole_configs import logging_settings

RECORD = {
    "stage": "phase1",
    "step": 20,
    "steps": 100,
    "loss": 6.25,
    "mlm_accuracy": 0.125,
    "learning_rate": 1e-3,
}


def test_a_record_reaches_the_file_and_the_line(tmp_path: Path) -> None:
    line = io.StringIO()
    writer = MetricsWriter(tmp_path, logging_settings(tensorboard=False), Reporter("uid-1", 2, line))
    writer.progress({**RECORD, "mlm_loss": 0.5})
    writer.close()
    (record,) = read_metrics(tmp_path)
    assert {key: record[key] for key in RECORD} == RECORD
    assert record["mlm_loss"] == 0.5
    assert line.getvalue() == (
        "bert-trainer/1 event=progress stage=phase1 step=20 steps=100 loss=6.25 mlm_accuracy=0.125 "
        "learning_rate=0.001 job=uid-1 attempt=2\n"
    )


def test_the_last_lines_repeat_what_training_has_reached_and_not_where_it_began(tmp_path: Path) -> None:
    line = io.StringIO()
    writer = MetricsWriter(tmp_path, logging_settings(tensorboard=False), Reporter("uid-1", 1, line))
    for when, stage, step in (("before", "evaluate", None), ("during", "phase1", 5), ("during", "phase1", 10)):
        writer.evaluated(stage=stage, when=when, step=step, mlm_accuracy=0.5)
    line.truncate(0)
    writer.repeat_results()
    writer.close()
    (result,) = line.getvalue().strip("\0").splitlines()
    assert result.startswith("bert-trainer/1 event=result stage=phase1 when=during step=10 ")


def test_tensorboard_gets_the_scalars(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    writer = MetricsWriter(tmp_path, logging_settings(), Reporter("uid-1", 1, None))
    writer.progress(dict(RECORD))
    writer.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    (scalar,) = events.Scalars("phase1/loss")
    assert (scalar.step, scalar.value) == (20, 6.25)


def test_nobody_can_guess_the_name_of_tensorboard_s_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # What others see of a process, and the count of its files.
    monkeypatch.setattr(time, "time", lambda: 1_700_000_000.0)
    for _ in range(2):
        MetricsWriter(tmp_path, logging_settings(), Reporter("uid-1", 1, None)).close()
    names = [path.name for path in (tmp_path / "tensorboard").iterdir()]
    assert all("tfevents" in name and re.search(r"\.[0-9a-f]{16}$", name) for name in names), names
    assert len({name.rpartition(".")[2] for name in names}) == 2


def test_prometheus_serves_the_newest_values(tmp_path: Path) -> None:
    config = logging_settings(tensorboard=False, prometheus_port=0)
    writer = MetricsWriter(tmp_path, config, Reporter("uid-1", 1, None))
    try:
        writer.progress(dict(RECORD))
        with urllib.request.urlopen(f"http://127.0.0.1:{writer.prometheus_port}/metrics") as answer:
            text = answer.read().decode()
    finally:
        writer.close()
    assert 'bert_trainer_loss{stage="phase1"} 6.25' in text
    assert 'bert_trainer_step{stage="phase1"} 20.0' in text


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[MetricsWriter, Callable[[], str]]]:
    """Return a writer, and what reads the page that it serves."""
    writer = MetricsWriter(tmp_path, logging_settings(tensorboard=False, prometheus_port=0), Reporter("uid-1", 1, None))

    def read() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{writer.prometheus_port}/metrics") as answer:
            return str(answer.read().decode())

    yield writer, read
    writer.close()


def figure(page: str, name: str) -> float:
    found = re.search(rf"^bert_trainer_{name} (\S+)$", page, re.MULTILINE)
    assert found, f"{name} is not on the page"
    return float(found[1])


def test_the_page_says_when_the_last_checkpoint_was_written(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, read = served
    assert abs(figure(read(), "checkpoint_timestamp_seconds") - time.time()) < 60, "nothing before the attempt is lost"
    monkeypatch.setattr("prometheus_client.metrics.time.time", lambda: 2e9)
    writer.saved(stage="phase1", step=5, seconds=1.5)
    assert figure(read(), "checkpoint_timestamp_seconds") == 2e9


def test_the_page_has_the_size_of_the_volume_while_the_volume_answers(served: Any) -> None:
    writer, read = served
    size, free = (figure(read(), f"volume_{name}") for name in ("bytes", "free_bytes"))
    assert 0 < free < size == shutil.disk_usage(writer.folder).total
    writer.folder.joinpath("metrics.jsonl").unlink(missing_ok=True)
    writer.folder.rmdir()
    assert math.isnan(figure(read(), "volume_free_bytes"))


def test_nothing_remains_of_a_stage_that_met_its_target_early(served: Any) -> None:
    writer, read = served
    writer.progress({**RECORD, "remaining_s": 700.0})
    assert figure(read(), 'remaining_s{stage="phase1"}') == 700
    writer.event("stage_finished", stage="phase1", seconds=3.0)
    assert figure(read(), 'remaining_s{stage="phase1"}') == 0, "an alert would take it for a run that stands"


def test_an_evaluation_reaches_every_place_under_names_of_its_own(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    line = io.StringIO()
    writer = MetricsWriter(tmp_path, logging_settings(prometheus_port=0), Reporter("uid-1", 2, line))
    try:
        writer.evaluated(stage="phase1", when="during", step=20, mlm_accuracy=0.25, samples=100)
        writer.evaluated(stage="evaluate", when="after", mlm_accuracy=0.5)
        with urllib.request.urlopen(f"http://127.0.0.1:{writer.prometheus_port}/metrics") as answer:
            text = answer.read().decode()
    finally:
        writer.close()
    assert [record["mlm_accuracy"] for record in read_metrics(tmp_path)] == [0.25, 0.5]
    assert line.getvalue().splitlines()[0] == (
        "bert-trainer/1 event=evaluated stage=phase1 when=during step=20 mlm_accuracy=0.25 samples=100 "
        "job=uid-1 attempt=2"
    )
    assert 'bert_trainer_evaluation_mlm_accuracy{stage="phase1"} 0.25' in text
    assert 'bert_trainer_evaluation_mlm_accuracy{stage="evaluate"} 0.5' in text
    assert 'bert_trainer_mlm_accuracy{stage="phase1"}' not in text
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    (scalar,) = events.Scalars("phase1/evaluation_mlm_accuracy")
    assert (scalar.step, scalar.value) == (20, 0.25)


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        config = logging_settings(tensorboard=False, prometheus_port=port)
        with pytest.raises(InputError, match=f"prometheus_port: got {port}; metrics cannot be served there"):
            MetricsWriter(tmp_path, config, Reporter("uid-1", 1, None))


def test_a_number_that_is_not_finite_is_left_out(tmp_path: Path) -> None:
    line = io.StringIO()
    writer = MetricsWriter(tmp_path, logging_settings(tensorboard=False), Reporter("uid-1", 1, line))
    writer.progress({**RECORD, "loss": float("nan")})
    writer.close()
    assert "loss" not in json.loads((tmp_path / "metrics.jsonl").read_text())
    assert "loss" not in line.getvalue()


def test_a_line_cut_by_a_kill_is_passed_over_and_ended(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"event": "progress", "st')
    writer = MetricsWriter(tmp_path, logging_settings(tensorboard=False), Reporter("uid-1", 1, None))
    writer.event("succeeded")
    writer.close()
    assert [record["event"] for record in read_metrics(tmp_path)] == ["succeeded"]


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ("plain", "plain"),
        ("two words", '"two words"'),
        ('a"b', '"a\\"b"'),
        ("a=b", '"a=b"'),
        ("", '""'),
        (3, "3"),
    ],
)
def test_values_are_quoted_where_they_must_be(value: str | int, word: str) -> None:
    assert format_line({"key": value}) == f"bert-trainer/1 key={word}"
