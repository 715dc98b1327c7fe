"""Block files: scratch between the passes over a corpus; its text in blocks, then each block's tokens, sorted by group.

They make memory independent of the size of the corpus: a block is some megabytes, and a group of documents is read out
of all blocks without the rest. The files belong to one build, which a newer release may continue.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bert_trainer.dataset.corpus.document import Document, text_of
from bert_trainer.dataset.tokens.token_documents import TokenDocuments
from bert_trainer.errors import StorageFailed
from bert_trainer.system.atomic_files import create_partial, disk_errors, open_no_link

BLOCK_FORMAT = 1
"""Raised whenever these files change: a build that another release began then encodes its text again."""
_END = b"\n\n"
"""Of a document."""
_FIRST_BLOCK_BYTES = 1 << 18
_MAX_BLOCK_BYTES = 1 << 23
_BLOCKS_PER_SIZE = 32
"""Blocks of one size before the size doubles: small texts give many processes work, large ones make few files."""


@dataclass(frozen=True, slots=True)
class TextBlock:
    """A file of consecutive documents: sentences end with a line break, documents with an empty line, ``_END``."""

    path: Path
    first_document: int
    """Number of its first document in the corpus."""
    sizes: NDArray[np.int64]
    """(documents,): bytes of each document's text, with its ``_END``."""
    weights: NDArray[np.float64]
    """(documents,): how often each is drawn, relative to ``dupe_factor``."""

    @property
    def num_documents(self) -> int:
        """Return how many documents it holds."""
        return len(self.sizes)

    def read_document(self, number: int) -> list[str]:
        """Return the sentences of one of its documents."""
        with self.path.open("rb") as file:
            file.seek(int(self.sizes[:number].sum()))
            return split_text(file.read(int(self.sizes[number]) - len(_END)))

    def texts(self) -> Iterator[memoryview]:
        """Yield the text of every document, as ``split_text`` takes it. Memory: the block once.

        Raises:
            StorageFailed: the file is shorter or longer than it was written.
        """
        content, start, written = memoryview(self.path.read_bytes()), 0, int(self.sizes.sum())
        if len(content) != written:
            # Another machine's view of a volume may be stale: documents that are cut would be trained on.
            raise StorageFailed(
                f"{self.path}: got {len(content)} bytes; allowed: {written}, as were written",
                hint="start the build again; where it is spread over machines, all have to see one file system",
            )
        for size in self.sizes.tolist():
            yield content[start : start + size - len(_END)]
            start += size


def split_text(text: bytes | memoryview) -> list[str]:
    """Return the sentences of a document's text."""
    return str(text, "utf-8").split("\n")


def write_text_blocks(documents: Iterable[Document], folder: Path) -> Iterator[TextBlock]:
    """Write the documents to an existing folder and yield each block when it is written.

    A block ends with the document that makes it large enough: it is larger than its limit by one document at most.
    """
    waiting: list[bytes] = []
    weights: list[float] = []
    num_bytes = first = number = 0
    for document in documents:
        content = text_of(document.sentences) + _END
        waiting.append(content)
        weights.append(document.weight)
        num_bytes += len(content)
        if num_bytes >= block_bytes(number):
            yield _write_block(folder, number, first, waiting, weights)
            number, first = number + 1, first + len(waiting)
            num_bytes = 0
            waiting, weights = [], []
    if waiting:
        yield _write_block(folder, number, first, waiting, weights)


def block_bytes(number: int) -> int:
    """Return the bytes of text at which this block ends; the blocks of a text do not depend on the machine."""
    return min(_MAX_BLOCK_BYTES, _FIRST_BLOCK_BYTES << (number // _BLOCKS_PER_SIZE))


def expected_blocks(num_bytes: int) -> int:
    """Return about how many blocks so much text makes, at least one."""
    number = 0
    while num_bytes > 0:
        num_bytes -= block_bytes(number)
        number += 1
    return max(1, number)


def _write_block(folder: Path, number: int, first: int, documents: list[bytes], weights: list[float]) -> TextBlock:
    path = folder / f"text_{number:05d}"
    with disk_errors(path), open_no_link(path, "wb") as file:
        file.write(b"".join(documents))
    sizes = np.array([len(content) for content in documents], dtype=np.int64)
    return TextBlock(path, first, sizes, np.array(weights))


def write_tokens(path: Path, documents: TokenDocuments, groups: NDArray[np.int32], num_groups: int) -> None:
    """Write a block's documents sorted by group; in a group they stay in their order.

    groups: (documents,), each below ``num_groups``.
    """
    # The file: an index, int64 (groups + 1, 3), of where each group's documents, sentences and tokens begin; then,
    # int32, draws per document, sentences per document and tokens per sentence; then the ids, uint16 or int32.
    # read_tokens and _read_run compute offsets from this order: 24 bytes for each row of the index, 4 for each int32.
    order = np.argsort(groups, kind="stable")
    ordered = documents.take(order)
    starts = np.searchsorted(groups[order], np.arange(num_groups + 1))
    sentences = ordered.bounds.documents[starts]
    index = np.stack([starts, sentences, ordered.bounds.sentences[sentences]], axis=1)
    # Renamed when it is complete: under its name there is never half a file, whenever a build is killed.
    with disk_errors(path):
        partial = create_partial(path)
        with partial.open("wb") as file:
            for array in (
                index.astype(np.int64),
                ordered.draws,
                ordered.document_lengths.astype(np.int32),
                ordered.sentence_lengths.astype(np.int32),
                ordered.ids,
            ):
                # Not by tofile: on a full disk it raises no error number, only how many items it could write.
                file.write(np.ascontiguousarray(array).data)
        partial.replace(path)


def read_tokens(
    paths: Sequence[Path], groups: Sequence[int], num_groups: int, kind: np.dtype[np.generic]
) -> list[list[TokenDocuments]]:
    """Return the documents of each of some groups, by block and in their order. Memory: those documents.

    groups: neighbours are read with one access. kind: of the ids.
    """
    found: dict[int, list[TokenDocuments]] = {group: [] for group in groups}
    runs = _runs(sorted(found))
    for path in paths:
        with path.open("rb") as file:
            descriptor = file.fileno()
            total = _read(descriptor, 24 * num_groups, 3, np.dtype(np.int64))
            for first, end in runs:
                index = _read(descriptor, 24 * first, 3 * (end - first + 1), np.dtype(np.int64)).reshape(-1, 3)
                for group, part in zip(
                    range(first, end), _read_run(descriptor, index, total, num_groups, kind), strict=True
                ):
                    found[group].append(part)
    return [found[group] for group in groups]


def _read_run(
    descriptor: int, index: NDArray[np.int64], total: NDArray[np.int64], num_groups: int, kind: np.dtype[np.generic]
) -> Iterator[TokenDocuments]:
    """Read neighbouring groups. index: (groups + 1, 3), where each begins."""
    at = 24 * (num_groups + 1)
    counts = index[-1] - index[0]
    draws = _read(descriptor, at + 4 * int(index[0, 0]), int(counts[0]), np.dtype(np.int32))
    at += 4 * int(total[0])
    documents = _read(descriptor, at + 4 * int(index[0, 0]), int(counts[0]), np.dtype(np.int32))
    at += 4 * int(total[0])
    sentences = _read(descriptor, at + 4 * int(index[0, 1]), int(counts[1]), np.dtype(np.int32))
    at += 4 * int(total[1])
    ids = _read(descriptor, at + kind.itemsize * int(index[0, 2]), int(counts[2]), kind)
    relative = index - index[0]
    for (d0, s0, t0), (d1, s1, t1) in zip(relative[:-1], relative[1:], strict=True):
        yield TokenDocuments(ids[t0:t1], sentences[s0:s1], documents[d0:d1], draws[d0:d1])


def _read(descriptor: int, offset: int, count: int, kind: np.dtype[np.generic]) -> NDArray[Any]:
    # pread keeps no position, so the arrays of a file can be read in any order; frombuffer does not copy.
    return np.frombuffer(os.pread(descriptor, count * kind.itemsize, offset), dtype=kind)


def _runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Return the beginnings and ends of runs of neighbours."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number:
            runs[-1] = (runs[-1][0], number + 1)
        else:
            runs.append((number, number + 1))
    return runs
