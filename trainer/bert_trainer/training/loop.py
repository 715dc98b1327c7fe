"""The story of a run, top to bottom: ranks, set-up, stages one after another, report.

Nothing here knows Horovod, HDF5 or files; ``distributed``, ``data`` and ``session`` do. Every rank runs the same
lines, and what rank 0 writes besides is behind ``session.keeper``.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Sequence
from types import FrameType

from bert_trainer.checkpoints.huggingface_export import export
from bert_trainer.config.run_config import RunConfig
from bert_trainer.config.stages import EvaluateStage, ExportStage, PrepareStage, PretrainStage, Stage
from bert_trainer.errors import Stopped, TrainerError
from bert_trainer.model.backends.choice import gpu_backend
from bert_trainer.model.backends.cpu.capability import describe_processor
from bert_trainer.model.backends.cpu.linear import cached_weights
from bert_trainer.model.backends.gpu.bucket_padding import stage_for
from bert_trainer.model.backends.gpu.encoder import describe_gpu
from bert_trainer.model.batch import Batch
from bert_trainer.optim.optimizer import StepResult
from bert_trainer.optim.schedule import learning_rate
from bert_trainer.output.report import write_report
from bert_trainer.output.termination import tell_error, write_termination
from bert_trainer.parallel.world import connect, on_rank_0
from bert_trainer.system.atomic_files import storage_errors
from bert_trainer.training.data_loader import StageReader, num_micro_batches
from bert_trainer.training.evaluation import Accuracy, evaluate, unigram_baseline
from bert_trainer.training.interval import Interval, Progress
from bert_trainer.training.micro_batch_size import resolve_micro_batch_sizes
from bert_trainer.training.out_of_memory import device_memory_errors
from bert_trainer.training.session import Keeper, Session, StageData


class StopRequest:
    """Turns SIGUSR1 and SIGTERM into a flag; mpirun forwards SIGUSR1 to its ranks and then waits for them.

    Until somebody listens these signals end the process: a rank that waits for its peers, reads its data or tries
    sizes has nothing to save, and would look at a flag only after that.
    """

    def __init__(self) -> None:
        """Nothing is installed yet."""
        self.received = False

    def listen(self) -> None:
        """Install the handlers for the rest of the process."""
        for number in (signal.SIGUSR1, signal.SIGTERM):
            signal.signal(number, self._receive)

    def _receive(self, _number: int, _frame: FrameType | None) -> None:
        self.received = True


def train(config: RunConfig, *, attempt: int) -> None:
    """Run every stage that is not behind the newest good checkpoint.

    Raises:
        Stopped: on request, at the same step on every rank, with a checkpoint of that step.
        TrainerError: anything that keeps the run from going on.
    """
    stop = StopRequest()
    world = connect(config.world.ranks, config.world.hosts)
    try:
        with storage_errors(lambda: False), device_memory_errors(config, doing="setting up", rank=world.rank):
            session = Session.open(config, world, attempt=attempt)
            described = _describe_device(session)
        sys.stderr.write(described + "\n")
        sys.stderr.flush()
        run_stages(session, stop)
    except TrainerError as error:
        # Before the others learn of it, as in on_rank_0: whatever rank leaves first, mpirun ends the rest.
        tell_error("bert-train", error)
        raise
    finally:
        world.close()


def _describe_device(session: Session) -> str:
    rank, precision = session.world.rank, session.config.precision
    if session.device.type == "cpu":
        return describe_processor(rank, precision)
    with session.autocast():
        return describe_gpu(rank, session.device, precision, gpu_backend(session.model))


def run_stages(session: Session, stop: StopRequest) -> None:
    """Run what is left of the configuration's stages, in order, and report."""
    try:
        with storage_errors(lambda: session.has_trained), contextlib.closing(session):
            resolve_micro_batch_sizes(session)
            for index, stage in enumerate(session.config.stages):
                if session.resumed_at is not None and index < session.resumed_at.stage_index:
                    continue
                run_stage(session, index, stage, stop)
            if session.keeper is not None:
                finish(session, session.keeper)
    except TrainerError as error:
        if session.keeper is not None and not isinstance(error, Stopped):
            reason, message = type(error).__name__, str(error)
            session.keeper.metrics.event("failed", reason=reason, exit_code=error.exit_code, message=message)
        raise


def finish(session: Session, keeper: Keeper) -> None:
    """Report what was trained. For rank 0."""
    config = session.config
    keeper.store.wait()
    keeper.folder.check_fence()
    write_report(config, keeper.folder.path, ranks=session.world.size)
    if config.checkpoint.delete_after_success:
        keeper.store.remove_all()
    write_termination("Succeeded", 0, "")
    keeper.metrics.event("succeeded", message=f"{config.job.name} is trained")


def run_stage(session: Session, index: int, stage: Stage, stop: StopRequest) -> None:
    """Run one stage, from its start or from where the checkpoint left it."""
    size = session.micro_batch_sizes.get(index)
    with device_memory_errors(session.config, doing=stage.name, rank=session.world.rank, micro_batch_size=size):
        match stage:
            case PrepareStage():
                pass  # bert-data has done it, in a child of its own
            case PretrainStage():
                pretrain(session, index, stage, stop)
            case EvaluateStage():
                evaluate_and_tell(session, index, stage, when="after")
            case ExportStage():
                export_and_tell(session, stage)


def pretrain(session: Session, index: int, stage: PretrainStage, stop: StopRequest) -> None:
    """Train one phase, from its start or from where the checkpoint left it."""
    config, world, data = session.config, session.world, session.training_data[index]
    progress = _start_or_resume(session, index, stage, data)
    if progress.step == data.total_steps:
        return
    _tell(session, "stage_started", stage=stage.name, kind=stage.kind, steps=data.total_steps)
    if progress.step == 0 and index == min(session.training_data):
        for number, other in enumerate(config.stages):
            if isinstance(other, EvaluateStage):
                evaluate_and_tell(session, number, other, when="before")

    stop.listen()
    started_at_s = time.monotonic()
    saved_at_s = started_at_s
    interval = Interval()
    with StageReader(
        data.folder,
        data.order,
        global_batch_size=stage.global_batch_size,
        micro_batch_size=session.micro_batch_sizes[index],
        rank=world.rank,
        world_size=world.size,
        first_step=progress.step,
        last_step=data.total_steps,
        masking=data.masking,
        # The mean of means depends on who computes what: as the original scripts deal it.
        balanced=stage.loss_normalization == "global",
        staged=stage_for(session.device, stage.sequence_length, session.micro_batch_sizes[index]),
    ) as reader:
        while progress.step < data.total_steps:
            session.profiler.start_step(stage.name, progress.step + 1)
            with session.profiler.part("data"):
                batches = [batch.to(session.device) for batch in reader.next_step()]
            # One small exchange before the forward pass: the counts that gradients are divided by, whether anybody
            # was asked to stop, so that all ranks leave at the same step, and whether rank 0's clock asks for a
            # checkpoint, to which all may have to contribute.
            clock = session.keeper is not None and _clock_asks(session, saved_at_s)
            with session.profiler.part("reduction"):
                masked, stops, in_time = world.sum_numbers([sum(b.num_masked for b in batches), stop.received, clock])
            if stops:
                _save_and_stop(session, progress)
            result = train_step(session, index, stage, batches, masked, progress.step, interval)
            _check_finite(session, stage, progress.step, result)
            interval.add_balance(reader.most_tokens)
            progress.advance(session, stage, data)
            session.has_trained = True
            interval.note_wait(reader.waited_s)

            at_end = progress.step == data.total_steps
            if progress.step % config.logging.every_steps == 0 or at_end:
                interval.publish(session, stage, progress, result, started_at_s)
            if at_end or _checkpoint_due(session, index, stage, progress.step, in_time=bool(in_time)):
                with session.profiler.part("checkpoint"):
                    session.save(progress.position(session, data), session.optimizer.moments_on_rank_0())
                saved_at_s = time.monotonic()
            session.profiler.end_step()
            if session.keeper is not None:
                session.keeper.store.raise_if_failed()
    session.profiler.close()
    _tell(session, "stage_finished", stage=stage.name, seconds=time.monotonic() - started_at_s)


def train_step(
    session: Session,
    index: int,
    stage: PretrainStage,
    batches: Sequence[Batch],
    masked: float,
    step: int,
    interval: Interval,
) -> StepResult:
    """Accumulate over micro-batches, reduce once, update.

    masked: masked tokens of the whole step, over all ranks. step: steps taken before this one.
    """
    config, world = session.config, session.world
    passes = num_micro_batches(stage.global_batch_size, session.micro_batch_sizes[index], world.size)
    session.parameters.gradients.zero_()
    with cached_weights():
        for number, batch in enumerate(batches, start=1):
            # The stage's number in the high bits: no two phases drop the same elements.
            dropout = batch.dropout_keys(config.seed, (index << 32) + step)
            with session.profiler.part("forward"), session.autocast():
                sums = session.model(batch, dropout)
            if stage.loss_normalization == "global":
                loss = sums.masked_lm / max(masked, 1) + sums.next_sentence / stage.global_batch_size
            else:
                loss = (sums.masked_lm / max(batch.num_masked, 1) + sums.next_sentence / batch.num_rows) / passes
            if number == len(batches) and config.reduction.overlap:
                session.reduction.watch()
            with session.profiler.part("backward"):
                (loss * session.scaler.scale).backward()
            interval.add(batch, sums)
    with session.profiler.part("reduction"):
        interval.add_reduction(session.reduction.finish())
    rate = learning_rate(stage.schedule, session.optimizer.num_applied, session.training_data[index].total_steps)
    with session.profiler.part("optimizer"):
        result = session.optimizer.step(rate, loss_scale=session.scaler.scale)
    session.scaler.update(applied=result.applied)
    interval.learning_rate = rate
    return result


def evaluate_and_tell(session: Session, index: int, stage: EvaluateStage, *, when: str) -> Accuracy:
    """Measure accuracy on the held-out samples and report it beside the unigram baseline."""
    held_out = session.held_out[index]
    with session.autocast(), cached_weights():
        accuracy = evaluate(session.model, held_out, stage, session.world, session.device)
    if session.keeper is not None:
        trained = list(session.training_data.values())
        same_length = [data for data in trained if data.sequence_length == stage.sequence_length]
        training = next((data.folder for data in (*same_length, *trained)), held_out)
        session.keeper.metrics.event(
            "evaluated",
            stage=stage.name,
            when=when,
            mlm_accuracy=accuracy.masked_lm,
            nsp_accuracy=accuracy.next_sentence,
            mlm_loss=accuracy.masked_lm_loss,
            unigram_baseline=unigram_baseline(training, held_out, stage.max_samples),
            samples=accuracy.samples,
        )
    return accuracy


def export_and_tell(session: Session, stage: ExportStage) -> None:
    """Write the model for other programs; rank 0 only, the others wait for its verdict."""

    def write() -> None:
        assert session.keeper is not None, "runs on rank 0"
        session.keeper.folder.check_fence()
        target = session.keeper.folder.path / "export" / stage.format
        lower_case = next((s.lower_case for s in session.config.stages if isinstance(s, PrepareStage)), True)
        export(session.model, session.vocabulary, target, lower_case=lower_case)
        session.keeper.metrics.event("exported", stage=stage.name, path=str(target))

    on_rank_0(session.world, write, has_trained=session.has_trained)


def _start_or_resume(session: Session, index: int, stage: PretrainStage, data: StageData) -> Progress:
    at = session.resumed_at
    if at is not None and at.stage_index == index:
        if at.total_steps != data.total_steps:
            raise TrainerError(
                f"{stage.name}: the checkpoint counts {at.total_steps} steps in this stage, now there are "
                f"{data.total_steps}",
                hint="the data set has changed; restore it or start anew (output.ifExists: New)",
            )
        return Progress(index, at.step, at.sample_hash)
    session.optimizer.start_stage(
        keep_moments=stage.optimizer_state != "reset", keep_step_count=stage.optimizer_state == "keepWithStepCount"
    )
    return Progress(index, 0, "")


def _save_and_stop(session: Session, progress: Progress) -> None:
    """Save, and leave on every rank only when the checkpoint is in place."""
    moments = session.optimizer.moments_on_rank_0()

    def save() -> None:
        keeper = session.keeper
        assert keeper is not None, "runs on rank 0"
        position = progress.position(session, session.training_data[progress.stage_index])
        session.save(position, moments)
        keeper.store.wait()
        message = f"{position.stage}: stopped on request at step {position.step}, a checkpoint is saved"
        keeper.metrics.event("stopped", stage=position.stage, step=position.step, message=message)
        path = keeper.store.path_of(position)
        raise Stopped(message, stage=position.stage, step=position.step, checkpoint=str(path))

    on_rank_0(session.world, save, has_trained=session.has_trained)


def _check_finite(session: Session, stage: PretrainStage, step: int, result: StepResult) -> None:
    if result.applied or session.scaler.scale >= 1.0 and session.scaler.enabled:
        return
    raise TrainerError(
        f"{stage.name}: the gradients of step {step + 1} are not finite (norm {result.gradient_norm})",
        hint="lower the learning rate or lengthen the warm-up; with fp16, use bf16 or fp32",
    )


def _clock_asks(session: Session, saved_at_s: float) -> bool:
    every_s = session.config.checkpoint.every_seconds
    return every_s is not None and time.monotonic() - saved_at_s >= every_s


def _checkpoint_due(session: Session, index: int, stage: PretrainStage, step: int, *, in_time: bool) -> bool:
    """Tell whether a periodic checkpoint is due after a step of a stage. in_time: rank 0's clock says so."""
    when, samples = session.config.checkpoint, step * stage.global_batch_size
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


def _tell(session: Session, event: str, **fields: str | int | float | None) -> None:
    if session.keeper is not None:
        session.keeper.metrics.event(event, **fields)
