"""English prose that comes with every Python: the language reference's topics and all docstrings.

One document for each topic of ``pydoc_data`` and one for each module of the standard library, its members'
docstrings included. Modules written in Python are *parsed*, never imported, so that none of their code runs
(some open a browser, print a poem or start a window when imported); compiled modules have nothing to
parse and are imported, save those made for tests. The text belongs to the Python Software Foundation and is
read where it lies; nothing is copied into this project. The corpus depends on the Python version.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.machinery
import inspect
import platform
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from bert_trainer.dataset.document import Document
from bert_trainer.dataset.prose import split_paragraphs, split_sentences

_SKIPPED = frozenset({"dist-packages", "pydoc_data", "site-packages", "test", "tests"})
"""Folders left out: not the standard library's own, or (the tests) not installed everywhere."""
_SKIPPED_COMPILED = ("_test", "_xx", "xx", "_ctypes_test", "_tkinter")
"""Beginnings of the names of compiled modules left out: made for tests, or of little text and large."""
_MEMBER_DEPTH = 3
"""How deep members of a compiled module are followed: module, class, method."""

CLEANING_VERSION = 1
"""Raised whenever the same Python would yield other text."""


def python_docs_fingerprint() -> str:
    """Name what the corpus depends on: this Python and the rules that clean its text."""
    return f"python-docs/{CLEANING_VERSION} {platform.python_implementation()} {sys.version.split()[0]}"


def read_python_docs() -> Iterator[Document]:
    """Yield one document per topic and module, in a fixed order, each paragraph only where it is first.

    Inherited and copied docstrings are thereby counted once. Memory: one document and 16 bytes (plus the
    set's overhead) for every paragraph seen.
    """
    seen: set[bytes] = set()
    for name, texts in _sources():
        sentences: list[str] = []
        for text in texts:
            for paragraph in split_paragraphs(text):
                key = hashlib.sha256(paragraph.casefold().encode()).digest()[:16]
                if key not in seen:
                    seen.add(key)
                    sentences += split_sentences(paragraph)
        if sentences:
            yield Document(name=f"python-docs:{name}", sentences=tuple(sentences))


def _sources() -> Iterator[tuple[str, Iterator[str]]]:
    topics = importlib.import_module("pydoc_data.topics").topics
    for name in sorted(topics):
        yield f"topic/{name}", iter([topics[name]])
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root).with_suffix("")
        if not _SKIPPED.intersection(relative.parts):
            yield f"module/{'.'.join(relative.parts)}", _docstrings_of_file(path)
    for name in _compiled_module_names(root):
        module = _import_compiled(name)
        if module is not None:
            yield f"module/{name}", _docstrings_of_object(module, module.__name__, depth=0)


def _docstrings_of_file(path: Path) -> Iterator[str]:
    """Yield the docstrings of a module, its classes and functions, in the order of the source."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    definitions = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, definitions):
            text = ast.get_docstring(node)
            if text:
                yield text
        waiting.extend(reversed([child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]))


def _compiled_module_names(root: Path) -> list[str]:
    names = set(sys.builtin_module_names)
    for folder in {root / "lib-dynload", Path(sysconfig.get_paths()["platstdlib"]) / "lib-dynload"}:
        for suffix in importlib.machinery.EXTENSION_SUFFIXES:
            names |= {path.name.removesuffix(suffix) for path in folder.glob(f"*{suffix}")}
    plain = {name for name in names if "." not in name and not name.startswith(_SKIPPED_COMPILED)}
    return sorted(plain - _SKIPPED)


def _import_compiled(name: str) -> ModuleType | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(name)
    except ImportError:
        # Built without its library on this machine: the corpus does without it.
        return None


def _docstrings_of_object(owner: object, module: str, depth: int) -> Iterator[str]:
    """Yield the docstrings of an object of a compiled module and of what it defines itself."""
    text = owner.__doc__
    if isinstance(text, str):
        yield inspect.cleandoc(text)
    if depth >= _MEMBER_DEPTH or not isinstance(owner, ModuleType | type):
        return
    for name, member in sorted(vars(owner).items()):
        # Instances of ordinary types would repeat their type's docstring.
        is_own_type = isinstance(member, type) and (depth > 0 or member.__module__ == module)
        if is_own_type or (_is_routine(member) and (depth == 1 or not name.startswith("__"))):
            yield from _docstrings_of_object(member, module, depth + 1)


def _is_routine(member: object) -> bool:
    return inspect.isroutine(member) or inspect.isdatadescriptor(member)
