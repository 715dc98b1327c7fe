"""The operator, and mpi-operator, cannot be preempted by a job: what is shipped, and what Kubernetes makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from bert_operator.doctor.checks.priority import HIGHEST_OF_USERS

ROOT = Path(__file__).parents[2]
BASE, MPI = ROOT / "deploy/kustomize/base", ROOT / "deploy/kustomize/mpi-operator"


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def test_the_base_gives_the_operator_the_highest_priority_that_is_not_kubernetes_own() -> None:
    shipped, deployment = load(BASE / "priority-class.yaml"), load(BASE / "deployment.yaml")
    assert deployment["spec"]["template"]["spec"]["priorityClassName"] == shipped["metadata"]["name"] == "bert-operator"
    assert shipped["value"] == HIGHEST_OF_USERS == 1_000_000_000
    assert shipped["globalDefault"] is False
    assert "priority-class.yaml" in load(BASE / "kustomization.yaml")["resources"]


def test_mpi_operator_without_which_no_attempt_begins_has_the_same() -> None:
    shipped, kustomization = load(MPI / "priority-class.yaml"), load(MPI / "kustomization.yaml")
    assert (shipped["metadata"]["name"], shipped["value"]) == ("mpi-operator", HIGHEST_OF_USERS)
    assert "priority-class.yaml" in kustomization["resources"]
    (patch,) = kustomization["patches"]
    (step,) = yaml.safe_load(patch["patch"])
    assert step == {"op": "add", "path": "/spec/template/spec/priorityClassName", "value": "mpi-operator"}


def test_the_settings_that_are_shipped_let_jobs_name_no_class() -> None:
    for path in ROOT.glob("deploy/kustomize/**/settings.yaml"):
        assert "priorityClasses" not in load(path).get("limits", {}), path
    chart = load(ROOT / "charts/bert-operator/values.yaml")
    assert chart["settings"]["limits"] == {}
    assert chart["priorityClassName"] == ""
