"""A stage that starts from another program's checkpoint trains to its target on real pods, and is exported.

Inputs: the TensorFlow checkpoint that an earlier job has left on the volume; a target that the earlier job's
evaluations say is within reach. Observed: the status, ``kubectl get -o wide`` and the exported files.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from real_jobs import STEPS, RealJob, training_job

pytestmark = pytest.mark.timeout(300)
Say = Callable[[str], None]

_FILES = """
import json, pathlib
export = pathlib.Path('/volume/foreign/export')
print(json.dumps(sorted(str(path.relative_to(export)) for path in export.rglob('*') if path.is_file())))
"""


def results(job: RealJob) -> dict[str, dict[str, object]]:
    return {result["stage"]: result for result in job.status()["results"]}


def accuracy(result: dict[str, object]) -> float:
    metrics: list[dict[str, str]] = result["metrics"]  # type: ignore[assignment]
    return next(float(metric["value"]) for metric in metrics if metric["name"] == "mlm_accuracy")


def test_phase_2_starts_from_a_tensorflow_checkpoint_and_ends_at_its_target(whole: RealJob, say: Say) -> None:
    reached = accuracy(results(whole)["phase1"])
    # What the earlier job's model knows, and a model that starts anew does not know after ten steps.
    wanted = round(0.8 * reached, 4)
    (phase2,) = (stage for stage in training_job("foreign")["spec"]["stages"] if stage["name"] == "phase2")
    phase2["pretrain"] |= {
        "length": {"steps": 10 * STEPS["phase2"]},
        "evaluation": {"everySteps": 10, "maxSamples": 64},
        "target": {"maskedLmAccuracy": wanted},
    }
    spec = {
        "initialCheckpoint": {"path": "whole/export/tensorflow", "format": "tensorflow"},
        "stages": [
            phase2,
            {"name": "evaluate", "evaluate": {"maxSamples": 64}},
            {"name": "export", "export": {}},
            {"name": "export-onnx", "export": {"format": "onnx"}},
        ],
    }
    whole.namespace.apply(training_job("foreign", **spec))
    job = RealJob(whole.namespace, "foreign")
    status = job.wait_phase("Succeeded")
    found = results(job)
    say(f"target {wanted} after a training to {reached}: {found['phase2']['message']}")
    assert found["phase2"]["targetMet"] is True
    assert int(found["phase2"]["step"]) <= STEPS["phase2"]  # type: ignore[call-overload]
    assert accuracy(found["phase2"]) >= wanted
    assert 0 < accuracy(found["evaluate"]) < 1
    assert status["attempt"] == 1
    shown = whole.namespace.kubectl("get", "bpj", "foreign", "-o", "wide")
    assert "ACCURACY" in shown.splitlines()[0]
    files = json.loads(whole.namespace.python(_FILES))
    assert {"huggingface/model.safetensors", "huggingface/README.md", "onnx/model.onnx"} <= set(files)
