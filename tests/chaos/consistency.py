"""Whether a job's status says what is: its children, its pods and how far its run has come.

Only the cluster and the job's files are asked, never the operator. ``inconsistency`` is pure and has its own tests.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cluster_api import wait_until
from fault import Scene
from job_cluster import Json
from real_jobs import RealJob

PATIENCE_S = 60.0
"""Four times the bar; what takes longer counts as this long, and a note says what is wrong."""
ENDED = ("Succeeded", "Failed")
MPI_JOBS, JOBS = "kubeflow.org/v2beta1/mpijobs", "batch/v1/jobs"


@dataclass(frozen=True, slots=True)
class Truth:
    """What is, whatever the status says."""

    attempt: int
    """Of the newest child that has not ended; 0 where there is none."""
    is_running: bool
    """Whether the pod with the log runs."""
    step: tuple[str, int] = ("", 0)
    """Stage and steps of it that had been trained when the fault was over."""
    children: int = 0
    """How many have not ended."""
    leaving: int = 0
    """Pods that are left, where no child is: the next one waits for them."""


def inconsistency(status: Json, truth: Truth, stages: Sequence[str]) -> str:
    """Say in what a status is wrong; empty where it is right. stages: of the job, in order."""
    phase, attempt = status.get("phase"), status.get("attempt", 0)
    if truth.children > 1:
        return f"{truth.children} children have not ended"
    if truth.attempt == 0:
        # The last child's end may stand in the status a moment before its object says so, not the other way round.
        waits = phase == "Stopped" or status.get("reason") == "BackingOff" or (phase == "Pending" and truth.leaving)
        return "" if phase in ENDED or waits else f"no child is left, and the phase is {phase} ({status.get('reason')})"
    if attempt != truth.attempt:
        return f"attempt {truth.attempt} is the newest child's, and the status says {attempt}"
    if not truth.is_running:
        return "" if phase in ("Pending", "Queued") else f"no pod runs yet, and the phase is {phase}"
    if phase != "Running":
        return f"its pods run, and the phase is {phase} ({status.get('reason')}: {status.get('message')})"
    blocked = [item for item in status.get("conditions", ()) if (item["type"], item["status"]) == ("Blocked", "True")]
    if blocked:
        return f"its pods run, and it is Blocked: {blocked[0]['message']}"
    return _late_progress(status, truth, stages)


def _late_progress(status: Json, truth: Truth, stages: Sequence[str]) -> str:
    stage, steps = truth.step
    if not stage:
        return ""
    told, told_steps = status.get("stage") or "", (status.get("progress") or {}).get("step") or 0
    if told in stages and stages.index(told) > stages.index(stage):
        return ""  # a later one
    if told != stage or told_steps < steps:
        return f"step {steps} of {stage} was trained, and the status says {told_steps} of {told or 'no stage'}"
    return ""


def wait_consistent(scene: Scene) -> float:
    """Return the seconds until the status says what is, PATIENCE_S at most; call it when the fault is over."""
    began_s, last_step, runs = time.monotonic(), read_last_step(scene.job), newest_uid(scene.job)
    stages = [stage["name"] for stage in _spec(scene.job)["stages"]]
    wrong = ""

    def is_right() -> bool:
        nonlocal wrong
        try:
            # Of the step that was trained a child tells that began since then only once it gets there.
            is_same = newest_uid(scene.job) == runs
            wrong = inconsistency(scene.job.status(), look(scene.job, last_step if is_same else ("", 0)), stages)
        except AssertionError as refused:  # by an API server that has just started: 429
            wrong = str(refused)
        return not wrong

    try:
        wait_until(is_right, "a consistent status", timeout_s=PATIENCE_S, every_s=0.3)
    except TimeoutError:
        scene.notes.append(f"after {PATIENCE_S:.0f} s: {wrong}")
    return time.monotonic() - began_s


def look(job: RealJob, last_step: tuple[str, int] = ("", 0)) -> Truth:
    """Return what is with a job now.

    Children are found by name: labels and owners may be what is wrong.
    """
    children = [child for child in find_children(job) if not has_ended(child)]
    newest = max(children, key=attempt_of, default=None)
    pods = job.namespace.list("pods")
    if newest is None:
        of_job = [pod for pod in pods if str(pod["metadata"]["name"]).startswith(f"{job.name}-a")]
        left = [pod for pod in of_job if pod["status"].get("phase") not in ("Succeeded", "Failed")]
        return Truth(0, is_running=False, leaving=len(left))
    pods = [pod for pod in pods if _is_main(pod, newest["metadata"]["name"])]
    is_running = any(_is_running(pod) for pod in pods)
    return Truth(attempt_of(newest), is_running=is_running, step=last_step, children=len(children))


def newest_uid(job: RealJob) -> str:
    """Return the uid of the newest child that has not ended and is not being deleted; empty where there is none."""
    children = [child for child in find_children(job) if not has_ended(child)]
    left = [child for child in children if "deletionTimestamp" not in child["metadata"]]
    return str(max(left, key=attempt_of)["metadata"]["uid"]) if left else ""


def find_children(job: RealJob) -> list[Json]:
    """Return the Jobs and MPIJobs of a job, by their names."""
    node = job.namespace.cluster.node
    assert node is not None, "only on a node of this machine"
    name = re.compile(rf"{re.escape(job.name)}-a\d+(-prepare|-training)?")
    found = [item for kind in (MPI_JOBS, JOBS) for item in node.api.list(kind, job.namespace.name)]
    return [item for item in found if name.fullmatch(item["metadata"]["name"])]


def attempt_of(child: Json) -> int:
    """Return the attempt in a child's name."""
    found = re.search(r"-a(\d+)", child["metadata"]["name"])
    return int(found[1]) if found else 0


def has_ended(child: Json) -> bool:
    """Return whether a child has succeeded or failed, by its own conditions."""
    conditions = (child.get("status") or {}).get("conditions") or ()
    return any(item["status"] == "True" and item["type"] in ("Succeeded", "Complete", "Failed") for item in conditions)


def read_last_step(job: RealJob) -> tuple[str, int]:
    """Return the stage of the newest line of a job's ledger, and how many of its steps are trained."""
    assert job.namespace.folder is not None, "only on a node of this machine"
    path = job.namespace.folder / job.name / "ledger.jsonl"
    whole = path.read_bytes().rpartition(b"\n")[0] if path.exists() else b""
    if not whole:
        return "", 0
    entry = json.loads(whole.splitlines()[-1])
    return str(entry["stage"]), int(entry["step"]) + 1


def _is_main(pod: Mapping[str, Json], child: str) -> bool:
    name = str(pod["metadata"]["name"])
    return name.startswith(f"{child}-") and not name.startswith(f"{child}-worker-")


def _is_running(pod: Json) -> bool:
    return pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]


def _spec(job: RealJob) -> Json:
    document = job.namespace.find("bpj", job.name)
    assert document is not None, f"{job.name} is gone"
    spec: Json = document["spec"]
    return spec
