"""What lies under deploy/kustomize can be applied: to every supported release, with every component, by kubectl too."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from manifests import KUSTOMIZE, Json, Refused, build_mpi_operator, check, copy_tree, kustomize, parse, run, switch_on

OVERLAYS = sorted(path.name for path in (KUSTOMIZE / "overlays").iterdir())
JOBS = ["single-node", "multi-node"]
TREES = ["base", *(f"overlays/{name}" for name in OVERLAYS), *(f"jobs/{name}" for name in JOBS)]
COMPONENTS = sorted(path.name for path in (KUSTOMIZE / "components").iterdir())
JOB_COMPONENTS = sorted(path.name for path in (KUSTOMIZE / "jobs/components").iterdir())


def names(documents: list[Json], kind: str) -> set[str]:
    return {document["metadata"]["name"] for document in documents if document["kind"] == kind}


@pytest.mark.parametrize("tree", TREES)
def test_every_release_of_kubernetes_accepts_it(tree: str) -> None:
    check(kustomize(KUSTOMIZE / tree))


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_overlay_offers_every_component_and_can_have_all_of_them(overlay: str, tmp_path: Path) -> None:
    tree = copy_tree(tmp_path)
    switch_on(tree / "overlays" / overlay, *COMPONENTS)
    text = kustomize(tree / "overlays" / overlay)
    check(text)
    assert len(parse(text)) > len(parse(kustomize(KUSTOMIZE / "overlays" / overlay)))


@pytest.mark.parametrize("component", JOB_COMPONENTS)
@pytest.mark.parametrize("variant", JOBS)
def test_every_component_of_jobs_makes_a_job_that_the_definition_allows(
    variant: str, component: str, tmp_path: Path
) -> None:
    jobs = copy_tree(tmp_path, "jobs")
    switch_on(jobs / variant, component)
    text = kustomize(jobs / variant)
    check(text)
    assert text != kustomize(KUSTOMIZE / "jobs" / variant)


def test_mpi_operator_is_released_software_with_one_right_more(tmp_path: Path) -> None:
    text = build_mpi_operator(tmp_path)
    check(text)
    documents = parse(text)
    (deployment,) = (document for document in documents if document["kind"] == "Deployment")
    assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == "mpioperator/mpi-operator:0.8.2"
    (binding,) = (item for item in documents if item["metadata"]["name"].endswith("job-status") and "subjects" in item)
    account = {"kind": "ServiceAccount", **{key: deployment["metadata"][key] for key in ("name", "namespace")}}
    assert binding["subjects"] == [account]
    released = next(
        item for item in documents if item["kind"] == "ClusterRole" and item["metadata"]["name"] == "mpi-operator"
    )
    given = {resource for rule in released["rules"] for resource in rule["resources"]}
    assert "jobs/status" not in given, "this release has the right itself; job-status.yaml can go"


def test_the_check_refuses_what_an_api_server_would() -> None:
    wrong = kustomize(KUSTOMIZE / "base").replace("readOnlyRootFilesystem", "readOnlyRootFileSystem")
    with pytest.raises(Refused, match="readOnlyRootFileSystem"):
        check(wrong)
    unknown = kustomize(KUSTOMIZE / "jobs/single-node").replace("slotsPerWorker", "slotPerWorker")
    with pytest.raises(Refused, match="slotPerWorker"):
        check(unknown, ["1.36"])


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="requires kubectl")
@pytest.mark.parametrize("tree", TREES)
def test_kubectl_makes_the_same_of_it(tree: str) -> None:
    assert parse(run("kubectl", "kustomize", KUSTOMIZE / tree)) == parse(kustomize(KUSTOMIZE / tree))


def test_another_setting_rolls_the_operator(tmp_path: Path) -> None:
    tree = copy_tree(tmp_path)
    settings = tree / "base/settings.yaml"
    settings.write_text(settings.read_text().replace("allowHostPath: false", "allowHostPath: true"))
    before, after = parse(kustomize(KUSTOMIZE / "base")), parse(kustomize(tree / "base"))
    assert names(before, "ConfigMap") != names(after, "ConfigMap")
    for documents in (before, after):
        (deployment,) = (item for item in documents if item["kind"] == "Deployment")
        (name,) = names(documents, "ConfigMap")
        volumes = {volume["name"]: volume for volume in deployment["spec"]["template"]["spec"]["volumes"]}
        assert volumes["settings"]["configMap"]["name"] == name


def test_in_namespaced_mode_rights_and_operator_mean_the_same_namespace(tmp_path: Path) -> None:
    tree = copy_tree(tmp_path)
    switch_on(tree / "overlays/single-node", "namespaced")
    documents = parse(kustomize(tree / "overlays/single-node"))
    assert names(documents, "ClusterRoleBinding") == set()
    bindings = {item["metadata"]["name"]: item for item in documents if item["kind"] == "RoleBinding"}
    assert bindings.keys() == {"bert-operator", "bert-operator-lease"}
    binding = bindings["bert-operator"]
    (deployment,) = (item for item in documents if item["kind"] == "Deployment")
    arguments = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    assert arguments[-2:] == ["--namespace", binding["metadata"]["namespace"]]
