"""A text that is not YAML is refused with its line, the line's words, the likely cause and what to write instead."""

from __future__ import annotations

import pytest

from bert_operator.api.parsing.documents import parse_documents
from bert_operator.errors import DocumentError, InvalidJob
from job_changes import Change, pretrain, put
from sample_job import sample_job

CASES: dict[str, tuple[str, str, str, str]] = {
    # Text, where it is, what the cause says, what to do.
    "one space too many": ("a:\n  b: 1\n   c: 2\n", "job:3", "indented by 3 spaces", "indent it by 2 spaces"),
    "one space too few": ("a:\n  b: 1\n c: 2\n", "job:3", "indented by 1 space,", "indent it by no space or 2 spaces"),
    "deeper than a value": ("a: 1\n  b: 2\n", "job:2", "already has its value", "indent it by no space"),
    "a tab": ("a:\n\tb: 1\n", "job:2", "by a tab", "indent it by spaces"),
    "fields beside a list": (
        "a:\n  - x: 1\n  y: 2\n",
        "job:3",
        "beside the entries of a list",
        "fields of the last entry",
    ),
    "an entry beside none": (
        "spec:\n  stages:\n   - name: a\n  - name: b\n",
        "job:4",
        "a list entry stands where fields were before",
        "indent it below the field",
    ),
    "an entry too deep": ("a:\n  - x: 1\n     y: 2\n", "job:3", "indented by 5 spaces", "indent it by 4 spaces"),
    "two fields in a line": ("a: b: c\n", "job:1", "two fields in one line", "a line of its own"),
    "no space after a colon": ("a:1\nb: 2\n", "job:2", "no space after a:", "write 'a: '"),
    "an open brace": ("a: {b: 1\nc: 2\n", "job:1", "{ is not closed", "missing }"),
    "an open bracket": ("a: [1, 2\nb: 3\n", "job:1", "[ is not closed", "missing ]"),
    "an open quote": ("a: 'x\nb: 1\n", "job:1", "the quote ' is not closed", "close it"),
    "an open double quote": ('b: 1\na: "x\n', "job:2", 'the quote " is not closed', "close it"),
    "a reserved sign": ("a: @x\n", "job:1", "no text may begin with @", "quote the text"),
    "a percent sign": ("a: %x\n", "job:1", "no text may begin with %", "quote the text"),
    "an unknown escape": ('a: "\\q"\n', "job:1", "a backslash in double quotes", "single quotes"),
    "a quote in quotes": ("a: 'it's'\n", "job:1", "text follows a closing quote", "double a quote"),
    "a brace too many": ("a: {b: 1}}\n", "job:1", "} closes nothing", "take it out"),
    "no field": ("a: x\nb\nc: 1\n", "job:2", "", ""),
}


@pytest.mark.parametrize(("text", "place", "cause", "next_step"), CASES.values(), ids=CASES)
def test_a_mistake_is_told_by_its_cause(text: str, place: str, cause: str, next_step: str) -> None:
    with pytest.raises(DocumentError) as refused:
        parse_documents(text)
    message, hint = str(refused.value).split("\nhint: ")
    assert message.startswith(f"{place}: not YAML: ") or not cause
    number = int(message.split(":")[1])
    assert cause in message
    assert "(column " in message
    assert (text.splitlines() + [""])[number - 1].strip() in message
    assert next_step in hint
    assert "fix" not in hint


def test_a_line_is_shown_without_signs_of_a_terminal_and_not_whole() -> None:
    with pytest.raises(DocumentError) as refused:
        parse_documents("a: b: \u202e" + "x" * 500 + "\n")
    assert "..." in str(refused.value)
    assert "\u202e" not in str(refused.value)


NUMBERS: dict[str, tuple[Change, str]] = {
    "a comma": (pretrain(learningRate="2,0e-3"), "write 2.0e-3, with a decimal point"),
    "commas between thousands": (pretrain(globalBatchSize="65,536"), "write 65536, without commas"),
    "quotes": (pretrain(learningRate="2e-3"), "write a number without quotes"),
    "words": (pretrain(learningRate="fast"), "write a number"),
    "a unit": (put("runPolicy", value={"stopGraceSeconds": "120s"}), "write a number"),
    "too much": (pretrain(learningRate=5), "usual"),
    "percent": (put("model", "hiddenDropout", value=10), "usual"),
    "the decay of another program": (put("optimizer", value={"weightDecay": 10}), "usual"),
}


@pytest.mark.parametrize(("change", "words"), NUMBERS.values(), ids=NUMBERS)
def test_a_number_that_is_none_or_too_large_is_told_what_is_meant(change: Change, words: str) -> None:
    with pytest.raises(InvalidJob) as refused:
        sample_job(change)
    (problem,) = refused.value.problems
    assert words in problem.next_step
    assert ("without quotes" in problem.next_step) == (words == "write a number without quotes")
