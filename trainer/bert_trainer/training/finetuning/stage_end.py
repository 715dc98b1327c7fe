"""The end of a finetune stage: predictions by the best weights, results of every seed, one record of all that."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bert_trainer.checkpoints.weights_folder import restore_folder, swap_folder
from bert_trainer.output.metrics import find_evaluations, read_metrics
from bert_trainer.training.finetuning.best import Best, read_best, stage_folder
from bert_trainer.training.finetuning.data import TextSplit
from bert_trainer.training.finetuning.evaluations import Evaluations
from bert_trainer.training.finetuning.results import describe_value, run_documents, spread

RESULTS_FILE = "results.json"
PREDICTIONS_FOLDER = "predictions"


def end_stage(evaluations: Evaluations) -> None:
    """Write predictions and results, and report them. Collective; doing it again writes the same.

    Raises:
        TrainerError: the best weights are damaged, or the disk is.
    """
    stage, learner, writer = evaluations.stage, evaluations.learner, evaluations.writer
    kept: list[Best] = []

    def read() -> dict[str, Any]:
        tensors, best = read_best(writer.folder.path, stage)
        kept.append(best)
        return tensors

    # On rank 0 alone: tensors go to the others by a broadcast of their own.
    tensors: list[dict[str, Any]] = []
    writer.on_rank_0(lambda: tensors.append(read()))
    learner.load_values(tensors[0] if tensors else None)
    data = evaluations.data
    outputs = [evaluations.outputs(samples, alike=True) for samples in (*data.validations, *data.tests)]

    def write() -> None:
        texts = evaluations.texts
        assert texts is not None, "runs on rank 0"
        _write_predictions(evaluations, [*texts.validations, *texts.tests], outputs)
        _report(evaluations, kept[0])

    writer.on_rank_0(write)


def has_ended(output: Path, stage: str) -> bool:
    """Return whether the end of a stage was reported; on rank 0. output: the run's folder."""
    return any(find_evaluations(read_metrics(output), stage, "after"))


def _write_predictions(evaluations: Evaluations, parts: list[TextSplit], outputs: list[Any]) -> None:
    from bert_trainer.tasks.scoring import note_on_predictions, predict
    from bert_trainer.tasks.submissions import write_predictions

    stage, task, writer = evaluations.stage, evaluations.data.task, evaluations.writer
    notes: list[str | None] = []

    def fill(folder: Path) -> None:
        for number, (part, values) in enumerate(zip(parts, outputs, strict=True)):
            predictions = predict(part.rows, part.split, task, values.numpy(), stage)
            write_predictions(predictions, part.split, task, folder)
            if number < len(evaluations.data.validations):
                notes.append(note_on_predictions(predictions, part.split, task))

    target = stage_folder(writer.folder.path, stage) / PREDICTIONS_FOLDER
    restore_folder(target)
    swap_folder(target, fill, before_commit=writer.folder.check_fence)
    for note in filter(None, notes):
        writer.event("task_note", stage=stage.name, message=f"by the best weights, {note}")


def _report(evaluations: Evaluations, best: Best) -> None:
    stage, findings, majority, writer = (
        evaluations.stage,
        evaluations.findings,
        evaluations.majority,
        evaluations.writer,
    )
    runs = [run for number in range(evaluations.plan.num_runs) for run in evaluations.runs_of(number)]
    found = [findings.best_of(run) for run in runs]
    mean, std = spread(-math.inf if it is None else findings.value(it[1]) for it in found)
    is_split = evaluations.learner.is_split_by_rank
    results = {
        "stage": stage.name,
        "task": stage.task,
        "metric": best.metric,
        "best": {name: value for name, value in asdict(best).items() if name not in ("labels", "majority")},
        "majority": dict(majority),
        "mean": mean,
        "std": std,
        "runs": run_documents(findings, runs),
    }
    message = _describe(stage.name, best, mean, std, len(runs), majority.get(best.metric), is_split=is_split)
    writer.folder.write_json(stage_folder(writer.folder.path, stage) / RESULTS_FILE, results)
    writer.evaluated(
        stage=stage.name,
        when="after",
        task=stage.task,
        metric=best.metric,
        **best.metrics,
        **{f"majority_{name}": value for name, value in majority.items()},
        mean=mean,
        std=std,
        best_seed=best.seed,
        best_rank=best.rank if is_split else None,
        best_epoch=best.epoch,
        runs=len(runs),
        message=message,
    )


def _describe(
    stage: str, best: Best, mean: float | None, std: float | None, runs: int, majority: float | None, *, is_split: bool
) -> str:
    where = f"seed {best.seed}" + (f", rank {best.rank}" if is_split else "") + f", epoch {describe_value(best.epoch)}"
    parts = [f"{stage}: best {best.metric} {describe_value(best.value)} ({where})"]
    if mean is not None and std is not None:
        parts.append(f"mean {describe_value(mean)}, standard deviation {describe_value(std)} over {runs} runs")
    if majority is not None:
        parts.append(f"majority {describe_value(majority)}")
    return "; ".join(parts)
