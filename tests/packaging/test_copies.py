"""Nothing is committed twice: no two files share a long stretch of lines."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from git_clone import ROOT, list_files, require_clone

MIN_LINES = 20
"""In a row, none of them empty."""
ALIKE = (
    *("*.lock", "*go.sum", "*go.mod", "*/dashboards/*", "tests/golden/*", "tests/fuzz/findings/*"),
    *("examples/*", "deploy/kustomize/overlays/*", "tests/fixtures/tensorflow/*"),
)
"""Written by tools, or whole on purpose: read, edited or compared one by one."""


def test_no_two_files_share_a_long_stretch() -> None:
    require_clone("which lists what is committed")
    where: defaultdict[int, set[str]] = defaultdict(set)
    files = list_files("--", *(f":(exclude){pattern}" for pattern in ALIKE))
    for path in (path for path in files if not path.is_symlink()):
        for stretch in stretches(path):
            where[hash(stretch)].add(str(path.relative_to(ROOT)))
    assert {tuple(sorted(names)) for names in where.values() if len(names) > 1} == set()


def stretches(path: Path) -> Iterator[tuple[str, ...]]:
    """Yield each row of so many lines of a text file."""
    try:
        lines = [line.strip() for line in path.read_text().splitlines()]
    except UnicodeDecodeError:
        return
    for begin in range(len(lines) - MIN_LINES + 1):
        found = tuple(lines[begin : begin + MIN_LINES])
        if all(found):
            yield found
