"""What the operator renders of fine-tuning, the trainer reads; and both sides know the same tasks."""

from __future__ import annotations

import io
import json
import typing
from pathlib import Path

import pytest
from rich.console import Console

from bert_job import run_stages as trainer
from bert_job.console.summary import print_summary
from bert_job.finetuning import EarlyStoppingSpec, TableColumnsSpec
from bert_job.optimization import WarmupSpec
from bert_job.stages import STAGE_KINDS
from bert_job.tasks import SPAN_TASKS, TASK_METRICS, TaskName
from bert_operator.render.run_config import render_run_config
from bert_trainer.config import checks
from bert_trainer.output.report import make_report
from bert_trainer.tasks.catalog import TASKS
from finetune_cases import MODEL, MRPC, OWN, SPANS, alone, data, finetune
from job_changes import Change, both, put
from rule_cases import FINETUNE_CASES
from sample_job import sample_job

FINETUNE = 3
"""Position of the stage in the sample job."""


def rendered(change: Change, position: int = FINETUNE, ranks: int = 2) -> dict[str, typing.Any]:
    document = render_run_config(
        sample_job(change), uid="u", ranks=ranks, hosts=1, output_folder="/out", data_base="/mnt/data"
    )
    stage: dict[str, typing.Any] = document["stages"][position]
    return stage


def read(change: Change, position: int = FINETUNE) -> trainer.FinetuneStage:
    document = render_run_config(
        sample_job(change), uid="u", ranks=2, hosts=1, output_folder="/out", data_base="/mnt/data"
    )
    stage = checks.parse_run_config(json.loads(json.dumps(document))).stages[position]
    assert isinstance(stage, trainer.FinetuneStage)
    return stage


def test_a_stage_is_rendered_with_every_default() -> None:
    assert rendered(finetune()) == {
        "kind": "finetune",
        "name": "task",
        "task": "mrpc",
        "data": {
            "folder": "/mnt/data/glue/MRPC",
            "train": None,
            "validation": None,
            "test": None,
            "format": "auto",
            "columns": dict.fromkeys(TableColumnsSpec.model_fields),
            "labels": [],
        },
        "start_from": "pretrained",
        "lower_case": None,
        "max_unknown_share": 0.1,
        "sequence_length": 128,
        "doc_stride": 128,
        "max_query_length": 64,
        "max_answer_length": 30,
        "global_batch_size": 32,
        "micro_batch_size": 32,
        "epochs": 3.0,
        "learning_rate": 2e-5,
        "warmup": {"steps": None, "proportion": 0.1},
        "decay": "linear",
        "after_warmup": "continuous",
        "learning_rate_scaling": "none",
        "optimizer": {
            "name": "adamw",
            "beta1": 0.9,
            "beta2": 0.999,
            "epsilon": 1e-8,
            "weight_decay": 0.01,
            "bias_correction": True,
            "max_gradient_norm": 1.0,
            "partitioning": "none",
        },
        "head_dropout": None,
        "seeds": 1,
        "run_seeds": [42],
        "synchronize_gradients": True,
        "evaluate_every_epochs": 1.0,
        "metric": None,
        "early_stopping": None,
    }


def test_the_trainer_reads_what_a_job_sets() -> None:
    columns = {"text": "a", "textPair": "b", "label": "c", "id": "d"}
    change = both(
        finetune(
            OWN,
            data={
                "train": "/abs/a.txt",
                "validation": "b.csv",
                "test": "c.csv",
                "format": "tsv",
                "columns": columns,
                "labels": ["no", "yes"],
            },
            startFrom="random",
            lowerCase=False,
            sequenceLength=64,
            globalBatchSize=16,
            microBatchSize=4,
            epochs=0.5,
            warmup={"steps": 500},
            decay="constant",
            afterWarmup="published",
            learningRateScaling="sqrtRanks",
            optimizer={
                "name": "lamb",
                "beta1": 0.8,
                "epsilon": 1e-6,
                "weightDecay": 3e-7,
                "maxGradientNorm": 0,
                "biasCorrection": False,
            },  # fmt: skip
            headDropout=0,
            seeds=3,
            synchronizeGradients=False,
            evaluateEveryEpochs=0.25,
            metric="f1",
            earlyStopping={"patience": 2, "minImprovement": 0.01},
        ),
        put("seed", value=7),
        put("optimizer", value={"partitioning": "zero1"}),
    )
    assert read(change) == trainer.FinetuneStage(
        name="task",
        task="classification",
        data=trainer.TaskData(
            train="/abs/a.txt",
            validation="/mnt/data/b.csv",
            test="/mnt/data/c.csv",
            format="tsv",
            columns=TableColumnsSpec(text="a", text_pair="b", label="c", id="d"),
            labels=("no", "yes"),
        ),
        start_from="random",
        lower_case=False,
        sequence_length=64,
        global_batch_size=16,
        micro_batch_size=4,
        epochs=0.5,
        learning_rate=2e-5,
        warmup=WarmupSpec(steps=500),
        decay="constant",
        after_warmup="published",
        learning_rate_scaling="sqrtRanks",
        optimizer=trainer.FinetuneOptimizer(
            name="lamb",
            beta1=0.8,
            beta2=0.999,
            epsilon=1e-6,
            weight_decay=3e-7,
            bias_correction=False,
            max_gradient_norm=0.0,
            # A model of its own on every rank.
            partitioning="none",
        ),
        head_dropout=0.0,
        seeds=3,
        run_seeds=(7, 8, 9),
        synchronize_gradients=False,
        evaluate_every_epochs=0.25,
        metric="f1",
        early_stopping=EarlyStoppingSpec(patience=2, min_improvement=0.01),
    )


def test_the_optimizer_s_state_is_partitioned_as_the_job_s() -> None:
    change = both(finetune(), put("optimizer", value={"name": "lamb", "beta1": 0.5, "partitioning": "zero1"}))
    optimizer = read(change).optimizer
    assert (optimizer.name, optimizer.beta1, optimizer.partitioning) == ("adamw", 0.9, "zero1")


@pytest.mark.parametrize(
    ("base", "fields", "length", "micro_batch_size"),
    [
        pytest.param(MRPC, {}, 128, 32, id="sentences"),
        pytest.param(SPANS, {}, 384, 10, id="paragraphs"),
        pytest.param(SPANS, {"sequenceLength": 256}, 256, 16, id="a length of one's own"),
        pytest.param(MRPC, {"globalBatchSize": 8}, 128, 8, id="a batch smaller than a pass"),
    ],
)
def test_rows_and_passes_have_defaults_that_no_rank_changes(
    base: dict[str, object], fields: dict[str, object], length: int, micro_batch_size: int
) -> None:
    for ranks in (1, 2):
        stage = rendered(finetune(base, **fields), ranks=ranks)
        assert (stage["sequence_length"], stage["micro_batch_size"]) == (length, micro_batch_size)


@pytest.mark.parametrize(("base", "expected"), [(MRPC, 100), (SPANS, 100), ({**MRPC, "sequenceLength": 64}, 64)])
def test_rows_are_no_longer_than_the_model_has_positions_for(base: dict[str, object], expected: int) -> None:
    short = put("stages", 1, "pretrain", "sequenceLength", value=64)
    stage = rendered(both(put("model", "maxPositionEmbeddings", value=100), short, finetune(base)))
    assert stage["sequence_length"] == expected


@pytest.mark.parametrize("case", FINETUNE_CASES)
def test_every_job_that_keeps_the_rules_loads_in_the_trainer(case: str) -> None:
    job = sample_job(FINETUNE_CASES[case].keeps)
    document = render_run_config(job, uid="u", ranks=2, hosts=1, output_folder="/out")
    assert checks.parse_run_config(json.loads(json.dumps(document))).job.name == "demo"


def test_fine_tuning_alone_starts_from_a_checkpoint_and_its_vocabulary() -> None:
    document = render_run_config(
        sample_job(alone(MODEL)), uid="u", ranks=1, hosts=1, output_folder="/out", data_base="/mnt"
    )
    assert [stage["kind"] for stage in document["stages"]] == ["finetune", "export"]
    assert document["initial_checkpoint"] == {
        "path": "/mnt/bert-base-uncased",
        "format": "huggingface",
        "load": "weights",
    }
    # The trainer takes the vocabulary beside the weights where the job names none.
    assert document["dataset"]["vocabulary_file"] is None


def test_the_summary_reads_what_the_trainer_s_report_says(tmp_path: Path) -> None:
    document = render_run_config(sample_job(finetune()), uid="u", ranks=2, hosts=1, output_folder=str(tmp_path))
    found = {"f1": 0.889, "accuracy": 0.842, "majority_f1": 0.812, "majority_accuracy": 0.684}
    spread = {"mean": 0.871, "std": 0.012, "runs": 5, "best_seed": 44, "best_rank": None, "best_epoch": 3.0}
    whose = {"attempt_uid": "u", "attempt": 1, "run_s": 9.0, "cpu_s": 9.0}
    record = {"event": "evaluated", "stage": "task", "when": "after", "metric": "f1", **found, **spread, **whose}
    report = make_report(checks.parse_run_config(document), [record], {}, ranks=2)
    stream = io.StringIO()
    print_summary(Console(file=stream, width=200), json.loads(json.dumps(report)), tmp_path)
    assert (
        "task: f1 0.889, accuracy 0.842 (best of 5 runs: mean 0.871, standard deviation 0.012; seed 44, epoch 3); "
        "majority: f1 0.812, accuracy 0.684"
    ) in stream.getvalue()


def test_every_task_is_trained_and_measured_as_it_is_listed() -> None:
    assert set(typing.get_args(TaskName)) == set(TASKS)
    assert {name: task.metrics for name, task in TASKS.items()} == dict(TASK_METRICS)
    assert set(SPAN_TASKS) == {name for name, task in TASKS.items() if task.kind == "spans"}


def test_a_stage_has_no_other_kind_beside_it() -> None:
    assert STAGE_KINDS == ("prepare", "pretrain", "evaluate", "finetune", "export")
    assert sample_job(data(OWN)).spec.stages[FINETUNE].kinds == ("finetune",)
