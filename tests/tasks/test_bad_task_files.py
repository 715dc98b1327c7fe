"""What is no file of the task is refused before training, by its name and line, with what is allowed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from bert_job.finetuning import TableColumnsSpec
from bert_job.run_stages import TaskData
from bert_job.tasks import TaskName
from bert_trainer.errors import InputError
from bert_trainer.tasks import tables
from bert_trainer.tasks.catalog import TASKS
from bert_trainer.tasks.reading import read_examples
from task_refusals import OFFICIAL, TABLE, TEXT, glue, one_question, refusal, squad, table_refusal

SPANS = TableColumnsSpec(question="question", context="context", answer="answer", id="id")


@pytest.mark.parametrize(
    ("task", "files", "said"),
    [
        (
            "cola",
            "SST-2",
            "train.tsv:1: got the fields 'sentence', 'label', which looks like SST-2's; allowed for CoLA:",
        ),
        ("sst-2", "CoLA", "which looks like CoLA's; allowed for SST-2: columns named 'sentence', 'label'"),
        ("mrpc", "QQP", "which looks like QQP's; allowed for MRPC: columns named '#1 String', '#2 String', 'Quality'"),
        ("qqp", "MRPC", "which looks like MRPC's; allowed for QQP"),
        ("rte", "STS-B", "which looks like STS-B's; allowed for RTE"),
        ("qnli", "RTE", "which looks like RTE or WNLI's; allowed for QNLI"),
        (
            "rte",
            "WNLI",
            "train.tsv:2: got the label '1', which looks like WNLI's; allowed for RTE: 'entailment', 'not_",
        ),
        ("sts-b", "RTE", "which looks like RTE or WNLI's; allowed for STS-B"),
    ],
)
def test_the_files_of_another_task_are_recognized(task: TaskName, files: str, said: str) -> None:
    message = refusal(task, OFFICIAL / "glue" / files)
    assert said in message
    assert message.endswith("hint: name the folder of this task's files, or the task of these")


@pytest.mark.parametrize("task", [name for name in TASKS if name not in ("classification", "regression", "spans")])
def test_a_folder_without_the_files_says_what_it_has(tmp_path: Path, task: TaskName) -> None:
    (tmp_path / "train-v2.0.json").write_text("{}")
    message = refusal(task, tmp_path)
    assert message.startswith(f"{tmp_path}: has 'train-v2.0.json'; allowed: the folder of ")
    assert ("train-v1.1.json and dev-v1.1.json" if task == "squad" else "train.tsv and dev") in message


def test_no_folder_at_all_is_named(tmp_path: Path) -> None:
    assert f"{tmp_path}/none: cannot be listed (No such file or directory)" in refusal("cola", tmp_path / "none")
    with pytest.raises(InputError, match=r"folder: not named; allowed for the task cola: the folder"):
        read_examples("cola", TaskData())
    with pytest.raises(InputError, match=r"cannot be listed \(embedded null byte\)"):
        read_examples("cola", TaskData(folder="a\0b"))


def test_a_line_with_other_fields_is_named(tmp_path: Path) -> None:
    folder = glue(tmp_path, "RTE", dev_tsv="index\tsentence1\tsentence2\tlabel\n0\ta\tb\tentailment\n1\ta\tb\n")
    assert refusal("rte", folder).startswith("dev.tsv:3: got 3 fields between tabs; allowed: 4, one for each column of")


def test_an_unknown_label_is_named_with_its_line(tmp_path: Path) -> None:
    folder = glue(tmp_path, "SST-2", dev_tsv="sentence\tlabel\ngood \t1\nbad \tneg\n")
    assert refusal("sst-2", folder).startswith("dev.tsv:3: got the label 'neg'; allowed for SST-2: '0', '1'\n")


@pytest.mark.parametrize("score", ["", "nan", "inf", "-1e999", "five"])
def test_what_is_no_finite_number_is_no_rating(tmp_path: Path, score: str) -> None:
    header = (OFFICIAL / "glue/STS-B/train.tsv").read_text().splitlines()[0]
    folder = glue(tmp_path, "STS-B", train_tsv=f"{header}\n" + "0\t" * 9 + f"{score}\n")
    assert refusal("sts-b", folder).startswith(f"train.tsv:2: got {score!r} to predict; allowed: a finite number")


@pytest.mark.parametrize("score", ["5.001", "-0.2", "42"])
def test_similarity_is_rated_from_0_to_5(tmp_path: Path, score: str) -> None:
    header = (OFFICIAL / "glue/STS-B/train.tsv").read_text().splitlines()[0]
    folder = glue(tmp_path, "STS-B", train_tsv=f"{header}\n" + "0\t" * 9 + f"{score}\n")
    assert refusal("sts-b", folder).startswith(f"train.tsv:2: got {score!r} to predict; allowed for STS-B: 0 to 5")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "dev.tsv: got an empty file; allowed: SST-2's"),
        ("sentence\tlabel\n", "dev.tsv: got no example; allowed: at least one"),
    ],
)
def test_an_empty_split_is_named(tmp_path: Path, content: str, said: str) -> None:
    assert refusal("sst-2", glue(tmp_path, "SST-2", dev_tsv=content)).startswith(said)


def test_a_split_that_is_left_out_as_a_whole_says_why(tmp_path: Path) -> None:
    header = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    message = refusal("qqp", glue(tmp_path, "QQP", dev_tsv=header + "1\t2\t3\n"))
    assert "dev.tsv: got no example" in message
    assert "lines skipped for other fields than columns: 1 (lines 2)); allowed: at least one" in message


def test_a_list_of_ids_that_names_no_pair_of_mrpc_is_refused(tmp_path: Path) -> None:
    folder = shutil.copytree(OFFICIAL / "mrpc-original", tmp_path / "mrpc")
    (folder / "dev_ids.tsv").write_text("1\t2\n")
    assert refusal("mrpc", folder).startswith("dev_ids.tsv: its pairs of ids are none of those in msr_paraphrase_train")


# SQuAD


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"version": "v2.0", "data": []}, "train-v1.1.json: is a file of SQuAD 2.0 (version 'v2.0')"),
        (
            one_question(is_impossible=True, answers=[]),
            "train-v1.1.json: is a file of SQuAD 2.0 (is_impossible in the question 'a')",
        ),
        (one_question(answers=[]), "data[0].paragraphs[0].qas[0] ('a') has no answer; allowed: at least one"),
        (one_question(answers=None), "data[0].paragraphs[0].qas[0].answers is a NoneType; allowed: a list"),
        (
            one_question(answers=[{"text": "Ann"}]),
            "qas[0].answers[0] has the keys 'text'; allowed: an object with 'answer_",
        ),
        (one_question(answers=[{"text": "Ann", "answer_start": True}]), "answer_start is a bool; allowed: a int"),
        (one_question(question=7), "qas[0].question is a int; allowed: a str"),
        ({"version": "1.1", "data": [3]}, "data[0] has a int; allowed: an object with 'paragraphs'"),
        ({"version": "1.1", "data": []}, "got no question; allowed: at least one"),
        ({"rows": []}, "the document has the keys 'rows'; allowed: an object with 'data'"),
        ([], "the document has a list; allowed: an object with 'data'"),
        ("{", "train-v1.1.json: not a JSON document"),
        ("[" * 200_000, "train-v1.1.json: not a JSON document"),
    ],
)
@pytest.mark.usefixtures("no_collection")
def test_what_is_no_squad_1_1_is_named(tmp_path: Path, document: object, said: str) -> None:
    assert said in refusal("squad", squad(tmp_path, document))


def test_two_questions_of_squad_with_one_id_are_named(tmp_path: Path) -> None:
    document = one_question()
    document["data"] *= 2
    assert refusal("squad", squad(tmp_path, document)).startswith(
        "train-v1.1.json: data[1].paragraphs[0].qas[0] has the id 'a', which data[0].paragraphs[0].qas[0] has"
    )


def test_answers_that_are_not_in_their_contexts_are_named_and_counted(tmp_path: Path) -> None:
    document = one_question()
    paragraph = document["data"][0]["paragraphs"][0]
    paragraph["qas"] = [
        {"id": f"q{start}", "question": "Who?", "answers": [{"text": text, "answer_start": start}]}
        for text, start in [("Ann", 5), ("Bob", 0), ("Ann", -9), ("Ann", 99), ("", 3), ("Eve", 1), ("Eve", 8)]
    ]
    message = refusal("squad", squad(tmp_path, document))
    assert message.startswith(
        "train-v1.1.json: answers that are not in their contexts: 6: "
        "'q5' has 'Ann' at 5, where 'et ' stands; it stands at 0; "
        "'q0' has 'Bob' at 0, where 'Ann' stands; "
        "'q-9' has 'Ann' at -9, where nothing stands; it stands at 0; "
        "'q99' has 'Ann' at 99, where nothing stands; it stands at 0; "
        "'q3' has an empty answer, and 1 more\nhint: "
    )


def test_an_answer_a_character_or_two_away_is_taken_and_noted(tmp_path: Path) -> None:
    folder = squad(tmp_path, one_question(answers=[{"text": "Eve", "answer_start": start} for start in (6, 8, 9)]))
    found = read_examples("squad", TaskData(folder=str(folder)))
    assert found.train.examples[0].answers == (("Eve", 8), ("Eve", 8), ("Eve", 8))  # type: ignore[union-attr]
    where = f"{folder}/train-v1.1.json: answers up to 2 characters from where the file says: 2"
    assert found.notes == (f"{where}: 'a' from 6 to 8; 'a' from 9 to 8",)


# Tables of one's own


def test_missing_columns_are_named_with_those_that_are_there(tmp_path: Path) -> None:
    columns = TableColumnsSpec(text="body", text_pair="title", label="label", id="key")
    assert table_refusal(tmp_path, TABLE, columns=columns).startswith(
        "train.tsv:1: no column 'body', 'key', 'title'; the file has 'text', 'label'\nhint: "
    )
    lines = b'{"text": "a", "label": "x"}\n{"text": "a"}\n'
    assert table_refusal(tmp_path, lines, suffix=".jsonl").startswith(
        "train.jsonl:2: no column 'label'; the object has 'text'"
    )


def test_columns_that_the_stage_does_not_name_are_asked_for(tmp_path: Path) -> None:
    assert table_refusal(tmp_path, TABLE, columns=TableColumnsSpec(text="text")).startswith(
        "columns: 'label' not named; allowed for the task classification: names of columns for 'text', 'label'"
    )
    assert table_refusal(tmp_path, TABLE, task="spans").startswith("columns: 'question', 'context', 'answer' not")


def test_a_file_that_the_stage_does_not_name_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_bytes(TABLE)
    with pytest.raises(InputError) as caught:
        read_examples("classification", TaskData(validation=str(tmp_path / "a.tsv"), columns=TEXT))
    message = str(caught.value)
    assert message.startswith("train: not named; allowed: a file")


@pytest.mark.parametrize(
    ("content", "suffix", "said"),
    [
        (b"text\tlabel\none\tx\ntwo\t \n", ".tsv", "train.tsv:3: 'label' is empty; allowed: a label"),
        (b"text\tlabel\none\tx\n\xff\ty\n", ".tsv", "train.tsv: not UTF-8 at byte offset 17 (byte 0xff)"),
        ("text\tlabel\none\tx\n".encode("utf-16"), ".tsv", "train.tsv: got text in UTF-16, by its first bytes"),
        ("text\tlabel\none\tx\n".encode("utf-16-le"), ".tsv", "iconv -f UTF-16LE -t UTF-8 train.tsv"),
        (b"text\tlabel\none\tx\ntwo\t\0\n", ".tsv", "train.tsv:3: got a NUL byte"),
        (b"text\tlabel\none\tx\ntwo\n", ".tsv", "train.tsv:3: got 1 fields; allowed: 2, one for each column"),
        (b"text\tlabel\none\tx\tmore\n", ".tsv", "train.tsv:2: got 3 fields; allowed: 2, one for each column"),
        (b"text\tlabel\ttext\none\tx\ttwo\n", ".tsv", "train.tsv:1: got the column 'text' more than once"),
        (b"text\tlabel\rone\tx\r", ".tsv", "train.tsv:1: its lines end with carriage returns alone"),
        (b"text;label\none;x\n", ".csv", "no column 'label', 'text'; the file has 'text;label'"),
        (b"", ".tsv", "train.tsv: got an empty file"),
        (b"text\tlabel\n", ".tsv", "train.tsv: got no row; allowed: at least one"),
        (b"text\tlabel\none\tx\ntwo\tx\n", ".tsv", "train.tsv: got the label 'x' in every row; allowed: two classes"),
        (b'text,label\n"one,x\ntwo,y\n', ".csv", "train.csv:2: not CSV (unexpected end of data)"),
        (b'text,label\n"one" ,x\n', ".csv", "train.csv:2: not CSV (',' expected after '\"')"),
        (b"one\n", ".jsonl", "train.jsonl:1: not JSON"),
        (b"[1]\n", ".jsonl", "train.jsonl:1: got a list; allowed: an object with named values"),
        (b"[" * 200_000, ".jsonl", "train.jsonl:1: not JSON"),
        (
            b'{"text": 1, "label": "x"}\n{"text": "", "label": 2}',
            ".jsonl",
            "train.jsonl:1: 'text' is 1; allowed: a text",
        ),
        (b'{"text": "a", "label": null}\n', ".jsonl", "train.jsonl:1: 'label' is null; allowed: a label"),
        (
            b'text,label\none,"x\ny"\n',
            ".csv",
            "train.csv:2: 'label' is 'x\\ny', with control characters; allowed: none",
        ),
        (
            b"text\tlabel\none\tx\x1b[31m\n",
            ".tsv",
            "train.tsv:2: 'label' is 'x\\x1b[31m', with control characters; allowed: none",
        ),
        (
            b"text\tlabel\none\t" + b"x" * 257,
            ".tsv",
            "train.tsv:2: 'label' is a text of 257 characters; allowed: 256 at most",
        ),
        (b'{"text": "a", "label": 1.0}\n', ".jsonl", "train.jsonl:1: 'label' is 1.0; allowed: a label"),
    ],
)
@pytest.mark.usefixtures("no_collection")
def test_a_table_that_is_none_is_named(tmp_path: Path, content: bytes, suffix: str, said: str) -> None:
    assert said in table_refusal(tmp_path, content, suffix=suffix)


def test_labels_of_the_validation_set_are_those_of_training(tmp_path: Path) -> None:
    validation = b"text\tlabel\nthree\tx\nfour\tz\n"
    assert table_refusal(tmp_path, TABLE, validation=validation).startswith(
        "validation.tsv:3: got the label 'z'; allowed, by the file to train on: 'x', 'y'"
    )
    assert table_refusal(tmp_path, TABLE, labels=("x", "z")).startswith(
        "train.tsv:3: got the label 'y'; allowed, by labels: 'x', 'z'"
    )


@pytest.mark.parametrize("labels", [("x",), ("x", "x"), ("x", " y")])
def test_labels_are_two_or_more_and_distinct(tmp_path: Path, labels: tuple[str, ...]) -> None:
    assert table_refusal(tmp_path, TABLE, labels=labels).startswith("labels: got 'x'")


def test_a_column_of_texts_is_no_column_of_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "MAX_CLASSES", 3)
    content = b"text\tlabel\n" + b"".join(b"a\tlabel %d\n" % number for number in range(5))
    assert table_refusal(tmp_path, content).startswith("train.tsv:5: got more than 3 labels in the column 'label'")


@pytest.mark.parametrize(
    ("label", "said"),
    [
        ("a" * 257, "'label' is a text of 257 characters; allowed: 256 at most"),
        ("a\x1b[2J", "'label' is 'a\\x1b[2J', with control characters; allowed: none"),
        ("a\x7fb", "'label' is 'a\\x7fb', with control characters; allowed: none"),
    ],
)
def test_a_label_is_a_name(tmp_path: Path, label: str, said: str) -> None:
    message = table_refusal(tmp_path, f"text\tlabel\none\tx\ntwo\t{label}\n".encode())
    assert message.startswith(f"train.tsv:3: {said}")
    assert "hint: results and the exported model name their classes so" in message
    content = json.dumps({"text": "one", "label": label}).encode() + b"\n"
    assert table_refusal(tmp_path, content, suffix=".jsonl").startswith(f"train.jsonl:1: {said}")
    if len(label) <= 256:  # a longer one is no value of the section
        assert table_refusal(tmp_path, TABLE, labels=("x", label)).startswith(f"labels: got {said[11:]}")


def test_a_label_of_256_characters_is_one(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text(f"text\tlabel\none\tx\ntwo\t{'a' * 256}\n")
    data = TaskData(train=str(tmp_path / "a.tsv"), validation=str(tmp_path / "a.tsv"), columns=TEXT)
    assert read_examples("classification", data).task.labels == ("a" * 256, "x")


@pytest.mark.parametrize("value", ["", "NaN", "inf", "high", "1e39", "-3.5e38"])
def test_a_regression_predicts_finite_numbers(tmp_path: Path, value: str) -> None:
    content = f"text\tlabel\none\t1\ntwo\t{value}\n".encode()
    assert table_refusal(tmp_path, content, task="regression").startswith(f"train.tsv:3: got {value!r} to predict")


@pytest.mark.parametrize("value", ["NaN", "Infinity", "true", "null", "[1]", "1e400"])
def test_numbers_of_json_are_finite_as_well(tmp_path: Path, value: str) -> None:
    content = f'{{"text": "one", "label": {value}}}\n'.encode()
    message = table_refusal(tmp_path, content, task="regression", suffix=".jsonl")
    assert message.startswith("train.jsonl:1: got ")
    assert "to predict; allowed: a finite number" in message


def test_rows_of_one_identifier_are_refused_where_predictions_are_made(tmp_path: Path) -> None:
    table = b"id\ttext\tlabel\na\tone\tx\na\ttwo\ty\n"
    columns = TEXT.model_copy(update={"id": "id"})
    # Of the training file nothing is predicted: rows may stand there twice.
    assert table_refusal(tmp_path, table, validation=table, columns=columns).startswith(
        "validation.tsv:3: got the identifier 'a', which line 2 has"
    )


def test_answers_of_a_table_are_in_their_contexts(tmp_path: Path) -> None:
    content = b"id\tquestion\tcontext\tanswer\n" + b"".join(b"q%d\tWho?\tAnn left.\tBob\n" % n for n in range(7))
    message = table_refusal(tmp_path, content, task="spans", columns=SPANS)
    assert message.startswith(
        "train.tsv: answers that are not in their contexts: 7: line 2 ('q0') has 'Bob', which is not there; line 3 "
    )
    assert "line 6 ('q4') has 'Bob', which is not there, and 2 more" in message


@pytest.mark.parametrize("start", ["", "first", "1.0", "-1", "²"])
def test_a_start_is_a_whole_number(tmp_path: Path, start: str) -> None:
    columns = SPANS.model_copy(update={"answer_start": "start"})
    content = f"id\tquestion\tcontext\tanswer\tstart\nq\tWho?\tAnn left.\tAnn\t{start}\n".encode()
    assert table_refusal(tmp_path, content, task="spans", columns=columns).startswith(
        f"train.tsv:2: got {start!r} for an answer's start; allowed: a whole number"
    )


def test_answers_and_their_starts_are_as_many(tmp_path: Path) -> None:
    columns = SPANS.model_copy(update={"answer_start": "start"})
    row = {"id": 1, "question": "Who?", "context": "Ann left.", "answer": ["Ann", "Ann left"], "start": [0]}
    content = json.dumps(row).encode()
    assert table_refusal(tmp_path, content, task="spans", columns=columns, suffix=".jsonl").startswith(
        "train.jsonl:1: got 2 answers and 1 starts; allowed: as many"
    )


@pytest.mark.parametrize("answer", ["null", "[]", "[1]", "7", '{"start": 0}'])
def test_an_answer_is_a_text(tmp_path: Path, answer: str) -> None:
    content = f'{{"id": 1, "question": "Who?", "context": "Ann left.", "answer": {answer}}}'.encode()
    message = table_refusal(tmp_path, content, task="spans", columns=SPANS, suffix=".jsonl")
    assert message.startswith("train.jsonl:1: 'answer' is ")
    assert "allowed: a text, or a list of texts" in message


@pytest.mark.parametrize("value", ["true", "null", '""', "1.5"])
def test_an_identifier_is_a_text_or_a_whole_number(tmp_path: Path, value: str) -> None:
    content = f'{{"id": {value}, "text": "a", "label": "x"}}\n{{"id": 1, "text": "b", "label": "y"}}\n'.encode()
    columns = TEXT.model_copy(update={"id": "id"})
    assert table_refusal(tmp_path, content, columns=columns, suffix=".jsonl").startswith("train.jsonl:1: 'id' is ")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("a" * 1_025, "'id' is a text of 1,025 characters; allowed: 1,024 at most"),
        ("a\x1b[2J", "'id' is 'a\\x1b[2J', with control characters; allowed: none"),
    ],
)
def test_an_identifier_is_a_name(tmp_path: Path, value: str, said: str) -> None:
    rows = [{"id": value, "text": "a", "label": "x"}, {"id": 1, "text": "b", "label": "y"}]
    content = "\n".join(map(json.dumps, rows)).encode()
    columns = TEXT.model_copy(update={"id": "id"})
    message = table_refusal(tmp_path, content, columns=columns, suffix=".jsonl")
    assert message.startswith(f"train.jsonl:1: {said}")
    assert "hint: predictions are labelled with it" in message
