"""A job file means the same to kubectl and to us, or it is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_operator.api.parsing import plain_scalars
from bert_operator.api.parsing.documents import parse_documents, read_job_document, read_job_stream
from bert_operator.errors import DocumentError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("6e-3", 0.006),
        ("6.0E-3", 0.006),
        ("1.", 1.0),
        (".5", 0.5),
        ("+12", 12),
        ("-7", -7),
        ("0", 0),
        ("0o17", 15),
        ("0x1F", 31),
        ("true", True),
        ("False", False),
        ("~", None),
        ("", None),
        ("NULL", None),
        ("'on'", "on"),
        ('"017"', "017"),
        ("|\n  no\n", "no\n"),
        ("2001-01-01", "2001-01-01"),
        ("builtin:python-docs", "builtin:python-docs"),
        ("python:3.11", "python:3.11"),
        ("1.2.3", "1.2.3"),
        ("!!str 5", "5"),
        ("nope", "nope"),
        ("_1", "_1"),
    ],
)
def test_a_scalar_that_means_one_thing_is_read(text: str, value: object) -> None:
    (document,) = parse_documents(f"a: {text}")
    assert document == {"a": value}
    assert type(document["a"]) is type(value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "on",
            ("true in YAML 1.1 (kubectl)", "the text 'on' in YAML 1.2", 'quote it ("on")', "or write true"),
        ),
        ("Off", ("false in YAML 1.1", "or write false")),
        ("YES", ("true in YAML 1.1",)),
        ("no", ("false in YAML 1.1",)),
        ("y", ("true in YAML 1.1",)),
        ("N", ("false in YAML 1.1",)),
        ("017", ("the number 15 in YAML 1.1 (kubectl)", "the number 17 in YAML 1.2", "or write 15")),
        ("-017", ("the number -15", "the number -17")),
        ("08", ("octal or text", "or write 8")),
        ("07", ("octal or text", "or write 7")),
        ("1_000", ("the number 1000 in YAML 1.1 (kubectl)", "the text '1_000'", "or write 1000")),
        ("1_0.5", ("the number 10.5", "the text '1_0.5'")),
        (".5_0", ("the number 0.5", "the text '.5_0'")),
        ("0b11", ("the number 3", "the text '0b11'")),
        ("0X1F", ("the number 31",)),
        ("-0x1f", ("the number -31",)),
        ("12:30:00", ("the number 45000 in some YAML 1.1 readers", "the text '12:30:00'")),
        ("-1:30", ("the number -90",)),
        ("=", ("a default value mark",)),
        ("18446744073709551616", ("YAML 1.1 (kubectl)",)),
        (".inf", ("a number that JSON, and so Kubernetes, does not have",)),
        ("-.Inf", ("a number that JSON",)),
        (".nan", ("a number that JSON",)),
        ("1e400", ("a number that JSON",)),
    ],
)
def test_a_scalar_that_readers_take_differently_is_refused_with_its_line(text: str, words: tuple[str, ...]) -> None:
    with pytest.raises(DocumentError) as caught:
        parse_documents(f"first: 1\nsecond: {text}", source="job.yaml")
    message = str(caught.value)
    assert message.startswith("job.yaml:2: ")
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("on: 1", "true in YAML 1.1"),
        ("1: 2", "keys must be strings, not 1"),
        ("[a]: 2", "keys must be strings"),
        ("{a: 1, b: {c: 1, c: 2}}", "duplicate key 'c'"),
        ("base: &b {x: 1}\nd: {<<: *b}", "merge key"),
        ("a: !!int 5", "the tag tag:yaml.org,2002:int is not supported"),
        ("a: !include x", "the tag !include is not supported"),
        ("a: &x [*x]", "no complete anchor"),
        ("a: [1, 2", "not YAML"),
        ("a: 1\n\tb: 2", "not YAML"),
        ("a: " + "[" * 60 + "]" * 60, "nested deeper than 50"),
    ],
)
def test_what_is_not_plain_data_is_refused(text: str, words: str) -> None:
    with pytest.raises(DocumentError) as caught:
        parse_documents(text)
    assert words in str(caught.value)


def test_aliases_are_written_out() -> None:
    assert parse_documents("a: &x {b: [1]}\nc: *x") == [{"a": {"b": [1]}, "c": {"b": [1]}}]


def test_aliases_of_aliases_do_not_explode() -> None:
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    with pytest.raises(DocumentError, match="more than 20000 values"):
        parse_documents("\n".join(lines))


JOB = "kind: BertPretrainJob\nmetadata: {name: demo}\n"


def test_the_one_job_of_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(f"\ufeff# a comment\n---\n{JOB}---\n")
    assert read_job_document(path)["metadata"] == {"name": "demo"}


@pytest.mark.parametrize(
    "text",
    [
        f"kind: ConfigMap\ndata: {{a: b}}\n---\n{JOB}",
        "apiVersion: v1\nkind: List\nitems:\n- {kind: Secret}\n- {kind: BertPretrainJob, metadata: {name: demo}}\n",
    ],
)
def test_objects_of_other_kinds_are_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "stream.yaml"
    path.write_text(text)
    assert read_job_document(path)["metadata"] == {"name": "demo"}
    assert read_job_stream(path).others == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no object, and no BertPretrainJob"),
        ("- a\n- b\n", "holds 1 object of other kinds, and no BertPretrainJob"),
        (f"{JOB}---\n{JOB}", "holds 2 objects of kind BertPretrainJob; allowed: one"),
        ("kind: MPIJob\n", "holds 1 object of other kinds, and no BertPretrainJob"),
        ("kind: List\nitems: [{kind: Secret}]\n", "holds 1 object of other kinds, and no BertPretrainJob"),
        ("a: 1\n", "no BertPretrainJob"),
        ("kind: ConfigMap\ndata: " + "[" * 20_000, "more than 200 levels"),
    ],
)
def test_a_file_with_anything_else_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    with pytest.raises(DocumentError) as caught:
        read_job_document(path)
    assert words in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match=r"missing\.yaml: cannot read the job"):
        read_job_document(tmp_path / "missing.yaml")
    (tmp_path / "latin.yaml").write_bytes("a: ä".encode("latin-1"))
    with pytest.raises(DocumentError, match="not UTF-8"):
        read_job_document(tmp_path / "latin.yaml")
    (tmp_path / "long.yaml").write_bytes(b" " * 16_777_217)
    with pytest.raises(DocumentError, match="16777217 bytes"):
        read_job_document(tmp_path / "long.yaml")


@given(st.text(alphabet="0123456789_.:+-eExXoObBnNyYaAfF", max_size=12))
def test_what_is_not_refused_is_read_alike_by_both_versions(text: str) -> None:
    if plain_scalars.disagreement(text) is None:
        old, new = plain_scalars.read_1_1(text), plain_scalars.read_1_2(text)
        assert type(old) is type(new)
        assert old == new


def test_a_word_that_kubectl_takes_for_true_is_told_with_its_field() -> None:
    with pytest.raises(DocumentError) as caught:
        parse_documents("spec:\n  env:\n  - name: A\n    value: 'x'\n  - name: B\n    value: on\n", source="job.yaml")
    assert str(caught.value).startswith("job.yaml:6: spec.env[1].value: on is true in YAML 1.1 (kubectl) and the text")
    assert caught.value.hint == 'quote it ("on") if it is text, as values of env are, or write true'
