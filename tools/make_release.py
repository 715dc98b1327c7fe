"""Make the files of a release in dist/: ``make release``, or ``python tools/make_release.py [--images NAMES]``.

Wheel, source distribution, chart, kustomize bundle, kubectl's plugin and images, an SBOM for each, krew's manifest, the
VEX document, and SHA256SUMS over everything; docs/guides/publishing.md says where each of them goes. Everything is
built from what the last commit holds, never from what lies around: a dirty tree is refused. The same commit gives the
same bytes (docs/guides/verify.md says where it does not). Nothing is signed or published here;
.github/workflows/release.yaml does that.

Images need buildah, Docker Hub and snapshot.debian.org, or --stand-in: a base made by debootstrap, for a rehearsal,
which the names of its files say. Where buildah is missing, images are left out by name.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from release.archives import read_archive, write_archive, write_layout_archive
from release.image_files import NAME_IN_LAYOUT, read_image
from release.licences import is_allowed, licence_table
from release.sbom import Part, is_wanted, parts_of_image, parts_of_locks, write_sbom

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ("operator", "trainer")
MPI_OPERATOR = "deploy/v2beta1/mpi-operator.yaml"
_DIGEST = re.compile(r"\S+@sha256:[0-9a-f]{64}")


class ReleaseError(Exception):
    """Why there is no release."""


def main(words: list[str] | None = None) -> int:
    """Make the release and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--images", default=",".join(IMAGES), help="which ones, with commas; none: no images")
    parser.add_argument("--stand-in", action="store_true", help="build them on a base that debootstrap makes")
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="the folder, which is emptied first")
    arguments = parser.parse_args(words)
    names = [] if arguments.images == "none" else arguments.images.split(",")
    try:
        if wrong := sorted(set(names) - set(IMAGES)):
            raise ReleaseError(f"--images: got {', '.join(wrong)}; allowed: {', '.join(IMAGES)}, none")
        seconds = check_commit()
        with tempfile.TemporaryDirectory() as work:
            Release(arguments.output, export_commit(Path(work) / "tree"), seconds).make(names, arguments.stand_in)
    except ReleaseError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    return 0


def check_commit() -> int:
    """Return the time of the last commit, in Unix seconds.

    Raises:
        ReleaseError: Files differ from it, or something in it is not named by digest.
    """
    changed = run("git", "status", "--porcelain")
    if changed:
        raise ReleaseError(f"the working tree has changes; commit or remove them:\n{changed}")
    for dockerfile in sorted((ROOT / "images").glob("*/Dockerfile")):
        (base,) = re.findall(r"^ARG BASE=(.*)$", dockerfile.read_text(), flags=re.MULTILINE)
        if not _DIGEST.fullmatch(base):
            raise ReleaseError(
                f"{dockerfile.relative_to(ROOT)}: BASE: got {base}; allowed: an image by digest (@sha256:)"
            )
    return int(run("git", "log", "-1", "--format=%ct"))


def export_commit(tree: Path) -> Path:
    """Write what the last commit holds to a folder, and return it."""
    tree.mkdir()
    # Rights as in a clone under the usual umask: images hold files with the rights that the builder finds.
    command = ["git", "-c", "tar.umask=0022", "archive", "HEAD"]
    packed = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    subprocess.run(["tar", "-xp"], cwd=tree, input=packed, check=True)
    return tree


def run(*words: str | Path, cwd: Path = ROOT, **values: str) -> str:
    """Run a command and return what it printed; its messages go to standard error."""
    done = subprocess.run(words, cwd=cwd, stdout=subprocess.PIPE, text=True, env={**os.environ, **values})
    if done.returncode:
        raise ReleaseError(f"{' '.join(map(str, words))} ended with {done.returncode}; what it said is above")
    return done.stdout.strip()


def sum_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


class Release:
    """The files of one release."""

    def __init__(self, folder: Path, tree: Path, seconds: int) -> None:
        """folder: where they go; tree: what the commit holds; seconds: its Unix time."""
        self.folder, self.tree, self.seconds = folder, tree, seconds
        project = tomllib.loads((tree / "pyproject.toml").read_text())["project"]
        self.name, self.version = project["name"], project["version"]

    def make(self, images: list[str], stand_in: bool) -> None:
        """Make all of them."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self._make_distributions()
        self._make_chart()
        self._make_bundle()
        self._make_plugin()
        for name in images:
            if shutil.which("buildah"):
                self._make_image(name, stand_in)
            else:
                print(f"left out: image {name}: buildah is not installed", file=sys.stderr)
        shutil.copy(self.tree / "tools/release/vex.json", self.folder / f"bert-operator-{self.version}.openvex.json")
        sums = [f"{sum_of(path)}  {path.name}\n" for path in sorted(self.folder.iterdir())]
        (self.folder / "SHA256SUMS").write_text("".join(sums))
        print(*(path.name for path in sorted(self.folder.iterdir())), sep="\n")

    def _make_distributions(self) -> None:
        hatch = [sys.executable, "-m", "hatchling", "build", "-d", str(self.folder)]
        run(*hatch, "-t", "wheel", "-t", "sdist", cwd=self.tree, SOURCE_DATE_EPOCH=str(self.seconds))
        locks = [f"images/{name}" for name in ("operator/requirements.lock", "trainer/requirements.lock")]
        parts = parts_of_locks(self.tree / lock for lock in (*locks, "images/trainer/mpi/open-mpi.lock"))
        for path in sorted(self.folder.iterdir()):
            self._describe(path, self.name, f"pkg:pypi/{self.name}@{self.version}", parts, "DEPENDS_ON")

    def _make_chart(self) -> None:
        """Helm's own archive names the time of packing; its files are packed again."""
        helm = Path(run(self.tree / "tools/control_plane/build.sh", "helm")) / "helm"
        with tempfile.TemporaryDirectory() as work:
            run(helm, "package", self.tree / "charts/bert-operator", "-d", work)
            (packed,) = Path(work).iterdir()
            target = self.folder / packed.name.replace("bert-operator-", "bert-operator-chart-")
            write_archive(target, read_archive(packed), self.seconds)
        image = Part("bert-operator", self.version, f"pkg:oci/bert-operator?tag={self.version}", "Apache-2.0")
        self._describe(target, "bert-operator-chart", f"pkg:helm/bert-operator@{self.version}", [image], "DEPENDS_ON")

    def _make_bundle(self) -> None:
        """deploy/kustomize, with the manifest of mpi-operator that it otherwise names by address."""
        source = self.tree / "deploy/kustomize"
        files = {
            f"kustomize/{path.relative_to(source)}": path.read_bytes() for path in source.rglob("*") if path.is_file()
        }
        modules = Path(run(self.tree / "tools/control_plane/modules.sh"))
        (manifest,) = modules.glob(f"github.com/kubeflow/mpi-operator@*/{MPI_OPERATOR}")
        place = "kustomize/mpi-operator"
        wanted, found = files[f"{place}/mpi-operator.yaml.sha256"].decode().split()[0], sum_of(manifest)
        if found != wanted:
            raise ReleaseError(f"{MPI_OPERATOR}: got sha256 {found}; mpi-operator.yaml.sha256 says {wanted}")
        text = files[f"{place}/kustomization.yaml"].decode()
        files[f"{place}/kustomization.yaml"] = re.sub(
            rf"https://\S+/{MPI_OPERATOR}", "mpi-operator.yaml", text
        ).encode()
        files[f"{place}/mpi-operator.yaml"] = manifest.read_bytes()
        files["LICENSE"] = (self.tree / "LICENSE").read_bytes()
        target = self.folder / f"bert-operator-kustomize-{self.version}.tar.gz"
        write_archive(target, files, self.seconds)
        version = manifest.relative_to(modules).parts[2].partition("@")[2]
        url = f"pkg:github/kubeflow/mpi-operator@{version}"
        parts = [Part("mpi-operator", version, url, "Apache-2.0", sha256=found)]
        generic = f"pkg:generic/bert-operator-kustomize@{self.version}"
        self._describe(target, "bert-operator-kustomize", generic, parts, "CONTAINS")

    def _make_plugin(self) -> None:
        """The archive, which holds our own modules alone, and krew's manifest, which names it by address and sum."""
        with tempfile.TemporaryDirectory() as work:
            run(sys.executable, self.tree / "tools/make_plugin.py", "--output", work)
            target = self.folder / f"kubectl-bert-{self.version}.tar.gz"
            for name in (target.name, "bert.yaml"):
                shutil.copy(Path(work) / name, self.folder / name)
        self._describe(target, "kubectl-bert", f"pkg:generic/kubectl-bert@{self.version}", [], "CONTAINS")

    def _make_image(self, name: str, stand_in: bool) -> None:
        options = ["--rehearse"] if stand_in else ["--release"]
        with tempfile.TemporaryDirectory() as work:
            layout = Path(run(self.tree / "tools/images.sh", *options, "--output", f"{work}/layout", name))
            image = read_image(layout, name, keep=is_wanted)
            parts = parts_of_image(image)
            check_licences(name, parts)
            suffix = "-stand-in" if stand_in else ""
            target = self.folder / f"bert-{name}-image-{self.version}{suffix}.oci.tar"
            write_layout_archive(target, layout_files(layout, image.digest, f"{self.version}{suffix}"), self.seconds)
        url = f"pkg:oci/bert-{name}@{image.digest}"
        self._describe(target, f"bert-{name}", url, parts, "CONTAINS")

    def _describe(self, path: Path, name: str, url: str, parts: list[Part], relation: str) -> None:
        described = Part(name, self.version, url, "Apache-2.0", sha256=sum_of(path))
        write_sbom(path.with_name(f"{path.name}.spdx.json"), described, parts, relation, self.seconds)


def check_licences(name: str, parts: list[Part]) -> None:
    """Refuse an image with a Python package that may not be handed on.

    Raises:
        ReleaseError: A package's licence is not allowed, or not known.
    """
    # Debian's own archive holds nothing that may not be, and its lists of packages name no licences.
    inside = licence_table()["inside"]
    python = [part for part in parts if part.url.startswith("pkg:pypi/") and part.name not in inside]
    wrong = [f"{part.name} ({part.licence or 'not known'})" for part in python if not is_allowed(part.licence)]
    if wrong:
        allowed = "those that tools/release/licences.toml lists"
        raise ReleaseError(f"image {name}: got licences {', '.join(wrong)}; allowed: {allowed}; leave the packages out")


def layout_files(layout: Path, digest: str, tag: str) -> dict[str, Path | bytes]:
    """Return the files of a layout with one image of several."""

    def place(blob: str) -> str:
        return f"blobs/{blob.replace(':', '/')}"

    index = json.loads((layout / "index.json").read_text())
    entry: dict[str, Any] = next(item for item in index["manifests"] if item["digest"] == digest)
    manifest = json.loads((layout / place(digest)).read_text())
    blobs = [digest, manifest["config"]["digest"], *(layer["digest"] for layer in manifest["layers"])]
    index["manifests"] = [{**entry, "annotations": {NAME_IN_LAYOUT: tag}}]
    return {
        "oci-layout": layout / "oci-layout",
        "index.json": json.dumps(index, sort_keys=True).encode(),
        **{place(blob): layout / place(blob) for blob in blobs},
    }


if __name__ == "__main__":
    sys.exit(main())
