"""What a stage trains, as the training loop sees it: batches, loss, figures, evaluations, position, state.

Pretraining (``pretraining``) and fine-tuning (``finetuning.objective``) have one each; ``loop`` runs either.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Generic

from torch import Tensor

from bert_job.run_stages import FinetuneStage, PretrainStage
from bert_trainer.checkpoints.checkpoint import Position
from bert_trainer.errors import TrainerError
from bert_trainer.model.batch import Batch
from bert_trainer.output.metrics import Record
from bert_trainer.training.checkpoint_schedule import CheckpointSchedule
from bert_trainer.training.data_loader import ReadAhead
from bert_trainer.training.health import Health
from bert_trainer.training.learner import Learner, ModelT


class Objective(ABC, Generic[ModelT]):
    """One stage, or one run of a finetune stage, on one rank. All ranks call the same methods in the same order."""

    stage: PretrainStage | FinetuneStage
    learner: Learner[ModelT]
    reader: ReadAhead
    micro_batch_size: int
    health: Health
    saves: CheckpointSchedule
    total_steps: int
    """Of the stage."""
    sums: type[Any]
    """A dataclass with slots: the scalars of a micro-batch from which the figures of its loss are made."""

    @property
    @abstractmethod
    def step(self) -> int:
        """Steps of the stage so far."""

    @property
    @abstractmethod
    def samples(self) -> int:
        """Rows so far, by which checkpoints are due."""

    @property
    @abstractmethod
    def sample_hash(self) -> str:
        """Chained SHA-256 of all sample numbers so far; on rank 0, elsewhere that of the checkpoint.

        Two runs that agree on it have seen the same samples in the same order.
        """

    @property
    @abstractmethod
    def is_at_end(self) -> bool:
        """Whether no step is left."""

    @property
    def is_split_by_rank(self) -> bool:
        """Whether every rank trains a model of its own."""
        return False

    @property
    def is_over(self) -> bool:
        """Whether this rank's own model is trained, and waits for those of other ranks."""
        return False

    def read(self) -> tuple[Sequence[Batch], TrainerError | None]:
        """Return this rank's micro-batches of the next step, or an error that all ranks ``resolve``."""
        return self.reader.next_step(), None

    def resolve(self, error: TrainerError | None) -> None:
        """Find a way on, or end the attempt, where a rank could not read. Collective. error: this rank's.

        Raises:
            TrainerError: there is no way on.
        """
        raise AssertionError("only of an objective whose reading may fail")

    @abstractmethod
    def learning_rate(self) -> float:
        """Return that of the next step."""

    @abstractmethod
    def loss(self, batch: Batch, masked_tokens: float) -> tuple[Tensor, Any]:
        """Compute a micro-batch.

        Args:
            batch: On the device.
            masked_tokens: Masked tokens of the whole step, over all ranks.

        Returns:
            Its part of the step's loss, (): ranks add their gradients, they don't average them. And what
            ``losses`` is to have of it, of the kind ``sums``.
        """

    @abstractmethod
    def advance(self, skipped: str | None) -> None:
        """Count a step. skipped: why its update was not applied; None if it was."""

    @abstractmethod
    def is_evaluated(self) -> bool:
        """Return whether the model is evaluated after the step that was counted last."""

    @abstractmethod
    def evaluate(self) -> bool:
        """Evaluate it, and return whether that ends the training. Collective."""

    @property
    @abstractmethod
    def evaluations_left_s(self) -> float:
        """Seconds that the evaluations still to come are expected to take."""

    def flop(self, tokens: int, pairs: int, masked: int) -> float:
        """Return the model's floating-point operations for so many tokens; 0: not counted."""
        return 0.0

    @abstractmethod
    def losses(self, sums: Sequence[float], rows: float, masked: float) -> Record:
        """Return the figures of an interval from the sums of what ``loss`` returned, over all ranks."""

    def figures(self) -> Record:
        """Return what else a report of an interval has."""
        return {}

    @abstractmethod
    def position(self, *, at_end: bool = False) -> Position:
        """Return what a checkpoint records. at_end: the training is over, whatever its length was meant to be."""

    @property
    def has_state(self) -> bool:
        """Whether there is anything to save that is not on the disk."""
        return True

    def health_state(self) -> Mapping[str, Any] | None:
        """Return what a checkpoint holds of the health; None: nothing."""
        return self.health.state()
