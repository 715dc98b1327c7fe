"""More English than the standard library has: the docstrings of everything that requirements.lock installs.

Written as text files, one package each, a blank line between modules. The same lock file gives the same text.
Modules are parsed, never imported; the text is read where it lies and only written below ``runs/``.
"""

from __future__ import annotations

import ast
import hashlib
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

from bert_trainer.dataset.corpus.python_docs import split_paragraphs, split_sentences

MIN_PACKAGE_BYTES = 20_000
"""Packages with less text are left out."""


def write_installed_docs(folder: Path) -> int:
    """Write one file per package and return the bytes written in all."""
    folder.mkdir(parents=True, exist_ok=True)
    seen: set[bytes] = set()
    total = 0
    for package in sorted(Path(sysconfig.get_paths()["purelib"]).iterdir()):
        if not package.is_dir() or package.suffix in (".dist-info", ".libs"):
            continue
        text = "\n\n".join(_documents(package, seen))
        if len(text) >= MIN_PACKAGE_BYTES:
            (folder / f"{package.name}.txt").write_text(text + "\n", encoding="utf-8")
            total += len(text)
    return total


def _documents(package: Path, seen: set[bytes]) -> Iterator[str]:
    for path in sorted(package.rglob("*.py")):
        sentences: list[str] = []
        for docstring in _docstrings(path):
            for paragraph in split_paragraphs(docstring):
                key = hashlib.sha256(paragraph.casefold().encode()).digest()[:16]
                if key not in seen:
                    seen.add(key)
                    sentences += split_sentences(paragraph)
        if len(sentences) > 1:
            yield "\n".join(sentences)


def _docstrings(path: Path) -> Iterator[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield text
