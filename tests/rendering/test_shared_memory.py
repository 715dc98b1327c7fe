"""/dev/shm is as large as the ranks of a pod need; what a job says itself, and what an earlier release froze, stays."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bert_operator.api.parsing.validation import parse_job
from bert_operator.names import PREPARE_RUN, TRAINING_RUN
from bert_operator.render.children import render_child
from bert_operator.render.frozen import Frozen, freeze, render_config_map, spec_document, thaw
from child_cases import IMAGE, UID, child_of, claim, templates
from job_changes import Change, both, put
from sample_job import PREPARE, sample_document

GPU = {"resources": {"accelerator": {}}}


def frozen(**spec: Any) -> Frozen:
    changes: list[Change] = [put(name, value=value) for name, value in spec.items()]
    document = sample_document(both(put("output", "volume", value=claim("results")), *changes))
    document["metadata"]["uid"] = UID
    return freeze(parse_job(document), default_image=IMAGE)


def sizes(of: Frozen, run: str = TRAINING_RUN) -> dict[str, str]:
    """Return the size in every role's pod."""
    return {
        role: next(
            volume["emptyDir"]["sizeLimit"] for volume in pod["spec"]["volumes"] if volume["name"] == "shared-memory"
        )
        for role, pod in templates(render_child(of, child_of(of, run, 1)))
    }


@pytest.mark.parametrize(
    ("spec", "size"),
    [
        ({"slotsPerWorker": 2}, "1Gi"),
        ({"slotsPerWorker": 32}, "1Gi"),
        ({"slotsPerWorker": 33}, "2Gi"),
        ({"slotsPerWorker": 64}, "2Gi"),
        ({"slotsPerWorker": 1, **GPU}, "1Gi"),
        ({"slotsPerWorker": 4, **GPU}, "4Gi"),
        ({"slotsPerWorker": 8, **GPU}, "8Gi"),
        ({"slotsPerWorker": 8, "worker": GPU}, "8Gi"),
        ({"slotsPerWorker": 8, **GPU, "worker": {"resources": {"memory": "8Gi"}}}, "1Gi"),
        ({"slotsPerWorker": 8, "resources": {"accelerator": {}, "sharedMemory": "64Mi"}}, "64Mi"),
        ({"slotsPerWorker": 64, "worker": {"resources": {"sharedMemory": "3Gi"}}}, "3Gi"),
    ],
)
def test_it_follows_from_ranks_and_what_they_run_on_unless_the_job_says_it(spec: dict[str, Any], size: str) -> None:
    assert set(sizes(frozen(**spec)).values()) == {size}


def test_the_launcher_runs_no_ranks_and_keeps_the_usual_size() -> None:
    assert sizes(frozen(workers=2, slotsPerWorker=8, **GPU)) == {"launcher": "1Gi", "worker": "8Gi"}


def test_preparing_in_several_workers_counts_its_processes() -> None:
    document = sample_document(both(put("output", "volume", value=claim("results"))))
    document["spec"]["stages"][PREPARE]["prepare"] |= {"workers": 2, "numProcesses": 40}
    document["metadata"]["uid"] = UID
    of = freeze(parse_job(document), default_image=IMAGE)
    assert sizes(of, PREPARE_RUN)["worker"] == "2Gi"


def test_jobs_for_which_1_gi_is_enough_are_frozen_as_before() -> None:
    assert "sharedMemory" not in json.dumps(spec_document(frozen().job))


def test_a_started_job_keeps_the_size_that_it_was_started_with() -> None:
    of = frozen(slotsPerWorker=8, **GPU)
    document = {**sample_document(), "metadata": {**sample_document()["metadata"], "uid": UID}}
    assert sizes(thaw(document, render_config_map(of)["data"])) == sizes(of) == {"single": "8Gi"}
