"""Sentence pairs that teach nothing are told when they are built and when they are checked."""

from __future__ import annotations

import logging
import random
from pathlib import Path

import pytest

from bert_trainer.dataset.__main__ import main
from bert_trainer.dataset.shards.checks import describe_pairs
from small_build import build

WORDS = ["river", "hill", "south", "water", "stone", "runs", "long", "deep", "cold", "far", "old", "town"]


def write_text(path: Path, documents: int, sentences: int) -> Path:
    rng = random.Random(5)
    texts = [[" ".join(rng.choices(WORDS, k=9)) + "." for _ in range(sentences)] for _ in range(documents)]
    path.write_text("\n\n".join("\n".join(document) for document in texts))
    return path


@pytest.mark.parametrize(
    ("documents", "sentences", "settings", "told"),
    [
        (200, 1, {}, "100.0% of the sentence pairs have random next sentences"),
        (1, 900, {"held_out_fraction": 0}, "100.0% of the sentence pairs have actual next sentences"),
        (60, 20, {}, None),
    ],
    ids=["sentences", "one document", "documents"],
)
def test_pairs_with_one_answer_are_warned_about(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    documents: int,
    sentences: int,
    settings: dict[str, object],
    told: str | None,
) -> None:
    text = write_text(tmp_path / "text.txt", documents, sentences)
    with caplog.at_level(logging.WARNING):
        build(text, tmp_path / "data", **settings)
    assert main(["verify", str(tmp_path / "data")]) == 0
    checked = capsys.readouterr().out
    for output in (caplog.text, checked):
        assert (told in output and "objective: mlm" in output) if told else "of the sentence pairs" not in output


@pytest.mark.parametrize(("num_random", "rows"), [(50, 100), (89, 100), (11, 100), (31, 31), (0, 0)])
def test_pairs_of_both_kinds_or_too_few_are_no_warning(num_random: int, rows: int) -> None:
    assert describe_pairs(num_random, rows) is None
