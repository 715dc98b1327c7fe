"""The image of the first attempt is kept by digest, and every later attempt is created from it."""

from __future__ import annotations

from dataclasses import replace

from bert_operator.api.schema.status import JobStatus
from bert_operator.cluster.object_summaries import read_child, read_pod
from bert_operator.cluster.observation import observe_child
from bert_operator.state.plan import plan
from child_documents import CREATED_S, child_document, pod_document
from plan_inputs import NOW_S, TRAINING_ONLY, child, observed

NAME = "registry.example.com/team/trainer"
FIRST, MOVED = f"{NAME}@sha256:{'a' * 64}", f"{NAME}@sha256:{'b' * 64}"


def test_what_the_first_attempt_ran_is_written_down_and_run_again() -> None:
    job = TRAINING_ONLY
    running = plan(job, observed(child(state="Running", image=FIRST)), NOW_S)
    assert running.status.image == FIRST
    failed = observed(child(image=FIRST, exit_code=137, signal=9), status=running.status)
    ended = plan(job, failed, NOW_S)
    gone = plan(job, replace(failed, status=ended.status, children=()), NOW_S)
    assert gone.create is not None
    assert (gone.create.attempt, gone.create.image) == (2, FIRST)


def test_a_moved_tag_does_not_replace_it() -> None:
    status = JobStatus(attempt=2, run="training", phase="Running", image=FIRST)
    later = plan(TRAINING_ONLY, observed(child(2, state="Running", image=MOVED), status=status), NOW_S)
    assert later.status.image == FIRST


def test_of_two_children_the_first_counts() -> None:
    both = observed(child(1, image=FIRST), child(2, state="Running", image=MOVED))
    assert plan(TRAINING_ONLY, both, NOW_S).status.image == FIRST


def test_without_a_digest_the_tag_is_run_as_before() -> None:
    job = TRAINING_ONLY
    failed = observed(child(exit_code=137, signal=9))
    status = plan(job, failed, NOW_S).status
    assert status.image is None
    again = plan(job, replace(failed, status=status, children=()), NOW_S).create
    assert again is not None
    assert again.image is None


def seen(
    image_id: str,
    *,
    role: str = "launcher",
    policy: str = "IfNotPresent",
    first: str = "trainer",
    made_with: str = NAME,
) -> str | None:
    """Return what a child with one such pod is found to have run in."""
    document = pod_document(role, phase="Running")
    document["spec"] |= {"containers": [{"name": "trainer", "image": f"{NAME}:1", "imagePullPolicy": policy}]}
    statuses = [{"name": name, "imageID": image_id} for name in dict.fromkeys((first, "trainer"))]
    statuses[0]["imageID"] = image_id if first == "trainer" else MOVED
    document["status"]["containerStatuses"] = statuses
    containers = [{"name": "trainer", "image": f"{made_with}:1"}]
    made = child_document() | {
        "spec": {"mpiReplicaSpecs": {"Launcher": {"template": {"spec": {"containers": containers}}}}}
    }
    found, pod = read_child(made), read_pod(document)
    assert found is not None
    assert pod is not None
    return observe_child(found[1], [pod[1]], {}, workers=1, now_s=CREATED_S).image


def test_the_image_is_that_of_the_pod_that_starts_the_program() -> None:
    assert seen(FIRST) == FIRST
    assert seen(FIRST, role="single") == FIRST
    assert seen(FIRST, role="worker") is None


def test_another_repository_than_the_child_was_made_with_is_not_taken() -> None:
    """Somebody has labelled a pod of theirs, or a webhook has sent the pods elsewhere; a later pod may tell more."""
    assert seen(FIRST, made_with="registry.example.com/team/other") is None
    assert seen(FIRST, made_with="") is None


def test_a_sidecar_does_not_decide() -> None:
    assert seen(FIRST, first="a-sidecar") == FIRST


def test_what_cannot_be_pulled_is_not_taken() -> None:
    assert seen("") is None
    assert seen(f"sha256:{'a' * 64}") is None
    assert seen(FIRST, policy="Never") is None
    assert seen(f"{NAME}{'x' * 600}@sha256:{'a' * 64}") is None
