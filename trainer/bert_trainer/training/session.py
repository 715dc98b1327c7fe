"""State of one attempt while it trains: ranks, model, optimizer, output folder, checkpoints, metrics.

``Session.open`` sets it up in the order of what is cheap to check: device and precision, folder, vocabulary, shards,
model, checkpoint. Whatever is wrong with a job is found before the first step.
"""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor

from bert_trainer.checkpoints import initial_weights
from bert_trainer.checkpoints.checkpoint import Checkpoint, Environment, Position
from bert_trainer.checkpoints.store import CheckpointStore
from bert_trainer.config.finetuning import FinetuneStage
from bert_trainer.config.run_config import RunConfig
from bert_trainer.config.stages import EvaluateStage, Evaluation, PretrainStage
from bert_trainer.dataset.sampling.dynamic_masking import WORD_MASKS_VERSION, DynamicMasking
from bert_trainer.dataset.shards import ShardFolder, Split, find_named_shards, find_shard_folder
from bert_trainer.dataset.tokens.wordpiece import Vocabulary, read_vocabulary
from bert_trainer.errors import InputError, Stopped
from bert_trainer.model.backends.choice import check_engine, choose_backend
from bert_trainer.model.bert import Bert
from bert_trainer.model.precision import autocast
from bert_trainer.optim.optimizer import LossScaler, Optimizer
from bert_trainer.optim.schedule import num_steps
from bert_trainer.output.metrics import MetricsWriter
from bert_trainer.output.progress import Reporter
from bert_trainer.output.run_folder import RunFolder
from bert_trainer.parallel.flat_parameters import FlatParameters
from bert_trainer.parallel.reduction import GradientReduction
from bert_trainer.parallel.world import World, on_rank_0
from bert_trainer.parallel.zero1 import Zero1Partition
from bert_trainer.training.data_loader import SampleOrder
from bert_trainer.training.device import choose_device
from bert_trainer.training.evaluation import EvaluationSet
from bert_trainer.training.learner import copy_state, save_state, state_by_name
from bert_trainer.training.profiling import (
    NoProfiler,
    Profiler,
    StepTimes,
    open_profiler,
    print_table,
    render_step_times,
)
from bert_trainer.training.start_weights import are_needed, load_start

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StageData:
    """What a pretraining stage reads."""

    folder: ShardFolder
    order: SampleOrder
    total_steps: int
    sequence_length: int
    masking: DynamicMasking | None = None
    """Draws masks; None: the masks in the files are used."""


@dataclass(frozen=True, slots=True)
class RunWriter:
    """Writes a run's output folder: claim, checkpoints, metrics. Rank 0 only; the other ranks write nothing."""

    folder: RunFolder
    store: CheckpointStore
    metrics: MetricsWriter

    def leave(self, position: Position) -> NoReturn:
        """End the attempt at a position that was saved, once its checkpoint is in place; raises Stopped."""
        self.store.wait()
        message = f"{position.stage}: stopped on request at step {position.step}, a checkpoint is saved"
        self.metrics.event("stopped", stage=position.stage, step=position.step, message=message)
        path = self.store.path_of(position)
        raise Stopped(message, stage=position.stage, step=position.step, checkpoint=str(path))


@dataclass(slots=True)
class Session:
    """One attempt, on one rank."""

    config: RunConfig
    world: World
    device: torch.device
    vocabulary: Vocabulary
    training_data: dict[int, StageData]
    """By index of the stage."""
    evaluation_data: dict[int, EvaluationSet]
    """By index of the stage: of evaluate stages, and of those that are evaluated while they train."""
    model: Bert
    parameters: FlatParameters
    optimizer: Optimizer
    reduction: GradientReduction
    scaler: LossScaler
    writer: RunWriter | None
    """None on every rank but 0."""
    resumed_from: Checkpoint | None = field(default=None)
    """The checkpoint that the run goes on from; None where it begins."""
    has_trained: bool = False
    """Whether a step was taken, by this attempt or before the checkpoint that it resumed."""
    profiler: Profiler = field(default_factory=NoProfiler)
    micro_batch_sizes: dict[int, int] = field(default_factory=dict)
    """By index of the stage; ``auto`` ones are missing until ``resolve_micro_batch_sizes`` has measured them."""

    @classmethod
    def open(cls, config: RunConfig, world: World, *, attempt: int) -> Session:
        """Set everything up; weights come from the latest valid checkpoint, or are initialized. Collective.

        Raises:
            TrainerError: whatever is wrong with settings, folder, vocabulary or shards.
        """
        # First: it raises the processor's settings and the GPU's memory limit, which later allocations obey.
        device = choose_device(config, world)
        check_engine(config.engine, device, config.precision)
        folder = on_rank_0(world, lambda: RunFolder.claim(config, attempt=attempt))
        # What the run began with, not what this attempt was given, where the two may differ.
        config = folder.config
        # Files are opened on rank 0, which broadcasts the result: all ranks see the same shards, and a mistake in them
        # is reported once.
        vocabulary = on_rank_0(world, lambda: _read_vocabulary(config))
        training_data, evaluation_data = on_rank_0(world, lambda: _open_data(config, vocabulary))
        model = Bert(config.sizes, len(vocabulary.tokens))
        model.activation_checkpointing = config.activation_checkpointing
        # On the CPU, in fp32, before the model moves: the same seed gives the same weights on every device.
        model.initialize(config.seed)
        model.to(device=device, dtype=torch.float64 if config.precision == "fp64" else torch.float32)
        model.use(choose_backend(model, config.engine, config.precision))
        parameters = FlatParameters(model)
        partition = Zero1Partition(parameters.num_rows, world, split=config.optimizer.partitioning == "zero1")
        optimizer = Optimizer(config.optimizer, parameters, partition)
        compressed = config.reduction.compression == "fp16"
        writer = None
        if world.rank == 0:
            writer = _open_writer(config, world, device, folder, attempt)
        session = cls(
            config=config,
            world=world,
            device=device,
            vocabulary=vocabulary,
            training_data=training_data,
            evaluation_data=evaluation_data,
            model=model,
            parameters=parameters,
            optimizer=optimizer,
            reduction=GradientReduction(
                parameters, optimizer.gradients, optimizer.partition, world, compressed=compressed
            ),
            scaler=LossScaler(enabled=config.precision == "fp16"),
            writer=writer,
        )
        session._resume()
        session.profiler = _open_profiler(session)
        session.micro_batch_sizes = configured_micro_batch_sizes(config)
        return session

    def _resume(self) -> None:
        """Load the latest valid checkpoint, or the initial weights, on rank 0 and broadcast them."""
        store = self.writer.store if self.writer else None
        moments = self.optimizer.moments_to_load(self.world.rank)
        found = on_rank_0(self.world, lambda: _load_newest(store, self, moments) if store else None)
        # Only a run without a checkpoint of its own looks at initial_checkpoint: a retry must not start over from it.
        if found is None:
            self.optimizer.moment_steps = on_rank_0(self.world, lambda: self._load_initial(moments))
        # Rank 0 alone has read and verified it: ranks that looked for themselves might find different checkpoints.
        self.world.broadcast_(self.parameters.values)
        self.optimizer.scatter_moments(moments, self.world)
        self.resumed_from = found
        self.has_trained = found is not None
        if found is None or self.resumes_finetuning:
            return
        position = found.position
        self.optimizer.num_applied = position.num_applied
        # Manifests of releases up to 0.1 have no moment_steps: bias correction counted the stage's updates.
        given = position.moment_steps
        self.optimizer.moment_steps = position.num_applied if given is None else given
        if self.scaler.enabled:
            self.scaler.scale, self.scaler.finite_steps = position.loss_scale, position.finite_steps

    @property
    def resumed_at(self) -> Position | None:
        """Where the run goes on; None where it begins."""
        return None if self.resumed_from is None else self.resumed_from.position

    @property
    def resumes_finetuning(self) -> bool:
        """Whether it goes on in a finetune stage, or behind one: pretraining is over then."""
        at = self.resumed_at
        return at is not None and isinstance(self.config.stages[at.stage_index], FinetuneStage)

    def let_go_of_pretraining(self) -> None:
        """Free gradients and moments of the pretraining model, which no stage will train any more; weights stay."""
        for span in self.parameters.spans:
            span.parameter.grad = None
        self.model.use(None)
        # By their storage: the optimizer and the reduction hold views of them.
        for flat in (
            self.parameters.gradients,
            self.optimizer.gradients,
            self.optimizer.first_moment,
            self.optimizer.second_moment,
        ):
            flat.untyped_storage().resize_(0)

    def _load_initial(self, moments: dict[str, Tensor]) -> int:
        """Load the initial weights that the configuration names, if any. Rank 0 only.

        Returns:
            How many updates the loaded moments have accumulated, for bias correction.
        """
        start = self.config.initial_checkpoint
        if start is None or self.writer is None:
            return 0
        message, moment_steps = initial_weights.load(start, self.model, self.vocabulary, self.parameters, moments)
        self.writer.metrics.event("initialized", path=start.path, message=message)
        return moment_steps

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context in which forward passes run."""
        return autocast(self.device, self.config.precision)

    def save(self, position: Position, moments: dict[str, Tensor] | None) -> None:
        """Write a checkpoint in the background; does nothing on ranks other than 0.

        Args:
            position: Where in the run this is.
            moments: From ``optimizer.gather_moments``, which is collective with ZeRO-1: every rank has to call it.
        """
        if self.writer is not None and moments is not None:
            save_state(self.writer.store, self, position, moments)

    def close(self) -> None:
        """Close rank 0's files, after the checkpoint that is being written is in place."""
        try:
            self.profiler.close()
        finally:
            self._close_writer()

    def _close_writer(self) -> None:
        if self.writer is not None:
            try:
                self.writer.store.wait()
            finally:
                self.writer.metrics.close()


def _read_vocabulary(config: RunConfig) -> Vocabulary:
    path = config.vocabulary_path
    start = config.initial_checkpoint
    if start is not None and config.dataset.vocabulary_file is None and not path.exists():
        # A run that only fine-tunes has no data set; weights of other programs come with their vocabulary.
        weights = Path(start.path)
        beside = (weights if weights.is_dir() else weights.parent) / "vocab.txt"
        if not beside.exists():
            raise InputError(
                f"dataset.vocabulary_file: got none, and neither {path} nor {beside} is there",
                hint="name the vocabulary that the weights were trained with",
            )
        path = beside
    vocabulary = read_vocabulary(path)
    wanted, file = config.sizes.vocab_size, config.sizes.config_file
    if wanted is not None and wanted != len(vocabulary.tokens):
        raise InputError(
            f"{path}: has {len(vocabulary.tokens)} entries, model.vocab_size"
            f"{f' of {file}' if file else ''} says {wanted}",
            hint="name the vocabulary that the model was made for"
            + (f", or a file with vocab_size {len(vocabulary.tokens)}" if file else ", or leave vocab_size empty"),
        )
    return vocabulary


def _open_data(config: RunConfig, vocabulary: Vocabulary) -> tuple[dict[int, StageData], dict[int, EvaluationSet]]:
    training_data, evaluation_data = {}, {}
    for index, stage in enumerate(config.stages):
        if isinstance(stage, PretrainStage):
            masked = stage.masking == "static"
            folder = _open_shards(
                config, stage, vocabulary, split="training", length=stage.sequence_length, masked=masked
            )
            # Each phase has an order of its own, even over the same shards.
            order = SampleOrder(folder.rows, config.seed + index, stage.data_range)
            total = num_steps(stage.length, num_samples=order.num_samples, global_batch_size=stage.global_batch_size)
            # Checked here again for lengths in epochs or samples: only now is the number of steps known.
            if (stage.schedule.warmup.steps or 0) >= total:
                raise InputError(
                    f"stages.{index}.schedule.warmup.steps: got {stage.schedule.warmup.steps}; allowed: less than "
                    f"the stage's {total} steps"
                )
            masking = _dynamic_masking(stage, vocabulary, config.seed + index)
            if masking is not None:
                masking.check(folder)
            training_data[index] = StageData(folder, order, total, stage.sequence_length, masking)
            if stage.evaluation is not None:
                evaluation_data[index] = _open_evaluation(config, stage.evaluation, stage.sequence_length, vocabulary)
        elif isinstance(stage, EvaluateStage):
            evaluation_data[index] = _open_evaluation(config, stage, stage.sequence_length, vocabulary)
    return training_data, evaluation_data


def _open_evaluation(
    config: RunConfig, evaluation: Evaluation | EvaluateStage, length: int, vocabulary: Vocabulary
) -> EvaluationSet:
    split: Split = "held_out" if evaluation.data_range is None else "training"
    return EvaluationSet.of(
        _open_shards(config, evaluation, vocabulary, split=split, length=length, masked=True),
        micro_batch_size=evaluation.micro_batch_size,
        max_samples=evaluation.max_samples,
        data_range=evaluation.data_range,
    )


def _open_shards(
    config: RunConfig,
    reader: PretrainStage | Evaluation | EvaluateStage,
    vocabulary: Vocabulary,
    *,
    split: Split,
    length: int,
    masked: bool,
) -> ShardFolder:
    predictions = reader.max_predictions_per_sequence
    find = find_named_shards if reader.shards else find_shard_folder
    path = find(Path(reader.shards or config.dataset.folder), length, predictions, split)
    return ShardFolder.open(
        path,
        split=split,
        sequence_length=length,
        max_predictions=predictions,
        vocabulary=vocabulary,
        masked=masked,
    )


def _dynamic_masking(stage: PretrainStage, vocabulary: Vocabulary, seed: int) -> DynamicMasking | None:
    if stage.masking == "static":
        return None
    return DynamicMasking.of(
        vocabulary,
        seed=seed,
        probability=stage.masked_lm_probability,
        max_predictions=stage.max_predictions_per_sequence,
        whole_words=stage.whole_word_masking,
    )


def _versions_of_masks(config: RunConfig) -> dict[str, str]:
    """Return what tells apart the masks of this release, where they are not those of every other."""
    pretraining = (stage for stage in config.stages if isinstance(stage, PretrainStage))
    whole_words = any(stage.masking == "dynamic" and stage.whole_word_masking for stage in pretraining)
    return {"masks of whole words": str(WORD_MASKS_VERSION)} if whole_words else {}


def _open_writer(config: RunConfig, world: World, device: torch.device, folder: RunFolder, attempt: int) -> RunWriter:
    environment = Environment.current(
        world_size=world.size,
        precision=config.precision,
        device=device,
        partitioning=config.optimizer.partitioning,
        compression=config.reduction.compression,
        collectives=config.collectives,
        engine=config.engine,
    )
    environment.versions.update(_versions_of_masks(config))

    def announce(position: Position, path: Path) -> None:
        metrics.event("checkpoint", stage=position.stage, step=position.step, path=str(path))

    store = CheckpointStore(folder, environment, config.checkpoint.keep, announce)
    store.remove_leftovers()
    folder.remove_leftovers()
    # Before anything is written: on a full disk, a lower keep frees space.
    store.prune(store.keep)
    metrics = MetricsWriter(folder.path, config.logging, Reporter(config.job.uid, attempt))
    return RunWriter(folder, store, metrics)


def configured_micro_batch_sizes(config: RunConfig) -> dict[int, int]:
    """Return the sizes that the configuration holds, by index of the stage."""
    return {
        index: stage.micro_batch_size
        for index, stage in enumerate(config.stages)
        if isinstance(stage, PretrainStage | EvaluateStage | FinetuneStage) and stage.micro_batch_size != "auto"
    }


def _open_profiler(session: Session) -> Profiler:
    writer = session.writer

    def report(times: StepTimes, path: Path) -> None:
        if writer is not None:
            writer.metrics.event("profiled", **times.to_record(), path=str(path))
            print_table(render_step_times(times))

    folder = Path(session.config.output_folder)
    rank, device = session.world.rank, session.device
    return open_profiler(session.config.profile_steps, folder, rank=rank, device=device, on_profile=report)


def _load_newest(store: CheckpointStore, session: Session, moments: dict[str, Tensor]) -> Checkpoint | None:
    checkpoint = store.latest_valid()
    if checkpoint is None:
        return None
    left = session.config.stages[checkpoint.position.stage_index :]
    if not isinstance(left[0], FinetuneStage):
        copy_state(checkpoint.path, checkpoint.load(), state_by_name(session, moments))
    elif are_needed(left[checkpoint.position.stage_finished :]):
        # The checkpoint's tensors are those of the task's model, which the stage itself loads.
        load_start(store.folder.path, session.parameters)
    _announce_resume(checkpoint, store.environment, session)
    return checkpoint


def _announce_resume(checkpoint: Checkpoint, environment: Environment, session: Session) -> None:
    changed = checkpoint.environment.differences(environment)
    if session.writer is not None:
        changed += session.writer.folder.changed
    message = "Resumed, not bit-identical: " + ", ".join(changed) if changed else "Resumed, bit-identical"
    if session.device.type != "cpu" and not changed:
        message = "Resumed"  # GPU kernels do not promise the same rounding twice
    if session.writer is not None:
        position = checkpoint.position
        session.writer.metrics.event(
            "resumed", stage=position.stage, step=position.step, path=str(checkpoint.path), message=message
        )
