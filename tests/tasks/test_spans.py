"""Contexts become windows of tokens, and a model's numbers become parts of the context as it stands in the file."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from bert_job.run_stages import FinetuneStage
from bert_trainer.dataset.tokens.wordpiece import Vocabulary, make_tokenizer, read_vocabulary
from bert_trainer.errors import InputError
from bert_trainer.tasks.catalog import TASKS
from bert_trainer.tasks.examples import SpanExample, Split
from bert_trainer.tasks.rows import TaskRows, make_rows
from bert_trainer.tasks.scoring import Predictions, predict, score
from bert_trainer.tasks.spans import text_of_span
from bert_trainer.tasks.token_rows import locate_tokens
from byte_bpe_files import SAMPLES, like_modernbert
from small_tasks import finetune_stage, spans, vocabulary_of

SQUAD = TASKS["squad"]
LETTERS = vocabulary_of(*"abcdefghij", "?", "##b", "cafe", ".", "\u4e2d", "\u6587", "19", "##90", "##s", "o", "##c")
CLS, SEP, UNK, A, MARK = 2, 3, 1, 5, 15


def stage_of(sequence_length: int = 64, **changes: object) -> FinetuneStage:
    return finetune_stage(task="squad", sequence_length=sequence_length, **changes)


def rows_of(split: Split, stage: FinetuneStage | None = None, vocabulary: Vocabulary = LETTERS) -> TaskRows:
    return make_rows(split, SQUAD, stage or stage_of(), vocabulary, lower_case=True)


def tokens_of(rows: TaskRows) -> list[list[int]]:
    starts, counts = rows.samples.token_starts, rows.samples.token_counts
    return [rows.samples.tokens[start : start + count].tolist() for start, count in zip(starts, counts, strict=True)]


def outputs_of(rows: TaskRows, *spans: tuple[int, int, int, float]) -> NDArray[np.float32]:
    """Return numbers that are 0 but for a high start and end: (row, first position, last position, each one's)."""
    outputs = np.zeros((len(rows.samples.tokens), 2), dtype=np.float32)
    for row, first, last, value in spans:
        outputs[rows.samples.token_starts[row] + first, 0] = value
        outputs[rows.samples.token_starts[row] + last, 1] = value
    return outputs


def answers_at_targets(split: Split, stage: FinetuneStage) -> Predictions:
    """Return what a model predicts that is certain of every target."""
    rows = rows_of(split, stage)
    places = [(row, first, last, 9.0) for row, (first, last) in enumerate(rows.targets.tolist()) if last]
    return predict(rows, split, SQUAD, outputs_of(rows, *places), stage)


def test_a_short_context_is_one_window_with_the_first_answer_as_target() -> None:
    split = spans(("a?", "A b, cafe 1990s.", [("cafe", 5), ("1990", 10)]), ("b ?", "c", [("c", 0)]))
    rows = rows_of(split)
    # , is unknown; 1990s are three tokens.
    assert tokens_of(rows)[0] == [CLS, A, MARK, SEP, A, 6, UNK, 17, 21, 22, 23, 18, SEP]
    assert rows.samples.first_segment_counts.tolist() == [4, 4]
    assert rows.targets.tolist() == [[7, 7], [4, 4]]
    assert rows.example_of_row.tolist() == [0, 1]
    assert rows.num_lost_answers == 0


def test_windows_begin_doc_stride_tokens_apart_and_targets_stand_in_all_that_hold_them() -> None:
    # 10 tokens, room for 9 - 3 - 1 = 5: windows of a-e, d-h, g-j.
    split = spans(("?", "a b c d e f g h i j", [("d e", 6)]))
    rows = rows_of(split, stage_of(9, doc_stride=3))
    assert tokens_of(rows) == [
        [CLS, MARK, SEP, 5, 6, 7, 8, 9, SEP],
        [CLS, MARK, SEP, 8, 9, 10, 11, 12, SEP],
        [CLS, MARK, SEP, 11, 12, 13, 14, SEP],
    ]
    assert rows.targets.tolist() == [[6, 7], [3, 4], [0, 0]]
    assert rows.example_of_row.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("tokens", "stride", "windows"), [(5, 3, 1), (6, 3, 2), (8, 3, 2), (9, 3, 3), (9, 100, 2), (10, 100, 2), (11, 5, 3)]
)
def test_every_token_is_in_a_window_and_no_window_is_in_another(tokens: int, stride: int, windows: int) -> None:
    rows = rows_of(spans(("?", " ".join(["a"] * tokens), [])), stage_of(9, doc_stride=stride))
    assert len(rows) == windows
    assert rows.targets.shape == (0, 2)


def test_an_answer_across_the_border_of_every_window_is_lost_and_counted() -> None:
    text = "a b c d e f g h i j"
    split = spans(("?", text, [("e f", 8)]), ("?", text, [("f g h i j", 10)]), ("?", text, [("a b c d e f", 0)]))
    rows = rows_of(split, stage_of(9, doc_stride=5))
    assert rows.targets.tolist() == [[0, 0], [0, 0], [0, 0], [3, 7], [0, 0], [0, 0]]
    assert rows.num_lost_answers == 2


def test_a_question_is_cut_and_one_that_leaves_no_room_is_named() -> None:
    split = spans(("a b c d e f", "g h", [("h", 2)]))
    rows = rows_of(split, stage_of(8, max_query_length=3))
    assert tokens_of(rows) == [[CLS, 5, 6, 7, SEP, 11, 12, SEP]]
    with pytest.raises(InputError, match="question of 6 tokens leaves a context no room in 8 tokens") as caught:
        rows_of(split, stage_of(8))
    assert "at most 4 tokens" in str(caught.value)
    assert "max_query_length" in str(caught.value)


def test_an_answer_in_bytes_is_the_words_as_they_stand_in_the_context(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(like_modernbert()))
    vocabulary = read_vocabulary(tmp_path / "tokenizer.json")
    contexts = [*SAMPLES, "e\u0301 b\u00e4r  \U0001f469\u200d\U0001f467.\tx"]
    answers = [
        (context, word, match.start()) for context in contexts for match in re.finditer(r"\S+", context)
        if (word := match.group())
    ]  # fmt: skip
    split = spans(*((word, context, [(word, start)]) for context, word, start in answers))
    # A sentence without spaces is one of these words, and in bytes longer than the usual answer.
    stage = stage_of(256, max_answer_length=200)
    rows = rows_of(split, stage, vocabulary)
    assert rows.num_lost_answers == 0
    places = [(row, first, last, 9.0) for row, (first, last) in enumerate(rows.targets.tolist())]
    found = predict(rows, split, SQUAD, outputs_of(rows, *places), stage)
    assert found.texts == tuple(word for _, word, _ in answers)


def test_windows_without_number_are_refused_by_the_question_with_most_of_them() -> None:
    """A few kilobytes of text: 60 questions about a context of 100,000 tokens, a window at each token."""
    split = spans(*[("a?", "a " * 100_000, [("a", 0)])] * 60)
    words = "the example 'q0' alone gives 9[0-9],[0-9]{3} windows of 5,[0-9]{3},[0-9]{3}; allowed: 5,000,000 rows"
    with pytest.raises(InputError, match=words) as caught:
        rows_of(split, stage_of(doc_stride=1))
    assert "raise doc_stride" in str(caught.value)
    with pytest.raises(InputError, match="of 268,435,456 tokens"):
        rows_of(spans(*[("a?", "a " * 100_000, [("a", 0)])] * 40), stage_of(512, doc_stride=1))


@pytest.mark.parametrize(
    ("context", "answer", "text"),
    [
        ("a Caf\u00e9. b", "Caf\u00e9", "Caf\u00e9"),
        ("a Cafe\u0301. b", "Cafe\u0301", "Cafe\u0301"),
        ("a\u4e2d\u6587b", "\u6587", "\u6587"),
        ("a\u0000\u200b cafe b", "cafe", "cafe"),
        ("a ca\u200bfe b", "ca\u200bfe", "ca\u200bfe"),
        ("a\t\u3000 b  c\n d", "b  c", "b  c"),
        # Parts of tokens become whole tokens; an unknown word is one token.
        ("the 1990s.", "990", "1990"),
        ("a \U0001d54f\u0301. b", "\U0001d54f", "\U0001d54f\u0301"),
        ("xyzzy b", "zz", "xyzzy"),
        # One character, three tokens of jamo, none of which is known.
        ("a \ud55c\uae00 b", "\uae00", "\ud55c\uae00"),
        ("a \ud83d cafe", "cafe", "cafe"),
    ],
)
def test_an_answer_is_read_off_the_context_as_it_is_written(context: str, answer: str, text: str) -> None:
    split = spans(("?", context, [(answer, context.index(answer))]))
    predictions = answers_at_targets(split, stage_of())
    assert predictions.texts == (text,)
    start, end = predictions.values[0].tolist()
    assert context[start:end] == text


def test_an_answer_without_a_token_and_a_context_without_one_predict_nothing() -> None:
    split = spans(("?", "a \u200b b", [("\u200b", 2)]), ("", "", [("", 0)]), ("?", "\u0000 \n", [("\n", 2)]))
    rows = rows_of(split)
    assert rows.targets.tolist() == [[0, 0]] * 3
    assert tokens_of(rows)[1:] == [[CLS, SEP, SEP], [CLS, MARK, SEP, SEP]]
    assert rows.num_lost_answers == 3
    predictions = predict(rows, split, SQUAD, outputs_of(rows), stage_of())
    assert predictions.texts == ("a", "", "")
    assert predictions.values.tolist() == [[0, 1], [0, 0], [0, 0]]


def test_the_best_answer_is_taken_over_all_windows_of_its_own_example() -> None:
    text = "a b c d e f g h i j"
    split = spans(("?", text, [("a", 0)]), ("?", text, [("b", 2)]))
    stage = stage_of(9, doc_stride=5)
    rows = rows_of(split, stage)
    assert rows.example_of_row.tolist() == [0, 0, 1, 1]
    outputs = outputs_of(rows, (0, 3, 4, 2.0), (1, 4, 5, 3.0), (2, 3, 7, 8.0), (3, 3, 3, 7.0))
    assert predict(rows, split, SQUAD, outputs, stage).texts == ("g h", "a b c d e")


def test_answers_lie_in_the_context_run_forward_and_are_not_too_long() -> None:
    split = spans(("a ?", "b c d e f g", [("b", 0)]))
    stage = stage_of(max_answer_length=3)
    rows = rows_of(split, stage)
    outputs = outputs_of(rows)
    outputs[0] = outputs[1] = outputs[10] = 100  # [CLS], the question, [SEP]
    outputs[8, 0], outputs[4, 1] = 60, 40  # f before b
    outputs[4, 0], outputs[7, 1] = 15, 50  # b to e: four tokens
    outputs[5, 0] = 6
    # f alone, 60 + 0; not f to b, 100, nor b to e, 65.
    assert predict(rows, split, SQUAD, outputs, stage).texts == ("f",)
    outputs[8, 0] = 0
    # c to e, 6 + 50, before b alone, 15 + 40.
    assert predict(rows, split, SQUAD, outputs, stage).texts == ("c d e",)


def test_numbers_that_are_none_are_never_the_answer() -> None:
    split = spans(("?", "a b c", [("b", 2)]), ("?", "b", [("b", 0)]))
    rows = rows_of(split)
    outputs = outputs_of(rows, (0, 5, 5, 1.0))
    outputs[3] = np.nan
    outputs[rows.samples.token_starts[1] :] = np.nan
    predictions = predict(rows, split, SQUAD, outputs, stage_of())
    assert predictions.texts == ("c", "")
    outputs[4] = (np.inf, -np.inf)
    assert predict(rows, split, SQUAD, outputs, stage_of()).texts == ("b c", "")
    assert score(predictions, split, SQUAD) == {"f1": 0, "exact_match": 0}


def test_a_split_without_examples_has_no_windows() -> None:
    split = Split("test", ())
    rows = rows_of(split)
    assert (len(rows), rows.num_lost_answers) == (0, 0)
    assert predict(rows, split, SQUAD, np.zeros((0, 2), np.float32), stage_of()).texts == ()


def test_an_accent_belongs_to_its_letter() -> None:
    assert text_of_span("cafe\u0301\u0301s", 0, 4) == "cafe\u0301\u0301"
    assert text_of_span("\u0301a", 0, 0) == ""
    assert text_of_span("abc", 1, 3) == "bc"


WORDS = ["a", "b", "ab", "cafe", "Caf\u00e9", "1990s.", "\u4e2d\u6587", "e\u0301", "\u200b", "", "\t", "xyz", "\u20ac"]


@given(texts=st.lists(st.lists(st.sampled_from(WORDS), max_size=8).map(" ".join), max_size=5))
def test_tokens_looked_up_by_word_stand_where_the_tokenizer_finds_them(texts: list[str]) -> None:
    tokenizer = make_tokenizer(LETTERS, lower_case=True)
    encodings = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    located = locate_tokens(texts, LETTERS, lower_case=True)
    assert located.counts.tolist() == [len(encoding.ids) for encoding in encodings]
    assert located.ids.tolist() == [number for encoding in encodings for number in encoding.ids]
    assert located.bounds.tolist() == [list(bounds) for encoding in encodings for bounds in encoding.offsets]


def plain_best(rows: TaskRows, examples: list[SpanExample], outputs: NDArray[np.float32], longest: int) -> list[str]:
    """Decode by looking at every pair of tokens, one by one."""
    assert rows.contexts is not None
    best: list[tuple[float, str]] = [(-np.inf, "")] * len(examples)
    for row, example in enumerate(rows.example_of_row.tolist()):
        begin = int(rows.samples.first_segment_counts[row])
        end = int(rows.samples.token_counts[row]) - 1
        at = int(rows.samples.token_starts[row])
        for first in range(begin, end):
            for last in range(first, min(end, first + longest)):
                total = outputs[at + first, 0] + outputs[at + last, 1]
                if total > best[example][0]:
                    places = rows.contexts.first_of_row[row] + np.array([first, last]) - begin
                    bounds = rows.contexts.character_bounds[places]
                    best[example] = total, examples[example].context[bounds[0, 0] : bounds[1, 1]]
    return [text for _, text in best]


@settings(max_examples=40)
@given(seed=st.integers(0, 1 << 30), longest=st.integers(1, 6), stride=st.integers(1, 9))
def test_decoding_equals_looking_at_every_pair(seed: int, longest: int, stride: int) -> None:
    rng = random.Random(seed)
    contexts = [" ".join(rng.choices("abcdefghij", k=rng.randint(0, 30))) for _ in range(4)]
    split = spans(*(("?", context, []) for context in contexts))
    stage = stage_of(12, max_answer_length=longest, doc_stride=stride)
    rows = rows_of(split, stage)
    outputs = np.random.default_rng(seed).integers(0, 40, (len(rows.samples.tokens), 2)).astype(np.float32)
    examples = [example for example in split.examples if isinstance(example, SpanExample)]
    expected = plain_best(rows, examples, outputs, longest)
    assert predict(rows, split, SQUAD, outputs, stage).texts == tuple(expected)


@pytest.mark.parametrize(("length", "doc_stride"), [(16, 5), (20, 11), (24, 100), (64, 128)])
def test_windows_are_those_of_transformers_whose_stride_is_the_overlap(
    tmp_path: Path, length: int, doc_stride: int
) -> None:
    from transformers import BertTokenizerFast

    (tmp_path / "vocab.txt").write_text("\n".join(LETTERS.tokens) + "\n")
    tokenizer = BertTokenizerFast(vocab=str(tmp_path / "vocab.txt"), do_lower_case=True)
    question, context = "a b?", "Caf\u00e9 1990s. \u4e2da, b ab\u200bc " * 3 + "d e f g h i j"
    rows = rows_of(spans((question, context, [])), stage_of(length, doc_stride=doc_stride))
    room = length - 3 - 3
    theirs = tokenizer(
        question,
        context,
        truncation="only_second",
        max_length=length,
        stride=room - min(doc_stride, room),
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    assert tokens_of(rows) == theirs["input_ids"]
    assert rows.contexts is not None
    bounds = [
        rows.contexts.character_bounds[first : first + count - 6].tolist()
        for first, count in zip(rows.contexts.first_of_row, rows.samples.token_counts, strict=True)
    ]
    assert bounds == [[list(pair) for pair in offsets[5:-1]] for offsets in theirs["offset_mapping"]]
