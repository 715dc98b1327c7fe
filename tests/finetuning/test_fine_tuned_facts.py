"""What a card states of a finetune stage follows from its settings, its record and how the run began."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bert_job.run_config import RunConfig
from bert_job.run_stages import FinetuneStage
from bert_trainer.config.checks import parse_run_config
from bert_trainer.model.task_model import Head
from bert_trainer.training.fine_tuned_facts import task_facts
from bert_trainer.training.finetuning.best import Best
from tiny_finetune import finetune_stage
from tiny_run import pretrain_stage, run_document

BEST = Best(
    task="squad",
    labels=(),
    metric="f1",
    seed=43,
    rank=0,
    epoch=1.5,
    step=9,
    metrics={"f1": 0.8, "exact_match": 0.7},
    majority={"f1": 0.1},
    train_examples=1234,
    train_rows=2000,
    validation_examples=56,
)
SQUAD = {
    "task": "squad",
    "data": {"folder": "/data/secret-volume/squad"},
    "sequence_length": 48,
    "max_query_length": 12,
    "doc_stride": 4,
}
OWN = {"train": "/data/t.csv", "validation": "/data/v.csv"}
START = {"path": "/models/secret/bert-base-cased", "format": "huggingface"}


def facts(*stages: dict[str, Any], ranks: int = 1, records: Any = (), **changes: Any) -> Any:
    """Return the facts of the last stage."""
    document = run_document(Path("/run"), Path("/data"), stages=list(stages), **changes)
    config: RunConfig = parse_run_config(document)
    stage = config.stages[-1]
    assert isinstance(stage, FinetuneStage)
    return task_facts(config.stages, stage, config.initial_checkpoint, Head("spans", 2, 0.1), BEST, records, ranks)


def test_spans_name_their_windows_and_their_scores() -> None:
    found = facts(finetune_stage(Path("task"), **SQUAD))
    assert (found.name, found.kind, found.labels) == ("squad", "spans", ())
    settings = dict(found.settings)
    assert settings["tokens between windows of a context"] == "4"
    assert settings["tokens of an answer, at most"] == "30"
    assert settings["dropout before the head"] == "0.1"
    assert found.data == [("examples to train on", "1,234 in 2,000 rows"), ("examples evaluated on", "56")]
    assert [(it.metric, it.value, it.majority) for it in found.scores] == [("f1", 0.8, 0.1), ("exact_match", 0.7, None)]


@pytest.mark.parametrize(
    ("earlier", "start_from", "initial", "expected"),
    [
        ([], "random", None, "random weights"),
        ([pretrain_stage()], "random", None, "random weights"),
        ([pretrain_stage()], "pretrained", START, "the pretraining below"),
        ([], "pretrained", START, "bert-base-cased, format huggingface"),
    ],
)
def test_it_says_what_the_encoder_began_with(earlier: list[Any], start_from: str, initial: Any, expected: str) -> None:
    stage = finetune_stage(Path("task"), start_from=start_from)
    assert facts(*earlier, stage, initial_checkpoint=initial).started_from == expected


def test_ranks_with_models_of_their_own_and_scaled_rates_are_named() -> None:
    stage = finetune_stage(Path("task"), synchronize_gradients=False, learning_rate_scaling="sqrtRanks")
    settings = dict(facts(stage, ranks=4, world={"ranks": 4, "hosts": 1}).settings)
    assert settings["rows per step"] == "11, on each of 4 ranks with a model of its own"
    assert settings["peak learning rate"] == "0.006, linear decay"


def test_the_spread_is_that_of_the_stages_own_last_record() -> None:
    def end(stage: str, when: str, mean: float) -> dict[str, Any]:
        return {"event": "evaluated", "stage": stage, "when": when, "runs": 5, "mean": mean, "std": 0.01}

    records = [
        end("rule", "after", 0.1),
        end("rule", "after", 0.2),
        end("other", "after", 0.3),
        end("rule", "during", 0.4),
    ]
    runs = facts(finetune_stage(Path("task")), records=records).runs
    assert (runs.count, runs.mean, runs.deviation) == (5, 0.2, 0.01)
    assert (runs.metric, runs.best_seed, runs.best_epoch) == ("f1", 43, 1.5)
    alone = facts(finetune_stage(Path("task"))).runs
    assert (alone.count, alone.mean, alone.deviation) == (1, None, None)


@pytest.mark.parametrize(
    ("changes", "names", "is_pair"),
    [
        ({"task": "sst-2", "data": {"folder": "/data/glue"}}, ("SST-2", "SST-2"), False),
        ({"task": "rte", "data": {"folder": "/data/glue/RTE"}}, ("RTE", "RTE"), True),
        (SQUAD, ("SQuAD", "SQuAD"), True),
        ({}, ("train.tsv", "validation.tsv"), False),
        ({"data": {**OWN, "columns": {"text": "a", "text_pair": "b", "label": "c"}}}, ("t.csv", "v.csv"), True),
    ],
)
def test_data_have_their_official_name_or_that_of_each_file(
    changes: dict[str, Any], names: tuple[str, str], is_pair: bool
) -> None:
    found = facts(finetune_stage(Path("task"), **changes))
    assert ((found.data_name, found.validation_name), found.is_pair) == (names, is_pair)
