"""Sentences end where the language says, and huge or empty text is no exception."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bert_trainer.dataset.corpus import sentences as module
from bert_trainer.dataset.corpus.sentences import clean_line, detect_lines, split_sentences


def test_abbreviations_and_numbers_end_nothing() -> None:
    text = 'Dr. Smith paid $3.50 in Washington D.C. for it. See e.g. Figure 2. "Why?" she asked.'
    assert split_sentences(text, "en") == [
        "Dr. Smith paid $3.50 in Washington D.C. for it.",
        "See e.g. Figure 2.",
        '"Why?" she asked.',
    ]


def test_an_unknown_language_is_split_too() -> None:
    assert split_sentences("Foo bar. Baz qux.", "xx") == ["Foo bar.", "Baz qux."]


def test_a_huge_line_is_cut_at_spaces_and_loses_nothing() -> None:
    longest = module.MAX_SENTENCE
    text = " ".join(["word"] * (longest // 2)) + "."
    pieces = split_sentences(text, "en")
    assert " ".join(pieces) == text
    assert max(map(len, pieces)) <= longest
    without_spaces = "x" * (2 * longest + 5)
    assert "".join(split_sentences(without_spaces, "en")) == without_spaces


def test_a_few_lines_with_two_sentences_do_not_make_prose() -> None:
    lines = ["One sentence here."] * 90 + ["Two of them. In one line."] * 10
    assert detect_lines(lines, "en") == "sentences"
    assert detect_lines(lines[60:], "en") == "paragraphs"
    assert (
        detect_lines(["and so it goes on. The", "next line is cut, too. It ends", "somewhere else"], "en") == "wrapped"
    )


@given(st.text(max_size=400), st.sampled_from(["en", "de", "zh", "ar", "xx"]))
def test_splitting_keeps_every_character_that_is_no_space(text: str, language: str) -> None:
    line = clean_line(text)
    sentences = split_sentences(line, language)
    assert "".join(sentences).replace(" ", "") == line.replace(" ", "")
    assert all(sentence == sentence.strip() and sentence for sentence in sentences)
