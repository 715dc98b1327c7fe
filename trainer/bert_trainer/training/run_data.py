"""What a run reads: its vocabulary, and the shards that its stages train on and are measured on.

All of it is opened before the first step, so that a mistake in any stage is found at once. Data that a run resumes with
are compared with those that it began with.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from bert_trainer.checkpoints.checkpoint import MANIFEST_FILE
from bert_trainer.checkpoints.store import CHECKPOINTS_FOLDER
from bert_trainer.config.run_config import RunConfig
from bert_trainer.config.stages import EvaluateStage, Evaluation, PretrainStage
from bert_trainer.dataset.sampling.dynamic_masking import DynamicMasking
from bert_trainer.dataset.shards import (
    ShardFolder,
    Split,
    check_left,
    find_named_shards,
    find_shard_folder,
    has_lost_some,
)
from bert_trainer.dataset.tokens.wordpiece import Vocabulary, read_vocabulary
from bert_trainer.errors import InputError, StorageFailed
from bert_trainer.optim.schedule import num_steps
from bert_trainer.parallel.world import World, on_rank_0
from bert_trainer.training.data_loader import SampleOrder
from bert_trainer.training.evaluation import EvaluationSet
from bert_trainer.training.shard_record import SHARDS_FILE, StageShards, list_names, read_record, write_record


@dataclass(frozen=True, slots=True)
class StageData:
    """What a pretraining stage reads."""

    folder: ShardFolder
    order: SampleOrder
    total_steps: int
    sequence_length: int
    samples_before: int
    """Sequences of all pretraining stages before this one."""
    masking: DynamicMasking | None = None
    """Draws masks; None: the masks in the files are used."""


@dataclass(frozen=True, slots=True)
class RunData:
    """What a run reads. Holds no open file."""

    vocabulary: Vocabulary
    training: dict[int, StageData]
    """By index of the stage."""
    evaluation: dict[int, EvaluationSet]
    """By index of the stage: of evaluate stages, and of those that are evaluated while they train."""


def open_data(config: RunConfig, world: World) -> RunData:
    """Find and check everything. Collective.

    Raises:
        InputError: the vocabulary or a stage's shards are missing, damaged, or not this model's.
    """
    on_rank_0(world, lambda: _check_folders(config))
    # Files are opened on rank 0, which broadcasts the result: all ranks see the same shards, and a mistake in them is
    # reported once.
    vocabulary = on_rank_0(world, lambda: _read_vocabulary(config))
    training, evaluation = on_rank_0(world, lambda: _open_stages(config, vocabulary))
    return RunData(vocabulary, training, evaluation)


def _check_folders(config: RunConfig) -> None:
    """Tell a volume that is no longer there from a mistyped path: the run has read from it before.

    Before the first checkpoint the data may have been made anew, under other names: then only a folder that is gone, or
    empty as a mount point is, tells of a volume.

    Raises:
        StorageFailed: with exit code 4.
    """
    output = Path(config.output_folder)
    record, has_learnt = read_record(output), _has_learnt(output)
    for stage in config.stages:
        if isinstance(stage, PretrainStage) and stage.name in record:
            folder = _base(config, stage) / record[stage.name].folder
            names = record[stage.name].files if has_learnt else list_names(folder)
            if not any(os.path.exists(folder / name) for name in names):  # noqa: PTH110 - never raises
                raise StorageFailed(
                    f"{folder}: none of the shards is there with which this run began",
                    hint="check that the dataset's volume is mounted on this node; if the data have moved for good, "
                    f"delete {SHARDS_FILE} in the output folder",
                )


def _has_learnt(output: Path) -> bool:
    return bool(list(output.glob(f"{CHECKPOINTS_FOLDER}/*/{MANIFEST_FILE}")))


def _binding_record(config: RunConfig, output: Path) -> dict[str, StageShards]:
    """Return what the data of each stage have to be, as far as the run has begun with it."""
    record = read_record(output)
    if _has_learnt(output):
        return record
    # Nothing was learnt yet from the data, which may have been made anew since. That does not explain files that are
    # gone or damaged among others that are as they were.
    bases = {stage.name: _base(config, stage) for stage in config.stages if isinstance(stage, PretrainStage)}
    return {
        name: known
        for name, known in record.items()
        if name in bases and has_lost_some(bases[name] / known.folder, known.files)
    }


def _base(config: RunConfig, stage: PretrainStage) -> Path:
    return Path(stage.shards or config.dataset.folder)


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


def _open_stages(config: RunConfig, vocabulary: Vocabulary) -> tuple[dict[int, StageData], dict[int, EvaluationSet]]:
    training: dict[int, StageData] = {}
    evaluation: dict[int, EvaluationSet] = {}
    samples_before = 0
    output = Path(config.output_folder)
    record = _binding_record(config, output)
    begun: dict[str, tuple[Path, ShardFolder]] = {}
    for index, stage in enumerate(config.stages):
        if isinstance(stage, PretrainStage):
            folder = _open_training_shards(config, stage, vocabulary, record.get(stage.name))
            begun[stage.name] = (_base(config, stage), folder)
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
            training[index] = StageData(folder, order, total, stage.sequence_length, samples_before, masking)
            samples_before += total * stage.global_batch_size
            if stage.evaluation is not None:
                evaluation[index] = _open_evaluation(config, stage.evaluation, stage.sequence_length, vocabulary)
        elif isinstance(stage, EvaluateStage):
            evaluation[index] = _open_evaluation(config, stage, stage.sequence_length, vocabulary)
    if begun and not begun.keys() <= record.keys():
        write_record(output, begun)
    return training, evaluation


def _open_training_shards(
    config: RunConfig, stage: PretrainStage, vocabulary: Vocabulary, known: StageShards | None
) -> ShardFolder:
    """Open what a stage trains on. known: what it began with, if it has."""
    if known is not None and config.dataset.on_unreadable_shard == "Skip":
        # What cannot be used any more is found, and left out, when it is needed.
        return ShardFolder.of_known(
            _base(config, stage) / known.folder,
            known.files,
            sequence_length=stage.sequence_length,
            max_predictions=stage.max_predictions_per_sequence,
            vocabulary=vocabulary,
        )
    try:
        folder = _open_shards(
            config,
            stage,
            vocabulary,
            split="training",
            length=stage.sequence_length,
            masked=stage.masking == "static",
        )
    except InputError:
        if known is not None:
            # These data were right once: which of them are no longer there, or no longer whole, says more.
            check_left(_base(config, stage) / known.folder, known.files)
        raise
    if known is not None:
        folder.check_same(known.files)
    return folder


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
