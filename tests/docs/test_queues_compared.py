"""docs/guides/queues-compared.md: every cell has its source, every row a verdict, and our sources are files here."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMPARED, LISTED = (ROOT / "docs/guides/queues-compared.md").read_text().split("\n## Sources\n")
LINES = [line.removeprefix("| ").removesuffix(" |") for line in COMPARED.splitlines() if line.startswith("| ")]
ROWS = [line.split(" | ") for line in LINES if not line.startswith(("| ", "--- "))]
CODE = re.compile(r"\b[OKTJRMAPI][0-9]{1,2}\b")
SOURCES = re.findall(r"^\| ([OKTJRMAPI][0-9]+) \| (.+) \| (.+) \|$", LISTED, re.MULTILINE)


def test_a_source_that_is_named_is_listed_with_its_version_and_the_other_way_round() -> None:
    assert sorted(set(CODE.findall(COMPARED))) == sorted(code for code, _, _ in SOURCES)


def test_every_row_says_how_it_stands_and_every_claim_where_it_was_read() -> None:
    assert len(ROWS) > 20
    assert [row[0] for row in ROWS if len(row) != 5 or not re.match("better|as good|behind", row[4])] == []
    assert [(row[0], cell) for row in ROWS for cell in row[1:4] if not CODE.search(cell)] == []


def test_our_sources_are_files_of_this_repository() -> None:
    own = [path for code, text, _ in SOURCES if code.startswith("O") for path in re.findall(r"`([^`]+/[^`]+)`", text)]
    assert [path for path in own if not (ROOT / path).is_file()] == []
    tests = [name for code, text, _ in SOURCES if code.startswith("O") for name in re.findall(r"`(test_\w+)`", text)]
    texts = "".join((ROOT / path).read_text() for path in own)
    assert [name for name in tests if f"def {name}(" not in texts] == []


def test_the_rows_that_are_behind_are_counted() -> None:
    (counted,) = re.findall(r"Behind are (\w+) rows", COMPARED)
    words = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
    assert words.index(counted) == sum(row[4].startswith("behind") for row in ROWS)
