"""Everything installed has a licence that this project may depend on; tools/release/licences.toml says which."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
from email.message import Message
from importlib.metadata import Distribution, PathDistribution, distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from make_release import ReleaseError, check_licences  # noqa: E402
from release.licences import is_allowed, is_expression, licence_table, state_licence  # noqa: E402
from release.sbom import Part  # noqa: E402

INSTALLED: dict[str, Distribution] = {canonicalize_name(item.metadata["Name"]): item for item in distributions()}


IMAGE_LOCKS = [*(ROOT / "images").rglob("*.lock"), *(ROOT / "tools").glob("*.lock")]


def locked_here(*locks: Path) -> list[str]:
    """Return the names of what lock files install on this machine."""
    text = "".join(lock.read_text() for lock in locks or [ROOT / "requirements.lock"])
    lines = re.findall(r"^([A-Za-z0-9_.-]+==[^\\\n]+?)\s*\\?$", text, flags=re.MULTILINE)
    wanted = [Requirement(line) for line in lines]
    return sorted({canonicalize_name(r.name) for r in wanted if r.marker is None or r.marker.evaluate()})


def test_every_locked_package_has_an_allowed_licence() -> None:
    names = [name for name in locked_here() if name in INSTALLED]
    # Without Open MPI or Horovod a few are missing; an environment with hardly anything proves nothing.
    assert len(names) >= 0.9 * len(locked_here())
    exceptions = licence_table()["exceptions"]
    unclear = {name: state_licence(INSTALLED[name].metadata) for name in names if name not in exceptions}
    assert {name: found for name, found in unclear.items() if not is_allowed(found)} == {}


def test_what_only_an_image_installs_has_an_allowed_licence() -> None:
    table = licence_table()
    # Whatever is in our own lock file was looked at above; nothing else is sure to be installed here.
    others = sorted({*locked_here(*IMAGE_LOCKS)} - {*locked_here()})
    assert {"impi-rt", "mpich", "intel-openmp", "nvidia-cuda-nvcc", "horovod"} <= {*others}
    stated = {name: table["stated"].get(name, "") for name in others if name not in table["exceptions"]}
    assert {name: found for name, found in stated.items() if not is_allowed(found)} == {}


def test_what_lies_inside_other_packages_has_an_allowed_licence_too() -> None:
    folder = Path(sysconfig.get_path("purelib"))
    vendored = [PathDistribution(path.parent) for path in folder.glob("*/_vendor/*.dist-info/METADATA")]
    assert vendored
    licences = {canonicalize_name(item.metadata["Name"]): state_licence(item.metadata) for item in vendored}
    unclear = {name: found for name, found in licences.items() if not is_allowed(found)}
    assert unclear == licence_table()["inside"]


def test_what_is_stated_agrees_with_what_is_installed() -> None:
    for name in {*locked_here(*IMAGE_LOCKS)} & {*INSTALLED} & {*licence_table()["stated"]}:
        metadata = Message()
        for key, value in INSTALLED[name].metadata.items():
            metadata[key] = f"not-{name}" if key == "Name" else value
        said = state_licence(metadata)
        assert said in ("", licence_table()["stated"][name]), name


def test_an_image_with_a_licence_that_nobody_may_hand_on_is_no_release() -> None:
    good = [
        Part("torch", "2.15.0", "pkg:pypi/torch@2.15.0", "BSD-3-Clause"),
        Part("bash", "5.2", "pkg:deb/debian/bash"),
    ]
    inside = Part("autocommand", "2.2.2", "pkg:pypi/autocommand@2.2.2", "LGPL-3.0-only")
    check_licences("trainer", [*good, inside])
    bad = [
        Part("intel-openmp", "2026.2.0", "pkg:pypi/intel-openmp@2026.2.0"),
        Part("x", "1", "pkg:pypi/x@1", "AGPL-3.0"),
    ]
    with pytest.raises(ReleaseError, match=r"^image trainer: got licences intel-openmp \(not known\), x \(AGPL-3.0\);"):
        check_licences("trainer", [*good, *bad])


def test_the_table_holds_nothing_that_nobody_needs() -> None:
    table = licence_table()
    named = {*table["stated"], *table["exceptions"]}
    assert named - set(locked_here(ROOT / "requirements.lock", *IMAGE_LOCKS)) == set()
    assert [name for name in (*table["allowed"], *table["stated"].values()) if not is_expression(name)] == []
    assert all(reason.endswith(".") for reason in table["exceptions"].values())


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"License-Expression": "MIT OR Apache-2.0"}, "MIT OR Apache-2.0"),
        ({"License": "Apache 2.0"}, "Apache-2.0"),
        ({"License": "BSD", "Classifier": "License :: OSI Approved :: MIT License"}, "MIT"),
        ({"License": "BSD", "Classifier": "License :: OSI Approved :: BSD License"}, ""),
        ({"License": "Copyright by us\nAll rights reserved"}, ""),
        ({"Name": "Jinja2", "License": "BSD"}, "BSD-3-Clause"),
    ],
)
def test_what_metadata_means(headers: dict[str, str], expected: str) -> None:
    metadata = Message()
    for key, value in {"Name": "some", **headers}.items():
        metadata[key] = value
    assert state_licence(metadata) == expected


@pytest.mark.parametrize(
    ("expression", "allowed"),
    [
        ("MIT", True),
        ("GPL-3.0-only", False),
        ("GPL-3.0-only OR MIT", True),
        ("GPL-3.0-only AND MIT", False),
        ("(GPL-3.0-only OR MIT) AND ISC", True),
        ("Apache-2.0 WITH LLVM-exception", True),
        ("LicenseRef-Ours", False),
        ("", False),
    ],
)
def test_what_is_allowed(expression: str, allowed: bool) -> None:
    assert is_allowed(expression) is allowed


def test_an_image_states_the_licence_of_the_operator_itself(tmp_path: Path) -> None:
    python = tmp_path / "environment/bin/python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "environment"], check=True)
    script = ROOT / "images/operator/write_metadata.py"
    subprocess.run([python, "-I", script, ROOT / "pyproject.toml"], check=True)
    (folder,) = tmp_path.rglob("*.dist-info")
    metadata = PathDistribution(folder).metadata
    assert isinstance(metadata, Message)
    assert (metadata["Name"], is_allowed(state_licence(metadata))) == ("bert-pretrain-operator", True)
