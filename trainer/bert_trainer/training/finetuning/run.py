"""A finetune stage: its runs one after the other, from the start or from where a checkpoint left them.

All ranks run the same lines, so collectives match up. Without synchronised gradients every rank trains a model of its
own, step by step beside the others, and a rank whose run was stopped early waits for theirs.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from bert_job.run_stages import FinetuneStage, PretrainStage, Stage
from bert_job.weights import InitialCheckpointSpec
from bert_trainer.checkpoints.checkpoint import Position
from bert_trainer.errors import TrainerError
from bert_trainer.model.bert import Bert
from bert_trainer.system.heartbeat import watched
from bert_trainer.training.checkpoint_schedule import CheckpointSchedule
from bert_trainer.training.finetuning.data import open_data
from bert_trainer.training.finetuning.evaluations import Evaluations
from bert_trainer.training.finetuning.objective import Finetuning, OpenStage
from bert_trainer.training.finetuning.run_plan import RunPlan
from bert_trainer.training.finetuning.stage_end import end_stage, has_ended
from bert_trainer.training.finetuning.stage_start import check_stage_unchanged
from bert_trainer.training.finetuning.task_learner import TaskLearner, scaled_schedule
from bert_trainer.training.interval import Interval
from bert_trainer.training.learner import Learner
from bert_trainer.training.letter_case import lower_case_of
from bert_trainer.training.loop import TrainingLoop
from bert_trainer.training.run_writer import RunWriter
from bert_trainer.training.session import Session
from bert_trainer.training.start_weights import needs_start_weights, save_start_weights
from bert_trainer.training.stop_signal import StopSignal


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
    # min_samples_to_start counts the samples of pretraining, which are behind.
    saves = CheckpointSchedule(config.checkpoint, world.rank)
    opened = OpenStage(index, stage, schedule, data, plan, learner, evaluations, saves)
    started_at_s = time.monotonic()
    interval = Interval(session, learner)
    writer.event("stage_started", stage=stage.name, kind=stage.kind, steps=plan.total_steps)
    if stage.learning_rate_scaling != "none":
        message = (
            f"Learning rate {schedule.learning_rate:g}: {stage.learning_rate:g} times the square root of "
            f"{ranks} rank(s)" + ("" if ranks == world.size else ", as many as began the stage")
        )
        writer.event("learning_rate", stage=stage.name, message=message)
    while first_step < plan.total_steps:
        number, in_run = divmod(first_step, plan.steps_per_run)
        with watched().stage(stage.name):
            objective = Finetuning(session, opened, number, resumed_from if in_run else None)
            stop.listen()  # from here on there is something to save
            interval.restart()  # what giving a model its first weights takes is no step's time
            TrainingLoop(session, objective, interval, stop).run()
        first_step = (number + 1) * plan.steps_per_run
    session.profiler.close()
    with watched().activity(f"the end of {stage.name}"):
        end_stage(evaluations)
    writer.event("stage_finished", stage=stage.name, seconds=time.monotonic() - started_at_s)


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
