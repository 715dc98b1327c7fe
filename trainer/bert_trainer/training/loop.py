"""The training loop: ranks, set-up, stages in order, report. Reads top to bottom.

Nothing here knows Horovod, HDF5 or files; ``parallel``, ``training.data_loader`` and ``training.run_writer`` do.
All ranks run the same lines, so collectives match up; what rank 0 alone writes goes through ``RunWriter``, which does
nothing on the others. Of a step: ``steps.Steps`` takes it, ``CheckpointSchedule`` decides about a checkpoint, and
``RunWriter.save`` writes it.
"""

from __future__ import annotations

import contextlib
import sys
import time
from functools import partial

from bert_job.run_config import CheckpointConfig, RunConfig
from bert_job.run_stages import (
    CheckpointTimes,
    EvaluateStage,
    ExportStage,
    FinetuneStage,
    PrepareStage,
    PretrainStage,
    Stage,
)
from bert_trainer.errors import InputError, Stopped, TrainerError
from bert_trainer.model.bert import Bert
from bert_trainer.output.run_folder import release_unused_claim
from bert_trainer.output.termination import report_error
from bert_trainer.parallel.connection import connect
from bert_trainer.parallel.world import World
from bert_trainer.system.atomic_files import storage_errors
from bert_trainer.system.heartbeat import watched
from bert_trainer.training.checkpoint_schedule import CheckpointSchedule
from bert_trainer.training.data_loader import StageReader, num_micro_batches
from bert_trainer.training.evaluate_stage import evaluate_and_report
from bert_trainer.training.evaluation import Accuracy, evaluate, unigram_baseline
from bert_trainer.training.finetuning.data import check_data
from bert_trainer.training.finetuning.run import finetune
from bert_trainer.training.interval import Interval
from bert_trainer.training.micro_batch_size import choose_micro_batch_sizes
from bert_trainer.training.micro_batch_trials import Trials
from bert_trainer.training.model_export import export_and_report
from bert_trainer.training.out_of_memory import device_memory_errors
from bert_trainer.training.preflight import check_before_training
from bert_trainer.training.run_data import StageData
from bert_trainer.training.session import Session
from bert_trainer.training.stage_evaluation import StageEvaluations
from bert_trainer.training.stage_progress import StageProgress, start_or_resume
from bert_trainer.training.steps import Steps
from bert_trainer.training.stop_signal import StopSignal
from bert_trainer.training.verdict import describe_verdict


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
        if isinstance(error, InputError):
            release_unused_claim(config, attempt=attempt)
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
                device = session.compute.device
                check_before_training(config, session.data, session.learner, device, world, writer, first_stage=first)
            trials = Trials(config, session.learner, session.compute, world.size, world.num_hosts)
            session.micro_batch_sizes.update(
                choose_micro_batch_sizes(config.stages, trials, world, writer, first_stage=first)
            )
            for index in range(first, len(config.stages)):
                run_stage(session, index, config.stages[index], stop)
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
    size, resumed_from = session.micro_batch_sizes[index], session.resumed_in(index)
    progress = start_or_resume(learner.optimizer, index, stage, data, resumed_from.position if resumed_from else None)
    if progress is None:
        return
    evaluations = _open_evaluations(session, stage, index)
    writer.event("stage_started", stage=stage.name, kind=stage.kind, steps=data.total_steps)
    if progress.step == 0 and index == min(session.data.training):
        _evaluate_before(session)

    # From here on there is something to save.
    stop.listen()
    started_at_s = time.monotonic()
    saves = _checkpoint_schedule(stage.checkpoint or config.checkpoint, data, world)
    interval = Interval(learner, world, writer, session.hosts, micro_batch_size=size)
    health = session.health_in(index)
    with _open_reader(progress, size, learner.model, world) as reader, watched().stage(stage.name):
        steps = Steps(
            progress=progress,
            reader=reader,
            learner=learner,
            compute=session.compute,
            world=world,
            writer=writer,
            profiler=profiler,
            interval=interval,
            health=health,
            stop=stop,
            saves=saves,
            config=config,
            passes=num_micro_batches(stage.global_batch_size, size, world.size),
        )
        at_end = False
        while not at_end:
            profiler.start_step(stage.name, progress.step + 1)
            samples_before = progress.samples
            result, in_time = steps.take()
            watched().step()
            progress.advance(writer, skipped=health.why_skipped)
            writer.has_trained = True
            interval.set_data_wait(reader.waited_s)

            at_end = progress.step == data.total_steps
            is_reported = progress.step % config.logging.every_steps == 0 or at_end
            if is_reported:
                left_s = evaluations.remaining_s(progress.step)
                interval.publish(progress, result, health.figures(), evaluations_s=left_s)
            if evaluations.times.is_due(progress.step):
                with profiler.paused(), interval.paused(), watched().activity(f"the evaluation of {stage.name}"):
                    evaluations.run(progress.step)
                at_end = at_end or evaluations.target_met
                if at_end and not is_reported:
                    interval.publish(progress, result, health.figures())
            if saves.is_due(progress.step, samples_before, progress.samples, in_time=in_time) or at_end:
                steps.check_health()
                steps.save(at_end=at_end)
            profiler.end_step()
            # Checkpoints are written in the background: a write that failed ends the run at the end of this step.
            writer.raise_if_failed()
    profiler.close()
    seconds = time.monotonic() - started_at_s
    writer.event("stage_finished", stage=stage.name, seconds=seconds, message=evaluations.outcome)


def _checkpoint_schedule(
    times: CheckpointTimes | CheckpointConfig, data: StageData, world: World
) -> CheckpointSchedule:
    return CheckpointSchedule(times, world.rank, min_samples=times.min_samples_to_start - data.samples_before)


def _open_evaluations(session: Session, stage: PretrainStage, index: int) -> StageEvaluations:
    config, data = session.config, session.data

    def measure() -> Accuracy:
        with session.compute.autocast():
            return evaluate(session.learner.model, data.evaluation[index], session.world, session.compute.device)

    def judge(found: Accuracy) -> tuple[float, str | None]:
        skips = config.dataset.on_unreadable_shard == "Skip"
        baseline = unigram_baseline(data.training[index].folder, data.evaluation[index], skip_unreadable=skips)
        return baseline, describe_verdict(found, baseline, config, steps=data.steps_before(index + 1))

    return StageEvaluations.open(stage, data.training[index], measure, judge, session.writer)


def _open_reader(progress: StageProgress, micro_batch_size: int, model: Bert, world: World) -> StageReader:
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
    )


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
            config=session.config,
            compute=session.compute,
            world=session.world,
            writer=session.writer,
            when=when,
        )
