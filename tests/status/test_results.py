"""What evaluations found stands in the status: the latest of each stage, whatever the log holds besides."""

from __future__ import annotations

import pytest

from bert_job.progress import parse_progress_line
from bert_operator.api.schema.status import MAX_RESULTS, JobStatus, StageResult
from bert_operator.cluster.events import events_between
from bert_operator.cluster.log_reader import LatestRecords, read_latest_records
from bert_operator.state.observed import Child, Observed
from bert_operator.state.plan import plan
from bert_operator.state.results import add_results, describe_results, read_result
from sample_job import PHASE1, sample_job

NOW_S = 1_700_000_000.0
OURS = "job=uid-1 attempt=2"
BEFORE = JobStatus(phase="Running", attempt=2, run="training", completed_runs=("prepare",))


def line(step: int, accuracy: float, *, stage: str = "phase1", event: str = "evaluated", more: str = "") -> str:
    return (
        f"bert-trainer/1 event={event} stage={stage} when=during step={step} steps=100 mlm_accuracy={accuracy} "
        f"samples=10000 {more} {OURS}"
    ).replace("  ", " ")


def read(*lines: str, before: LatestRecords | None = None) -> LatestRecords:
    return read_latest_records("\n".join(lines), "uid-1", 2, before or LatestRecords())


def read_for(stages: tuple[str, ...], *lines: str) -> LatestRecords:
    return read_latest_records("\n".join(lines), "uid-1", 2, LatestRecords(), stages)


def short(results: tuple[StageResult, ...]) -> list[tuple[str, int | None, str]]:
    return [(result.stage, result.step, result.metrics[0].value) for result in results]


def two_phases() -> object:
    def change(spec: dict[str, object]) -> None:
        stages = spec["stages"]
        assert isinstance(stages, list)
        stages.insert(PHASE1 + 1, {**stages[PHASE1], "name": "phase2"})

    return sample_job(change)


def test_the_newest_of_each_stage_counts_and_the_newest_of_all_stands_last() -> None:
    first = read(line(4, 0.25), line(8, 0.5), line(4, 0.125, stage="phase2"))
    assert short(first.results) == [("phase1", 8, "0.5"), ("phase2", 4, "0.125")]
    # The same end of the log again, with the records of both stages in it.
    assert read(line(4, 0.25), line(8, 0.5), line(4, 0.125, stage="phase2"), before=first) == first
    # At the end of the run they are repeated, which is nothing new.
    repeated = read(line(8, 0.5, event="result"), line(4, 0.125, stage="phase2", event="result"), before=first)
    assert repeated == first
    later = read(line(12, 0.75), before=first)
    assert short(later.results) == [("phase2", 4, "0.125"), ("phase1", 12, "0.75")]


def test_the_model_before_training_has_no_result() -> None:
    untrained = f"bert-trainer/1 event=evaluated stage=evaluate when=before mlm_accuracy=0.001 {OURS}"
    trained = f"bert-trainer/1 event=evaluated stage=evaluate when=after mlm_accuracy=0.5 unigram_baseline=0.05 {OURS}"
    (result,) = read(untrained, trained).results
    assert (result.stage, result.step, result.target_met, result.message) == ("evaluate", None, None, None)
    assert [(metric.name, metric.value) for metric in result.metrics] == [
        ("mlm_accuracy", "0.5"),
        ("unigram_baseline", "0.05"),
    ]


def test_what_is_said_of_a_model_that_hardly_learnt_stands_in_its_result_and_in_the_last_message() -> None:
    verdict = "no better than the most frequent token: 8.9% of 2500 masked tokens; next: another learningRate"
    figures = "mlm_accuracy=0.089 unigram_baseline=0.083"
    (after,) = read(f'bert-trainer/1 event=evaluated stage=e when=after {figures} verdict="{verdict}" {OURS}').results
    assert after.message == verdict
    (during,) = read(line(60, 0.5, more=f'{MISSED} verdict="{verdict}"')).results
    assert during.message == f"target not met: best 0.7012 at step 60 of 100, wanted 0.72; {verdict}"
    assert describe_results([after]) == f" e: {verdict}."


def test_the_status_keeps_results_of_the_job_s_stages_over_attempts() -> None:
    job = two_phases()
    found = read(line(4, 0.25), line(8, 0.5, stage="phase2"), line(9, 0.75, stage="elsewhere"))
    running = Child(run="training", attempt=2, state="Running")
    seen = Observed(status=BEFORE, children=(running,), progress=found.progress, results=found.results)
    status = plan(job, seen, NOW_S).status  # type: ignore[arg-type]
    assert short(status.results) == [("phase1", 4, "0.25"), ("phase2", 8, "0.5")]
    # The next attempt, and an operator that has just started, know nothing of their own.
    again = plan(job, Observed(status=status, children=(running,)), NOW_S).status  # type: ignore[arg-type]
    assert again == status
    written = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    assert written["results"][1] == {
        "stage": "phase2",
        "step": 8,
        "metrics": [{"name": "mlm_accuracy", "value": "0.5"}, {"name": "samples", "value": "10000"}],
    }
    assert JobStatus.model_validate(written) == status


MET = 'target=0.72 target_met=true message="target met at step 8: 0.7213 >= 0.72"'
MISSED = 'target=0.72 target_met=false message="target not met: best 0.7012 at step 60 of 100, wanted 0.72"'


def test_what_became_of_a_target_is_an_event_and_stands_in_the_last_message() -> None:
    job, before = two_phases(), BEFORE
    told = []
    for text in (line(4, 0.5, more="target=0.72 target_met=false"), line(8, 0.7213, more=MET)):
        running = Child(run="training", attempt=2, state="Running")
        seen = Observed(status=before, children=(running,), results=read(text).results)
        after = plan(job, seen, NOW_S).status  # type: ignore[arg-type]
        told += [(event.kind, event.reason, event.message) for event in events_between(before, after)]
        before = after
    assert told == [("Normal", "TargetMet", "phase1: target met at step 8: 0.7213 >= 0.72")]
    done = Child(run="training", attempt=2, state="Succeeded", exit_code=0, finished_at_s=NOW_S)
    missed = read(line(100, 0.6, stage="phase2", more=MISSED)).results
    ended = plan(job, Observed(status=before, children=(done,), results=missed), NOW_S).status  # type: ignore[arg-type]
    assert ended.message == (
        "Every run of the job ended with success. phase1: target met at step 8: 0.7213 >= 0.72. "
        "phase2: target not met: best 0.7012 at step 60 of 100, wanted 0.72."
    )
    reasons = [(event.kind, event.reason) for event in events_between(before, ended)]
    assert ("Warning", "TargetNotMet") in reasons
    assert [(result.stage, result.target_met) for result in ended.results] == [("phase1", True), ("phase2", False)]


def test_hostile_lines_cannot_make_results_grow() -> None:
    found = LatestRecords()
    for number in range(200):
        junk = " ".join(f"k{extra}=1" for extra in range(50))
        text = line(number, 0.5, stage=f"s{number}", more=f'message="{"m" * 4000}" {junk}')
        found = read(text, before=found)
    assert len(found.results) == MAX_RESULTS
    (result,) = {len(result.message or "") for result in found.results}
    assert result == 256
    status = plan(sample_job(), Observed(status=BEFORE, results=found.results), NOW_S).status
    assert status.results == ()


def test_results_of_stages_that_the_job_has_not_push_none_out() -> None:
    invented = [line(1, 0.1, stage=f"s{number}") for number in range(59)]
    assert short(read_for(("phase1",), line(8, 0.5), *invented).results) == [("phase1", 8, "0.5")]


def test_a_name_that_is_longer_than_any_stage_s_is_no_stage_s() -> None:
    longest = "a" * 63
    found = read_for((longest,), line(4, 0.5, stage=longest), line(8, 0.25, stage=f"{longest}a"))
    assert short(found.results) == [(longest, 4, "0.5")]


@pytest.mark.parametrize("value", ["-5", "1e308", "1.0000001", "1_0", "0_1", "\u0663", '"\\u00a01"', "infinity"])
def test_what_no_accuracy_can_be_is_left_out(value: str) -> None:
    figures = f"mlm_accuracy={value} nsp_accuracy={value} unigram_baseline={value} target={value} mlm_loss=2.5"
    (result,) = read(f"bert-trainer/1 event=evaluated stage=phase1 {figures} {OURS}").results
    assert [(metric.name, metric.value) for metric in result.metrics] == [("mlm_loss", "2.5")]


def test_a_message_stays_on_its_line() -> None:
    told = line(8, 0.75, more=r'target_met=true message="met\nPhase: Failed\r\u2028Reason:\tnone"')
    (result,) = read(told).results
    assert result.message == "met Phase: Failed Reason: none"
    assert describe_results([result]) == " phase1: met Phase: Failed Reason: none."
    # As a status may have it that was written before.
    assert describe_results([result.model_copy(update={"message": "met\nPhase: Failed"})]) == (
        " phase1: met Phase: Failed."
    )


def test_what_is_no_figure_is_left_out() -> None:
    for fields in ("mlm_accuracy=nan", "mlm_accuracy=x", "", "loss=0.5"):
        record = parse_progress_line(f"bert-trainer/1 event=evaluated stage=phase1 step=4 {fields}".strip())
        assert record is not None
        assert read_result(record) is None
    record = parse_progress_line("bert-trainer/1 event=evaluated stage=phase1 mlm_accuracy=1 target_met=perhaps")
    assert record is not None
    result = read_result(record)
    assert result is not None
    assert (result.metrics[0].value, result.target_met) == ("1", None)
    assert add_results((), [result], ["phase2"]) == ()
