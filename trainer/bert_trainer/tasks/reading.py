"""Reading a task's examples from local files; nothing is downloaded, and no code of a file is executed."""

from __future__ import annotations

from pathlib import Path

from bert_job.run_stages import TaskData
from bert_job.tasks import OWN_TABLES, TaskName
from bert_trainer.errors import InputError
from bert_trainer.tasks.catalog import TASKS
from bert_trainer.tasks.examples import TaskExamples
from bert_trainer.tasks.glue import read_glue
from bert_trainer.tasks.squad import read_squad
from bert_trainer.tasks.tables import read_tables


def read_examples(task: TaskName, data: TaskData) -> TaskExamples:
    """Read everything that a task is trained, evaluated and tested on, into memory.

    Raises:
        InputError: a file is missing, or is not of its form; names the file, the line, what is allowed and what to do.
    """
    if task in OWN_TABLES:
        return read_tables(TASKS[task], data)
    if not data.folder:
        raise InputError(
            f"folder: not named; allowed for the task {task}: the folder with its official files",
            hint="for files of your own name the task classification, regression or spans",
        )
    folder = Path(data.folder)
    return read_squad(TASKS[task], folder) if task == "squad" else read_glue(TASKS[task], folder)
