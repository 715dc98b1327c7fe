"""Texts and pairs become the rows that transformers would make of them."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_trainer.dataset.tokens.wordpiece import Encoder
from bert_trainer.tasks.catalog import TASKS
from bert_trainer.tasks.examples import Split
from bert_trainer.tasks.rows import TaskRows, make_rows
from bert_trainer.tasks.token_rows import unknown_share
from small_tasks import finetune_stage, texts, vocabulary_of

WORDS = vocabulary_of("a", "b", "c", "d", "##a", "##b", "un", "##happy", "cafe", ".", "\u4e2d", "e")
CLS, SEP, UNK, A, B, C, D = 2, 3, 1, 5, 6, 7, 8
COLA, STS_B = TASKS["cola"], TASKS["sts-b"]


def rows_of(split: Split, sequence_length: int = 64, *, task: str = "cola", lower_case: bool = True) -> TaskRows:
    stage = finetune_stage(sequence_length=sequence_length)
    return make_rows(split, TASKS[task], stage, WORDS, lower_case=lower_case)  # type: ignore[index]


def lists(rows: TaskRows) -> list[list[int]]:
    tokens, starts, counts = rows.samples.tokens, rows.samples.token_starts, rows.samples.token_counts
    return [tokens[start : start + count].tolist() for start, count in zip(starts, counts, strict=True)]


def test_texts_and_pairs_stand_between_special_tokens_and_keep_their_labels() -> None:
    rows = rows_of(texts(("a b", None, 1), ("A", "unhappy.", 0)))
    assert lists(rows) == [[CLS, A, B, SEP], [CLS, A, SEP, 11, 12, 14, SEP]]
    assert rows.samples.first_segment_counts.tolist() == [4, 3]
    assert rows.samples.next_sentence_labels.tolist() == rows.samples.prediction_counts.tolist() == [0, 0]
    assert rows.targets.dtype == np.int64
    assert rows.targets.tolist() == [1, 0]
    assert rows.example_of_row.tolist() == [0, 1]


def test_ratings_are_floating_point_and_a_test_set_has_no_targets() -> None:
    rated = rows_of(texts(("a", "b", 3.8), ("a", "c", 0)), task="sts-b")
    assert rated.targets.dtype == np.float32
    assert rated.targets.tolist() == [pytest.approx(3.8), 0]
    assert rows_of(texts(("a", None, None), ("b", None, None))).targets.shape == (0,)


def test_empty_and_unknown_texts_are_rows_too() -> None:
    rows = rows_of(texts(("", None, 0), ("a", "", 0), ("", "", 0), (" \t\n ", None, 0), ("zz \u0000", "\u200b", 1)))
    assert lists(rows) == [[CLS, SEP], [CLS, A, SEP, SEP], [CLS, SEP, SEP], [CLS, SEP], [CLS, UNK, SEP, SEP]]


def test_the_share_of_unknown_tokens_leaves_out_what_stands_around_texts() -> None:
    assert unknown_share(rows_of(texts(("a b zz", "zz", 1), ("c", None, 0))).samples, WORDS) == 2 / 5
    assert unknown_share(rows_of(texts(("", None, 1))).samples, WORDS) == 0


def test_a_literal_special_token_is_text_and_half_a_surrogate_pair_is_nothing() -> None:
    rows = rows_of(texts(("[SEP]", None, 0), ("a \ud83d b", "\udc00", 0)))
    assert lists(rows) == [[CLS, UNK, UNK, UNK, SEP], [CLS, A, B, SEP, SEP]]


def test_a_split_without_examples_has_no_rows() -> None:
    rows = rows_of(Split("test", ()))
    assert len(rows) == 0
    assert lists(rows) == []


def test_the_longer_text_of_a_pair_is_cut_first() -> None:
    long, short = "a b c d " * 3, "b c"
    split = texts((long, short, 0), (short, long, 0), (long, long, 0), (long, long + " a", 0), (long + " a", long, 0))
    rows = rows_of(split, sequence_length=10)  # room for 7
    firsts = rows.samples.first_segment_counts - 2
    seconds = rows.samples.token_counts - rows.samples.first_segment_counts - 1
    assert list(zip(firsts.tolist(), seconds.tolist(), strict=True)) == [(5, 2), (2, 5), (3, 4), (3, 4), (4, 3)]
    assert lists(rows_of(texts((long, None, 0)), sequence_length=10)) == [[CLS, A, B, C, D, A, B, C, D, SEP]]


def test_words_of_a_cased_vocabulary_keep_their_accents() -> None:
    split = texts(("Café a", None, 0))
    assert lists(rows_of(split)) == [[CLS, 13, A, SEP]]
    assert lists(rows_of(split, lower_case=False)) == [[CLS, UNK, A, SEP]]


@pytest.fixture(scope="module")
def transformers_tokenizer(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    from transformers import BertTokenizerFast

    path: Path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_text("\n".join(WORDS.tokens) + "\n")
    return BertTokenizerFast(vocab=str(path), do_lower_case=True)


SAMPLES = ["a", "b", "c", "d", "ab", "unhappy", "Caf\u00e9", "\u4e2da", ".", "x", "\u0000", "\t", "e\u0301"]
TEXT = st.lists(st.sampled_from(SAMPLES), max_size=24).map(" ".join)


@settings(max_examples=150)
@given(rows=st.lists(st.tuples(TEXT, st.none() | TEXT), min_size=1, max_size=4), length=st.integers(8, 24))
def test_rows_are_those_of_transformers_with_truncation(transformers_tokenizer, rows, length) -> None:  # type: ignore[no-untyped-def]
    ours = rows_of(texts(*((first, second, 0) for first, second in rows)), length)
    # Lists of one: of a single call it takes an empty second text for none.
    theirs = [
        transformers_tokenizer([first], second if second is None else [second], truncation=True, max_length=length)
        for first, second in rows
    ]
    assert lists(ours) == [encoding["input_ids"][0] for encoding in theirs]
    segments = [encoding["token_type_ids"][0].count(0) for encoding in theirs]
    assert ours.samples.first_segment_counts.tolist() == segments


def test_a_word_is_encoded_once_however_often_it_stands_in_twenty_thousand_pairs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoded: list[str] = []
    encode_words = Encoder.encode_words

    def note_words(self: Encoder, words: list[str]) -> object:
        encoded.extend(words)
        return encode_words(self, words)

    monkeypatch.setattr(Encoder, "encode_words", note_words)
    rng = random.Random(0)
    pool = ["".join(rng.choices("abcde", k=rng.randint(1, 7))) for _ in range(5000)]
    vocabulary = vocabulary_of(*"abcde", *(f"##{letter}" for letter in "abcde"))
    split = texts(*((" ".join(rng.choices(pool, k=11)), " ".join(rng.choices(pool, k=11)), 0) for _ in range(20_000)))
    rows = make_rows(split, COLA, finetune_stage(sequence_length=128), vocabulary, lower_case=True)
    assert len(rows) == 20_000
    assert sorted(encoded) == sorted(set(pool))
