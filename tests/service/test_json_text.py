"""What orjson refuses, Python's own module reads and writes: logs hold anything, and no job may stand still for it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bert_operator.json_text import read_json, write_json


@pytest.mark.parametrize(
    "value",
    [
        {"a": [1, 2.5, 1e-7, None, True, "text"], "b": {}},
        {"letters": "äß漢🙂"},
        {"half a character": "\ud83d"},
        {"more than 64 bits": 2**70},
    ],
)
def test_every_value_comes_back(value: Any) -> None:
    assert read_json(write_json(value)) == value


@pytest.mark.parametrize("text", [b'"\\ud83d"', b'{"a": 1, "a": 2}', b"1e400", '{"a": "漢"}'.encode()])
def test_texts_are_read_as_python_reads_them(text: bytes) -> None:
    assert read_json(text) == json.loads(text)


@pytest.mark.parametrize("text", [b"", b"<html>", b"{", b'{"a": 1}}'])
def test_what_is_no_json_is_refused(text: bytes) -> None:
    with pytest.raises(json.JSONDecodeError):
        read_json(text)


def test_half_a_character_is_sent_as_an_escape() -> None:
    # In UTF-8 there is none, and the API server would refuse the whole request.
    assert write_json("\ud83d") == b'"\\ud83d"'


def test_other_characters_are_sent_as_they_are() -> None:
    assert write_json({"a": "漢"}) == '{"a":"漢"}'.encode()
