"""docs/guides/kubectl-plugin.md shows what the plugin prints, and names the verbs and exit codes that there are."""

from __future__ import annotations

import re
from pathlib import Path

from bert_operator.plugin.command_line import VERBS
from bert_operator.plugin.errors import EXIT_INTERRUPTED, EXIT_NOT_FOUND, EXIT_TIMEOUT

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs/guides/kubectl-plugin.md").read_text()


def test_the_screen_is_that_of_the_tests() -> None:
    assert (ROOT / "tests/golden/plugin/status-running.txt").read_text() in GUIDE


def test_every_verb_that_is_named_exists_and_each_is_named() -> None:
    verbs = {entry.name for entry in VERBS}
    named = set(re.findall(r"kubectl bert ([a-z]+)", GUIDE))
    assert named <= verbs
    assert {verb for verb in verbs if not re.search(rf"\b{verb}\b", GUIDE)} == set()


def test_every_exit_code_is_named() -> None:
    codes = {int(code) for code in re.findall(r"^\| ([0-9]+) \|", GUIDE, re.MULTILINE)}
    assert codes == {0, 1, 2, EXIT_NOT_FOUND, EXIT_TIMEOUT, EXIT_INTERRUPTED}
