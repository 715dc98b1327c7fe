"""``bert-train finetune`` and a job's finetune stage train the same where neither says anything.

Inputs: a command line and a manifest with as little in them as each needs. Observed: the two run configurations.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bert_operator.api.parsing.validation import parse_job
from bert_operator.render.run_config import render_run_config
from bert_trainer.__main__ import parse_arguments
from bert_trainer.config.checks import parse_run_config, resolve_model
from bert_trainer.finetune_command import make_run_config
from described_weights import WORDS, describe_weights

# Who runs it and where; the job has no dataset beyond its vocabulary, and a model without a size of its own vocabulary.
PLACE = ("job", "output_folder", "dataset", "optimizer", "stages", "model")


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    return describe_weights(tmp_path / "weights")


def by_job(weights: Path, task: str, data: dict[str, Any]) -> dict[str, Any]:
    spec = {
        "model": {"configFile": str(weights / "config.json")},
        "initialCheckpoint": {"path": str(weights), "format": "huggingface"},
        "stages": [{"name": task, "finetune": {"task": task, "data": data, "learningRate": 2e-5}}],
        "output": {"path": "/out"},
    }
    kind = {"apiVersion": "bert-operator.dev/v1alpha1", "kind": "BertPretrainJob", "metadata": {"name": "job"}}
    job = parse_job({**kind, "spec": spec})
    rendered = render_run_config(job, uid="uid", ranks=1, hosts=1, output_folder="/out")
    return resolve_model(parse_run_config(rendered)).model_dump(mode="json")


def by_command(weights: Path, task: str, *words: str) -> dict[str, Any]:
    arguments = parse_arguments(["finetune", "--task", task, *words, "--model", str(weights), "--output", "/out"])
    return make_run_config(arguments, {}).model_dump(mode="json")


@pytest.mark.parametrize("task", ["mrpc", "squad"])
def test_both_have_the_same_defaults(weights: Path, task: str) -> None:
    job = by_job(weights, task, {"folder": str(weights)})
    command = by_command(weights, task, "--data", str(weights))
    assert command["stages"] == job["stages"]
    assert {name: value for name, value in command.items() if name not in PLACE} == {
        name: value for name, value in job.items() if name not in PLACE
    }
    assert {**command["model"], "vocabulary_size": len(WORDS)} == job["model"]


def test_both_read_a_table_of_one_s_own_alike(weights: Path) -> None:
    file = str(weights / "vocab.txt")
    columns = {"text": "a", "textPair": "b", "label": "c", "id": "d"}
    data = {"train": file, "validation": file, "test": file, "format": "csv", "columns": columns, "labels": ["y", "n"]}
    files = ("--train", file, "--validation", file, "--test", file, "--data-format", "csv", "--labels", "y", "n")
    names = ("--text", "a", "--text-pair", "b", "--label", "c", "--id", "d")
    command = by_command(weights, "classification", *files, *names)
    assert command["stages"] == by_job(weights, "classification", data)["stages"]
