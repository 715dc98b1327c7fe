"""Nothing is committed twice: no two files share a long stretch of lines."""

from __future__ import annotations

import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from git_clone import require_clone

ROOT = Path(__file__).parents[2]
MIN_LINES = 20
"""In a row, none of them empty."""
ALIKE = (
    *("*.lock", "*go.sum", "*go.mod", "*/dashboards/*", "tests/golden/*", "tests/fuzz/findings/*"),
    *("examples/*", "deploy/kustomize/overlays/*", "tests/fixtures/tensorflow/*"),
)
"""Written by tools, or whole on purpose: read, edited or compared one by one."""


def test_no_two_files_share_a_long_stretch() -> None:
    require_clone("which lists what is committed")
    command = ["git", "ls-files", "-z", "--", *(f":(exclude){pattern}" for pattern in ALIKE)]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    paths = [ROOT / name for name in listed.split("\0") if name]
    files = [path for path in paths if path.is_file() and not path.is_symlink()]
    where: defaultdict[int, set[str]] = defaultdict(set)
    for path in files:
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
