"""A build tells what lower case takes from the text beside capitals."""

from __future__ import annotations

import logging
import random
from pathlib import Path

import pytest

from bert_trainer.dataset.build.fit import warn_about_accents, without_accents
from small_build import build

WORDS = ["Br\u00fccke", "Fluss", "Stadt", "\u00fcber", "Weg", "Tal", "Haus", "Wasser", "alt", "lang"]


@pytest.mark.parametrize(
    ("word", "bare"),
    [
        ("\u00dcber", "Uber"),
        ("\u0625\u0644\u0649", "\u0627\u0644\u0649"),
        ("\u0939\u093f\u0928\u094d\u0926\u0940", "\u0939\u093f\u0928\u0926\u0940"),
        ("stra\u00dfe", "stra\u00dfe"),
        ("\uac01", "\uac01"),
        ("\u00f8l", "\u00f8l"),
    ],
)
def test_marks_go_and_letters_stay(word: str, bare: str) -> None:
    assert without_accents(word) == bare


def test_a_build_counts_the_words_that_lose_accents(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rng = random.Random(2)
    documents = ["\n".join(" ".join(rng.sample(WORDS, 10)) for _ in range(5)) for _ in range(20)]
    (tmp_path / "text.txt").write_text("\n\n".join(documents))
    with caplog.at_level(logging.WARNING):
        build(tmp_path / "text.txt", tmp_path / "cased", lower_case=False)
        assert "accents" not in caplog.text
        build(tmp_path / "text.txt", tmp_path / "data")
    assert (
        "lower case strips accents, as in BERT's uncased models: 20.0% of the first 1,000 words lose some"
        in caplog.text
    )
    assert "keep them, and capitals, with lowerCase: false (--cased)" in caplog.text


def test_a_few_names_are_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        warn_about_accents("text", ["plain words " * 100, "caf\u00e9"])
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert "caf\u00e9 -> cafe" in caplog.text
