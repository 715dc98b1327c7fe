"""Make the kubectl plugin in dist/plugin/: ``make plugin``, or ``python tools/make_plugin.py``.

``kubectl-bert`` is one file that needs Python 3.11 or newer and kubectl, and nothing else: an archive of modules that
Python runs (zipapp). Beside it ``kubectl_complete-bert``, which completes its words in a shell, an archive of both, and
a krew manifest that names that archive by its SHA-256. Which modules belong to it is read from their imports. The same
sources give the same bytes.
"""

from __future__ import annotations

import argparse
import ast
import gzip
import hashlib
import io
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SOURCES = {"bert_operator": ROOT / "operator", "bert_job": ROOT / "trainer"}
"""The packages of the project that the program may hold, and where they lie."""
ENTRY = "bert_operator.plugin.command_line"
DATA = {".json", ".txt"}
"""Endings of files that modules read from their own folder."""
REPOSITORY = "https://github.com/OWNER/bert-pretrain-operator"
"""Until pyproject.toml names one (``[project.urls] Repository``); below it releases are published."""
_MOMENT = (1980, 1, 1, 0, 0, 0)
"""Of every file in the archive: the oldest that the format has."""
_MAIN = f"""\
import sys

if sys.version_info < (3, 11):
    sys.exit("kubectl bert: got Python %d.%d; allowed: 3.11 or newer" % sys.version_info[:2])
try:
    from {ENTRY} import main

    code = main()
except KeyboardInterrupt:
    code = 130
sys.exit(code)
"""
_COMPLETE = """\
#!/bin/sh
# kubectl asks this program for the words that may follow `kubectl bert ...`.
exec kubectl-bert __complete "$@"
"""


def modules_of(entry: str) -> dict[str, Path]:
    """Return a module and all of the package that it imports, with the packages that they lie in, by name."""
    found: dict[str, Path] = {}
    waiting = [entry]
    while waiting:
        name = waiting.pop()
        if name in found or (path := _file_of(name)) is None:
            continue
        found[name] = path
        waiting += [name.rpartition(".")[0], *_imports(path)]
    return found


def _file_of(name: str) -> Path | None:
    package = name.partition(".")[0]
    if package not in SOURCES:
        return None
    base = SOURCES[package] / name.replace(".", "/")
    candidates = (base / "__init__.py", base.with_suffix(".py"))
    return next((path for path in candidates if path.is_file()), None)


def _name_of(path: Path) -> str:
    return next(path.relative_to(root).as_posix() for root in SOURCES.values() if path.is_relative_to(root))


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(tuple(SOURCES)):
            yield node.module
            # What is imported from a package may be a module of it.
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith(tuple(SOURCES)))


def make_program(version: str) -> bytes:
    """Return the program: a line for the shell, then the archive of its modules."""
    modules = modules_of(ENTRY)
    files = {_name_of(path): path.read_bytes() for path in modules.values()}
    for folder in {path.parent for path in modules.values()}:
        files |= {_name_of(path): path.read_bytes() for path in folder.iterdir() if path.suffix in DATA}
    # By these two lines Python finds the version.
    metadata = f"Metadata-Version: 2.1\nName: bert-pretrain-operator\nVersion: {version}\n"
    files[f"bert_pretrain_operator-{version}.dist-info/METADATA"] = metadata.encode()
    files["__main__.py"] = _MAIN.encode()
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as target:
        for name, content in sorted(files.items()):
            entry = zipfile.ZipInfo(name, _MOMENT)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            target.writestr(entry, content)
    return b"#!/usr/bin/env python3\n" + archive.getvalue()


def make_archive(files: dict[str, bytes]) -> bytes:
    """Return an archive of programs and the licence in a form that krew unpacks: zip, or tar in gzip."""
    archive = io.BytesIO()
    # Neither a name nor a time in the head of gzip.
    zipped = gzip.GzipFile(filename="", fileobj=archive, mode="wb", compresslevel=9, mtime=0)
    with zipped, tarfile.open(fileobj=zipped, mode="w", format=tarfile.USTAR_FORMAT) as target:
        for name, content in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o644 if name == "LICENSE" else 0o755
            target.addfile(entry, io.BytesIO(content))
    return archive.getvalue()


def repository_of(project: Mapping[str, Any]) -> str | None:
    """Return the address of the repository that pyproject.toml's ``project`` table names, if it does."""
    address: str | None = project.get("urls", {}).get("Repository")
    return address


def main(words: list[str] | None = None) -> int:
    """Make the files and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=ROOT / "dist/plugin", help="the folder; default: dist/plugin")
    parser.add_argument(
        "--place", metavar="URL", help="where the manifest says that the archive is; default: a release"
    )
    arguments = parser.parse_args(words)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    version, repository = project["version"], repository_of(project) or REPOSITORY
    programs = {"kubectl-bert": make_program(version), "kubectl_complete-bert": _COMPLETE.encode()}
    archive = make_archive({**programs, "LICENSE": (ROOT / "LICENSE").read_bytes()})
    name = f"kubectl-bert-{version}.tar.gz"
    manifest = (ROOT / "deploy/krew/bert.yaml.in").read_text()
    for word, value in {
        "@VERSION@": version,
        "@REPOSITORY@": repository,
        "@URL@": f"{arguments.place or f'{repository}/releases/download'}/v{version}/{name}",
        "@SHA256@": hashlib.sha256(archive).hexdigest(),
    }.items():
        manifest = manifest.replace(word, value)
    arguments.output.mkdir(parents=True, exist_ok=True)
    for file, content in {**programs, name: archive, "bert.yaml": manifest.encode()}.items():
        path = arguments.output / file
        path.write_bytes(content)
        path.chmod(0o755 if file in programs else 0o644)
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
