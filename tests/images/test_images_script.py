"""tools/images.sh builds what has changed, into one layout, and deletes what no image needs.

buildah and skopeo are small programs here, which write down how they were called; the real ones run in the tests on a
cluster.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMES = (
    "operator",
    "trainer",
    "trainer-cuda",
    "trainer-v100",
    "trainer-ort",
    "trainer-open-mpi-4",
    "trainer-mpich",
    "trainer-intel-mpi",
)

BUILDAH = '#!/bin/sh\necho "buildah $*" >>"$CALLS"\n'
# One layer that all images share, and one of each image's own and each call's.
SKOPEO = r"""#!/usr/bin/env python3
import hashlib, json, os, pathlib, sys
calls = pathlib.Path(os.environ["CALLS"])
with calls.open("a") as file:
    print("skopeo", *sys.argv[1:], file=file)
_, folder, name = sys.argv[-1].split(":")
layout = pathlib.Path(folder)
(layout / "blobs/sha256").mkdir(parents=True, exist_ok=True)
def put(text):
    digest = hashlib.sha256(text.encode()).hexdigest()
    (layout / "blobs/sha256" / digest).write_text(text)
    return {"digest": f"sha256:{digest}", "size": len(text)}
own = f"{name} {len(calls.read_text())}"
manifest = {"config": put("config of " + own), "layers": [put("shared"), put("layer of " + own)]}
index = layout / "index.json"
others = json.loads(index.read_text())["manifests"] if index.exists() else []
key = "org.opencontainers.image.ref.name"
# As skopeo 1.9 does: who had the name stays, without it.
kept = [entry if entry.get("annotations", {}).get(key) != name else {"digest": entry["digest"]} for entry in others]
entry = {**put(json.dumps(manifest)), "annotations": {key: name}}
index.write_text(json.dumps({"schemaVersion": 2, "manifests": [*kept, entry]}))
"""


class Clone:
    """A folder with the script and its inputs, and a cache of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.calls = folder / "clone", folder / "calls"
        self.layout = folder / "cache/bert-operator/images/layout"
        for name in ("images", "operator/bert_operator", "trainer/bert_trainer"):
            shutil.copytree(ROOT / name, self.folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        (self.folder / "tools").mkdir()
        inputs = ("tools/horovod_wheel.sh", "tools/horovod.lock", "tools/cuda-compiler.lock", "pyproject.toml")
        for name in ("tools/images.sh", *inputs):
            shutil.copy(ROOT / name, self.folder / name)
        programs = folder / "bin"
        programs.mkdir()
        for name, text in {"buildah": BUILDAH, "skopeo": SKOPEO, "debootstrap": "#!/bin/sh\n"}.items():
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
        self.environment = {
            **os.environ,
            "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "XDG_CACHE_HOME": str(folder / "cache"),
            "CALLS": str(self.calls),
        }

    def run(self, *names: str) -> subprocess.CompletedProcess[str]:
        """Run the script."""
        self.calls.write_text("")
        return subprocess.run(
            ["tools/images.sh", *names], cwd=self.folder, env=self.environment, capture_output=True, text=True
        )

    def built(self) -> list[str]:
        """Return the builds of the last run, as buildah was called."""
        return [line for line in self.calls.read_text().splitlines() if line.startswith("buildah build ")]

    def blobs(self) -> set[str]:
        """Return what the layout holds."""
        return {path.read_text() for path in (self.layout / "blobs/sha256").iterdir()}


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


def test_it_builds_operator_and_trainer_where_nothing_is_named_and_prints_the_layout(clone: Clone) -> None:
    answer = clone.run()
    assert (answer.returncode, answer.stdout) == (0, f"{clone.layout}\n"), answer.stderr
    names = {
        entry["annotations"].popitem()[1]
        for entry in json.loads((clone.layout / "index.json").read_text())["manifests"]
    }
    assert names == {"operator", "trainer"}


@pytest.mark.parametrize(
    ("name", "dockerfile", "arguments"),
    [
        ("operator", "operator", []),
        ("trainer", "trainer", []),
        ("trainer-cuda", "trainer", ["ACCELERATOR=cuda"]),
        ("trainer-v100", "trainer", ["ACCELERATOR=cuda", "COLLECTIVES=torch", "LOCK=locks/torch-2.7.lock"]),
        ("trainer-ort", "trainer", ["COLLECTIVES=torch", "LOCK=locks/ort.lock"]),
        ("trainer-open-mpi-4", "trainer", ["MPI=open-mpi-4"]),
        ("trainer-mpich", "trainer", ["MPI=mpich"]),
        ("trainer-intel-mpi", "trainer", ["MPI=intel-mpi"]),
    ],
)
def test_a_flavour_is_the_trainers_dockerfile_with_other_arguments(
    clone: Clone, name: str, dockerfile: str, arguments: list[str]
) -> None:
    clone.run(name)
    (build,) = clone.built()
    assert f"-f images/{dockerfile}/Dockerfile " in build
    # A stand-in for the base, and packages of today, since a machine's mirror keeps no snapshots.
    stand_in = ["BASE=docker.io/library/debian:bookworm-slim", "SNAPSHOT="]
    # Jobs of the tests use Intel's OpenMP.
    stand_in += ["OPENMP=intel"] * (name != "operator")
    assert [word for word in build.split() if word.startswith("--build-arg")] == [
        f"--build-arg={argument}" for argument in (*stand_in, *arguments)
    ]


def test_every_build_sets_the_time_that_the_dockerfile_names(clone: Clone) -> None:
    clone.run("operator")
    (build,) = clone.built()
    assert " --timestamp 1789689600 " in build


def test_a_release_is_built_from_nothing_on_the_base_that_the_dockerfile_names(clone: Clone, tmp_path: Path) -> None:
    answer = clone.run("--release", "--output", str(tmp_path / "release"), "operator")
    assert (answer.returncode, answer.stdout) == (0, f"{tmp_path}/release\n"), answer.stderr
    (build,) = clone.built()
    assert "--no-cache" in build.split()
    assert not {"--layers", "--pull=never"} & set(build.split())
    assert "--build-arg" not in build
    assert "debian:bookworm-slim" not in clone.calls.read_text()
    # What the tests use stays as it was.
    assert not clone.layout.exists()
    clone.run("--release", "trainer")
    (build,) = clone.built()
    assert "/wheels" not in build, "a wheel of Horovod from this machine's cache is in the release"
    assert "OPENMP" not in build, "a release holds what may not be handed on"


def test_a_rehearsed_release_has_another_base_and_nothing_else(clone: Clone, tmp_path: Path) -> None:
    base = {"--pull=never", "--build-arg=BASE=docker.io/library/debian:bookworm-slim", "--build-arg=SNAPSHOT="}
    builds = []
    for option in ("--release", "--rehearse"):
        clone.run(option, "--output", str(tmp_path / "other"), "trainer")
        (build,) = clone.built()
        builds.append([word for word in build.split() if not re.search(r"/tmp|bert-operator.test", word)])
    released, rehearsed = builds
    assert {*rehearsed} - {*released} == base
    assert [word for word in rehearsed if word not in base] == released
    # In the folder of the tests it does not pass for what they need.
    clone.run("--rehearse", "trainer")
    clone.run("trainer")
    assert len(clone.built()) == 1


def test_a_fresh_build_takes_nothing_over_and_builds_what_is_there(clone: Clone) -> None:
    clone.run("trainer")
    assert "--layers" in clone.built()[0].split()
    assert ":/wheels/bert-operator" in clone.built()[0]
    clone.run("--fresh", "trainer")
    (build,) = clone.built()
    assert "--no-cache" in build.split()
    assert "--build-arg=SNAPSHOT=" in build.split()
    assert "/wheels" not in build


def test_an_option_that_does_not_exist_is_refused_with_those_that_do(clone: Clone) -> None:
    answer = clone.run("--clean", "operator")
    assert answer.returncode == 1
    assert answer.stderr == "images: got '--clean'; allowed: --release, --rehearse, --fresh, --output FOLDER\n"


def test_what_has_not_changed_is_not_built_again(clone: Clone) -> None:
    clone.run(*NAMES)
    assert len(clone.built()) == len(NAMES)
    answer = clone.run(*NAMES)
    assert answer.returncode == 0
    assert clone.built() == []


@pytest.mark.parametrize(
    ("changed", "names"),
    [
        ("operator/bert_operator/errors.py", ["operator"]),
        ("trainer/bert_trainer/errors.py", ["trainer", "trainer-mpich"]),
        ("tools/horovod_wheel.sh", ["trainer", "trainer-mpich"]),
        ("tools/cuda-compiler.lock", ["trainer", "trainer-mpich"]),
        ("images/install-packages.sh", ["operator", "trainer", "trainer-mpich"]),
        ("pyproject.toml", ["operator"]),
    ],
)
def test_a_change_builds_the_images_that_hold_it(clone: Clone, changed: str, names: list[str]) -> None:
    clone.run("operator", "trainer", "trainer-mpich")
    with (clone.folder / changed).open("a") as file:
        file.write("\n# changed\n")
    clone.run("operator", "trainer", "trainer-mpich")
    assert [build.split("bert-operator.test/")[1].split(":")[0] for build in clone.built()] == names


def test_layers_that_no_image_needs_any_more_are_deleted_and_shared_ones_stay(clone: Clone) -> None:
    clone.run("trainer", "trainer-mpich")
    before = clone.blobs()
    (clone.folder / "trainer/bert_trainer/errors.py").write_text("# changed\n")
    clone.run("trainer")
    after = clone.blobs()
    assert "shared" in after
    assert len([blob for blob in after if blob.startswith("layer of trainer ")]) == 1
    assert {blob for blob in before if "trainer-mpich" in blob} <= after
    assert len(after) == len(before)
    assert len(json.loads((clone.layout / "index.json").read_text())["manifests"]) == 2


def test_a_build_that_fails_leaves_the_image_to_be_built_next_time(clone: Clone) -> None:
    working = (clone.folder.parent / "bin/buildah").read_text()
    (clone.folder.parent / "bin/buildah").write_text(
        '#!/bin/sh\n[ "$1" != build ] || { echo "no space left"; exit 1; }\n'
    )
    answer = clone.run("trainer")
    assert answer.returncode == 1
    assert "no space left\nimages: building trainer failed; the end of its log is above\n" in answer.stderr
    (clone.folder.parent / "bin/buildah").write_text(working)
    assert clone.run("trainer").returncode == 0
    assert len(clone.built()) == 1


def test_an_image_that_does_not_exist_is_refused_with_those_that_do(clone: Clone) -> None:
    answer = clone.run("trainer", "trainer-lam")
    assert answer.returncode == 1
    assert answer.stderr == f"images: got 'trainer-lam'; allowed: {', '.join(NAMES)}\n"
    assert clone.built() == []
