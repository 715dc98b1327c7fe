"""What fine-tuning found stands in the status: the deciding metric first, its baseline and spread beside it."""

from __future__ import annotations

import pytest

from bert_job.progress import parse_progress_line
from bert_operator.api.schema.status import JobStatus, StageResult
from bert_operator.state.observed import Child, Observed
from bert_operator.state.plan import plan
from bert_operator.state.results import describe_results, read_result
from finetune_cases import finetune
from sample_job import sample_job

NOW_S = 1_700_000_000.0
BEFORE = JobStatus(phase="Running", attempt=2, run="training", completed_runs=("prepare",))
SENTENCE = "task: best f1 0.889 (seed 44, epoch 3); mean 0.871, standard deviation 0.012 over 5 runs; majority 0.812"
AFTER = (
    "when=after task=mrpc metric=f1 f1=0.889 accuracy=0.842 majority_f1=0.812 majority_accuracy=0.684 mean=0.871 "
    f'std=0.012 best_seed=44 best_epoch=3 runs=5 message="{SENTENCE}"'
)


def result_of(fields: str, stage: str = "task") -> StageResult | None:
    record = parse_progress_line(f"bert-trainer/1 event=evaluated stage={stage} {fields} job=uid-1 attempt=2")
    assert record is not None
    return read_result(record)


def figures(result: StageResult | None) -> list[tuple[str, str]]:
    assert result is not None
    return [(metric.name, metric.value) for metric in result.metrics]


def test_the_end_of_a_stage_holds_the_best_run_its_baseline_and_the_spread() -> None:
    result = result_of(AFTER)
    assert figures(result) == [
        ("f1", "0.889"),
        ("accuracy", "0.842"),
        ("majority_accuracy", "0.684"),
        ("majority_f1", "0.812"),
        ("mean", "0.871"),
        ("std", "0.012"),
        ("runs", "5"),
        ("best_seed", "44"),
        ("best_epoch", "3"),
    ]
    assert result is not None
    assert (result.step, result.target_met, result.message) == (None, None, SENTENCE)


@pytest.mark.parametrize(
    ("fields", "first"),
    [
        pytest.param("when=during step=9 accuracy=0.5 f1=0.75 metric=f1", "f1", id="named"),
        pytest.param("when=during step=9 f1=0.75 accuracy=0.5", "f1", id="written first"),
        pytest.param("when=during step=9 accuracy=0.5 f1=0.75 metric=x", "accuracy", id="named wrongly"),
        pytest.param("when=during step=9 accuracy=0.5 f1=0.75 metric=pearson", "accuracy", id="not measured"),
        pytest.param("when=during step=9 accuracy=0.5 accuracy_mismatched=0.25", "accuracy", id="of two sets"),
        pytest.param("when=during step=9 mlm_accuracy=0.5 mlm_loss=2.5", "mlm_accuracy", id="of pretraining"),
    ],
)
def test_the_deciding_metric_stands_first(fields: str, first: str) -> None:
    assert figures(result_of(fields))[0][0] == first


def test_an_evaluation_while_training_names_its_run() -> None:
    fields = "when=during seed=43 rank=1 epoch=1.5 step=172 steps=1150 matthews_correlation=-0.02 accuracy=0.69"
    result = result_of(fields)
    assert result is not None
    assert result.step == 172
    assert figures(result) == [
        ("matthews_correlation", "-0.02"),
        ("accuracy", "0.69"),
        ("seed", "43"),
        ("rank", "1"),
        ("epoch", "1.5"),
    ]


@pytest.mark.parametrize("value", ["-0.01", "1.01", "nan", "1e308"])
def test_a_share_that_none_can_be_is_left_out(value: str) -> None:
    shares = " ".join(f"{name}={value}" for name in ("f1", "exact_match", "majority_f1", "accuracy_mismatched"))
    assert figures(result_of(f"when=after {shares} pearson=-1")) == [("pearson", "-1")]


@pytest.mark.parametrize("value", ["-1.01", "1.01", "inf"])
def test_a_correlation_that_none_can_be_is_left_out(value: str) -> None:
    fields = f"when=after spearman={value} majority_spearman={value} mean={value} std=-0.1 runs=-1 pearson=0.5"
    assert figures(result_of(fields)) == [("pearson", "0.5")]


def test_a_record_of_every_figure_fits_into_the_status() -> None:
    names = ("accuracy", "f1", "matthews_correlation", "pearson", "spearman", "exact_match")
    both_sets = [f"{name}{suffix}=0.5" for name in names for suffix in ("", "_mismatched")]
    everything = " ".join([*both_sets, *(f"majority_{each}" for each in both_sets)])
    assert len(figures(result_of(f"when=after {everything} mean=0.5 std=0.5 runs=2 mlm_accuracy=0.5"))) == 16


def test_the_last_message_says_what_fine_tuning_came_to() -> None:
    job, result = sample_job(finetune()), result_of(AFTER)
    assert result is not None
    done = Child(run="training", attempt=2, state="Succeeded", exit_code=0, finished_at_s=NOW_S)
    status = plan(job, Observed(status=BEFORE, children=(done,), results=(result,)), NOW_S).status
    assert (status.phase, status.message) == ("Succeeded", f"Every run of the job ended with success. {SENTENCE}.")
    assert [found.stage for found in status.results] == ["task"]


def test_a_message_without_a_task_s_metric_is_none_of_a_task() -> None:
    assert describe_results([StageResult(stage="phase1", message="x")]) == ""
