"""Jobs train to a target on real pods: from text, and from another program's checkpoint, which is then exported.

Inputs: the job that makes the dataset, with a target for its first phase; a checkpoint that TensorFlow has
written, with its vocabulary, on the volume, and a target that these weights meet soon and untrained ones never in as
many steps. Observed: the status, ``kubectl get -o wide``, the records of the run and the exported files.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import pytest

from job_cluster import Json, Namespace
from real_jobs import DATA_JOB, STEPS, WITHIN_REACH, RealJob, training_job
from tensorflow_cases import TRAINED

pytestmark = pytest.mark.timeout(300)
Say = Callable[[str], None]
PUBLISHED = "published-weights"
"""Folder on the volume."""
OF_THE_TRAINED = 0.06
"""Masked-LM accuracy; the kept weights have 0.08 after ten steps, untrained ones 0 after forty."""

_LEFT = """
import json, pathlib
folder = pathlib.Path('/volume/foreign')
export = folder / 'export'
files = sorted(str(path.relative_to(export)) for path in export.rglob('*') if path.is_file())
records = [json.loads(line) for line in (folder / 'metrics.jsonl').read_text().splitlines()]
events = {name: [record for record in records if record['event'] == name] for name in ('initialized', 'evaluated')}
print(json.dumps({'files': files, **events}))
"""


def accuracy(result: Json) -> float:
    return float(result["metrics"]["mlm_accuracy"])


def cell(table: str, column: str) -> str:
    """Return what stands in a column of the only row that kubectl has printed; a column begins where its title does."""
    title, row = table.splitlines()
    return row[title.index(column) :].split()[0]


def test_a_prepared_dataset_is_trained_on_until_the_target_is_met(data: Namespace, say: Say) -> None:
    job = RealJob(data, DATA_JOB)
    found = job.results()["phase1"]
    say(found["message"])
    assert found["targetMet"] is True
    assert 0 < found["step"] < STEPS["phase1"]
    assert accuracy(found) >= WITHIN_REACH
    assert f"target met at step {found['step']}" in found["message"]
    left = job.result()
    assert [(stage, len(steps)) for stage, steps in left.ledger.items()] == [("phase1", found["step"]), ("phase2", 1)]
    assert [step for _, step, _ in left.evaluations] == [*range(10, found["step"] + 1, 10)]


def test_phase_2_starts_from_what_tensorflow_has_written_and_ends_at_its_target(data: Namespace, say: Say) -> None:
    """As people begin with published weights: text is split with their vocabulary, their file describes the model."""
    data.put(TRAINED, PUBLISHED)
    prepare = {"name": "prepare", "prepare": {"text": "builtin:python-docs", "dupeFactor": 1}}
    (phase2,) = (stage for stage in training_job("foreign")["spec"]["stages"] if stage["name"] == "phase2")
    phase2["pretrain"] |= {
        "evaluation": {"everySteps": 10, "maxSamples": 64},
        "target": {"maskedLmAccuracy": OF_THE_TRAINED},
    }
    spec = {
        "model": {"configFile": f"{PUBLISHED}/bert_config.json"},
        "dataset": {"vocabularyFile": f"{PUBLISHED}/vocab.txt"},
        "initialCheckpoint": {"path": PUBLISHED, "format": "tensorflow"},
        "stages": [
            prepare,
            phase2,
            {"name": "evaluate", "evaluate": {"maxSamples": 64}},
            {"name": "export", "export": {}},
            {"name": "export-onnx", "export": {"format": "onnx"}},
        ],
    }
    data.apply(training_job("foreign", **spec))
    job = RealJob(data, "foreign")
    status = job.wait_phase("Succeeded", timeout_s=240)
    found = job.results()
    say(found["phase2"]["message"])
    assert found["phase2"]["targetMet"] is True
    assert found["phase2"]["step"] <= STEPS["phase2"]
    assert accuracy(found["phase2"]) >= OF_THE_TRAINED
    assert 0 < accuracy(found["evaluate"]) < 1
    assert status["attempt"] == 2, "the first has made the dataset"
    assert [*found] == ["phase2", "evaluate"], "the newest stands last"
    table = data.kubectl("get", "bpj", "foreign", "-o", "wide")
    assert cell(table, "ACCURACY") == found["evaluate"]["metrics"]["mlm_accuracy"]

    left = json.loads(data.python(_LEFT))
    (told,) = (record["message"] for record in left["initialized"])
    assert told.startswith("Started from the weights of ")
    assert told.endswith(f"/{PUBLISHED}"), "no head was drawn, none left out"
    vocabulary = (TRAINED / "vocab.txt").read_text().split()
    # Before its first step it predicts better than chance, which an untrained model does not.
    (before,) = (record for record in left["evaluated"] if record["when"] == "before")
    assert before["mlm_loss"] < math.log(len(vocabulary)) - 0.5
    assert {"huggingface/model.safetensors", "huggingface/README.md", "onnx/model.onnx"} <= set(left["files"])
