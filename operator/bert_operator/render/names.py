"""Names, labels and annotations of everything that the operator creates in a cluster. Pure."""

from __future__ import annotations

import hashlib
import re

from bert_operator.names import API_GROUP, MAX_JOB_NAME

JOB_LABEL = f"{API_GROUP}/job"
RUN_LABEL = f"{API_GROUP}/run"
ATTEMPT_LABEL = f"{API_GROUP}/attempt"
ROLE_LABEL = f"{API_GROUP}/role"
HASH_ANNOTATION = f"{API_GROUP}/spec-hash"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"
REQUIRED_TOPOLOGY = "kueue.x-k8s.io/podset-required-topology"
PREFERRED_TOPOLOGY = "kueue.x-k8s.io/podset-preferred-topology"
UNCONSTRAINED_TOPOLOGY = "kueue.x-k8s.io/podset-unconstrained-topology"
FORCE_ANNOTATION = "kueue.x-k8s.io/safe-to-forcefully-delete"
"""Of pod templates, like the three before it; Kueue's labels are those of the child."""

_FOUND_BY = {"launch": "lnch", "training": "train"}
"""Words that users grep pod names for to find logs, and their replacements in the names of a job's children."""

_ATTEMPT = re.compile(r"(.+)-a[0-9]+(?:-.*)?")

LAUNCHER, WORKER, SINGLE = "launcher", "worker", "single"

DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
"""Annotation of pods: whose log kubectl shows, and where it executes, unless told otherwise."""

SPEC_KEY = "spec.json"
"""In the ConfigMap with a job's frozen configuration: its spec, with what its profile adds."""


def config_map_name(job: str) -> str:
    """Return the name of the ConfigMap with a job's frozen configuration."""
    return f"{job}-frozen"


def network_policy_name(job: str) -> str:
    """Return the name of the NetworkPolicy of a job's pods."""
    return f"{job}-pods"


def child_name(job: str, run: str, attempt: int, *, is_mpi: bool, uid: str = "") -> str:
    """Return the name of an attempt's child: the only possible one, which makes its creation idempotent.

    uid: The job's, where an object of others has the usual name; nobody can know the other one before the job is there.
    Users find logs by it: the pod of a Job has the run in its name (``training``), that of an MPIJob's launcher gets
    ``-launcher`` from mpi-operator.
    """
    prefix = name_prefix(job) if not uid else uid_prefix(job, uid)
    return f"{prefix}-a{attempt}" if is_mpi else f"{prefix}-a{attempt}-{run}"


def name_prefix(job: str) -> str:
    """Return the prefix of the names of a job's children: its own name, without words that logs are found by.

    A job with such a word in its name would have it in all of its pods, and a search for another job's log would find
    them as well. The hash keeps prefixes of different jobs apart.
    """
    short = job
    while any(word in short for word in _FOUND_BY):  # what is left may form such a word again
        for word, other in _FOUND_BY.items():
            short = short.replace(word, other)
    if short == job:
        return job
    # 6: a dash and five digits, so that it is no longer than the longest name of a job.
    return f"{short[: MAX_JOB_NAME - 6].rstrip('-')}-{hashlib.sha256(job.encode()).hexdigest()[:5]}"


def uid_prefix(job: str, uid: str) -> str:
    """Return the prefix of the names of children for which the usual one is taken: as long as the longest name."""
    return f"{name_prefix(job)[: MAX_JOB_NAME - 6].rstrip('-')}-{hashlib.sha256(uid.encode()).hexdigest()[:5]}"


def prefix_of(child: str) -> str:
    """Return the prefix of a child's name; all of it where no operator has called it so."""
    found = _ATTEMPT.fullmatch(child)
    return found[1] if found else child


def of_children(job: str, uid: str) -> str:
    """Return a regular expression for the names of a job's children."""
    return rf"(?:{re.escape(name_prefix(job))}|{re.escape(uid_prefix(job, uid))})-a[0-9]+(?:-(?:prepare|training))?"


def labels(job: str, run: str, attempt: int) -> dict[str, str]:
    """Return the labels of an attempt's child and of its pods."""
    return {
        "app.kubernetes.io/managed-by": "bert-operator",
        "app.kubernetes.io/name": "bert-pretrain",
        JOB_LABEL: job,
        RUN_LABEL: run,
        ATTEMPT_LABEL: str(attempt),
    }
