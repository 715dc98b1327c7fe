"""Measure how the code is laid out: ``python tools/structure.py [CHECKOUT] [--json] [--check]``.

For the trainer's package and the operator's: entries, levels, imports that go up, cycles, modules without a layers
contract, small files, the longest file, comments; and for both together the blocks of lines that stand twice. Works on
any checkout of the project, so that two of them are measured by the same script. What each figure counts stands beside
it in the output. Needs nothing but the standard library.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import sys
import tokenize
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path

from import_graph import INIT, ImportGraph, Layers, levels, read_graph, read_layers

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("trainer/bert_trainer", "operator/bert_operator")
SMALL_LINES = 30
BLOCK_LINES = 6


@dataclass(frozen=True)
class Structure:
    """What one package is made of. Modules are written without the name of the package."""

    package: str
    modules: int
    imports: int
    deferred_imports: int
    typing_imports: int
    entries: list[str]
    levels: list[list[str]]
    upward_imports: list[str]
    cycles: dict[str, list[list[str]]]
    """Packages that hold cycles among their children, and these."""
    typing_cycles: dict[str, list[list[str]]]
    """The same if imports for type checkers alone counted."""
    covered: dict[str, tuple[int, int]]
    """Packages: how many of their children a layers contract names, of how many."""
    uncovered: list[str]
    small_files: dict[str, int]
    longest_file: tuple[str, int]
    lines: int
    comment_lines: int
    docstring_lines: int


def measure(folder: Path, pyproject: Path) -> Structure:
    """Measure the package in ``folder`` beside the contracts in ``pyproject``."""
    graph = read_graph(folder)
    contracts = read_layers(pyproject, graph.root)
    covered, uncovered = _coverage(graph, contracts)
    # An empty __init__.py is the mark of a package, not a file that anyone opens.
    texts = {str(path.relative_to(folder)): path.read_text() for path in graph.files.values()}
    lengths = {name: len(text.splitlines()) for name, text in texts.items()}
    files = {
        name: lines for name, lines in lengths.items() if not (name.endswith("__init__.py") and _is_empty(texts[name]))
    }
    top = graph.sibling_edges(graph.root)
    entries = [name for name in graph.children(graph.root) if name == "__main__" or not name.startswith("_")]
    return Structure(
        package=graph.root,
        modules=len(graph.files),
        imports=len(graph.imports),
        deferred_imports=sum(found.deferred for found in graph.imports),
        typing_imports=len(graph.typing_imports),
        entries=entries,
        levels=levels({name: ends - {INIT} for name, ends in top.items() if name != INIT}),
        upward_imports=_upward(graph, contracts),
        cycles={package: found for package in graph.packages if (found := graph.cycles(package))},
        typing_cycles={package: found for package in graph.packages if (found := graph.cycles(package, typing=True))},
        covered=covered,
        uncovered=uncovered,
        small_files={name: lines for name, lines in sorted(files.items()) if lines < SMALL_LINES},
        longest_file=max(lengths.items(), key=lambda item: item[1]),
        lines=sum(bool(line.strip()) for text in texts.values() for line in text.splitlines()),
        comment_lines=sum(map(count_comments, texts.values())),
        docstring_lines=sum(map(count_docstrings, texts.values())),
    )


def _upward(graph: ImportGraph, contracts: list[Layers]) -> list[str]:
    """Imports against a layers contract, and those that close a cycle: every import between members of a cycle."""
    found = {item for item in graph.imports if any(layers.forbids(item) for layers in contracts)}
    for package in graph.packages:
        for cycle in graph.cycles(package):
            found |= set(graph.imports_between(package, cycle))
    return sorted(map(str, found))


def _coverage(graph: ImportGraph, contracts: list[Layers]) -> tuple[dict[str, tuple[int, int]], list[str]]:
    """Count per package the children that a contract for this package names; packages of one child need none."""
    covered, uncovered = {}, []
    for package in graph.packages:
        children = [f"{package}.{name}" for name in graph.children(package)]
        named = {name for layers in contracts if layers.container == package for name in layers.names}
        if len(children) > 1:
            covered[package] = (len(named.intersection(children)), len(children))
            uncovered += sorted(set(children) - named)
    return covered, uncovered


def _is_empty(text: str) -> bool:
    """Whether a module holds nothing but a docstring and comments."""
    body = ast.parse(text).body
    return all(isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) for node in body)


def count_comments(text: str) -> int:
    """Lines that hold nothing but a comment; what tools read (``# noqa``, ``# type:``) ends lines of code."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return sum(token.type == tokenize.COMMENT and not token.line[: token.start[1]].strip() for token in tokens)


def count_docstrings(text: str) -> int:
    """Non-blank lines of strings that stand as statements: docstrings of modules, classes, functions and fields."""
    lines = text.splitlines()
    spans = [
        range(node.lineno - 1, node.end_lineno or node.lineno)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]
    return sum(bool(lines[number].strip()) for span in spans for number in span)


@dataclass(frozen=True)
class Duplicate:
    """Two places that share lines; ``lines`` counts those that count (see ``normalized_lines``)."""

    lines: int
    first: str
    second: str


def normalized_lines(text: str) -> list[tuple[int, str]]:
    """Lines with their numbers, white space folded; no blank lines, comments, imports or lone brackets."""
    folded = ((number, " ".join(line.split())) for number, line in enumerate(text.splitlines(), 1))
    return [
        (number, line)
        for number, line in folded
        if re.search(r"\w", line) and not re.match(r"#|import |from .* import", line)
    ]


def duplicates(texts: dict[str, str]) -> list[Duplicate]:
    """Pairs of places with ``BLOCK_LINES`` or more identical lines on end, the longest first; each run counts once."""
    files = {name: normalized_lines(text) for name, text in sorted(texts.items())}
    windows: dict[tuple[str, ...], list[tuple[str, int]]] = defaultdict(list)
    for name, lines in files.items():
        for start in range(len(lines) - BLOCK_LINES + 1):
            windows[tuple(line for _, line in lines[start : start + BLOCK_LINES])].append((name, start))
    pairs = {(one, other) for places in windows.values() for one in places for other in places if one < other}
    # A run is reported where it starts: the pair one line earlier is no pair.
    starts = [pair for pair in pairs if tuple((name, start - 1) for name, start in pair) not in pairs]
    return sorted(
        (_run(pair, pairs, files) for pair in starts), key=lambda found: (-found.lines, found.first, found.second)
    )


Pair = tuple[tuple[str, int], tuple[str, int]]


def _run(pair: Pair, pairs: set[Pair], files: dict[str, list[tuple[int, str]]]) -> Duplicate:
    (one, start), (other, second) = pair
    length = 0
    while ((one, start + length), (other, second + length)) in pairs:
        length += 1
    lines = length + BLOCK_LINES - 1
    spans = [(name, files[name][at][0], files[name][at + lines - 1][0]) for name, at in pair]
    places = [f"{name}:{first}-{last}" for name, first, last in spans]
    return Duplicate(lines, *places)


def describe(found: Structure) -> str:
    """What a person reads of one package."""
    named, of = (sum(column) for column in zip((0, 0), *found.covered.values(), strict=True))
    cycles, typing_cycles = _cycle_rows(found.cycles), _cycle_rows(found.typing_cycles)
    sections = [
        (f"entries: {len(found.entries)} (modules and packages directly in the package)", [", ".join(found.entries)]),
        (
            f"levels: {len(found.levels)} (entries on the longest path of imports, a cycle counted as one)",
            [f"{height:2} {', '.join(row)}" for height, row in reversed(list(enumerate(found.levels, 1)))],
        ),
        (
            f"upward imports: {len(found.upward_imports)} (against a layers contract, or within a cycle)",
            found.upward_imports,
        ),
        (f"cycles: {len(cycles)} (among the children of a package)", cycles),
        (f"cycles if imports for type checkers alone counted: {len(typing_cycles)}", typing_cycles),
        (f"under a layers contract: {named} of {of} children of packages", _uncovered_rows(found)),
        (
            f"files under {SMALL_LINES} lines: {len(found.small_files)} (empty __init__.py left out)",
            [f"{lines:3} {name}" for name, lines in sorted(found.small_files.items(), key=lambda item: item[1])],
        ),
    ]
    lines = [
        f"{found.package}: {found.modules} modules, {found.lines} non-blank lines",
        f"  imports: {found.imports} between modules; {found.deferred_imports} deferred (only inside functions); "
        f"{found.typing_imports} more are for type checkers alone",
        f"  comment lines: {_share(found.comment_lines, found.lines)} of the non-blank lines; "
        f"docstrings, counted apart: {_share(found.docstring_lines, found.lines)}",
        f"  longest file: {found.longest_file[1]} lines, {found.longest_file[0]}",
    ]
    for heading, rows in sections:
        lines += [f"  {heading}", *(f"    {row}" for row in rows)]
    return "\n".join(lines)


def _cycle_rows(cycles: dict[str, list[list[str]]]) -> list[str]:
    return [f"{package}: {', '.join(names)}" for package, parts in cycles.items() for names in parts]


def _uncovered_rows(found: Structure) -> list[str]:
    missing: dict[str, list[str]] = defaultdict(list)
    for name in found.uncovered:
        package, _, child = name.rpartition(".")
        missing[package].append(child)
    counts = {package: found.covered[package] for package in missing}
    return [f"{package} ({named} of {of}): {', '.join(missing[package])}" for package, (named, of) in counts.items()]


def _share(part: int, whole: int) -> str:
    return f"{100 * part / max(whole, 1):.1f} % ({part})"


def describe_duplicates(found: list[Duplicate]) -> str:
    """What a person reads of the blocks that stand twice."""
    heading = (
        f"duplicated blocks: {len(found)} (pairs of places that share {BLOCK_LINES} or more identical lines on end)"
    )
    return "\n".join([heading, *(f"  {item.lines:3} {item.first} ~ {item.second}" for item in found)])


def main() -> int:
    """Print the figures; with ``--check`` say by the exit status whether there are cycles."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("checkout", nargs="?", type=Path, default=ROOT, help="folder of a checkout (default: this one)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--check", action="store_true", help="exit with status 1 if there are import cycles")
    options = parser.parse_args()
    folders = [options.checkout / name for name in PACKAGES if (options.checkout / name).is_dir()]
    if not folders:
        parser.error(f"{options.checkout}: holds neither {' nor '.join(PACKAGES)}; name a checkout of this project")
    found = [measure(folder, options.checkout / "pyproject.toml") for folder in folders]
    paths = [path for folder in folders for path in folder.rglob("*.py")]
    copies = duplicates({str(path.relative_to(options.checkout)): path.read_text() for path in paths})
    if options.json:
        document = {"packages": [asdict(item) for item in found], "duplicates": [asdict(item) for item in copies]}
        print(json.dumps(document, indent=2))
    else:
        print("\n\n".join([*map(describe, found), describe_duplicates(copies)]))
    return 1 if options.check and any(item.cycles for item in found) else 0


if __name__ == "__main__":
    sys.exit(main())
