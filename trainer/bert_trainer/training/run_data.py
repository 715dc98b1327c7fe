"""What a run reads: its vocabulary, and the shards that its stages train on and are measured on.

All of it is opened before the first step, so that a mistake in any stage is found at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bert_trainer.config.run_config import RunConfig
from bert_trainer.config.stages import EvaluateStage, Evaluation, PretrainStage
from bert_trainer.dataset.sampling.dynamic_masking import DynamicMasking
from bert_trainer.dataset.shards import ShardFolder, Split, find_named_shards, find_shard_folder
from bert_trainer.dataset.tokens.wordpiece import Vocabulary, read_vocabulary
from bert_trainer.errors import InputError
from bert_trainer.optim.schedule import num_steps
from bert_trainer.parallel.world import World, on_rank_0
from bert_trainer.training.data_loader import SampleOrder
from bert_trainer.training.evaluation import EvaluationSet


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
    # Files are opened on rank 0, which broadcasts the result: all ranks see the same shards, and a mistake in them is
    # reported once.
    vocabulary = on_rank_0(world, lambda: _read_vocabulary(config))
    training, evaluation = on_rank_0(world, lambda: _open_stages(config, vocabulary))
    return RunData(vocabulary, training, evaluation)


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
            training[index] = StageData(folder, order, total, stage.sequence_length, samples_before, masking)
            samples_before += total * stage.global_batch_size
            if stage.evaluation is not None:
                evaluation[index] = _open_evaluation(config, stage.evaluation, stage.sequence_length, vocabulary)
        elif isinstance(stage, EvaluateStage):
            evaluation[index] = _open_evaluation(config, stage, stage.sequence_length, vocabulary)
    return training, evaluation


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
