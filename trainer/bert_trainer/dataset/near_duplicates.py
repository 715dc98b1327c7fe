"""Find documents that say nearly the same as an earlier one, by shingles, MinHash and banding.

A document is the set of its 5-word shingles; two documents are near-duplicates when the Jaccard similarity
of their sets is at least a threshold. MinHash signatures cut into bands name the candidate pairs (Broder
1997; Leskovec, Rajaraman and Ullman, "Mining of Massive Datasets", chapter 3), and every candidate is then
compared exactly, so that nothing is dropped by mistake; a true pair is missed with a probability below 1e-4.
It decides nothing about what happens to a duplicate.

Disk per document, in a scratch folder: 8 bytes per distinct shingle and per band. Memory per document: 8
bytes, and while one band is examined 24 more; documents that share a band with another cost about 200 bytes
per shared band.
"""

from __future__ import annotations

import re
import zlib
from array import array
from collections import defaultdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bert_trainer.dataset.document import Document

SHINGLE_WORDS = 5
_NUM_HASHES = 128
_MISSED = 1e-4
"""Largest accepted probability that a pair at the threshold never becomes a candidate."""
_CHUNK = 8192
"""Shingles hashed at a time: bounds the table of hashes to 8 MiB."""

_WORD = re.compile(r"\w+")

Hashes = NDArray[np.uint64]


class NearDuplicates:
    """Takes documents one by one, then tells which ones repeat an earlier one."""

    def __init__(self, folder: Path, similarity: float) -> None:
        """folder: existing scratch folder, emptied by ``close``. similarity: threshold, in (0, 1)."""
        self._similarity = similarity
        self._rows_per_band = _rows_per_band(similarity)
        self._shingle_path = folder / "shingles.u64"
        self._band_path = folder / "bands.u64"
        self._shingle_file = self._shingle_path.open("wb")
        self._band_file = self._band_path.open("wb")
        self._ends = array("Q")

    def add(self, document: Document) -> None:
        """Remember the next document; documents are numbered in the order of these calls."""
        shingles = shingle_hashes(document)
        bands = _band_keys(_signature(shingles), self._rows_per_band)
        self._shingle_file.write(shingles.tobytes())
        self._band_file.write(bands.tobytes())
        self._ends.append((self._ends[-1] if self._ends else 0) + len(shingles))

    def find(self) -> set[int]:
        """Return the numbers of documents that are near-duplicates of an earlier one that is kept."""
        self._shingle_file.flush()
        self._band_file.flush()
        dropped: set[int] = set()
        kept_by_bucket: dict[int, list[int]] = defaultdict(list)
        for number, buckets in sorted(self._shared_buckets().items()):
            candidates = {other for bucket in buckets for other in kept_by_bucket[bucket]}
            if any(self._similar(number, other) for other in sorted(candidates)):
                dropped.add(number)
                continue
            for bucket in buckets:
                kept_by_bucket[bucket].append(number)
        return dropped

    def close(self) -> None:
        """Remove the scratch files."""
        for file, path in ((self._shingle_file, self._shingle_path), (self._band_file, self._band_path)):
            file.close()
            path.unlink(missing_ok=True)

    def _shared_buckets(self) -> dict[int, list[int]]:
        """Return for every document the buckets (same band, same key) that others are in, too."""
        num_documents = len(self._ends)
        num_bands = _NUM_HASHES // self._rows_per_band
        buckets_of: dict[int, list[int]] = defaultdict(list)
        if num_documents == 0:
            return buckets_of
        table = np.memmap(self._band_path, dtype=np.uint64, mode="r", shape=(num_documents, num_bands))
        next_bucket = 0
        for band in range(num_bands):
            _, bucket, counts = np.unique(table[:, band], return_inverse=True, return_counts=True)
            for number in np.flatnonzero(counts[bucket] > 1).tolist():
                buckets_of[number].append(next_bucket + int(bucket[number]))
            next_bucket += len(counts)
        return buckets_of

    def _similar(self, first: int, second: int) -> bool:
        return jaccard(self._shingles(first), self._shingles(second)) >= self._similarity

    def _shingles(self, number: int) -> Hashes:
        start = self._ends[number - 1] if number else 0
        return np.fromfile(self._shingle_path, dtype=np.uint64, count=self._ends[number] - start, offset=8 * start)


def jaccard(first: Hashes, second: Hashes) -> float:
    """Return shared over all elements of two sorted arrays without repetitions."""
    shared = len(np.intersect1d(first, second, assume_unique=True))
    return shared / (len(first) + len(second) - shared)


def shingle_hashes(document: Document) -> Hashes:
    """Return the sorted distinct hashes of a document's runs of five words, case and punctuation aside.

    A document of fewer words is one shingle. Returns uint64 (n,), n >= 1.
    """
    text = " ".join(document.sentences).casefold()
    words = _WORD.findall(text) or text.split()
    hashes = np.array([zlib.crc32(word.encode()) for word in words], dtype=np.uint64)
    length = min(SHINGLE_WORDS, len(hashes))
    shingles = np.zeros(len(hashes) - length + 1, dtype=np.uint64)
    for offset in range(length):
        shingles = _mix(shingles + hashes[offset : offset + len(shingles)])
    return np.unique(shingles)


def _mix(values: Hashes) -> Hashes:
    """Scramble 64 bits so that every input bit moves every output bit (splitmix64, Steele et al. 2014)."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


_FACTORS = _mix(np.arange(_NUM_HASHES, dtype=np.uint64)) | np.uint64(1)
_ADDENDS = _mix(np.arange(_NUM_HASHES, 2 * _NUM_HASHES, dtype=np.uint64))


def _signature(shingles: Hashes) -> Hashes:
    """Return the least value of each of the 128 hash functions over the shingles, uint64 (128,)."""
    least = np.full(_NUM_HASHES, np.iinfo(np.uint64).max, dtype=np.uint64)
    for start in range(0, len(shingles), _CHUNK):
        hashed = _FACTORS[:, None] * shingles[None, start : start + _CHUNK] + _ADDENDS[:, None]
        least = np.minimum(least, hashed.min(axis=1))
    return least


def _band_keys(signature: Hashes, rows_per_band: int) -> Hashes:
    num_bands = _NUM_HASHES // rows_per_band
    keys = np.zeros(num_bands, dtype=np.uint64)
    for column in signature[: num_bands * rows_per_band].reshape(num_bands, rows_per_band).T:
        keys = _mix(keys + column)
    return keys


def _rows_per_band(similarity: float) -> int:
    """Return the most rows per band (the fewest false candidates) that still find nearly every true pair."""
    for rows in range(8, 1, -1):
        if (1 - similarity**rows) ** (_NUM_HASHES // rows) <= _MISSED:
            return rows
    return 1
