"""Where a run begins: at its latest valid checkpoint, else with initial weights, else as its seed has drawn them."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from bert_job.run_stages import FinetuneStage, Stage
from bert_job.weights import InitialCheckpointSpec
from bert_trainer.checkpoints import initial_weights
from bert_trainer.checkpoints.checkpoint import Checkpoint, Position
from bert_trainer.dataset.tokens.wordpiece import Vocabulary
from bert_trainer.model.bert import Bert
from bert_trainer.parallel.world import World, on_rank_0
from bert_trainer.training.learner import Learner, copy_state
from bert_trainer.training.run_writer import RunWriter
from bert_trainer.training.start_weights import load_start_weights, needs_start_weights


def resume(
    stages: Sequence[Stage],
    initial: InitialCheckpointSpec | None,
    vocabulary: Vocabulary,
    learner: Learner[Bert],
    world: World,
    writer: RunWriter,
) -> Checkpoint | None:
    """Load the state that the run resumes from, the same on all ranks. Collective.

    Args:
        stages: Of the run; they say whether pretraining is over where it goes on.
        initial: The weights that it begins with; None: those of the learner.
        vocabulary: Of the run, which initial weights must fit.
        learner: As initialized.
        world: The ranks.
        writer: Learns whether the run has trained before.

    Returns:
        The checkpoint that was found; None where the run begins.
    """
    moments = learner.optimizer.moments_to_load(world.rank)
    found = on_rank_0(world, lambda: _load_latest(stages, learner, moments, writer))
    # Only a run without a checkpoint of its own looks at initial_checkpoint: a retry must not start over from it.
    if found is None:
        learner.optimizer.moment_steps = on_rank_0(
            world, lambda: _load_initial(initial, vocabulary, learner, moments, writer)
        )
    # Rank 0 alone has read and verified it: ranks that looked for themselves might find different checkpoints.
    world.broadcast_(learner.parameters.values)
    learner.optimizer.scatter_moments(moments, world)
    writer.has_trained = found is not None
    if found is not None and not _is_finetuning(stages, found.position):
        _set_counts(learner, found.position)
    return found


def _load_latest(
    stages: Sequence[Stage], learner: Learner[Bert], moments: dict[str, Tensor], writer: RunWriter
) -> Checkpoint | None:
    checkpoint = writer.latest_checkpoint()
    if checkpoint is None:
        return None
    position = checkpoint.position
    if not _is_finetuning(stages, position):
        copy_state(checkpoint.path, checkpoint.load(), learner.state_views(moments))
    elif needs_start_weights(stages[position.stage_index + position.stage_finished :]):
        # The checkpoint's tensors are those of the task's model, which the stage itself loads.
        load_start_weights(writer.folder.path, learner.parameters)
    _announce(checkpoint, writer, on_gpu=learner.device.type != "cpu")
    return checkpoint


def _load_initial(
    start: InitialCheckpointSpec | None,
    vocabulary: Vocabulary,
    learner: Learner[Bert],
    moments: dict[str, Tensor],
    writer: RunWriter,
) -> int:
    """Load the initial weights that a run names, if any.

    Returns:
        How many updates the loaded moments have accumulated, for bias correction.
    """
    if start is None:
        return 0
    message, moment_steps = initial_weights.load(start, learner.model, vocabulary, learner.parameters, moments)
    writer.event("initialized", path=start.path, message=message)
    return moment_steps


def _announce(checkpoint: Checkpoint, writer: RunWriter, *, on_gpu: bool) -> None:
    changed = [*checkpoint.environment.differences(writer.environment), *writer.folder.changed]
    message = "Resumed, not bit-identical: " + ", ".join(changed) if changed else "Resumed, bit-identical"
    if on_gpu and not changed:
        message = "Resumed"  # GPU kernels do not promise the same rounding twice
    position = checkpoint.position
    writer.event("resumed", stage=position.stage, step=position.step, path=str(checkpoint.path), message=message)


def _is_finetuning(stages: Sequence[Stage], position: Position) -> bool:
    """Return whether a run goes on in a finetune stage, or behind one: pretraining is over then."""
    return isinstance(stages[position.stage_index], FinetuneStage)


def _set_counts(learner: Learner[Bert], position: Position) -> None:
    learner.optimizer.num_applied = position.num_applied
    # None where bias correction counts the stage's updates.
    given = position.moment_steps
    learner.optimizer.moment_steps = position.num_applied if given is None else given
    if learner.scaler.enabled:
        learner.scaler.scale, learner.scaler.finite_steps = position.loss_scale, position.finite_steps
