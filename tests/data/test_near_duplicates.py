"""Documents that repeat an earlier one nearly word by word are found; the others are not."""

from __future__ import annotations

import hashlib
import random
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from bert_trainer.dataset.tokens.near_duplicates import NearDuplicates, Signatures, jaccard


def document(words: Iterable[str]) -> list[str]:
    return [" ".join(words)]


def words_of(seed: int, count: int = 400) -> list[str]:
    rng = random.Random(seed)
    return [f"w{rng.randrange(5000)}" for _ in range(count)]


def find(folder: Path, documents: list[list[str]], similarity: float, batch: int = 2) -> set[int]:
    duplicates = NearDuplicates(folder, similarity)
    signatures = Signatures(similarity)
    for start in range(0, len(documents), batch):
        batched = documents[start : start + batch]
        digests = [hashlib.sha256("\n".join(sentences).encode()).digest() for sentences in batched]
        duplicates.add(signatures.bands(batched), b"".join(digests))
    try:
        return set(duplicates.find(documents.__getitem__).tolist())
    finally:
        duplicates.close()


def plain_similarity(first: list[str], second: list[str]) -> float:
    """Jaccard similarity of 5-word shingles, the slow way."""
    sets = [{tuple(words[i : i + 5]) for i in range(len(words) - 4)} for words in (first, second)]
    return len(sets[0] & sets[1]) / len(sets[0] | sets[1])


@pytest.mark.parametrize("similarity", [0.3, 0.5, 0.8, 0.95, 1.0])
def test_pairs_are_dropped_exactly_from_the_threshold_on(tmp_path: Path, similarity: float) -> None:
    original = words_of(1)
    for num_changed in range(60):
        changed = [*original[: len(original) - num_changed], *words_of(2, num_changed)]
        expected = {1} if plain_similarity(original, changed) >= similarity else set()
        assert find(tmp_path, [document(original), document(changed)], similarity) == expected, num_changed


def test_case_and_punctuation_do_not_matter(tmp_path: Path) -> None:
    first = ["The quick brown fox, it jumps over.", "The lazy dog sleeps."]
    second = ["the quick brown fox it jumps", "over the lazy dog - sleeps"]
    assert find(tmp_path, [first, second], 1.0) == {1}


def test_the_later_one_goes_and_is_compared_with_kept_ones_only(tmp_path: Path) -> None:
    a = words_of(3, 100)
    b = [*a[:90], *words_of(4, 10)]
    c = [*b[:50], *words_of(5, 20), *b[70:]]
    assert plain_similarity(a, b) > 0.7 > plain_similarity(a, c)
    assert find(tmp_path, [document(a), document(b), document(c), document(a)], 0.7) == {1, 3}


def test_documents_shorter_than_a_shingle_are_compared_as_a_whole(tmp_path: Path) -> None:
    documents = [document(["same", "words"]), document(["other", "words"]), document(["same", "words"])]
    assert find(tmp_path, documents, 0.8) == {2}


def test_documents_without_a_word_are_compared_too(tmp_path: Path) -> None:
    assert find(tmp_path, [document(["..."]), document(["!!!"]), document(["..."])], 0.8) == {2}


def test_any_number_of_documents_without_a_word_is_hashed_in_linear_time() -> None:
    # Quadratic, 40,000 took 1.8 s and these would take 45; the deadline is for machines that are busy.
    program = (
        "from bert_trainer.dataset.tokens.near_duplicates import Signatures\n"
        "bands = Signatures(0.8).bands([['?!'[number % 2]] for number in range(200_000)])\n"
        "print(len(bands), (bands[0] == bands[2]).all(), (bands[0] == bands[1]).any())"
    )
    environment = {"PYTHONPATH": ":".join(sys.path)}
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=30)
    assert run.stdout == "200000 True False\n", run.stderr


def test_nothing_is_left_in_the_scratch_folder(tmp_path: Path) -> None:
    find(tmp_path, [document(words_of(6))], 0.8)
    assert list(tmp_path.iterdir()) == []
    assert find(tmp_path, [], 0.8) == set()


def test_similarity_is_shared_over_all_shingles() -> None:
    first = Signatures(0.8).shingles(document(["a", "b", "c", "d", "e", "f"]))
    second = Signatures(0.8).shingles(document(["b", "c", "d", "e", "f", "g"]))
    assert len(first) == len(second) == 2
    assert jaccard(first, second) == pytest.approx(1 / 3)


def test_bands_do_not_depend_on_the_documents_beside(tmp_path: Path) -> None:
    sizes = [400, 3, 0, 1, 2100, 7, 4, 5, 6, 5000]
    documents = [document(words_of(10 + number, size)) for number, size in enumerate(sizes)]
    documents += [["...", "! ?"], [""]]
    together = Signatures(0.8).bands(documents)
    alone = [Signatures(0.8).bands([one])[0] for one in documents]
    assert together.tolist() == [bands.tolist() for bands in alone]
