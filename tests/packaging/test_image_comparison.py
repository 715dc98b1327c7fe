"""tools/compare_images.py reads images layer by layer and names every difference; here layouts of three files."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from image_layouts import make_layer, write_layout

ROOT = Path(__file__).parents[2]


def compare(*images: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / "tools/compare_images.py", *images], capture_output=True, text=True, timeout=50
    )


FILES = (("etc", None), ("etc/a", b"one"), ("etc/b", b"two"))


def test_equal_images_differ_in_nothing(tmp_path: Path) -> None:
    answer = compare(write_layout(tmp_path / "1", make_layer(FILES)), write_layout(tmp_path / "2", make_layer(FILES)))
    assert answer.stdout == "compared: files=3 differences=0 (the same manifest)\n"
    assert answer.returncode == 0


def test_every_difference_is_one_line(tmp_path: Path) -> None:
    one = write_layout(tmp_path / "1", make_layer((*FILES, ("gone", b""))))
    other = write_layout(
        tmp_path / "2",
        make_layer((("etc", None), ("etc/a", b"1st")), time_s=200),
        make_layer((("etc/b", b"two"),), mode=0o600),
        environment=("A=2",),
    )
    answer = compare(one, other)
    sha = [hashlib.sha256(content).hexdigest()[:12] for content in (b"one", b"1st")]
    assert answer.stdout.splitlines() == [
        "etc: modified_s 100 -> 200",
        f"etc/a: modified_s 100 -> 200, sha256 {sha[0]} -> {sha[1]}",
        "etc/b: mode 420 -> 384",
        "only in the first: gone",
        "configuration.config.Env[0]: A=1 -> A=2",
        "compared: files=4 differences=5 (other manifests)",
    ]
    assert answer.returncode == 1


@pytest.mark.parametrize(
    ("later", "left"),
    [
        ([("etc/.wh.a", b"")], "only in the first: etc/a"),
        ([("etc/.wh..wh..opq", b""), ("etc/a", b"one")], "only in the first: etc/b"),
        ([("etc/a", b"one"), ("etc/.wh..wh..opq", b"")], "only in the first: etc/b"),
        ([("etc/c", b"new")], "only in the second: etc/c"),
    ],
    ids=[
        "a whiteout deletes one",
        "an opaque folder hides all that lay below",
        "and nothing of its own layer",
        "a layer adds",
    ],
)
def test_layers_lie_on_each_other(tmp_path: Path, later: list[tuple[str, bytes | None]], left: str) -> None:
    one = write_layout(tmp_path / "1", make_layer(FILES))
    other = write_layout(tmp_path / "2", make_layer(FILES), make_layer(later))
    assert compare(one, other).stdout.splitlines()[0] == left


def test_an_archive_is_read_like_its_folder(tmp_path: Path) -> None:
    folder = write_layout(tmp_path / "1", make_layer(FILES))
    with tarfile.open(tmp_path / "image.tar", "w") as tar:
        tar.add(folder, ".")
    with tarfile.open(tmp_path / "plain.tar", "w") as tar:
        for path in folder.rglob("*"):
            tar.add(path, path.relative_to(folder).as_posix(), recursive=False)
    assert compare(folder, tmp_path / "plain.tar").returncode == 0
    assert compare(folder, tmp_path / "image.tar").returncode == 0


def test_what_is_no_image_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no archive")
    for path in (tmp_path, tmp_path / "text", tmp_path / "absent"):
        answer = compare(path, path)
        assert (answer.returncode, answer.stdout) == (2, "")
        assert f"{path}: " in answer.stderr
        assert "allowed: an OCI image layout" in answer.stderr
