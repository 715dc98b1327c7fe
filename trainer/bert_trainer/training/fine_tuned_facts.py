"""What the card of a fine-tuned model states: its stage, and what the stage's records say of it. Measures nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePath

from bert_job.foreign_text import printable
from bert_job.run_stages import FinetuneStage, PretrainStage, Stage
from bert_job.tasks import OWN_TABLES, SPAN_TASKS
from bert_job.weights import InitialCheckpointSpec
from bert_trainer.checkpoints.fine_tuned_card import Runs, Score, TaskFacts
from bert_trainer.checkpoints.model_card import Row
from bert_trainer.model.task_model import Head
from bert_trainer.output.metrics import Record, find_evaluations
from bert_trainer.tasks.catalog import TASKS
from bert_trainer.tasks.glue import has_pairs
from bert_trainer.training.finetuning.best import Best
from bert_trainer.training.finetuning.task_learner import scaled_schedule


def task_facts(
    stages: Sequence[Stage],
    stage: FinetuneStage,
    initial: InitialCheckpointSpec | None,
    head: Head,
    best: Best,
    records: Sequence[Record],
    ranks: int,
) -> TaskFacts:
    """Return a stage's facts. stages, initial, records: the run's; ranks: that it was trained on."""
    end: Record = next(find_evaluations(reversed(records), stage.name, "after"), {})
    return TaskFacts(
        name=stage.task,
        kind=head.kind,
        labels=TASKS[stage.task].with_labels(best.labels).label_names,
        data_name=_data_name(stage, stage.data.train),
        validation_name=_data_name(stage, stage.data.validation),
        is_pair=_is_pair(stage),
        started_from=_start(stages, stage, initial),
        settings=list(_settings(stage, head, ranks)),
        data=list(_data(best)),
        scores=[Score(name, value, best.majority.get(name)) for name, value in best.metrics.items()],
        runs=Runs(
            metric=best.metric,
            best_seed=best.seed,
            best_epoch=best.epoch,
            count=int(end.get("runs") or 1),
            mean=_number(end.get("mean")),
            deviation=_number(end.get("std")),
        ),
    )


def started_pretrained(stages: Sequence[Stage], stage: FinetuneStage) -> bool:
    """Return whether a stage began with what this run has pretrained."""
    before = stages[: list(stages).index(stage)]
    return stage.start_from == "pretrained" and any(isinstance(it, PretrainStage) for it in before)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _data_name(stage: FinetuneStage, file: str | None) -> str:
    """Return the official name of the data set, or that of one's own file."""
    if stage.task not in OWN_TABLES:
        return TASKS[stage.task].official_name
    # The last part of a path alone, since the rest is about somebody's volume.
    return PurePath(file or "").name or "unnamed data"


def _is_pair(stage: FinetuneStage) -> bool:
    if stage.task in SPAN_TASKS:
        return True
    return stage.data.columns.text_pair is not None if stage.task in OWN_TABLES else has_pairs(stage.task)


def _start(stages: Sequence[Stage], stage: FinetuneStage, start: InitialCheckpointSpec | None) -> str:
    if stage.start_from == "random":
        return "random weights"
    if started_pretrained(stages, stage):
        return "the pretraining below"
    if start is None:
        return "random weights"
    return f"{printable(PurePath(start.path).name) or 'unnamed weights'}, format {start.format}"


def _settings(stage: FinetuneStage, head: Head, ranks: int) -> Iterator[Row]:
    yield "tokens per row, at most", str(stage.sequence_length)
    if head.kind == "spans":
        yield "tokens between windows of a context", str(stage.doc_stride)
        yield "tokens of a question, at most", str(stage.max_query_length)
        yield "tokens of an answer, at most", str(stage.max_answer_length)
    alone = "" if stage.synchronize_gradients or ranks == 1 else f", on each of {ranks} ranks with a model of its own"
    yield "rows per step", f"{stage.global_batch_size:,}{alone}"
    yield "epochs, at most", f"{stage.epochs:g}"
    schedule, optimizer = scaled_schedule(stage, ranks), stage.optimizer
    yield "peak learning rate", f"{schedule.learning_rate:g}, {schedule.decay} decay"
    yield "optimizer", f"{optimizer.name}, weight decay {optimizer.weight_decay:g}"
    yield "dropout before the head", f"{head.dropout:g}"
    yield "seeds", ", ".join(map(str, stage.run_seeds))


def _data(best: Best) -> Iterator[Row]:
    yield "examples to train on", f"{best.train_examples:,} in {best.train_rows:,} rows"
    yield "examples evaluated on", f"{best.validation_examples:,}"
