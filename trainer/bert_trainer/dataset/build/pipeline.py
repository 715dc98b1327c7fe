"""Build a dataset: the order of its steps from text to shards, each of which can be resumed.

``dataset.json`` states what the folder is built from. A build with other settings is refused; the same build resumes
where it stopped. Shards are byte-identical for any number of processes.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_job.run_config import DatasetConfig
from bert_job.run_stages import PrepareStage
from bert_trainer.dataset.build.balancing import num_balanced, plan_resharding
from bert_trainer.dataset.build.estimates import MIN_SHARDS, Estimate, check_estimate, estimate_build, free_disk
from bert_trainer.dataset.build.fit import check_vocabulary, warn_about_pairs
from bert_trainer.dataset.build.passes import CorpusPasses, EncodedCorpus, token_path
from bert_trainer.dataset.build.progress import BuildProgress, ProgressSink
from bert_trainer.dataset.build.recipes import (
    describe_recipe,
    file_name,
    folder_name,
    loader_layout,
    resharding,
    shard_layout,
    with_num_shards,
)
from bert_trainer.dataset.build.resume import Length, built_vocabulary, is_complete, open_dataset_info
from bert_trainer.dataset.corpus.corpora import Compared, Corpora, open_corpora
from bert_trainer.dataset.sampling.masking import MaskingRule
from bert_trainer.dataset.sampling.shard_samples import NUM_SPECIAL_TOKENS, ShardTask, build_shard, groups_of_shard
from bert_trainer.dataset.shards import MAX_ROW_TOKENS, ShardHeader, Split, make_shard_folder, read_header
from bert_trainer.dataset.shards.dataset_info import DatasetInfo, LengthInfo, read_dataset_info
from bert_trainer.dataset.tokens.block_files import expected_blocks
from bert_trainer.dataset.tokens.tokenizer_config import CONFIG_FILE
from bert_trainer.dataset.tokens.wordpiece import Vocabulary, read_vocabulary
from bert_trainer.dataset.workers.pool import TaskPool, WorkerPool, usable_cores
from bert_trainer.errors import InputError, StorageFailed, TrainerError
from bert_trainer.system.atomic_files import (
    disk_errors,
    is_outage,
    refuse_others_links,
    write_atomically,
    write_json_atomically,
)
from bert_trainer.system.available_memory import available_bytes
from bert_trainer.system.folder_lock import exclusive, was_ever_locked

logger = logging.getLogger(__name__)

WORK_FOLDER = ".work"
"""Scratch files below the dataset's folder; removed when the dataset is complete."""
_ESTIMATE = "estimate.json"
"""In it: what the attempt that began the build needed."""

OpenPool = Callable[[Callable[[], None]], AbstractContextManager[TaskPool]]


def build_dataset(
    stage: PrepareStage,
    dataset: DatasetConfig,
    lengths: list[Length],
    reporter: ProgressSink,
    *,
    check: Callable[[], None] = lambda: None,
    open_pool: OpenPool | None = None,
    compared: Compared | None = None,
) -> DatasetInfo:
    """Build what is missing of a dataset and return the content of ``dataset.json``.

    Args:
        stage: the text and the settings.
        dataset: the folder, and the vocabulary where one is given.
        lengths: one folder of shards each; lengths that an earlier build made stay. None: the vocabulary alone, for
            stages that read texts of their own.
        reporter: receives the progress.
        check: called between shards and several times a second while they are made. What it raises stops the
            build, which can be resumed.
        open_pool: opens the pool of worker processes, given the check that they run; by default on this machine.
        compared: called with the bytes of a published text that were compared with its checksums.

    Raises:
        InputError: wrong text, vocabulary or settings, or the folder holds a dataset built otherwise.
        StorageFailed: the volume filled up or failed meanwhile; a later build resumes.
        TrainerError: a worker died, or another process builds here.
    """
    volume = _Volume(Path(dataset.folder))
    with _outages(volume):
        return _build_in(volume, stage, dataset, lengths, reporter, check, open_pool, compared)


def _build_in(
    volume: _Volume,
    stage: PrepareStage,
    dataset: DatasetConfig,
    lengths: list[Length],
    reporter: ProgressSink,
    check: Callable[[], None],
    open_pool: OpenPool | None,
    compared: Compared | None,
) -> DatasetInfo:
    root = volume.root
    stage = _with_recipe(stage, root)
    _check_lengths(lengths)
    corpus = open_corpora(
        stage.all_corpora,
        num_processes=stage.num_processes or usable_cores(),
        check=lambda: check_and_tick(),
        compared=compared or (lambda done, total: None),
    )
    progress = BuildProgress(
        stage,
        reporter,
        blocks=expected_blocks(corpus.text_bytes),
        shards=len(lengths)
        * ((stage.num_shards or MIN_SHARDS) + (1 if stage.held_out_fraction else 0) + num_balanced(stage)),
    )

    def local_pool(check: Callable[[], None]) -> WorkerPool:
        return WorkerPool(stage.num_processes or usable_cores(), check)

    def check_and_tick() -> None:
        check()
        progress.tick()

    info = open_dataset_info(stage, dataset, corpus, root, lengths)
    progress.start(info)
    # Before the lock, which is a file: a complete dataset may lie on a read-only mount.
    if not is_complete(info, root, built_vocabulary(stage, dataset), lengths):
        estimate = _check_resources(stage, corpus, lengths, root)
        with exclusive(root):
            volume.is_begun = True
            _note_estimate(estimate, root)
            # Read again: another process may have built here between the first look and the lock.
            info = open_dataset_info(stage, dataset, corpus, root, lengths)
            try:
                with (open_pool or local_pool)(check_and_tick) as pool:
                    info = _build(
                        stage, dataset, corpus, info, lengths, pool=pool, progress=progress, check=check_and_tick
                    )
            except TrainerError:
                _save_time_spent(info, root, progress)
                raise
    progress.finish()
    return info


@dataclass
class _Volume:
    """Where a dataset is built."""

    root: Path
    is_begun: bool = False
    """Whether this build has the folder's lock, so that it could be written then."""

    def is_out(self, error: BaseException | None) -> bool:
        """Tell an outage, which passes, from what the user has set: rights, or a volume that was never writable."""
        if getattr(error, "errno", None) == errno.EROFS and not _is_read_only(self.root):
            return False  # another volume, mounted below the folder or linked to from there
        return is_outage(error, was_writable=self.is_begun)


def _is_read_only(folder: Path) -> bool:
    try:
        return bool(os.statvfs(folder).f_flag & os.ST_RDONLY)
    except OSError:
        return False


@contextmanager
def _outages(volume: _Volume) -> Iterator[None]:
    """Turn an outage of a volume into the error that is retried as such.

    Raises:
        StorageFailed: in place of it.
    """
    try:
        yield
    except (TrainerError, OSError) as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        if isinstance(error, StorageFailed) or not volume.is_out(cause):
            raise
        if isinstance(error, TrainerError):
            raise StorageFailed(error.message, hint=error.hint) from cause
        raise StorageFailed(f"{error.filename or volume.root}: {error.strerror or error}") from error


def _with_recipe(stage: PrepareStage, root: Path) -> PrepareStage:
    """Fill in the recipe's number of training parts, and log what of the build is the recipe's."""
    stage = with_num_shards(stage, read_dataset_info(root))
    if line := describe_recipe(stage):
        logger.info("%s", line)
    return stage


def _build(
    stage: PrepareStage,
    dataset: DatasetConfig,
    corpus: Corpora,
    info: DatasetInfo,
    lengths: list[Length],
    *,
    pool: TaskPool,
    progress: BuildProgress,
    check: Callable[[], None],
) -> DatasetInfo:
    """Run the steps in order. A build may be killed between any two lines; the next one resumes from what is on disk.

    Every file is written beside its place, flushed and renamed, so a file under its final name is whole. What makes
    each step safe to repeat stands beside it.
    """
    root = Path(dataset.folder)
    # 0) The settings, before any other file: shards without a dataset.json above them are refused as foreign.
    # A complete dataset that gets another length stays marked complete, so training on its other lengths may go on
    # meanwhile; the new length appears in dataset.json with the last write.
    if not info.complete:
        info.write(root)
    # 1) Text to tokens, in the work folder.
    encoded = _encode_corpus(stage, dataset, corpus, info, pool=pool, progress=progress, check=check)
    path = built_vocabulary(stage, dataset)
    vocabulary = read_vocabulary(path)
    # 2) The hashes of text and vocabulary, before the first shard: shards left by an interrupted build are
    # kept only if both are the same again.
    info = _save_corpus_info(info, encoded, vocabulary, root, progress)
    num_tokens = encoded.counts.tokens_training + encoded.counts.tokens_held_out
    check_vocabulary(stage, num_tokens, encoded.unknown_share, path)
    _keep_vocabulary(vocabulary, path, root, lower_case=stage.lower_case)
    # 3) Tokens to shards, one task per file. Settings, text and vocabulary decide its bytes, so a finished file is
    # what this build would write, and is kept.
    corpus_name = info.settings.corpus_name
    tasks = [task for length in lengths for task in _shard_tasks(stage, length, encoded, vocabulary, root, corpus_name)]
    rows = {task.target: found for task in tasks if (found := _rows_of_finished(task))}
    num_files = len(tasks) + len(lengths) * num_balanced(stage)
    progress.set_shards(blocks=encoded.num_blocks, shards=num_files, done=len(rows))
    missing = [task for task in tasks if task.target not in rows]
    for task, num_rows in pool.run(build_shard, missing):
        rows[task.target] = num_rows
        progress.save()
        progress.advance()
    if stage.samples == "pairs":
        warn_about_pairs([task.target for task in tasks if task.split == "training" and task.shard == 0])
    built = [_length_info(length, root, tasks, rows) for length in lengths]
    # 4) Where the recipe asks for it, shards to shards of equal size.
    built = [
        length if (plan := plan_resharding(stage, info, length, root)) is None else plan.carry_out(pool, progress)
        for length in built
    ]
    # 5) Complete. The scratch files go after that: a crash in between leaves files that a later build checks,
    # while the other order could leave an incomplete dataset that has to encode its text again.
    kept = [old for old in info.lengths if (old.sequence_length, old.max_predictions) not in lengths]
    by_length = sorted([*kept, *built], key=lambda length: (length.sequence_length, length.max_predictions))
    update: dict[str, Any] = {"complete": True, "lengths": tuple(by_length), **progress.time_spent()}
    info = info.model_copy(update=update)
    info.write(root)
    shutil.rmtree(root / WORK_FOLDER, ignore_errors=True)
    return info


def _encode_corpus(
    stage: PrepareStage,
    dataset: DatasetConfig,
    corpus: Corpora,
    info: DatasetInfo,
    *,
    pool: TaskPool,
    progress: BuildProgress,
    check: Callable[[], None],
) -> EncodedCorpus:
    """Run the passes over the corpus, as far as an earlier attempt has not."""
    path, work_folder = built_vocabulary(stage, dataset), Path(dataset.folder) / WORK_FOLDER
    # An attempt that was interrupted earlier trains the vocabulary again: the same text gives the same one.
    is_trained = (
        info.vocabulary_sha256 is not None and path.exists() and read_vocabulary(path).sha256 == info.vocabulary_sha256
    )
    refuse_others_links(work_folder.parent, [work_folder])
    with disk_errors(work_folder):
        work_folder.mkdir(exist_ok=True)
        passes = CorpusPasses(
            stage=stage,
            corpus=corpus,
            work_folder=work_folder,
            vocabulary_path=path,
            pool=pool,
            check=check,
            progress=progress,
        )
        return passes.run(info.settings, vocabulary_size=None if is_trained else info.settings.vocabulary_size)


def _check_lengths(lengths: list[Length]) -> None:
    for sequence_length, max_predictions in lengths:
        most = sequence_length - NUM_SPECIAL_TOKENS
        if not 8 <= sequence_length <= MAX_ROW_TOKENS or not 1 <= max_predictions <= most:
            raise InputError(
                f"length {sequence_length}:{max_predictions}: allowed are 8 to {MAX_ROW_TOKENS} tokens and "
                f"1 to {max(1, most)} predictions"
            )


def _check_resources(stage: PrepareStage, corpus: Corpora, lengths: list[Length], root: Path) -> Estimate:
    """Refuse a build that does not fit. What an earlier attempt left counts as free: it is part of the estimate."""
    estimate = estimate_build(
        text_bytes=corpus.text_bytes,
        lengths=lengths,
        draws=stage.dupe_factor * corpus.mean_weight,
        num_shards=stage.num_shards,
        num_processes=stage.num_processes or usable_cores(),
        vocabulary_size=stage.vocabulary_size,
        layouts=[shard_layout(stage), *([loader_layout(stage)] if resharding(stage) else [])],
        num_balanced=num_balanced(stage),
        samples=stage.samples,
    )
    own_bytes = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
    check_estimate(
        estimate,
        root,
        free_disk=free_disk(root) + own_bytes,
        free_memory=available_bytes(),
        fitted=_has_fitted(estimate, root),
    )
    return estimate


def _note_estimate(estimate: Estimate, root: Path) -> None:
    """Note what has just been found to fit, for a later attempt that finds less room."""
    refuse_others_links(root, [root / WORK_FOLDER])
    # Where the disk is full already, the attempt ends for that soon enough.
    with suppress(OSError, TrainerError):
        (root / WORK_FOLDER).mkdir(exist_ok=True)
        write_json_atomically(root / WORK_FOLDER / _ESTIMATE, {"disk_bytes": estimate.disk})


def _has_fitted(estimate: Estimate, root: Path) -> bool:
    """Tell whether an earlier attempt began a build of this size here: others have taken the room since."""
    try:
        return int(json.loads((root / WORK_FOLDER / _ESTIMATE).read_text())["disk_bytes"]) >= estimate.disk
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        # An attempt that had the lock and could not write a single file after it.
        return was_ever_locked(root) and read_dataset_info(root) is None


def _save_corpus_info(
    info: DatasetInfo, encoded: EncodedCorpus, vocabulary: Vocabulary, root: Path, progress: BuildProgress
) -> DatasetInfo:
    """Save what the passes found. Where an earlier attempt got as far, text and vocabulary must be the same.

    Raises:
        InputError: they are not.
    """
    found: dict[str, Any] = {
        "corpus_sha256": encoded.corpus_sha256,
        "vocabulary_sha256": vocabulary.sha256,
        "vocabulary_entries": vocabulary.size,
        "counts": encoded.counts,
        "word_hit_rate": encoded.word_hit_rate,
        "unknown_share": encoded.unknown_share,
        **progress.time_spent(),
    }
    for name in ("corpus_sha256", "vocabulary_sha256"):
        before = getattr(info, name)
        if before is not None and before != found[name]:
            raise InputError(
                f"{root}: {name} was {before} when this build was started, is {found[name]} now",
                hint="delete the folder to build it again from the start",
            )
    logger.info("%s", ", ".join(f"{name} {count}" for name, count in encoded.counts.model_dump().items()))
    info = info.model_copy(update=found)
    if not info.complete:
        info.write(root)
    return info


def _keep_vocabulary(vocabulary: Vocabulary, source: Path, root: Path, *, lower_case: bool) -> None:
    """Copy the vocabulary to the shards, wherever it came from, and its settings: they are useless without them."""
    name, content = vocabulary.file
    is_new = not (root / name).exists()
    wants_config = is_new or (vocabulary.is_byte_level and not (root / CONFIG_FILE).exists())
    if vocabulary.said is not None and wants_config:
        write_json_atomically(root / CONFIG_FILE, vocabulary.said.as_tokenizer_config(lower_case))
    if is_new:
        write_atomically(root / name, content if source.suffix == ".json" else source.read_bytes())


def _shard_tasks(
    stage: PrepareStage,
    length: Length,
    encoded: EncodedCorpus,
    vocabulary: Vocabulary,
    root: Path,
    corpus_name: str | None,
) -> list[ShardTask]:
    sequence_length, max_predictions = length
    folder = root / folder_name(stage, length, corpus_name)
    make_shard_folder(folder, root=root)
    rule = MaskingRule.of(
        vocabulary,
        probability=stage.masked_lm_probability,
        max_predictions=max_predictions,
        whole_words=stage.whole_word_masking,
    )
    num_training = encoded.num_training_shards
    # A training shard takes one group per pass; held-out documents are used once, so a held-out shard is one group.
    shards: list[tuple[Split, int, tuple[int, ...]]] = [
        *(
            ("training", number, groups_of_shard(number, num_training, stage.dupe_factor))
            for number in range(num_training)
        ),
        *(("held_out", number, (num_training + number,)) for number in range(encoded.num_held_out_shards)),
    ]
    counts: dict[Split, int] = {"training": num_training, "held_out": encoded.num_held_out_shards}
    token_paths = tuple(token_path(root / WORK_FOLDER, number) for number in range(encoded.num_blocks))
    return [
        ShardTask(
            target=folder / file_name(stage, split, number, counts[split], corpus_name),
            token_paths=token_paths,
            num_groups=encoded.num_groups,
            groups=groups,
            split=split,
            shard=number,
            sequence_length=sequence_length,
            short_sequence_probability=stage.short_sequence_probability,
            seed=stage.seed,
            masking=rule,
            vocabulary_sha256=vocabulary.sha256,
            # Held-out shards are always masked: every evaluation has to predict the same tokens.
            masked=stage.masking == "static" or split == "held_out",
            samples=stage.samples,
            layout=shard_layout(stage),
        )
        for split, number, groups in shards
    ]


def _rows_of_finished(task: ShardTask) -> int | None:
    """Return the samples of a file that an earlier attempt finished; None for a missing, damaged or other file."""
    if not task.target.exists():
        return None
    try:
        header = read_header(task.target)
    except InputError as error:
        logger.warning("Rebuilding %s: %s", task.target, error)
        return None
    wanted = ShardHeader(header.rows, task.sequence_length, task.masking.max_predictions, task.vocabulary_sha256)
    kind = task.masked, task.samples == "documents", task.layout
    is_same = header == wanted and (header.masked, header.documents, header.layout) == kind
    return header.rows if is_same else None


def _length_info(length: Length, root: Path, tasks: list[ShardTask], rows: dict[Path, int]) -> LengthInfo:
    own = [task for task in tasks if (task.sequence_length, task.masking.max_predictions) == length]
    by_split: dict[Split, dict[str, int]] = {"training": {}, "held_out": {}}
    for task in sorted(own, key=lambda task: task.target):
        by_split[task.split][task.target.name] = rows[task.target]
    training, held_out = by_split["training"], by_split["held_out"]
    num_tokens = None
    if own[0].samples == "documents":
        num_tokens = sum(read_header(task.target).num_tokens or 0 for task in own if task.split == "training")
    return LengthInfo(
        sequence_length=length[0],
        max_predictions=length[1],
        folder=own[0].target.parent.relative_to(root).as_posix(),
        training=training,
        held_out=held_out,
        samples_training=sum(training.values()),
        samples_held_out=sum(held_out.values()),
        row_tokens_training=num_tokens,
    )


def _save_time_spent(info: DatasetInfo, root: Path, progress: BuildProgress) -> None:
    """Add an interrupted attempt to the time spent, for the totals of ``dataset.json``."""
    # On a full disk this fails as well; the error to report is the one that stopped the build.
    with suppress(TrainerError):
        latest = read_dataset_info(root) or info
        if not latest.complete:
            latest.model_copy(update=progress.time_spent()).write(root)
