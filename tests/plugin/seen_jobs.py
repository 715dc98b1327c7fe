"""Jobs with pods and logs as kubectl prints them, at moments that people look at."""

from __future__ import annotations

import copy
from typing import Any

Json = dict[str, Any]

UID = "5b3c1d1e-0000-4000-8000-000000000001"
NOW_S = 1_767_268_800.0
"""2026-01-01T12:00:00Z."""
NOON = "2026-01-01T12:00:00Z"
CLAIM = {"persistentVolumeClaim": {"claimName": "results"}}
IMAGE = "registry.example.com/bert-trainer:1"


def job(
    name: str = "corpus", *, spec: Json | None = None, created: str = "2026-01-01T10:00:00Z", **status: Any
) -> Json:
    """Return a job with four stages; ``spec`` is merged into its spec."""
    document: Json = {
        "apiVersion": "bert-operator.dev/v1alpha1",
        "kind": "BertPretrainJob",
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": UID,
            "generation": 1,
            "creationTimestamp": created,
        },
        "spec": {
            "image": IMAGE,
            "workers": 2,
            "stages": [
                {"name": "prepare", "prepare": {"text": "/mnt/text"}},
                {"name": "phase1", "pretrain": {"sequenceLength": 128}},
                {"name": "evaluate", "evaluate": {}},
                {"name": "export", "export": {}},
            ],
            "output": {"path": f"runs/{name}", "volume": CLAIM},
            "runPolicy": {"suspend": False},
            **(spec or {}),
        },
    }
    if status:
        document["status"] = copy.deepcopy(status)
    return document


def running(name: str = "corpus", **status: Any) -> Json:
    """Return a job in its second stage and third attempt."""
    return job(name, **{**RUNNING, **status})


def pod(name: str, *, attempt: int = 3, role: str = "launcher", phase: str = "Running", **more: Any) -> Json:
    """Return a pod of the job ``corpus``. ``state``: of its container; else it runs, or has ended as ``phase`` says."""
    running_state = {"running": {"startedAt": NOON}}
    ended = {"terminated": {"exitCode": 0 if phase == "Succeeded" else 1, "reason": "Error"}}
    state = more.pop("state", {"Running": running_state, "Pending": {}}.get(phase, ended))
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": f"uid-of-{name}",
            "creationTimestamp": "2026-01-01T11:00:00Z",
            "labels": {
                "bert-operator.dev/job": "corpus",
                "bert-operator.dev/attempt": str(attempt),
                "bert-operator.dev/role": role,
            },
            **more.pop("metadata", {}),
        },
        "spec": {"nodeName": "node-1"},
        "status": {"phase": phase, "containerStatuses": [{"name": "trainer", "state": state}], **more},
    }


def record(event: str, *, uid: str = UID, attempt: int = 3, **fields: Any) -> str:
    """Return a record as the trainer writes it."""
    words = [f"event={event}", *(f"{key}={value}" for key, value in fields.items()), f"job={uid}", f"attempt={attempt}"]
    return "bert-trainer/1 " + " ".join(words)


def progress(step: int, loss: float, *, stage: str = "phase1", **fields: Any) -> str:
    """Return a progress record of a stage."""
    return record("progress", stage=stage, step=step, steps=700, loss=loss, **fields)


RUNNING: Json = {
    "observedGeneration": 1,
    "phase": "Running",
    "reason": "ChildRunning",
    "message": "The child of this attempt is running.",
    "run": "training",
    "stage": "phase1",
    "attempt": 3,
    "completedRuns": ["prepare"],
    "image": "registry.example.com/bert-trainer@sha256:0123",
    "progress": {
        "step": 400,
        "totalSteps": 700,
        "progressPercentage": 57,
        "estimatedRemainingSeconds": 723,
        "eta": "12:03 min",
        "loss": "6.104",
        "sequencesPerSecond": "241.4",
        "metrics": [{"name": "loss", "value": "6.104"}, {"name": "real_tokens_per_s", "value": "24721.3"}],
        "lastUpdatedTime": "2026-01-01T11:59:55Z",
    },
    "checkpoint": {"stage": "phase1", "step": 300},
    "results": [
        {
            "stage": "phase1",
            "step": 300,
            "metrics": [{"name": "mlm_accuracy", "value": "0.123"}, {"name": "unigram_baseline", "value": "0.054"}],
            "targetMet": False,
        }
    ],
    "failures": [
        {
            "run": "training",
            "attempt": 2,
            "kind": "Infrastructure",
            "reason": "OOMKilled",
            "pod": "corpus-a2-worker-1",
            "node": "node-2",
            "exitCode": 137,
            "message": "A container exceeded its memory limit. Next: raise resources.memory, or lower microBatchSize.",
            "checkpoint": {"stage": "phase1", "step": 100},
            "finishedAt": "2026-01-01T11:00:00Z",
        }
    ],
    "conditions": [
        {
            "type": "Running",
            "status": "True",
            "reason": "ChildRunning",
            "message": "The child of this attempt is running.",
            "lastTransitionTime": "2026-01-01T11:00:30Z",
        }
    ],
    "startTime": "2026-01-01T10:00:05Z",
}
