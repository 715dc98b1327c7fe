"""Lists of parts (SBOM), SPDX 2.3 in JSON: what a file of a release holds or needs, with versions, licences and sums.

Built and checked by spdx-tools. The same inputs give the same bytes: the time is that of the commit, and the namespace
comes from the sum of the file that is described.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import Message
from email.parser import HeaderParser
from importlib.metadata import distributions
from pathlib import Path
from typing import Any
from urllib.parse import quote

from spdx_tools.spdx.jsonschema.document_converter import DocumentConverter
from spdx_tools.spdx.model import (
    Actor,
    ActorType,
    Checksum,
    ChecksumAlgorithm,
    CreationInfo,
    Document,
    ExternalPackageRef,
    ExternalPackageRefCategory,
    ExtractedLicensingInfo,
    Package,
    Relationship,
    RelationshipType,
    SpdxNoAssertion,
)
from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

from release.image_files import Image
from release.licences import licence_table, spdx, state_licence

_DPKG = ("var/lib/dpkg/status", "var/lib/dpkg/status.d/")
_LOCK_LINE = re.compile(r"^([A-Za-z0-9_.-]+)==([^ ;\\]+)", re.MULTILINE)


@dataclass(frozen=True)
class Part:
    """Something that a file holds or needs."""

    name: str
    version: str
    url: str
    """Package URL, https://github.com/package-url/purl-spec."""
    licence: str = ""
    """SPDX expression; empty where it is not known."""
    sha256: str = ""


def is_wanted(path: str) -> bool:
    """Whether the bytes of this file of an image are needed to tell its parts."""
    return path.startswith(_DPKG) or path == "etc/os-release" or bool(re.search(r"\.dist-info/METADATA$", path))


def parts_of_image(image: Image) -> list[Part]:
    """Return the Debian and Python packages of an image; it was read with ``keep=is_wanted``."""
    system = dict(re.findall(r'^(\w+)="?([^"\n]*)', image.contents.get("etc/os-release", b"").decode(), re.MULTILINE))
    # Debian's own images have it below usr/lib, with a link.
    kind, release = system.get("ID", "debian"), system.get("VERSION_ID", "12")
    parts = set()
    for path, content in image.contents.items():
        text = content.decode(errors="replace")
        if path.startswith(_DPKG):
            blocks = map(HeaderParser().parsestr, text.split("\n\n"))
            parts |= {_debian_part(block, kind, release) for block in blocks if _is_installed(block)}
        elif path.endswith("METADATA"):
            parts.add(_python_part(HeaderParser().parsestr(text)))
    return sorted(parts, key=lambda part: (part.url, part.version))


def parts_of_locks(locks: Iterable[Path]) -> list[Part]:
    """Return the Python packages of lock files, with the licences of those that are installed here in that version.

    Of the others with what licences.toml states, if anything.
    """
    table: dict[str, str] = licence_table()["stated"]
    installed = {_normalize(str(item.metadata["Name"])): item.metadata for item in distributions()}
    parts = set()
    for lock in locks:
        for name, version in _LOCK_LINE.findall(lock.read_text()):
            metadata = installed.get(_normalize(name))
            known = metadata is not None and metadata["Version"] == version
            stated = table.get(_normalize(name), "")
            licence = state_licence(metadata) if known and isinstance(metadata, Message) else stated
            parts.add(Part(_normalize(name), version, f"pkg:pypi/{_normalize(name)}@{version}", licence))
    return sorted(parts, key=lambda part: part.url)


def _is_installed(block: Message) -> bool:
    return "installed" in str(block["Status"]).split()


def _debian_part(block: Message, kind: str, release: str) -> Part:
    name, version = str(block["Package"]), str(block["Version"])
    place = f"{quote(name)}@{quote(version, safe='~:')}?arch={block['Architecture']}&distro={kind}-{release}"
    return Part(name, version, f"pkg:deb/{kind}/{place}")


def _python_part(metadata: Message) -> Part:
    name, version = _normalize(str(metadata["Name"])), str(metadata["Version"])
    return Part(name, version, f"pkg:pypi/{name}@{version}", state_licence(metadata))


def _normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def write_sbom(target: Path, described: Part, parts: Iterable[Part], relation: str, seconds: int) -> None:
    """Write the SBOM of one file of a release.

    target: where it is written.
    described: the file, with its sum.
    relation: CONTAINS or DEPENDS_ON: what it has to do with its parts.
    seconds: Unix time that the document names as its creation.

    Raises:
        ValueError: spdx-tools finds the document invalid.
    """
    main = _package("SPDXRef-Release", described, "Apache-2.0")
    packages, relationships = [main], [Relationship("SPDXRef-DOCUMENT", RelationshipType.DESCRIBES, main.spdx_id)]
    for part in parts:
        identity = hashlib.sha256(part.url.encode()).hexdigest()[:12]
        package = _package(f"SPDXRef-{re.sub('[^A-Za-z0-9.-]', '-', part.name)}-{identity}", part, part.licence)
        packages.append(package)
        relationships.append(Relationship(main.spdx_id, RelationshipType[relation], package.spdx_id))
    document = Document(
        CreationInfo(
            spdx_version="SPDX-2.3",
            spdx_id="SPDXRef-DOCUMENT",
            name=described.name,
            document_namespace=f"https://bert-operator.dev/spdx/{described.name}-{described.sha256}",
            creators=[Actor(ActorType.TOOL, "bert-operator-make-release")],
            created=datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None),
        ),
        packages=packages,
        relationships=relationships,
        extracted_licensing_info=_references(packages),
    )
    if problems := validate_full_spdx_document(document):
        raise ValueError(f"{target.name}: {problems[0].validation_message}")
    converted: dict[str, Any] = DocumentConverter().convert(document)  # type: ignore[no-untyped-call]
    target.write_text(json.dumps(converted, indent=1, sort_keys=True) + "\n")


def _package(identity: str, part: Part, licence: str) -> Package:
    expression = spdx().parse(licence) if licence else SpdxNoAssertion()
    return Package(
        spdx_id=identity,
        name=part.name,
        version=part.version,
        download_location=SpdxNoAssertion(),
        files_analyzed=False,
        license_declared=expression,
        license_concluded=SpdxNoAssertion(),
        checksums=[Checksum(ChecksumAlgorithm.SHA256, part.sha256)] if part.sha256 else [],
        external_references=[ExternalPackageRef(ExternalPackageRefCategory.PACKAGE_MANAGER, "purl", part.url)],
    )


def _references(packages: list[Package]) -> list[ExtractedLicensingInfo]:
    """Return what SPDX asks for where a licence is not on its list."""
    names = {name for item in packages for name in re.findall(r"LicenseRef-[A-Za-z0-9.-]+", str(item.license_declared))}
    text = "See the licence files of the packages that name it."
    return [ExtractedLicensingInfo(license_id=name, license_name=name, extracted_text=text) for name in sorted(names)]
