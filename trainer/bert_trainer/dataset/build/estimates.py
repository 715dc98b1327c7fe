"""How much disk and memory a build will take, from the size of its text; and whether that is there.

Estimates are made before anything is written and are on the high side for English: a token for every four bytes of
text, half as many samples again as rows that are full to the last token. They know no content.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bert_trainer.dataset.shards.scratch import IN_MEMORY_TOKENS, ONE_PASS_LAYOUTS
from bert_trainer.errors import InputError

SHARD_BYTES = 20_000_000
"""Of text, repetitions counted, that one shard is made of where their number is not given: about 50 MB of rows."""
LEAST_SHARDS = 8

_TOKENS_PER_BYTE = 0.25
_SAMPLES_PER_FULL_ROW = 1.5
_SCRATCH_PER_BYTE = 1.8
"""Text, tokens and marks of documents."""
_PROCESS_BYTES = 250_000_000
"""Of one process apart from a shard's rows: the interpreter, the words that it has seen, a block of text."""
_COPIES_OF_ROWS = 2.5
"""Of a shard in memory: its rows, and what is made of them for the file."""
_FIXED_ID_BYTES = {"intel": 4, "mlperf": 2}
"""Of a token id in the layouts with padding and without compression."""
_BLOCK_BYTES = 30_000_000
"""Of the rows that are read at a time where shards are cut again, without and with what they are checked by."""
_VARIABLE = ("mlperf-variable", "mlperf-packed")
_COPIES_OF_TOKENS = 2
"""Of the documents of a shard: as they are read, and put together."""
_PAIR_BYTES = 120
"""Of a row, wherever the row itself is: where its segments begin and its place, while they are drawn."""


@dataclass(frozen=True, slots=True)
class Needs:
    """Bytes that a build takes at most at a time."""

    disk: int
    """Free space: scratch files and shards."""
    memory: int
    """Of all processes together."""


def estimate_needs(
    *,
    text_bytes: int,
    lengths: Sequence[tuple[int, int]],
    draws: float,
    num_shards: int | None,
    num_processes: int,
    vocabulary_size: int,
    layouts: Sequence[str] = ("compact",),
    num_balanced: int = 0,
) -> Needs:
    """Return what a build takes.

    lengths: tokens and predictions of a row at most. draws: how often a document is drawn, on average. layouts: of
    every file that a row is written to, first the one that is made from text. num_balanced: files that the shards of a
    length are cut into again, in the last of the layouts; 0: they are not.
    """
    shards = num_shards or max(LEAST_SHARDS, math.ceil(text_bytes * draws / SHARD_BYTES))
    num_rows = [_num_rows(text_bytes * draws, sequence_length) for sequence_length, _ in lengths]
    in_files = [
        rows * sum(_file_row_bytes(length, vocabulary_size, layout) for layout in layouts)
        for rows, length in zip(num_rows, lengths, strict=True)
    ]
    of_tokens = _COPIES_OF_TOKENS * _id_bytes(vocabulary_size) * _TOKENS_PER_BYTE * text_bytes * draws / shards
    steps = []
    """Scratch files and memory of each process: while shards are made of text, and while they are cut again."""
    for rows, length in zip(num_rows, lengths, strict=True):
        in_memory = _PAIR_BYTES * rows / shards + _rows_in_memory(rows / shards, length)
        # Layouts that take several passes have their rows twice on disk, in two orders.
        copies = 1 if layouts[0] in ONE_PASS_LAYOUTS else 2
        steps.append((copies * _scratch_bytes(rows / shards, length, vocabulary_size), of_tokens + in_memory))
        if num_balanced:
            cut = rows / num_balanced
            steps.append((_scratch_bytes(cut, length, vocabulary_size), _BLOCK_BYTES + _rows_in_memory(cut, length)))
    on_disk, in_memory = (max(step[number] for step in steps) for number in range(2))
    disk = _SCRATCH_PER_BYTE * text_bytes + sum(in_files) + num_processes * on_disk
    return Needs(math.ceil(disk), math.ceil(num_processes * (_PROCESS_BYTES + in_memory)))


def check_needs(needs: Needs, folder: Path, *, free_disk: int, free_memory: int) -> None:
    """Refuse a build that does not fit.

    Raises:
        InputError: names the folder, what is needed, what there is and what to do.
    """
    if needs.disk > free_disk:
        raise InputError(
            f"{folder}: the build needs about {_readable(needs.disk)} of disk, {_readable(free_disk)} are free",
            hint="free space, choose a folder on a larger disk, or build fewer lengths or repetitions",
        )
    if needs.memory > free_memory:
        raise InputError(
            f"{folder}: the build needs about {_readable(needs.memory)} of memory, {_readable(free_memory)} are free",
            hint="ask for more shards or fewer processes: each process holds the samples of one shard",
        )


def free_disk(folder: Path) -> int:
    """Return the bytes that may be written below a folder, which need not exist yet."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def _num_rows(text_bytes: float, sequence_length: int) -> float:
    """Return the rows that so much text makes, repetitions counted."""
    return _SAMPLES_PER_FULL_ROW * _TOKENS_PER_BYTE * text_bytes / (sequence_length - 3)


def _rows_in_memory(num_rows: float, length: tuple[int, int]) -> float:
    """Return the bytes that the rows of a file take in memory; beyond some they are on disk."""
    return _COPIES_OF_ROWS * _plain_row_bytes(length) * min(num_rows, IN_MEMORY_TOKENS / length[0])


def _scratch_bytes(num_rows: float, length: tuple[int, int], vocabulary_size: int) -> float:
    """Return the bytes of the scratch files that the rows of a large file wait in; 0 for a small one."""
    if num_rows * length[0] <= IN_MEMORY_TOKENS:
        return 0.0
    return num_rows * _file_row_bytes(length, vocabulary_size, "compact")


def _plain_row_bytes(length: tuple[int, int]) -> int:
    """Return the bytes of a row in memory."""
    sequence_length, max_predictions = length
    return 6 * sequence_length + 8 * max_predictions + 1


def _file_row_bytes(length: tuple[int, int], vocabulary_size: int, layout: str) -> int:
    """Return the bytes of a full row in a file. NVIDIA's, with gzip, are about those of the compact layout."""
    sequence_length, max_predictions = length
    if layout in _FIXED_ID_BYTES:
        id_bytes = _FIXED_ID_BYTES[layout]
        return (id_bytes + 2) * sequence_length + 2 * id_bytes * max_predictions + 1
    if layout in _VARIABLE:
        # Runs of two bytes, one for segments; five references of 16 bytes and what the heap notes of each.
        return 3 * sequence_length + 4 * max_predictions + 5 * 32
    return _id_bytes(vocabulary_size) * (sequence_length + max_predictions) + 2 * max_predictions + 7


def _id_bytes(vocabulary_size: int) -> int:
    return 2 if vocabulary_size <= 1 << 16 else 4


def _readable(num_bytes: int) -> str:
    if num_bytes < 10**6:
        return f"{num_bytes / 1e3:.0f} kB"
    if num_bytes < 10**9:
        return f"{num_bytes / 1e6:.0f} MB"
    return f"{num_bytes / 1e9:.1f} GB"
