"""BertPretrainJobs of one namespace, as their user sees them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from cluster_api import Answer, Api, wait_until
from kubelet import GROUP, attempt_of
from operator_process import JOBS
from sample_job import PHASE1, PREPARE, sample_document

Json = dict[str, Any]

IMAGE = "registry.example.com/bert-trainer:1"
PATIENCE_S = 90.0
CLAIM = {"persistentVolumeClaim": {"claimName": "results"}}
# The real scheduler would find no node and say so; where a test is about something else, none is asked.
NO_SCHEDULER = {"schedulerName": "tests"}


def job_document(name: str, *, prepare: bool = False, **spec: Any) -> Json:
    """Return a small job whose results lie on a claim; ``spec`` replaces fields of its spec."""
    document = sample_document()
    stages = document["spec"]["stages"]
    kept = [stages[PREPARE], stages[PHASE1]] if prepare else [stages[PHASE1]]
    own: Json = {
        "image": IMAGE,
        "stages": kept,
        "output": {"path": f"runs/{name}", "volume": CLAIM},
        "scheduling": NO_SCHEDULER,
        **({} if prepare else {"dataset": {"path": "/mnt/output/data"}}),
    }
    document["spec"] = {**document["spec"], **own, **spec}
    document["metadata"]["name"] = name
    # A copy: whoever changes the document (a walk does) must not reach into what the next one is made of.
    return copy.deepcopy(document)


class Jobs:
    """The jobs of one namespace."""

    def __init__(self, api: Api, namespace: str) -> None:
        self.api, self.namespace = api, namespace

    def create(self, name: str, *, prepare: bool = False, **spec: Any) -> Json:
        """Create a job and return it as the API server has it."""
        return self.api.create(job_document(name, prepare=prepare, **spec), self.namespace).expect()

    def get(self, name: str) -> Json:
        """Return a job."""
        return self.api.get(JOBS, name, self.namespace).expect()

    def status(self, name: str) -> Json:
        """Return the status of a job, empty where there is none yet."""
        status: Json = self.get(name).get("status") or {}
        return status

    def change(self, name: str, **spec: Any) -> Answer:
        """Merge into the spec of a job."""
        return self.api.patch(JOBS, name, {"spec": spec}, self.namespace)

    def delete(self, name: str) -> None:
        """Delete a job as kubectl does, without waiting for what it owns."""
        self.api.delete(JOBS, name, self.namespace).expect()

    def is_gone(self, name: str) -> bool:
        """Tell whether there is no such job."""
        return self.api.get(JOBS, name, self.namespace).status == 404

    def wait(self, name: str, holds: Callable[[Json], object], what: str, timeout_s: float = PATIENCE_S) -> Json:
        """Return a job's status once something holds of it; what it was last is told where that takes too long."""
        last: Json = {}

        def look() -> bool:
            last.clear()
            last.update(self.status(name))
            return bool(holds(last))

        wait_until(look, lambda: f"{what} of {name}, whose status is {last}", timeout_s=timeout_s)
        return last

    def wait_phase(self, name: str, phase: str, *, attempt: int | None = None, timeout_s: float = PATIENCE_S) -> Json:
        """Return a job's status once it is in a phase (and at an attempt)."""
        return self.wait(
            name,
            lambda status: status.get("phase") == phase and attempt in (None, status.get("attempt")),
            f"{phase} at attempt {attempt or 'any'}",
            timeout_s,
        )

    def children(self, name: str) -> list[Json]:
        """Return a job's Jobs and MPIJobs, oldest attempt first."""
        found = []
        for resource, kind in (("batch/v1/jobs", "Job"), ("kubeflow.org/v2beta1/mpijobs", "MPIJob")):
            items = self.api.list(resource, self.namespace, labelSelector=f"{GROUP}/job={name}")
            found += [{**item, "kind": kind} for item in items]
        return sorted(found, key=attempt_of)

    def child(self, name: str) -> Json:
        """Return the only child that a job has."""
        found = self.children(name)
        assert len(found) == 1, f"{name} has {[item['metadata']['name'] for item in found]}"
        return found[0]

    def frozen(self, name: str) -> Json:
        """Return the ConfigMap that all attempts of a job read."""
        return self.api.get("v1/configmaps", f"{name}-frozen", self.namespace).expect()

    def pods(self, name: str) -> list[Json]:
        """Return a job's pods."""
        return self.api.list("v1/pods", self.namespace, labelSelector=f"{GROUP}/job={name}")

    def events(self, name: str) -> list[str]:
        """Return the reasons of the Events about a job, in alphabetical order."""
        found = self.api.list("v1/events", self.namespace, fieldSelector=f"involvedObject.name={name}")
        return sorted(item["reason"] for item in found if item["involvedObject"]["kind"] == "BertPretrainJob")


def condition(status: Json, kind: str) -> Json:
    """Return one condition of a status; empty where it is absent."""
    return next((item for item in status.get("conditions") or () if item["type"] == kind), {})


def conditions(status: Json) -> dict[str, str]:
    """Return type and reason of the conditions that are True, without those for GitOps tools (tests/deploy)."""
    found = {item["type"]: item["reason"] for item in status["conditions"] if item["status"] == "True"}
    return {kind: reason for kind, reason in found.items() if kind not in ("Ready", "Stalled")}
