"""Every ``bert-pod`` line that the guides show is one that it takes."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from bert_trainer.pod.__main__ import parse_arguments

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "bare-metal.md"


def shown() -> list[list[str]]:
    """Return the arguments of every ``bert-pod`` in a shell block, also inside of ``docker run``."""
    blocks = GUIDE.read_text().split("```sh\n")[1:]
    lines = [line for block in blocks for line in block.partition("```")[0].replace("\\\n", " ").splitlines()]
    words = [shlex.split(line, comments=True) for line in lines]
    return [line[line.index("bert-pod") + 1 :] for line in words if "bert-pod" in line]


@pytest.mark.parametrize("words", shown(), ids=lambda words: words[0])
def test_it_is_taken_and_starts_the_trainer(words: list[str]) -> None:
    arguments, program = parse_arguments(words)
    assert arguments.role == words[0]
    assert program[:2] == ("bert-train", "--config")


def test_both_ways_are_shown() -> None:
    assert {words[0] for words in shown()} == {"single", "launcher"}
