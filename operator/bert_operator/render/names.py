"""Names, labels and annotations of everything that the operator creates in a cluster. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from bert_operator.names import API_GROUP

JOB_LABEL = f"{API_GROUP}/job"
RUN_LABEL = f"{API_GROUP}/run"
ATTEMPT_LABEL = f"{API_GROUP}/attempt"
ROLE_LABEL = f"{API_GROUP}/role"
HASH_ANNOTATION = f"{API_GROUP}/spec-hash"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"

LAUNCHER, WORKER, SINGLE = "launcher", "worker", "single"


def config_map_name(job: str) -> str:
    """Return the name of the object that holds a job's frozen configuration."""
    return f"{job}-frozen"


def child_name(job: str, run: str, attempt: int, *, is_mpi: bool) -> str:
    """Return the name of an attempt's child.

    People find logs by it: the pod of a Job is called after the run (``training``), that of an MPIJob's launcher
    gets ``-launcher`` from mpi-operator.
    """
    return f"{job}-a{attempt}" if is_mpi else f"{job}-a{attempt}-{run}"


def labels(job: str, run: str, attempt: int) -> dict[str, str]:
    """Return the labels of an attempt's child and of its pods."""
    return {
        "app.kubernetes.io/managed-by": "bert-operator",
        "app.kubernetes.io/name": "bert-pretrain",
        JOB_LABEL: job,
        RUN_LABEL: run,
        ATTEMPT_LABEL: str(attempt),
    }


def content_hash(document: Mapping[str, Any]) -> str:
    """Return 16 hexadecimal digits that change whenever the document does."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
