"""Documents small enough for every outcome to be forced, or listed with its exact chance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest

from bert_job.run_config import DatasetConfig
from bert_job.run_stages import PrepareStage
from bert_trainer.dataset.build.pipeline import build_dataset
from bert_trainer.dataset.shards import ShardFolder
from bert_trainer.dataset.shards.samples import Samples
from bert_trainer.dataset.tokens.wordpiece import read_vocabulary
from bert_trainer.system.random_bits import RandomBits
from confidence import FIVE_SIGMA, SkewedBits, chi_square_z, share_z
from sampling_cases import Document, coded, coded_documents, mixed_documents, original_rows, place, shard_task
from silent import Silent
from walks import Pair, bits_of, samples_of, walk, walk_many


def test_a_lone_document_never_gives_a_random_next() -> None:
    documents = coded_documents([[4] * 30])
    pairs = [pair for seed in range(200) for pair in walk(documents, 0, seed, capacity=37, short=0.1)]
    assert len(pairs) > 1000
    # NVIDIA's correction: where ten draws found the same document ten times, the label says so.
    assert not any(pair.is_random_next for pair in pairs)
    follows = [place(pair.tokens_b[0])[1] - place(pair.tokens_a[-1])[1] in (0, 1) for pair in pairs]
    # More than half of the pairs are made as random ones: their B may begin anywhere in the document.
    assert 0.3 < sum(follows) / len(follows) < 0.7


def test_a_lone_sentence_is_paired_with_itself() -> None:
    for seed in range(50):
        (pair,) = walk(coded_documents([[7]]), 0, seed, capacity=40)
        assert pair == Pair([coded(0, 0)] * 7, [coded(0, 0)] * 7, False)


def test_a_document_of_one_sentence_gives_one_random_pair() -> None:
    documents = coded_documents([[7], [3, 3], [2]])
    for seed in range(300):
        (pair,) = walk(documents, 0, seed, capacity=40)
        assert pair.tokens_a == [coded(0, 0)] * 7
        # The next document starts at any sentence and goes on to its end, which is before 33 tokens.
        spans = [[coded(1, 0)] * 3 + [coded(1, 1)] * 3, [coded(1, 1)] * 3, [coded(2, 0)] * 2]
        assert pair.tokens_b in spans
        assert pair.is_random_next


def test_the_partner_is_drawn_ten_times_and_no_more_or_less() -> None:
    def not_random(documents: list[Document], draws: int) -> int:
        return sum(not pairs[0].is_random_next for pairs in walk_many(documents, [0] * draws, bits_of(11), capacity=8))

    # Of two documents, ten draws are the same one with chance 1/1024. Nine would be 14 standard deviations
    # away, eleven 7, a label that is always "random" 14.
    found = not_random(coded_documents([[4], [4]]), 200_000)
    assert abs(share_z(found, 200_000, 2**-10)) < FIVE_SIGMA
    assert share_z(found, 200_000, 2**-9) < -FIVE_SIGMA
    assert share_z(found, 200_000, 2**-11) > FIVE_SIGMA


def starts_z(lengths: list[int], bits: RandomBits) -> float:
    """z-value of random spans starting evenly in the other documents, and in their sentences, of these lengths."""
    documents = coded_documents([[9], *([9] * length for length in lengths)])
    pairs = [pairs[0] for pairs in walk_many(documents, [0] * 50_000, bits, capacity=10)]
    counts = Counter(pair.tokens_b[0] for pair in pairs if pair.is_random_next)
    chances = {coded(1 + d, s): 1 / (len(lengths) * n) for d, n in enumerate(lengths) for s in range(n)}
    assert set(counts) == set(chances)
    expected = [counts.total() * chance for chance in chances.values()]
    return chi_square_z([counts[token] for token in chances], expected)


def test_random_spans_start_at_any_sentence_of_any_other_document() -> None:
    assert abs(starts_z([2, 5, 3], bits_of(12))) < FIVE_SIGMA
    assert abs(starts_z([19], bits_of(12))) < FIVE_SIGMA
    # One draw in a hundred that takes the first sentence.
    assert starts_z([19], SkewedBits(12, first_tenth=True)) > FIVE_SIGMA


def test_random_spans_end_with_the_first_sentence_that_is_enough() -> None:
    documents = coded_documents([[6], [4] * 9])
    for seed in range(200):
        (pair,) = walk(documents, 0, seed, capacity=20)
        if pair.is_random_next:
            start = place(pair.tokens_b[0])[1]
            # 14 tokens are wanted: four sentences, 16 tokens, cut at an end; or what the document has left.
            assert len(pair.tokens_b) == min(14, 4 * (9 - start))
            assert place(pair.tokens_b[-1])[1] == min(start + 3, 8)


@pytest.mark.parametrize(("capacity", "lengths"), [(20, (10, 10)), (21, (11, 10))])
def test_a_sentence_longer_than_the_row_is_cut_to_fit(capacity: int, lengths: tuple[int, int]) -> None:
    long = list(range(50_000, 50_090))
    # No token is wanted for B any more; it gets one sentence all the same.
    documents = [[long], [list(range(60_000, 60_040)), list(range(70_000, 70_040))]]
    for seed in range(50):
        (pair,) = walk(documents, 0, seed, capacity=capacity)
        assert (len(pair.tokens_a), len(pair.tokens_b)) == lengths
        for tokens in (pair.tokens_a, pair.tokens_b):
            assert tokens == list(range(tokens[0], tokens[0] + len(tokens)))
        assert set(pair.tokens_a) <= set(long)
        assert pair.tokens_b[0] // 10_000 in ((6, 7) if pair.is_random_next else (5,))


def test_a_long_sentence_fills_its_chunk_and_the_next_begins_behind_it() -> None:
    documents = coded_documents([[90, 3, 3, 3, 3], [5] * 4])
    for seed in range(100):
        pairs = walk(documents, 0, seed, capacity=12)
        assert set(map(place, pairs[0].tokens_a)) == {(0, 0)}
        assert place(pairs[1].tokens_a[0]) == (0, 1)


def test_unused_sentences_come_again_and_none_is_lost() -> None:
    num_sentences, capacity = 41, 12
    # With 1001 documents ten draws always find another one, so the label says which way B was made.
    documents = [*coded_documents([[1] * num_sentences]), *coded_documents([[1] * 500]) * 1000]
    moved_back = 0
    for pairs in walk_many(documents, [0] * 300, bits_of(16), capacity=capacity):
        position = 0
        for pair in pairs:
            last = min(position + capacity, num_sentences)
            # A is the next sentences of the document, always.
            assert pair.tokens_a == [coded(0, position + k) for k in range(len(pair.tokens_a))]
            position += len(pair.tokens_a)
            if pair.is_random_next:
                moved_back += position < last
            else:
                assert pair.tokens_b == [coded(0, s) for s in range(position, last)]
                position = last
        assert position == num_sentences
    assert moved_back > 300


Outcome = tuple[tuple[int, bool], ...]


def outcomes(sentences: int, per_chunk: int) -> dict[Outcome, Fraction]:
    """Every walk over ``sentences`` equal ones, as (sentences in A, random next), with its chance.

    per_chunk: sentences that reach the target exactly.
    """
    if sentences == 0:
        return {(): Fraction(1)}
    chunk = min(per_chunk, sentences)
    first: list[tuple[int, bool, Fraction]] = [(1, True, Fraction(1))]
    if chunk > 1:
        half = Fraction(1, 2 * (chunk - 1))
        first = [(a, is_random, half) for a in range(1, chunk) for is_random in (False, True)]
    found: dict[Outcome, Fraction] = {}
    for a, is_random, chance in first:
        for rest, rest_chance in outcomes(sentences - (a if is_random else chunk), per_chunk).items():
            found[(a, is_random), *rest] = chance * rest_chance
    return found


# A document of exactly the target, one sentence less, one more, and two chunks.
@pytest.mark.parametrize(("sentences", "per_chunk"), [(4, 4), (3, 4), (5, 4), (2, 2), (3, 2), (4, 2)])
def test_all_walks_over_a_small_document_have_their_exact_chances(sentences: int, per_chunk: int) -> None:
    expected = outcomes(sentences, per_chunk)
    assert sum(expected.values()) == 1
    documents = [*coded_documents([[3] * sentences]), *coded_documents([[3] * 8]) * 1000]
    counts: Counter[Outcome] = Counter()
    for pairs in walk_many(documents, [0] * 12_000, bits_of(13), capacity=3 * per_chunk):
        counts[tuple((len(pair.tokens_a) // 3, pair.is_random_next) for pair in pairs)] += 1
    assert set(counts) <= set(expected)
    common = [outcome for outcome, chance in expected.items() if 12_000 * chance >= 20]
    cells = [counts[outcome] for outcome in common]
    means = [float(12_000 * expected[outcome]) for outcome in common]
    if 12_000 - sum(means) > 20:
        cells.append(12_000 - sum(cells))
        means.append(12_000 - sum(means))
    assert len(common) == len(expected) or sum(means) == pytest.approx(12_000)
    if len(cells) > 1:
        assert abs(chi_square_z(cells, means)) < FIVE_SIGMA


def test_two_documents_of_one_sentence_leave_no_choice_but_the_partner() -> None:
    documents = coded_documents([[3], [4]])
    samples = samples_of(documents, shard_task(passes=500), bits_of(14))
    first, second = [coded(0, 0)] * 3, [coded(1, 0)] * 4
    rows = {(*row,): 0 for row in original_rows(samples)}
    for row, label in zip(original_rows(samples), samples.next_sentence_labels.tolist(), strict=True):
        assert label == (coded(0, 0) in row and coded(1, 0) in row)
        rows[(*row,)] += 1
    allowed = {(2, *a, 3, *b, 3) for a in (first, second) for b in (first, second)}
    assert set(rows) <= allowed
    assert sum(count for row, count in rows.items() if row[1] == first[0]) == 500
    assert sum(count for row, count in rows.items() if row[1] == second[0]) == 500


def test_rows_have_segments_zero_to_the_first_separator_and_one_to_the_second() -> None:
    documents = mixed_documents(15, documents=9, max_sentences=20, max_tokens=15)
    samples = samples_of(documents, shard_task(sequence_length=64, passes=10, short=0.3), bits_of(15))
    assert len(samples) > 150
    for row, tokens in enumerate(original_rows(samples)):
        first, second = (position for position, token in enumerate(tokens) if token == 3)
        assert tokens[0] == 2
        assert 2 <= first < second - 1
        assert second == len(tokens) - 1
        expected = [0] * (first + 1) + [1] * (second - first) + [0] * (64 - len(tokens))
        assert samples.segment_ids[row].tolist() == expected
        assert samples.input_mask[row].tolist() == [1] * len(tokens) + [0] * (64 - len(tokens))
        assert samples.input_ids[row, len(tokens) :].tolist() == [0] * (64 - len(tokens))


def build(folder: Path, text: str, **settings: object) -> tuple[Samples, Callable[[list[int]], str]]:
    (folder / "text.txt").write_text(text)
    stage = PrepareStage.model_validate({"text": str(folder / "text.txt"), "num_shards": 1, **settings})
    root = folder / "data"
    build_dataset(stage, DatasetConfig(folder=str(root)), [(32, 5)], Silent())
    shards = root / "seq_len_32_max_pred_5"
    tokens = read_vocabulary(root / "vocab.txt").tokens
    opened = ShardFolder.open(shards, split="training", sequence_length=32, max_predictions=5, vocabulary=None)

    def decode(ids: list[int]) -> str:
        return " ".join(tokens[number] for number in ids).replace(" ##", "")

    return opened.read_ragged(0).to_padded(32, 5), decode


def test_documents_and_sentences_without_a_token_give_no_sample(tmp_path: Path) -> None:
    # A zero-width space is a line with text that no token is left of.
    texts = [f"word{letter} one.\n\u200b\nword{letter} two." for letter in "abcdefghijkl"]
    samples, decode = build(
        tmp_path,
        "\n\n\n".join([*texts, "\u200b\n\u200b\u200b"]),
        num_processes=1,
        near_duplicate_similarity=0.99,
    )
    for row in original_rows(samples):
        words = decode(row)
        assert words.startswith("[CLS] word")
        assert words.count("[SEP]") == 2
        assert "[CLS] [SEP]" not in words
        assert "[SEP] [SEP]" not in words
