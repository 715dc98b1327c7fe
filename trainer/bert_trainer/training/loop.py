"""The training loop: ranks, set-up, stages in order, report. Reads top to bottom.

Nothing here knows Horovod, HDF5 or files; ``parallel``, ``training.data_loader`` and ``training.run_writer`` do.
All ranks run the same lines, so collectives match up; what rank 0 alone writes goes through ``RunWriter``, which does
nothing on the others. Of a step: ``pretrain`` takes it (``train_step``), ``SaveTimes`` decides about a checkpoint, and
``RunWriter.save`` writes it.
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Collection, Sequence
from functools import partial

from torch import Tensor

from bert_trainer.config.finetuning import FinetuneStage
from bert_trainer.config.run_config import RunConfig
from bert_trainer.config.stages import EvaluateStage, ExportStage, PrepareStage, PretrainStage, Stage
from bert_trainer.errors import Stopped, TrainerError
from bert_trainer.model.batch import Batch
from bert_trainer.model.bert import Bert
from bert_trainer.optim.optimizer import StepResult
from bert_trainer.optim.schedule import learning_rate
from bert_trainer.output.termination import report_error
from bert_trainer.parallel.connection import connect
from bert_trainer.parallel.world import World
from bert_trainer.system.atomic_files import storage_errors
from bert_trainer.system.heartbeat import watched
from bert_trainer.training.data_loader import StageReader, num_micro_batches
from bert_trainer.training.device import Compute
from bert_trainer.training.evaluate_stage import evaluate_and_report
from bert_trainer.training.evaluation import Accuracy, evaluate
from bert_trainer.training.findings import RolledBack, act_on
from bert_trainer.training.finetuning.data import check_data
from bert_trainer.training.finetuning.run import finetune
from bert_trainer.training.health import Health
from bert_trainer.training.interval import Interval
from bert_trainer.training.learner import Learner, take_step
from bert_trainer.training.micro_batch_size import choose_micro_batch_sizes
from bert_trainer.training.micro_batch_trials import Trials
from bert_trainer.training.model_export import export_and_report
from bert_trainer.training.out_of_memory import device_memory_errors
from bert_trainer.training.preflight import check_before_training
from bert_trainer.training.profiling import Profiler
from bert_trainer.training.run_data import StageData
from bert_trainer.training.run_writer import RunWriter
from bert_trainer.training.save_times import SaveTimes
from bert_trainer.training.session import Session
from bert_trainer.training.stage_evaluation import StageEvaluations
from bert_trainer.training.stage_progress import StageProgress, start_or_resume
from bert_trainer.training.stop_signal import StopSignal
from bert_trainer.training.unreadable_shards import read_step, settle


def train(config: RunConfig, *, attempt: int) -> None:
    """Run every stage that the latest valid checkpoint has not finished.

    Raises:
        Stopped: on request, at the same step on every rank, with a checkpoint of that step.
        TrainerError: whatever else ends the run.
    """
    stop = StopSignal()
    with watched().activity("joining the other ranks"), watched().waiting():
        world = connect(config.world.ranks, config.world.hosts, config.collectives, may_use_gpus=config.device != "cpu")
    try:
        with (
            storage_errors(lambda: False),
            device_memory_errors(config, doing="setting up", rank=world.rank),
            watched().activity("setting up"),
        ):
            session = Session.open(config, world, attempt=attempt)
            device_line = session.learner.model.backend.describe(world.rank, config.precision)
        sys.stderr.write(device_line + "\n")
        sys.stderr.flush()
        run_stages(session, stop)
    except TrainerError as error:
        # Before the other ranks can notice, as in on_rank_0: once one rank has left, mpirun kills the rest, this one
        # included, and the reason would be lost.
        report_error("bert-train", error)
        raise
    finally:
        world.close()


def run_stages(session: Session, stop: StopSignal) -> None:
    """Run what is left of the configuration's stages, in order, and report."""
    config, world, writer = session.config, session.world, session.writer
    first = session.first_stage
    try:
        with storage_errors(lambda: writer.has_trained), contextlib.closing(session):
            check_data(config.stages, writer, resumed_at=None if session.resumed_from is None else first)
            trains = any(isinstance(stage, PretrainStage | FinetuneStage) for stage in config.stages[first:])
            if trains:
                check_before_training(session.data, session.learner, session.compute.device, world, writer)
            trials = Trials(config, session.learner, session.compute, world.size, world.num_hosts)
            session.micro_batch_sizes.update(
                choose_micro_batch_sizes(config.stages, trials, world, writer, first_stage=first)
            )
            finished = False
            while not finished:
                try:
                    for index in range(session.first_stage, len(config.stages)):
                        run_stage(session, index, config.stages[index], stop)
                    finished = True
                except RolledBack as back:
                    session = session.rolled_back(back)
            with watched().activity("writing the report"):
                writer.finish()
    except TrainerError as error:
        if not isinstance(error, Stopped):
            writer.fail(error)
        raise


def run_stage(session: Session, index: int, stage: Stage, stop: StopSignal) -> None:
    """Run one stage, from its start or from where the checkpoint left it."""
    size = session.micro_batch_sizes.get(index)
    with device_memory_errors(session.config, doing=stage.name, rank=session.world.rank, micro_batch_size=size):
        match stage:
            case PrepareStage():
                pass  # bert-data prepares data, in a process of its own before this one
            case PretrainStage():
                pretrain(session, index, stage, stop)
            case FinetuneStage():
                finetune(session, index, stage, stop)
            case EvaluateStage():
                _evaluate_stage(session, index, stage, when="after")
            case ExportStage():
                with watched().activity(stage.name):
                    export_and_report(index, session.config, session.data, session.learner.model, session.writer)


def pretrain(session: Session, index: int, stage: PretrainStage, stop: StopSignal) -> None:
    """Train one phase, from its start or from where the checkpoint left it."""
    config, world, learner = session.config, session.world, session.learner
    data, writer, profiler = session.data.training[index], session.writer, session.profiler
    size = session.micro_batch_sizes[index]
    resumed_from = session.resumed_in(index)
    progress = start_or_resume(learner.optimizer, index, stage, data, resumed_from.position if resumed_from else None)
    if progress is None:
        return
    evaluations = _open_evaluations(session, index, stage)
    writer.event("stage_started", stage=stage.name, kind=stage.kind, steps=data.total_steps)
    if progress.step == 0 and index == min(session.data.training):
        _evaluate_before(session)

    # From here on there is something to save.
    stop.listen()
    started_at_s = time.monotonic()
    saves = _save_times(session, stage, data)
    passes = num_micro_batches(stage.global_batch_size, size, world.size)
    interval = Interval(learner, world, writer, session.hosts, micro_batch_size=size)
    health, left_out = session.health_in(index), session.left_out_in(index)
    with (
        _open_reader(progress, size, learner.model, world, left_out) as reader,
        watched().stage(stage.name),
    ):
        at_end = is_overdue = False
        while not at_end:
            profiler.start_step(stage.name, progress.step + 1)
            samples_before, why_left_out = progress.samples, left_out.get(progress.step + 1)
            result, in_time = None, False
            if why_left_out is None:
                result, in_time = _next_step(progress, session, reader, interval, health, stop, saves, passes=passes)
            watched().step()
            progress.advance(writer, skipped=health.why_skipped if result else None, left_out=why_left_out)
            writer.has_trained = True
            interval.set_data_wait(reader.waited_s)

            at_end = progress.step == data.total_steps
            is_reported = progress.step % config.logging.every_steps == 0 or at_end
            figures = {**health.figures(), **session.rollback_figures(index, progress.step)}
            if is_reported:
                interval.publish(progress, result, figures, evaluations_s=evaluations.remaining_s(progress.step))
            if evaluations.times.is_due(progress.step):
                with profiler.paused(), interval.paused(), watched().activity(f"the evaluation of {stage.name}"):
                    evaluations.run(progress.step)
                at_end = at_end or evaluations.target_met
                if at_end and not is_reported:
                    interval.publish(progress, result, figures)
            is_overdue |= saves.is_due(progress.step, samples_before, progress.samples, in_time=in_time)
            if at_end or is_overdue:
                # All of _agree's numbers: a library may add one in another place in another order.
                _settle_health(session, health, index, _agree(world, health)[-3:])
            # While the last losses were high, the next one may send the run back behind a checkpoint of now.
            if at_end or (is_overdue and not health.is_suspicious):
                with (
                    profiler.part("checkpoint"),
                    interval.stood_still.saving(),
                    watched().activity(f"a checkpoint of {stage.name}"),
                ):
                    writer.save(progress.position(learner, at_end=at_end), learner.gather_state(), health.state())
                saves.restart()
                is_overdue = False
            profiler.end_step()
            # Checkpoints are written in the background: a write that failed ends the run at the end of this step.
            writer.raise_if_failed()
    profiler.close()
    seconds = time.monotonic() - started_at_s
    writer.event("stage_finished", stage=stage.name, seconds=seconds, message=evaluations.outcome)


def _next_step(
    progress: StageProgress,
    session: Session,
    reader: StageReader,
    interval: Interval,
    health: Health,
    stop: StopSignal,
    saves: SaveTimes,
    *,
    passes: int,
) -> tuple[StepResult, bool]:
    """Take the step that the reader has next.

    Returns:
        What became of it, and whether the clock asks for a checkpoint.

    Raises:
        Stopped: on request, before the step.
        RolledBack, TrainingUnhealthy, RanksDisagree: what health says of the step before.
    """
    learner, writer, profiler = session.learner, session.writer, session.profiler
    batches, (masked_tokens, stops, in_time, *of_health) = _next_batches(session, progress, reader, health, stop, saves)
    _settle_health(session, health, progress.index, of_health)
    if stops:
        _save_and_stop(progress, learner, writer, health)
    result = train_step(
        progress,
        learner,
        session.compute,
        batches,
        interval,
        profiler,
        seed=session.config.seed,
        masked_tokens=masked_tokens,
        passes=passes,
        largest_norm=health.largest_norm,
    )
    health.judge_step(progress.step + 1, result, learner.scaler)
    interval.add_busiest_rank(reader.most_tokens)
    return result, bool(in_time)


def _settle_health(session: Session, health: Health, index: int, summed: Sequence[float]) -> None:
    for finding in health.settle(summed, session.world.size):
        act_on(finding, index, session.writer.event, session.learner.scaler)


def _next_batches(
    session: Session, progress: StageProgress, reader: StageReader, health: Health, stop: StopSignal, saves: SaveTimes
) -> tuple[list[Batch], list[float]]:
    """Return this rank's micro-batches of the next step, and what all ranks have agreed on before it.

    As ``_agree`` returns it, without troubles: those are settled here.
    """
    world, profiler, skips = session.world, session.profiler, session.config.dataset.on_unreadable_shard == "Skip"
    while True:
        with profiler.part("data"), session.learner.own_work.on_host():
            read, error = read_step(reader)
            batches = [batch.to(session.compute.device) for batch in read]
        with profiler.part("reduction"):
            masked_tokens, stops, in_time, troubles, *of_health = _agree(
                world, health, batches, stopped=stop.received, in_time=saves.interval_is_over(), error=error
            )
        if not troubles:
            return batches, [masked_tokens, stops, in_time, *of_health]
        settle(error, reader, progress, world, session.writer, skips=skips)


def _agree(
    world: World,
    health: Health,
    batches: Sequence[Batch] = (),
    *,
    stopped: bool = False,
    in_time: bool = False,
    error: TrainerError | None = None,
) -> list[float]:
    """Return what all ranks have to know before a forward pass, by one all-reduce of seven numbers.

    Returns:
        The masked tokens that the loss is divided by; how many ranks were asked to stop, so that all of them leave at
        the same step; whether rank 0's clock asks for a checkpoint, since collecting ZeRO-1's moments for one is
        collective; how many ranks could not read the step; and three that ``Health.settle`` takes.
    """
    masked = sum(batch.num_masked for batch in batches)
    return world.sum_numbers([masked, stopped, in_time, error is not None, *health.own_numbers])


def _open_evaluations(session: Session, index: int, stage: PretrainStage) -> StageEvaluations:
    def measure() -> Accuracy:
        with session.compute.autocast():
            model, data = session.learner.model, session.data.evaluation[index]
            return evaluate(model, data, session.world, session.compute.device)

    return StageEvaluations.open(stage, session.data.training[index], measure, session.writer)


def _save_times(session: Session, stage: PretrainStage, data: StageData) -> SaveTimes:
    times = stage.checkpoint or session.config.checkpoint
    return SaveTimes(times, session.world.rank, min_samples=times.min_samples_to_start - data.samples_before)


def _open_reader(
    progress: StageProgress, micro_batch_size: int, model: Bert, world: World, left_out: Collection[int]
) -> StageReader:
    # What the stage goes on with: its checkpoint may leave out shards.
    stage, data = progress.stage, progress.data
    return StageReader(
        data.folder,
        data.order,
        global_batch_size=stage.global_batch_size,
        micro_batch_size=micro_batch_size,
        rank=world.rank,
        world_size=world.size,
        first_step=progress.step,
        last_step=data.total_steps,
        masking=data.masking,
        # A mean of micro-batch means depends on which rows share a micro-batch: keep the original scripts' split.
        balanced=stage.loss_normalization == "global",
        staged=partial(
            model.backend.stage_batch, sequence_length=stage.sequence_length, micro_batch_size=micro_batch_size
        ),
        left_out=[step - 1 for step in left_out],
    )


def train_step(
    progress: StageProgress,
    learner: Learner[Bert],
    compute: Compute,
    batches: Sequence[Batch],
    interval: Interval,
    profiler: Profiler,
    *,
    seed: int,
    masked_tokens: float,
    passes: int,
    largest_norm: float = math.inf,
) -> StepResult:
    """Accumulate gradients over micro-batches, reduce them once, update.

    Args:
        progress: Of the stage, before this step.
        learner: What is trained.
        compute: How precisely.
        batches: This rank's micro-batches, on the device.
        interval: Collects the losses without waiting for the device.
        profiler: Times the parts.
        seed: Of dropout.
        masked_tokens: Masked tokens of the whole step, over all ranks.
        passes: Micro-batches of the whole step, over all ranks.
        largest_norm: Gradients of a larger one are not applied.
    """
    stage = progress.stage

    def loss_of(batch: Batch) -> Tensor:
        # Dropout is a function of seed, stage, step and sample number, so that a resumed run, or another number of
        # ranks, drops the same elements. The stage's index in the high bits keeps phases apart.
        dropout = batch.dropout_keys(seed, (progress.index << 32) + progress.step)
        with compute.autocast():
            sums = learner.model(batch, dropout)
        interval.add(batch, sums)
        # Ranks add their gradients: so the loss is divided by counts of the whole step, and a step without any masked
        # token divides by 1.
        if stage.loss_normalization == "global":
            loss = sums.masked_lm / max(masked_tokens, 1) + sums.next_sentence / stage.global_batch_size
        else:
            loss = (sums.masked_lm / max(batch.num_masked, 1) + sums.next_sentence / batch.num_rows) / passes
        return loss  # type: ignore[no-any-return]

    # The schedule counts applied updates: a step that fp16 overflow skips does not advance it.
    rate = learning_rate(stage.schedule, learner.optimizer.num_applied, progress.data.total_steps)
    result, times = take_step(learner, batches, loss_of, rate, profiler, largest_norm=largest_norm)
    interval.add_reduction(times)
    interval.learning_rate = rate
    return result


def _evaluate_before(session: Session) -> None:
    """Evaluate the model that training begins with, for every evaluate stage."""
    for number, stage in enumerate(session.config.stages):
        if isinstance(stage, EvaluateStage):
            _evaluate_stage(session, number, stage, when="before")


def _evaluate_stage(session: Session, index: int, stage: EvaluateStage, *, when: str) -> None:
    with watched().activity(stage.name):
        evaluate_and_report(
            index,
            stage,
            session.data,
            session.learner.model,
            compute=session.compute,
            world=session.world,
            writer=session.writer,
            when=when,
        )


def _save_and_stop(progress: StageProgress, learner: Learner[Bert], writer: RunWriter, health: Health) -> None:
    """Save, and leave on every rank only when the checkpoint is in place."""
    # On all ranks, before rank 0 goes its own way: with ZeRO-1 it is collective.
    with watched().activity(f"a checkpoint of {progress.stage.name}"):
        state = learner.gather_state()
        position = progress.position(learner)

        def save() -> None:
            writer.save(position, state, health.state())
            writer.leave(position)

        writer.on_rank_0(save)
