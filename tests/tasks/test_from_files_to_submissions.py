"""A model that is certain of every label scores 1 on every official task, and its predictions are the labels."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from bert_job.run_stages import TaskData
from bert_job.tasks import TaskName
from bert_trainer.dataset.tokens.wordpiece import Vocabulary, read_vocabulary, train_vocabulary
from bert_trainer.tasks.catalog import Task
from bert_trainer.tasks.examples import SpanExample, Split, TextExample
from bert_trainer.tasks.reading import read_examples
from bert_trainer.tasks.rows import TaskRows, make_rows
from bert_trainer.tasks.scoring import majority_scores, predict, score
from bert_trainer.tasks.submissions import write_predictions
from small_tasks import finetune_stage

OFFICIAL = Path(__file__).parents[1] / "fixtures/tasks"


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    files = [path for path in sorted(OFFICIAL.rglob("*.*")) if path.is_file()]
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    lines = [line for file in files for line in file.read_text(errors="replace").splitlines()]
    path.write_bytes(train_vocabulary(lines, size=900, lower_case=True))
    return read_vocabulary(path)


def certain_outputs(rows: TaskRows, task: Task) -> NDArray[np.float32]:
    if task.kind == "regression":
        return rows.targets.reshape(-1, 1)
    if task.kind == "classification":
        return np.eye(task.num_outputs, dtype=np.float32)[rows.targets] * 9
    outputs = np.zeros((len(rows.samples.tokens), 2), dtype=np.float32)
    for start, (first, last) in zip(rows.samples.token_starts, rows.targets.tolist(), strict=True):
        outputs[start + first, 0] = outputs[start + last, 1] = 9
    return outputs


def constant(split: Split) -> bool:
    return len({example.label for example in split.examples if isinstance(example, TextExample)}) == 1


@pytest.mark.parametrize("task", ["cola", "sst-2", "mrpc", "sts-b", "qqp", "mnli", "qnli", "rte", "wnli", "squad"])
def test_labels_score_1_and_are_what_is_submitted(task: TaskName, vocabulary: Vocabulary, tmp_path: Path) -> None:
    examples = read_examples(task, TaskData(folder=str(OFFICIAL if task == "squad" else OFFICIAL / "glue")))
    stage = finetune_stage(task=task, sequence_length=40, max_query_length=16, doc_stride=8)
    for split in (examples.train, *examples.validations):
        rows = make_rows(split, examples.task, stage, vocabulary, lower_case=True)
        predictions = predict(rows, split, examples.task, certain_outputs(rows, examples.task), stage)
        found = score(predictions, split, examples.task)
        assert tuple(found) == examples.task.metrics
        baseline = majority_scores(examples, split)
        assert tuple(baseline) == examples.task.metrics
        if not constant(split):
            assert found == dict.fromkeys(found, pytest.approx(1))
            assert all(baseline[name] < 1 for name in baseline)
        path = write_predictions(predictions, split, examples.task, tmp_path)
        submitted = path.read_text(encoding="utf-8")
        if task == "squad":
            right = {
                example.id: example.answers[0][0] for example in split.examples if isinstance(example, SpanExample)
            }
            assert json.loads(submitted) == right
        elif task != "sts-b":
            assert submitted.splitlines() == [
                "index\tprediction",
                *(
                    f"{example.id}\t{examples.task.labels[int(example.label or 0)]}"
                    for example in split.examples
                    if isinstance(example, TextExample)
                ),
            ]
    for split in examples.tests:
        rows = make_rows(split, examples.task, stage, vocabulary, lower_case=True)
        outputs = np.ones((len(rows), examples.task.num_outputs), dtype=np.float32)
        path = write_predictions(
            predict(rows, split, examples.task, outputs, stage), split, examples.task, tmp_path / "test"
        )
        assert len(path.read_text().splitlines()) == 1 + len(split.examples)
    expected = {"mnli": ["MNLI-m.tsv", "MNLI-mm.tsv"], "squad": []}
    files = sorted(path.name for path in (tmp_path / "test").glob("*"))
    assert files == expected.get(task, [path.name.replace("-train", "") for path in tmp_path.glob("*-train.tsv")])
