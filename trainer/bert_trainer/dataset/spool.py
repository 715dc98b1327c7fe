"""Scratch files between the passes over a corpus: its text, then its tokens split into shards.

They keep memory apart from the size of the corpus: documents go through one by one, and a shard's tokens are
read back as flat arrays. The files are this build's own and carry no version; they are not shards.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import overload

import numpy as np
from numpy.typing import NDArray

from bert_trainer.dataset.document import Document

_FLUSH_TOKENS = 1 << 20
"""Tokens gathered before they are appended to the files of their shards: 4 MiB."""
_SUFFIXES = ("ids", "sentences", "documents")


class TextSpool:
    """Documents in one file: a sentence per line, an empty line after each document."""

    def __init__(self, path: Path) -> None:
        """Start an empty file."""
        self._path = path
        self._file = path.open("wb")

    def add(self, document: Document) -> None:
        """Append a document."""
        self._file.write("\n".join((*document.sentences, "", "")).encode())

    def close(self) -> None:
        """Write out what is still in memory; to be called before reading."""
        self._file.close()

    def __iter__(self) -> Iterator[tuple[str, ...]]:
        """Yield the sentences of every document, in order."""
        sentences: list[str] = []
        with self._path.open("rb") as file:
            for line in file:
                if line != b"\n":
                    sentences.append(line.decode().removesuffix("\n"))
                else:
                    yield tuple(sentences)
                    sentences = []


class TokenSpool:
    """Takes encoded documents and deals them out to shards of about equal numbers of tokens."""

    def __init__(self, folder: Path, split: str, num_shards: int) -> None:
        """Start empty files in an existing folder."""
        self._paths = [[_path(folder, split, shard, suffix) for suffix in _SUFFIXES] for shard in range(num_shards)]
        for paths in self._paths:
            for path in paths:
                path.write_bytes(b"")
        self._loads = [(0, shard) for shard in range(num_shards)]
        self._waiting: list[list[list[list[int]]]] = [[] for _ in range(num_shards)]
        self._waiting_tokens = 0
        self.num_documents = 0
        self.num_tokens = 0

    def add(self, document: list[list[int]]) -> None:
        """Give a document, a non-empty list of non-empty sentences, to the shard with the fewest tokens."""
        num_tokens = sum(map(len, document))
        load, shard = heapq.heappop(self._loads)
        heapq.heappush(self._loads, (load + num_tokens, shard))
        self._waiting[shard].append(document)
        self._waiting_tokens += num_tokens
        self.num_documents += 1
        self.num_tokens += num_tokens
        if self._waiting_tokens >= _FLUSH_TOKENS:
            self.flush()

    def flush(self) -> None:
        """Append what is in memory to the files; to be called after the last document."""
        for paths, documents in zip(self._paths, self._waiting, strict=True):
            columns = (
                [token for document in documents for sentence in document for token in sentence],
                [len(sentence) for document in documents for sentence in document],
                [len(document) for document in documents],
            )
            for path, column in zip(paths, columns, strict=True):
                with path.open("ab") as file:
                    file.write(np.array(column, dtype=np.int32).tobytes())
            documents.clear()
        self._waiting_tokens = 0


class SpooledDocument(Sequence[list[int]]):
    """The sentences of one document, made into lists when they are asked for."""

    def __init__(self, ids: NDArray[np.int32], bounds: NDArray[np.int64]) -> None:
        """ids: of the whole shard. bounds: first token of each sentence, and the end of the last one."""
        self._ids = ids
        self._bounds = bounds

    def __len__(self) -> int:
        """Return the number of sentences."""
        return len(self._bounds) - 1

    @overload
    def __getitem__(self, index: int) -> list[int]: ...
    @overload
    def __getitem__(self, index: slice) -> list[list[int]]: ...
    def __getitem__(self, index: int | slice) -> list[int] | list[list[int]]:
        """Return one sentence's tokens, or those of several."""
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        sentence: list[int] = self._ids[self._bounds[index] : self._bounds[index + 1]].tolist()
        return sentence


def read_tokens(folder: Path, split: str, shard: int) -> list[SpooledDocument]:
    """Read the documents of one shard. Memory: 4 bytes per token, 12 per sentence."""
    ids, sentence_lengths, document_lengths = (
        np.fromfile(_path(folder, split, shard, suffix), dtype=np.int32) for suffix in _SUFFIXES
    )
    token_bounds = np.concatenate([[0], np.cumsum(sentence_lengths, dtype=np.int64)])
    sentence_bounds = np.concatenate([[0], np.cumsum(document_lengths, dtype=np.int64)])
    return [
        SpooledDocument(ids, token_bounds[start : stop + 1])
        for start, stop in zip(sentence_bounds[:-1], sentence_bounds[1:], strict=True)
    ]


def _path(folder: Path, split: str, shard: int, suffix: str) -> Path:
    return folder / f"{split}_{shard:04d}.{suffix}"
