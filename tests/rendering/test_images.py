"""The trainer's image by digest: taken where any node can pull it, rendered into every later attempt of a job."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bert_operator.names import PREPARE_RUN, TRAINING_RUN
from bert_operator.render.children import render_child
from bert_operator.render.frozen import Frozen, freeze
from bert_operator.render.images import by_digest, find_digest
from child_cases import child_of, container, templates
from job_changes import both, put
from sample_job import sample_job

DIGEST = f"sha256:{'ab' * 32}"
NAME = "registry.example.com:5000/team/trainer"


@pytest.mark.parametrize(
    ("image", "image_id", "found"),
    [
        (f"{NAME}:1", f"{NAME}@{DIGEST}", f"{NAME}@{DIGEST}"),
        (NAME, f"{NAME}@{DIGEST}", f"{NAME}@{DIGEST}"),
        # Docker's own way of writing it.
        (f"{NAME}:1", f"docker-pullable://{NAME}@{DIGEST}", f"{NAME}@{DIGEST}"),
        # Short names: the runtime writes them in full, the job keeps its own.
        ("trainer:1", f"docker.io/library/trainer@{DIGEST}", f"trainer@{DIGEST}"),
        ("team/trainer:1", f"docker.io/team/trainer@{DIGEST}", f"team/trainer@{DIGEST}"),
        ("docker.io/trainer:1", f"docker.io/library/trainer@{DIGEST}", f"docker.io/trainer@{DIGEST}"),
        (
            "index.docker.io/team/trainer:1",
            f"docker.io/team/trainer@{DIGEST}",
            f"index.docker.io/team/trainer@{DIGEST}",
        ),
        ("localhost/trainer:1", f"localhost/trainer@{DIGEST}", f"localhost/trainer@{DIGEST}"),
        # Not pulled, or not there yet.
        (f"{NAME}:1", "", None),
        # Loaded into the node: the digest of its configuration, which no registry knows, or a name made up for it.
        (f"{NAME}:1", DIGEST, None),
        (f"{NAME}:1", f"docker://{DIGEST}", None),
        ("localhost/trainer:1", f"docker.io/library/import-2026-01-01@{DIGEST}", None),
        # The same image under another name, which other nodes may not be allowed to pull.
        (f"{NAME}:1", f"registry.example.com:5000/other/trainer@{DIGEST}", None),
        (f"{NAME}:1", f"{NAME}-evil@{DIGEST}", None),
        ("trainer:1", f"registry.example.com/library/trainer@{DIGEST}", None),
        # Given by digest, or with both.
        (f"{NAME}@{DIGEST}", f"{NAME}@{DIGEST}", None),
        (f"{NAME}:1@{DIGEST}", f"{NAME}@{DIGEST}", None),
        # Not what a runtime writes.
        (f"{NAME}:1", f"{NAME}@sha256:abc", None),
        (f"{NAME}:1", f"{NAME}@{DIGEST}\n", None),
        (f"{NAME}:1", f"{NAME}@{DIGEST} --privileged", None),
    ],
)
def test_a_digest_is_taken_where_every_node_can_pull_it(image: str, image_id: str, found: str | None) -> None:
    for policy in ("Always", "IfNotPresent", ""):
        assert find_digest(image, image_id, policy) == found


def test_nodes_that_never_pull_keep_the_tag_that_was_loaded_into_them() -> None:
    assert find_digest(f"{NAME}:1", f"{NAME}@{DIGEST}", "Never") is None
    assert by_digest(f"{NAME}:1", f"{NAME}@{DIGEST}", "Never") == f"{NAME}:1"


def test_only_the_jobs_own_repository_is_rendered() -> None:
    """The status names what ran, which a webhook may have moved to another registry."""
    assert by_digest(f"{NAME}:1", f"{NAME}@{DIGEST}", None) == f"{NAME}@{DIGEST}"
    assert by_digest(f"{NAME}:1", f"mirror.example.com/team/trainer@{DIGEST}", None) == f"{NAME}:1"
    assert by_digest(f"{NAME}@sha256:{'cd' * 32}", f"{NAME}@{DIGEST}", None) == f"{NAME}@sha256:{'cd' * 32}"
    assert by_digest(f"{NAME}:1", None, None) == f"{NAME}:1"


@pytest.fixture
def frozen() -> Frozen:
    change = both(put("workers", value=2), put("output", "volume", value={"persistentVolumeClaim": {"claimName": "c"}}))
    job = sample_job(change)
    return freeze(
        job.model_copy(update={"metadata": job.metadata.model_copy(update={"uid": "u", "namespace": "n"})}),
        default_image=f"{NAME}:1",
    )


@pytest.mark.parametrize("run", [PREPARE_RUN, TRAINING_RUN])
def test_launcher_workers_and_single_pods_run_the_digest_and_nothing_else_differs(frozen: Frozen, run: str) -> None:
    child = child_of(frozen, run, 2)
    plain = render_child(frozen, child)
    pinned = render_child(frozen, replace(child, image=f"{NAME}@{DIGEST}"))
    roles = [role for role, _ in templates(pinned)]
    assert roles == (["launcher", "worker"] if run == TRAINING_RUN else ["single"])
    for _, template in templates(pinned):
        assert container(template)["image"] == f"{NAME}@{DIGEST}"
        container(template)["image"] = f"{NAME}:1"
    assert pinned == plain
