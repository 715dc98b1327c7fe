"""A finetune stage of the run configuration, with every default resolved. Pure."""

from __future__ import annotations

from bert_operator.api.schema.bert_pretrain_job import JobSpec
from bert_operator.api.schema.finetuning import FinetuneSpec, TaskDataSpec, resolve_length
from bert_operator.render.run_values import Document, Place, default_micro_batch_size, render_optimizer, set_fields

_PATHS = ("folder", "train", "validation", "test")


def render_finetune(finetune: FinetuneSpec, spec: JobSpec, place: Place) -> Document:
    """Return the body of a finetune stage.

    Args:
        finetune: The stage.
        spec: The job's.
        place: Resolves relative data paths.
    """
    length = resolve_length(finetune)
    # Numbers alone that do not depend on the ranks, as in a pretrain stage: a job may resume with other ranks.
    micro_batch_size = min(default_micro_batch_size(length), finetune.global_batch_size)
    # A model of its own on every rank has nobody to share its optimizer's state with.
    partitioning = spec.optimizer.partitioning if finetune.synchronize_gradients else "none"
    return {
        "kind": "finetune",
        "task": finetune.task,
        "data": _data(finetune.data, place),
        "start_from": finetune.start_from,
        "sequence_length": length,
        "doc_stride": finetune.doc_stride,
        "max_query_length": finetune.max_query_length,
        "max_answer_length": finetune.max_answer_length,
        "global_batch_size": finetune.global_batch_size,
        "micro_batch_size": finetune.micro_batch_size or micro_batch_size,
        "epochs": finetune.epochs,
        "schedule": {
            "learning_rate": finetune.learning_rate,
            "warmup": set_fields(finetune.warmup),
            "decay": finetune.decay,
            "after_warmup": finetune.after_warmup,
        },
        "learning_rate_scaling": finetune.learning_rate_scaling,
        "optimizer": {**render_optimizer(finetune.optimizer), "partitioning": partitioning},
        # Numbers in full: a frozen document says by itself which runs there are.
        "seeds": [spec.seed + number for number in range(finetune.seeds)],
        "synchronize_gradients": finetune.synchronize_gradients,
        "evaluate_every_epochs": finetune.evaluate_every_epochs,
        **_asked_for(finetune),
    }


def _data(data: TaskDataSpec, place: Place) -> Document:
    """Return the files; what the job leaves empty is empty for the trainer as well."""
    given = set_fields(data)
    if data.columns is not None:
        given["columns"] = set_fields(data.columns)
    return {name: place(value) if name in _PATHS else value for name, value in given.items()}


def _asked_for(finetune: FinetuneSpec) -> Document:
    stopping = finetune.early_stopping
    given = set_fields(finetune)
    return {
        **{
            name: given[name] for name in ("lower_case", "max_unknown_share", "head_dropout", "metric") if name in given
        },
        **({} if stopping is None else {"early_stopping": stopping.model_dump()}),
    }
