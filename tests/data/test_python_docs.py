"""Documentation that every Python has becomes plain English, without code and without running anything."""

from __future__ import annotations

import sys

import pytest

from bert_trainer.dataset.corpus.document import Document
from bert_trainer.dataset.corpus.python_docs import read_python_docs, split_paragraphs, split_sentences


@pytest.fixture(scope="module")
def documents() -> list[Document]:
    return list(read_python_docs())


def test_there_is_enough_to_learn_from(documents: list[Document]) -> None:
    num_characters = sum(len(sentence) for document in documents for sentence in document.sentences)
    assert len(documents) >= 400
    assert num_characters > 1_500_000


def test_the_order_is_fixed_and_names_are_unique(documents: list[Document]) -> None:
    names = [document.name for document in documents]
    assert len(set(names)) == len(names)
    topics = [name for name in names if ":topic/" in name]
    assert names[: len(topics)] == sorted(topics)


def test_no_module_with_side_effects_was_imported(documents: list[Document]) -> None:
    assert documents
    assert not {"antigravity", "this", "idlelib", "turtledemo", "lib2to3"} & set(sys.modules)


def test_a_paragraph_is_kept_where_it_is_first_only(documents: list[Document]) -> None:
    sentences = [sentence for document in documents for sentence in document.sentences]
    longer = [sentence for sentence in sentences if len(sentence) > 120]
    assert len(set(longer)) > 0.97 * len(longer)
    # Every exception class of C has it.
    assert sentences.count("Create and return a new object.") <= 1


def test_doctests_and_literal_blocks_go(documents: list[Document]) -> None:
    assert not any(sentence.startswith(">>>") for document in documents for sentence in document.sentences)
    text = (
        "Add two numbers, like this:\n\n>>> add(1, 2)\n3\n\n"
        "For example::\n\n    x = 1\n    y = 2\n\n"
        "That is the end of the story."
    )
    assert split_paragraphs(text) == ["Add two numbers, like this:", "That is the end of the story."]


def test_signatures_markup_headings_and_tables_go() -> None:
    text = (
        "open(file, mode='r') -> file object\n\n"
        "Title of the page\n=================\n\n"
        "Open ``file`` and see :func:`~io.open` or `the manual <https://example.org>`_ "
        "for *more* of it [1]_.\n\n"
        "+-----+-----+\n| a   | b   |\n+-----+-----+\n\n"
        "stmt ::= expression\n\n"
        ".. versionadded:: 3.4\n\n"
        ":param mode: How the file is to be opened."
    )
    assert split_paragraphs(text) == [
        "Open file and see io.open or the manual for more of it.",
        "How the file is to be opened.",
    ]


def test_sentences_end_at_full_stops_but_not_at_abbreviations() -> None:
    text = 'Use it, e.g. The old one. "Is it so?" It is (see there.) And more, cf. Knuth et al. There it ends'
    assert split_sentences(text) == [
        "Use it, e.g. The old one.",
        '"Is it so?"',
        "It is (see there.)",
        "And more, cf. Knuth et al. There it ends",
    ]
