"""Convert and chop: the same samples in another layout, or in another number of files.

Each output file is one task: it names the rows of the sources that it holds and stores a fingerprint of them. Files
are written atomically, so tasks run on any number of processes, and an interrupted run resumes with those left.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from bert_trainer.dataset.build.progress import ProgressSink
from bert_trainer.dataset.shards import (
    WRITTEN_LAYOUTS,
    ShardHeader,
    WrittenLayout,
    check_numbers,
    list_shards,
    make_shard_folder,
    read_header,
    read_ragged_blocks,
    select_split,
    shards_below,
    write_shard,
    write_shard_blocks,
    written_name,
)
from bert_trainer.dataset.shards.attributes import check_layout
from bert_trainer.dataset.shards.dataset_info import DATASET_FILE, check_complete, read_dataset_info
from bert_trainer.dataset.shards.sample_buffer import IN_MEMORY_TOKENS, SampleBuffer
from bert_trainer.dataset.tokens.tokenizer_config import CONFIG_FILE
from bert_trainer.dataset.tokens.tokenizer_json import TOKENIZER_FILE
from bert_trainer.dataset.tokens.wordpiece import VOCABULARY_FILE
from bert_trainer.dataset.workers.pool import run_tasks, usable_cores
from bert_trainer.errors import InputError, TrainerError
from bert_trainer.system.atomic_files import write_atomically
from bert_trainer.system.folder_lock import exclusive


@dataclass(frozen=True, slots=True)
class RowRange:
    """Rows of one source file."""

    path: Path
    first: int
    stop: int


@dataclass(frozen=True, slots=True)
class ConversionTask:
    """Everything that decides the content of one output file."""

    target: Path
    parts: tuple[RowRange, ...]
    layout: WrittenLayout
    shape: tuple[int, int] | None
    """Most tokens and predictions of a row; None if the source does not state it: those of its longest row."""
    vocabulary_sha256: str | None
    generator_version: int | None
    masked: bool
    documents: bool
    made_from: str

    @property
    def num_rows(self) -> int:
        """Samples of the file."""
        return sum(part.stop - part.first for part in self.parts)


@dataclass(frozen=True, slots=True)
class ConversionResult:
    """Counts of a conversion."""

    files: int
    kept: int
    """Files that an earlier run had finished."""
    samples: int


def convert(
    source: Path,
    target: Path,
    layout: WrittenLayout,
    *,
    shape: tuple[int, int] | None = None,
    num_processes: int | None = None,
    reporter: ProgressSink | None = None,
    check: Callable[[], None] = lambda: None,
) -> ConversionResult:
    """Write every shard at or below ``source`` in another layout, under the same name below ``target``.

    Vocabulary and ``dataset.json`` of a whole dataset are copied. Memory of each process: see ``run_conversion``.

    Args:
        source: a shard, a folder of shards or a dataset.
        target: the folder of the output.
        layout: of the output.
        shape: tokens and predictions, for sources that do not state them.
        num_processes: workers; None: one per usable core.
        reporter: receives the progress.
        check: called now and then; may raise.

    Raises:
        InputError: no shard, one of them is bad, or the layout cannot hold a sample.
        TrainerError: the disk is full, or a worker died.
    """
    root = source.parent if source.is_file() else source
    files = [source] if source.is_file() else shards_below(source)
    if not files:
        raise InputError(f"{source}: no .hdf5 or .tfrecord file here", hint="name a shard, its folder or a dataset")
    _refuse_same_place(root, target)
    if source.is_dir() and source.resolve() in target.resolve().parents:
        # A second run would take the shards of the first for sources.
        raise InputError(f"{target}: lies in the source, {source}", hint="write to a folder beside it")
    for folder in sorted({file.parent for file in files}):
        if not source.is_file():
            check_complete(folder)
    headers = read_headers(files, reporter, check)
    for file, found in zip(files, headers, strict=True):
        check_layout(file, layout, masked=found.masked, documents=found.documents)
    tasks = [
        _task(target / file.relative_to(root), (RowRange(file, 0, found.rows),), layout, found, shape)
        for file, found in zip(files, headers, strict=True)
    ]
    _refuse_same_names(files, tasks)
    result = _run(tasks, target, "convert", num_processes, reporter, check)
    # Last: a dataset.json promises shards that are whole.
    for name in (CONFIG_FILE, VOCABULARY_FILE, TOKENIZER_FILE):
        if (root / name).is_file():
            write_atomically(target / name, (root / name).read_bytes())
    _copy_dataset_info(root, target)
    return result


def _refuse_same_names(files: Sequence[Path], tasks: Sequence[ConversionTask]) -> None:
    """Refuse sources that would become one file, as ``a.hdf5`` and ``a.tfrecord``."""
    sources: dict[Path, Path] = {}
    for file, task in zip(files, tasks, strict=True):
        other = sources.setdefault(task.target, file)
        if other != file:
            raise InputError(
                f"{file}: would be written to {task.target}, like {other.name}; allowed: one source for each file",
                hint="convert them to different folders",
            )


def _copy_dataset_info(root: Path, target: Path) -> None:
    """Copy ``dataset.json`` of a whole dataset; byte for byte unless it lists files that are no HDF5."""
    info = read_dataset_info(root)
    if info is None:
        return

    def renamed(files: dict[str, int]) -> dict[str, int]:
        return {written_name(name): rows for name, rows in files.items()}

    lengths = []
    for length in info.lengths:
        balanced = length.balanced
        update: dict[str, Any] = {"training": renamed(length.training), "held_out": renamed(length.held_out)}
        if balanced is not None:
            update["balanced"] = balanced.model_copy(update={"training": renamed(balanced.training)})
        lengths.append(length.model_copy(update=update))
    if tuple(lengths) == info.lengths:
        write_atomically(target / DATASET_FILE, (root / DATASET_FILE).read_bytes())
    else:
        info.model_copy(update={"lengths": tuple(lengths)}).write(target)


def chop(
    source: Path,
    target: Path,
    num_shards: int,
    *,
    layout: WrittenLayout | None = None,
    name: str = "part_{index}_of_{count}.hdf5",
    shape: tuple[int, int] | None = None,
    num_processes: int | None = None,
    reporter: ProgressSink | None = None,
    check: Callable[[], None] = lambda: None,
) -> ConversionResult:
    """Redistribute the shards of a folder, in the order of their names, to ``num_shards`` files of equal size.

    Sizes differ by one sample at most. The layout, unless one is given: see ``writable_layout``. Memory of each
    process: see ``run_conversion``, for any number and size of files; one source is open at a time.

    Raises:
        InputError: no shard, sources of different shapes or vocabularies, more shards than samples, or files
            in ``target`` that this command did not make.
        TrainerError: the disk is full, or a worker died.
    """
    files = _training_files(source)
    _refuse_same_place(source, target)
    check_complete(source)
    headers = read_headers(files, reporter, check)
    tasks = plan_chop(files, target, num_shards, layout=layout, name=name, shape=shape, headers=headers)
    if target.is_dir():
        refuse_foreign_shards(target, tasks, hint="choose an empty folder, or empty it")
    return _run(tasks, target, "chop", num_processes, reporter, check)


def refuse_foreign_shards(target: Path, tasks: Sequence[ConversionTask], *, hint: str) -> None:
    """Refuse a folder that holds shards of others: training would read them as part of the set.

    Raises:
        InputError: it does.
    """
    foreign = {path.name for path in list_shards(target)} - {task.target.name for task in tasks}
    if foreign:
        raise InputError(f"{target}: holds other shards, the first is {min(foreign)}", hint=hint)


def writable_layout(source: ShardHeader) -> WrittenLayout:
    """Return the layout of a source; of one in a layout that is read alone, compact."""
    return next((layout for layout in WRITTEN_LAYOUTS if layout == source.layout), "compact")


def plan_chop(
    files: Sequence[Path],
    target: Path,
    num_shards: int,
    *,
    layout: WrittenLayout | None,
    name: str,
    shape: tuple[int, int] | None = None,
    content: str | None = None,
    headers: Sequence[ShardHeader] | None = None,
) -> list[ConversionTask]:
    """Plan the output files, whose sizes differ by one sample at most. Writes nothing.

    content: what decides the rows of the sources; goes into the fingerprint in place of their sizes and times.
    headers: of the sources, if they have been read.

    Raises:
        InputError: sources of different shapes or vocabularies, or more shards than samples.
    """
    source = files[0].parent
    headers = headers or [read_header(file) for file in files]
    check_alike(files, headers)
    first_header = next((header for header in headers if header.rows), headers[0])
    total = sum(header.rows for header in headers)
    if not 1 <= num_shards <= total:
        raise InputError(f"{source}: got {num_shards} shards; allowed: 1 to its {total} samples")
    # The samples of all sources are one sequence; each output file is a range of it, over one source or several.
    starts = [0, *accumulate(header.rows for header in headers)]
    chosen = layout or writable_layout(first_header)
    if shape is None and first_header.sequence_length is None:
        raise InputError(
            f"{files[0]}: does not state its sequence length and predictions", hint="add --length 512:76, for example"
        )
    tasks = []
    for index in range(num_shards):
        # The first total % num_shards files get one row more.
        first, stop = (at * (total // num_shards) + min(at, total % num_shards) for at in (index, index + 1))
        parts = tuple(
            RowRange(file, max(first - start, 0), min(stop, end) - start)
            for file, start, end in zip(files, starts, starts[1:], strict=False)
            if start < stop and first < end
        )
        path = target / name.format(index=index, count=num_shards)
        tasks.append(_task(path, parts, chosen, first_header, shape, content))
    return tasks


def _training_files(source: Path) -> list[Path]:
    if not source.is_dir():
        raise InputError(f"{source}: no such folder of shards")
    # Held-out samples must not end up in training files. Whatever is not named as held out is training data, since
    # files of other programs have any name.
    held_out = select_split(list_shards(source), "held_out")
    files = [path for path in list_shards(source) if path not in held_out]
    if not files:
        raise InputError(
            f"{source}: no .hdf5 or .tfrecord file with training samples here", hint="name one folder of shards"
        )
    check_numbers(source, files)
    return files


def read_headers(files: Sequence[Path], reporter: ProgressSink | None, check: Callable[[], None]) -> list[ShardHeader]:
    """Open every file once; with thousands of files that takes seconds, so it is reported."""
    progress = Progress("look at files", len(files), "files", reporter)
    headers = []
    for file in files:
        check()
        headers.append(read_header(file))
        progress.advance(1)
    return headers


class Progress:
    """Reports a count of files or samples."""

    def __init__(self, name: str, total: int, unit: str, reporter: ProgressSink | None) -> None:
        self._name, self._total, self._unit, self._reporter = name, total, unit, reporter
        self._done, self._began_s = 0, time.monotonic()
        if reporter:
            reporter.report("stage_started", stage=name, kind=name, steps=total)

    def advance(self, amount: int) -> None:
        """Report that so many more are done."""
        self._done += amount
        if self._reporter:
            elapsed_s = round(time.monotonic() - self._began_s, 3)
            self._reporter.report(
                "progress", stage=self._name, step=self._done, steps=self._total, elapsed_s=elapsed_s, unit=self._unit
            )


def _refuse_same_place(source: Path, target: Path) -> None:
    if source.resolve() == target.resolve():
        raise InputError(f"{target}: is the source, too", hint="write to another folder")


def check_alike(files: Sequence[Path], headers: Sequence[ShardHeader]) -> None:
    """Refuse files that cannot become one set: of different shapes, vocabularies, layouts, or half of them masked.

    Raises:
        InputError: names the first that differs.
    """
    # An empty file has neither chunks nor rows to recognize its layout by, and adds nothing to the output.
    with_rows = [(file, header) for file, header in zip(files, headers, strict=True) if header.rows]
    for file, header in with_rows:
        for what in ("sequence_length", "max_predictions", "vocabulary_sha256", "layout", "masked", "documents"):
            one, other = getattr(with_rows[0][1], what), getattr(header, what)
            if one != other:
                raise InputError(
                    f"{file}: {what} is {other}, that of {with_rows[0][0].name} is {one}; allowed: the same in all "
                    "files",
                    hint="chop folders of one kind, or convert them first",
                )


def _task(
    target: Path,
    parts: tuple[RowRange, ...],
    layout: WrittenLayout,
    found: ShardHeader,
    shape: tuple[int, int] | None,
    content: str | None = None,
) -> ConversionTask:
    if shape is None and found.sequence_length is not None and found.max_predictions is not None:
        shape = (found.sequence_length, found.max_predictions)
    # Size and time stand for the content of a source, as in make: reading terabytes to compare them would take hours.
    digest = hashlib.sha256(f"{layout} {shape}".encode())
    for part in parts:
        state = content or "{0.st_size} {0.st_mtime_ns}".format(part.path.stat())
        digest.update(f"\n{part.path.name} {state} {part.first} {part.stop}".encode())
    return ConversionTask(
        target=target.with_name(written_name(target.name)),
        parts=parts,
        layout=layout,
        shape=shape,
        vocabulary_sha256=found.vocabulary_sha256,
        generator_version=found.generator_version,
        masked=found.masked,
        documents=found.documents,
        made_from=digest.hexdigest(),
    )


def _run(
    tasks: Sequence[ConversionTask],
    target: Path,
    what: str,
    num_processes: int | None,
    reporter: ProgressSink | None,
    check: Callable[[], None],
) -> ConversionResult:
    # The lock first: partial files are removed, which are those of a run that is still writing otherwise.
    with exclusive(target):
        for folder in {task.target.parent for task in tasks}:
            make_shard_folder(folder, root=target)
        missing = [task for task in tasks if not is_converted(task)]
        samples = sum(task.num_rows for task in tasks)
        progress = Progress(what, sum(task.num_rows for task in missing), "samples", reporter)
        processes = min(num_processes or usable_cores(), len(missing))
        if processes > 1:
            for task, _ in run_tasks(run_conversion, missing, num_processes=processes, check=check):
                progress.advance(task.num_rows)
        else:
            # In this process, which can report each block of rows; a worker reports whole files.

            def advance(rows: int) -> None:
                check()
                progress.advance(rows)

            for task in missing:
                check()
                run_conversion(task, advance)
    return ConversionResult(files=len(tasks), kept=len(tasks) - len(missing), samples=samples)


def is_converted(task: ConversionTask) -> bool:
    """Return whether an earlier run wrote the file, from the same rows of the same sources."""
    if not task.target.exists():
        return False
    try:
        found = read_header(task.target)
    except InputError:
        return False
    # Files are written atomically: the header of a file under its name speaks for its rows.
    return found.made_from == task.made_from and found.rows == task.num_rows


def run_conversion(task: ConversionTask, advance: Callable[[int], None] = lambda rows: None) -> int:
    """Write one output file and return its number of samples.

    Memory: some thousand rows of a source at a time, and the output if it is small; a large one is buffered in a
    buffer file beside it. One source is open at a time.

    Args:
        task: what to write.
        advance: called with the number of rows that were read since the last call; may raise.

    Raises:
        TrainerError: as ``read_ragged_blocks`` and ``write_shard``; or the file holds another number of rows.
    """
    row_tokens = task.shape[0] if task.shape else None
    with SampleBuffer(task.target.parent, row_tokens=row_tokens, max_tokens=IN_MEMORY_TOKENS) as buffer:
        for part in task.parts:
            for block in read_ragged_blocks(part.path, rows=slice(part.first, part.stop)):
                buffer.add(block)
                advance(len(block))
        return write_buffered(task, buffer, wanted_rows=task.num_rows)


def write_buffered(task: ConversionTask, buffer: SampleBuffer, *, wanted_rows: int) -> int:
    """Write the samples of a buffer to the task's file, in blocks if they are many; return their number.

    Raises:
        TrainerError: as ``write_shard``; or the file holds another number of rows than are wanted.
    """
    totals = buffer.totals
    shape = task.shape or (max(1, totals.longest_row), max(1, totals.most_predictions))
    if totals.longest_row > shape[0] or totals.most_predictions > shape[1]:
        source = task.parts[0].path if task.parts else task.target
        raise InputError(
            f"{source}: a row has {totals.longest_row} tokens, another {totals.most_predictions} "
            f"predictions; allowed: {shape[0]} and {shape[1]} at most",
            hint="give the files' length, as --length 512:76",
        )
    attributes: dict[str, Any] = {
        "vocabulary_sha256": task.vocabulary_sha256,
        "generator_version": task.generator_version,
        "layout": task.layout,
        "shape": shape,
        "masked": task.masked,
        "documents": task.documents,
        "made_from": task.made_from,
    }
    if buffer.in_memory:
        write_shard(task.target, buffer.joined(), **attributes)
    else:
        write_shard_blocks(task.target, totals, buffer.blocks, **attributes)
    # Read back from the disk: samples must not get lost without notice.
    written = read_header(task.target).rows
    if written != wanted_rows or totals.rows != wanted_rows:
        raise TrainerError(f"{task.target}: holds {written} samples, expected {wanted_rows}")
    return written
