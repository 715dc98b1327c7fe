"""A fine-tuned model from a Hugging Face folder: of a run's export, or as ``save_pretrained`` of transformers wrote it.

``...ForSequenceClassification`` with one label per text or with a number, and ``...ForQuestionAnswering``; what
``huggingface_export`` writes, and every tensor of it is accounted for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bert_job.foreign_text import one_line, printable
from bert_job.run_config import ModelConfig
from bert_job.tasks import Kind
from bert_trainer.checkpoints.description import Described, find_description, read_vocabulary_of
from bert_trainer.checkpoints.huggingface_export import CLASS_PREFIXES
from bert_trainer.checkpoints.huggingface_import import read_model_folder
from bert_trainer.checkpoints.weight_matching import MatchedWeights, Source, copy_tensors, match_weights
from bert_trainer.config.json_files import read_json_file
from bert_trainer.dataset.tokens.wordpiece import Vocabulary, find_vocabulary_file
from bert_trainer.errors import InputError
from bert_trainer.model.task_model import Head, Pooling, TaskModel
from bert_trainer.tasks.catalog import TASKS, Task
from bert_trainer.tasks.tables import MAX_CLASSES

_CLASSES = {
    f"{family}For{what}": what for family in CLASS_PREFIXES for what in ("SequenceClassification", "QuestionAnswering")
}
_PROBLEMS: Mapping[object, Kind] = {"single_label_classification": "classification", "regression": "regression"}
_DROPOUTS = ("classifier_dropout", "seq_classif_dropout", "qa_dropout")


@dataclass(frozen=True, slots=True)
class FineTuned:
    """A model with what is needed to give it text."""

    model: TaskModel
    """On the CPU, with the folder's weights."""
    task: Task
    """``classification`` with its classes, ``regression`` or ``spans``."""
    vocabulary: Vocabulary
    described: Described
    source: Source
    fitted: MatchedWeights


def is_fine_tuned(folder: Path) -> bool:
    """Return whether a folder's ``config.json`` says that a task's head is there which is known here."""
    file = folder / "config.json"
    return file.is_file() and _class_of(read_json_file(file)) in _CLASSES


def read_fine_tuned(folder: Path, vocabulary_file: Path | None = None, model_file: Path | None = None) -> FineTuned:
    """Read a folder's model, vocabulary and classes.

    Args:
        folder: With ``config.json``, weights and the tokenizer's files.
        vocabulary_file: None: the folder's own.
        model_file: None: the folder's ``config.json``, which says in any case what the head is.

    Raises:
        InputError: there is no such model, its tensors do not fit, or its head is of another kind.
    """
    described = find_description(folder, "huggingface", vocabulary_file, model_file)
    vocabulary = read_vocabulary_of(described, folder)
    task, dropout = _read_head(folder / "config.json")
    pooling = _read_pooling(folder / "config.json", described.model)
    head = Head.of(task.kind, task.num_outputs, described.model, dropout, pooling)
    # Names and shapes are all that reading needs; memory is taken once the weights are known to fit.
    with torch.device("meta"):
        shapes = TaskModel(described.model, vocabulary.size, head)
    tensors, spell = read_model_folder(folder, shapes)
    source = Source(path=folder, tensors=tensors, spell=spell, vocabulary_file=find_vocabulary_file(folder))
    fitted = match_weights(source, shapes, vocabulary)
    if fitted.fresh:
        raise InputError(
            f"{printable(folder)}: got no {', '.join(map(spell, fitted.fresh))}; allowed: every tensor of a fine-tuned "
            "model",
            hint="save the whole model with save_pretrained",
        )
    model = TaskModel(described.model, vocabulary.size, head)
    with torch.no_grad():
        # Rows of padding stay zero.
        model.embeddings.tokens.weight.zero_()
        copy_tensors(fitted, dict(model.named_parameters()))
    return FineTuned(model, task, vocabulary, described, source, fitted)


def _class_of(settings: Mapping[str, Any]) -> object:
    named = settings.get("architectures")
    return named[0] if isinstance(named, list) and len(named) == 1 and isinstance(named[0], str) else None


def _read_head(file: Path) -> tuple[Task, float | None]:
    """Return the task of a fine-tuned model's configuration, and the dropout before its head; None: by default."""
    settings = read_json_file(file)
    what = _CLASSES.get(str(_class_of(settings)))
    if what is None:
        raise InputError(
            f"{printable(file)}: architectures: got {printable(repr(settings.get('architectures')))[:200]}; allowed: "
            f"one of {', '.join(_CLASSES)}",
            hint="name the folder of a fine-tuned model; one that is pretrained alone predicts nothing yet: "
            "bert-train finetune",
        )
    given = next((settings[key] for key in _DROPOUTS if settings.get(key) is not None), None)
    if given is not None and not (isinstance(given, int | float) and 0 <= given < 1):
        raise InputError(f"{printable(file)}: dropout before the head: got {given!r:.100}; allowed: 0 to below 1")
    dropout = None if given is None else float(given)
    if what == "QuestionAnswering":
        return TASKS["spans"], dropout
    labels = _read_labels(file, settings)
    problem = settings.get("problem_type")
    if problem is not None and not (isinstance(problem, str) and problem in _PROBLEMS):
        raise InputError(
            f"{printable(file)}: problem_type: got {problem!r:.100}; allowed: {', '.join(map(str, _PROBLEMS))}",
            hint="models with several labels for one text are not read",
        )
    # Where nothing is said, as transformers chooses the loss.
    kind = ("regression" if len(labels) == 1 else "classification") if problem is None else _PROBLEMS[problem]
    if (kind == "regression") != (len(labels) == 1):
        raise InputError(
            f"{printable(file)}: id2label: got {len(labels)} entries for problem_type {problem!r}; allowed: one for a "
            "number, two or more for classes",
            hint="save the model again with save_pretrained",
        )
    return (TASKS["regression"] if kind == "regression" else TASKS["classification"].with_labels(labels)), dropout


def _read_pooling(file: Path, model: ModelConfig) -> Pooling:
    """Return what stands for a row; what other architectures say of it, they do not do."""
    pooling = read_json_file(file).get("classifier_pooling", "cls") if model.architecture == "modernbert" else "cls"
    if pooling not in ("cls", "mean"):
        raise InputError(
            f"{printable(file)}: classifier_pooling: got {pooling!r:.100}; allowed: 'cls' or 'mean'",
            hint="save the model again with save_pretrained",
        )
    return "mean" if pooling == "mean" else "cls"


def _read_labels(file: Path, settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the classes by number; transformers' own names where the file has none, two of them."""
    named = settings.get("id2label", {"0": "LABEL_0", "1": "LABEL_1"})
    numbers = [str(number) for number in range(len(named))] if isinstance(named, dict) else []
    labels: Sequence[Any] = [named.get(number) for number in numbers]
    if not labels or len(labels) > MAX_CLASSES or not all(isinstance(label, str) and label for label in labels):
        raise InputError(
            f"{printable(file)}: id2label: got {printable(repr(named))[:200]}; allowed: a name for every number from 0 "
            f"on, at most {MAX_CLASSES:,}",
            hint="save the model again with save_pretrained",
        )
    if len(set(map(one_line, labels))) < len(labels):
        raise InputError(
            f"{printable(file)}: id2label: got one name for several numbers; allowed: a name of its own for each, on "
            "one line",
            hint="correct the names in the file: predictions could not be told apart",
        )
    return tuple(labels)
