"""What tests of the data pipeline share.

Inputs: small texts made from a fixed list of words, written below ``tmp_path``. Observed outputs: files,
return values and messages. Not mocked: files, HDF5, tokenizers, worker processes. Two things are replaced
where a test says so: ``os.fsync``, to act as a full disk, and the check between shards, to stop there.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

WORDS = [
    *("river", "stone", "cloud", "winter", "garden", "letter", "paper", "signal", "engine", "window"),
    *("market", "bridge", "forest", "island", "harbour", "teacher", "doctor", "farmer", "writes", "reads"),
    *("builds", "carries", "follows", "opens", "closes", "the", "a", "of", "in", "under", "over", "with"),
    *("and", "quiet", "bright", "heavy", "narrow", "distant", "simple", "ancient", "modern", "careful"),
    *("sudden", "seven", "eleven", "twenty", "thousand"),
]


@pytest.fixture
def make_document() -> Callable[..., list[str]]:
    """Return ``make_document(number)``: sentences that depend on the number alone."""

    def make(number: int, sentences: int = 12) -> list[str]:
        rng = random.Random(number)
        return [" ".join(rng.choices(WORDS, k=rng.randint(4, 14))) + "." for _ in range(sentences)]

    return make


@pytest.fixture
def write_corpus(tmp_path: Path, make_document: Callable[..., list[str]]) -> Callable[..., Path]:
    """Return ``write_corpus(documents=N)``: a folder with two text files of N documents together."""

    def write(documents: int = 40, name: str = "text") -> Path:
        folder = tmp_path / name
        folder.mkdir()
        texts = ["\n".join(make_document(number)) for number in range(documents)]
        half = documents // 2
        (folder / "a.txt").write_text("\n\n".join(texts[:half]) + "\n")
        (folder / "b.txt").write_text("\n\n".join(texts[half:]) + "\n")
        return folder

    return write
