"""Each line of JSON Lines is a document; what is no such line is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_job.preparation import CorpusSpec
from bert_trainer.dataset.corpus.corpora import open_corpora
from bert_trainer.errors import InputError


def sentences(path: Path, **options: object) -> list[tuple[str, ...]]:
    corpora = open_corpora([CorpusSpec(path=str(path), **options)])  # type: ignore[arg-type]
    return [document.sentences for document in corpora.documents()]


def test_each_line_is_a_document_of_prose(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    entries = [{"text": "One here. Two here.\nThree here."}, {"text": "Four here.", "id": 7}]
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries) + "\n")
    assert sentences(path) == [("One here.", "Two here.", "Three here."), ("Four here.",)]


def test_the_field_is_an_option_and_may_list_sentences(tmp_path: Path) -> None:
    path = tmp_path / "a.ndjson"
    path.write_text(json.dumps({"body": ["One. Still one.", " two "]}) + "\n")
    assert sentences(path, text_field="body") == [("One. Still one.", "two")]


def test_a_missing_field_is_named_with_those_that_are_there(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one."}\n{"content": "two.", "id": 1}\n')
    with pytest.raises(InputError, match=r"a\.jsonl:2: no field 'text'; the object has 'content', 'id'"):
        sentences(path)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("not json", "not JSON"),
        ('{"text": "cut o', "not JSON"),
        ("[1]", "got list; allowed: an object"),
        ('{"text": 5}', "field 'text' is int"),
        ('{"text": ["a", 5]}', "field 'text' is list"),
        ("[" * 100_000, "not JSON"),
    ],
)
@pytest.mark.usefixtures("no_collection")
def test_a_wrong_line_is_named(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"text": "one."}}\n{line}\n')
    with pytest.raises(InputError, match=rf"a\.jsonl:2: .*{said}"):
        sentences(path)


def test_lines_without_text_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": null}\n{"text": " "}\n{"text": "one."}\n')
    assert sentences(path) == [("one.",)]
    assert "skipped 2 lines without text" in caplog.text


@given(st.lists(st.text(max_size=80), min_size=1, max_size=8))
def test_any_text_arrives(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    try:
        documents = sentences(path)
    except InputError as error:
        refusal = str(error)
    else:
        refusal = None
    if refusal is not None:
        assert "holds no text" in refusal
        return
    for document in documents:
        for sentence in document:
            assert sentence == " ".join(sentence.split())
            assert sentence
            sentence.encode()


def test_half_surrogate_pairs_become_replacement_characters(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a \\ud800 b"}\n')
    assert sentences(path) == [("a \ufffd b",)]
