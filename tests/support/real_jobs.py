"""Jobs that really train on a cluster, seen as their user sees them, and the files that they leave."""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from job_cluster import CLAIM, USER, Json, Namespace, poll

T = TypeVar("T")
GROUP = "bert-operator.dev"
PATIENCE_S = 120.0
STEPS = {"phase1": 120, "phase2": 60}
EVALUATED_EVERY = 30
"""Steps of the first phase."""
VOCABULARY_SIZE = 2048
WITHIN_REACH = 0.02
"""Masked-LM accuracy of a model that has learnt which token is the most frequent, and of none that is untrained."""
DATA_JOB = "data"
"""The job that makes the dataset of all others, on the same volume."""

_READ_LEDGER = """
import collections, json, pathlib
path = pathlib.Path('/volume/{job}/ledger.jsonl')
entries = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
"""
# Newest first is right: a step that was trained again counts once, the last time.
_RESULT = (
    _READ_LEDGER
    + """
import hashlib
folder = sorted((path.parent.parent / '{job}/checkpoints').glob('{stage}-*'))[-1]
sums = {{p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.glob('*.safetensors'))}}
records = [json.loads(line) for line in (path.parent / 'metrics.jsonl').read_text().splitlines()]
during = [record for record in records if record.get('event') == 'evaluated' and record['when'] == 'during']
evaluations = [[record['stage'], record['step'], record['mlm_accuracy']] for record in during]
ledger = collections.defaultdict(dict)
for entry in entries:
    ledger[entry['stage']][entry['step']] = entry['samples']
found = {{'checkpoint': folder.name, 'sums': sums, 'ledger': ledger, 'evaluations': evaluations}}
print(json.dumps({{**found, 'trained': len(entries)}}))
"""
)
_KILL_A_RANK = """
import os, signal
from bert_trainer.pod.processes import find_ranks
ranks = find_ranks(1)
os.kill(ranks[-1], signal.SIGKILL)
print(ranks[-1])
"""

_STOP_A_RANK = """
import os, signal
from bert_trainer.pod.processes import find_ranks
from bert_trainer.system.process_tree import find_descendants
rank = find_ranks(1)[-1]
(program,) = find_descendants(rank)[rank]
os.kill(program, signal.SIGSTOP)
"""


def training_job(name: str, **spec: Any) -> Json:
    """Return a job of two pods with one rank each: two phases on the data of ``DATA_JOB``.

    A checkpoint is written at every tenth step, the first phase is evaluated at every thirtieth, and the samples of
    every step are noted. ``spec`` replaces fields of its spec; None takes one away.
    """

    def phase(stage: str, length: int, rows: int, **more: Any) -> Json:
        steps = {"steps": STEPS[stage]}
        pretrain = {"sequenceLength": length, "globalBatchSize": rows, "learningRate": 1e-3, "length": steps, **more}
        return {"name": stage, "pretrain": pretrain}

    evaluation = {"everySteps": EVALUATED_EVERY, "maxSamples": 64}
    exports = [{"name": "export", "export": {}}, {"name": "export-tensorflow", "export": {"format": "tensorflow"}}]

    document: Json = {
        "workers": 2,
        "resources": {"memory": "2Gi"},
        "launcher": {"resources": {"cpu": "100m", "memory": "1Gi"}},
        "securityContext": {"runAsUser": USER, "runAsGroup": USER, "fsGroup": USER},
        "imagePullPolicy": "IfNotPresent",
        "env": [{"name": "OMP_NUM_THREADS", "value": "1"}],
        "model": {"preset": "tiny"},
        "optimizer": {"name": "adamw"},
        "dataset": {
            "path": f"{DATA_JOB}/data",
            "volume": {"persistentVolumeClaim": {"claimName": CLAIM}, "mountPath": "/mnt/data"},
        },
        "stages": [phase("phase1", 64, 32, evaluation=evaluation), phase("phase2", 128, 16), *exports],
        "checkpoint": {"everySteps": 10, "keep": 2},
        "logging": {"everySteps": 5, "tensorboard": False, "sampleLedger": True},
        "output": {"path": name, "ifExists": "Resume", "volume": {"persistentVolumeClaim": {"claimName": CLAIM}}},
    }
    merged = {key: value for key, value in {**document, **spec}.items() if value is not None}
    return {
        "apiVersion": f"{GROUP}/v1alpha1",
        "kind": "BertPretrainJob",
        "metadata": {"name": name},
        "spec": merged,
    }


def data_job(target: float | None = None) -> Json:
    """Return a job that makes the dataset, in one pod, and takes a step on it in each phase.

    target: masked-LM accuracy that ends the first phase instead, which is then evaluated at every tenth step.
    """
    job = training_job(DATA_JOB, dataset=None, workers=1)
    for stage in job["spec"]["stages"][:2]:
        stage["pretrain"]["length"] = {"steps": 1}
        stage["pretrain"].pop("evaluation", None)
    if target is not None:
        job["spec"]["stages"][0]["pretrain"] |= {
            "length": {"steps": STEPS["phase1"]},
            "evaluation": {"everySteps": 10, "maxSamples": 64},
            "target": {"maskedLmAccuracy": target},
        }
    prepare = {
        "name": "prepare",
        "prepare": {"text": "builtin:python-docs", "vocabularySize": VOCABULARY_SIZE, "dupeFactor": 1},
    }
    job["spec"]["stages"] = [prepare, *job["spec"]["stages"][:2]]
    return job


@dataclass(frozen=True, slots=True)
class Result:
    """What a run has left on the volume."""

    checkpoint: str
    sums: dict[str, str]
    """SHA-256 of weights and of the optimizer's state."""
    ledger: dict[str, list[list[int]]]
    """Stage to the samples of its steps, in order."""
    evaluations: list[tuple[str, int, float]]
    """Stage, step and masked-LM accuracy of every evaluation on record, in order."""
    trained: int
    """Steps, those that were trained again counted again."""


@dataclass(frozen=True, slots=True)
class RealJob:
    """One job of a namespace."""

    namespace: Namespace
    name: str

    def status(self) -> Json:
        """Return the job's status, empty where there is none yet."""
        return (self.namespace.find("bpj", self.name) or {}).get("status") or {}

    def results(self) -> dict[str, Json]:
        """Return what the status says of every stage's evaluation; ``metrics`` by name, but for the time it took."""
        found = {}
        for result in self.status().get("results", []):
            metrics = {metric["name"]: metric["value"] for metric in result["metrics"] if metric["name"] != "seconds"}
            found[result["stage"]] = {**result, "metrics": metrics}
        return found

    def wait(self, holds: Callable[[Json], object], what: str, timeout_s: float = PATIENCE_S) -> Json:
        """Return the status once something holds of it; a job that failed instead is shown with its log."""
        last: Json = {}

        def look() -> bool:
            last.clear()
            last.update(self.status())
            assert holds(last) or last.get("phase") != "Failed", f"{self.name} has failed: {last}\n{self.log()}"
            return bool(holds(last))

        poll(look, lambda: f"{what} of {self.name}, whose status is {last}\n{self.log()}", timeout_s=timeout_s)
        return last

    def wait_phase(self, phase: str, timeout_s: float = PATIENCE_S) -> Json:
        """Return the status once the job is in a phase."""
        return self.wait(lambda status: status.get("phase") == phase, phase, timeout_s)

    def wait_end(self, timeout_s: float = PATIENCE_S) -> Json:
        """Return the status once the job has ended, well or not."""

        def ended() -> Json:
            status = self.status()
            return status if status.get("phase") in ("Succeeded", "Failed") else {}

        return poll(ended, f"{self.name} to end", timeout_s=timeout_s)

    def pods(self, role: str) -> list[Json]:
        """Return the pods of a role: launcher, worker or single; those of the newest attempt last."""
        found = self.namespace.list("pods", f"{GROUP}/job={self.name},{GROUP}/role={role}")
        return sorted(found, key=lambda pod: (int(pod["metadata"]["labels"][f"{GROUP}/attempt"]), pod_name(pod)))

    def pod(self, role: str, index: int = -1) -> str:
        """Return the name of one pod of a role."""
        return pod_name(self.pods(role)[index])

    def log(self) -> str:
        """Return the end of the newest launcher's log, or of the newest single pod's."""
        pods = [*self.pods("launcher"), *self.pods("single")]
        return self.namespace.kubectl("logs", pod_name(pods[-1]), "--tail=60") if pods else "(no pod)"

    def steps_trained(self) -> int:
        """Return how many steps the ranks have taken, over all stages and attempts."""
        if self.namespace.folder is not None:
            ledger = self.namespace.folder / self.name / "ledger.jsonl"
            return ledger.read_bytes().count(b"\n") if ledger.exists() else 0
        program = _READ_LEDGER.format(job=self.name) + "print(len(entries))"
        return int(self.namespace.python(program))

    def wait_steps(self, steps: int) -> int:
        """Wait until the ranks have taken so many steps; return how many there are."""
        return poll(lambda: max(0, (taken := self.steps_trained()) - steps + 1) and taken, f"{steps} steps")

    def result(self, stage: str = "phase2") -> Result:
        """Return what lies on the volume; the newest checkpoint of a stage."""
        found = json.loads(self.namespace.python(_RESULT.format(job=self.name, stage=stage)))
        ledger = {}
        for name, steps in found["ledger"].items():
            numbers = sorted(int(step) for step in steps)
            assert numbers == list(range(len(numbers))), f"{self.name}: steps of {name} are missing: {numbers}"
            ledger[name] = [steps[str(number)] for number in numbers]
        evaluations = [(stage, step, accuracy) for stage, step, accuracy in found["evaluations"]]
        return Result(found["checkpoint"], found["sums"], ledger, evaluations, found["trained"])

    def kill_a_rank(self, worker: int = -1) -> str:
        """SIGKILL the rank of a worker; return the worker's name."""
        pod = self.pod("worker", worker)
        self.namespace.python(_KILL_A_RANK, pod=pod)
        return pod

    def stop_a_rank(self, worker: int = -1) -> str:
        """SIGSTOP the program of a worker's rank, for good; return the worker's name."""
        pod = self.pod("worker", worker)
        self.namespace.python(_STOP_A_RANK, pod=pod)
        return pod


def pod_name(pod: Json) -> str:
    """Return a pod's name."""
    return str(pod["metadata"]["name"])


def assert_same_run(one: Result, other: Result) -> None:
    """Both ended with the same bits, saw the same samples in the same steps, and were evaluated once where due."""
    assert one.checkpoint == other.checkpoint
    assert one.sums == other.sums
    assert one.ledger == other.ledger
    assert one.evaluations == other.evaluations
    steps = range(EVALUATED_EVERY, STEPS["phase1"] + 1, EVALUATED_EVERY)
    assert [(stage, step) for stage, step, _ in one.evaluations] == [("phase1", step) for step in steps]


def random_step(seed: str, last: int) -> int:
    """Return a step that leaves room before and behind it; the same for the same seed."""
    return random.Random(seed).randrange(15, last - 30)  # noqa: S311 - a test's moment, no secret


class Followed:
    """The log of a launcher, from its start to its end."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def end(self) -> str:
        """Wait until the container has ended; return its log."""
        text, _ = self._process.communicate(timeout=PATIENCE_S)
        return text


@contextlib.contextmanager
def followed(job: RealJob) -> Iterator[Followed]:
    """Follow the newest launcher as people do."""
    cluster = job.namespace.cluster
    words = [cluster.program, "--kubeconfig", str(cluster.kubeconfig), "--namespace", job.namespace.name]
    command = [*words, "logs", "--follow", job.pod("launcher")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield Followed(process)
    finally:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def side_by_side(stories: Mapping[str, Callable[[], T]], *, at_a_time: int = 2) -> Iterator[Callable[[str], T]]:
    """Begin what happens to several jobs, some at a time and in this order; gives what waits for one's end, by name.

    Much of a story is waiting: for pods that start and end, and for the operator to see it.
    """
    with ThreadPoolExecutor(max_workers=at_a_time) as pool:
        ends = {name: pool.submit(story) for name, story in stories.items()}
        try:
            yield lambda name: ends[name].result()
        finally:
            for end in ends.values():
                end.cancel()


class Clock:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._started_s = time.monotonic()

    @property
    def s(self) -> float:
        """Seconds so far."""
        return time.monotonic() - self._started_s
