"""One version everywhere: the distribution's, the chart's, and the tags of our images in what is installed."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
PLACES = ("deploy", "charts", "operator", "docs/guides", "images")
OURS = re.compile(
    r"/(?:trainer|operator):(\d[\w.]*)|newTag: (\S+)|^(?:appV|v)ersion: (\S+)|\bbert[\w-]*[-:](\d+\.\d+\.\d+)"
)


def test_images_and_chart_carry_the_version_of_the_distribution() -> None:
    kinds = ("*.py", "*.yaml", "*.md")
    files = [path for place in PLACES for kind in kinds for path in (ROOT / place).rglob(kind)]
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in files if "mpi-operator" not in path.parts}
    lines = [(path, line) for path, text in texts.items() for line in text.splitlines()]
    found = {(path, "".join(match)) for path, line in lines for match in OURS.findall(line)}
    assert len(found) > 10
    assert [(path, version) for path, version in sorted(found) if version != VERSION] == []


def test_the_changelog_names_what_comes() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    headings = re.findall(r"^## \[([^]]+)\]", text, re.MULTILINE)
    assert headings[0] in {"Unreleased", VERSION}
