"""charts/bert-operator: the same objects as kustomize makes, for every release, with every value documented."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from bert_operator.cluster.settings import load_settings
from manifests import CHART, KUSTOMIZE, Json, Refused, check, copy_tree, helm_template, kustomize, parse, program, run

EVERYTHING: Json = {
    "networkPolicy": {"enabled": True},
    "podDisruptionBudget": {"enabled": True},
    "monitoring": {"podMonitor": {"enabled": True}, "alerts": {"enabled": True}, "dashboards": {"enabled": True}},
}
VALUE_SETS: dict[str, Json] = {
    "defaults": {},
    "everything": EVERYTHING,
    "namespaced": {"watchNamespaces": ["team-a", "team-b"]},
    "nothing-of-the-cluster": {
        "crds": {"install": False},
        "rbac": {"create": False, "userRoles": False},
        "serviceAccount": {"create": False, "name": "given"},
    },
    "all-fields-set": {
        **EVERYTHING,
        "fullnameOverride": "bert",
        "image": {
            "repository": "registry.example.com/operator",
            "digest": f"sha256:{'0' * 64}",
            "pullPolicy": "Always",
        },
        "imagePullSecrets": [{"name": "registry"}],
        "crds": {"keep": False},
        "serviceAccount": {"annotations": {"example.com/identity": "bert"}},
        "nodeSelector": {"pool": "system"},
        "tolerations": [{"key": "system", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "system-cluster-critical",
        "podLabels": {"team": "nlp"},
        "podAnnotations": {"example.com/note": "x"},
        "env": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
        "defaultProfile": "a",
        "profiles": {"a": {"slotsPerWorker": 8}},
    },
}
HELM_ONLY = {"app.kubernetes.io/version", "app.kubernetes.io/managed-by", "helm.sh/chart"}


def by_name(documents: list[Json]) -> dict[str, Json]:
    """Return documents by kind, namespace and name."""
    return {
        "/".join((item["kind"], item["metadata"].get("namespace", ""), item["metadata"]["name"])): item
        for item in documents
    }


def normalise(documents: list[Json]) -> dict[str, Json]:
    """Take away what only one of the two tools writes; nothing else.

    Helm: its three labels, the checksum, what keeps the definition, its test. kustomize: the hash in a name, the
    namespace itself. How settings.yaml is laid out differs; what it says does not.
    """
    text = re.sub(r"(bert-operator-settings)-[a-z0-9]{10}\b", r"\1", json.dumps(documents))
    kept = []
    for item in json.loads(text):
        metadata = item["metadata"]
        annotations = metadata.get("annotations", {})
        if item["kind"] == "Namespace" or "helm.sh/hook" in annotations:
            continue
        if annotations.pop("helm.sh/resource-policy", None) and not annotations:
            del metadata["annotations"]
        for label in HELM_ONLY & set(metadata.get("labels", {})):
            del metadata["labels"][label]
        if item["kind"] == "Deployment":
            pod = item["spec"]["template"]["metadata"]
            pod.get("annotations", {}).pop("checksum/settings", None)
            if not pod.get("annotations"):
                pod.pop("annotations", None)
        if item["kind"] == "ConfigMap":
            item["data"] = {key: yaml.safe_load(value) for key, value in item["data"].items()}
        kept.append(item)
    return by_name(kept)


def with_components(tmp_path: Path, *components: str) -> list[Json]:
    """Return what kustomize makes of the base with components, without what is meant for namespaces with jobs."""
    tree = copy_tree(tmp_path)
    kustomization = {"resources": ["../base"], "components": [f"../components/{name}" for name in components]}
    (tree / "all").mkdir()
    (tree / "all/kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    documents = parse(kustomize(tree / "all"))
    return [item for item in documents if item["metadata"].get("namespace") != "bert" or item["kind"] == "RoleBinding"]


@pytest.mark.parametrize("values", VALUE_SETS.values(), ids=VALUE_SETS)
def test_every_release_of_kubernetes_accepts_it(values: Json) -> None:
    text = helm_template(values=values)
    check(text)
    run(program("helm"), "lint", "--strict", "--quiet", CHART, "--values", "-", text=yaml.safe_dump(values))


def test_kustomize_makes_the_same_objects(tmp_path: Path) -> None:
    ours = normalise(with_components(tmp_path, "network-policy", "monitoring"))
    helms = normalise(parse(helm_template(values=EVERYTHING)))
    assert set(helms) == set(ours)
    for name, document in ours.items():
        assert helms[name] == document, name


def test_in_single_namespaces_too(tmp_path: Path) -> None:
    ours = normalise(with_components(tmp_path, "namespaced"))
    assert normalise(parse(helm_template(values={"watchNamespaces": ["bert"]}))) == ours


@pytest.mark.parametrize("overlay", sorted(path.name for path in (KUSTOMIZE / "overlays").iterdir()))
def test_profiles_of_an_overlay_are_values_as_they_stand(overlay: str) -> None:
    settings = yaml.safe_load((KUSTOMIZE / "overlays" / overlay / "settings.yaml").read_text())
    values = {key: settings[key] for key in ("profiles", "defaultProfile")}
    values["settings"] = {key: value for key, value in settings.items() if key not in values}
    (config_map,) = (item for item in parse(helm_template(values=values)) if item["kind"] == "ConfigMap")
    assert yaml.safe_load(config_map["data"]["settings.yaml"]) == settings


def test_the_operator_can_read_its_settings_and_large_numbers_stay_whole(tmp_path: Path) -> None:
    (config_map,) = (item for item in parse(helm_template()) if item["kind"] == "ConfigMap")
    file = tmp_path / "settings.yaml"
    file.write_text(config_map["data"]["settings.yaml"])
    assert load_settings(file).trainer_image == "registry.invalid/bert-operator/trainer:0.2.0"
    large = helm_template(values={"profiles": {"a": {"securityContext": {"runAsUser": 2_000_000_000}}}})
    assert '"runAsUser": 2000000000' in large


def test_a_setting_or_a_profile_rolls_the_operator_and_nothing_else_does() -> None:
    def checksum(values: Json) -> str:
        (deployment,) = (item for item in parse(helm_template(values=values)) if item["kind"] == "Deployment")
        found: str = deployment["spec"]["template"]["metadata"]["annotations"]["checksum/settings"]
        return found

    changed = [{"settings": {"allowHostPath": True}}, {"profiles": {"a": {}}}, {"defaultProfile": "a"}]
    assert len({checksum(values) for values in [{}, *changed]}) == 4
    assert checksum({"crds": {"keep": False}}) == checksum({})


def test_the_definition_is_upgraded_with_the_release_and_kept_when_it_goes() -> None:
    def definitions(**crds: bool) -> list[Json]:
        documents = parse(helm_template(values={"crds": crds}))
        return [item for item in documents if item["kind"] == "CustomResourceDefinition"]

    (kept,), (removed,) = definitions(), definitions(keep=False)
    assert kept["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert "annotations" not in removed["metadata"]
    assert definitions(install=False) == []
    assert not (CHART / "crds").exists(), "Helm never upgrades what lies there"


def test_a_package_holds_what_the_chart_links_to(tmp_path: Path) -> None:
    run(program("helm"), "package", CHART, "--destination", tmp_path)
    (package,) = tmp_path.glob("*.tgz")
    assert parse(helm_template(chart=package, values=EVERYTHING)) == parse(helm_template(values=EVERYTHING))


def test_a_chart_that_was_copied_without_what_it_links_to_is_refused(tmp_path: Path) -> None:
    copy = shutil.copytree(CHART, tmp_path / "chart", symlinks=True, ignore=shutil.ignore_patterns("files"))
    (copy / "files").mkdir()
    for values in ({}, {"crds": {"install": False}}, {"crds": {"install": False}, "rbac": {"userRoles": False}}):
        with pytest.raises(Refused, match="install a packaged chart"):
            helm_template(chart=copy, values={**EVERYTHING, **values})


def test_every_pod_of_the_chart_meets_the_restricted_standard() -> None:
    documents = parse(helm_template())
    pods = [item["spec"]["template"]["spec"] for item in documents if item["kind"] == "Deployment"]
    pods += [item["spec"] for item in documents if item["kind"] == "Pod"]
    assert len(pods) == 2
    for pod in pods:
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_a_cluster_that_gives_ids_of_its_own_is_left_to_do_so() -> None:
    for values, expected in (
        ({}, {"runAsUser": 65532, "runAsGroup": 65532}),
        ({"securityContext": {"runAsUser": 1_000_660_000}}, {"runAsUser": 1_000_660_000, "runAsGroup": 65532}),
        ({"securityContext": {"runAsUser": None, "runAsGroup": None}}, {}),
    ):
        (deployment,) = (item for item in parse(helm_template(values=values)) if item["kind"] == "Deployment")
        given = deployment["spec"]["template"]["spec"]["securityContext"]
        assert {name: given[name] for name in given if name.startswith("runAs") and name != "runAsNonRoot"} == expected


def test_artifact_hub_is_told_of_every_image_that_the_chart_names() -> None:
    annotations = yaml.safe_load((CHART / "Chart.yaml").read_text())["annotations"]
    documents = parse(helm_template())
    pods = [item["spec"]["template"]["spec"] for item in documents if item["kind"] == "Deployment"]
    pods += [item["spec"] for item in documents if item["kind"] == "Pod"]
    (config_map,) = (item for item in documents if item["kind"] == "ConfigMap")
    named = {container["image"] for pod in pods for container in pod["containers"]}
    named.add(yaml.safe_load(config_map["data"]["settings.yaml"])["trainerImage"])
    assert {image["image"] for image in yaml.safe_load(annotations["artifacthub.io/images"])} == named


def test_every_value_is_explained_and_in_the_schema() -> None:
    text = (CHART / "values.yaml").read_text()
    schema = json.loads((CHART / "values.schema.json").read_text())
    sections = {
        "image",
        "crds",
        "serviceAccount",
        "securityContext",
        "rbac",
        "networkPolicy",
        "podDisruptionBudget",
        "monitoring",
    }
    sections |= {"podMonitor", "alerts", "dashboards", "requests", "limits"}
    lines = text.splitlines()
    for number, line in enumerate(lines):
        key = re.match(r" *(\w+):", line)
        if key and key[1] not in sections:
            assert lines[number - 1].lstrip().startswith("#"), f"values.yaml:{number + 1}: {key[1]} has no comment"
    assert set(yaml.safe_load(text)) == set(schema["properties"]) - {"global"}


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"operatorImage": {}}, "operatorImage"),
        ({"image": {"tags": "1"}}, "tags"),
        ({"crds": {"keep": "yes"}}, "keep"),
        ({"watchNamespaces": "team-a"}, "watchNamespaces"),
        ({"settings": {"profiles": {}}}, "profiles"),
        ({"settings": {"sweepSecond": 60}}, "sweepSecond"),
        ({"settings": {"workers": 0}}, "workers"),
        ({"monitoring": {"podMonitor": {"interval": "soon"}}}, "interval"),
        ({"networkPolicy": {"apiServerPorts": [0]}}, "apiServerPorts"),
        ({"securityContext": {"runAsUser": 0}}, "runAsUser"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(values: Json, named: str) -> None:
    with pytest.raises(Refused, match=named):
        helm_template(values=values)


def test_the_release_s_own_check_fails_where_nothing_answers() -> None:
    command = [sys.executable, str(CHART / "files/check.py"), "http://127.0.0.1:9", "team-a"]
    nowhere = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "9"}
    answer = subprocess.run(command, env={**os.environ, **nowhere}, capture_output=True, text=True)
    assert answer.returncode == 1
    assert [line.partition(":")[0] for line in answer.stdout.splitlines()] == ["failed"] * 3 + ["note"]
    assert "failed" in helm_template(), "the test pod runs this file"
