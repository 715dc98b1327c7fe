"""Build a dataset: the story from text to shards, restartable at every point.

``dataset.json`` says what the folder was built from; a build with other settings is refused, the same build
goes on where it stopped. Shards are the same bytes for any number of processes.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

from bert_trainer.config.run_config import DatasetConfig
from bert_trainer.config.stages import PrepareStage
from bert_trainer.dataset.build.balancing import num_balanced, plan_balanced
from bert_trainer.dataset.build.estimates import LEAST_SHARDS, check_needs, estimate_needs, free_disk
from bert_trainer.dataset.build.passes import Preparation, Prepared, token_path
from bert_trainer.dataset.build.progress import BuildProgress, Reports
from bert_trainer.dataset.build.recipes import balanced_cut, file_name, folder_name, loader_layout, shard_layout
from bert_trainer.dataset.build.resume import Length, is_complete, open_record, vocabulary_path
from bert_trainer.dataset.corpus.corpora import Compared, Corpora, open_corpora
from bert_trainer.dataset.sampling.masking import MaskingRule
from bert_trainer.dataset.sampling.shard_samples import NUM_SPECIAL_TOKENS, ShardTask, build_shard, groups_of_shard
from bert_trainer.dataset.shards import LONGEST_ROW, ShardHeader, Split, read_header
from bert_trainer.dataset.shards.dataset_info import DatasetRecord, LengthRecord, read_record
from bert_trainer.dataset.tokens.block_files import expected_blocks
from bert_trainer.dataset.tokens.wordpiece import MOST_UNKNOWN, Vocabulary, describe_unknown, read_vocabulary
from bert_trainer.dataset.workers.pool import TaskPool, WorkerPool, usable_cores
from bert_trainer.errors import InputError, TrainerError
from bert_trainer.system.atomic_files import PARTIAL_SUFFIX, disk_errors, write_atomically
from bert_trainer.system.available_memory import available_bytes
from bert_trainer.system.folder_lock import exclusive

logger = logging.getLogger(__name__)

WORK_FOLDER = ".work"
"""Scratch files below the dataset's folder; removed when the dataset is complete."""

OpenPool = Callable[[Callable[[], None]], AbstractContextManager[TaskPool]]


def build_dataset(
    stage: PrepareStage,
    dataset: DatasetConfig,
    lengths: list[Length],
    reporter: Reports,
    *,
    check: Callable[[], None] = lambda: None,
    open_pool: OpenPool | None = None,
    compared: Compared | None = None,
) -> DatasetRecord:
    """Make whatever of a dataset is not there yet, and return what ``dataset.json`` then says.

    lengths: one folder of shards each; lengths that an earlier build made stay. check: called between shards
    and several times a second while they are made; what it raises stops the build, which can go on later.
    open_pool: gives the processes that work, for a check of theirs; by default processes of this machine. compared:
    told how much of a published text was compared with its checksums.

    Raises:
        InputError: wrong text, vocabulary or settings, or the folder holds a dataset built otherwise.
        TrainerError: the disk is full, a worker died, or another process builds here.
    """
    _check_lengths(lengths)
    corpus = open_corpora(
        stage.all_corpora,
        num_processes=stage.num_processes or usable_cores(),
        check=lambda: check_and_tick(),
        compared=compared or (lambda done, total: None),
    )
    root = Path(dataset.folder)
    progress = BuildProgress(
        stage,
        reporter,
        blocks=expected_blocks(corpus.text_bytes),
        shards=len(lengths) * ((stage.num_shards or LEAST_SHARDS) + 1 + num_balanced(stage)),
    )

    def local_pool(check: Callable[[], None]) -> WorkerPool:
        return WorkerPool(stage.num_processes or usable_cores(), check)

    def check_and_tick() -> None:
        check()
        progress.tick()

    record = open_record(stage, dataset, corpus, root, lengths)
    progress.start(record)
    # Asked before the lock is taken: a complete dataset may lie on a read-only mount.
    if not is_complete(record, root, vocabulary_path(dataset), lengths):
        _check_needs(stage, corpus, lengths, root)
        with exclusive(root):
            record = open_record(stage, dataset, corpus, root, lengths)
            try:
                with (open_pool or local_pool)(check_and_tick) as pool:
                    record = _build(
                        stage, dataset, corpus, record, lengths, pool=pool, progress=progress, check=check_and_tick
                    )
            except TrainerError:
                _note_time(record, root, progress)
                raise
    progress.finish()
    return record


def _build(
    stage: PrepareStage,
    dataset: DatasetConfig,
    corpus: Corpora,
    record: DatasetRecord,
    lengths: list[Length],
    *,
    pool: TaskPool,
    progress: BuildProgress,
    check: Callable[[], None],
) -> DatasetRecord:
    root = Path(dataset.folder)
    work_folder = root / WORK_FOLDER
    if not record.complete:
        record.write(root)
    # 1) Text to tokens.
    known = record.vocabulary_sha256 if vocabulary_path(dataset).exists() else None
    trained = known is not None and read_vocabulary(vocabulary_path(dataset)).sha256 == known
    with disk_errors(work_folder):
        work_folder.mkdir(exist_ok=True)
        passes = Preparation(
            stage=stage,
            corpus=corpus,
            work_folder=work_folder,
            vocabulary_path=vocabulary_path(dataset),
            pool=pool,
            check=check,
            progress=progress,
        )
        prepared = passes.run(record.settings, vocabulary_size=None if trained else record.settings.vocabulary_size)
    vocabulary = read_vocabulary(vocabulary_path(dataset))
    record = _note_prepared(record, prepared, vocabulary, root, progress)
    _keep_vocabulary(vocabulary_path(dataset), root)
    # 2) Tokens to shards.
    corpus_name = record.settings.corpus_name
    tasks = [
        task for length in lengths for task in _shard_tasks(stage, length, prepared, vocabulary, root, corpus_name)
    ]
    rows = {task.target: found for task in tasks if (found := _kept_rows(task))}
    num_files = len(tasks) + len(lengths) * num_balanced(stage)
    progress.set_shards(blocks=prepared.num_blocks, shards=num_files, done=len(rows))
    missing = [task for task in tasks if task.target not in rows]
    for task, num_rows in pool.run(build_shard, missing):
        rows[task.target] = num_rows
        progress.advance()
    made = [_length_record(length, root, tasks, rows) for length in lengths]
    # 3) Where the recipe says so, shards to others of equal size.
    made = [
        length if (cut := plan_balanced(stage, record, length, root)) is None else cut.carry_out(pool, progress)
        for length in made
    ]
    # 4) What is there now.
    kept = [old for old in record.lengths if (old.sequence_length, old.max_predictions) not in lengths]
    by_length = sorted([*kept, *made], key=lambda length: (length.sequence_length, length.max_predictions))
    update: dict[str, Any] = {"complete": True, "lengths": tuple(by_length), **progress.time_spent()}
    record = record.model_copy(update=update)
    record.write(root)
    shutil.rmtree(work_folder, ignore_errors=True)
    return record


def _check_lengths(lengths: list[Length]) -> None:
    if not lengths:
        raise InputError("no sequence length to build: no stage needs shards of the dataset")
    for sequence_length, max_predictions in lengths:
        most = sequence_length - NUM_SPECIAL_TOKENS
        if not 8 <= sequence_length <= LONGEST_ROW or not 1 <= max_predictions <= most:
            raise InputError(
                f"length {sequence_length}:{max_predictions}: allowed are 8 to {LONGEST_ROW} tokens and "
                f"1 to {max(1, most)} predictions"
            )


def _check_needs(stage: PrepareStage, corpus: Corpora, lengths: list[Length], root: Path) -> None:
    """Refuse a build that cannot fit; what an earlier attempt left counts as free, since it is part of the needs."""
    needs = estimate_needs(
        text_bytes=corpus.text_bytes,
        lengths=lengths,
        draws=stage.dupe_factor * corpus.mean_weight,
        num_shards=stage.num_shards,
        num_processes=stage.num_processes or usable_cores(),
        vocabulary_size=stage.vocabulary_size,
        layouts=[shard_layout(stage), *([loader_layout(stage)] if balanced_cut(stage) else [])],
        num_balanced=num_balanced(stage),
    )
    there = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
    check_needs(needs, root, free_disk=free_disk(root) + there, free_memory=available_bytes())


def _note_prepared(
    record: DatasetRecord, prepared: Prepared, vocabulary: Vocabulary, root: Path, progress: BuildProgress
) -> DatasetRecord:
    """Write down what the text is; it must be what it was, where an earlier attempt got as far."""
    found: dict[str, Any] = {
        "corpus_sha256": prepared.corpus_sha256,
        "vocabulary_sha256": vocabulary.sha256,
        "vocabulary_entries": vocabulary.size,
        "counts": prepared.counts,
        "word_hit_rate": prepared.word_hit_rate,
        "unknown_share": prepared.unknown_share,
        **progress.time_spent(),
    }
    for name in ("corpus_sha256", "vocabulary_sha256"):
        before = getattr(record, name)
        if before is not None and before != found[name]:
            raise InputError(
                f"{root}: {name} was {before} when this dataset was begun and is {found[name]} now",
                hint="delete the folder to build it anew",
            )
    logger.info("%s", ", ".join(f"{name} {count}" for name, count in prepared.counts.model_dump().items()))
    if prepared.unknown_share > MOST_UNKNOWN:
        logger.warning("%s: %s", root, describe_unknown(prepared.unknown_share))
    record = record.model_copy(update=found)
    if not record.complete:
        record.write(root)
    return record


def _keep_vocabulary(source: Path, root: Path) -> None:
    """Keep the vocabulary beside the shards, wherever it came from: they are of no use without it."""
    if not (root / "vocab.txt").exists():
        write_atomically(root / "vocab.txt", source.read_bytes())


def _shard_tasks(
    stage: PrepareStage,
    length: Length,
    prepared: Prepared,
    vocabulary: Vocabulary,
    root: Path,
    corpus_name: str | None,
) -> list[ShardTask]:
    sequence_length, max_predictions = length
    folder = root / folder_name(stage, length, corpus_name)
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in folder.glob(f".*{PARTIAL_SUFFIX}"):
            leftover.unlink(missing_ok=True)
    rule = MaskingRule(
        probability=stage.masked_lm_probability,
        max_predictions=max_predictions,
        vocabulary_size=vocabulary.size,
        cls_id=vocabulary.cls_id,
        sep_id=vocabulary.sep_id,
        mask_id=vocabulary.mask_id,
        unk_id=vocabulary.unk_id,
        continuations=vocabulary.continuations if stage.whole_word_masking else None,
    )
    num_training = prepared.num_training_shards
    # Evaluation needs every held-out document once.
    shards: list[tuple[Split, int, tuple[int, ...]]] = [
        *(
            ("training", number, groups_of_shard(number, num_training, stage.dupe_factor))
            for number in range(num_training)
        ),
        *(("held_out", number, (num_training + number,)) for number in range(prepared.num_held_out_shards)),
    ]
    counts: dict[Split, int] = {"training": num_training, "held_out": prepared.num_held_out_shards}
    token_paths = tuple(token_path(root / WORK_FOLDER, number) for number in range(prepared.num_blocks))
    return [
        ShardTask(
            target=folder / file_name(stage, split, number, counts[split], corpus_name),
            token_paths=token_paths,
            num_groups=prepared.num_groups,
            groups=groups,
            split=split,
            shard=number,
            sequence_length=sequence_length,
            short_sequence_probability=stage.short_sequence_probability,
            seed=stage.seed,
            masking=rule,
            vocabulary_sha256=vocabulary.sha256,
            # Evaluation is to see the same masks every time.
            masked=stage.masking == "static" or split == "held_out",
            layout=shard_layout(stage),
        )
        for split, number, groups in shards
    ]


def _kept_rows(task: ShardTask) -> int | None:
    """Return the samples of a file that an earlier attempt finished; a damaged one is made again."""
    if not task.target.exists():
        return None
    try:
        header = read_header(task.target)
    except InputError as error:
        logger.warning("Making %s again: %s", task.target, error)
        return None
    wanted = ShardHeader(header.rows, task.sequence_length, task.masking.max_predictions, task.vocabulary_sha256)
    is_same = header == wanted and (header.masked, header.layout) == (task.masked, task.layout)
    return header.rows if is_same else None


def _length_record(length: Length, root: Path, tasks: list[ShardTask], rows: dict[Path, int]) -> LengthRecord:
    own = [task for task in tasks if (task.sequence_length, task.masking.max_predictions) == length]
    by_split: dict[Split, dict[str, int]] = {"training": {}, "held_out": {}}
    for task in sorted(own, key=lambda task: task.target):
        by_split[task.split][task.target.name] = rows[task.target]
    training, held_out = by_split["training"], by_split["held_out"]
    return LengthRecord(
        sequence_length=length[0],
        max_predictions=length[1],
        folder=own[0].target.parent.relative_to(root).as_posix(),
        training=training,
        held_out=held_out,
        samples_training=sum(training.values()),
        samples_held_out=sum(held_out.values()),
    )


def _note_time(record: DatasetRecord, root: Path, progress: BuildProgress) -> None:
    """Add an attempt that did not finish to the time spent."""
    # Where this cannot be written either, what stopped the build is the news.
    with suppress(TrainerError):
        latest = read_record(root) or record
        if not latest.complete:
            latest.model_copy(update=progress.time_spent()).write(root)
