"""What a run reads: its vocabulary, and the shards that its stages train on and are measured on.

All of it is opened before the first step, so that a mistake in any stage is found at once. Data that a run resumes with
are compared with those that it began with.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bert_job.run_config import RunConfig
from bert_job.run_stages import EvaluateStage, Evaluation, PretrainStage
from bert_job.weights import InitialCheckpointSpec
from bert_trainer.checkpoints.checkpoint import MANIFEST_FILE
from bert_trainer.checkpoints.description import read_settings, with_settings_of
from bert_trainer.checkpoints.store import CHECKPOINTS_FOLDER
from bert_trainer.dataset.sampling.dynamic_masking import DynamicMasking
from bert_trainer.dataset.shards import (
    ShardFolder,
    Split,
    find_named_shards,
    find_shard_folder,
    list_shards,
)
from bert_trainer.dataset.shards.dataset_info import read_dataset_info, refuse_half_built
from bert_trainer.dataset.shards.losses import check_left, find_losses
from bert_trainer.dataset.tokens.tokenizer_config import CONFIG_FILE, read_tokenizer
from bert_trainer.dataset.tokens.wordpiece import (
    VOCABULARY_FILE,
    Vocabulary,
    find_vocabulary_file,
    read_vocabulary,
    vocabulary_path,
)
from bert_trainer.errors import InputError, StorageFailed
from bert_trainer.optim.schedule import num_steps
from bert_trainer.output.run_folder import RunFolder
from bert_trainer.parallel.world import World, on_rank_0
from bert_trainer.training.data_loader import SampleOrder
from bert_trainer.training.evaluation import EvaluationSet
from bert_trainer.training.shard_record import SHARDS_FILE, StageShards, read_record, write_record

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StageData:
    """Data of a pretraining stage."""

    folder: ShardFolder
    order: SampleOrder
    total_steps: int
    sequence_length: int
    samples_before: int
    """Sequences of all pretraining stages before this one."""
    masking: DynamicMasking | None = None
    """Draws masks; None: the masks in the files are used."""
    splits_documents: bool = False
    """Whether attention and positions stay inside each document of a row."""
    is_begun: bool = False
    """Whether an earlier attempt has begun with exactly these shards."""


@dataclass(frozen=True, slots=True)
class RunData:
    """Data of a run. Holds no open file."""

    vocabulary: Vocabulary
    training: dict[int, StageData]
    """By index of the stage."""
    evaluation: dict[int, EvaluationSet]
    """By index of the stage: of evaluate stages, and of those that are evaluated while they train."""

    def steps_before(self, index: int) -> int:
        """Return the optimizer steps of the pretrain stages before a stage."""
        return sum(data.total_steps for number, data in self.training.items() if number < index)


@dataclass(frozen=True, slots=True)
class _Before:
    """What earlier attempts have left in the output folder."""

    record: Mapping[str, StageShards]
    """What stages began with, by name."""
    has_learnt: bool
    """Whether the run has a checkpoint. Until then its data may be made anew."""

    @classmethod
    def read(cls, output: Path) -> _Before:
        # pathlib's * also matches the folder of a checkpoint that is being written.
        manifests = output.glob(f"{CHECKPOINTS_FOLDER}/*/{MANIFEST_FILE}")
        return cls(read_record(output), any(not path.parent.name.startswith(".") for path in manifests))


def open_data(folder: RunFolder, world: World) -> RunData:
    """Find and check everything, and record what the run begins with. Collective.

    Raises:
        InputError: the vocabulary or a stage's shards are missing, damaged, or not this model's.
        DataUnreadable: some of the shards that the run began with are gone, damaged or others.
        StorageFailed: all of them are gone.
    """
    config = folder.config
    before = on_rank_0(world, lambda: _Before.read(folder.path))
    on_rank_0(world, lambda: _check_folders(config, before))
    # Files are opened on rank 0, which broadcasts the result: all ranks see the same shards, and a mistake in them is
    # reported once.
    vocabulary = on_rank_0(world, lambda: _with_settings(folder, _read_vocabulary(config), before))
    # A run that has begun has read these very files: trouble with them is no mistake in the configuration.
    training, evaluation = on_rank_0(
        world, lambda: _open_stages(folder, vocabulary, before), has_trained=bool(before.record)
    )
    return RunData(vocabulary, training, evaluation)


def _check_folders(config: RunConfig, before: _Before) -> None:
    """Tell a volume that is no longer there from a mistyped path.

    Before the first checkpoint the data may have been made anew, under other names: then only a folder that is gone, or
    empty as a mount point is, tells of a volume.

    Raises:
        StorageFailed: with exit code 4.
    """
    for stage in config.stages:
        if isinstance(stage, PretrainStage) and (known := before.record.get(stage.name)) is not None:
            folder = _base(config, stage) / known.folder
            names = known.files if before.has_learnt else _list_names(folder)
            if not any(os.path.exists(folder / name) for name in names):  # noqa: PTH110 - never raises
                raise StorageFailed(
                    f"{folder}: none of the shards is there with which this run began",
                    hint="check that the dataset's volume is mounted on this node; if the data have moved for good, "
                    f"delete {SHARDS_FILE} in the output folder",
                )


def _list_names(folder: Path) -> list[str]:
    """Return the names of the shards in a folder; none where it is gone. A volume's lost+found is no shard."""
    try:
        return [path.name for path in list_shards(folder)]
    except (InputError, OSError):
        return []


def _base(config: RunConfig, stage: PretrainStage) -> Path:
    return Path(stage.shards or config.dataset.folder)


def _read_vocabulary(config: RunConfig) -> Vocabulary:
    path = vocabulary_path(config.dataset)
    start = config.initial_checkpoint
    if start is not None and config.dataset.vocabulary_file is None and not path.exists():
        # A run that only fine-tunes has no data set; weights of other programs come with their vocabulary.
        weights = Path(start.path)
        folder = weights if weights.is_dir() else weights.parent
        beside = find_vocabulary_file(folder)
        if beside is None:
            raise InputError(
                f"dataset.vocabulary_file: got none, and neither {path} nor {folder / VOCABULARY_FILE} is there",
                hint="name the vocabulary that the weights were trained with",
            )
        path = beside
    vocabulary = read_vocabulary(path)
    wanted, file = config.sizes.vocabulary_size, config.sizes.config_file
    if wanted is not None and wanted != len(vocabulary.tokens):
        raise InputError(
            f"{path}: has {len(vocabulary.tokens)} entries, model.vocabulary_size"
            f"{f' of {file}' if file else ''} says {wanted}",
            hint="name the vocabulary that the model was made for"
            + (f", or a file with vocab_size {len(vocabulary.tokens)}" if file else ", or leave vocab_size empty"),
        )
    return vocabulary


def _with_settings(run: RunFolder, vocabulary: Vocabulary, before: _Before) -> Vocabulary:
    """Return the vocabulary with the settings that split the run's text, and record those that no default says.

    Those that the run began with count first: what lies beside other programs' weights may be gone when it resumes.
    Text that was prepared was split as the data set says, and what a run has learnt without such a record, as an
    earlier release did, as its vocabulary says; else it is what lies beside the vocabulary and the weights.

    Raises:
        InputError: settings that are not carried out here, or that contradict each other.
    """
    config, record = run.config, run.path / CONFIG_FILE
    if record.exists():
        recorded = read_tokenizer(run.path, vocabulary.tokens)
        return vocabulary if recorded is None else replace(vocabulary, said=recorded.settings)
    start = config.initial_checkpoint
    if start is not None and start.load != "none":
        pretrains = any(isinstance(stage, PretrainStage) for stage in config.stages)
        if before.has_learnt or (pretrains and _is_prepared(config)):
            _warn_of_other_settings(start, vocabulary)
        else:
            vocabulary = with_settings_of(Path(start.path), vocabulary)
    if vocabulary.said is not None and not vocabulary.is_byte_level:
        run.write_json(record, vocabulary.said.as_tokenizer_config(vocabulary.said.lower_case))
    return vocabulary


def _is_prepared(config: RunConfig) -> bool:
    """Return whether a run's data set says how its text was split."""
    try:
        return read_dataset_info(Path(config.dataset.folder)) is not None
    except InputError:
        return False  # reported where it is needed


def _warn_of_other_settings(start: InitialCheckpointSpec, vocabulary: Vocabulary) -> None:
    ours = vocabulary.settings
    try:
        theirs = read_settings(Path(start.path))
    except InputError as error:
        problem = error.message
    else:
        if theirs is None or ours.splits_like(theirs):
            return
        problem = f"{start.path}: its tokenizer splits text with {theirs}"
    logger.warning("%s; the text of this run was split with %s, which is what counts", problem, ours)


def _open_stages(
    run: RunFolder, vocabulary: Vocabulary, before: _Before
) -> tuple[dict[int, StageData], dict[int, EvaluationSet]]:
    config = run.config
    training: dict[int, StageData] = {}
    samples_before = 0
    begun: dict[str, StageShards] = {}
    is_new = False
    for index, stage in enumerate(config.stages):
        if not isinstance(stage, PretrainStage):
            continue
        known = before.record.get(stage.name)
        folder, is_bound = _open_training_shards(config, stage, vocabulary, known, has_learnt=before.has_learnt)
        begun[stage.name] = known if known is not None and is_bound else StageShards.of(_base(config, stage), folder)
        is_new = is_new or not is_bound
        # Each phase has an order of its own, even over the same shards.
        order = SampleOrder(folder.rows, config.seed + index, stage.data_range)
        total = num_steps(stage.length, num_samples=order.num_samples, global_batch_size=stage.global_batch_size)
        # Checked here again for lengths in epochs or samples: only now is the number of steps known.
        if (stage.warmup.steps or 0) >= total:
            raise InputError(
                f"stages.{index}.warmup.steps: got {stage.warmup.steps}; allowed: less than the stage's {total} steps"
            )
        masking = _dynamic_masking(stage, vocabulary, config.seed + index)
        # Those that the run began with were checked then; the first of them may be gone.
        if masking is not None and not is_bound:
            masking.check(folder)
        training[index] = StageData(
            folder,
            order,
            total,
            stage.sequence_length,
            samples_before,
            masking,
            splits_documents=folder.documents and not stage.cross_document_attention,
            is_begun=is_bound,
        )
        samples_before += total * stage.global_batch_size
    evaluation = _open_evaluations(config, vocabulary, [data.folder for data in training.values()])
    if is_new:
        # Headers took their time: a later attempt may have recorded other data by now.
        write_record(run, begun)
    return training, evaluation


def _open_training_shards(
    config: RunConfig, stage: PretrainStage, vocabulary: Vocabulary, known: StageShards | None, *, has_learnt: bool
) -> tuple[ShardFolder, bool]:
    """Open what a stage trains on; return also whether it has to be what the stage began with.

    Args:
        config: Of the run.
        stage: Of the run.
        vocabulary: That the shards were made with.
        known: What the stage began with, if it has.
        has_learnt: Whether the run has a checkpoint, of this stage or another. Until then the data may be made anew.
    """

    def open_found(path: Path | None = None) -> ShardFolder:
        return _open_shards(
            config,
            stage,
            vocabulary,
            split="training",
            length=stage.sequence_length,
            masked=stage.masking == "static",
            path=path,
        )

    if known is None:
        return open_found(), False
    path = _base(config, stage) / known.folder
    # Unopened: what cannot be used any more is found, and left out, when it is needed.
    as_it_was = ShardFolder.of_known(
        path,
        known.files,
        sequence_length=stage.sequence_length,
        max_predictions=stage.max_predictions_per_sequence,
        documents=known.documents,
        vocabulary=vocabulary,
    )
    skips = config.dataset.on_unreadable_shard == "Skip"
    if has_learnt and skips:
        refuse_half_built(path)
        return as_it_was, True
    if has_learnt:
        try:
            folder = open_found(path)
        except InputError:
            # These data were right once: which of them are no longer there, or no longer whole, says more.
            check_left(path, known.files)
            raise
        folder.check_same(known.files)
        return folder, True
    found, problem = None, None
    try:
        found = open_found()
    except InputError as error:
        problem = error
    if found is not None and found.paths[0].parent != path:
        return found, False
    # That they were made anew does not explain files that are gone or damaged beside others that are as they were.
    losses = find_losses(path, known.files, found)
    if losses.problems and skips and losses.show_when_read:
        return as_it_was, True
    if losses.problems:
        raise losses.error() from problem
    if found is None:
        raise problem or AssertionError("opened, or an error was raised")
    return found, False


def _open_evaluations(
    config: RunConfig, vocabulary: Vocabulary, trained_on: Sequence[ShardFolder]
) -> dict[int, EvaluationSet]:
    """Open what stages are evaluated on, by index: of evaluate stages, and of those evaluated while they train."""
    found = {}
    trained: PretrainStage | None = None
    for index, stage in enumerate(config.stages):
        if isinstance(stage, PretrainStage | EvaluateStage):
            trained = stage if isinstance(stage, PretrainStage) else trained
            evaluation = stage.evaluation if isinstance(stage, PretrainStage) else stage
            if evaluation is not None:
                opened = _open_evaluation(config, evaluation, stage.sequence_length, vocabulary, trained_on)
                # As the model was trained.
                is_across = trained is not None and bool(trained.cross_document_attention)
                found[index] = replace(opened, splits_documents=opened.folder.documents and not is_across)
    return found


def _open_evaluation(
    config: RunConfig,
    evaluation: Evaluation | EvaluateStage,
    length: int,
    vocabulary: Vocabulary,
    trained_on: Sequence[ShardFolder],
) -> EvaluationSet:
    split: Split = "held_out" if evaluation.data_range is None else "training"
    folder = None
    if evaluation.data_range is not None and config.dataset.on_unreadable_shard == "Skip":
        # With what is lost counted, or the range would move onto samples that were trained on.
        path = _find_shards(config, evaluation, split=split, length=length)
        same = (path, length, evaluation.max_predictions_per_sequence)
        shapes = ((it, (it.paths[0].parent, it.sequence_length, it.max_predictions)) for it in trained_on)
        folder = next((it for it, shape in shapes if shape == same), None)
        if folder is not None:
            folder.check_masked()
    return EvaluationSet.of(
        folder or _open_shards(config, evaluation, vocabulary, split=split, length=length, masked=True),
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
    path: Path | None = None,
) -> ShardFolder:
    """Open the shards of a split. path: where they are; None: they are searched for.

    Raises:
        InputError: as ``ShardFolder.open``, or they do not hold what the model or the stage needs.
    """
    folder = ShardFolder.open(
        path or _find_shards(config, reader, split=split, length=length),
        split=split,
        sequence_length=length,
        max_predictions=reader.max_predictions_per_sequence,
        vocabulary=vocabulary,
        masked=masked,
    )
    place = folder.paths[0].parent
    if folder.documents and config.sizes.objective == "mlm+nsp":
        raise InputError(
            f"{place}: holds documents, in which there are no next sentences to predict; model.objective is mlm+nsp",
            hint="set objective: mlm, or name shards of pairs",
        )
    if not folder.documents and isinstance(reader, PretrainStage) and reader.cross_document_attention:
        raise InputError(
            f"{place}: holds pairs, and cross_document_attention of the stage {reader.name} is true; "
            "allowed: with shards of documents",
            hint="leave it out, or name shards of documents",
        )
    return folder


def _find_shards(
    config: RunConfig, reader: PretrainStage | Evaluation | EvaluateStage, *, split: Split, length: int
) -> Path:
    find = find_named_shards if reader.shards else find_shard_folder
    return find(Path(reader.shards or config.dataset.folder), length, reader.max_predictions_per_sequence, split)


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
