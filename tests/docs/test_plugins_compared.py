"""docs/guides/plugins-compared.md: every verb has its row, every cell its source, and every row a verdict."""

from __future__ import annotations

import re
from pathlib import Path

from bert_operator.plugin.command_line import VERBS

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/guides/plugins-compared.md").read_text()
COMPARED, LISTED = TEXT.split("\n## Sources\n")
ROWS = [line.split(" | ") for line in COMPARED.splitlines() if line.startswith("| ") and not line.startswith("| |")]
ROWS = [row for row in ROWS if not row[0].startswith("| ---")]
CODE = re.compile(r"\b[RCKFM][0-9]{1,2}\b")


def test_every_verb_of_the_plugin_is_compared() -> None:
    own = " ".join(row[1] for row in ROWS)
    assert {entry.name for entry in VERBS if not re.search(rf"`(bert-operator )?{entry.name}\b", own)} == set()


def test_a_source_that_is_named_is_listed_with_its_version_and_the_other_way_round() -> None:
    listed = re.findall(r"^\| ([RCKFM][0-9]+) \| .+ \| .+ \|$", LISTED, re.MULTILINE)
    assert sorted(set(CODE.findall(COMPARED))) == sorted(listed)


def test_every_row_says_how_it_stands_and_every_claim_where_it_was_read() -> None:
    assert [row[0] for row in ROWS if len(row) != 7 or not re.match("better|as good|behind", row[6])] == []
    claims = [(row[0], cell) for row in ROWS for cell in row[2:6]]
    free = re.compile(r"-|none|not found|none found|none for the command")
    assert [claim for claim in claims if not CODE.search(claim[1]) and not free.fullmatch(claim[1])] == []
