"""What cannot work is refused when the configuration is read, by the path of its field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bert_trainer.config.checks import parse_run_config
from bert_trainer.errors import InputError
from tiny_finetune import finetune_document, finetune_stage
from tiny_run import pretrain_stage
from whole_configs import whole_stage

Document = dict[str, Any]
FOLDER = Path("task")
SPANS = {
    "train": "a.csv",
    "validation": "b.csv",
    "columns": {"question": "question", "context": "context", "answer": "answer"},
}


def refused(*stages: Document, **changes: Any) -> str:
    with pytest.raises(InputError) as raised:
        parse_run_config(finetune_document(Path("out"), FOLDER, *stages, **changes))
    (_, *problems) = str(raised.value).splitlines()
    return "\n".join(problem.strip() for problem in problems)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"name": "start"}, 'stages.0.name: got "start"'),
        (
            {"start_from": "pretrained"},
            'stages.0.start_from: got "pretrained", with no pretrain stage and no initialCheckpoint',
        ),
        (
            {"sequence_length": 65},
            "stages.0.sequence_length: got 65; allowed: at most model.maxPositionEmbeddings 64",
        ),
        (
            {"learning_rate": 1e-3, "warmup": {}, "decay": "linear"},
            "stages.0.warmup: required: exactly one of steps, proportion",
        ),
        (
            {"run_seeds": [1, 2, 1]},
            "stages.0.run_seeds: got [1, 2, 1] for 1 rank(s); allowed: seeds that are all different",
        ),
        ({"metric": "pearson"}, 'stages.0.metric: got "pearson"; allowed: for classification accuracy or f1'),
        (
            {"task": "mrpc", "data": {}},
            "stages.0.data.folder: required: a folder with the official files",
        ),
        (
            {"task": "mrpc", "data": {"folder": "MRPC", "train": "a.tsv"}},
            'stages.0.data.train: got "a.tsv" with task mrpc; allowed: a folder with the official',
        ),
        (
            {"data": {"folder": "x", "train": "a", "validation": "b", "columns": {"text": "a", "label": "b"}}},
            'stages.0.data.folder: got "x" with task classification; allowed: train, the file to train on',
        ),
        (
            {"data": {"validation": "a", "columns": {"text": "a", "label": "b"}}},
            "stages.0.data.train: required: train, the file to train on",
        ),
        (
            {"data": {"train": "a", "validation": "b", "columns": {"text": "a"}}},
            "stages.0.data.columns.label: required: text and label",
        ),
        (
            {"data": {"train": "a", "validation": "b", "columns": {"text": "a", "label": "b", "context": "c"}}},
            'stages.0.data.columns.context: got "c" with task classification; allowed: text and label',
        ),
        (
            {"task": "spans", "data": SPANS, "max_query_length": 57, "sequence_length": 60},
            "stages.0.max_query_length: got 57; allowed: less than 57: sequenceLength 60 without [CLS]",
        ),
        (
            {"synchronize_gradients": False, "optimizer": {"partitioning": "zero1"}},
            "stages.0.optimizer.partitioning: got 'zero1'; allowed without synchronize_gradients: 'none'",
        ),
    ],
)
def test_a_stage_that_cannot_work_is_refused(changes: Document, problem: str) -> None:
    stage = finetune_stage(FOLDER)
    optimizer = {**stage["optimizer"], **changes.pop("optimizer", {})}
    found = refused({**stage, **changes, "optimizer": optimizer})
    assert found.startswith(problem)
    assert "\n" not in found


def test_special_tokens_are_never_predicted() -> None:
    stage = pretrain_stage(sequence_length=32, max_predictions_per_sequence=30)
    assert refused(stage) == (
        "stages.0.max_predictions_per_sequence: got 30; allowed: at most 29: sequenceLength 32 less [CLS] and two "
        "[SEP]; next: leave the field out for 15 % of the length"
    )


@pytest.mark.parametrize("name", ["epochs", "evaluate_every_epochs"])
def test_epochs_are_limited_as_in_a_job(name: str) -> None:
    assert refused({**finetune_stage(FOLDER), name: 1e308}).startswith(f"stages.0.finetune.{name}: got 1e+308")
    parse_run_config(finetune_document(FOLDER, FOLDER, {**finetune_stage(FOLDER), name: 1e6}))


def test_a_model_that_was_fine_tuned_is_fine_tuned_again_or_exported() -> None:
    stages = [finetune_stage(FOLDER), pretrain_stage(), whole_stage({"kind": "export", "format": "tensorflow"})]
    first, second = refused(*stages).splitlines()
    assert first.startswith("stages.1: got pretrain after the finetune stage rule")
    assert second.startswith('stages.2.format: got "tensorflow", after a finetune stage')


def test_ranks_that_train_one_model_need_a_row_each() -> None:
    world = {"ranks": 12, "hosts": 1}
    assert refused(finetune_stage(FOLDER), world=world).startswith("stages.0.global_batch_size: got 11")
    alone = finetune_stage(FOLDER, synchronize_gradients=False)
    parse_run_config(finetune_document(Path("out"), FOLDER, alone, world=world))


@pytest.mark.parametrize("epochs", [0, 1e308, float("nan")])
def test_epochs_are_a_number_that_steps_can_be_counted_of(epochs: float) -> None:
    assert refused(finetune_stage(FOLDER, epochs=epochs)).startswith("stages.0.finetune.epochs: got ")


def test_ranks_on_their_own_never_train_a_seed_twice() -> None:
    world = {"ranks": 2, "hosts": 1}
    stage = finetune_stage(FOLDER, synchronize_gradients=False, run_seeds=[1, 3])
    assert refused(stage, world=world) == (
        "stages.0.run_seeds: got [1, 3] for 2 rank(s), which train 3, 5 as well; allowed: seeds that are all "
        "different, such as consecutive ones: an equal one gives the same run again"
    )
    parse_run_config(finetune_document(Path("out"), FOLDER, stage))
    consecutive = finetune_stage(FOLDER, synchronize_gradients=False, run_seeds=[1, 2, 3])
    parse_run_config(finetune_document(Path("out"), FOLDER, consecutive, world=world))


@pytest.mark.parametrize("loaded", ["weights", "weightsAndOptimizer"])
def test_pretrained_weights_come_from_a_stage_or_an_initial_checkpoint(loaded: str) -> None:
    pretrained = finetune_stage(FOLDER, start_from="pretrained")
    start = {"path": "run", "load": loaded}
    parse_run_config(finetune_document(Path("out"), FOLDER, pretrained, initial_checkpoint=start))
    parse_run_config(finetune_document(Path("out"), FOLDER, pretrain_stage(), pretrained))
    only_verified = {"path": "run", "load": "none"}
    assert "start_from" in refused(pretrained, initial_checkpoint=only_verified)


def test_a_list_is_not_called_short_for_the_entry_that_is_refused() -> None:
    assert refused(finetune_stage(FOLDER, epochs=0)).splitlines() == [
        "stages.0.finetune.epochs: got 0; Input should be greater than 0"
    ]
