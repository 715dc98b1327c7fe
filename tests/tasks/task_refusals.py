"""Folders and tables of tasks that are no good, and what is said of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from bert_job.finetuning import TableColumnsSpec
from bert_job.run_stages import TaskData
from bert_job.tasks import TaskName
from bert_trainer.errors import InputError
from bert_trainer.tasks.reading import read_examples

OFFICIAL = Path(__file__).parents[1] / "fixtures/tasks"
TEXT = TableColumnsSpec(text="text", label="label")
TABLE = b"text\tlabel\none\tx\ntwo\ty\n"


def refusal(task: TaskName, folder: Path) -> str:
    """Return what is said of a folder of official files, without its path."""
    with pytest.raises(InputError) as caught:
        read_examples(task, TaskData(folder=str(folder)))
    return str(caught.value).replace(f"{folder}/", "")


def table_refusal(
    folder: Path,
    content: bytes,
    *,
    validation: bytes = TABLE,
    columns: TableColumnsSpec = TEXT,
    task: TaskName = "classification",
    suffix: str = ".tsv",
    **data: Any,
) -> str:
    """Return what is said of a table to train on, without its path."""
    (folder / f"train{suffix}").write_bytes(content)
    (folder / f"validation{suffix}").write_bytes(validation)
    paths = {"train": str(folder / f"train{suffix}"), "validation": str(folder / f"validation{suffix}")}
    with pytest.raises(InputError) as caught:
        read_examples(task, TaskData(**(paths | data), columns=columns))
    return str(caught.value).replace(f"{folder}/", "")


def glue(folder: Path, task: str, **files: str) -> Path:
    """Copy a task's files, with others in place of some: train_tsv="..."."""
    shutil.copytree(OFFICIAL / "glue" / task, folder, dirs_exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("_", ".")).write_text(content)
    return folder


def squad(folder: Path, document: object) -> Path:
    """Copy SQuAD's files, with a document, or a text, in place of the one to train on."""
    shutil.copytree(OFFICIAL / "squad", folder, dirs_exist_ok=True)
    text = document if isinstance(document, str) else json.dumps(document)
    (folder / "train-v1.1.json").write_text(text)
    return folder


def one_question(**question: object) -> dict[str, Any]:
    """Return a document of SQuAD with one question, changed in some fields."""
    entry = {"id": "a", "question": "Who?", "answers": [{"text": "Ann", "answer_start": 0}], **question}
    return {"version": "1.1", "data": [{"title": "T", "paragraphs": [{"context": "Ann met Eve.", "qas": [entry]}]}]}
