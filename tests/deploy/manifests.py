"""What kustomize and Helm make of deploy/ and charts/, and whether Kubernetes' schemas accept it.

The programs are built from pinned sources, and the schemas made from released OpenAPI documents, the first time they
are asked for (tools/control_plane); afterwards nothing needs a network.
"""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
KUSTOMIZE = ROOT / "deploy/kustomize"
CHART = ROOT / "charts/bert-operator"
BUILD = ROOT / "tools/control_plane/build.sh"
MODULES = ROOT / "tools/control_plane/modules.sh"
MPI_OPERATOR = "deploy/v2beta1/mpi-operator.yaml"
RELEASES = ("1.31", "1.32", "1.33", "1.34", "1.35", "1.36")

# What a profile may hold.
PLATFORM_FIELDS = {
    *("image", "imagePullPolicy", "imagePullSecrets", "slotsPerWorker", "mpi", "resources", "cpu", "securityContext"),
    *("scheduling", "launcher", "worker", "env", "envFrom", "volumes", "dataset", "output", "proxy", "queueName"),
    *("network", "collectives", "workloadPriorityClass", "podMetadata", "serviceAccountName"),
}

Json = dict[str, Any]


class Loader(yaml.CSafeLoader):
    """Reads 1e-06 as a number, as Kubernetes and YAML 1.2 do."""


Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), "-+0123456789"
)


class Refused(AssertionError):
    """A program that makes or checks manifests said no; the message is its own."""


def run(*command: str | Path, text: str | None = None) -> str:
    """Return what a program printed. Raises Refused with what it said instead."""
    answer = subprocess.run([str(word) for word in command], input=text, capture_output=True, text=True)
    if answer.returncode:
        raise Refused(f"{command[0]}: {answer.stderr}{answer.stdout}")
    return answer.stdout


@functools.cache
def program(name: str) -> Path:
    """Return the path of helm, kustomize or kubeconform."""
    return Path(run(BUILD, "helm", "kustomize", "kubeconform").strip()) / name


@functools.cache
def schemas() -> Path:
    """Return the folder with a folder of schemas per release, and one for custom resources."""
    return Path(run(sys.executable, ROOT / "tools/schemas.py").strip())


@functools.cache
def module_files() -> Path:
    """Return the folder with files of other projects' modules."""
    return Path(run(MODULES).strip())


def parse(text: str) -> list[Json]:
    """Return the documents of a stream."""
    return [document for document in yaml.load_all(text, Loader) if document]


def kustomize(folder: Path) -> str:
    """Return what kustomize makes of a folder."""
    return run(program("kustomize"), "build", folder)


def helm_template(*words: str | Path, values: Json | None = None, chart: Path = CHART) -> str:
    """Return what the chart renders for a release ``bert-operator`` in the namespace of that name."""
    release = ["template", "bert-operator", chart, "--namespace", "bert-operator", *words]
    return run(program("helm"), *release, "--values", "-", text=yaml.safe_dump(values or {}))


def copy_tree(target: Path, part: str = "") -> Path:
    """Copy deploy/kustomize, or a part of it, to change it; returns the copy."""
    shutil.copytree(KUSTOMIZE / part, target / "kustomize" / part)
    return target / "kustomize" / part


def switch_on(folder: Path, *components: str) -> None:
    """Uncomment components in a kustomization, as its comments invite people to do."""
    file = folder / "kustomization.yaml"
    for name in components:
        if not re.search(rf"^ +- \S*components/{name}\b", file.read_text(), re.MULTILINE):
            _edit(file, rf"^#( +- \S*components/{name})\b", r"\1", f"component {name}")


def take_out(folder: Path, patch: str) -> None:
    """Take a patch out of a kustomization."""
    _edit(folder / "kustomization.yaml", rf"^ +- path: {re.escape(patch)}\b.*\n", "", f"patch {patch}")


def edit_environment(jobs: Path, **values: str) -> None:
    """Change keys of mlops.env. jobs: the copied folder."""
    for key, value in values.items():
        _edit(jobs / "base/mlops.env", rf"^{key}=.*$", f"{key}={value}", f"key {key}")


def _edit(file: Path, pattern: str, replacement: str, what: str) -> None:
    """Replace what stands in exactly one place of a file."""
    text, count = re.subn(pattern, replacement, file.read_text(), flags=re.MULTILINE)
    assert count == 1, f"{file} has {count} times the {what}"
    file.write_text(text)


def build_mpi_operator(tmp_path: Path) -> str:
    """Return what deploy/kustomize/mpi-operator makes of the release, taken from its module and not the network."""
    tree = copy_tree(tmp_path, "mpi-operator")
    (release,) = module_files().glob(f"github.com/kubeflow/mpi-operator@*/{MPI_OPERATOR}")
    file = tree / "kustomization.yaml"
    shutil.copy(release, tree / "mpi-operator.yaml")
    subprocess.run(["sha256sum", "--check", "--quiet", "mpi-operator.yaml.sha256"], cwd=tree, check=True)
    text, count = re.subn(rf"https://\S+/{MPI_OPERATOR}", "mpi-operator.yaml", file.read_text())
    assert count == 1, f"{KUSTOMIZE}/mpi-operator does not take {MPI_OPERATOR}"
    file.write_text(text)
    return kustomize(tree)


def check(text: str, releases: Sequence[str] = RELEASES) -> None:
    """Raise Refused where a release of Kubernetes would not accept documents; unknown kinds and fields are refused."""
    for release in releases:
        (folder,) = schemas().glob(f"{release}.*")
        pattern = "{{.ResourceKind}}{{.KindSuffix}}.json"
        words = ["-strict", "-summary", "-schema-location", folder / pattern]
        run(program("kubeconform"), *words, "-schema-location", schemas() / "custom" / pattern, "-", text=text)
