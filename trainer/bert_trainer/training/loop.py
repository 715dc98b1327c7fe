"""The training loop: ranks, set-up, stages in order, report. Reads top to bottom.

Nothing here knows Horovod, HDF5 or files; ``parallel``, ``training.data_loader`` and ``training.session`` do.
All ranks run the same lines, so collectives match up; what rank 0 alone writes goes through ``session.writer``.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Sequence
from functools import partial

from torch import Tensor

from bert_trainer.config.finetuning import FinetuneStage
from bert_trainer.config.run_config import RunConfig
from bert_trainer.config.stages import EvaluateStage, ExportStage, PrepareStage, PretrainStage, Stage
from bert_trainer.errors import Stopped, TrainerError
from bert_trainer.model.batch import Batch
from bert_trainer.optim.optimizer import StepResult
from bert_trainer.optim.schedule import learning_rate
from bert_trainer.output.metrics import find_evaluations, read_metrics
from bert_trainer.output.report import write_report
from bert_trainer.output.termination import report_error, write_termination
from bert_trainer.parallel.connection import connect
from bert_trainer.parallel.world import on_rank_0
from bert_trainer.system.atomic_files import storage_errors
from bert_trainer.training.data_loader import StageReader, num_micro_batches
from bert_trainer.training.evaluation import evaluate, unigram_baseline
from bert_trainer.training.finetuning.data import check_data
from bert_trainer.training.finetuning.run import finetune
from bert_trainer.training.interval import Interval, StageProgress
from bert_trainer.training.learner import check_finite, save_interval_is_over, take_step
from bert_trainer.training.micro_batch_size import resolve_micro_batch_sizes
from bert_trainer.training.model_export import export_and_report
from bert_trainer.training.out_of_memory import device_memory_errors
from bert_trainer.training.session import RunWriter, Session, StageData
from bert_trainer.training.stage_evaluation import StageEvaluations
from bert_trainer.training.stop_signal import StopSignal


def train(config: RunConfig, *, attempt: int) -> None:
    """Run every stage that the latest valid checkpoint has not finished.

    Raises:
        Stopped: on request, at the same step on every rank, with a checkpoint of that step.
        TrainerError: whatever else ends the run.
    """
    stop = StopSignal()
    world = connect(config.world.ranks, config.world.hosts, config.collectives, may_use_gpus=config.device != "cpu")
    try:
        with storage_errors(lambda: False), device_memory_errors(config, doing="setting up", rank=world.rank):
            session = Session.open(config, world, attempt=attempt)
            device_line = session.model.backend.describe(world.rank, config.precision)
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
    try:
        with storage_errors(lambda: session.has_trained), contextlib.closing(session):
            check_data(session)
            resolve_micro_batch_sizes(session)
            for index, stage in enumerate(session.config.stages):
                if session.resumed_at is not None and index < session.resumed_at.stage_index:
                    continue
                run_stage(session, index, stage, stop)
            if session.writer is not None:
                finish(session, session.writer)
    except TrainerError as error:
        if session.writer is not None and not isinstance(error, Stopped):
            reason, message = type(error).__name__, str(error)
            session.writer.metrics.event("failed", reason=reason, exit_code=error.exit_code, message=message)
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
                evaluate_and_report(session, index, stage, when="after")
            case ExportStage():
                export_and_report(session, index, stage)


def pretrain(session: Session, index: int, stage: PretrainStage, stop: StopSignal) -> None:
    """Train one phase, from its start or from where the checkpoint left it."""
    config, world, data = session.config, session.world, session.training_data[index]
    progress = _start_or_resume(session, index, stage, data)
    if progress is None:
        return
    evaluations = StageEvaluations.open(session, index, stage, data)
    _report(session, "stage_started", stage=stage.name, kind=stage.kind, steps=data.total_steps)
    if progress.step == 0 and index == min(session.training_data):
        for number, other in enumerate(config.stages):
            if isinstance(other, EvaluateStage):
                evaluate_and_report(session, number, other, when="before")

    # From here on there is something to save.
    stop.listen()
    started_at_s = saved_at_s = time.monotonic()
    interval = Interval()
    with _open_reader(session, index, stage, data, progress.step) as reader:
        at_end = False
        while not at_end:
            session.profiler.start_step(stage.name, progress.step + 1)
            with session.profiler.part("data"):
                batches = [batch.to(session.device) for batch in reader.next_step()]
            # One all-reduce of three numbers before the forward pass: the masked tokens that the loss is divided by;
            # how many ranks were asked to stop, so that all of them leave at the same step; and whether rank 0's
            # clock asks for a checkpoint. Rank 0 alone looks at the clock: ranks' clocks differ, and collecting
            # ZeRO-1's moments for a checkpoint is collective.
            save_is_due = session.writer is not None and save_interval_is_over(
                stage.checkpoint or config.checkpoint, saved_at_s
            )
            with session.profiler.part("reduction"):
                masked_tokens, stops, in_time = world.sum_numbers(
                    [sum(batch.num_masked for batch in batches), stop.received, save_is_due]
                )
            if stops:
                _save_and_stop(session, progress)
            result = train_step(session, index, stage, batches, masked_tokens, progress.step, interval)
            check_finite(session, stage.name, progress.step + 1, result)
            interval.add_busiest_rank(reader.most_tokens)
            progress.advance(session, stage, data)
            session.has_trained = True
            interval.set_data_wait(reader.waited_s)

            at_end = progress.step == data.total_steps
            is_reported = progress.step % config.logging.every_steps == 0 or at_end
            if is_reported:
                left_s = evaluations.remaining_s(progress.step)
                interval.publish(session, stage, progress, result, started_at_s, left_s)
            if evaluations.times.is_due(progress.step):
                with session.profiler.paused(), interval.paused():
                    evaluations.run(progress.step)
                at_end = at_end or evaluations.target_met
                if at_end and not is_reported:
                    interval.publish(session, stage, progress, result, started_at_s)
            if at_end or _checkpoint_due(session, index, stage, progress.step, in_time=bool(in_time)):
                with session.profiler.part("checkpoint"):
                    position = progress.position(session, data, at_end=at_end)
                    session.save(position, session.optimizer.gather_moments())
                saved_at_s = time.monotonic()
            session.profiler.end_step()
            # Checkpoints are written in the background: a write that failed ends the run at the end of this step.
            if session.writer is not None:
                session.writer.store.raise_if_failed()
    session.profiler.close()
    seconds = time.monotonic() - started_at_s
    _report(session, "stage_finished", stage=stage.name, seconds=seconds, message=evaluations.outcome)


def _open_reader(session: Session, index: int, stage: PretrainStage, data: StageData, first_step: int) -> StageReader:
    micro_batch_size = session.micro_batch_sizes[index]
    return StageReader(
        data.folder,
        data.order,
        global_batch_size=stage.global_batch_size,
        micro_batch_size=micro_batch_size,
        rank=session.world.rank,
        world_size=session.world.size,
        first_step=first_step,
        last_step=data.total_steps,
        masking=data.masking,
        # A mean of micro-batch means depends on which rows share a micro-batch: keep the original scripts' split.
        balanced=stage.loss_normalization == "global",
        staged=partial(
            session.model.backend.stage_batch, sequence_length=stage.sequence_length, micro_batch_size=micro_batch_size
        ),
    )


def train_step(
    session: Session,
    index: int,
    stage: PretrainStage,
    batches: Sequence[Batch],
    masked_tokens: float,
    step: int,
    interval: Interval,
) -> StepResult:
    """Accumulate gradients over micro-batches, reduce them once, update.

    Args:
        session: Model, optimizer and ranks.
        index: Of the stage.
        stage: The stage.
        batches: This rank's micro-batches, on the device.
        masked_tokens: Masked tokens of the whole step, over all ranks.
        step: Steps taken in this stage before this one.
        interval: Collects the losses without waiting for the device.
    """
    config, world = session.config, session.world
    passes = num_micro_batches(stage.global_batch_size, session.micro_batch_sizes[index], world.size)

    def loss_of(batch: Batch) -> Tensor:
        # Dropout is a function of seed, stage, step and sample number, so that a resumed run, or another number of
        # ranks, drops the same elements. The stage's index in the high bits keeps phases apart.
        dropout = batch.dropout_keys(config.seed, (index << 32) + step)
        with session.autocast():
            sums = session.model(batch, dropout)
        interval.add(batch, sums)
        # Ranks add their gradients: so the loss is divided by counts of the whole step, and a step without any masked
        # token divides by 1.
        if stage.loss_normalization == "global":
            loss = sums.masked_lm / max(masked_tokens, 1) + sums.next_sentence / stage.global_batch_size
        else:
            loss = (sums.masked_lm / max(batch.num_masked, 1) + sums.next_sentence / batch.num_rows) / passes
        return loss  # type: ignore[no-any-return]

    # The schedule counts applied updates: a step that fp16 overflow skips does not advance it.
    rate = learning_rate(stage.schedule, session.optimizer.num_applied, session.training_data[index].total_steps)
    overlap = config.reduction.overlap
    result, times = take_step(session, batches, loss_of, rate, overlap=overlap, profiler=session.profiler)
    interval.add_reduction(times)
    interval.learning_rate = rate
    return result


def evaluate_and_report(session: Session, index: int, stage: EvaluateStage, *, when: str) -> None:
    """Measure accuracy on samples that were not trained on; report it against a unigram baseline. Collective.

    An attempt that goes on after a crash does not repeat what an earlier one has reported.
    """
    if on_rank_0(session.world, lambda: _is_reported(session, stage, when), has_trained=session.has_trained):
        return
    data = session.evaluation_data[index]
    with session.autocast():
        accuracy = evaluate(session.model, data, session.world, session.device)
    if session.writer is not None:
        trained = list(session.training_data.values())
        # The baseline counts the training set of this length, else of the first phase; a job that only evaluates has
        # none and counts the set itself.
        same_length = [other for other in trained if other.sequence_length == stage.sequence_length]
        training = next((other.folder for other in (*same_length, *trained)), data.folder)
        session.writer.metrics.evaluated(
            stage=stage.name,
            when=when,
            mlm_accuracy=accuracy.masked_lm,
            nsp_accuracy=accuracy.next_sentence,
            mlm_loss=accuracy.masked_lm_loss,
            unigram_baseline=unigram_baseline(training, data),
            samples=accuracy.samples,
        )


def _is_reported(session: Session, stage: EvaluateStage, when: str) -> bool:
    assert session.writer is not None, "runs on rank 0"
    return any(find_evaluations(read_metrics(session.writer.folder.path), stage.name, when))


def finish(session: Session, writer: RunWriter) -> None:
    """Report what was trained; rank 0 only."""
    config = session.config
    writer.store.wait()
    # A successor may have claimed the folder while the last checkpoint was written.
    writer.folder.check_fence()
    write_report(config, writer.folder.path, ranks=session.world.size)
    writer.metrics.repeat_results()
    # After the report: a run that is killed in between still has its checkpoints, and finishes again.
    if config.checkpoint.delete_after_success:
        writer.store.remove_all()
    write_termination("Succeeded", 0, "")
    writer.metrics.event("succeeded", message=f"{config.job.name} is trained")


def _start_or_resume(session: Session, index: int, stage: PretrainStage, data: StageData) -> StageProgress | None:
    """Return where the stage begins; None if the checkpoint is that of its end."""
    at = session.resumed_at
    if at is not None and at.stage_index == index:
        if at.stage_finished and (stage.target is not None or at.total_steps == data.total_steps):
            return None  # a stage that met its target has fewer steps than its length
        if at.total_steps != data.total_steps:
            raise TrainerError(
                f"{stage.name}: the checkpoint counts {at.total_steps} steps in this stage, now there are "
                f"{data.total_steps}",
                hint="the dataset has changed; restore it or start over (output.ifExists: New)",
            )
        return StageProgress(index, at.step, at.sample_hash)
    session.optimizer.start_stage(
        keep_moments=stage.optimizer_state != "reset", keep_step_count=stage.optimizer_state == "keepWithStepCount"
    )
    return StageProgress(index, 0, "")


def _save_and_stop(session: Session, progress: StageProgress) -> None:
    """Save, and leave on every rank only when the checkpoint is in place."""
    # On all ranks, before rank 0 goes its own way: with ZeRO-1 it is collective.
    moments = session.optimizer.gather_moments()

    def save() -> None:
        writer = session.writer
        assert writer is not None, "runs on rank 0"
        position = progress.position(session, session.training_data[progress.stage_index])
        session.save(position, moments)
        writer.leave(position)

    on_rank_0(session.world, save, has_trained=session.has_trained)


def _checkpoint_due(session: Session, index: int, stage: PretrainStage, step: int, *, in_time: bool) -> bool:
    """Return whether a periodic checkpoint is due after a step of a stage. in_time: rank 0's clock says so."""
    when, samples = stage.checkpoint or session.config.checkpoint, step * stage.global_batch_size
    if not when.periodic or _samples_before(session, index) + samples < when.min_samples_to_start:
        return False
    by_steps = when.every_steps is not None and step % when.every_steps == 0
    # The last step's samples have reached or passed a multiple exactly when the rest is less than that step.
    by_samples = when.every_samples is not None and samples % when.every_samples < stage.global_batch_size
    return by_steps or by_samples or in_time


def _samples_before(session: Session, index: int) -> int:
    """Return the sequences of all pretraining stages before this one."""
    return sum(
        session.training_data[number].total_steps * stage.global_batch_size
        for number, stage in enumerate(session.config.stages[:index])
        if isinstance(stage, PretrainStage)
    )


def _report(session: Session, event: str, **fields: str | int | float | None) -> None:
    if session.writer is not None:
        session.writer.metrics.event(event, **fields)
