"""The Makefile is an index of commands: short recipes, every target documented."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text()


def targets() -> dict[str, list[str]]:
    """Return the recipe lines of every target, continuation lines joined."""
    found: dict[str, list[str]] = {}
    recipe: list[str] = []
    for line in MAKEFILE.replace("\\\n", " ").splitlines():
        if rule := re.match(r"([a-z][a-z-]*):(?!=)", line):
            recipe = found.setdefault(rule[1], [])
        elif line.startswith("\t"):
            recipe.append(line)
    return found


def test_every_target_is_documented() -> None:
    documented = set(re.findall(r"^([a-z-]+):.*## ", MAKEFILE, flags=re.MULTILINE))
    assert set(targets()) == documented


def test_recipes_are_three_lines_at_most() -> None:
    assert [name for name, recipe in targets().items() if len(recipe) > 3] == []


def test_make_help_lists_them_all() -> None:
    answer = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert re.findall(r"^  make ([a-z-]+) ", answer.stdout, flags=re.MULTILINE) == list(targets())
