"""Inspection, for ``bert-data inspect``: samples of many shards as text, as statistics and as JSON.

Files are counted by several processes and added up by folder and split. Nothing is printed here, no file is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bert_trainer.dataset.quality.sample_statistics import NGRAM_TOKENS, SampleStatistics
from bert_trainer.dataset.shards import (
    ShardHeader,
    Split,
    read_header,
    read_ragged,
    read_ragged_blocks,
    shards_below,
    split_of,
)
from bert_trainer.dataset.shards.dataset_info import find_dataset_info
from bert_trainer.dataset.shards.samples import Samples
from bert_trainer.dataset.tokens.byte_bpe import render_tokens
from bert_trainer.dataset.tokens.wordpiece import Vocabulary, find_vocabulary_file
from bert_trainer.dataset.workers.pool import run_in_order
from bert_trainer.errors import InputError

_NUM_BINS = 8
_BAR_WIDTH = 40


@dataclass(frozen=True, slots=True)
class CountTask:
    """One file to be counted."""

    path: Path
    vocabulary_size: int | None
    mask_id: int | None
    """None if the vocabulary is not known, like the next one."""
    unk_id: int | None = None


@dataclass(frozen=True, slots=True)
class CountedFile:
    """One file and its statistics."""

    path: Path
    header: ShardHeader
    num_bytes: int
    statistics: SampleStatistics | None
    """None if the file holds no samples."""


@dataclass(frozen=True, slots=True)
class Group:
    """Statistics over the files of one folder, split, layout and shape."""

    folder: Path
    split: Split
    header: ShardHeader
    """Of the first file; ``rows`` is that file's."""
    files: tuple[Path, ...]
    rows: tuple[int, ...]
    """Samples of each file."""
    num_bytes: int
    statistics: SampleStatistics | None
    """None if no file holds samples."""

    @property
    def name(self) -> str:
        """Return the file's path, or the folder's and the split."""
        return str(self.files[0]) if len(self.files) == 1 else f"{self.folder} ({self.split})"


def find_shards(path: Path) -> list[Path]:
    """Return one file, or all shards at any depth below a folder, sorted.

    Raises:
        InputError: there is none, or a folder cannot be listed.
    """
    if path.is_file():
        return [path]
    if not path.exists():
        raise InputError(f"{path}: no such file or folder")
    found = shards_below(path)
    if not found:
        raise InputError(f"{path}: no .hdf5 or .tfrecord file here", hint="name a shard, its folder or a dataset")
    return found


def find_vocabulary(file: Path) -> Path | None:
    """Return the vocabulary beside a shard or, as in a dataset, one or two folders above; None if there is none."""
    # Two above: recipes have a folder for each corpus below that of the length.
    found = (find_vocabulary_file(folder) for folder in file.absolute().parents[:3])
    return next((path for path in found if path is not None), None)


def count_files(
    tasks: Sequence[CountTask], *, num_processes: int, check: Callable[[], None] = lambda: None
) -> Iterator[CountedFile]:
    """Yield the statistics of each file, in the given order.

    Raises:
        InputError: a file cannot be read.
    """
    yield from run_in_order(count_file, tasks, num_processes=num_processes, check=check)


def count_file(task: CountTask) -> CountedFile:
    """Count one file. Memory: as ``read_ragged``, and some thousand rows."""
    header = read_header(task.path)
    parts = []
    for block in read_ragged_blocks(task.path, task.vocabulary_size):
        tokens = header.sequence_length or int(block.token_counts.max())
        most = header.max_predictions or int(block.prediction_counts.max())
        parts.append(
            SampleStatistics.of(
                [block],
                sequence_length=tokens,
                max_predictions=most,
                mask_id=task.mask_id,
                unk_id=task.unk_id,
                documents=header.documents,
            )
        )
        # After every block, so that memory does not grow with the file.
        if len(parts) > 1:
            parts = [SampleStatistics.merged(parts, same_file=True)]
    return CountedFile(task.path, header, task.path.stat().st_size, parts[0] if parts else None)


class Groups:
    """Adds files up to groups as they come."""

    def __init__(self) -> None:
        """Start empty."""
        self._found: dict[tuple[Any, ...], Group] = {}

    def add(self, file: CountedFile) -> None:
        """Add one file."""
        split, header = split_of(file.path), file.header
        # Files that differ in any of these cannot be added up.
        kind = header.masked, header.documents
        key = (file.path.parent, split, header.layout, header.sequence_length, header.max_predictions, *kind)
        before = self._found.get(key)
        if before is None:
            self._found[key] = Group(
                file.path.parent, split, header, (file.path,), (header.rows,), file.num_bytes, file.statistics
            )
            return
        counted = [one for one in (before.statistics, file.statistics) if one is not None]
        self._found[key] = Group(
            folder=before.folder,
            split=split,
            header=before.header,
            files=(*before.files, file.path),
            rows=(*before.rows, header.rows),
            num_bytes=before.num_bytes + file.num_bytes,
            statistics=SampleStatistics.merged(counted) if counted else None,
        )

    def all(self) -> list[Group]:
        """Return all groups, in the order of their first files."""
        return list(self._found.values())


def describe_group(group: Group) -> list[str]:
    """Return the statistics of some files as lines of text."""
    header, counted = group.header, group.statistics
    tokens, most = header.sequence_length or "any number of", header.max_predictions or "any number of"
    what = "no masks" if not header.masked else f"{most} predictions at most"
    lines = [
        f"{group.name}: {sum(group.rows):,} samples of {tokens} tokens, {what}; layout {header.layout}",
        f"  files                {len(group.files):,}, {min(group.rows):,} to {max(group.rows):,} samples each, "
        f"{group.num_bytes / 1e6:,.1f} MB",
        f"  made with            vocabulary {header.vocabulary_sha256 or 'unknown'}",
    ]
    if counted is None:
        return lines
    mean = counted.num_predictions / counted.rows
    n, p = _occurring(counted.lengths), _occurring(counted.predictions)
    lines += [
        f"  padding              {counted.padding_share:7.1%} of all positions",
        f"  documents            {counted.special / 2 / counted.rows:7.1f} pieces per sample"
        if header.documents
        else f"  random next sentence {counted.random_next / counted.rows:7.1%} of the samples",
        f"  predictions          {p[0]} to {p[-1]} per sample, {mean:.1f} on average, "
        f"{counted.predicted_share:.1%} of all tokens",
    ]
    if counted.num_predictions:
        masked, unchanged = counted.masked / counted.num_predictions, counted.unchanged / counted.num_predictions
        lines.append(
            f"                       shown as [MASK] {masked:.1%}, as they were {unchanged:.1%}, as another token "
            f"{1 - masked - unchanged:.1%}"
        )
    if counted.unknown_share is not None:
        lines.append(f"  unknown words        {counted.unknown_share:7.3%} of the text's tokens are [UNK]")
    return [
        *lines,
        *_repetitions(counted),
        f"  tokens               {n[0]} to {n[-1]} per sample, {counted.tokens / counted.rows:.1f} on average",
        *_histogram(counted.lengths),
        *(["  predictions per sample", *_histogram(counted.predictions)] if counted.num_predictions else []),
    ]


def _repetitions(counted: SampleStatistics) -> list[str]:
    samples = counted.samples.duplicate_share * counted.rows
    texts = counted.texts.duplicate_share * counted.rows
    about = "" if counted.samples.is_exact else "about "
    return [
        f"  duplicates           {about}{samples:,.0f} samples equal an earlier one in everything, "
        f"{about}{texts:,.0f} but for their masks and labels",
        f"  repeated text        a piece of {NGRAM_TOKENS} tokens comes {counted.ngrams.mean_count:.2f} times, "
        f"{counted.mean_count_per_file:.2f} times in one file",
    ]


def describe_datasets(folders: Iterable[Path]) -> list[str]:
    """Return a line about the documents of each dataset that the folders of shards belong to.

    Raises:
        InputError: one cannot be read.
    """
    datasets = dict(found for folder in folders if (found := find_dataset_info(folder)) is not None)
    return [
        f"{root}: {counts.documents_read:,} documents read, {counts.duplicates_dropped:,} of them dropped as "
        f"near-duplicates of an earlier one; {counts.documents_training:,} to train on, each drawn "
        f"{info.settings.dupe_factor} times (more or less by weight), {counts.documents_held_out:,} held out"
        + ("" if info.unknown_share is None else f"; {info.unknown_share:.3%} of the text's tokens are [UNK]")
        for root, info in datasets.items()
        if (counts := info.counts) is not None
    ]


def group_document(group: Group) -> dict[str, Any]:
    """Return the same numbers for other programs. Keys carry their units and are public: add, but never rename."""
    header, counted = group.header, group.statistics
    document: dict[str, Any] = {
        "folder": str(group.folder),
        "split": group.split,
        "layout": header.layout,
        "files": len(group.files),
        "samples": sum(group.rows),
        "samples_per_file": [min(group.rows), max(group.rows)],
        "bytes": group.num_bytes,
        "sequence_length": header.sequence_length,
        "max_predictions": header.max_predictions,
        "masked": header.masked,
        "documents": header.documents,
        "vocabulary_sha256": header.vocabulary_sha256,
    }
    if counted is None:
        return document
    return document | {
        "tokens": counted.tokens,
        "padding_share": counted.padding_share,
        "samples_by_tokens": counted.lengths.tolist(),
        "predictions": counted.num_predictions,
        "predicted_share": counted.predicted_share,
        "samples_by_predictions": counted.predictions.tolist(),
        "predictions_shown_as_mask": counted.masked,
        "predictions_unchanged": counted.unchanged,
        "unknown_tokens": counted.unknown,
        "unknown_share": counted.unknown_share,
        "special_tokens": counted.special,
        "random_next": counted.random_next,
        "duplicate_samples": round(counted.samples.duplicate_share * counted.rows),
        "duplicate_texts": round(counted.texts.duplicate_share * counted.rows),
        "duplicates_exact": counted.samples.is_exact and counted.texts.is_exact,
        "piece_tokens": NGRAM_TOKENS,
        "piece_times": counted.ngrams.mean_count,
        "piece_times_in_a_file": counted.mean_count_per_file,
    }


def sample_texts(path: Path, vocabulary: Vocabulary | None, num_shown: int) -> list[str]:
    """Return the first samples of a file as lines of text, masks shown."""
    documents = read_header(path).documents
    ragged = read_ragged(path, vocabulary.size if vocabulary else None, slice(0, num_shown))
    samples = ragged.to_padded(int(ragged.token_counts.max(initial=1)), int(ragged.prediction_counts.max(initial=1)))
    lines = []
    for row in range(len(samples)):
        label = "random next" if samples.next_sentence_labels[row] else "documents" if documents else "actual next"
        lines += ["", f"  sample {row}, {label}:", f"  {sample_text(samples, row, vocabulary)}"]
    return lines


def sample_text(samples: Samples, row: int, vocabulary: Vocabulary | None) -> str:
    """Return a row's tokens; a predicted one as ``{original -> shown}``, or ``{original}`` where it stays."""

    def name(token: int) -> str:
        return vocabulary.tokens[token] if vocabulary else str(token)

    words = [name(token) for token in samples.input_ids[row, samples.input_mask[row] == 1].tolist()]
    positions = samples.masked_lm_positions[row]
    for position, label in zip(positions.tolist(), samples.masked_lm_ids[row].tolist(), strict=True):
        if position:  # 0 marks an unused prediction
            original, shown = name(label), words[position]
            words[position] = f"{{{original}}}" if original == shown else f"{{{original} -> {shown}}}"
    if vocabulary and vocabulary.is_byte_level:
        return render_tokens(words)
    # WordPiece continuations are joined to their word.
    return " ".join(words).replace(" ##", "")


def _occurring(counts: NDArray[np.int64]) -> list[int]:
    """Return the values that occur, ascending."""
    return [int(value) for value in np.flatnonzero(counts)]


def _histogram(counts: NDArray[np.int64]) -> list[str]:
    """Return a bar for each of at most eight ranges of values. counts: (values,), by value, from 0."""
    # Whole numbers: np.unique drops the edges that coincide if there are fewer values than bins.
    largest = len(counts) - 1
    edges = np.unique(np.linspace(0, largest, min(_NUM_BINS, largest) + 1).round().astype(np.int64))
    totals = np.array([counts[low + 1 : high + 1].sum() for low, high in zip(edges[:-1], edges[1:], strict=True)])
    bars = (totals * _BAR_WIDTH / max(1, totals.max(initial=0))).round().astype(np.int64)
    return [
        f"    {low + 1:4d} to {high:4d} {count:10d} {'#' * bar}".rstrip()
        for low, high, count, bar in zip(edges[:-1], edges[1:], totals, bars, strict=True)
    ]
