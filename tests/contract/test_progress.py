"""What the trainer prints, the operator reads."""

from __future__ import annotations

import io
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_job.progress import PREFIX, format_line, parse_progress_line
from bert_operator.plugin.views.time_spent import OF_A_STAGE
from bert_operator.state.results import read_result
from bert_trainer.output.metrics import MetricsWriter
from bert_trainer.output.progress import Reporter
from whole_configs import logging_settings

KEYS = st.from_regex(r"[a-z][a-z0-9_]{0,20}", fullmatch=True).filter(lambda key: key not in ("event", "job", "attempt"))
VALUES = st.one_of(
    st.none(),
    st.integers(-(10**15), 10**15),
    st.floats(allow_nan=True, allow_infinity=True),
    st.text(max_size=60),
)


@given(st.dictionaries(KEYS, VALUES, max_size=10))
def test_every_record_survives_the_way(fields: dict[str, str | int | float | None]) -> None:
    line = format_line({"event": "progress", **fields, "job": "a-b", "attempt": 3})
    record = parse_progress_line(line + "\n")
    assert record is not None
    assert (record.event, record.job, record.attempt) == ("progress", "a-b", 3)
    assert "\n" not in line
    for key, value in fields.items():
        if value is None or (isinstance(value, float) and not math.isfinite(value)):
            assert record.text(key) is None
        elif isinstance(value, float):
            assert record.number(key) == pytest.approx(value, rel=1e-5)
        elif isinstance(value, int):
            assert record.count(key) == value
        else:
            assert record.text(key) == value


def test_the_reporter_s_own_lines_are_read() -> None:
    stream = io.StringIO()
    Reporter("uid-1", 2, stream).report("failed", stage="phase1", message='no "vocab.txt" here')
    record = parse_progress_line(stream.getvalue())
    assert record is not None
    assert (record.event, record.job, record.attempt, record.stage) == ("failed", "uid-1", 2, "phase1")
    assert record.text("message") == 'no "vocab.txt" here'


def test_an_evaluation_that_the_trainer_reports_becomes_a_result(tmp_path: Path) -> None:
    stream = io.StringIO()
    writer = MetricsWriter(tmp_path, logging_settings(tensorboard=False), Reporter("uid-1", 2, stream))
    figures = {"mlm_accuracy": 0.7213, "mlm_loss": 1.25, "samples": 10000, "trained_samples": 3000000}
    target = {"target": 0.72, "target_met": "true", "message": "target met at step 4: 0.7213 >= 0.72"}
    writer.evaluated(stage="phase1", when="during", step=4, steps=9, nsp_accuracy=None, **figures, **target)
    writer.evaluated(stage="evaluate", when="before", mlm_accuracy=0.001)
    writer.evaluated(stage="evaluate", when="after", mlm_accuracy=0.5)
    writer.repeat_results()
    writer.close()
    records = [parse_progress_line(line) for line in stream.getvalue().splitlines()]
    results = [record and read_result(record) for record in records]
    phase1, before, after, *repeated = results
    assert before is None
    assert repeated == [phase1, after]
    assert phase1 is not None
    assert (phase1.stage, phase1.step, phase1.target_met) == ("phase1", 4, True)
    assert phase1.message == "target met at step 4: 0.7213 >= 0.72"
    assert {metric.name: metric.value for metric in phase1.metrics} == {
        "mlm_accuracy": "0.7213",
        "mlm_loss": "1.25",
        "samples": "10000",
        "trained_samples": "3000000",
        "target": "0.72",
    }


def test_where_the_time_of_a_stage_went_is_on_the_line_for_those_without_the_volume(tmp_path: Path) -> None:
    stream = io.StringIO()
    writer = MetricsWriter(tmp_path, logging_settings(tensorboard=False), Reporter("uid-1", 2, stream))
    times = {"data_wait_s": 12.5, "evaluation_s": 30.0, "checkpoint_s": 7.25}
    writer.progress({"stage": "phase1", "step": 1, "steps": 9, "elapsed_s": 100.0, **times})
    writer.progress({"stage": "phase1", "step": 2, "steps": 9, "elapsed_s": 101.0, **dict.fromkeys(times, 0.0)})
    writer.close()
    lines = [record for line in stream.getvalue().splitlines() if (record := parse_progress_line(line))]
    assert [{name: line.number(name) for name in OF_A_STAGE} for line in lines] == [
        times,
        # A stage without evaluations and checkpoints does not speak of them.
        {"data_wait_s": 0.0, "evaluation_s": None, "checkpoint_s": None},
    ]


def test_what_the_trainer_reports_of_fine_tuning_becomes_a_result(tmp_path: Path) -> None:
    stream = io.StringIO()
    writer = MetricsWriter(tmp_path, logging_settings(tensorboard=False), Reporter("uid-1", 2, stream))
    found = {"f1": 0.889, "accuracy": 0.842, "majority_f1": 0.812, "majority_accuracy": 0.684}
    spread = {"mean": 0.871, "std": 0.012, "best_seed": 44, "best_epoch": 3.0, "runs": 5}
    message = "mrpc: best f1 0.889 (seed 44, epoch 3); majority 0.812"
    writer.evaluated(
        stage="mrpc", when="after", task="mrpc", metric="f1", best_rank=None, message=message, **found, **spread
    )
    writer.close()
    (record,) = [parse_progress_line(line) for line in stream.getvalue().splitlines()]
    assert record is not None
    result = read_result(record)
    assert result is not None
    assert (result.stage, result.message, result.metrics[0].name) == ("mrpc", message, "f1")
    values = {metric.name: float(metric.value) for metric in result.metrics}
    assert values == {**found, **spread}


@pytest.mark.parametrize(
    "line",
    [
        "",
        "Traceback (most recent call last):",
        "bert-trainer/1",
        "bert-trainer/1 ",
        "bert-trainer/2 event=progress",
        " bert-trainer/1 event=progress",
        "bert-trainer/1 stage=phase1",
        "bert-trainer/1 event=",
        "bert-trainer/1 event=progress step",
        "bert-trainer/1 event=progress event=failed",
        'bert-trainer/1 event=failed message="cut off',
        'bert-trainer/1 event=failed message="bad \\x escape"',
        'bert-trainer/1 event=failed message="a"b',
        "bert-trainer/1 event=progress " + " ".join(f"k{n}=1" for n in range(64)),
        "bert-trainer/1 event=progress text=" + "x" * 9000,
    ],
)
def test_a_line_that_is_no_record_is_nothing(line: str) -> None:
    assert parse_progress_line(line) is None


@given(st.text(max_size=200))
def test_nothing_that_follows_the_prefix_raises(text: str) -> None:
    parse_progress_line(PREFIX + text)


def test_numbers_that_are_none_are_absent() -> None:
    record = parse_progress_line(f"{PREFIX}event=progress step=1e3 loss=nan steps={'9' * 30} x=inf attempt=two")
    assert record is not None
    assert (record.count("step"), record.number("loss"), record.count("steps")) == (None, None, None)
    assert (record.number("x"), record.attempt) == (None, None)
