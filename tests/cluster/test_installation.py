"""Installed as the guides say, by kustomize and by Helm, the operator runs the same job file on every cluster.

Inputs: two shipped overlays, changed only in the lines that they mark for it, and the chart with a profile that is not
the default; one job file, a recipe's at a small size, which says nothing about its cluster. Observed: what its pods see
of users and volumes, what it leaves and to whom that belongs, the operator after an upgrade, what a removal leaves.
These tests come last: they take the operator of all others away.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from control_plane import built_programs
from job_cluster import CLAIM, ROOT, SYSTEM, USER, JobCluster, Json, Namespace, poll
from nfs_stand_in import NfsMount
from node import NODE_NAME, Cluster, volume_folder
from real_jobs import RealJob, pod_name

pytestmark = pytest.mark.timeout(900)
CHART = ROOT / "charts/bert-operator"
KUSTOMIZE = ROOT / "deploy/kustomize"
MARK = "# <-"
"""Of the lines that users write into. Images are not replaced: the node gets its own under the names of the overlay."""
DEFINITION = "bertpretrainjobs.bert-operator.dev"
SERVER, SHARE = "nfs.example.com", "/exports/bert"
EXAMPLE = ROOT / "examples/12-intel-pytorch/8-nodes-1-rank.yaml"
NODE = {"sockets": "1", "numaNodes": "1", "coresPerRank": "1", "threadsPerCore": "1"}
"""What this machine's node has, and what two of its pods may share."""

_LOOK_INSIDE = """
import errno, json, os, pathlib
def options(place):
    mounts = [line.split() for line in pathlib.Path('/proc/self/mountinfo').read_text().splitlines()]
    return next((mount[5].split(',')[0] for mount in mounts if mount[4] == place), None)
def write(place):
    try:
        (pathlib.Path(place) / f'{os.uname().nodename}.txt').write_text('')
    except OSError as refused:
        return errno.errorcode[refused.errno]
print(json.dumps({
    'user': os.getuid(), 'group': os.getgid(), 'groups': os.getgroups(),
    'mounts': {place: [options(place), write(place)] for place in ('/mnt/data', '/mnt/bert')},
    'threads': os.environ.get('OMP_NUM_THREADS'),
}))
"""


def fit(text: str, values: Mapping[str, str]) -> str:
    """Return a file of an overlay with other values on its marked lines, by key.

    Raises:
        AssertionError: A key stands on no marked line.
    """
    missing, lines = set(values), []
    for line in text.splitlines():
        before, mark, after = line.partition(MARK)
        for key, value in values.items() if mark else ():
            before, found = re.subn(rf"\b{key}: [^,}}\s]+", f"{key}: {value}", before)
            missing -= {key} if found else set()
        lines.append(before + mark + after)
    assert not missing, f"no line that is marked '# <-' has {', '.join(sorted(missing))}"
    return "\n".join(lines) + "\n"


def fit_overlay(folder: Path, name: str, values: Mapping[str, Mapping[str, str]]) -> Path:
    """Copy what is shipped to a new folder, write into the marked lines of an overlay, and return the overlay's folder.

    values: by file and key.
    """
    shutil.copytree(KUSTOMIZE, folder)
    overlay = folder / "overlays" / name
    for file, changed in values.items():
        (overlay / file).write_text(fit((overlay / file).read_text(), changed))
    return overlay


def settings_of(overlay: Path) -> dict[str, Any]:
    """Return the operator's settings of an overlay."""
    found: dict[str, Any] = yaml.safe_load((overlay / "settings.yaml").read_text())
    return found


def name_images(node: Cluster, overlay: Path, operator: str, trainer: str) -> None:
    """Give the node's images the names that an overlay has for them, as a registry would have them."""
    (shipped,) = yaml.safe_load((overlay / "kustomization.yaml").read_text())["images"]
    names = {f"{shipped['newName']}:{shipped['newTag']}": operator, settings_of(overlay)["trainerImage"]: trainer}
    for name, own in names.items():
        node.ctr("images", "tag", "--force", own, name)


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What a run of the job showed while it was at work, and what it left."""

    profile: Json
    spec: Json
    """With what the profile added."""
    inside: list[Json]
    """Of each worker pod: user, groups, mounts."""
    owners: set[tuple[int, int]]
    """User and group of everything below its folder."""
    sums: dict[str, str]
    """SHA-256 of shards and exported weights."""
    volume: str
    """hostPath or nfs."""
    nfs: tuple[NfsMount, ...] = ()


@pytest.fixture(scope="module")
def node(cluster: JobCluster) -> Cluster:
    """The node of this machine, without the operator that the other tests use."""
    if cluster.node is None:
        pytest.skip("installs and removes the operator, its definition included: only on the one-node cluster")
    remove(cluster, KUSTOMIZE / "base")
    return cluster.node


def remove(cluster: JobCluster, tree: Path) -> None:
    cluster.kubectl("delete", "--ignore-not-found", "--wait", "-k", str(tree), timeout_s=180)


@pytest.fixture(scope="module")
def job_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that is applied everywhere: a recipe's, as it is tried before it costs anything."""
    path = tmp_path_factory.mktemp("file") / "job.yaml"
    command = [
        sys.executable,
        "-m",
        "bert_operator",
        "render",
        str(EXAMPLE),
        "--small",
        "--builtin-text",
        "--show",
        "job",
    ]
    answer = subprocess.run(command, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    path.write_text(answer.stdout)
    return path


def job_in(namespace: Namespace, job_file: Path) -> RealJob:
    return RealJob(namespace, yaml.safe_load(job_file.read_text())["metadata"]["name"])


def run_job(job: RealJob, tree: Path, profile: Json, volume: Path) -> Outcome:
    """Apply the job's file, or a tree around it, and look into its pods; volume: its folder on this machine."""
    namespace = job.namespace
    namespace.kubectl("apply", "-k" if tree.is_dir() else "-f", str(tree))
    at_work: list[Json] = []

    def both_run(_: Json) -> bool:
        at_work[:] = [pod for pod in job.pods("worker") if pod["status"].get("phase") == "Running"]
        return len(at_work) == 2

    job.wait(both_run, "two workers", timeout_s=400)
    inside = [json.loads(namespace.python(_LOOK_INSIDE, pod=pod_name(pod))) for pod in at_work]
    job.wait_phase("Succeeded", timeout_s=240)
    frozen, claim = namespace.find("configmap", f"{job.name}-frozen"), namespace.find("pvc", CLAIM)
    assert frozen is not None
    assert claim is not None
    bound = namespace.find("pv", claim["spec"]["volumeName"])
    assert bound is not None
    (kind,) = {"hostPath", "nfs"} & set(bound["spec"])
    spec = json.loads(frozen["data"]["spec.json"])
    results = volume / spec["output"]["path"]
    left = [results, *results.rglob("*")]
    made = sorted([*results.glob("data/**/*.hdf5"), results / "export/huggingface/model.safetensors"])
    return Outcome(
        profile,
        spec,
        inside,
        {(path.lstat().st_uid, path.lstat().st_gid) for path in left},
        {path.relative_to(results).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in made},
        kind,
    )


def run_on_overlay(cluster: JobCluster, node: Cluster, overlay: Path, job_file: Path, volume: Path) -> Outcome:
    """Install an overlay, run the job in its namespace, and remove the overlay."""
    name_images(node, overlay, cluster.operator_image, cluster.trainer_image)
    settings = settings_of(overlay)
    # As `install -d -o 54321 -g 54321` makes it.
    volume.chmod(0o755)
    os.chown(volume, USER, USER)
    cluster.kubectl("apply", "--server-side", "-k", str(overlay))
    cluster.kubectl("-n", SYSTEM, "rollout", "status", "deployment/bert-operator", "--timeout=90s")
    namespace = Namespace(cluster, "bert")
    poll(lambda: namespace.find("serviceaccount", "default"), "the ServiceAccount")
    outcome = run_job(job_in(namespace, job_file), job_file, settings["profiles"][settings["defaultProfile"]], volume)
    remove(cluster, overlay)
    assert not cluster.kubectl("get", "crd", DEFINITION, "--ignore-not-found").strip()
    return outcome


@pytest.fixture(scope="module")
def on_single_node(
    cluster: JobCluster, node: Cluster, job_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> Outcome:
    """The job on a workstation, whose volume is a folder."""
    volume = node.folder / "volumes/workstation"
    volume.mkdir(parents=True)
    changed = {"volumes.yaml": {"path": str(volume)}}
    overlay = fit_overlay(tmp_path_factory.mktemp("one") / "kustomize", "single-node", changed)
    return run_on_overlay(cluster, node, overlay, job_file, volume)


@pytest.fixture(scope="module")
def on_xeon_nfs(
    cluster: JobCluster, node: Cluster, job_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> Outcome:
    """The job on a cluster of Xeons with a share."""
    volume = node.nfs.export(SERVER, SHARE)
    changed = {"settings.yaml": NODE, "volumes.yaml": {"server": SERVER, "path": SHARE}}
    overlay = fit_overlay(tmp_path_factory.mktemp("two") / "kustomize", "xeon-nfs", changed)
    for label, value in settings_of(overlay)["profiles"]["xeon-nfs"]["scheduling"]["nodeSelector"].items():
        cluster.kubectl("label", "node", NODE_NAME, f"{label}={value}")
    outcome = run_on_overlay(cluster, node, overlay, job_file, volume)
    mounts = tuple(mount for mount in node.nfs.mounts() if (mount.server, mount.path) == (SERVER, SHARE))
    return dataclasses.replace(outcome, nfs=mounts)


def assert_as_its_profile_says(outcome: Outcome) -> None:
    user, output = outcome.profile["securityContext"], outcome.profile["output"]["volume"]["mountPath"]
    assert (user["runAsUser"], output) == (USER, "/mnt/bert"), "what the overlays are shipped with"
    assert outcome.spec["securityContext"]["runAsUser"] == USER
    assert outcome.spec["output"]["volume"]["mountPath"] == "/mnt/bert"
    assert len(outcome.inside) == 2
    for pod in outcome.inside:
        assert (pod["user"], pod["group"]) == (USER, USER)
        assert USER in pod["groups"]
        assert pod["mounts"] == {"/mnt/data": ["ro", "EROFS"], "/mnt/bert": ["rw", None]}
        assert int(pod["threads"]) >= 1
    assert outcome.owners == {(USER, USER)}


def test_on_one_machine_the_job_runs_as_the_profile_says(on_single_node: Outcome) -> None:
    assert_as_its_profile_says(on_single_node)
    assert on_single_node.volume == "hostPath"


def test_on_xeons_with_a_share_the_same_file_gives_the_same_shards_and_weights(
    on_single_node: Outcome, on_xeon_nfs: Outcome
) -> None:
    assert_as_its_profile_says(on_xeon_nfs)
    assert on_xeon_nfs.volume == "nfs"
    assert on_xeon_nfs.spec["cpu"]["sockets"] == on_xeon_nfs.spec["cpu"]["coresPerRank"] == 1
    assert {mount.options for mount in on_xeon_nfs.nfs} == {frozenset({"nfsvers=4.1", "hard", "noatime"})}
    assert len(on_xeon_nfs.sums) > 2
    assert on_xeon_nfs.sums == on_single_node.sums


def operator_pod(cluster: JobCluster) -> str:
    """Return the name of the only pod of the operator that is not on its way out."""
    pods = Namespace(cluster, SYSTEM).list("pods", "app.kubernetes.io/name=bert-operator")
    (name,) = [pod["metadata"]["name"] for pod in pods if "deletionTimestamp" not in pod["metadata"]]
    return str(name)


@pytest.fixture(scope="module")
def helm(cluster: JobCluster) -> Callable[..., str]:
    """Runs Helm in the operator's namespace."""
    program = built_programs("helm") / "helm"

    def run(*words: str) -> str:
        command = [str(program), "--kubeconfig", str(cluster.kubeconfig), "--namespace", SYSTEM, *words]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=180)
        assert answer.returncode == 0, f"{' '.join(words)}: {answer.stderr}"
        return answer.stdout

    return run


@pytest.fixture
def values(cluster: JobCluster, tmp_path: Path) -> Path:
    """The chart's values for this cluster, with the profile of the shipped overlay for one node, for who names it."""
    repository, _, tag = cluster.operator_image.rpartition(":")
    document: dict[str, Any] = {
        "image": {"repository": repository, "tag": tag},
        "settings": {"trainerImage": cluster.trainer_image},
        "profiles": settings_of(KUSTOMIZE / "overlays/single-node")["profiles"],
        "replicas": 1,  # as that overlay has it
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


def name_profile(job_file: Path, folder: Path, profile: str) -> Path:
    """Write a tree that is the job's file with the name of a profile."""
    folder.mkdir()
    (folder / job_file.name).write_text(job_file.read_text())
    patch = yaml.safe_dump([{"op": "add", "path": "/spec/profile", "value": profile}])
    patches = [{"target": {"kind": "BertPretrainJob"}, "patch": patch}]
    (folder / "kustomization.yaml").write_text(yaml.safe_dump({"resources": [job_file.name], "patches": patches}))
    return folder


def test_by_helm_a_job_that_names_its_profile_outlives_upgrade_and_removal(
    cluster: JobCluster,
    node: Cluster,
    with_claim: Namespace,
    helm: Callable[..., str],
    values: Path,
    job_file: Path,
    on_single_node: Outcome,
    tmp_path: Path,
) -> None:
    helm("install", "bert-operator", str(CHART), "--create-namespace", "--values", str(values), "--wait")
    assert "Succeeded" in helm("test", "bert-operator")
    tree = name_profile(job_file, tmp_path / "tree", "single-node")
    job = job_in(with_claim, job_file)
    outcome = run_job(job, tree, on_single_node.profile, volume_folder(node, with_claim.name))
    assert_as_its_profile_says(outcome)
    assert outcome.spec["profile"] == "single-node"
    assert outcome.sums == on_single_node.sums

    before = operator_pod(cluster)
    helm("upgrade", "bert-operator", str(CHART), "--values", str(values), "--set", "settings.workers=4", "--wait")
    assert poll(lambda: operator_pod(cluster), "one operator") != before
    assert job.status()["phase"] == "Succeeded"

    helm("uninstall", "bert-operator", "--wait")
    assert not Namespace(cluster, SYSTEM).list("deployments")
    assert job.status()["phase"] == "Succeeded", "the definition stays, and jobs with it"
    cluster.kubectl("delete", "crd", DEFINITION)
