"""Pretraining as an objective: masked LM and next-sentence prediction over shards."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import Tensor

from bert_job.run_stages import PretrainStage
from bert_trainer.checkpoints.checkpoint import Position
from bert_trainer.errors import DataUnreadable, StorageFailed, TrainerError
from bert_trainer.model.batch import Batch
from bert_trainer.model.bert import Bert
from bert_trainer.model.losses import LossSums
from bert_trainer.optim.schedule import learning_rate
from bert_trainer.output.metrics import Record
from bert_trainer.training.checkpoint_schedule import CheckpointSchedule
from bert_trainer.training.data_loader import StageReader, num_micro_batches
from bert_trainer.training.evaluation import Accuracy, evaluate, unigram_baseline
from bert_trainer.training.flop import count_flop
from bert_trainer.training.health import Health
from bert_trainer.training.learner import Learner
from bert_trainer.training.objective import Objective
from bert_trainer.training.session import Session
from bert_trainer.training.stage_evaluation import StageEvaluations
from bert_trainer.training.stage_progress import StageProgress
from bert_trainer.training.unreadable_shards import resolve_unreadable
from bert_trainer.training.verdict import describe_verdict


class Pretraining(Objective[Bert]):
    """One pretrain stage, from its start or from where the checkpoint left it."""

    learner: Learner[Bert]
    stage: PretrainStage
    reader: StageReader
    sums = LossSums

    def __init__(self, session: Session, progress: StageProgress) -> None:
        """Begin the stage, or go on in it: times count from here. Collective if it has evaluations."""
        self.session, self.progress = session, progress
        self.index, self.stage = progress.index, progress.stage
        self.learner = session.learner
        self.micro_batch_size = session.micro_batch_sizes[self.index]
        self.total_steps = progress.data.total_steps
        self.evaluations = _open_evaluations(session, self.stage, self.index)
        world, data, stage = session.world, progress.data, self.stage
        times = stage.checkpoint or session.config.checkpoint
        min_samples = times.min_samples_to_start - data.samples_before
        self.saves = CheckpointSchedule(times, world.rank, min_samples=min_samples)
        self.health = Health(session.health, stage.name)
        if (resumed_from := session.resumed_in(self.index)) is not None:
            self.health.load(resumed_from.health)
        self._passes = num_micro_batches(stage.global_batch_size, self.micro_batch_size, world.size)
        self.reader = StageReader(
            data.folder,
            data.order,
            global_batch_size=stage.global_batch_size,
            micro_batch_size=self.micro_batch_size,
            rank=world.rank,
            world_size=world.size,
            first_step=self.step,
            last_step=self.total_steps,
            masking=data.masking,
            splits_documents=data.splits_documents,
            # A mean of micro-batch means depends on which rows share a micro-batch: keep the original scripts' split.
            balanced=stage.loss_normalization == "global",
            staged=partial(
                self.learner.model.backend.stage_batch,
                sequence_length=stage.sequence_length,
                micro_batch_size=self.micro_batch_size,
            ),
        )

    @property
    def step(self) -> int:  # noqa: D102 - as Objective's, here and below
        return self.progress.step

    @property
    def samples(self) -> int:  # noqa: D102
        return self.progress.samples

    @property
    def sample_hash(self) -> str:  # noqa: D102
        return self.progress.sample_hash

    @property
    def is_at_end(self) -> bool:  # noqa: D102
        return self.step == self.total_steps

    def read(self) -> tuple[Sequence[Batch], TrainerError | None]:  # noqa: D102
        try:
            return self.reader.next_step(), None
        except (DataUnreadable, StorageFailed) as error:
            if self.reader.failed_shard is None:
                raise
            return [], error

    def resolve(self, error: TrainerError | None) -> None:  # noqa: D102
        skips = self.session.config.dataset.on_unreadable_shard == "Skip"
        resolve_unreadable(error, self.reader, self.progress, self.session.world, self.session.writer, skips=skips)

    def learning_rate(self) -> float:  # noqa: D102
        # The schedule counts applied updates: a step that fp16 overflow skips does not advance it.
        return learning_rate(self.stage, self.learner.optimizer.num_applied, self.total_steps)

    def loss(self, batch: Batch, masked_tokens: float) -> tuple[Tensor, LossSums]:  # noqa: D102
        # Dropout is a function of seed, stage, step and sample number, so that a resumed run, or another number of
        # ranks, drops the same elements. The stage's index in the high bits keeps phases apart.
        dropout = batch.dropout_keys(self.session.config.seed, (self.index << 32) + self.step)
        with self.session.compute.autocast():
            sums = self.learner.model(batch, dropout)
        # Ranks add their gradients: so the loss is divided by counts of the whole step, and a step without any masked
        # token divides by 1.
        if self.stage.loss_normalization == "global":
            loss = sums.masked_lm / max(masked_tokens, 1) + sums.next_sentence / self.stage.global_batch_size
        else:
            loss = (sums.masked_lm / max(batch.num_masked, 1) + sums.next_sentence / batch.num_rows) / self._passes
        return loss, sums

    def advance(self, skipped: str | None) -> None:  # noqa: D102
        self.progress.advance(self.session.writer, skipped=skipped)

    def is_evaluated(self) -> bool:  # noqa: D102
        return self.evaluations.times.is_due(self.step)

    def evaluate(self) -> bool:  # noqa: D102
        self.evaluations.run(self.step)
        return self.evaluations.target_met

    @property
    def evaluations_left_s(self) -> float:  # noqa: D102
        return 0.0 if self.evaluations.target_met else self.evaluations.remaining_s(self.step)

    def flop(self, tokens: int, pairs: int, masked: int) -> float:  # noqa: D102
        model = self.learner.model
        return count_flop(model.config, model.vocabulary_size, tokens=tokens, pairs=pairs, masked=masked)

    def losses(self, sums: Sequence[float], rows: float, masked: float) -> Record:  # noqa: D102
        masked_lm, next_sentence, masked_correct, pairs_correct = sums
        masked = max(masked, 1)  # rows without any prediction are allowed
        has_nsp = self.learner.model.nsp is not None
        return {
            "loss": masked_lm / masked + next_sentence / rows,
            "mlm_loss": masked_lm / masked,
            "nsp_loss": next_sentence / rows if has_nsp else None,
            "mlm_accuracy": masked_correct / masked,
            "nsp_accuracy": pairs_correct / rows if has_nsp else None,
        }

    def figures(self) -> Record:  # noqa: D102
        return {"shards_left_out": len(self.progress.data.order.left_out) or None}

    def position(self, *, at_end: bool = False) -> Position:  # noqa: D102
        return self.progress.position(self.learner, at_end=at_end)


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
