"""A table to classify: docstrings of installed packages, and the package that each comes from.

Both sides are balanced, no module is on both, and no text is there twice. The names of all packages and of their
modules are taken out of every text, so that what is left has to be told by what it is about; a module's name stays
where half of the packages use it as a word, as ``array`` and ``of``. Modules are parsed, never imported; the text is
read where it lies. The same requirements.lock gives the same rows.
"""

from __future__ import annotations

import ast
import hashlib
import re
import sysconfig
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from bert_trainer.dataset.corpus.python_docs import split_paragraphs

PACKAGES = {
    "matplotlib": "matplotlib",
    "mypy": "mypy",
    "networkx": "networkx",
    "numpy": "numpy",
    "scikit-learn": "sklearn",
    "scipy": "scipy",
    "setuptools": "setuptools",
    "sympy": "sympy",
    "torch": "torch",
    "transformers": "transformers",
}
"""Distributions, by the folders that they install."""
ALIASES = ("hf", "huggingface", "learn", "mpl", "np", "nx", "plt", "pytorch", "scikit")
"""What people call packages and modules besides their names."""

TRAINING_ROWS, HELD_OUT_ROWS = 200, 100
"""Of each package."""
MAX_READ = 1500
"""Docstrings of each package: enough to choose from."""
MAX_WORDS, MIN_WORDS = 48, 6
"""Of a row's text; what follows is cut."""
_SKIPPED = frozenset({"_vendor", "externals", "test", "testing", "tests"})

_DOTTED = re.compile(r"\b\w+(?:\.\w+)+\b")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SPACES = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class Row:
    """One docstring."""

    text: str
    package: str
    """Distribution: the class."""
    module: str


@dataclass(frozen=True, slots=True)
class Table:
    """Both sides, by package and in the order in which the rows were chosen."""

    training: tuple[Row, ...]
    held_out: tuple[Row, ...]


def installed_versions(lock: Path) -> dict[str, str]:
    """Return the version of every package, which has to be that of requirements.lock."""
    # The lock of all platforms and Pythons holds some packages in several versions.
    locked = set(re.findall(r"^([\w.-]+)==([^\s;]+)", lock.read_text(), re.MULTILINE))
    versions = {name: version(name) for name in PACKAGES}
    other = [f"{name} {number}" for name, number in versions.items() if (name, number.partition("+")[0]) not in locked]
    if other:
        raise SystemExit(f"docstrings: {', '.join(other)} is not in {lock.name}: make setup installs what is")
    return versions


def read_table(
    packages: dict[str, str] = PACKAGES,
    root: Path | None = None,
    *,
    held_out_rows: int = HELD_OUT_ROWS,
    training_rows: int = TRAINING_ROWS,
    split: int = 0,
) -> Table:
    """Read so many rows of every package. root: where they are installed. split: decides which modules are held out."""
    root = root or Path(sysconfig.get_paths()["purelib"])
    files = {name: _modules(root / folder, root, split) for name, folder in packages.items()}
    texts = {name: _read(modules) for name, modules in files.items()}
    names = removed_names(packages, [module for modules in files.values() for module in modules], texts)
    seen: set[bytes] = set()
    training: list[Row] = []
    held_out: list[Row] = []
    for package, modules in texts.items():
        chosen, rest = _choose(package, modules, names, seen, (held_out_rows, training_rows))
        held_out += chosen
        training += rest
    return Table(tuple(training), tuple(held_out))


def _choose(
    package: str, modules: dict[str, list[str]], names: frozenset[str], seen: set[bytes], wanted: tuple[int, int]
) -> tuple[list[Row], list[Row]]:
    """Return the held-out rows of a package, and those to train on. wanted: of each; seen: texts so far, added to."""
    sides: tuple[list[Row], list[Row]] = [], []
    # Whole modules go to one side, until that side has its rows.
    for module, texts in modules.items():
        side = 0 if len(sides[0]) < wanted[0] else 1
        for prose in texts:
            words = remove_names(prose, names).split()[:MAX_WORDS]
            text = " ".join(words)
            key = hashlib.sha256(text.casefold().encode()).digest()[:16]
            if len(words) >= MIN_WORDS and key not in seen and len(sides[side]) < wanted[side]:
                seen.add(key)
                sides[side].append(Row(text, package, module))
        if len(sides[1]) == wanted[1]:
            return sides
    raise SystemExit(f"docstrings: {package} has {len(sides[0]) + len(sides[1])} rows, {sum(wanted)} are needed")


def removed_names(
    packages: dict[str, str], modules: list[str], texts: dict[str, dict[str, list[str]]]
) -> frozenset[str]:
    """Return every word, in small letters, that names a package, or a module and is no word of half of the packages.

    modules: of all packages, with their dots. texts: of every package, by module.
    """
    always = {*ALIASES}
    for package, folder in packages.items():
        always |= _parts(package.replace("-", "_")) | _parts(folder)
    of_modules = {part for module in modules for part in _parts(module)}
    used = [
        {word.casefold() for prose in of_package.values() for text in prose for word in _WORD.findall(text)}
        for of_package in texts.values()
    ]
    return frozenset(always | {name for name in of_modules if 2 * sum(name in words for words in used) < len(used)})


def _parts(name: str) -> set[str]:
    """Return the words of a dotted name, whole and without underscores."""
    return {word.casefold() for part in name.split(".") for word in (part.strip("_"), *part.split("_")) if word}


def remove_names(text: str, names: frozenset[str]) -> str:
    """Cut dotted paths and the given words out of a text."""
    text = _DOTTED.sub(" ", text)
    text = _WORD.sub(lambda match: "" if match[0].strip("_").casefold() in names else match[0], text)
    return _SPACES.sub(" ", text).strip()


def _modules(folder: Path, root: Path, split: int) -> dict[str, Path]:
    """Return the modules below a folder, in the order of a hash of their names; another one for each split."""
    salt = str(split) if split else ""
    found = {
        ".".join(path.relative_to(root).with_suffix("").parts): path
        for path in folder.rglob("*.py")
        if not _SKIPPED.intersection(path.relative_to(folder).parts)
    }
    return {
        name: found[name] for name in sorted(found, key=lambda name: hashlib.sha256((salt + name).encode()).digest())
    }


def _read(modules: dict[str, Path]) -> dict[str, list[str]]:
    """Return the docstrings of a package by module."""
    texts: dict[str, list[str]] = {}
    for module, path in modules.items():
        if sum(map(len, texts.values())) >= MAX_READ:
            break
        texts[module] = list(_prose(path))
    return texts


def _prose(path: Path) -> Iterator[str]:
    """Yield the sentences of every docstring of a module."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            prose = " ".join(split_paragraphs(ast.get_docstring(node) or ""))
            if prose:
                yield prose
