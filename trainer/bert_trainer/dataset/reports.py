"""What ``bert-data inspect`` and ``bert-data verify`` say about shards, as text.

One shard is in memory at a time. Nothing is printed and nothing is changed here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bert_trainer.dataset.record import check_complete
from bert_trainer.dataset.samples import Samples
from bert_trainer.dataset.shard_checks import find_violations
from bert_trainer.dataset.shards import SUFFIXES, read_header, read_shard
from bert_trainer.dataset.wordpiece import Vocabulary, read_vocabulary
from bert_trainer.errors import InputError

_NUM_BINS = 8
_BAR_WIDTH = 40
_VIOLATIONS_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong with a file or a folder."""

    path: Path
    problems: tuple[str, ...]


def find_shards(path: Path) -> list[Path]:
    """Return one file, or all HDF5 files at any depth below a folder, sorted.

    Raises:
        InputError: there is none.
    """
    if path.is_file():
        return [path]
    found = sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES and not file.name.startswith("."))
    if not found:
        raise InputError(f"{path}: no .hdf5 file here", hint="name a shard, its folder or a dataset")
    return found


def find_vocabulary(path: Path) -> Vocabulary | None:
    """Read the ``vocab.txt`` of the dataset that a file or folder is part of, if there is one."""
    for folder in [path, *path.absolute().parents[:3]]:
        if (folder / "vocab.txt").is_file():
            return read_vocabulary(folder / "vocab.txt")
    return None


def verify_shards(path: Path, vocabulary: Vocabulary | None) -> Iterator[tuple[Path, Finding | None]]:
    """Check every shard below a path, and that no dataset lacks files; yield each with what is wrong.

    Raises:
        InputError: there is no shard.
    """
    files = find_shards(path)
    for folder in sorted({file.parent for file in files}):
        try:
            check_complete(folder)
        except InputError as error:
            yield folder, Finding(folder, (str(error),))
    for file in files:
        problems = _verify_shard(file, vocabulary)
        yield file, Finding(file, tuple(problems)) if problems else None


def _verify_shard(file: Path, vocabulary: Vocabulary | None) -> list[str]:
    try:
        header = read_header(file)
        samples = read_shard(file, vocabulary.size if vocabulary else None)
    except InputError as error:
        return [str(error)]
    problems = []
    if vocabulary and header.vocabulary_sha256 not in (None, vocabulary.sha256):
        problems.append(f"made with another vocabulary (SHA-256 {header.vocabulary_sha256})")
    if not len(samples):
        return [*problems, "holds no samples"]
    problems += find_violations(samples, vocabulary, masked=header.masked)
    if len(problems) > _VIOLATIONS_SHOWN:
        problems[_VIOLATIONS_SHOWN:] = [f"and {len(problems) - _VIOLATIONS_SHOWN} more"]
    return problems


def describe_shard(path: Path, vocabulary: Vocabulary | None, num_shown: int) -> str:
    """Return the statistics of one shard and its first samples, as lines of text.

    Raises:
        InputError: as ``read_shard``.
    """
    header = read_header(path)
    samples = read_shard(path, vocabulary.size if vocabulary else None)
    lines = [
        f"{path}: {header.rows} samples of {samples.input_ids.shape[1]} tokens, "
        f"{samples.masked_lm_ids.shape[1]} predictions at most; layout {header.layout}",
    ]
    if not header.rows:
        return lines[0]
    lengths = samples.input_mask.sum(axis=1, dtype=np.int64)
    predictions = (samples.masked_lm_positions > 0).sum(axis=1)
    lines += [
        f"  made with the vocabulary {header.vocabulary_sha256 or 'unknown'}",
        f"  padding              {1 - lengths.sum() / samples.input_mask.size:7.1%} of all positions",
        f"  random next sentence {samples.next_sentence_labels.mean():7.1%} of the samples",
        f"  predictions          {predictions.min()} to {predictions.max()} per sample, "
        f"{predictions.mean():.1f} on average, {predictions.sum() / lengths.sum():.1%} of all tokens",
        f"  tokens               {lengths.min()} to {lengths.max()} per sample, {lengths.mean():.1f} on average",
        *_histogram(lengths, samples.input_ids.shape[1]),
    ]
    for row in range(min(num_shown, header.rows)):
        label = "random next" if samples.next_sentence_labels[row] else "actual next"
        lines += ["", f"  sample {row}, {label}:", f"  {_sample_text(samples, row, vocabulary)}"]
    return "\n".join(lines)


def _histogram(lengths: NDArray[np.int64], sequence_length: int) -> list[str]:
    edges = np.linspace(0, sequence_length, _NUM_BINS + 1).round().astype(np.int64)
    counts = np.array(
        [((lengths > low) & (lengths <= high)).sum() for low, high in zip(edges[:-1], edges[1:], strict=True)]
    )
    bars = (counts * _BAR_WIDTH / counts.max()).round().astype(np.int64)
    return [
        f"    {low + 1:4d} to {high:4d} {count:8d} {'#' * bar}".rstrip()
        for low, high, count, bar in zip(edges[:-1], edges[1:], counts, bars, strict=True)
    ]


def _sample_text(samples: Samples, row: int, vocabulary: Vocabulary | None) -> str:
    """Return a row's tokens; a predicted one as ``{original -> shown}``, or ``{original}`` where it stays."""

    def name(token: int) -> str:
        return vocabulary.tokens[token] if vocabulary else str(token)

    words = [name(token) for token in samples.input_ids[row, samples.input_mask[row] == 1].tolist()]
    positions = samples.masked_lm_positions[row]
    for position, label in zip(positions.tolist(), samples.masked_lm_ids[row].tolist(), strict=True):
        if position:
            original, shown = name(label), words[position]
            words[position] = f"{{{original}}}" if original == shown else f"{{{original} -> {shown}}}"
    return " ".join(words).replace(" ##", "")
