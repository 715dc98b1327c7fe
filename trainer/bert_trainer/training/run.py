"""A run: ranks, set-up, stages in order, report. Reads top to bottom; ``loop`` has the training loop.

Nothing here knows Horovod, HDF5 or files; ``parallel``, ``training.data_loader`` and ``training.run_writer`` do.
All ranks run the same lines, so collectives match up; what rank 0 alone writes goes through ``RunWriter``, which does
nothing on the others.
"""

from __future__ import annotations

import contextlib
import sys
import time

from bert_job.run_config import RunConfig
from bert_job.run_stages import (
    EvaluateStage,
    ExportStage,
    FinetuneStage,
    PrepareStage,
    PretrainStage,
    Stage,
)
from bert_trainer.errors import InputError, Stopped, TrainerError
from bert_trainer.output.run_folder import release_unused_claim
from bert_trainer.output.termination import report_error
from bert_trainer.parallel.connection import connect
from bert_trainer.system.atomic_files import storage_errors
from bert_trainer.system.heartbeat import watched
from bert_trainer.training.evaluate_stage import evaluate_and_report
from bert_trainer.training.finetuning.data import check_data
from bert_trainer.training.finetuning.run import finetune
from bert_trainer.training.interval import Interval
from bert_trainer.training.loop import TrainingLoop
from bert_trainer.training.micro_batch_size import Trials, choose_micro_batch_sizes
from bert_trainer.training.model_export import export_and_report
from bert_trainer.training.out_of_memory import device_memory_errors
from bert_trainer.training.preflight import check_before_training
from bert_trainer.training.pretraining import Pretraining
from bert_trainer.training.session import Session
from bert_trainer.training.stage_progress import start_or_resume
from bert_trainer.training.stop_signal import StopSignal


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
                    export_and_report(session, index, stage)


def pretrain(session: Session, index: int, stage: PretrainStage, stop: StopSignal) -> None:
    """Train one phase, from its start or from where the checkpoint left it."""
    learner, data, writer = session.learner, session.data.training[index], session.writer
    resumed_from = session.resumed_in(index)
    progress = start_or_resume(learner.optimizer, index, stage, data, resumed_from.position if resumed_from else None)
    if progress is None:
        return
    writer.event("stage_started", stage=stage.name, kind=stage.kind, steps=data.total_steps)
    if progress.step == 0 and index == min(session.data.training):
        _evaluate_before(session)

    # From here on there is something to save.
    stop.listen()
    started_at_s = time.monotonic()
    objective = Pretraining(session, progress)
    with watched().stage(stage.name):
        TrainingLoop(session, objective, Interval(session, learner), stop).run()
    session.profiler.close()
    seconds = time.monotonic() - started_at_s
    writer.event("stage_finished", stage=stage.name, seconds=seconds, message=objective.evaluations.outcome)


def _evaluate_before(session: Session) -> None:
    """Evaluate the model that training begins with, for every evaluate stage."""
    for number, stage in enumerate(session.config.stages):
        if isinstance(stage, EvaluateStage):
            _evaluate_stage(session, number, stage, when="before")


def _evaluate_stage(session: Session, index: int, stage: EvaluateStage, *, when: str) -> None:
    with watched().activity(stage.name):
        evaluate_and_report(session, index, stage, when=when)
