"""What goes into an image is named by digest, by hash or by moment: a build next year installs the same."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
DOCKERFILES = sorted((ROOT / "images").glob("*/Dockerfile"))
INSTALL = ROOT / "images/install-packages.sh"
SCRIPTS = [*DOCKERFILES, ROOT / "images/trainer/install-torch.sh", ROOT / "tools/horovod_wheel.sh"]


def commands(path: Path) -> list[str]:
    """Return the lines of a script or Dockerfile, continuation lines joined, comments left out."""
    lines = [line for line in path.read_text().splitlines() if not re.match(r"\s*#", line)]
    return "\n".join(lines).replace("\\\n", " ").splitlines()


def arguments(path: Path) -> dict[str, str]:
    return dict(re.findall(r"^ARG (\w+)=(.*)$", path.read_text(), flags=re.MULTILINE))


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.parent.name)
def test_the_base_has_a_digest_and_packages_a_moment(dockerfile: Path) -> None:
    values = arguments(dockerfile)
    assert re.fullmatch(r"docker\.io/library/debian@sha256:[0-9a-f]{64}", values["BASE"])
    assert re.fullmatch(r"\d{8}T\d{6}Z", values["SNAPSHOT"])
    text = dockerfile.read_text()
    stages = set(re.findall(r" AS (\w+)$", text, flags=re.MULTILINE))
    assert set(re.findall(r"^FROM (\S+)", text, flags=re.MULTILINE)) - stages == {"${BASE}"}


def test_both_images_have_one_base_one_moment_and_one_time() -> None:
    names = ("BASE", "SNAPSHOT", "SOURCE_DATE_EPOCH")
    first, second = ({name: arguments(path)[name] for name in names} for path in DOCKERFILES)
    assert first == second


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.parent.name)
def test_packages_come_by_the_script_that_knows_the_moment(dockerfile: Path) -> None:
    lines = commands(dockerfile)
    assert [line for line in lines if re.search(r"\b(apt|apt-get|dpkg|curl|wget)\b", line)] == []
    stages = "\n".join(lines).split("\nFROM ")[1:]
    installing = [stage for stage in stages if re.search(r"RUN .*install-packages", stage)]
    assert [stage.splitlines()[0] for stage in installing if "\nARG SNAPSHOT\n" not in stage] == []


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: "/".join(path.parts[-2:]))
def test_everything_that_pip_installs_in_a_build_has_a_hash(script: Path) -> None:
    # One script keeps the words that all its calls share in a variable.
    text = re.sub(r"\$pip\b", "pip install", re.sub(r"^pip=.*$", "", "\n".join(commands(script)), flags=re.MULTILINE))
    installs = re.findall(r"pip (?:install|download)\b[^\n]*", text)
    assert installs
    unchecked = [line for line in installs if "--require-hashes" not in line]
    # What was built or chosen without a lock: our own wheel of Horovod, and a torch that the caller names.
    allowed = ("--no-deps {} +", '"torch==$version"', '--target "$work/nvcc" "${compiler[@]}"')
    assert [line for line in unchecked if not any(words in line for words in allowed)] == []
    if script.name == "horovod_wheel.sh":
        assert 'compiler=(--require-hashes -r "$lock")' in text


@pytest.mark.parametrize(
    "lock", [*(ROOT / "images").rglob("*.lock"), *(ROOT / "tools").glob("*.lock")], ids=lambda path: path.stem
)
def test_every_package_of_a_lock_has_hashes_and_a_version(lock: Path) -> None:
    entries = re.split(r"^(?=[A-Za-z0-9])", lock.read_text(), flags=re.MULTILINE)[1:]
    assert entries
    assert [entry.split()[0] for entry in entries if "--hash=sha256:" not in entry or "==" not in entry] == []


def test_what_builds_horovod_is_what_make_setup_builds_it_with() -> None:
    def locked(path: Path) -> dict[str, str]:
        pairs = re.findall(r"^([A-Za-z0-9_.-]+)==([^ ;\\]+)", path.read_text(), flags=re.MULTILINE)
        return {canonicalize_name(name): version for name, version in pairs}

    ours = locked(ROOT / "requirements.lock")
    image = locked(ROOT / "images/trainer/build.lock")
    assert {name: ours[name] for name in image} == image, "make the lock again by the command in its head"


def test_the_cuda_compiler_is_of_the_release_that_torch_was_made_for() -> None:
    lock = (ROOT / "tools/cuda-compiler.lock").read_text()
    runtime = re.search(r"^nvidia-cuda-runtime==(\d+\.\d+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    assert runtime is not None
    assert set(re.findall(r"^[a-z-]+==(\d+\.\d+)\.", lock, flags=re.MULTILINE)) == {runtime[1]}


@pytest.fixture
def apt(tmp_path: Path) -> Path:
    """Return a folder with an apt-get that keeps its words, and the list of sources that it was given."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "apt-get").write_text(
        f'#!/bin/sh\necho "$@" >>{tmp_path}/words\n'
        f'for word in "$@"; do case $word in *SourceList=*) cat "${{word#*=}}" >{tmp_path}/sources ;; esac; done\n'
    )
    (folder / "apt-get").chmod(0o755)
    (tmp_path / "os-release").write_text("ID=debian\nVERSION_CODENAME=bookworm\n")
    return folder


def install(apt: Path, **values: str) -> subprocess.CompletedProcess[str]:
    place = apt.parent
    (place / "root/var/log").mkdir(parents=True)
    (place / "root/var/log/dpkg.log").write_text("2026-11-23 installed")
    environment = {
        "PATH": f"{apt}:{os.environ['PATH']}",
        "OS_RELEASE": f"{place}/os-release",
        "ROOT_FOLDER": f"{place}/root",
        **values,
    }
    return subprocess.run([INSTALL, "python3"], env=environment, capture_output=True, text=True, timeout=PATIENCE_S)


def test_packages_of_a_moment_come_from_its_snapshot_alone(apt: Path) -> None:
    done = install(apt, SNAPSHOT="20260918T000000Z")
    assert done.returncode == 0, done.stderr
    archive = "deb [check-valid-until=no] http://snapshot.debian.org/archive"
    assert (apt.parent / "sources").read_text().splitlines() == [
        f"{archive}/debian/20260918T000000Z bookworm main",
        f"{archive}/debian/20260918T000000Z bookworm-updates main",
        f"{archive}/debian-security/20260918T000000Z bookworm-security main",
    ]
    update, installation = (apt.parent / "words").read_text().splitlines()
    assert all("-o Dir::Etc::SourceParts=/dev/null" in words for words in (update, installation))
    assert update.endswith(" update -qq")
    assert installation.endswith(" install -y -qq --no-install-recommends python3")
    assert list((apt.parent / "root/var/log").iterdir()) == []


def test_without_a_moment_the_base_s_own_sources_count(apt: Path) -> None:
    assert install(apt, SNAPSHOT="").returncode == 0
    assert "SourceList" not in (apt.parent / "words").read_text()


@pytest.mark.parametrize(
    ("values", "system", "said"),
    [
        (
            {"SNAPSHOT": "yesterday"},
            "debian",
            "got 'yesterday'; allowed: a moment such as 20260918T000000Z, or nothing",
        ),
        ({"SNAPSHOT": "20260918T000000Z"}, "ubuntu", "only Debian has snapshots: --build-arg SNAPSHOT="),
    ],
)
def test_a_moment_that_cannot_be_had_is_refused(apt: Path, values: dict[str, str], system: str, said: str) -> None:
    (apt.parent / "os-release").write_text(f"ID={system}\nVERSION_CODENAME=bookworm\n")
    done = install(apt, **values)
    assert done.returncode == 2
    assert said in done.stderr
    assert not (apt.parent / "words").exists()


def test_mpi_operator_s_manifest_is_named_by_its_commit_and_has_a_sum() -> None:
    # tests/deploy compares the sum with the file that Go's checksum of the same release covers.
    folder = ROOT / "deploy/kustomize/mpi-operator"
    (address,) = re.findall(r"^  - (https://\S+)$", (folder / "kustomization.yaml").read_text(), flags=re.MULTILINE)
    assert re.fullmatch(r"https://raw\.githubusercontent\.com/kubeflow/mpi-operator/[0-9a-f]{40}/\S+", address)
    assert re.fullmatch(r"[0-9a-f]{64}  mpi-operator\.yaml\n", (folder / "mpi-operator.yaml.sha256").read_text())
