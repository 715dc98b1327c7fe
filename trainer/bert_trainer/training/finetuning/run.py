"""A finetune stage: its runs one after the other, from the start or from where a checkpoint left them.

All ranks run the same lines, so collectives match up. Without synchronised gradients every rank trains a model of its
own, step by step beside the others, and a rank whose run was stopped early waits for theirs.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from torch import Tensor

from bert_trainer.config.finetuning import FinetuneStage
from bert_trainer.config.optimization import Schedule
from bert_trainer.config.stages import PretrainStage
from bert_trainer.errors import TrainerError
from bert_trainer.optim.optimizer import StepResult
from bert_trainer.optim.schedule import learning_rate
from bert_trainer.parallel.reduction import ReductionTimes
from bert_trainer.parallel.world import on_rank_0
from bert_trainer.training.data_loader import SampleOrder
from bert_trainer.training.finetuning.beginning import check_beginning
from bert_trainer.training.finetuning.data import StageRows, StepReader, TaskBatch, open_data
from bert_trainer.training.finetuning.evaluations import Evaluations
from bert_trainer.training.finetuning.progress import RunInterval, RunProgress
from bert_trainer.training.finetuning.results import Run
from bert_trainer.training.finetuning.run_plan import RunPlan
from bert_trainer.training.finetuning.stage_end import end_stage, has_ended
from bert_trainer.training.finetuning.task_learner import TaskLearner, scaled_schedule
from bert_trainer.training.learner import not_finite, save_interval_is_over, take_step
from bert_trainer.training.session import Session
from bert_trainer.training.start_weights import are_needed, keep_start
from bert_trainer.training.stop_signal import StopSignal


@dataclass(slots=True)
class _StageState:
    """A stage while it runs, on one rank."""

    session: Session
    index: int
    stage: FinetuneStage
    schedule: Schedule
    """With the learning rate for the ranks that the stage began with."""
    data: StageRows
    plan: RunPlan
    learner: TaskLearner
    evaluations: Evaluations
    stop: StopSignal
    started_at_s: float
    saved_at_s: float


def finetune(session: Session, index: int, stage: FinetuneStage, stop: StopSignal) -> None:
    """Train, evaluate and report a stage, as far as earlier attempts have not. Collective.

    Raises:
        Stopped: on request, at the same step on every rank, with a checkpoint of that step.
        TrainerError: whatever else ends it.
    """
    output = Path(session.config.output_folder)
    if on_rank_0(session.world, lambda: has_ended(output, stage.name), has_trained=session.has_trained):
        return
    _keep_start(session, index)
    data, texts = open_data(session, index, stage)
    plan = RunPlan.of(stage, len(data.train))
    first_step = _first_step(session, index, stage, plan)
    learner = TaskLearner.open(session, stage, data.task)
    evaluations = Evaluations.open(session, stage, data, texts, plan, learner)
    has_begun = _is_resumed(session, index) or evaluations.have_found
    ranks = check_beginning(session, stage, texts.sha256 if texts else None, has_begun=has_begun)
    now_s = time.monotonic()
    schedule = scaled_schedule(stage, ranks)
    state = _StageState(session, index, stage, schedule, data, plan, learner, evaluations, stop, now_s, now_s)
    _report(session, "stage_started", stage=stage.name, kind=stage.kind, steps=plan.total_steps)
    if stage.learning_rate_scaling != "none":
        message = (
            f"Learning rate {schedule.learning_rate:g}: {stage.schedule.learning_rate:g} times the square root of "
            f"{ranks} rank(s)" + ("" if ranks == session.world.size else ", as many as began the stage")
        )
        _report(session, "learning_rate", stage=stage.name, message=message)
    while first_step < plan.total_steps:
        number, step = divmod(first_step, plan.steps_per_run)
        _train_run(state, number, step)
        first_step = (number + 1) * plan.steps_per_run
    session.profiler.close()
    end_stage(evaluations)
    _report(session, "stage_finished", stage=stage.name, seconds=time.monotonic() - now_s)


def _keep_start(session: Session, index: int) -> None:
    """Keep the pretrained weights once, and let go of what pretraining needs beside them."""
    stages, writer, source = session.config.stages, session.writer, session.config.initial_checkpoint
    is_first = not any(isinstance(stage, FinetuneStage) for stage in stages[:index])
    # A run that resumes in a finetune stage has read them from where they are kept.
    if writer is not None and is_first and not session.resumes_finetuning and are_needed(stages):
        trained = [stage.name for stage in stages[:index] if isinstance(stage, PretrainStage)]
        name = trained[-1] if trained else (source.path if source else "random weights")
        keep_start(writer.folder.path, session.parameters, name, writer.folder.check_fence)
    session.let_go_of_pretraining()


def _is_resumed(session: Session, index: int) -> bool:
    return session.resumed_at is not None and session.resumed_at.stage_index == index


def _first_step(session: Session, index: int, stage: FinetuneStage, plan: RunPlan) -> int:
    at = session.resumed_at
    if at is None or not _is_resumed(session, index):
        return 0
    if at.total_steps != plan.total_steps:
        raise TrainerError(
            f"{stage.name}: the checkpoint counts {at.total_steps} steps in this stage, now there are "
            f"{plan.total_steps}",
            hint="the task's files have changed; restore them or start over (output.ifExists: New)",
        )
    return at.step


def _train_run(state: _StageState, number: int, first_step: int) -> None:
    """Train one run, or what is left of it, on every rank at once."""
    session, learner, plan, evaluations = state.session, state.learner, state.plan, state.evaluations
    runs = evaluations.runs_of(number)
    own = runs[session.world.rank if learner.is_split_by_rank else 0]
    sample_hash = ""
    if first_step == 0:
        learner.start(own.seed)
    else:
        assert session.resumed_from is not None, "a run begins at 0 unless a checkpoint is in it"
        learner.load(session.resumed_from)
        sample_hash = session.resumed_from.position.sample_hash
    progress = RunProgress(state.index, own, first_step, sample_hash)
    reader = _open_reader(state, own)
    interval = RunInterval()
    state.stop.listen()  # from here on there is something to save
    is_over, at_end = evaluations.is_over(own, progress.stage_step(plan)), False
    while not at_end:
        session.profiler.start_step(state.stage.name, progress.stage_step(plan) + 1)
        save_is_due = session.writer is not None and save_interval_is_over(session.config.checkpoint, state.saved_at_s)
        with session.profiler.part("reduction"):
            stops, in_time = session.world.sum_numbers([state.stop.received, save_is_due])
        if stops:
            _save_and_stop(state, progress)
        result = _step(state, reader, progress, interval, is_over=is_over)
        progress.advance(session, reader)
        session.has_trained = True

        step, is_last = progress.stage_step(plan), progress.step == plan.steps_per_run
        is_reported = step % session.config.logging.every_steps == 0 or is_last
        if is_reported:
            _publish(state, progress, result, interval)
        at_end = is_last
        if plan.is_evaluated(progress.step):
            with session.profiler.paused(), interval.paused():
                evaluations.run(number, progress.step)
            is_over = evaluations.is_over(own, step)
            at_end = is_last or all(evaluations.is_over(run, step) for run in runs)
            if at_end and not is_reported:
                _publish(state, progress, result, interval)
        if at_end or _checkpoint_is_due(state, progress, in_time=bool(in_time)):
            with session.profiler.part("checkpoint"):
                learner.save(progress.position(learner, plan, at_end=at_end))
            state.saved_at_s = time.monotonic()
        session.profiler.end_step()
        # Checkpoints are written in the background: a write that failed ends the run at the end of this step.
        if session.writer is not None:
            session.writer.store.raise_if_failed()


def _open_reader(state: _StageState, run: Run) -> StepReader:
    size = state.stage.micro_batch_size
    return StepReader(
        state.data,
        state.plan,
        micro_batch_size=size,
        rank=state.learner.world.rank,
        num_ranks=state.learner.world.size,
        staged=partial(
            state.learner.model.backend.stage_batch,
            sequence_length=state.stage.sequence_length,
            micro_batch_size=size,
        ),
        order=SampleOrder((len(state.data.train),), run.seed),
    )


def _step(
    state: _StageState, reader: StepReader, progress: RunProgress, interval: RunInterval, *, is_over: bool
) -> StepResult | None:
    """Take one step, on a rank whose run is not over. Collective.

    Raises:
        TrainerError: the gradients are not finite, on this rank or on another one that trains its own model.
    """
    session, learner, plan = state.session, state.learner, state.plan
    result: StepResult | None = None
    error: TrainerError | None = None
    if is_over:
        interval.add_step(0, ReductionTimes(0, 0.0, 0.0))
    else:
        with session.profiler.part("data"):
            batches: Sequence[TaskBatch] = [it.to(session.device) for it in reader.read(progress.step)]
        rate = learning_rate(state.schedule, learner.optimizer.num_applied, plan.steps_per_run)
        start, stop = plan.rows_of(progress.step)
        # The stage's index in the high bits keeps the dropout of two stages apart.
        seed, dropout_step = progress.run.seed, (state.index << 32) + progress.step

        def loss_of(task_batch: TaskBatch) -> Tensor:
            batch = task_batch.batch
            with session.autocast():
                loss: Tensor = learner.model(batch, task_batch.targets, batch.dropout_keys(seed, dropout_step))
            interval.add(batch, loss)
            return loss / (stop - start)  # a mean over the rows of all ranks, whose gradients are added

        overlap = session.config.reduction.overlap
        result, times = take_step(learner, batches, loss_of, rate, overlap=overlap, profiler=session.profiler)
        interval.add_step(reader.most_tokens, times)
        interval.learning_rate = rate
        error = not_finite(learner, state.stage.name, progress.stage_step(plan) + 1, result)
    if learner.is_split_by_rank:
        # The ranks learn of it together: one that went on alone would wait for the others for ever.
        failed = np.zeros(session.world.size)
        failed[session.world.rank] = error is not None
        by_rank = session.world.sum_numbers(failed.tolist())
        if any(by_rank) and error is None:
            error = TrainerError(
                f"{state.stage.name}: the gradients of step {progress.stage_step(plan) + 1} are not finite on rank "
                f"{by_rank.index(1)}",
                hint="lower the learning rate or lengthen the warm-up; with fp16, use bf16 or fp32",
            )
    if error is not None:
        raise error
    return result


def _publish(state: _StageState, progress: RunProgress, result: StepResult | None, interval: RunInterval) -> None:
    left = state.plan.evaluations_left(progress.stage_step(state.plan))
    interval.publish(
        state.learner,
        progress,
        state.plan,
        result,
        started_at_s=state.started_at_s,
        evaluations_s=left * state.evaluations.last_s,
    )


def _checkpoint_is_due(state: _StageState, progress: RunProgress, *, in_time: bool) -> bool:
    """Return whether a periodic checkpoint is due. in_time: rank 0's clock says so."""
    # min_samples_to_start counts the samples of pretraining, which are behind.
    times, step = state.session.config.checkpoint, progress.stage_step(state.plan)
    if not times.periodic:
        return False
    by_steps = times.every_steps is not None and step % times.every_steps == 0
    before, after = (state.plan.rows_before(steps) for steps in (progress.step - 1, progress.step))
    by_samples = times.every_samples is not None and before // times.every_samples < after // times.every_samples
    return by_steps or by_samples or in_time


def _save_and_stop(state: _StageState, progress: RunProgress) -> None:
    """Save, and leave on every rank only when the checkpoint is in place."""
    position = progress.position(state.learner, state.plan)
    # Between two runs the end of the one before is on disk, and the next one starts afresh.
    if progress.step or not progress.run.number:
        state.learner.save(position)

    def leave() -> None:
        writer = state.session.writer
        assert writer is not None, "runs on rank 0"
        writer.leave(position)

    on_rank_0(state.session.world, leave, has_trained=state.session.has_trained)


def _report(session: Session, event: str, **fields: str | int | float | None) -> None:
    if session.writer is not None:
        session.writer.metrics.event(event, **fields)
