"""Disk and memory that a build will take, estimated from the size of its text, and whether they are free.

Estimates are made before anything is written, without reading the text. They are on the high side for English: one
token per four bytes of text, 1.5 times as many pairs as rows filled to the last token would make, 1.2 times as many
rows of documents.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from bert_job.dataset_names import SamplesOf, WrittenLayout
from bert_trainer.dataset.shards.sample_buffer import IN_MEMORY_TOKENS
from bert_trainer.errors import InputError, StorageFailed

SHARD_BYTES = 20_000_000
"""Text per shard, repetitions counted, where the number of shards is not given: about 50 MB of rows."""
MIN_SHARDS = 8

_TOKENS_PER_BYTE = 0.25
_SAMPLES_PER_FULL_ROW: Mapping[SamplesOf, float] = MappingProxyType({"pairs": 1.5, "documents": 1.2})
# Documents' rows are full, but of documents of ten tokens a sixth is special.
# Scratch files per byte of text: the text itself, its tokens, and what is kept of each document.
_SCRATCH_PER_BYTE = 1.8
# Memory of one process apart from a shard's rows: the interpreter, its cache of words, a block of text.
_PROCESS_BYTES = 250_000_000
# Copies of a shard in memory: its rows, and their form in the file.
_COPIES_OF_ROWS = 2.5
# Bytes of a token id in the layouts with padding and without compression.
_FIXED_ID_BYTES = {"intel": 4, "mlperf": 2}
# Bytes of the rows that are read at a time while resharding, and of the arrays that check them.
_BLOCK_BYTES = 30_000_000
# Copies of a shard's documents: as they are read, and concatenated.
_COPIES_OF_TOKENS = 2
# Bytes per row while pairs are drawn, in memory or not: the bounds of its segments, in two orders, and its key.
_PAIR_BYTES = 120


@dataclass(frozen=True, slots=True)
class Estimate:
    """Peak bytes of a build."""

    disk: int
    """Scratch files and shards."""
    memory: int
    """All processes together."""


def estimate_build(
    *,
    text_bytes: int,
    lengths: Sequence[tuple[int, int]],
    draws: float,
    num_shards: int | None,
    num_processes: int,
    vocabulary_size: int,
    layouts: Sequence[WrittenLayout] = ("compact",),
    num_balanced: int = 0,
    samples: SamplesOf = "pairs",
) -> Estimate:
    """Estimate the disk and memory of a build.

    Args:
        text_bytes: size of the text, uncompressed.
        lengths: most tokens and predictions of a row, for each length.
        draws: how often a document is drawn, on average.
        num_shards: training shards per length; None: the size of the text decides.
        num_processes: workers that each hold one shard.
        vocabulary_size: decides the bytes of a token id.
        layouts: of every file that a row is written to; first the one that is built from text.
        num_balanced: files that the shards of a length are resharded into, in the last of the layouts; 0: none.
        samples: what the rows hold.
    """
    shards = num_shards or max(MIN_SHARDS, math.ceil(text_bytes * draws / SHARD_BYTES))
    num_rows = [_num_rows(text_bytes * draws, sequence_length, samples) for sequence_length, _ in lengths]
    shard_bytes = [
        rows * sum(_file_row_bytes(length, vocabulary_size, layout) for layout in layouts)
        for rows, length in zip(num_rows, lengths, strict=True)
    ]
    document_bytes = _COPIES_OF_TOKENS * _id_bytes(vocabulary_size) * _TOKENS_PER_BYTE * text_bytes * draws / shards
    # Scratch files and memory of each process: while shards are built from text, and while they are resharded.
    steps = [(0.0, document_bytes)]
    for rows, length in zip(num_rows, lengths, strict=True):
        in_memory = _PAIR_BYTES * rows / shards + _rows_in_memory(rows / shards, length)
        steps.append((_scratch_bytes(rows / shards, length, vocabulary_size), document_bytes + in_memory))
        if num_balanced:
            share = rows / num_balanced
            steps.append(
                (_scratch_bytes(share, length, vocabulary_size), _BLOCK_BYTES + _rows_in_memory(share, length))
            )
    on_disk, in_memory = (max(step[number] for step in steps) for number in range(2))
    disk = _SCRATCH_PER_BYTE * text_bytes + sum(shard_bytes) + num_processes * on_disk
    return Estimate(math.ceil(disk), math.ceil(num_processes * (_PROCESS_BYTES + in_memory)))


def check_estimate(estimate: Estimate, folder: Path, *, free_disk: int, free_memory: int, fitted: bool = False) -> None:
    """Refuse a build that does not fit.

    Args:
        estimate: What it needs.
        folder: Of the dataset.
        free_disk: Bytes, with those that an earlier attempt of this build has taken.
        free_memory: Bytes.
        fitted: Whether a build of this size has begun here before: others have taken the room since.

    Raises:
        InputError: names the folder, what is needed, what there is and what to do.
        StorageFailed: the same, where it fitted before.
    """
    if estimate.disk > free_disk:
        raise (StorageFailed if fitted else InputError)(
            f"{folder}: the build needs about {_readable(estimate.disk)} of disk, {_readable(free_disk)} are free",
            hint="free space, choose a folder on a larger disk, or build fewer lengths or repetitions",
        )
    if estimate.memory > free_memory:
        raise InputError(
            f"{folder}: the build needs about {_readable(estimate.memory)} of memory, "
            f"{_readable(free_memory)} are free",
            hint="ask for more shards or fewer processes: each process holds the samples of one shard",
        )


def free_disk(folder: Path) -> int:
    """Return the bytes that may be written below a folder, which need not exist yet."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def _num_rows(text_bytes: float, sequence_length: int, samples: SamplesOf) -> float:
    """Return the number of rows from this much text, repetitions counted."""
    return _SAMPLES_PER_FULL_ROW[samples] * _TOKENS_PER_BYTE * text_bytes / (sequence_length - 3)


def _rows_in_memory(num_rows: float, length: tuple[int, int]) -> float:
    """Return the bytes that the rows of a file take in memory; rows beyond the limit are on disk."""
    return _COPIES_OF_ROWS * _plain_row_bytes(length) * min(num_rows, IN_MEMORY_TOKENS / length[0])


def _scratch_bytes(num_rows: float, length: tuple[int, int], vocabulary_size: int) -> float:
    """Return the bytes of the scratch files of a large shard; 0 for one that fits in memory."""
    # Padding counts here, as in ``SampleBuffer``; in the files there is none.
    if num_rows * length[0] <= IN_MEMORY_TOKENS:
        return 0.0
    return num_rows * _file_row_bytes(length, vocabulary_size, "compact")


def _plain_row_bytes(length: tuple[int, int]) -> int:
    """Return the bytes of a row in memory."""
    # With padding, see ``Samples``: int32 ids and two int8 flags per token, two int32 per prediction, a label.
    sequence_length, max_predictions = length
    return 6 * sequence_length + 8 * max_predictions + 1


def _file_row_bytes(length: tuple[int, int], vocabulary_size: int, layout: WrittenLayout) -> int:
    """Return the bytes of a full row in a file. NVIDIA's, with gzip, are about those of the compact layout."""
    sequence_length, max_predictions = length
    if layout in _FIXED_ID_BYTES:
        id_bytes = _FIXED_ID_BYTES[layout]
        return (id_bytes + 2) * sequence_length + 2 * id_bytes * max_predictions + 1
    # Ids of tokens and labels, uint16 positions, and seven bytes per row: three uint16 counts and the label.
    return _id_bytes(vocabulary_size) * (sequence_length + max_predictions) + 2 * max_predictions + 7


def _id_bytes(vocabulary_size: int) -> int:
    return 2 if vocabulary_size <= 1 << 16 else 4


def _readable(num_bytes: int) -> str:
    if num_bytes < 10**6:
        return f"{num_bytes / 1e3:.0f} kB"
    if num_bytes < 10**9:
        return f"{num_bytes / 1e6:.0f} MB"
    return f"{num_bytes / 1e9:.1f} GB"
