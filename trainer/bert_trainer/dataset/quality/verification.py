"""Verification, for ``bert-data verify``: every row of every shard, and whether the files of a folder belong together.

Files are checked by several processes, a block of rows at a time. Nothing is printed here, no file is written.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import get_args

import numpy as np

from bert_job.section import MAX_UNKNOWN_SHARE
from bert_trainer.dataset.shards import ShardHeader, Split, list_shards, read_blocks, read_header, split_of
from bert_trainer.dataset.shards.checks import (
    Origin,
    SpecialIds,
    broken_rules,
    count_special,
    count_unknown,
    describe_pairs,
    describe_violations,
    original_tokens,
)
from bert_trainer.dataset.shards.dataset_info import DatasetInfo, check_complete, find_dataset_info
from bert_trainer.dataset.shards.file_names import check_numbers, select_split
from bert_trainer.dataset.shards.samples import Samples
from bert_trainer.dataset.tokens.wordpiece import (
    MAX_UNKNOWN,
    VOCABULARY_FILE,
    Vocabulary,
    describe_unknown,
    find_vocabulary_file,
    read_vocabulary,
)
from bert_trainer.dataset.workers.pool import run_in_order
from bert_trainer.errors import InputError

_VIOLATIONS_SHOWN = 10
# First version of the generator that never predicts [UNK].
_UNK_NOT_PREDICTED_SINCE = 3
# Files of a folder whose headers decide which shape is the usual one.
_SHAPES_COMPARED = 9


@dataclass(frozen=True, slots=True)
class Verdict:
    """Problems found in a file or folder; it is valid without any."""

    path: Path
    problems: tuple[str, ...] = ()
    num_bytes: int = 0
    """Size of the file; 0 for a folder."""
    header: ShardHeader | None = None
    """None for a folder, or if the file cannot be read."""
    digest: bytes = b""
    """Of all rows; files with equal digests hold the same samples in the same order."""
    num_tokens: int = 0
    """Tokens of the text, without [CLS] and [SEP]."""
    num_unknown: int = 0
    """[UNK] among them."""
    num_random: int = 0
    """Rows whose second segment comes from elsewhere."""
    warnings: tuple[str, ...] = ()
    """What does not make it invalid."""


@dataclass(frozen=True, slots=True)
class VerifyTask:
    """One file, and what ``dataset.json`` states about it."""

    path: Path
    vocabulary_path: Path | None
    rows: int | None
    """Samples; None if nothing is stated."""
    masked_lm_probability: float | None
    """Share of tokens to predict; None if nothing is stated or whole words are masked."""


def verify(
    files: Sequence[Path],
    vocabulary_of: Callable[[Path], Path | None],
    *,
    num_processes: int,
    max_unknown_share: float = MAX_UNKNOWN_SHARE,
    check: Callable[[], None] = lambda: None,
) -> Iterator[Verdict]:
    """Check files and their folders; yield verdicts of folders with problems, then of all files in the given order.

    Args:
        files: the shards.
        vocabulary_of: returns the vocabulary that belongs to a file.
        num_processes: workers.
        max_unknown_share: of the tokens in a folder, those that may be [UNK].
        check: called between files and several times a second; may raise.
    """
    infos = {folder: _folder_info(folder) for folder in sorted({file.parent for file in files})}
    for folder, known in infos.items():
        # Gaps are searched only where all files of a folder are checked, and dataset.json does not name its files.
        is_whole = known is None and {file for file in files if file.parent == folder} >= set(list_shards(folder))
        verdict = _verify_folder(folder, known)
        gaps = _find_gaps(folder) if is_whole else ()
        if verdict.problems or gaps:
            yield Verdict(folder, (*verdict.problems, *gaps))
    tasks = [_task(file, vocabulary_of(file), infos[file.parent]) for file in files]
    usual = _usual_shapes(files) if len(files) > 1 else {}
    seen: dict[tuple[Path, bytes], Path] = {}
    # Of [UNK], by folder: a single shard may be unusual, a whole folder points to a wrong vocabulary.
    counted: dict[Path, tuple[int, int]] = {}
    pairs: Counter[Path] = Counter()
    random_pairs: Counter[Path] = Counter()
    for verdict in run_in_order(verify_shard, tasks, num_processes=num_processes, check=check):
        tokens, unknown = counted.get(verdict.path.parent, (0, 0))
        counted[verdict.path.parent] = tokens + verdict.num_tokens, unknown + verdict.num_unknown
        problems = list(verdict.problems)
        random_pairs[verdict.path.parent] += verdict.num_random
        if verdict.header is not None:
            pairs[verdict.path.parent] += 0 if verdict.header.documents else verdict.header.rows
            problems += _unusual_shape(verdict, usual.get(_siblings(verdict.path)))
            if verdict.header.rows:
                first = seen.setdefault((verdict.path.parent, verdict.digest), verdict.path)
                problems += [f"holds the same samples as {first.name}"] if first != verdict.path else []
        yield replace(verdict, problems=tuple(problems))
    for folder, (tokens, unknown) in counted.items():
        if tokens > 0 and unknown > MAX_UNKNOWN * tokens:
            told = (describe_unknown(unknown / tokens),)
            is_refused = unknown > max_unknown_share * tokens
            yield Verdict(folder, problems=told) if is_refused else Verdict(folder, warnings=told)
        if told_of_pairs := describe_pairs(random_pairs[folder], pairs[folder]):
            yield Verdict(folder, warnings=(told_of_pairs,))


def verify_shard(task: VerifyTask) -> Verdict:
    """Check one file. Memory: as ``read_blocks``."""
    header, size = None, 0
    try:
        size = task.path.stat().st_size
        vocabulary = _read_vocabulary(task.vocabulary_path)
        header = read_header(task.path)
        found = _verify_rows(task, header, vocabulary)
    except InputError as error:
        return Verdict(task.path, (str(error),), size, header)
    except OSError as error:
        # Deleted or unreadable since it was listed: a verdict on this file, not the end of the run.
        return Verdict(task.path, (f"cannot be read ({error.strerror})",), size)
    problems = found.problems
    if len(problems) > _VIOLATIONS_SHOWN:
        problems = (*problems[:_VIOLATIONS_SHOWN], f"and {len(problems) - _VIOLATIONS_SHOWN} more")
    return replace(found, problems=problems, num_bytes=size)


def _verify_rows(task: VerifyTask, header: ShardHeader, vocabulary: Vocabulary | None) -> Verdict:
    problems = []
    if vocabulary and header.vocabulary_sha256 not in (None, vocabulary.sha256):
        problems.append(f"made with another vocabulary (SHA-256 {header.vocabulary_sha256})")
    if task.rows not in (None, header.rows):
        problems.append(f"holds {header.rows} samples, dataset.json counts {task.rows}")
    origin = Origin(
        masked=header.masked,
        own_generator=header.generator_version is not None,
        masked_lm_probability=task.masked_lm_probability if header.masked else None,
        predicts_unknown=(header.generator_version or 0) < _UNK_NOT_PREDICTED_SINCE,
        documents=header.documents,
    )
    broken: dict[str, tuple[int, int]] = {}
    digest = hashlib.blake2b(digest_size=16)
    ids: SpecialIds | None = None
    num_rows = num_tokens = num_unknown = num_random = 0
    for block in read_blocks(task.path, vocabulary.size if vocabulary else None):
        # Without a vocabulary the first row of the first block decides for all: later rows must agree with it.
        ids = ids or SpecialIds.of(vocabulary, block)
        original = original_tokens(block)
        unknown = count_unknown(block, original, ids.unk_id)
        for rule, rows in broken_rules(block, original, unknown, ids, origin).items():
            count, first = broken.get(rule, (0, num_rows + int(rows.argmax())))
            broken[rule] = count + int(rows.sum()), first
        num_special = count_special(block, original, ids, documents=header.documents)
        num_tokens += int(block.input_mask.sum(dtype=np.int64) - num_special.sum())
        num_unknown += int(unknown.sum())
        num_random += int(block.next_sentence_labels.sum(dtype=np.int64))
        _add(digest, block)
        num_rows += len(block)
    if not num_rows:
        problems.append("holds no samples")
    problems += describe_violations(broken)
    return Verdict(
        task.path,
        tuple(problems),
        header=header,
        digest=digest.digest(),
        num_tokens=num_tokens,
        num_unknown=num_unknown,
        num_random=num_random,
    )


def _add(digest: hashlib.blake2b, block: Samples) -> None:
    # Arrays as they are in memory: independent of the layout, so a converted copy has the same digest.
    for field in fields(block):
        digest.update(memoryview(getattr(block, field.name)).cast("B"))


@dataclass(frozen=True, slots=True)
class _FolderInfo:
    """What ``dataset.json`` states about a folder of shards."""

    root: Path
    dataset: DatasetInfo
    files: dict[str, int]
    """Samples by file name."""


def _task(file: Path, vocabulary_path: Path | None, info: _FolderInfo | None) -> VerifyTask:
    rows = info.files.get(file.name) if info else None
    if info is None or rows is None or info.dataset.settings.whole_word_masking:
        return VerifyTask(file, vocabulary_path, rows, None)
    return VerifyTask(file, vocabulary_path, rows, info.dataset.settings.masked_lm_probability)


def _folder_info(folder: Path) -> _FolderInfo | None:
    """Return what ``dataset.json`` states about a folder; None if it cannot be read or does not name the folder."""
    folder = folder.absolute()
    try:
        found = find_dataset_info(folder)
    except InputError:
        return None
    if found is None:
        return None
    root, dataset = found
    relative = folder.relative_to(root).as_posix()
    files = next((length.files[relative] for length in dataset.lengths if relative in length.files), None)
    return None if files is None else _FolderInfo(root, dataset, files)


def _verify_folder(folder: Path, info: _FolderInfo | None) -> Verdict:
    """Compare a folder with the ``dataset.json`` above it: missing files, unknown ones, another vocabulary."""
    try:
        check_complete(folder.absolute())
    except InputError as error:
        return Verdict(folder, (str(error),))
    if info is None:
        return Verdict(folder)
    problems = []
    unknown = sorted({path.name for path in list_shards(folder)} - set(info.files))
    if unknown:
        problems.append(f"{len(unknown)} shard(s) that dataset.json does not list, first {unknown[0]}")
    vocabulary_path = find_vocabulary_file(info.root)
    if vocabulary_path is None:
        problems.append(f"{info.root / VOCABULARY_FILE} is missing")
    elif read_vocabulary(vocabulary_path).sha256 != info.dataset.vocabulary_sha256:
        problems.append(f"{vocabulary_path} is not the vocabulary that dataset.json names")
    return Verdict(folder, tuple(problems))


def _find_gaps(folder: Path) -> tuple[str, ...]:
    """Return the gaps in a folder's numbered files, at which training would stop, too."""
    problems = []
    for split in get_args(Split):
        try:
            check_numbers(folder, select_split(list_shards(folder), split))
        except InputError as error:
            problems.append(str(error))
    return tuple(problems)


Shape = tuple[int | None, int | None, bool, bool]


def _shape(header: ShardHeader) -> Shape:
    return header.sequence_length, header.max_predictions, header.masked, header.documents


def _siblings(file: Path) -> tuple[Path, Split]:
    """Return the files that one is compared with: held-out files may hold masks where training files hold none."""
    return file.parent, split_of(file)


def _usual_shapes(files: Sequence[Path]) -> dict[tuple[Path, Split], Shape]:
    """Return for each folder and split the shape that most of its first files have."""
    counts: dict[tuple[Path, Split], Counter[Shape]] = {}
    for file in files:
        found = counts.setdefault(_siblings(file), Counter())
        if found.total() < _SHAPES_COMPARED:
            try:
                found[_shape(read_header(file))] += 1
            except InputError:
                continue
    return {siblings: found.most_common(1)[0][0] for siblings, found in counts.items() if found}


def _unusual_shape(verdict: Verdict, usual: Shape | None) -> list[str]:
    assert verdict.header is not None, "only files that can be read are compared"
    found = _shape(verdict.header)
    if usual is None or found == usual:
        return []
    tokens, predictions, masked, documents = found
    if documents != usual[3]:
        kinds = ("pairs", "documents")
        return [f"holds {kinds[documents]}, most files beside it {kinds[usual[3]]}"]
    return [
        f"has rows of {tokens} tokens, {predictions} predictions, {'with' if masked else 'without'} masks; most files "
        f"beside it of {usual[0]}, {usual[1]}, {'with' if usual[2] else 'without'}"
    ]


def _read_vocabulary(path: Path | None) -> Vocabulary | None:
    return _vocabulary(path, path.stat().st_mtime_ns) if path else None


@lru_cache(maxsize=2)
def _vocabulary(path: Path, modified_ns: int) -> Vocabulary:
    """Read a vocabulary once for many files. modified_ns: makes a replaced file miss the cache."""
    return read_vocabulary(path)
