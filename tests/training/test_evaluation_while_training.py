"""A stage is evaluated while it trains, at the steps that were asked for, and trains as it would without.

Inputs: the toy data set, dropout 0.1. Observed: the records, the checkpoints, the final weights. Nothing is mocked.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file

from bert_job.run_stages import Evaluation
from bert_trainer.config.checks import parse_run_config
from bert_trainer.errors import InputError
from bert_trainer.output.metrics import read_metrics
from bert_trainer.parallel.world import SingleRank
from bert_trainer.training.session import Session
from bert_trainer.training.stage_evaluation import EvaluationSchedule, accuracies_by_step, format_against_target
from in_process import progress_records, run_to_end, train
from tiny_run import (
    PREDICTIONS,
    SEQUENCE_LENGTH,
    environment,
    pretrain_stage,
    run_config,
    run_document,
    run_trainer,
    trainer_command,
    write_dataset,
)

SAMPLES = 110
STEPS = 8
# Fast enough for the toy's commonest tokens to be predicted after four steps.
SCHEDULE = {"learning_rate": 3e-2, "warmup": {"steps": 1}, "decay": "linear"}
Document = dict[str, Any]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("dataset"))


def evaluation(**fields: Any) -> Document:
    whole = {
        "max_samples": None,
        "micro_batch_size": 8,
        "max_predictions_per_sequence": PREDICTIONS,
        "shards": None,
        "data_range": None,
    }
    return {**whole, **fields}


def phase(name: str = "phase1", **changes: Any) -> Document:
    """11 rows a step: an epoch of 110 samples has 10 steps."""
    return pretrain_stage(
        name,
        **{"global_batch_size": 11, "micro_batch_size": 4, "length": {"steps": STEPS}, **SCHEDULE, **changes},
    )


def two_phases(folder: Path, dataset: Path, *, ranks: int = 1, **first: Any) -> Document:
    """The first of two phases with what a test is about; the second shows what came after it."""
    return run_document(
        folder,
        dataset,
        world={"ranks": ranks, "hosts": 1},
        seed=1,  # with which 4 steps learn a token
        stages=[phase(**first), phase("phase2", length={"steps": 4})],
        checkpoint={"every_steps": 3, "keep": 9},
        logging={"every_steps": 1, "tensorboard": False, "sample_ledger": True},
    )


def evaluated(folder: Path) -> list[dict[str, Any]]:
    return [record for record in read_metrics(folder) if record["event"] == "evaluated"]


def accuracies(folder: Path) -> list[tuple[Any, Any]]:
    return [(record["step"], record["mlm_accuracy"]) for record in evaluated(folder)]


def assert_bit_identical(one: Path, other: Path, name: str) -> None:
    for file in ("model.safetensors", "optimizer.safetensors"):
        first, second = (load_file(folder / "checkpoints" / name / file) for folder in (one, other))
        assert first.keys() == second.keys()
        assert all(torch.equal(first[key], second[key]) for key in first)


def due(total_steps: int, *, at_end: bool = False, **fields: Any) -> list[int]:
    times = EvaluationSchedule(Evaluation(**evaluation(**fields)), 11, SAMPLES, total_steps, at_end)
    steps = [step for step in range(1, total_steps + 1) if times.is_due(step)]
    assert [times.num_left(step) for step in (0, total_steps)] == [len(steps), 0]
    return steps


@pytest.mark.parametrize(
    ("fields", "steps"),
    [
        pytest.param({"every_steps": 3}, [3, 6, 9, 12], id="steps"),
        pytest.param({"every_steps": 3, "start_steps": 5}, [5, 8, 11], id="steps from the fifth on"),
        pytest.param({"every_steps": 3, "start_steps": 1}, [1, 4, 7, 10], id="a start before the interval"),
        pytest.param({"every_steps": 13}, [], id="longer than the stage"),
        pytest.param({"every_samples": 30}, [3, 6, 9, 11], id="33, 66, 99 and 121 samples"),
        pytest.param({"every_samples": 5}, list(range(1, 13)), id="less than a batch"),
        pytest.param({"every_samples": 22, "start_samples": 55}, [5, 7, 9, 11], id="MLPerf's rule"),
        pytest.param({"every_epochs": 0.1}, list(range(1, 13)), id="a tenth of an epoch is one step exactly"),
        pytest.param({"every_epochs": 0.3, "start_epochs": 0.5}, [5, 8, 11], id="epochs"),
    ],
)
def test_evaluations_are_due_at_exactly_these_steps(fields: Document, steps: list[int]) -> None:
    assert due(12, **fields) == steps
    assert due(12, at_end=True, **fields) == sorted({*steps, 12})


@pytest.fixture(scope="module")
def plain_run(tmp_path_factory: pytest.TempPathFactory, dataset: Path) -> Path:
    folder = tmp_path_factory.mktemp("plain")
    train(parse_run_config(two_phases(folder, dataset)))
    return folder


@pytest.fixture(scope="module")
def evaluated_run(tmp_path_factory: pytest.TempPathFactory, dataset: Path) -> Path:
    folder = tmp_path_factory.mktemp("evaluated")
    train(parse_run_config(two_phases(folder, dataset, evaluation=evaluation(every_steps=2))))
    return folder


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_training_is_bit_identical_with_and_without_in_half_precision(
    tmp_path: Path, dataset: Path, precision: str
) -> None:
    """Converted weights are kept from pass to pass while a model is evaluated; fp16 has its loss scale."""
    for name, changes in (("plain", {}), ("evaluated", {"evaluation": evaluation(every_steps=1)})):
        document = two_phases(tmp_path / name, dataset, **changes)
        train(parse_run_config({**document, "precision": precision}))
    for name in (f"phase1-{STEPS:08d}", "phase2-00000004"):
        assert_bit_identical(tmp_path / "plain", tmp_path / "evaluated", name)
        positions = [
            json.loads((tmp_path / run / "checkpoints" / name / "manifest.json").read_text())["position"]
            for run in ("plain", "evaluated")
        ]
        assert positions[0]["loss_scale"] == positions[1]["loss_scale"]
        assert positions[0]["finite_steps"] == positions[1]["finite_steps"]
    assert len(evaluated(tmp_path / "evaluated")) == STEPS


def test_training_is_bit_identical_with_and_without(plain_run: Path, evaluated_run: Path) -> None:
    for name in (f"phase1-{STEPS:08d}", "phase2-00000004"):
        assert_bit_identical(plain_run, evaluated_run, name)
    assert (plain_run / "ledger.jsonl").read_text() == (evaluated_run / "ledger.jsonl").read_text()
    assert not evaluated(plain_run)


def test_each_evaluation_is_a_record_of_its_step(evaluated_run: Path) -> None:
    found = evaluated(evaluated_run)
    assert [(record["stage"], record["when"], record["step"]) for record in found] == [
        ("phase1", "during", step) for step in (2, 4, 6, 8)
    ]
    assert [record["trained_samples"] for record in found] == [22, 44, 66, 88]
    assert all((record["steps"], record["samples"]) == (STEPS, 24) for record in found)
    assert all(0 <= record["mlm_accuracy"] <= 1 and record["mlm_loss"] > 0 for record in found)


def test_the_last_evaluation_is_what_an_evaluate_stage_finds(tmp_path: Path, dataset: Path) -> None:
    after = {"kind": "evaluate", "sequence_length": SEQUENCE_LENGTH, "max_predictions_per_sequence": PREDICTIONS}
    stages = [phase(evaluation=evaluation(every_steps=STEPS, micro_batch_size=5)), after]
    train(run_config(tmp_path, dataset, stages=stages))
    during, _, last = sorted(evaluated(tmp_path), key=lambda record: record["when"] != "during")
    assert (during["when"], last["when"]) == ("during", "after")
    assert (during["mlm_accuracy"], during["nsp_accuracy"]) == (last["mlm_accuracy"], last["nsp_accuracy"])


def test_throughput_is_that_of_training_alone(tmp_path: Path, dataset: Path) -> None:
    config = parse_run_config(two_phases(tmp_path, dataset, evaluation=evaluation(every_steps=1)))
    train(config)
    trained = [record for record in progress_records(tmp_path) if record["stage"] == "phase1"]
    measured_s = sum(record["seconds"] for record in evaluated(tmp_path))
    interval_s = sum(record["interval_s"] for record in trained)
    # The last evaluation comes after the last report.
    assert measured_s - evaluated(tmp_path)[-1]["seconds"] + interval_s <= trained[-1]["elapsed_s"] + 1e-6
    assert trained[1]["remaining_s"] > (STEPS - 2) * evaluated(tmp_path)[0]["seconds"]


def forget_after(folder: Path, name: str) -> None:
    """Make a finished run's folder what it was when ``name`` was its newest checkpoint; records stay."""
    (folder / "run.json").unlink()
    for checkpoint in (folder / "checkpoints").iterdir():
        if checkpoint.name > name:
            shutil.rmtree(checkpoint)


@pytest.mark.parametrize("newest", ["phase1-00000003", "phase1-00000006"])
def test_a_resumed_run_reports_each_evaluation_once(
    tmp_path: Path, plain_run: Path, evaluated_run: Path, dataset: Path, newest: str
) -> None:
    folder = tmp_path / "resumed"
    shutil.copytree(evaluated_run, folder)
    forget_after(folder, newest)
    # Killed after the evaluation of step 6, and before that of step 8.
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    last = next(at for at, line in enumerate(lines) if '"evaluated"' in line and '"step": 6' in line)
    (folder / "metrics.jsonl").write_text("".join(lines[: last + 1]) + lines[last][:40])
    session = Session.open(
        parse_run_config(two_phases(folder, dataset, evaluation=evaluation(every_steps=2))), SingleRank(), attempt=2
    )
    run_to_end(session)
    assert accuracies(folder) == accuracies(evaluated_run)
    assert [record["attempt"] for record in evaluated(folder)] == [1, 1, 1, 2]
    assert_bit_identical(plain_run, folder, "phase2-00000004")


def test_evaluate_stages_of_a_resumed_run_are_reported_once_as_well(tmp_path: Path, dataset: Path) -> None:
    shape = {"sequence_length": SEQUENCE_LENGTH, "max_predictions_per_sequence": PREDICTIONS}
    stages = [phase(), {"kind": "evaluate", **shape}, phase("phase2", length={"steps": 2})]
    config = run_config(tmp_path, dataset, stages=stages)
    train(config)
    once = evaluated(tmp_path)
    assert [record["when"] for record in once] == ["before", "after"]
    shutil.rmtree(tmp_path / "checkpoints" / "phase2-00000002")
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write("5\n[]\n")
    run_to_end(Session.open(config, SingleRank(), attempt=2))
    assert evaluated(tmp_path) == once


@pytest.mark.long
@pytest.mark.horovod
@pytest.mark.timeout(240)
def test_a_rank_killed_between_two_evaluations_leaves_no_trace(tmp_path: Path, dataset: Path) -> None:
    settings: dict[str, Any] = {"ranks": 2, "evaluation": evaluation(every_steps=2)}
    whole = run_trainer(two_phases(tmp_path / "whole", dataset, **settings), tmp_path / "whole.json", 200)
    assert whole.returncode == 0, whole.stderr
    document = two_phases(tmp_path / "killed", dataset, **settings)
    command = trainer_command(document, tmp_path / "killed.json")
    options: dict[str, Any] = {"env": environment(), "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, start_new_session=True, **options) as process:
        try:
            # Behind the checkpoint of step 3 and the evaluation of step 4.
            assert any(" event=evaluated stage=phase1 when=during step=4 " in line for line in process.stdout or ())
            children = psutil.Process(process.pid).children(recursive=True)
            [child for child in children if "--config" in child.cmdline()][-1].kill()
            process.communicate()
            assert process.returncode != 0
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    known = len(evaluated(tmp_path / "killed"))
    again = run_trainer(document, tmp_path / "killed.json", 200, BERT_ATTEMPT="2")
    assert again.returncode == 0, again.stderr
    assert 'message="Resumed, bit-identical"' in again.stdout
    assert accuracies(tmp_path / "killed") == accuracies(tmp_path / "whole")
    assert again.stdout.count(" event=evaluated ") == 4 - known
    # Who reads the end of the log alone, as the operator does, has every stage's result.
    (result,) = [line for line in again.stdout.splitlines() if " event=result " in line]
    assert " stage=phase1 when=during step=8 " in result
    assert_bit_identical(tmp_path / "whole", tmp_path / "killed", "phase2-00000004")


def test_a_target_ends_the_stage_at_the_evaluation_that_meets_it(
    tmp_path: Path, plain_run: Path, dataset: Path
) -> None:
    """The toy's accuracy after 4 steps is above 1 %, as any evaluation with one right token is."""
    settings = {"evaluation": evaluation(every_steps=4), "target": {"masked_lm_accuracy": 0.001}}
    document = two_phases(tmp_path, dataset, **settings)
    document["logging"]["every_steps"] = 3
    train(parse_run_config(document))
    (record,) = evaluated(tmp_path)
    assert (record["step"], record["target"], record["target_met"]) == (4, 0.001, "true")
    assert record["message"] == f"target met at step 4: {record['mlm_accuracy']:.4f} >= 0.001"
    finished = [entry for entry in read_metrics(tmp_path) if entry["event"] == "stage_finished"]
    assert [entry.get("message") for entry in finished] == [record["message"], None]
    # The interval that the end cut short is reported, and the checkpoint says by itself that the stage is over.
    assert [entry["step"] for entry in progress_records(tmp_path)] == [3, 4, 3, 4]
    manifest = json.loads((tmp_path / "checkpoints" / "phase1-00000004" / "manifest.json").read_text())
    assert (manifest["position"]["step"], manifest["position"]["total_steps"]) == (4, 4)
    known = json.loads((plain_run / "checkpoints" / "phase1-00000003" / "manifest.json").read_text())
    assert manifest["position"].keys() == known["position"].keys()
    # The next stage reads its own order from its beginning.
    ledger = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    wanted = [json.loads(line) for line in (plain_run / "ledger.jsonl").read_text().splitlines()]
    assert [row for row in ledger if row["stage"] == "phase2"] == [row for row in wanted if row["stage"] == "phase2"]


@pytest.mark.parametrize("newest", ["phase1-00000003", "phase1-00000004"])
def test_a_target_that_was_met_stays_met(tmp_path: Path, dataset: Path, newest: str) -> None:
    """Resumed before the step that met it, without its checkpoint, or after it."""
    settings = {"evaluation": evaluation(every_steps=4), "target": {"masked_lm_accuracy": 0.001}}
    config = parse_run_config(two_phases(tmp_path, dataset, **settings))
    train(config)
    once, first = evaluated(tmp_path), load_file(tmp_path / "checkpoints" / "phase2-00000004" / "model.safetensors")
    forget_after(tmp_path, newest)
    run_to_end(Session.open(config, SingleRank(), attempt=2))
    assert evaluated(tmp_path) == once
    again = load_file(tmp_path / "checkpoints" / "phase2-00000004" / "model.safetensors")
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert [entry["step"] for entry in progress_records(tmp_path) if entry["stage"] == "phase1"][-1] == 4


def test_a_target_that_is_not_met_says_so_at_the_stage_s_length(tmp_path: Path, dataset: Path) -> None:
    """The last step is evaluated although no interval ends there."""
    settings = {"evaluation": evaluation(every_steps=3), "target": {"masked_lm_accuracy": 1.0}}
    train(parse_run_config(two_phases(tmp_path, dataset, **settings)))
    found = evaluated(tmp_path)
    assert [(record["step"], record["target_met"], "message" in record) for record in found] == [
        (3, "false", False),
        (6, "false", False),
        (8, "false", True),
    ]
    step, best = max(accuracies(tmp_path), key=lambda pair: (pair[1], -pair[0]))
    assert found[-1]["message"] == f"target not met: best {best:.4f} at step {step} of 8, wanted 1"
    assert [entry["stage"] for entry in read_metrics(tmp_path) if entry["event"] == "stage_finished"] == [
        "phase1",
        "phase2",
    ]


@pytest.mark.parametrize(
    ("accuracy", "wanted", "text"),
    [
        (0.7012, 0.72, "0.7012"),
        (0.71998, 0.72, "0.71998"),
        (0.7199999, 0.72, "0.7199999"),
        (0.72, 0.72, "0.7200"),
        (0.72341, 0.72341, "0.72341"),
        (0.99997, 1.0, "0.99997"),
        (0.0, 1e-6, "0.0000"),
        (1e-6, 1e-6, "0.000001"),
        (0.1 + 0.2, 0.3, "0.3000"),
        (0.3, 0.1 + 0.2, "0.3000"),
    ],
)
def test_an_accuracy_in_words_lies_on_its_own_side_of_the_target(accuracy: float, wanted: float, text: str) -> None:
    assert format_against_target(accuracy, wanted) == text
    assert (float(text) >= wanted) == (accuracy >= wanted)


def test_it_measures_the_last_tenth_of_the_training_shards(tmp_path: Path, dataset: Path) -> None:
    """110 samples: 99 to train on, 11 to measure on; held-out files are not needed."""
    own = shutil.copytree(dataset, tmp_path / "data")
    (own / f"seq_len_{SEQUENCE_LENGTH}_max_pred_{PREDICTIONS}" / "held_out_0000.hdf5").unlink()
    last_tenth = {"start": 0.9, "end": 1.0}
    shape = {"sequence_length": SEQUENCE_LENGTH, "max_predictions_per_sequence": PREDICTIONS}
    first = phase(
        data_range={"start": 0.0, "end": 0.9},
        evaluation=evaluation(every_steps=4, data_range=last_tenth, max_samples=7),
    )
    stages = [first, {"kind": "evaluate", **shape, "data_range": last_tenth}]
    train(
        run_config(
            tmp_path / "out",
            own,
            stages=stages,
            logging={"every_steps": 1, "tensorboard": False, "sample_ledger": True},
        )
    )
    assert [(record["when"], record["samples"]) for record in evaluated(tmp_path / "out")] == [
        ("before", 11),
        ("during", 7),
        ("during", 7),
        ("after", 11),
    ]
    ledger = [json.loads(line) for line in (tmp_path / "out" / "ledger.jsonl").read_text().splitlines()]
    assert max(number for row in ledger for number in row["samples"]) <= 98


def test_shards_to_measure_on_that_are_not_there_are_refused_before_the_first_step(
    tmp_path: Path, dataset: Path
) -> None:
    config = run_config(tmp_path / "out", dataset, stages=[phase(evaluation=evaluation(every_steps=2, shards="gone"))])
    with pytest.raises(InputError, match="gone: no such folder of shards"):
        Session.open(config, SingleRank(), attempt=1)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"target": {"masked_lm_accuracy": 0.5}}, "stages.0.target: got a target without evaluation"),
        (
            {"evaluation": evaluation()},
            "stages.0.evaluation: required: exactly one of everySteps, everySamples, everyEpochs",
        ),
        ({"evaluation": evaluation(every_steps=1, start_samples=9)}, "got startSamples with everySteps"),
        (
            {"evaluation": evaluation(every_steps=1, data_range={"start": 0.5, "end": 0.5})},
            "stages.0.evaluation.data_range: got 0.5 to 0.5",
        ),
    ],
)
def test_what_cannot_work_is_refused_by_its_path(
    tmp_path: Path, dataset: Path, changes: Document, problem: str
) -> None:
    with pytest.raises(InputError) as caught:
        run_config(tmp_path, dataset, stages=[phase(**changes)])
    assert problem in str(caught.value)


def test_damaged_records_do_not_count() -> None:
    good = {"event": "evaluated", "stage": "phase1", "step": 2, "mlm_accuracy": 0.25}
    damaged: list[Any] = [
        {**good, "step": "4"},
        {**good, "step": True},
        {**good, "step": 6, "mlm_accuracy": 7},
        {**good, "step": 8, "mlm_accuracy": None},
        {**good, "step": 10, "stage": "phase2"},
        {"event": "progress", "stage": "phase1", "step": 12, "mlm_accuracy": 0.5},
    ]
    assert accuracies_by_step([*damaged, good], "phase1") == {2: 0.25}


def test_a_stage_s_own_checkpoint_settings_replace_the_run_s(tmp_path: Path, dataset: Path) -> None:
    def own(**fields: Any) -> Document:
        nothing = {"every_steps": None, "every_seconds": None, "every_samples": None}
        return {**nothing, "min_samples_to_start": 0, "periodic": True, **fields}

    stages = [
        phase(),
        phase("phase2", checkpoint=own(every_steps=3, periodic=False)),
        phase("phase3", checkpoint=own(every_samples=40)),
    ]
    train(run_config(tmp_path, dataset, stages=stages, checkpoint={"every_steps": 3, "keep": 99}))
    saved = [
        f"{record['stage']}-{record['step']}" for record in read_metrics(tmp_path) if record["event"] == "checkpoint"
    ]
    assert saved == ["phase1-3", "phase1-6", "phase1-8", "phase2-8", "phase3-4", "phase3-8"]


def test_a_stage_s_checkpoint_settings_may_change_between_attempts(tmp_path: Path, dataset: Path) -> None:
    train(run_config(tmp_path, dataset, stages=[phase()]))
    other = {
        "every_steps": 1,
        "every_seconds": None,
        "every_samples": None,
        "min_samples_to_start": 0,
        "periodic": True,
    }
    Session.open(run_config(tmp_path, dataset, stages=[phase(checkpoint=other)]), SingleRank(), attempt=2).close()
    changed = run_config(tmp_path, dataset, stages=[phase(checkpoint=other, evaluation=evaluation(every_steps=2))])
    with pytest.raises(InputError, match=r"stages\.0\.evaluation"):
        Session.open(changed, SingleRank(), attempt=3)
