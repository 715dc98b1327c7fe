"""The import graph of one package, read from its sources with ``ast``: nothing is imported, nothing is installed.

Nodes are modules; an edge is "this module imports that one", counted once per pair however often it is written.
``from package import name`` is an edge to ``package.name`` where that is a module, else to ``package``. Imports inside
functions are edges like any other and counted as deferred; imports under ``if TYPE_CHECKING`` are kept apart, since
nothing runs them. Only imports within the package count.

What import-linter checks is not checked again here: this module measures, also in checkouts whose contracts cover
less.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

INIT = "__init__"
Edges = dict[str, set[str]]


@dataclass(frozen=True)
class Import:
    """One module imports another."""

    importer: str
    imported: str
    deferred: bool
    """It is only written inside functions."""

    def __str__(self) -> str:
        """As lists show it."""
        return f"{self.importer} -> {self.imported}{' (deferred)' if self.deferred else ''}"


@dataclass(frozen=True)
class ImportGraph:
    """The modules of a package, dotted names to files, and the imports between them."""

    root: str
    files: dict[str, Path]
    imports: tuple[Import, ...]
    typing_imports: tuple[Import, ...]
    """Imports that stand under ``if TYPE_CHECKING`` alone."""

    @cached_property
    def packages(self) -> list[str]:
        """Packages with at least one module or package beside ``__init__``, the root first."""
        parents = {parent for name in self.files for parent in _parents(name)}
        return sorted(parents)

    def children(self, package: str) -> list[str]:
        """Names of the modules and packages directly in ``package``, ``__init__`` left out."""
        inside = f"{package}."
        return sorted({name[len(inside) :].split(".")[0] for name in self.files if name.startswith(inside)})

    def sibling_edges(self, package: str, typing: bool = False) -> Edges:
        """Return who imports whom among the children of ``package``, its own ``__init__`` among them.

        Args:
            package: Dotted name of a package of this graph.
            typing: Whether imports for type checkers alone are edges too.
        """
        edges: Edges = {child: set() for child in [*self.children(package), INIT]}
        for found in self.imports + (self.typing_imports if typing else ()):
            importer, imported = _child(package, found.importer), _child(package, found.imported)
            if importer and imported and importer != imported:
                edges[importer].add(imported)
        return edges

    def cycles(self, package: str, typing: bool = False) -> list[list[str]]:
        """Strongly connected components of more than one child of ``package``."""
        return [sorted(part) for part in components(self.sibling_edges(package, typing)) if len(part) > 1]

    def imports_between(self, package: str, siblings: list[str]) -> list[Import]:
        """Imports from one of these children of ``package`` to another."""
        ends = [(found, _child(package, found.importer), _child(package, found.imported)) for found in self.imports]
        return [found for found, start, end in ends if start != end and start in siblings and end in siblings]


def read_graph(folder: Path) -> ImportGraph:
    """Read the package in ``folder``, whose last part is its name."""
    files = {_module_name(folder, path): path for path in sorted(folder.rglob("*.py"))}
    deferred: dict[tuple[str, str], bool] = {}
    typing: set[tuple[str, str]] = set()
    for module, path in files.items():
        package = module if path.stem == INIT else module.rpartition(".")[0]
        for node, inside_function, type_checking in _import_nodes(ast.parse(path.read_text()), False, False):
            for imported in _targets(node, package, files):
                pair = (module, imported)
                if module == imported:
                    continue
                if type_checking:
                    typing.add(pair)
                else:
                    deferred[pair] = deferred.get(pair, True) and inside_function
    imports = tuple(Import(*pair, late) for pair, late in sorted(deferred.items()))
    typing_imports = tuple(Import(*pair, False) for pair in sorted(typing - deferred.keys()))
    return ImportGraph(folder.name, files, imports, typing_imports)


def _module_name(folder: Path, path: Path) -> str:
    parts = path.relative_to(folder.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == INIT else parts)


def _parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:length]) for length in range(1, len(parts))]


def _child(package: str, module: str) -> str | None:
    """Return which child of ``package`` holds ``module``: ``__init__`` for the package itself, None outside it."""
    if module == package:
        return INIT
    inside = f"{package}."
    return module[len(inside) :].split(".")[0] if module.startswith(inside) else None


def _import_nodes(
    node: ast.AST, inside_function: bool, type_checking: bool
) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool, bool]]:
    """Yield every import statement, whether a function holds it, and whether only type checkers see it."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield node, inside_function, type_checking
    inside_function = inside_function or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
        for guarded in node.body:
            yield from _import_nodes(guarded, inside_function, True)
        children: list[ast.AST] = list(node.orelse)
    else:
        children = list(ast.iter_child_nodes(node))
    for child in children:
        yield from _import_nodes(child, inside_function, type_checking)


def _targets(node: ast.Import | ast.ImportFrom, package: str, files: dict[str, Path]) -> set[str]:
    """Return the modules of this graph that a statement imports; ``package`` resolves relative ones."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names if alias.name in files}
    parts = package.split(".")
    base = parts[: len(parts) - node.level + 1] if node.level else []
    source = ".".join([*base, node.module] if node.module else base)
    found = {f"{source}.{alias.name}" for alias in node.names}
    return {name if name in files else source for name in found} & files.keys()


def components(edges: Edges) -> list[set[str]]:
    """Strongly connected components: sets of nodes that reach each other. Small graphs only: closures are compared."""
    reach = {node: _reachable(node, edges) for node in edges}
    found: list[set[str]] = []
    for node in sorted(edges):
        if not any(node in part for part in found):
            found.append({node} | {other for other in reach[node] if node in reach[other]})
    return found


def _reachable(start: str, edges: Edges) -> set[str]:
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        new = edges[waiting.pop()] - seen
        seen |= new
        waiting.extend(new)
    return seen


def levels(edges: Edges) -> list[list[str]]:
    """Return the nodes by level, lowest first: level 1 imports no sibling, every other is one above what it imports.

    A cycle is one node of the condensed graph, so its members share a level; the number of levels is the number of
    nodes on the longest path.
    """
    parts = components(edges)
    owner = {node: index for index, part in enumerate(parts) for node in part}
    below = {index: {owner[end] for node in part for end in edges[node]} - {index} for index, part in enumerate(parts)}
    heights: dict[int, int] = {}

    def height(index: int) -> int:
        if index not in heights:
            heights[index] = 1 + max((height(other) for other in below[index]), default=0)
        return heights[index]

    rows: list[list[str]] = [[] for _ in range(max(map(height, below), default=0))]
    for index, part in enumerate(parts):
        rows[height(index) - 1] += sorted(part)
    return [sorted(row) for row in rows]


@dataclass(frozen=True)
class Layers:
    """A layers contract of import-linter for one container: modules by layer, the highest first."""

    container: str
    rows: tuple[frozenset[str], ...]
    independent: frozenset[int]
    """Rows (``a | b``) whose members may not import each other."""

    @property
    def names(self) -> frozenset[str]:
        """Every module that the contract names."""
        return frozenset().union(*self.rows)

    def forbids(self, found: Import) -> bool:
        """Whether an import goes from a lower layer to a higher one, or between independent modules of one layer."""
        (start, importer), (end, imported) = self._place(found.importer), self._place(found.imported)
        if start is None or end is None or importer == imported:
            return False
        return end < start or (end == start and start in self.independent)

    def _place(self, module: str) -> tuple[int | None, str]:
        """Return the layer that holds ``module``, and by which of its names (the longest)."""
        holders = [(name, row) for row, names in enumerate(self.rows) for name in names if _holds(name, module)]
        name, row = max(holders, key=lambda holder: len(holder[0]), default=("", None))
        return row, name


def _holds(package: str, module: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def read_layers(pyproject: Path, root: str) -> list[Layers]:
    """Read the layers contracts for containers within ``root``. Their ``ignore_imports`` are not excused."""
    if not pyproject.exists():
        return []
    contracts = tomllib.loads(pyproject.read_text()).get("tool", {}).get("importlinter", {}).get("contracts", [])
    return [
        _layers(container, contract["layers"])
        for contract in contracts
        if contract.get("type") == "layers"
        for container in contract.get("containers", [])
        if _holds(root, container)
    ]


def _layers(container: str, texts: list[Any]) -> Layers:
    rows = [
        frozenset(f"{container}.{name.strip(' ()')}" for name in text.replace(":", "|").split("|")) for text in texts
    ]
    return Layers(container, tuple(rows), frozenset(row for row, text in enumerate(texts) if "|" in text))
