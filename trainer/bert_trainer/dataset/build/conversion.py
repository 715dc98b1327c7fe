"""Shards made from shards: the same samples in another layout, or cut into another number of files.

Every output file is a task of its own: it names the rows of the sources that it takes, carries a fingerprint
of them, and appears whole or not at all. So work can be spread over processes, and what an interrupted run
finished is kept.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from bert_trainer.dataset.build.progress import Reports
from bert_trainer.dataset.shards import (
    LayoutName,
    ShardHeader,
    check_numbers,
    list_shards,
    read_header,
    read_ragged_blocks,
    select_split,
    shards_below,
    write_shard,
    write_shard_blocks,
)
from bert_trainer.dataset.shards.dataset_info import RECORD_FILE, check_complete
from bert_trainer.dataset.shards.scratch import IN_MEMORY_TOKENS, SampleScratch
from bert_trainer.dataset.workers.pool import run_tasks, usable_cores
from bert_trainer.errors import InputError, TrainerError
from bert_trainer.system.atomic_files import PARTIAL_SUFFIX, disk_errors, write_atomically
from bert_trainer.system.folder_lock import exclusive


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of one source file."""

    path: Path
    first: int
    stop: int


@dataclass(frozen=True, slots=True)
class RewriteTask:
    """Everything that decides the content of one output file."""

    target: Path
    parts: tuple[Part, ...]
    layout: LayoutName
    shape: tuple[int, int] | None
    """Tokens and predictions of a row at most; None where the source does not say: its longest row's."""
    vocabulary_sha256: str | None
    generator_version: int | None
    masked: bool
    made_from: str

    @property
    def num_rows(self) -> int:
        """Samples of the file."""
        return sum(part.stop - part.first for part in self.parts)


@dataclass(frozen=True, slots=True)
class Rewritten:
    """What a conversion or a new cut came to."""

    files: int
    kept: int
    """Of the files, those that an earlier run had finished."""
    samples: int


def convert(
    source: Path,
    target: Path,
    layout: LayoutName,
    *,
    shape: tuple[int, int] | None = None,
    num_processes: int | None = None,
    reporter: Reports | None = None,
    check: Callable[[], None] = lambda: None,
) -> Rewritten:
    """Write every shard at or below ``source`` in another layout, under the same name below ``target``.

    Vocabulary and ``dataset.json`` of a whole dataset go with it. shape: for sources that do not state it.
    Memory of each process: the same for files of any size, as ``rewrite``.

    Raises:
        InputError: no shard, one of them is bad, or the layout cannot hold a sample.
        TrainerError: the disk is full, or a worker died.
    """
    root = source.parent if source.is_file() else source
    files = [source] if source.is_file() else shards_below(source)
    if not files:
        raise InputError(f"{source}: no .hdf5 file here", hint="name a shard, its folder or a dataset")
    _refuse_same_place(root, target)
    if source.is_dir() and source.resolve() in target.resolve().parents:
        # The next run would take its shards for sources.
        raise InputError(f"{target}: lies in the source, {source}", hint="write to a folder beside it")
    for folder in sorted({file.parent for file in files}):
        if not source.is_file():
            check_complete(folder)
    headers = _read_headers(files, reporter, check)
    if layout != "compact":
        unmasked = next((file for file, found in zip(files, headers, strict=True) if not found.masked), None)
        if unmasked:
            raise InputError(f"{unmasked}: layout {layout} cannot hold samples without masks; allowed: compact")
    tasks = [
        _task(target / file.relative_to(root), (Part(file, 0, found.rows),), layout, found, shape)
        for file, found in zip(files, headers, strict=True)
    ]
    done = _run(tasks, target, "convert", num_processes, reporter, check)
    for name in ("vocab.txt", RECORD_FILE):
        if (root / name).is_file():
            write_atomically(target / name, (root / name).read_bytes())
    return done


def chop(
    source: Path,
    target: Path,
    num_shards: int,
    *,
    layout: LayoutName | None = None,
    name: str = "part_{index}_of_{count}.hdf5",
    shape: tuple[int, int] | None = None,
    num_processes: int | None = None,
    reporter: Reports | None = None,
    check: Callable[[], None] = lambda: None,
) -> Rewritten:
    """Cut the shards of a folder, in the order of their names, into ``num_shards`` whose sizes differ by one at most.

    layout: the sources', if None. Memory of each process: the same for files of any number and size, as ``rewrite``;
    one source is open at a time.

    Raises:
        InputError: no shard, sources of different shapes or vocabularies, more shards than samples, or files
            in ``target`` that this command did not make.
        TrainerError: the disk is full, or a worker died.
    """
    files = _training_files(source)
    _refuse_same_place(source, target)
    check_complete(source)
    headers = _read_headers(files, reporter, check)
    tasks = plan_cut(files, target, num_shards, layout=layout, name=name, shape=shape, headers=headers)
    strangers = {path.name for path in list_shards(target)} - {task.target.name for task in tasks} if (
        target.is_dir()) else set()  # fmt: skip
    if strangers:
        raise InputError(
            f"{target}: holds other shards, the first is {min(strangers)}", hint="choose an empty folder, or empty it"
        )
    return _run(tasks, target, "chop", num_processes, reporter, check)


def plan_cut(
    files: Sequence[Path],
    target: Path,
    num_shards: int,
    *,
    layout: LayoutName | None,
    name: str,
    shape: tuple[int, int] | None = None,
    content: str | None = None,
    headers: Sequence[ShardHeader] | None = None,
) -> list[RewriteTask]:
    """Return the files that a cut makes, sizes differing by one sample at most. Nothing is written.

    content: what decides the rows of the sources, put into the fingerprint in place of their sizes and times. headers:
    of the sources, where they were read already.

    Raises:
        InputError: sources of different shapes or vocabularies, or more shards than samples.
    """
    source = files[0].parent
    headers = headers or [read_header(file) for file in files]
    _check_alike(files, headers)
    stated = next((header for header in headers if header.rows), headers[0])
    total = sum(header.rows for header in headers)
    if not 1 <= num_shards <= total:
        raise InputError(f"{source}: got {num_shards} shards; allowed: 1 to its {total} samples")
    starts = [0, *accumulate(header.rows for header in headers)]
    chosen: LayoutName = layout or stated.layout
    if shape is None and stated.sequence_length is None:
        raise InputError(
            f"{files[0]}: does not state its sequence length and predictions", hint="add --length 512:76, for example"
        )
    tasks = []
    for index in range(num_shards):
        # The first total % num_shards files get one row more.
        first, stop = (at * (total // num_shards) + min(at, total % num_shards) for at in (index, index + 1))
        parts = tuple(
            Part(file, max(first - start, 0), min(stop, end) - start)
            for file, start, end in zip(files, starts, starts[1:], strict=False)
            if start < stop and first < end
        )
        path = target / name.format(index=index, count=num_shards)
        tasks.append(_task(path, parts, chosen, stated, shape, content))
    return tasks


def _training_files(source: Path) -> list[Path]:
    if not source.is_dir():
        raise InputError(f"{source}: no such folder of shards")
    # Held-out samples must not be mixed in. Names may be anybody's.
    held_out = select_split(list_shards(source), "held_out")
    files = [path for path in list_shards(source) if path not in held_out]
    if not files:
        raise InputError(f"{source}: no .hdf5 file with training samples here", hint="name one folder of shards")
    check_numbers(source, files)
    return files


def _read_headers(files: Sequence[Path], reporter: Reports | None, check: Callable[[], None]) -> list[ShardHeader]:
    """Open every file once; thousands of them take seconds."""
    watch = _Watch("look at files", len(files), "files", reporter)
    headers = []
    for file in files:
        check()
        headers.append(read_header(file))
        watch.advance(1)
    return headers


class _Watch:
    """Tells how far something is."""

    def __init__(self, name: str, total: int, unit: str, reporter: Reports | None) -> None:
        self._name, self._total, self._unit, self._reporter = name, total, unit, reporter
        self._done, self._began_s = 0, time.monotonic()
        if reporter:
            reporter.report("stage_started", stage=name, kind=name, steps=total)

    def advance(self, amount: int) -> None:
        self._done += amount
        if self._reporter:
            elapsed_s = round(time.monotonic() - self._began_s, 3)
            self._reporter.report(
                "progress", stage=self._name, step=self._done, steps=self._total, elapsed_s=elapsed_s, unit=self._unit
            )


def _refuse_same_place(source: Path, target: Path) -> None:
    if source.resolve() == target.resolve():
        raise InputError(f"{target}: is the source, too", hint="write to another folder")


def _check_alike(files: Sequence[Path], headers: Sequence[ShardHeader]) -> None:
    # Of a file without rows the layout cannot be told, and nobody minds.
    with_rows = [(file, header) for file, header in zip(files, headers, strict=True) if header.rows]
    for file, header in with_rows:
        for what in ("sequence_length", "max_predictions", "vocabulary_sha256", "layout", "masked"):
            one, other = getattr(with_rows[0][1], what), getattr(header, what)
            if one != other:
                raise InputError(
                    f"{file}: {what} is {other}, that of {with_rows[0][0].name} is {one}; allowed: the same in all "
                    "files",
                    hint="chop folders of one kind, or convert them first",
                )


def _task(
    target: Path,
    parts: tuple[Part, ...],
    layout: LayoutName,
    found: ShardHeader,
    shape: tuple[int, int] | None,
    content: str | None = None,
) -> RewriteTask:
    if shape is None and found.sequence_length is not None and found.max_predictions is not None:
        shape = (found.sequence_length, found.max_predictions)
    digest = hashlib.sha256(f"{layout} {shape}".encode())
    for part in parts:
        state = content or "{0.st_size} {0.st_mtime_ns}".format(part.path.stat())
        digest.update(f"\n{part.path.name} {state} {part.first} {part.stop}".encode())
    return RewriteTask(
        target=target,
        parts=parts,
        layout=layout,
        shape=shape,
        vocabulary_sha256=found.vocabulary_sha256,
        generator_version=found.generator_version,
        masked=found.masked,
        made_from=digest.hexdigest(),
    )


def _run(
    tasks: Sequence[RewriteTask],
    target: Path,
    what: str,
    num_processes: int | None,
    reporter: Reports | None,
    check: Callable[[], None],
) -> Rewritten:
    with disk_errors(target):
        for folder in {task.target.parent for task in tasks}:
            folder.mkdir(parents=True, exist_ok=True)
    with exclusive(target):
        for folder in {task.target.parent for task in tasks}:
            for leftover in folder.glob(f".*{PARTIAL_SUFFIX}"):
                leftover.unlink(missing_ok=True)
        missing = [task for task in tasks if not is_done(task)]
        samples = sum(task.num_rows for task in tasks)
        watch = _Watch(what, sum(task.num_rows for task in missing), "samples", reporter)
        processes = min(num_processes or usable_cores(), len(missing))
        if processes > 1:
            for task, _ in run_tasks(rewrite, missing, num_processes=processes, check=check):
                watch.advance(task.num_rows)
        else:

            def advance(rows: int) -> None:
                check()
                watch.advance(rows)

            for task in missing:
                check()
                rewrite(task, advance)
    return Rewritten(files=len(tasks), kept=len(tasks) - len(missing), samples=samples)


def is_done(task: RewriteTask) -> bool:
    """Tell whether an earlier run made the file, from the same sources."""
    if not task.target.exists():
        return False
    try:
        found = read_header(task.target)
    except InputError:
        return False
    return found.made_from == task.made_from and found.rows == task.num_rows


def rewrite(task: RewriteTask, advance: Callable[[int], None] = lambda rows: None) -> int:
    """Make one output file and return its number of samples. advance: told how many rows more were read; may raise.

    Memory: some thousand rows of a source at a time, and the file where it is small; a large one waits in a scratch
    file beside it. One source is open at a time.

    Raises:
        TrainerError: as ``read_ragged_blocks`` and ``write_shard``; rows came out other than they went in.
    """
    row_tokens = task.shape[0] if task.shape else None
    with SampleScratch(task.target.parent, row_tokens=row_tokens, most_tokens=IN_MEMORY_TOKENS) as scratch:
        for part in task.parts:
            for block in read_ragged_blocks(part.path, rows=slice(part.first, part.stop)):
                scratch.add(block)
                advance(len(block))
        totals = scratch.totals
        shape = task.shape or (max(1, totals.longest_row), max(1, totals.most_predictions))
        if totals.longest_row > shape[0] or totals.most_predictions > shape[1]:
            raise InputError(
                f"{task.parts[0].path}: a row has {totals.longest_row} tokens, another {totals.most_predictions} "
                f"predictions; allowed: {shape[0]} and {shape[1]} at most",
                hint="give the files' length, as --length 512:76",
            )
        stated: dict[str, Any] = {
            "vocabulary_sha256": task.vocabulary_sha256,
            "generator_version": task.generator_version,
            "layout": task.layout,
            "shape": shape,
            "masked": task.masked,
            "made_from": task.made_from,
        }
        if scratch.in_memory:
            write_shard(task.target, scratch.joined(), **stated)
        else:
            write_shard_blocks(task.target, totals, scratch.blocks, **stated)
    written = read_header(task.target).rows
    if written != task.num_rows or totals.rows != task.num_rows:
        raise TrainerError(f"{task.target}: holds {written} samples, wanted {task.num_rows}")
    return written
