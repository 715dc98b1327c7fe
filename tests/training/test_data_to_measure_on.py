"""The trainer refuses documents that measure on nothing or on what they train on, as the operator refuses such jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bert_trainer.errors import InputError
from tiny_run import PREDICTIONS, SEQUENCE_LENGTH, pretrain_stage, run_config

Document = dict[str, Any]
LAST_TENTH = {"start": 0.9, "end": 1.0}
NOTHING_HELD_OUT: Document = {"kind": "prepare", "text": "builtin:python-docs", "held_out_fraction": 0.0}


def evaluation(**fields: Any) -> Document:
    whole = {"max_samples": None, "micro_batch_size": 8, "shards": None, "data_range": None}
    return {**whole, "every_steps": 2, "max_predictions_per_sequence": PREDICTIONS, **fields}


def evaluate(**fields: Any) -> Document:
    shape = {"sequence_length": SEQUENCE_LENGTH, "max_predictions_per_sequence": PREDICTIONS}
    return {"kind": "evaluate", "name": "evaluate", **shape, **fields}


def phase(name: str = "phase1", **fields: Any) -> Document:
    return pretrain_stage(name, data_range={"start": 0.0, "end": 0.9}, **fields)


@pytest.mark.parametrize(
    ("stages", "path"),
    [
        pytest.param([phase(), evaluate()], "stages.2.shards", id="an evaluate stage"),
        pytest.param([phase(evaluation=evaluation())], "stages.1.evaluation.shards", id="while a stage trains"),
    ],
)
def test_held_out_documents_that_are_not_made_are_refused(stages: list[Document], path: str) -> None:
    with pytest.raises(InputError) as caught:
        run_config(Path("out"), Path("data"), stages=[NOTHING_HELD_OUT, *stages])
    assert f"{path}: got nothing, with heldOutFraction 0; allowed: a folder of held-out shards, or a dataRange" in str(
        caught.value
    )
    assert "1 problem(s)" in str(caught.value)


@pytest.mark.parametrize("fields", [{"data_range": LAST_TENTH}, {"shards": "eval"}], ids=["a part", "other shards"])
def test_nothing_held_out_is_enough_for_what_is_measured_on_something_else(fields: Document) -> None:
    stages = [NOTHING_HELD_OUT, phase(evaluation=evaluation(**fields)), evaluate(**fields)]
    config = run_config(Path("out"), Path("data"), stages=stages)
    assert len(config.stages) == 3


WHOLE = {"start": 0.0, "end": 1.0}


def on(folder: str | None, part: Document, /, **measured: Any) -> Document:
    """Train on a part of a folder, evaluated as ``measured`` says if it says anything."""
    more = {"evaluation": evaluation(**measured)} if measured else {}
    return pretrain_stage(shards=folder, data_range=part, **more)


@pytest.mark.parametrize(
    ("stages", "path", "trained"),
    [
        pytest.param(
            [on(None, WHOLE), evaluate(data_range=LAST_TENTH)], "stages.1", "phase1 trains on 0 to 1", id="evaluate"
        ),
        pytest.param(
            [on("s", {"start": 0.5, "end": 0.95}), evaluate(shards="s", data_range=LAST_TENTH)],
            "stages.1",
            "phase1 trains on 0.5 to 0.95",
            id="evaluate, of one folder",
        ),
        pytest.param(
            [on(None, WHOLE, data_range=LAST_TENTH)], "stages.0.evaluation", "training on 0 to 1", id="while it trains"
        ),
        pytest.param(
            [on("s", WHOLE, shards="s", data_range=LAST_TENTH)],
            "stages.0.evaluation",
            "training on 0 to 1",
            id="while it trains, of one folder",
        ),
        pytest.param(
            [pretrain_stage("phase0"), phase(evaluation=evaluation(data_range=LAST_TENTH))],
            "stages.1.evaluation",
            "phase0 trains on 0 to 1",
            id="while a later stage trains",
        ),
    ],
)
def test_parts_that_were_trained_on_are_refused(stages: list[Document], path: str, trained: str) -> None:
    with pytest.raises(InputError) as caught:
        run_config(Path("out"), Path("data"), stages=stages)
    assert "1 problem(s)" in str(caught.value)
    wanted = f"{path}.data_range: got 0.9 to 1, and {trained}; allowed: a range that shares no sample with"
    assert wanted in str(caught.value)


@pytest.mark.parametrize(
    "stages",
    [
        pytest.param([phase(), evaluate(data_range=LAST_TENTH)], id="the rest"),
        pytest.param([on("s", WHOLE), evaluate(shards="h", data_range=LAST_TENTH)], id="another folder"),
        pytest.param([on("s", WHOLE), evaluate(data_range=LAST_TENTH)], id="the data set's"),
        pytest.param([on("s", WHOLE), evaluate(shards="s")], id="held-out files of the folder"),
        pytest.param(
            [on(None, WHOLE), evaluate(sequence_length=16, data_range=LAST_TENTH)], id="another length's folder"
        ),
        pytest.param([phase(), evaluate(data_range=LAST_TENTH), pretrain_stage("all")], id="what is trained on later"),
    ],
)
def test_parts_that_were_not_trained_on_are_measured_on(stages: list[Document]) -> None:
    assert len(run_config(Path("out"), Path("data"), stages=stages).stages) == len(stages)
