"""Installed as the guides say, by kustomize and by Helm, the operator runs the same job file on every cluster.

Inputs: two shipped overlays whose images, folders and nodes are those of the test's node, and the chart. The job says
nothing about its cluster. Observed: what the profile made of it, the operator after an upgrade, what a removal leaves.
These tests come last: they take the operator of all others away.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from control_plane import BUILD
from job_cluster import ROOT, SYSTEM, JobCluster, Json, Namespace, poll
from node import Cluster
from real_jobs import RealJob

pytestmark = pytest.mark.timeout(500)
KUSTOMIZE, CHART = ROOT / "deploy/kustomize", ROOT / "charts/bert-operator"
DEFINITION = "bertpretrainjobs.bert-operator.dev"
JOB: Json = {
    "apiVersion": "bert-operator.dev/v1alpha1",
    "kind": "BertPretrainJob",
    "metadata": {"name": "same-everywhere"},
    "spec": {
        "workers": 2,
        "model": {"preset": "tiny"},
        "optimizer": {"name": "adamw"},
        "stages": [
            {
                "name": "prepare",
                "prepare": {"text": "builtin:python-docs", "vocabularySize": 2048, "dupeFactor": 1},
            },
            {
                "name": "phase1",
                "pretrain": {
                    "sequenceLength": 64,
                    "globalBatchSize": 32,
                    "learningRate": 1e-3,
                    "length": {"steps": 6},
                },
            },
            {"name": "export", "export": {}},
        ],
        "output": {"path": "results", "ifExists": "Resume"},
    },
}


@pytest.fixture(scope="module")
def node(cluster: JobCluster) -> Cluster:
    """The node of this machine, without the operator that the other tests use."""
    if cluster.node is None:
        pytest.skip("installs and removes the operator, its definition included: only on the one-node cluster")
    remove(cluster, KUSTOMIZE / "base")
    return cluster.node


def remove(cluster: JobCluster, tree: Path) -> None:
    cluster.kubectl("delete", "--ignore-not-found", "--wait", "-k", str(tree), timeout_s=180)


def image(cluster: JobCluster, name: str) -> Json:
    repository, _, tag = cluster.operator_image.rpartition(":")
    return {"name": name, "newName": repository, "newTag": tag}


def derive_overlay(
    cluster: JobCluster, folder: Path, name: str, volume: Json, change: Callable[[Json], object]
) -> Path:
    """Write an overlay on a shipped one: its image, where its volume lies, and its settings, changed by ``change``."""
    settings = yaml.safe_load((KUSTOMIZE / "overlays" / name / "settings.yaml").read_text())
    settings["trainerImage"] = cluster.trainer_image
    change(settings["profiles"][name])
    folder.mkdir()
    (folder / "settings.yaml").write_text(yaml.safe_dump(settings))
    replaced = [{"op": "replace", "path": f"/spec/{key}", "value": value} for key, value in volume.items()]
    overlay = {
        "resources": [os.path.relpath(KUSTOMIZE / "overlays" / name, folder)],
        "images": [image(cluster, "docker.io/bert-operator/operator")],
        "configMapGenerator": [
            {
                "name": "bert-operator-settings",
                "namespace": SYSTEM,
                "behavior": "replace",
                "files": ["settings.yaml"],
            }
        ],
        "patches": [{"target": {"kind": "PersistentVolume"}, "patch": yaml.safe_dump(replaced)}],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    return folder


@pytest.fixture
def overlays(cluster: JobCluster, node: Cluster, tmp_path: Path) -> dict[str, Path]:
    """A workstation, whose volume is a folder, and a cluster with a share."""
    local = node.folder / "volumes/workstation"
    local.mkdir(parents=True)
    local.chmod(0o777)
    node.nfs.export("nfs.example.com", "/exports/bert")

    def fit(profile: Json) -> None:
        # This machine has neither the shipped profile's sockets and cores nor its labels.
        profile |= {"cpu": {}, "scheduling": {}, "resources": {"memory": "2Gi"}, "slotsPerWorker": 1}
        profile["env"] = [*profile.get("env", []), {"name": "OMP_NUM_THREADS", "value": "1"}]
        profile["launcher"] = {"resources": {"cpu": "100m", "memory": "1Gi"}}

    return {
        "single-node": derive_overlay(
            cluster, tmp_path / "one", "single-node", {"hostPath/path": str(local)}, lambda _: None
        ),
        "xeon-nfs": derive_overlay(
            cluster,
            tmp_path / "two",
            "xeon-nfs",
            {"nfs/server": "nfs.example.com", "nfs/path": "/exports/bert"},
            fit,
        ),
    }


def run_job(namespace: Namespace) -> RealJob:
    namespace.apply(JOB)
    job = RealJob(namespace, "same-everywhere")
    job.wait_phase("Succeeded", timeout_s=240)
    return job


def operator_pod(cluster: JobCluster) -> str:
    """Return the name of the only pod of the operator that is not on its way out."""
    pods = Namespace(cluster, SYSTEM).list("pods", "app.kubernetes.io/name=bert-operator")
    (name,) = [pod["metadata"]["name"] for pod in pods if "deletionTimestamp" not in pod["metadata"]]
    return str(name)


def test_one_job_file_runs_on_two_overlays(cluster: JobCluster, overlays: dict[str, Path]) -> None:
    volumes = {}
    for name, tree in overlays.items():
        cluster.kubectl("apply", "--server-side", "-k", str(tree))
        cluster.kubectl("-n", SYSTEM, "rollout", "status", "deployment/bert-operator", "--timeout=90s")
        namespace = Namespace(cluster, "bert")
        poll(lambda ns=namespace: ns.find("serviceaccount", "default"), 30, "the ServiceAccount")
        job = run_job(namespace)
        frozen = namespace.find("configmap", f"{job.name}-frozen")
        assert frozen is not None
        spec = json.loads(frozen["data"]["spec.json"])
        assert spec["output"]["volume"]["mountPath"] == "/mnt/bert"
        assert spec["securityContext"]["runAsUser"] == 54321
        claim = namespace.find("pvc", "bert")
        assert claim is not None
        volume = namespace.find("pv", claim["spec"]["volumeName"])
        assert volume is not None
        volumes[name] = sorted({"hostPath", "nfs"} & set(volume["spec"]))
        remove(cluster, tree)
        assert not cluster.kubectl("get", "crd", DEFINITION, "--ignore-not-found").strip()
    assert volumes == {"single-node": ["hostPath"], "xeon-nfs": ["nfs"]}


@pytest.fixture(scope="module")
def helm(cluster: JobCluster) -> Callable[..., str]:
    """Runs Helm in the operator's namespace."""
    folder = subprocess.run([str(BUILD), "helm"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()

    def run(*words: str) -> str:
        command = [f"{folder}/helm", "--kubeconfig", str(cluster.kubeconfig), "--namespace", SYSTEM, *words]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=180)
        assert answer.returncode == 0, f"{' '.join(words)}: {answer.stderr}"
        return answer.stdout

    return run


@pytest.fixture
def values(cluster: JobCluster, tmp_path: Path) -> Path:
    """The chart's values for this cluster, with the profile of the shipped overlay for one node."""
    repository, _, tag = cluster.operator_image.rpartition(":")
    settings = yaml.safe_load((KUSTOMIZE / "overlays/single-node/settings.yaml").read_text())
    document: dict[str, Any] = {
        "image": {"repository": repository, "tag": tag},
        "settings": {"trainerImage": cluster.trainer_image},
        "profiles": settings["profiles"],
        "defaultProfile": settings["defaultProfile"],
    }
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(document))
    return file


@pytest.fixture
def with_claim(cluster: JobCluster, node: Cluster) -> Iterator[Namespace]:
    """A namespace with the claim that the profile names."""
    namespace = cluster.make_namespace("by-helm")
    namespace.make_claim()
    yield namespace
    cluster.delete_namespace(namespace.name)


def test_by_helm_a_job_outlives_upgrade_and_removal(
    cluster: JobCluster, with_claim: Namespace, helm: Callable[..., str], values: Path
) -> None:
    helm("install", "bert-operator", str(CHART), "--create-namespace", "--values", str(values), "--wait")
    assert "Succeeded" in helm("test", "bert-operator")
    job = run_job(with_claim)

    before = operator_pod(cluster)
    helm("upgrade", "bert-operator", str(CHART), "--values", str(values), "--set", "settings.workers=4", "--wait")
    assert poll(lambda: operator_pod(cluster), 60, "one operator") != before
    assert job.status()["phase"] == "Succeeded"

    helm("uninstall", "bert-operator", "--wait")
    assert not Namespace(cluster, SYSTEM).list("deployments")
    assert job.status()["phase"] == "Succeeded", "the definition stays, and jobs with it"
    cluster.kubectl("delete", "crd", DEFINITION)
