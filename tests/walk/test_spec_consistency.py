"""What the random walk over the spec asks for after every burst: it finds each thing that may not be, and no other."""

from __future__ import annotations

from typing import Any

import pytest

from spec_consistency import GROUP, Memory, Snapshot, find_problems, not_ended, remember

Json = dict[str, Any]


def job(phase: str = "Running", reason: str = "ChildRunning", *, suspend: bool = False, **status: Any) -> Json:
    metadata = {"name": "bert", "uid": "u", "generation": 2, "resourceVersion": "1"}
    spec = {"runPolicy": {"suspend": suspend}}
    own = {"phase": phase, "reason": reason, "observedGeneration": 2, "attempt": 1, **status}
    return {"metadata": metadata, "spec": spec, "status": own}


def child(
    name: str = "bert-a1-training", *, owner: str = "u", ended: str = "", deleting: bool = False, suspend: bool = False
) -> Json:
    metadata: Json = {
        "name": name,
        "uid": f"uid-{name}",
        "labels": {f"{GROUP}/job": "bert"},
        "resourceVersion": "1",
        "ownerReferences": [{"uid": owner, "controller": True}] if owner else [],
        **({"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleting else {}),
    }
    conditions = [{"type": ended, "status": "True"}] if ended else []
    return {"kind": "Job", "metadata": metadata, "spec": {"suspend": suspend}, "status": {"conditions": conditions}}


def pod(phase: str = "Running", owner: str = "uid-bert-a1-training") -> Json:
    metadata = {
        "name": "p",
        "uid": "p",
        "resourceVersion": "1",
        "ownerReferences": [{"uid": owner, "controller": True}],
    }
    return {"metadata": metadata, "status": {"phase": phase}}


def problems(document: Json, *children: Json, pods: tuple[Json, ...] = (), memory: Memory | None = None) -> list[str]:
    return find_problems(Snapshot((document,), children, (), (), pods), memory or Memory())


BLOCKED = [{"type": "Blocked", "status": "True", "reason": "QuotaExceeded"}]


@pytest.mark.parametrize(
    ("document", "children", "pods"),
    [
        (job(), [child()], [pod()]),
        (job("Pending", "WaitingToStart"), [child()], [pod("Pending")]),
        (job("Pending", "BackingOff"), [child(ended="Failed")], []),
        (job("Pending", "RemovingPrevious"), [child(ended="Failed", deleting=True)], []),
        (job("Pending", "QuotaExceeded", conditions=BLOCKED), [], []),
        (job("Queued", "Queued"), [child(suspend=True)], []),
        (job("Stopping", "StoppingOnRequest", suspend=True), [child(deleting=True)], [pod()]),
        (job("Stopped", "StoppedOnRequest", suspend=True), [], []),
        (job("Succeeded", "AllStagesDone"), [child(ended="Complete")], []),
        (job("Failed", "InvalidInput"), [child(deleting=True)], []),
        (job("Invalid", "SpecInvalid", attempt=0), [], []),
        # Others have taken its owner away; the status knows it all the same.
        (job(child={"uid": "uid-bert-a1-training"}), [child(), child("bert-a2-training", ended="Failed")], [pod()]),
    ],
)
def test_what_may_be_is_no_problem(document: Json, children: list[Json], pods: list[Json]) -> None:
    assert problems(document, *children, pods=tuple(pods)) == []


@pytest.mark.parametrize(
    ("document", "children", "pods", "words"),
    [
        ({**job(), "status": {}}, [], [], "no phase"),
        (job(observedGeneration=1), [child()], [], "generation 2 was not observed, only 1"),
        (job(), [child(), child("bert-a2-training")], [], "2 children at once"),
        (job(), [], [], "Running (ChildRunning) without a child"),
        (job(suspend=True), [child()], [], "a stop is requested, and it is Running"),
        (job("Stopped", "StoppedOnRequest"), [], [], "no stop is requested"),
        (job("Stopped", "StoppedOnRequest", suspend=True), [child()], [], "a child is active"),
        (job("Stopping", "StoppingOnRequest", suspend=True), [child()], [], "no child is being deleted"),
        (job("Queued", "Queued"), [child()], [], "no child is suspended"),
        (job("Pending", "WaitingToStart"), [child()], [pod()], "the pods of bert-a1-training run"),
        (job("Pending", "WaitingToStart"), [], [], "nothing will ever happen"),
        (job("Pending", "RemovingPrevious"), [child(ended="Failed")], [], "nothing will ever happen"),
        (job("Succeeded", "AllStagesDone"), [child()], [], "has Succeeded, and bert-a1-training goes on"),
        (job(), [child(), child("bert-a9-training", owner="other")], [], "is left of a job that is gone"),
        (job(), [child(), child("bert-a9-training", owner="")], [], "is left of a job that is gone"),
    ],
)
def test_what_may_not_be_is_told(document: Json, children: list[Json], pods: list[Json], words: str) -> None:
    (told,) = problems(document, *children, pods=tuple(pods))
    assert words in told


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        ({"phase": "Failed", "attempt": 1}, {"phase": "Succeeded"}, "it had ended, and phase was Failed"),
        ({"phase": "Failed", "attempt": 1, "completionTime": "x"}, {"phase": "Failed"}, "completionTime was x"),
        ({"attempt": 3}, {}, "attempt was 3, is 1"),
        ({"image": "a@sha256:0"}, {"phase": "Running", "image": "a@sha256:1"}, "the image was a@sha256:0"),
        ({"completedRuns": ["prepare"]}, {}, "completed runs were ['prepare']"),
        ({"failures": [{"attempt": 1}]}, {"failures": [{"attempt": 2}]}, "a failure was forgotten"),
    ],
)
def test_what_never_goes_back_is_remembered(before: Json, now: Json, words: str) -> None:
    memory = Memory()
    remember(Snapshot((job(**before) if "phase" in before else job("Running", **before),), (), (), (), ()), memory)
    after = job(**now) if "phase" in now else job("Running", **now)
    assert any(words in text for text in problems(after, *([child()] if "phase" not in now else []), memory=memory))


def test_what_was_to_stay_may_stay() -> None:
    kept = Memory(kept={"uid-bert-a9-training"})
    assert problems(job(), child(), child("bert-a9-training", owner="gone"), memory=kept) == []


def test_a_child_whose_owner_was_taken_before_the_status_named_it_is_the_jobs_own() -> None:
    waiting = job("Pending", "WaitingToStart")
    uid = "uid-bert-a1-training"
    assert problems(waiting, child(owner=""), memory=Memory(kept={uid}, taken_from={uid: "u"})) == []
    (told,) = problems(waiting, child(owner=""), memory=Memory(kept={uid}))
    assert "nothing will ever happen" in told, "left on purpose by an earlier job of this name, in the same second"
    (told,) = problems(waiting, child(owner=""), memory=Memory(kept={uid}, taken_from={uid: "earlier"}))
    assert "nothing will ever happen" in told, "taken from an earlier job of this name"
    uid = "uid-bert-a2-training"
    (told,) = problems(waiting, child("bert-a2-training", owner=""), memory=Memory({}, {uid}, {uid: "u"}))
    assert "nothing will ever happen" in told, "of another attempt"


def test_a_job_of_another_controller_has_no_status_of_ours() -> None:
    elsewhere = {**job(), "spec": {"managedBy": "kueue.x-k8s.io/multikueue"}}
    assert problems({**elsewhere, "status": None}) == []
    (found,) = problems(elsewhere)
    assert "it is for kueue.x-k8s.io/multikueue, and has a status" in found
    assert not_ended({**elsewhere, "status": None}) == ""
    ours = {**job(), "spec": {"managedBy": "bert-operator.dev/operator"}}
    assert "does not end: None" in not_ended({**ours, "status": None})
    assert problems(ours, child(), pods=(pod(),)) == []
