"""A preparation spread over two pods by mpi-operator makes what one process makes, and the job trains on it.

Inputs: a small text on the volume that all pods share; the namespace enforces the restricted standard. Observed: the
MPIJob and its pods while it prepares, the shards on the volume beside those of a build in this process.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bert_trainer.dataset.__main__ import main
from job_cluster import Json, Namespace
from real_jobs import GROUP, RealJob, pod_name, training_job

pytestmark = pytest.mark.timeout(500)
PREPARE = {"vocabularySize": 512, "dupeFactor": 2, "numShards": 6, "workers": 2}
WORDS = ["river", "stone", "clouds", "winter", "garden", "letter", "reading", "signal", "engine", "windows", "the", "a"]

_WRITE_TEXT = """
import pathlib, random
WORDS = {words!r}
{function}
folder = pathlib.Path('/volume/texts')
folder.mkdir()
(folder / 'text.txt').write_text(some_text())
"""
_MADE = """
import hashlib, json, pathlib
root = pathlib.Path('/volume/spread/data')
record = json.loads((root / 'dataset.json').read_text())
files = [root / 'vocab.txt', *sorted(root.rglob('*.hdf5'))]
print(json.dumps({
    'complete': record['complete'],
    'lengths': [[length['sequence_length'], length['max_predictions']] for length in record['lengths']],
    'sums': {path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files},
}))
"""


def some_text() -> str:
    """Return a few hundred documents of random sentences, the same ones every time."""
    rng = random.Random(8)  # noqa: S311 - a text, no secret

    def sentence() -> str:
        return " ".join(rng.choices(WORDS, k=rng.randint(4, 14))) + f" {rng.randint(0, 999)}."

    return "\n\n".join("\n".join(sentence() for _ in range(rng.randint(3, 20))) for _ in range(600)) + "\n"


def worker_pods(job: RealJob, run: str) -> list[Json]:
    """Return the worker pods of one of the job's runs: prepare or train."""
    labels = f"{GROUP}/job={job.name},{GROUP}/run={run},{GROUP}/role=worker"
    return job.namespace.list("pods", labels)


@pytest.fixture(scope="module")
def namespace(fresh: Callable[[str], Namespace]) -> Namespace:
    """A restricted namespace with a text on its volume."""
    made = fresh("parallel-preparation")
    made.make_claim()
    # The text itself would be too long for a command line.
    made.python(_WRITE_TEXT.format(words=WORDS, function=inspect.getsource(some_text)))
    return made


@pytest.fixture(scope="module")
def seen(namespace: Namespace) -> dict[str, Any]:
    """The job, seen while it prepared and when it had succeeded."""
    job = training_job("spread", dataset=None)
    for stage in job["spec"]["stages"][:2]:
        stage["pretrain"]["length"] = {"steps": 2}
    job["spec"]["stages"].insert(0, {"name": "prepare", "prepare": {"text": "/mnt/output/texts", **PREPARE}})
    namespace.apply(job)
    spread = RealJob(namespace, "spread")
    at_work: list[Json] = []

    def both_run(status: Json) -> bool:
        at_work[:] = [pod for pod in worker_pods(spread, "prepare") if pod["status"].get("phase") == "Running"]
        return len(at_work) == 2 or "prepare" in (status.get("completedRuns") or ())

    spread.wait(both_run, "two workers that prepare")
    (mpi_job,) = namespace.list("mpijobs", f"{GROUP}/job=spread,{GROUP}/run=prepare")
    launcher = namespace.list("pods", f"{GROUP}/job=spread,{GROUP}/run=prepare,{GROUP}/role=launcher")
    with_log = [pod_name(pod) for pod in launcher]
    spread.wait(lambda status: "prepare" in (status.get("completedRuns") or ()), "the preparation", timeout_s=240)
    log = namespace.kubectl("logs", with_log[0])
    return {"pods": at_work, "mpi_job": mpi_job, "log": log, "end": spread.wait_phase("Succeeded", timeout_s=240)}


def test_mpi_operator_prepares_with_two_worker_pods(seen: dict[str, Any]) -> None:
    assert seen["mpi_job"]["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"] == 2
    owners = [pod["metadata"]["ownerReferences"][0] for pod in seen["pods"]]
    assert [(owner["kind"], owner["uid"]) for owner in owners] == [("MPIJob", seen["mpi_job"]["metadata"]["uid"])] * 2
    assert len({pod_name(pod) for pod in seen["pods"]}) == 2
    assert "All 2 workers answer" in seen["log"]


def test_the_job_trains_on_what_was_prepared(seen: dict[str, Any]) -> None:
    assert seen["end"]["completedRuns"][0] == "prepare"
    assert seen["end"]["phase"] == "Succeeded"
    assert seen["end"]["attempt"] == 2, "one attempt to prepare, one to train"


@pytest.mark.usefixtures("seen")
def test_its_shards_are_those_of_one_process(namespace: Namespace, tmp_path: Path) -> None:
    made = json.loads(namespace.python(_MADE))
    assert made["complete"] is True
    text, root = tmp_path / "text.txt", tmp_path / "data"
    text.write_text(some_text())
    options = ["--vocabulary-size", "512", "--dupe-factor", "2", "--shards", "6", "--processes", "1"]
    lengths = [word for tokens, predictions in made["lengths"] for word in ("--length", f"{tokens}:{predictions}")]
    assert main(["build", "--text", str(text), "--output", str(root), *options, *lengths]) == 0
    files = [root / "vocab.txt", *sorted(root.rglob("*.hdf5"))]
    assert len(files) > 2 * 6
    sums = {path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    assert made["sums"] == sums
