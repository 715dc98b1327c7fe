"""What a release says of an image's parts: Debian's and Python's packages, read from the image itself."""

from __future__ import annotations

import json
import os
import sys
import tarfile
from pathlib import Path

import pytest
from spdx_tools.spdx.parser.parse_anything import parse_file
from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

from git_clone import require_clone
from image_layouts import make_layer, write_layout

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from make_release import export_commit, layout_files  # noqa: E402
from release.archives import write_archive, write_layout_archive  # noqa: E402
from release.image_files import read_image  # noqa: E402
from release.sbom import Part, is_wanted, parts_of_image, write_sbom  # noqa: E402

STATUS = b"""\
Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.36-9+deb12u10
Description: C library
 with a second line

Package: gone
Status: deinstall ok config-files
Architecture: all
Version: 1
"""
METADATA = b"Metadata-Version: 2.4\nName: Some_Package\nVersion: 1.2\nLicense-Expression: LicenseRef-Ours\n\nRead me.\n"
FILES = (
    ("etc/os-release", b'ID=debian\nVERSION_ID="12"\n'),
    ("var/lib/dpkg/status", STATUS),
    ("opt/lib/some_package-1.2.dist-info/METADATA", METADATA),
    ("opt/lib/vendored/METADATA", b"Name: no distribution\n"),
)
EXPECTED = [
    Part("libc6", "2.36-9+deb12u10", "pkg:deb/debian/libc6@2.36-9%2Bdeb12u10?arch=amd64&distro=debian-12"),
    Part("some-package", "1.2", "pkg:pypi/some-package@1.2", "LicenseRef-Ours"),
]


@pytest.fixture
def layout(tmp_path: Path) -> Path:
    folder = write_layout(tmp_path / "layout", make_layer(FILES), make_layer([("opt/lib/new", b"")]))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return folder


def test_installed_packages_are_found_and_others_are_not(layout: Path) -> None:
    assert parts_of_image(read_image(layout, keep=is_wanted)) == EXPECTED


def test_a_package_that_a_later_layer_deletes_is_no_part(tmp_path: Path) -> None:
    gone = make_layer([("opt/lib/.wh.some_package-1.2.dist-info", b"")])
    layout = write_layout(tmp_path / "layout", make_layer(FILES), gone)
    assert parts_of_image(read_image(layout, keep=is_wanted)) == EXPECTED[:1]


def test_the_list_of_parts_is_valid_and_the_same_every_time(tmp_path: Path) -> None:
    texts = []
    for name in ("1.spdx.json", "2.spdx.json"):
        described = Part("bert-operator", "1.0", "pkg:oci/bert-operator@sha256:0", "Apache-2.0", "0" * 64)
        write_sbom(tmp_path / name, described, EXPECTED, "CONTAINS", 1789689600)
        texts.append((tmp_path / name).read_text())
    assert texts[0] == texts[1]
    assert validate_full_spdx_document(parse_file(str(tmp_path / "1.spdx.json"))) == []
    document = json.loads(texts[0])
    assert document["creationInfo"]["created"] == "2026-09-18T00:00:00Z"
    assert [(part["name"], part["licenseDeclared"]) for part in document["packages"]] == [
        ("bert-operator", "Apache-2.0"),
        ("libc6", "NOASSERTION"),
        ("some-package", "LicenseRef-Ours"),
    ]
    assert [reference["licenseId"] for reference in document["hasExtractedLicensingInfos"]] == ["LicenseRef-Ours"]
    kinds = [(item["relationshipType"], item["relatedSpdxElement"].split("-")[1]) for item in document["relationships"]]
    assert kinds == [("DESCRIBES", "Release"), ("CONTAINS", "libc6"), ("CONTAINS", "some")]


def test_an_image_s_archive_holds_that_image_alone_and_is_the_same_every_time(layout: Path, tmp_path: Path) -> None:
    (layout / "blobs/sha256" / ("f" * 64)).write_text("of another image")
    image = read_image(layout)
    for name in ("1.tar", "2.tar"):
        write_layout_archive(tmp_path / name, layout_files(layout, image.digest, "1.0"), 100)
    assert (tmp_path / "1.tar").read_bytes() == (tmp_path / "2.tar").read_bytes()
    again = read_image(tmp_path / "1.tar", "1.0", keep=is_wanted)
    assert (again.digest, parts_of_image(again)) == (image.digest, EXPECTED)
    with tarfile.open(tmp_path / "1.tar") as tar:
        assert not [member for member in tar.getnames() if "f" * 64 in member]


def test_an_archive_names_no_time_but_the_given_one(tmp_path: Path) -> None:
    for name, files in (("1.tar.gz", {"b": b"2", "a": b"1"}), ("2.tar.gz", {"a": b"1", "b": b"2"})):
        write_archive(tmp_path / name, files, 100)
    assert (tmp_path / "1.tar.gz").read_bytes() == (tmp_path / "2.tar.gz").read_bytes()
    # Bytes 4 to 7 of gzip's header: the time of packing (RFC 1952, 2.3.1).
    assert (tmp_path / "1.tar.gz").read_bytes()[4:8] == bytes(4)
    with tarfile.open(tmp_path / "1.tar.gz") as tar:
        found = [(member.name, member.mtime, member.uid, member.uname) for member in tar]
    assert found == [("a", 100, 0, ""), ("b", 100, 0, "")]


def test_a_release_is_built_from_files_with_the_rights_of_the_usual_umask(tmp_path: Path) -> None:
    require_clone("and a release is made of a commit")
    old = os.umask(0o077)
    try:
        tree = export_commit(tmp_path / "tree")
    finally:
        os.umask(old)
    rights = {path.stat().st_mode & 0o777 for path in (tree / "images").rglob("*")}
    assert rights == {0o644, 0o755}
