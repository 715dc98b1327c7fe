"""GLUE's files and SQuAD's are read as their archives hold them, with the oddities of each."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bert_job.run_stages import TaskData
from bert_job.tasks import TaskName
from bert_trainer.tasks.catalog import TASKS
from bert_trainer.tasks.examples import SpanExample, Split, TaskExamples, TextExample
from bert_trainer.tasks.reading import read_examples

OFFICIAL = Path(__file__).parents[1] / "fixtures/tasks"


def read(task: TaskName, folder: Path | None = None) -> TaskExamples:
    return read_examples(task, TaskData(folder=str(folder or OFFICIAL / "glue")))


def rows(split: Split) -> list[tuple[str, str, str | None, int | float | None]]:
    return [(row.id, row.first, row.second, row.label) for row in split.examples if isinstance(row, TextExample)]


def test_cola_has_no_line_of_names_and_quotation_marks_are_characters() -> None:
    found = read("cola")
    assert rows(found.train) == [
        ("0", "The gardener watered the roses before the sun came up.", None, 1),
        ("1", "The gardener the roses watered before.", None, 0),
        ("2", '"Leave the gate open," she said, and he did.', None, 1),
        ("3", 'Who did you ask what when " left?', None, 0),
    ]
    assert [rows(split) for split in found.validations] == [
        [
            ("0", "The harder it rains, the faster the river rises.", None, 1),
            ("1", "The bridge crossed itself slow.", None, 0),
        ]
    ]
    assert [rows(split) for split in found.tests] == [
        [("0", "The baker sold out by noon.", None, None), ("1", "Baker the out sold noon by.", None, None)]
    ]
    assert found.task.labels == ("0", "1")
    assert found.notes == ()


def test_a_test_set_of_cola_may_be_a_labelled_file(tmp_path: Path) -> None:
    for name in ("train.tsv", "dev.tsv", "test.tsv"):
        shutil.copy(OFFICIAL / "glue/CoLA/dev.tsv", tmp_path / name)
    assert rows(read("cola", tmp_path).tests[0])[1] == ("1", "The bridge crossed itself slow.", None, None)


def test_sst_2_has_numbers_of_rows_in_its_test_set_alone() -> None:
    found = read("sst-2")
    assert rows(found.train) == [
        ("0", "hides its best lines ", None, 0),
        ("1", 'a "small" film with a large heart ', None, 1),
    ]
    assert rows(found.tests[0]) == [
        ("0", "uneasy mishmash of styles .", None, None),
        ("1", "it 's charming", None, None),
    ]


def test_mrpc_of_glue_begins_with_a_byte_order_mark() -> None:
    found = read("mrpc")
    assert rows(found.train) == [
        (
            "0",
            "The harbour reopened on Monday , the mayor said .",
            "On Monday the harbour was opened again , according to the mayor .",
            1,
        ),
        ("1", '"Sales rose by 4 percent , the firm said .', '" We sold more , " the firm said .', 0),
    ]
    assert rows(found.validations[0]) == [
        ("0", "The storm cut power to 900 homes .", "Some 900 homes lost power in the storm .", 1)
    ]
    assert rows(found.tests[0]) == [
        ("0", "The talks end on Friday .", "Friday is the last day of the talks .", None),
        ("1", "Shares fell 2 percent .", "The bank named a new chairman .", None),
    ]


def test_the_original_files_of_mrpc_are_evaluated_on_their_test_set_without_a_list_of_ids() -> None:
    folder = OFFICIAL / "mrpc-original"
    found = read("mrpc", folder)
    assert [row[3] for row in rows(found.train)] == [1, 0, 1]
    assert rows(found.train)[1][1:3] == (
        '"Sales rose by 4 percent , the firm said .',
        '" We sold more , " the firm said .',
    )
    assert rows(found.validations[0]) == [
        ("0", "The talks end on Friday .", "Friday is the last day of the talks .", 1),
        ("1", "Shares fell 2 percent .", "The bank named a new chairman .", 0),
    ]
    assert found.tests == ()
    assert found.notes == (
        f"{folder}: no dev_ids.tsv: the validation set is the original test set, msr_paraphrase_test.txt",
    )


# As GLUE's script calls it on disk, and as ``bert-data fetch glue-mrpc`` does.
@pytest.mark.parametrize("name", ["dev_ids.tsv", "mrpc_dev_ids.tsv"])
def test_the_original_files_of_mrpc_with_glues_list_of_ids_are_glues_split(tmp_path: Path, name: str) -> None:
    folder = shutil.copytree(OFFICIAL / "mrpc-original", tmp_path / "MRPC")
    (folder / name).write_text("1355540\t1355592\tmore\n\n")
    found, official = read("mrpc", tmp_path), read("mrpc")
    assert rows(found.train) == rows(official.train)
    assert [row[1:] for row in rows(found.validations[0])] == [row[1:] for row in rows(official.validations[0])]
    assert rows(found.tests[0]) == rows(official.tests[0])
    assert found.notes == (f"{folder}: the validation set is what {name} names of msr_paraphrase_train.txt: 1",)


def test_glues_files_of_mrpc_win_over_the_originals_beside_them(tmp_path: Path) -> None:
    folder = shutil.copytree(OFFICIAL / "mrpc-original", tmp_path / "MRPC")
    shutil.copytree(OFFICIAL / "glue/MRPC", folder, dirs_exist_ok=True)
    assert read("mrpc", tmp_path) == read("mrpc")


def test_sts_b_is_rated() -> None:
    found = read("sts-b")
    assert rows(found.train) == [
        ("0", "A train leaves the station.", "A train is leaving.", 4.6),
        ("1", 'A "cat" sits.', "A man rows a boat.", 0.0),
    ]
    assert rows(found.validations[0]) == [("0", "Two girls play chess.", "Chess is played by two girls.", 5.0)]
    assert rows(found.tests[0]) == [("0", "A dog swims.", "A dog runs.", None)]


def test_the_broken_lines_of_qqp_are_skipped_and_counted() -> None:
    found = read("qqp")
    assert rows(found.train) == [
        ("133273", "How do I learn to sail?", "What is the best way to learn sailing?", 1),
        ("402555", 'What does "port" mean on a ship?', 'Which side of a ship is "port?', 1),
        ("50", "How deep is the lake?", "", 0),
    ]
    assert rows(found.tests[0])[1] == ("1", "What is a fathom?", "How long is a fathom?", None)
    path = OFFICIAL / "glue/QQP/train.tsv"
    assert found.notes == (f"{path}: lines skipped for other fields than columns: 4 (lines 4, 5, 6, 7)",)


def test_an_empty_line_of_qqp_is_a_broken_one(tmp_path: Path) -> None:
    header = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    for name in ("train.tsv", "dev.tsv"):
        (tmp_path / name).write_text(f"{header}1\t2\t3\tWhy is the sea\n\nsalt?\tWhy?\t1\n4\t5\t6\tHow?\tWhat?\t0\n")
    found = read("qqp", tmp_path)
    assert rows(found.train) == [("4", "How?", "What?", 0)]
    assert found.notes[0].endswith("lines skipped for other fields than columns: 3 (lines 2, 3, 4)")


def test_columns_of_qqp_are_found_by_name_in_whatever_order(tmp_path: Path) -> None:
    for name in ("train.tsv", "dev.tsv"):
        (tmp_path / name).write_text("is_duplicate\tquestion2\tquestion1\tid\n1\tsecond\tfirst\t7\n")
    assert rows(read("qqp", tmp_path).train) == [("7", "first", "second", 1)]


def test_mnli_has_two_validation_sets_and_pairs_without_a_gold_label() -> None:
    found = read("mnli")
    assert found.task.labels == ("contradiction", "entailment", "neutral")
    assert rows(found.train) == [
        ("0", 'He said "no.', "He refused.", 1),
        ("1", "The inn is old.", "The inn is new.", 0),
        ("2", "They met in May.", "They met on a bridge.", 2),
    ]
    assert {split.name: rows(split) for split in (*found.validations, *found.tests)} == {
        "validation": [("0", "The shop is shut.", "Nobody can buy there.", 1)],
        "validation-mismatched": [("0", "We thank you.", "We are angry with you.", 0)],
        "test": [("0", "Rain fell.", "It was wet.", None)],
        "test-mismatched": [("0", "A word is old.", "A word is new.", None)],
    }
    assert [split.name for split in found.validations] == ["validation", "validation-mismatched"]
    path = OFFICIAL / "glue/MNLI/dev_matched.tsv"
    assert found.notes == (f"{path}: pairs skipped for the gold label '-': 1",)


@pytest.mark.parametrize(
    ("task", "labels", "validation"),
    [
        ("qnli", [0, 1], ("0", "Where is it?", "It stands by the river.", 0)),
        ("rte", [0, 1], ("0", "Oil costs more.", "Oil is cheaper.", 1)),
        ("wnli", [1, 0], ("0", "Ann thanked Eve because she helped.", "Eve helped.", 1)),
    ],
)
def test_entailment_of_pairs(task: TaskName, labels: list[int], validation: tuple[str, str, str, int]) -> None:
    found = read(task)
    assert [row[3] for row in rows(found.train)] == labels
    assert rows(found.validations[0]) == [validation]
    assert [row[3] for row in rows(found.tests[0])] == [None]


def test_a_broken_line_among_a_thousand_is_skipped_and_counted(tmp_path: Path) -> None:
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\ngood \t1\n")
    (tmp_path / "train.tsv").write_text("sentence\tlabel\n" + "good \t1\n" * 999 + "a\tb\tc\n" + "bad \t0\n")
    found = read("sst-2", tmp_path)
    assert len(found.train.examples) == 1000
    assert found.train.examples[-1] == TextExample("1000", "bad ", None, 0)
    assert found.notes == (f"{tmp_path}/train.tsv: lines skipped for other fields than columns: 1 (lines 1001)",)


def test_a_task_is_read_from_its_own_folder_as_from_the_one_that_holds_all() -> None:
    assert read("rte", OFFICIAL / "glue/RTE") == read("rte", OFFICIAL / "glue")


def test_hyphens_and_capitals_of_a_tasks_folder_do_not_matter(tmp_path: Path) -> None:
    shutil.copytree(OFFICIAL / "glue/SST-2", tmp_path / "sst2")
    assert read("sst-2", tmp_path) == read("sst-2")


def test_no_test_set_is_no_error(tmp_path: Path) -> None:
    for name in ("train.tsv", "dev.tsv"):
        shutil.copy(OFFICIAL / "glue/SST-2" / name, tmp_path)
    assert read("sst-2", tmp_path).tests == ()


def test_every_answer_of_a_squad_question_is_kept_with_its_place() -> None:
    found = read("squad", OFFICIAL / "squad")
    context = (
        "The Løgstør canal was dug from 1856 to 1861. It is 4.4 km long, and was closed in 1913; "
        'the "Frederik VII" canal is its other name.'
    )
    assert found.train.examples == (
        SpanExample("5733be284776f41900661182", "How long is the canal?", context, (("4.4 km", 51),)),
        SpanExample(
            "5733be284776f4190066117f", "What is its other name?", context, (('the "Frederik VII" canal', 88),)
        ),
        SpanExample(
            "5733be284776f41900661180", "How many feet has a fathom?", "A fathom has six feet.", (("six", 13),)
        ),
    )
    assert found.validations[0].examples == (
        SpanExample(
            "56be4db0acb8001400a502ec",
            "When was it dug?",
            context,
            (("from 1856 to 1861", 26), ("1856 to 1861", 31), ("1856 to 1861", 31)),
        ),
        SpanExample("56be4db0acb8001400a502ed", "When was it closed?", context, (("1913", 82), ("in 1913", 79))),
    )
    assert found.tests == ()
    assert found.notes == ()


def test_squad_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    for name in ("train-v1.1.json", "dev-v1.1.json"):
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + (OFFICIAL / "squad" / name).read_bytes())
    assert read("squad", tmp_path) == read("squad", OFFICIAL / "squad")


def test_classes_that_files_number_have_the_names_that_people_know() -> None:
    names = {name: task.label_names for name, task in TASKS.items() if task.label_names != task.labels}
    assert names == {
        "cola": ("unacceptable", "acceptable"),
        "sst-2": ("negative", "positive"),
        "mrpc": ("not_equivalent", "equivalent"),
        "qqp": ("not_duplicate", "duplicate"),
        "wnli": ("not_entailment", "entailment"),
    }
    assert TASKS["mnli"].label_names == ("contradiction", "entailment", "neutral")
    assert TASKS["classification"].with_labels(("1", "0")).label_names == ("1", "0"), "one's own stay"
