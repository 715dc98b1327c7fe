"""Output for people: figures beside the bar, sentences, the summary and the closing remarks."""

from __future__ import annotations

import errno
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO, cast

import pytest
from rich.console import Console

from bert_job.console.display import BarDisplay, LineDisplay, PlainDisplay, Terminal, describe_record, render_figures
from bert_job.console.summary import print_summary, read_report
from bert_job.durations import render_duration
from bert_job.progress import ProgressRecord, parse_progress_line
from bert_operator.api.schema.status import Condition, Failure, JobStatus
from bert_operator.local.next_steps import render_next_steps
from bert_operator.local.outcomes import JobOutcome, describe_outcome, exit_code
from sample_job import sample_job


@pytest.fixture(autouse=True)
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    # Where the tests run in none, rich would take 80 columns whatever it is told.
    monkeypatch.setenv("TERM", "xterm")


def record(text: str) -> ProgressRecord:
    found = parse_progress_line(f"bert-trainer/1 {text}")
    assert found is not None
    return found


PROGRESS = record(
    "event=progress stage=phase1 step=120 steps=700 loss=6.104 mlm_accuracy=0.123 "
    "sequences_per_s=151.2 real_tokens_per_s=17345.6 elapsed_s=30 remaining_s=145"
)


def terminal(width: int = 120) -> tuple[Console, io.StringIO]:
    stream = io.StringIO()
    return Console(file=stream, force_terminal=True, width=width, color_system=None), stream


def test_figures_stand_beside_the_bar() -> None:
    assert render_figures(PROGRESS) == "loss 6.104  masked-LM 12.3%  151 seq/s  17,346 tok/s"
    assert render_figures(record("event=progress stage=prepare step=1 steps=2")) == ""


def test_an_evaluation_while_training_and_the_end_by_a_target_are_sentences() -> None:
    evaluated = record("event=evaluated stage=phase1 when=during step=40 mlm_accuracy=0.7213 nsp_accuracy=0.98")
    assert describe_record(evaluated) == (
        "Evaluation in phase1 at step 40: masked-LM accuracy 72.1%, next-sentence accuracy 98.0%"
    )
    finished = record('event=stage_finished stage=phase1 seconds=60 message="target met at step 40: 0.7213 >= 0.72"')
    assert describe_record(finished) == "Finished stage phase1 in 1:00 min: target met at step 40: 0.7213 >= 0.72"
    assert describe_record(record("event=result stage=phase1 step=40 mlm_accuracy=0.7213")) is None


def test_the_bar_shows_stage_steps_and_time_left() -> None:
    console, stream = terminal()
    display = BarDisplay(console)
    display.show("", PROGRESS)
    display.show("UserWarning: [bold] is no markup here", None)
    display.show("", record("event=evaluated when=before mlm_accuracy=0.001 unigram_baseline=0.05"))
    display.note("Started attempt 2")
    display.close()
    shown = stream.getvalue()
    for words in (
        "phase1",
        "120/700",
        "loss 6.104",
        "2:25 min left",
        "[bold] is no markup",
        "before training: masked-LM accuracy 0.1%, most frequent token alone 5.0%",
        "Started attempt 2",
    ):
        assert words in shown


def test_a_stage_s_name_is_no_markup() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    display = BarDisplay(console)
    display.show("", record("event=progress stage=[/red] step=1 steps=2"))
    display.close()
    assert "[/red]" in console.file.getvalue()  # type: ignore[attr-defined]


def test_records_other_than_progress_become_sentences() -> None:
    sentences = {
        "event=resumed stage=phase1 step=80 path=p": "Resumed phase1 at step 80",
        "event=stage_finished stage=phase1 seconds=187": "Finished stage phase1 in 3:07 min",
        "event=exported path=/out/export": "Exported the model to /out/export",
        'event=failed message="no vocabulary"': None,  # the executor tells it, once
        "event=checkpoint stage=phase1 step=80 path=p": None,
        "event=invented": None,
    }
    assert {text: describe_record(record(text)) for text in sentences} == sentences


def test_fine_tuning_is_told_by_its_runs_and_its_end() -> None:
    sentences = {
        "event=evaluated stage=mrpc when=during seed=43 epoch=1.5 step=40 f1=0.8893 accuracy=0.84 seconds=2.5": (
            "Evaluation in mrpc, seed 43, epoch 1.5: f1 0.889, accuracy 0.840"
        ),
        "event=evaluated stage=mnli when=during seed=1 rank=0 epoch=3 accuracy=0.5 accuracy_mismatched=0.25": (
            "Evaluation in mnli, seed 1, rank 0, epoch 3: accuracy 0.500, accuracy_mismatched 0.250"
        ),
        'event=evaluated stage=mrpc when=after f1=0.889 message="mrpc: best f1 0.889 (seed 43, epoch 3)"': (
            "mrpc: best f1 0.889 (seed 43, epoch 3)"
        ),
        "event=stage_finished stage=mrpc seconds=60": "Finished stage mrpc in 1:00 min",
    }
    assert {text: describe_record(record(text)) for text in sentences} == sentences
    progress = record("event=progress stage=mrpc step=40 steps=100 seed=43 epoch=1.25 loss=0.5 sequences_per_s=99")
    assert render_figures(progress) == "seed 43  epoch 1.25  loss 0.500  99 seq/s"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (59.4, "59 s"), (187, "3:07 min"), (3600, "1:00 h"), (7500, "2:05 h")]
)
def test_durations_read_well(seconds: float, text: str) -> None:
    assert render_duration(seconds) == text


def test_plain_lines_go_out_as_they_come_and_remarks_beside_them() -> None:
    output, remarks = io.StringIO(), io.StringIO()
    display = PlainDisplay(output, remarks)
    display.show("bert-trainer/1 event=progress", PROGRESS)
    display.note("Started attempt 1")
    display.close()
    assert (output.getvalue(), remarks.getvalue()) == (
        "bert-trainer/1 event=progress\n",
        "Started attempt 1\n",
    )


def test_a_file_gets_a_line_per_interval_and_the_end_of_each_stage() -> None:
    output, remarks, clock = io.StringIO(), io.StringIO(), [0.0]
    display = LineDisplay(output, remarks, clock=lambda: clock[0])
    # Several times a second, as a preparation reports.
    for step in range(1, 41):
        clock[0] = step / 4
        display.show("raw", record(f"event=progress stage=prepare step={step} steps=40 remaining_s={40 - step}"))
    display.show("raw", record("event=stage_finished stage=prepare seconds=10"))
    for clock[0] in (21.0, 25.0, 31.0):
        display.show("raw", PROGRESS)
    display.show("raw", record("event=checkpoint stage=phase1 step=80 path=p"))
    display.show("UserWarning: of a child", None)
    display.note("Started attempt 2")
    assert output.getvalue().splitlines() == [
        "prepare 1/40 (2%)  39 s left",
        "prepare 40/40 (100%)",
        "Finished stage prepare in 10 s",
        "phase1 120/700 (17%)  loss 6.104  masked-LM 12.3%  151 seq/s  17,346 tok/s  2:25 min left",
        "phase1 120/700 (17%)  loss 6.104  masked-LM 12.3%  151 seq/s  17,346 tok/s  2:25 min left",
        "UserWarning: of a child",
    ]
    assert remarks.getvalue() == "Started attempt 2\n"


def test_a_reader_that_went_away_does_not_end_the_job() -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError(text)

    display = PlainDisplay(Gone(), Gone())
    for _ in range(2):
        display.show("line", None)
        display.note("remark")


def test_a_terminal_that_closed_does_not_end_the_job() -> None:
    class Closed(io.StringIO):
        def isatty(self) -> bool:
            return True

        def write(self, text: str) -> int:
            raise OSError(errno.EIO, text)

        def flush(self) -> None:
            raise OSError(errno.EIO, "flush")

    display = BarDisplay(Console(file=cast(TextIO, Terminal(Closed())), force_terminal=True))
    display.show("line", None)
    display.note("remark")
    display.close()


REPORT = {
    "ranks": 2,
    "stages": [
        {"name": "prepare", "kind": "prepare", "seconds": 12},
        {
            "name": "phase1",
            "kind": "pretrain",
            "steps": 700,
            "lossFirst": 9.01,
            "lossLast": 5.123,
            "samplesPerSecond": 151.2,
            "realTokensPerSecond": 17345.6,
            "seconds": 187,
        },
    ],
    "heldOut": {
        "maskedLmAccuracyBefore": 0.0002,
        "maskedLmAccuracy": 0.231,
        "unigramBaseline": 0.048,
        "nextSentenceAccuracy": 0.66,
        "nextSentenceBaseline": 0.52,
    },
    "checkpoint": "/out/checkpoints/phase2-60",
    "export": "/out/export/onnx",
    "exports": {"export": "/out/export/huggingface", "graph": "/out/export/onnx"},
    "seconds": 260,
    "cpuSeconds": 500,
}


def test_the_summary_shows_stages_accuracy_and_paths(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(json.dumps(REPORT))
    for name in ("loss.png", "report.html"):
        (tmp_path / name).write_bytes(b"")
    console, stream = terminal()
    print_summary(console, read_report(tmp_path), tmp_path)
    shown = " ".join(stream.getvalue().split())
    for words in (
        "phase1 700 9.010 5.123 151.2 17,346 3:07 min",
        "held-out documents: 23.1% (untrained 0.0%); most frequent token alone 4.8%",
        "Next-sentence accuracy: 66.0%; more frequent answer alone 52.0%",
        "4:20 min with 2 ranks, 8:20 min of processor time",
        f"output {tmp_path}",
        "checkpoint /out/checkpoints/phase2-60",
        "model /out/export/huggingface",
        "model /out/export/onnx",
        f"loss curve {tmp_path}/loss.png",
        f"report {tmp_path}/report.html",
    ):
        assert words in shown


VERDICT = "no better than the most frequent token: 8.9% of 2500 masked tokens; next: another learningRate"


def test_a_model_that_hardly_learnt_is_told_so_in_the_summary_and_as_a_sentence() -> None:
    console, stream = terminal()
    stages = [{**REPORT["stages"][0], "evaluations": [{"step": 60, "maskedLmAccuracy": 0.089}], "verdict": VERDICT}]
    print_summary(
        console, {**REPORT, "stages": stages, "heldOut": {**REPORT["heldOut"], "verdict": VERDICT}}, Path("o")
    )
    assert stream.getvalue().count(f"\nN{VERDICT[1:]}\n") == 2
    evaluated = record(f'event=evaluated stage=evaluate when=after mlm_accuracy=0.089 verdict="{VERDICT}"')
    assert describe_record(evaluated) == f"Evaluation after training: masked-LM accuracy 8.9%; {VERDICT}"


MASKS = [
    {
        "before": "The file is",
        "after": "at the end of the block.",
        "truth": "closed",
        "guesses": [{"token": "[red]", "probability": 0.306}, {"token": "read", "probability": 0.1}],
    },
    "not a mask",
]


def test_the_last_lines_are_filled_masks_and_what_to_do_next(tmp_path: Path) -> None:
    console, stream = terminal()
    job_file = Path.cwd() / "job.yaml"
    steps = render_next_steps(sample_job(), job_file, tmp_path)
    print_summary(console, {**REPORT, "filledMasks": MASKS}, tmp_path, steps)
    shown = stream.getvalue().splitlines()
    at = shown.index("  The file is [MASK] at the end of the block.")
    # What the model says is no markup.
    assert shown[at + 1] == '    "[red]" 31%, read 10%; the true word: closed'
    assert "What to do next:" in shown[at + 2 :]
    last = "\n".join(shown[-8:])
    for words in ("plot ", "a copy of job.yaml with another text:", "fetch glue-mrpc", "--model", "kubectl apply"):
        assert words in last


def test_who_brings_a_text_of_their_own_is_told_nothing(tmp_path: Path) -> None:
    assert render_next_steps(sample_job(own_text), tmp_path / "job.yaml", tmp_path) == []


def own_text(spec: dict[str, Any]) -> None:
    spec["stages"][0]["prepare"]["text"] = "my-texts"


RESULT = {
    "task": "mrpc",
    "metric": "f1",
    "metrics": {"accuracy": 0.8424, "f1": 0.889},
    "majority": {"f1": 0.8122, "accuracy": 0.6838},
    "mean": 0.8712,
    "std": 0.0123,
    "runs": 5,
    "bestSeed": 44,
    "bestRank": None,
    "bestEpoch": 2.5,
}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param(
            {},
            "f1 0.889, accuracy 0.842 (best of 5 runs: mean 0.871, standard deviation 0.012; seed 44, epoch 2.5); "
            "majority: f1 0.812, accuracy 0.684",
            id="several runs",
        ),
        pytest.param(
            {"runs": 1, "mean": None, "std": None, "majority": None, "bestRank": 1},
            "mrpc: f1 0.889, accuracy 0.842 (seed 44, rank 1, epoch 2.5)",
            id="one run",
        ),
        pytest.param(
            {"bestSeed": "x", "bestEpoch": [], "runs": {}}, "mrpc: f1 0.889, accuracy 0.842;", id="half of it"
        ),
    ],
)
def test_the_summary_shows_what_fine_tuning_came_to(tmp_path: Path, changes: dict[str, object], words: str) -> None:
    console, stream = terminal()
    stage = {"name": "mrpc", "kind": "finetune", "steps": 345, "result": {**RESULT, **changes}}
    print_summary(console, {"stages": [stage]}, tmp_path)
    assert words in " ".join(stream.getvalue().split())


@pytest.mark.parametrize("result", [None, 3, {}, {"metrics": []}, {"metrics": {"f1": "high"}, "metric": ["f1"]}])
def test_a_result_that_says_nothing_is_left_out_of_the_summary(tmp_path: Path, result: object) -> None:
    console, stream = terminal()
    print_summary(console, {"stages": [{"name": "mrpc", "result": result}]}, tmp_path)
    assert "mrpc:" not in stream.getvalue()


@pytest.mark.parametrize(
    "content", ["", "[]", "{", '{"stages": null, "heldOut": 3, "seconds": "x", "exports": {"a": 1, "b": null}}']
)
def test_a_report_that_says_nothing_leaves_the_path(tmp_path: Path, content: str) -> None:
    (tmp_path / "report.json").write_text(content)
    console, stream = terminal()
    print_summary(console, read_report(tmp_path), tmp_path)
    assert str(tmp_path) in stream.getvalue().replace("\n", "")


def failed(reason: str, *, signal: int | None = None, message: str = "training, attempt 2: boom") -> JobOutcome:
    condition = Condition(
        type="Failed",
        status="True",
        reason=reason,
        message=message,
        last_transition_time="2025-01-01T00:00:00Z",
    )
    failure = Failure(run="training", attempt=2, kind="Application", reason="Exited", signal=signal, finished_at="x")
    status = JobStatus(phase="Failed", attempt=2, run="training", conditions=(condition,), failures=(failure,))
    return JobOutcome(status=status)


def closing(outcome: JobOutcome, if_exists: str = "Fail", job_file: str | None = "job.yaml") -> list[str]:
    job = sample_job(lambda spec: spec["output"].update(ifExists=if_exists))
    return describe_outcome(job, outcome, "bert-operator local job.yaml", job_file)


def test_every_outcome_has_its_exit_code() -> None:
    assert exit_code(JobOutcome(status=JobStatus(phase="Succeeded"))) == 0
    assert exit_code(failed("ApplicationRetriesSpent")) == 1
    assert exit_code(failed("InvalidInput")) == 2
    assert exit_code(JobOutcome(status=JobStatus(phase="Stopped"), stop_signal=2)) == 130
    assert exit_code(JobOutcome(status=JobStatus(phase="Stopped"), stop_signal=15)) == 143


@pytest.mark.parametrize(
    ("if_exists", "job_file", "words"),
    [
        ("Resume", "job.yaml", "bert-operator local job.yaml"),
        ("Fail", "job.yaml", "set spec.output.ifExists: Resume in job.yaml, then: bert-operator local job.yaml"),
        ("New", None, "set spec.output.ifExists: Resume, then: bert-operator local job.yaml"),
    ],
)
def test_a_stopped_job_reports_what_is_saved_and_the_command_that_resumes(
    if_exists: str, job_file: str | None, words: str
) -> None:
    stopped = JobOutcome(status=JobStatus(phase="Stopped", run="training"), checkpoint="phase1, step 80")
    first, second = closing(stopped, if_exists, job_file)
    assert first == "Stopped with a checkpoint at phase1, step 80."
    assert second.startswith("To go on from phase1, step 80")
    assert second.endswith(words)


HOSTILE = "a\x1b[2Jb\x9b2Jc\u202ed\u2066e\u200bf\ufeffg\x07"


def test_nothing_that_a_program_says_controls_the_terminal(tmp_path: Path) -> None:
    said = record(f"event=failed message={json.dumps(HOSTILE)}")
    output, remarks = io.StringIO(), io.StringIO()
    display = LineDisplay(output, remarks)
    console, stream = terminal()
    bars = BarDisplay(console)
    for each in (display, bars):
        each.show(HOSTILE, None)
        each.show("", said)
        each.end_attempt("")
        each.note(HOSTILE)
    bars.close()
    (tmp_path / "report.json").write_text(json.dumps({"stages": [{"name": HOSTILE}], "exports": {"a": HOSTILE}}))
    summary, page = terminal()
    print_summary(summary, read_report(tmp_path), tmp_path)
    last = closing(failed("ApplicationRetriesSpent", message=HOSTILE))
    sanitized = "a?[2Jb?2Jc?d?e?f?g?"
    assert output.getvalue() == f"{sanitized}\n{sanitized}\n"
    assert remarks.getvalue() == f"{sanitized}\n"
    assert stream.getvalue().count(sanitized) == 3
    assert page.getvalue().count(sanitized.replace("?", "\ufffd")) == 2
    assert f"Failed: {sanitized}".replace("?", "\ufffd") in last


def test_each_way_to_fail_has_its_one_next_step() -> None:
    command = "bert-operator local job.yaml"
    resume = f"set spec.output.ifExists: Resume in job.yaml, then: {command}"
    hinted, saved = "training, attempt 1: no\nhint: choose another folder", "phase1, step 80"
    assert {
        "wrong": closing(failed("InvalidInput"))[1:],
        "wrong, with a hint": closing(failed("InvalidInput", message=hinted))[1:],
        "wrong behind a checkpoint": closing(replace(failed("InvalidInput"), checkpoint=saved))[1:],
        "late": closing(replace(failed("DeadlineExceeded"), checkpoint=saved), "Resume")[1:],
        "killed": closing(failed("InfrastructureRetriesSpent", signal=9))[1:],
        "crashed": closing(failed("InfrastructureRetriesSpent", signal=11), "Resume")[1:],
    } == {
        "wrong": [f"With that corrected: {command}"],
        "wrong, with a hint": [],
        "wrong behind a checkpoint": [f"With that corrected, to go on from {saved}, {resume}"],
        "late": [f"With a later spec.runPolicy.activeDeadlineSeconds, to go on from {saved}: {command}"],
        "killed": [
            "A process was killed by SIGKILL, most often for lack of memory: lower microBatchSize or slotsPerWorker.",
            f"With the cause removed, to go on, {resume}",
        ],
        "crashed": ["A process was killed by SIGSEGV.", f"With the cause removed, to go on: {command}"],
    }
    assert closing(JobOutcome(status=JobStatus(phase="Succeeded"))) == []
