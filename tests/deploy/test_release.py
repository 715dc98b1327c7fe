"""make release from a clean clone, twice, and the commands of docs/guides/verify.md on what it made.

The clone holds the last commit: what is not committed is not tested. Helm and mpi-operator's manifest come from Go
modules, as in the other tests of this folder.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml
from spdx_tools.spdx.parser.parse_anything import parse_file
from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

from git_clone import require_clone
from manifests import kustomize, program, run

ROOT = Path(__file__).parents[2]
VERSION = re.findall(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), flags=re.MULTILINE)[0]
PAGE = ROOT / "docs/guides/verify.md"

pytestmark = [pytest.mark.manifests, pytest.mark.timeout(300)]


def make(clone: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, clone / "tools/make_release.py", *words]
    return subprocess.run(command, cwd=clone, capture_output=True, text=True, timeout=280)


def copy_clone(source: Path, target: Path) -> Path:
    subprocess.run(["git", "clone", "-q", source, target], check=True)
    return target


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require_clone("and a release is made of a commit")
    return copy_clone(ROOT, tmp_path_factory.mktemp("release") / "clone")


@pytest.fixture(scope="module")
def dist(clone: Path) -> Path:
    done = make(clone, "--images", "none")
    assert done.returncode == 0, done.stderr
    return clone / "dist"


def test_a_release_holds_a_list_of_parts_for_every_file(dist: Path) -> None:
    files = {path.name for path in dist.iterdir()}
    described = {
        f"bert_pretrain_operator-{VERSION}-py3-none-any.whl",
        f"bert_pretrain_operator-{VERSION}.tar.gz",
        f"bert-operator-chart-{VERSION}.tgz",
        f"bert-operator-kustomize-{VERSION}.tar.gz",
        f"kubectl-bert-{VERSION}.tar.gz",
    }
    lists = {f"{name}.spdx.json" for name in described}
    assert files == {*described, *lists, f"bert-operator-{VERSION}.openvex.json", "bert.yaml", "SHA256SUMS"}
    for name in lists:
        document = parse_file(str(dist / name))
        assert validate_full_spdx_document(document) == []


def test_the_wheel_s_list_names_what_the_images_install(dist: Path) -> None:
    document = json.loads((dist / f"bert_pretrain_operator-{VERSION}-py3-none-any.whl.spdx.json").read_text())
    found = {(part["name"], part["versionInfo"]) for part in document["packages"]}
    locks = ["operator/requirements.lock", "trainer/requirements.lock", "trainer/mpi/open-mpi.lock"]
    text = "\n".join((ROOT / "images" / lock).read_text() for lock in locks)
    wanted = {
        (re.sub(r"[-_.]+", "-", name).lower(), version)
        for name, version in re.findall(r"^([A-Za-z0-9_.-]+)==([^ ;\\]+)", text, flags=re.MULTILINE)
    }
    assert wanted <= found
    licences = {part["name"]: part["licenseDeclared"] for part in document["packages"]}
    assert (licences["kopf"], licences["torch"].split(" AND ")[0]) == ("MIT", "Apache-2.0")


def test_the_same_commit_makes_the_same_bytes(clone: Path, dist: Path, tmp_path: Path) -> None:
    other = copy_clone(clone, tmp_path / "other")
    assert make(other, "--images", "none").returncode == 0
    assert (other / "dist/SHA256SUMS").read_text() == (dist / "SHA256SUMS").read_text()


def test_the_page_s_commands_work_on_it(dist: Path, tmp_path: Path) -> None:
    work = shutil.copytree(dist, tmp_path / "dist")
    blocks = re.findall(r"^```sh offline\n(.*?)^```$", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    assert f"-{VERSION}" in "".join(blocks), "the page names another version"
    script = "set -euo pipefail\n" + "\n".join(blocks)
    done = subprocess.run(["bash", "-c", script], cwd=work, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert f"bert_pretrain_operator-{VERSION}-py3-none-any.whl: OK" in done.stdout
    assert "mpi-operator.yaml: OK" in done.stdout
    assert "CVE-2024-10190 not_affected" in done.stdout
    # What the bundle holds is complete: kustomize fetches nothing.
    assert "https://" not in (work / "kustomize/mpi-operator/kustomization.yaml").read_text().split("resources:")[1]
    kinds = {document["kind"] for document in yaml.safe_load_all(kustomize(work / "kustomize/mpi-operator"))}
    assert {"CustomResourceDefinition", "Deployment"} <= kinds


def test_whoever_makes_them_compares_them_as_the_page_says(clone: Path, dist: Path, tmp_path: Path) -> None:
    (command,) = re.findall(
        r"^\(cd dist && (sha256sum .*) ~/Downloads/SHA256SUMS\)$", PAGE.read_text(), flags=re.MULTILINE
    )
    # A release's sums name images, too, which are not made here.
    sums = tmp_path / "SHA256SUMS"
    sums.write_text((dist / "SHA256SUMS").read_text() + f"{'0' * 64}  bert-operator-image-{VERSION}.oci.tar\n")
    assert subprocess.run([*command.split(), sums], cwd=clone / "dist", capture_output=True).returncode == 0
    sums.write_text(sums.read_text().replace(sums.read_text()[:8], "01234567", 1))
    assert subprocess.run([*command.split(), sums], cwd=clone / "dist", capture_output=True).returncode == 1


def test_a_changed_file_does_not_pass(dist: Path, tmp_path: Path) -> None:
    work = shutil.copytree(dist, tmp_path / "dist")
    with open(work / f"bert-operator-chart-{VERSION}.tgz", "ab") as file:
        file.write(b"\0")
    command = ["sha256sum", "--check", "--strict", "--ignore-missing", "SHA256SUMS"]
    assert command == re.findall(r"^sha256sum .*SHA256SUMS$", PAGE.read_text(), flags=re.MULTILINE)[0].split()
    assert subprocess.run(command, cwd=work, capture_output=True).returncode == 1


def test_helm_takes_the_chart_as_it_was_packed_again(dist: Path) -> None:
    chart = dist / f"bert-operator-chart-{VERSION}.tgz"
    assert f"version: {VERSION}" in run(program("helm"), "show", "chart", chart)
    with tarfile.open(chart) as tar:
        assert len({member.mtime for member in tar}) == 1


def test_krew_finds_the_plugin_where_the_release_has_it(dist: Path) -> None:
    (platform,) = yaml.safe_load((dist / "bert.yaml").read_text())["spec"]["platforms"]
    place, _, name = platform["uri"].rpartition("/")
    assert place.endswith(f"/releases/download/v{VERSION}")
    assert f"{platform['sha256']}  {name}" in (dist / "SHA256SUMS").read_text().splitlines()


def test_artifact_hub_s_annotations_are_in_the_packed_chart(dist: Path) -> None:
    packed = run(program("helm"), "show", "chart", dist / f"bert-operator-chart-{VERSION}.tgz")
    ours = (ROOT / "charts/bert-operator/Chart.yaml").read_text()
    assert yaml.safe_load(packed)["annotations"] == yaml.safe_load(ours)["annotations"]


def test_a_tree_with_changes_is_refused(clone: Path, tmp_path: Path) -> None:
    changed = copy_clone(clone, tmp_path / "changed")
    (changed / "new.txt").write_text("not committed")
    done = make(changed, "--images", "none")
    assert done.returncode == 1
    assert "the working tree has changes; commit or remove them:\n?? new.txt" in done.stderr
    assert not (changed / "dist").exists()


def test_a_base_image_without_a_digest_is_refused(clone: Path, tmp_path: Path) -> None:
    changed = copy_clone(clone, tmp_path / "changed")
    dockerfile = changed / "images/operator/Dockerfile"
    text, count = re.subn(r"^ARG BASE=.*$", "ARG BASE=debian:12", dockerfile.read_text(), flags=re.MULTILINE)
    assert count == 1
    dockerfile.write_text(text)
    author = ["-c", "user.name=Test", "-c", "user.email=test@example.org"]
    subprocess.run(["git", *author, "commit", "-qam", "a tag"], cwd=changed, check=True)
    done = make(changed, "--images", "none")
    assert done.returncode == 1
    assert "images/operator/Dockerfile: BASE: got debian:12; allowed: an image by digest (@sha256:)" in done.stderr


def test_an_image_that_we_do_not_make_is_refused(clone: Path) -> None:
    done = make(clone, "--images", "operator,trainers")
    assert done.returncode == 1
    assert "--images: got trainers; allowed: operator, trainer, none" in done.stderr
