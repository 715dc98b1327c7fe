"""MLPerf's evaluation set: samples picked at equal steps from those of a text that nothing trains on.

MLPerf makes ten copies of each document of its evaluation text into samples, then keeps 10,000 of them: of n samples
in the order of the file, number i is the one at ``int(i * (n / 10000))``, in floating point, as
``cleanup_scripts/pick_eval_samples.py`` of mlcommons/training has it. Where this project's generator made the samples,
the set is of the same kind, but not MLPerf's own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bert_trainer.dataset.build.conversion import (
    ConversionResult,
    ConversionTask,
    Progress,
    check_alike,
    read_headers,
    refuse_foreign_shards,
    writable_layout,
    write_buffered,
)
from bert_trainer.dataset.build.progress import ProgressSink
from bert_trainer.dataset.shards import (
    ShardHeader,
    WrittenLayout,
    check_numbers,
    list_shards,
    make_shard_folder,
    read_ragged_blocks,
    select_split,
)
from bert_trainer.dataset.shards.dataset_info import check_complete
from bert_trainer.dataset.shards.sample_buffer import IN_MEMORY_TOKENS, SampleBuffer
from bert_trainer.errors import InputError
from bert_trainer.system.folder_lock import exclusive

MLPERF_SAMPLES = 10_000


def picked_rows(total: int, count: int) -> NDArray[np.int64]:
    """Return the numbers of the samples that are picked from ``total``, ascending, (count,)."""
    # In Python's floating point, as in MLPerf's script: whole numbers would pick another sample here and there.
    step = total / count
    return np.array([int(number * step) for number in range(count)], np.int64)


def pick_evaluation_set(
    source: Path,
    target: Path,
    *,
    count: int = MLPERF_SAMPLES,
    layout: WrittenLayout | None = None,
    shape: tuple[int, int] | None = None,
    reporter: ProgressSink | None = None,
    check: Callable[[], None] = lambda: None,
) -> ConversionResult:
    """Write the picked samples of a shard, or of a folder's shards in the order of their names, to one shard.

    It is called ``eval_10000.hdf5``, which an evaluate stage takes for held out. Memory: some thousand rows of a
    source, and the set if it is small; a large one is buffered on disk.

    Args:
        source: a shard, or a folder of shards.
        target: the folder of the output.
        count: samples to pick.
        layout: of the output; None: see ``writable_layout``.
        shape: tokens and predictions, for sources that do not state them.
        reporter: receives the progress.
        check: called now and then; may raise.

    Raises:
        InputError: no shard, shards of both splits, of different shapes or vocabularies or without masks, fewer samples
            than are picked, or other shards in the target.
        TrainerError: the disk is full.
    """
    files = _source_files(source)
    headers = read_headers(files, reporter, check)
    check_alike(files, headers)
    total = sum(header.rows for header in headers)
    if not 1 <= count <= total:
        raise InputError(
            f"{source}: got {count} samples to pick from {total}; allowed: 1 to as many as there are",
            hint="pick fewer with --samples, or make more: 'bert-data build --held-out-fraction 0 --dupe-factor 10'",
        )
    task = _task(files, headers, target, count, layout, shape)
    if target.is_dir():
        refuse_foreign_shards(target, [task], hint="choose an empty folder: an evaluation set has one of its own")
    rows = picked_rows(total, count)
    progress = Progress("pick samples", total, "samples", reporter)
    with exclusive(target):
        make_shard_folder(target, root=target)
        row_tokens = task.shape[0] if task.shape else None
        with SampleBuffer(target, row_tokens=row_tokens, max_tokens=IN_MEMORY_TOKENS) as buffer:
            first = 0
            for file in files:
                for block in read_ragged_blocks(file):
                    check()
                    begin, end = np.searchsorted(rows, (first, first + len(block)))
                    buffer.add(block.take(rows[begin:end] - first))
                    first += len(block)
                    progress.advance(len(block))
            write_buffered(task, buffer, wanted_rows=count)
    return ConversionResult(files=1, kept=0, samples=count)


def _source_files(source: Path) -> list[Path]:
    if source.is_file():
        return [source]
    if not source.is_dir():
        raise InputError(f"{source}: no such shard or folder of shards")
    check_complete(source)
    files = list_shards(source)
    held_out = select_split(files, "held_out")
    if not files:
        raise InputError(f"{source}: no .hdf5 or .tfrecord file here", hint="name one folder of shards")
    if held_out and len(held_out) < len(files):
        raise InputError(
            f"{source}: holds training shards and held-out ones, as {held_out[0].name}; allowed: those of one split",
            hint="build the evaluation text with --held-out-fraction 0, or name one shard",
        )
    check_numbers(source, files)
    return files


def _task(
    files: Sequence[Path],
    headers: Sequence[ShardHeader],
    target: Path,
    count: int,
    layout: WrittenLayout | None,
    shape: tuple[int, int] | None,
) -> ConversionTask:
    """Return what describes the output; its rows are chosen here, so it has no parts."""
    found = next(header for header in headers if header.rows)
    if not found.masked:
        raise InputError(
            f"{files[0]}: its samples hold no masks; allowed: samples with masks, which every evaluation predicts",
            hint="build the evaluation text with --masking static",
        )
    if found.sequence_length is not None and found.max_predictions is not None:
        shape = shape or (found.sequence_length, found.max_predictions)
    if shape is None:
        raise InputError(
            f"{files[0]}: does not state its sequence length and predictions", hint="add --length 512:76, for example"
        )
    starts = accumulate(header.rows for header in headers)
    described = " ".join(f"{file.name}:{end}" for file, end in zip(files, starts, strict=True))
    return ConversionTask(
        target=target / f"eval_{count}.hdf5",
        parts=(),
        layout=layout or writable_layout(found),
        shape=shape,
        vocabulary_sha256=found.vocabulary_sha256,
        generator_version=found.generator_version,
        masked=True,
        documents=found.documents,
        made_from=hashlib.sha256(f"pick {count} {described}".encode()).hexdigest(),
    )
