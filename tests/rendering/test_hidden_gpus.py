"""A container that asks for no GPU tells NVIDIA's runtime so, whatever its image or envFrom say; others do not."""

from __future__ import annotations

from typing import Any

import pytest

from bert_operator.api.parsing.validation import parse_job
from bert_operator.names import TRAINING_RUN
from bert_operator.render.children import render_child
from bert_operator.render.frozen import freeze
from bert_operator.state.runs import ChildSpec, list_runs
from child_cases import CHILD_CASES, IMAGE, UID, case_child
from job_changes import both, put
from sample_job import sample_document

HIDDEN = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}


def containers(case: str) -> dict[str, dict[str, Any]]:
    spec = case_child(case)["spec"]
    roles = spec.get("mpiReplicaSpecs") or {"Single": spec}
    return {role: part["template"]["spec"]["containers"][0] for role, part in roles.items()}


def asks_for_gpus(container: dict[str, Any]) -> bool:
    resources = container.get("resources", {})
    return "claims" in resources or "nvidia.com/gpu" in resources.get("limits", {})


@pytest.mark.parametrize("case", CHILD_CASES)
def test_gpus_are_hidden_from_who_asks_for_none_and_from_nobody_else(case: str) -> None:
    for role, container in containers(case).items():
        found = [variable for variable in container["env"] if variable["name"] == HIDDEN["name"]]
        # In the launcher mpi-operator adds the variable itself (tests/api_server/test_rendered_children.py).
        assert found == ([] if role == "Launcher" or asks_for_gpus(container) else [HIDDEN]), role


def test_the_cases_have_containers_of_both_kinds() -> None:
    asking = {
        asks_for_gpus(container)
        for case in CHILD_CASES
        for role, container in containers(case).items()
        if role != "Launcher"
    }
    assert asking == {True, False}


CLAIM = {"name": "device", "resourceClaimTemplateName": "one-device"}


@pytest.mark.parametrize(
    ("resources", "is_hidden"),
    [
        ({"accelerator": {"resourceName": "amd.com/gpu"}}, True),
        ({"accelerator": {"resourceName": "habana.ai/gaudi"}}, True),
        ({"accelerator": {"resourceName": "nvidia.com/mig-1g.5gb"}}, False),
        # Plugins that share NVIDIA's under names of their own, by this variable.
        ({"accelerator": {"resourceName": "volcano.sh/vgpu-number"}}, False),
        # Nobody here knows what a claim brings.
        ({"accelerator": {"resourceName": "amd.com/gpu"}, "resourceClaims": [CLAIM]}, False),
    ],
)
def test_devices_of_another_maker_bring_none_of_nvidias(resources: dict[str, Any], is_hidden: bool) -> None:
    document = sample_document(both(put("slotsPerWorker", value=1), put("resources", value=resources)))
    document["metadata"]["uid"] = UID
    job = freeze(parse_job(document), default_image=IMAGE)
    run = next(run for run in list_runs(job.job) if run.name == TRAINING_RUN)
    child = render_child(job, ChildSpec(run=run.name, attempt=1, stages=run.stages, ranks=run.ranks))
    assert (HIDDEN in child["spec"]["template"]["spec"]["containers"][0]["env"]) is is_hidden
