"""A container that asks for no GPU tells NVIDIA's runtime so, whatever its image or envFrom say; others do not."""

from __future__ import annotations

from typing import Any

import pytest

from child_cases import CHILD_CASES, case_child

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
