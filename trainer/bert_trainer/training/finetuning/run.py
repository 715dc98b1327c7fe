"""A finetune stage: its runs one after the other, from the start or from where a checkpoint left them.

All ranks run the same lines, so collectives match up. Without synchronised gradients every rank trains a model of its
own, step by step beside the others, and a rank whose run was stopped early waits for theirs.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from bert_job.health import HealthSpec
from bert_job.run_stages import FinetuneStage, PretrainStage, Stage
from bert_job.weights import InitialCheckpointSpec
from bert_trainer.checkpoints.checkpoint import Checkpoint, Position
from bert_trainer.errors import TrainerError, TrainingUnhealthy
from bert_trainer.model.batch import Batch
from bert_trainer.model.bert import Bert
from bert_trainer.optim.optimizer import StepResult
from bert_trainer.optim.schedule import Schedule, learning_rate
from bert_trainer.parallel.reduction import ReductionTimes
from bert_trainer.system.heartbeat import watched
from bert_trainer.training.checkpoint_schedule import CheckpointSchedule
from bert_trainer.training.data_loader import SampleOrder
from bert_trainer.training.device import Compute
from bert_trainer.training.findings import apply_remedy
from bert_trainer.training.finetuning.data import StageRows, StepReader, open_data
from bert_trainer.training.finetuning.evaluations import Evaluations
from bert_trainer.training.finetuning.progress import RunInterval, RunProgress
from bert_trainer.training.finetuning.results import Run
from bert_trainer.training.finetuning.run_plan import RunPlan
from bert_trainer.training.finetuning.stage_end import end_stage, has_ended
from bert_trainer.training.finetuning.stage_start import check_stage_unchanged
from bert_trainer.training.finetuning.task_learner import TaskLearner, scaled_schedule
from bert_trainer.training.health import HINT, Health
from bert_trainer.training.interval import PausedTime
from bert_trainer.training.learner import Learner, take_step
from bert_trainer.training.letter_case import lower_case_of
from bert_trainer.training.profiling import Profiler
from bert_trainer.training.run_writer import RunWriter
from bert_trainer.training.session import Session
from bert_trainer.training.start_weights import needs_start_weights, save_start_weights
from bert_trainer.training.stop_signal import StopSignal


@dataclass(frozen=True, slots=True)
class _StageState:
    """A stage while it runs, on one rank."""

    index: int
    stage: FinetuneStage
    schedule: Schedule
    """With the learning rate for the ranks that the stage began with."""
    data: StageRows
    plan: RunPlan
    learner: TaskLearner
    evaluations: Evaluations
    resumed_from: Checkpoint | None
    """In this stage; None where it begins."""
    compute: Compute
    writer: RunWriter
    profiler: Profiler
    saves: CheckpointSchedule
    report_every_steps: int
    health: HealthSpec
    stop: StopSignal
    hosts: Sequence[str]
    """Of all ranks."""
    started_at_s: float
    paused_time: PausedTime


def finetune(session: Session, index: int, stage: FinetuneStage, stop: StopSignal) -> None:
    """Train, evaluate and report a stage, as far as earlier attempts have not. Collective.

    Raises:
        Stopped: on request, at the same step on every rank, with a checkpoint of that step.
        TrainerError: whatever else ends it.
    """
    config, world, compute, writer = session.config, session.world, session.compute, session.writer
    if writer.on_rank_0(lambda: has_ended(writer.folder.path, stage.name)):
        return
    pretrained, resumed_from = session.learner, session.resumed_in(index)
    # A run that resumes in a finetune stage has read the weights from where they are kept.
    if resumed_from is None and not any(isinstance(other, FinetuneStage) for other in config.stages[:index]):
        _keep_start(config.stages, index, config.initial_checkpoint, pretrained, writer)
    pretrained.free_training_buffers()
    data, texts = open_data(
        index,
        stage,
        session.data.vocabulary,
        lambda: lower_case_of(config.stages, config.initial_checkpoint, session.data),
        writer,
    )
    plan = RunPlan.of(stage, len(data.train))
    first_step = 0 if resumed_from is None else _resumed_step(stage, plan, resumed_from.position)
    learner = TaskLearner.open(
        stage, data.task, pretrained.model, compute=compute, reduction=config.reduction, all_ranks=world
    )
    evaluations = Evaluations.open(stage, data, texts, plan, learner, compute, writer)
    has_begun = resumed_from is not None or evaluations.have_found
    ranks = check_stage_unchanged(stage, texts.sha256 if texts else None, world, writer, has_begun=has_begun)
    schedule = scaled_schedule(stage, ranks)
    state = _StageState(
        index=index,
        stage=stage,
        schedule=schedule,
        data=data,
        plan=plan,
        learner=learner,
        evaluations=evaluations,
        resumed_from=resumed_from,
        compute=compute,
        writer=writer,
        profiler=session.profiler,
        # min_samples_to_start counts the samples of pretraining, which are behind.
        saves=CheckpointSchedule(config.checkpoint, world.rank),
        report_every_steps=config.logging.every_steps,
        health=session.health,
        stop=stop,
        hosts=session.hosts,
        started_at_s=time.monotonic(),
        paused_time=PausedTime(),
    )
    writer.event("stage_started", stage=stage.name, kind=stage.kind, steps=plan.total_steps)
    if stage.learning_rate_scaling != "none":
        message = (
            f"Learning rate {schedule.learning_rate:g}: {stage.learning_rate:g} times the square root of "
            f"{ranks} rank(s)" + ("" if ranks == world.size else ", as many as began the stage")
        )
        writer.event("learning_rate", stage=stage.name, message=message)
    while first_step < plan.total_steps:
        number, step = divmod(first_step, plan.steps_per_run)
        with watched().stage(stage.name):
            _train_run(state, number, step)
        first_step = (number + 1) * plan.steps_per_run
    session.profiler.close()
    with watched().activity(f"the end of {stage.name}"):
        end_stage(evaluations)
    writer.event("stage_finished", stage=stage.name, seconds=time.monotonic() - state.started_at_s)


def _keep_start(
    stages: Sequence[Stage],
    index: int,
    initial: InitialCheckpointSpec | None,
    pretrained: Learner[Bert],
    writer: RunWriter,
) -> None:
    """Keep the pretrained weights once, before the first finetune stage; rank 0 writes."""
    if needs_start_weights(stages):
        trained = [stage.name for stage in stages[:index] if isinstance(stage, PretrainStage)]
        source = trained[-1] if trained else (initial.path if initial else "random weights")
        folder = writer.folder
        writer.write(lambda: save_start_weights(folder.path, pretrained.parameters, source, folder.check_fence))


def _resumed_step(stage: FinetuneStage, plan: RunPlan, at: Position) -> int:
    if at.total_steps != plan.total_steps:
        raise TrainerError(
            f"{stage.name}: the checkpoint counts {at.total_steps} steps in this stage, now there are "
            f"{plan.total_steps}",
            hint="the task's files have changed; restore them or start over (output.ifExists: New)",
        )
    return at.step


def _train_run(state: _StageState, number: int, first_step: int) -> None:
    """Train one run, or what is left of it, on every rank at once."""
    learner, plan, evaluations, profiler, writer = (
        state.learner, state.plan, state.evaluations, state.profiler, state.writer
    )  # fmt: skip
    runs = evaluations.runs_of(number)
    own = runs[learner.all_ranks.rank if learner.is_split_by_rank else 0]
    sample_hash = ""
    health = _open_health(state)
    if first_step == 0:
        learner.start(own.seed)
    else:
        assert state.resumed_from is not None, "a run begins at 0 unless a checkpoint is in it"
        learner.load(state.resumed_from)
        sample_hash = state.resumed_from.position.sample_hash
        health.load(state.resumed_from.health)
    progress = RunProgress(state.index, state.stage.name, own, first_step, sample_hash)
    reader = _open_reader(state, own)
    interval = RunInterval(state.hosts, state.paused_time)
    state.stop.listen()  # from here on there is something to save
    is_over, at_end = evaluations.is_over(own, progress.stage_step(plan)), False
    while not at_end:
        profiler.start_step(state.stage.name, progress.stage_step(plan) + 1)
        with profiler.part("reduction"):
            stops, in_time = _agree(state, health, state.stop.received, state.saves.interval_is_over())
        if stops:
            _save_and_stop(state, progress, health)
        result = _step(state, reader, progress, interval, health, is_over=is_over)
        rows_before = plan.rows_before(progress.step)
        watched().step()
        progress.advance(writer, reader, skipped=health.why_skipped)
        writer.has_trained = True

        step, is_last = progress.stage_step(plan), progress.step == plan.steps_per_run
        is_reported = step % state.report_every_steps == 0 or is_last
        if is_reported:
            _publish(state, progress, result, interval, health)
        at_end = is_last
        if plan.is_evaluated(progress.step):
            with profiler.paused(), interval.paused(), watched().activity(f"the evaluation of {state.stage.name}"):
                evaluations.run(number, progress.step)
            is_over = evaluations.is_over(own, step)
            at_end = is_last or all(evaluations.is_over(run, step) for run in runs)
            if at_end and not is_reported:
                _publish(state, progress, result, interval, health)
        rows = plan.rows_before(progress.step)
        if at_end or state.saves.is_due(step, rows_before, rows, in_time=bool(in_time)):
            _agree(state, health)
            saving = state.paused_time.saving()
            with profiler.part("checkpoint"), saving, watched().activity(f"a checkpoint of {state.stage.name}"):
                writer.save(
                    progress.position(learner, plan, at_end=at_end),
                    learner.gather_state(),
                    _health_state(state, health),
                )
            state.saves.restart()
        profiler.end_step()
        # Checkpoints are written in the background: a write that failed ends the run at the end of this step.
        writer.raise_if_failed()


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
    state: _StageState,
    reader: StepReader,
    progress: RunProgress,
    interval: RunInterval,
    health: Health,
    *,
    is_over: bool,
) -> StepResult | None:
    """Take one step, on a rank whose run is not over. Collective.

    Raises:
        TrainingUnhealthy: what health says of the step, on this rank or on another one that trains its own model.
    """
    learner, plan, compute, world = state.learner, state.plan, state.compute, state.learner.all_ranks
    result: StepResult | None = None
    error: TrainingUnhealthy | None = None
    if is_over:
        interval.add_step(0, ReductionTimes(0, 0.0, 0.0))
    else:
        with state.profiler.part("data"), learner.compute_timer.on_host():
            batches: Sequence[Batch] = [it.to(compute.device) for it in reader.read(progress.step)]
        rate = learning_rate(state.schedule, learner.optimizer.num_applied, plan.steps_per_run)
        start, stop = plan.rows_of(progress.step)
        # The stage's index in the high bits keeps the dropout of two stages apart.
        seed, dropout_step = progress.run.seed, (state.index << 32) + progress.step

        def loss_of(batch: Batch) -> Tensor:
            with compute.autocast():
                loss: Tensor = learner.model(batch, batch.targets, batch.dropout_keys(seed, dropout_step))
            interval.add(loss, rows=batch.num_rows, tokens=batch.num_tokens)
            return loss / (stop - start)  # a mean over the rows of all ranks, whose gradients are added

        result, times = take_step(learner, batches, loss_of, rate, state.profiler, largest_norm=health.largest_norm)
        interval.add_step(reader.most_tokens, times)
        interval.learning_rate = rate
        finding = health.judge_step(progress.stage_step(plan) + 1, result, learner.scaler)
        try:
            # Ranks that train one model together act when they have agreed.
            apply_remedy(finding if learner.is_split_by_rank else None, state.writer.event, learner.scaler)
        except TrainingUnhealthy as raised:
            error = raised
    if learner.is_split_by_rank:
        # The ranks learn of it together: one that went on alone would wait for the others for ever.
        failed = np.zeros(world.size)
        failed[world.rank] = error is not None
        by_rank = world.sum_numbers(failed.tolist())
        if any(by_rank) and error is None:
            step = progress.stage_step(plan) + 1
            error = TrainingUnhealthy(
                f"{state.stage.name}: step {step} is unhealthy on rank {by_rank.index(1)}", hint=HINT
            )
    if error is not None:
        raise error
    return result


def _agree(state: _StageState, health: Health, stopped: bool = False, in_time: bool = False) -> list[float]:
    """Return how many ranks were asked to stop and whether rank 0's clock asks for a checkpoint. Collective.

    Raises:
        TrainingUnhealthy, RanksDisagree: what health says of the step before, where ranks train one model together.
    """
    learner = state.learner
    own = [0.0, 0.0, 0.0] if learner.is_split_by_rank else health.own_numbers
    stops, in_times, *of_health = learner.all_ranks.sum_numbers([stopped, in_time, *own])
    if not learner.is_split_by_rank:
        for finding in health.judge_last_step(of_health, learner.all_ranks.size):
            apply_remedy(finding, state.writer.event, learner.scaler)
    return [stops, in_times]


def _open_health(state: _StageState) -> Health:
    config = state.health
    if state.learner.is_split_by_rank:
        # Its median is in no checkpoint, which holds one rank's: a resumed run would judge otherwise.
        config = config.model_copy(update={"on_gradient_norm": "Report"})
    return Health(config, state.stage.name, finetuning=True)


def _health_state(state: _StageState, health: Health) -> dict[str, Any] | None:
    """Return what a checkpoint holds of a run's health: of models that ranks have of their own, nothing."""
    return None if state.learner.is_split_by_rank else health.state()


def _publish(
    state: _StageState, progress: RunProgress, result: StepResult | None, interval: RunInterval, health: Health
) -> None:
    left = state.plan.evaluations_left(progress.stage_step(state.plan))
    interval.publish(
        state.learner,
        progress,
        state.plan,
        result,
        state.writer,
        health.figures(),
        started_at_s=state.started_at_s,
        evaluations_s=left * state.evaluations.last_s,
    )


def _save_and_stop(state: _StageState, progress: RunProgress, health: Health) -> None:
    """Save, and leave on every rank only when the checkpoint is in place."""
    position = progress.position(state.learner, state.plan)
    # Between two runs the end of the one before is on disk, and the next one starts afresh.
    if progress.step or not progress.run.number:
        state.writer.save(position, state.learner.gather_state(), _health_state(state, health))
    state.writer.on_rank_0(lambda: state.writer.leave(position))
