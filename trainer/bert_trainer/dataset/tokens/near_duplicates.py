"""Near-duplicate documents: shingles, MinHash and banding (LSH).

A document is the set of its 5-word shingles; two documents are near-duplicates when the Jaccard similarity
of their sets is at least a threshold. MinHash signatures cut into bands name the candidate pairs (Broder
1997; Leskovec, Rajaraman and Ullman, "Mining of Massive Datasets", chapter 3), and every candidate is then
compared exactly, so that nothing is dropped by mistake; a true pair is missed with a probability below 1e-4.
What happens to a duplicate is decided elsewhere.

Exact copies are found first, by their digests. Documents come in blocks, whose signatures any process can compute. Disk
per document, in a scratch folder: 16 bytes and 8 per band. Memory per document: 40 bytes while digests or one band are
examined; documents that share a band with another, copies aside, cost 24 bytes per shared band, and are read again
to be compared.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bert_trainer.dataset.tokens.word_cache import WordCache, ragged_indexes
from bert_trainer.system.atomic_files import open_no_link
from bert_trainer.system.random_bits import mix64

SHINGLE_WORDS = 5
_NUM_HASHES = 128
_MISSED = 1e-4
"""Largest accepted probability that a pair at the threshold never becomes a candidate."""
_CHUNK = 2048
"""Shingles hashed at a time: keeps the table of hashes, 1 MiB, in the processor's cache."""

_SHINGLES_KEPT = 64
"""Documents whose shingles are kept for the next comparison: near-duplicates come in groups."""

_WORD = re.compile(r"\w+")

Sentences = Sequence[str]
Hashes = NDArray[np.uint64]


class Signatures:
    """Computes the bands of documents; caches the hashes of words."""

    def __init__(self, similarity: float) -> None:
        """similarity: threshold, in (0, 1]."""
        self._rows_per_band = rows_per_band(similarity)
        self._words = WordCache(_word_hashes)

    def bands(self, documents: Sequence[Sentences]) -> Hashes:
        """Return the band keys of some documents, uint64 (documents, bands)."""
        hashes, num_words = self._hashes(documents)
        return _band_keys(_signatures(*_shingles(hashes, num_words)), self._rows_per_band)

    def shingles(self, document: Sentences) -> Hashes:
        """Return the sorted distinct hashes of a document's runs of five words, case and punctuation aside.

        A document of fewer words is one shingle. Returns uint64 (n,), n >= 1.
        """
        return np.unique(_shingles(*self._hashes([document]))[0])

    def _hashes(self, documents: Sequence[Sentences]) -> tuple[Hashes, NDArray[np.int64]]:
        """Return the hashes of all words and how many each document has, at least one."""
        texts = [" ".join(sentences) for sentences in documents]
        pieces = np.array([text.count(" ") + 1 for text in texts], dtype=np.int64)
        hashes, counts = self._words.look_up(" ".join(texts).split(" "))
        ends = np.concatenate([[0], np.cumsum(counts)])[np.cumsum(pieces)]
        num_words = np.diff(ends, prepend=0)
        if len(wordless := np.flatnonzero(num_words == 0)):
            # Without a letter or digit: its other characters stand for it, so that such documents differ, too.
            signs = [[zlib.crc32(sign.encode()) for sign in texts[number].split() or [""]] for number in wordless]
            # All of them at once: each insertion copies the hashes of the whole batch.
            places = np.repeat(np.cumsum(num_words)[wordless], list(map(len, signs)))
            hashes = np.insert(hashes, places, np.array([sign for several in signs for sign in several], np.uint64))
            num_words[wordless] = list(map(len, signs))
        return hashes, num_words


class NearDuplicates:
    """Takes the bands of all documents, then finds those that repeat an earlier one."""

    def __init__(self, folder: Path, similarity: float) -> None:
        """folder: existing scratch folder, emptied by ``close``. similarity: threshold, in (0, 1]."""
        self._similarity = similarity
        self._num_bands = _NUM_HASHES // rows_per_band(similarity)
        # A file for each band: they are examined one after the other, and only one is in memory at a time.
        self._paths = [folder / f"band_{number:03d}.u64" for number in range(self._num_bands)]
        self._paths.append(folder / "digests.u64")
        self._files = [open_no_link(path, "wb") for path in self._paths]

    def add(self, bands: Hashes, digests: bytes) -> None:
        """Remember the next documents; they are numbered in the order of these calls.

        bands: (documents, bands), as ``Signatures.bands`` gives them. digests: 32 bytes of each document's text.
        """
        for file, keys in zip(self._files, bands.T, strict=False):
            file.write(keys.tobytes())
        self._files[-1].write(np.frombuffer(digests, dtype=np.uint64).reshape(-1, 4)[:, :2].tobytes())

    def find(self, read: Callable[[int], Sentences]) -> NDArray[np.int64]:
        """Return the numbers of documents that are near-duplicates of an earlier one that is kept, ascending.

        read: gives the sentences of a document.
        """
        for file in self._files:
            file.flush()
        signatures = Signatures(self._similarity)
        dropped = _is_copy(np.fromfile(self._paths[-1], dtype=np.uint64).reshape(-1, 2))
        numbers, buckets = self._shared_buckets(~dropped)
        by_bucket = np.argsort(buckets, kind="stable")
        # Per document the buckets it is in, and per bucket its documents, members[firsts[b] : firsts[b + 1]].
        members, firsts = numbers[by_bucket], np.searchsorted(buckets[by_bucket], np.arange(buckets.max(initial=0) + 2))
        del by_bucket

        @lru_cache(maxsize=_SHINGLES_KEPT)
        def shingles(number: int) -> Hashes:
            return signatures.shingles(read(number))

        bounds = np.flatnonzero(np.diff(numbers, prepend=-1, append=-1))
        for start, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            number = int(numbers[start])
            own = [members[firsts[bucket] : firsts[bucket + 1]] for bucket in buckets[start:end].tolist()]
            others = np.unique(np.concatenate(own))
            # In ascending order, so whether an earlier document is kept is settled: chains do not drop everything.
            candidates = others[(others < number) & ~dropped[others]].tolist()
            dropped[number] = any(
                jaccard(shingles(number), shingles(other)) >= self._similarity for other in candidates
            )
        return np.flatnonzero(dropped)

    def close(self) -> None:
        """Remove the scratch files."""
        for file, path in zip(self._files, self._paths, strict=True):
            file.close()
            path.unlink(missing_ok=True)

    def _shared_buckets(self, wanted: NDArray[np.bool_]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return documents and the buckets (same band, same key) that others are in, too, by document, (n,) each.

        wanted: (documents,): no other document counts.
        """
        documents = np.flatnonzero(wanted).astype(np.int32)
        numbers, buckets = [np.zeros(0, dtype=np.int32)], [np.zeros(0, dtype=np.int32)]
        next_bucket = 0
        for path in self._paths[:-1]:
            places, bucket, count = _repeated(np.fromfile(path, dtype=np.uint64)[documents])
            numbers.append(documents[places])
            buckets.append((next_bucket + bucket).astype(np.int32))
            next_bucket += count
        together = np.concatenate(numbers)
        order = np.argsort(together, kind="stable")
        return together[order], np.concatenate(buckets)[order]


def _is_copy(digests: Hashes) -> NDArray[np.bool_]:
    """Return for each document whether an earlier one has the same digest. digests: (documents, 2)."""
    order = np.lexsort((digests[:, 1], digests[:, 0]))  # stable: of equal ones the earliest comes first
    ordered = digests[order]
    copies = np.zeros(len(digests), dtype=np.bool_)
    copies[order[1:]] = (ordered[1:] == ordered[:-1]).all(axis=1)
    return copies


def _repeated(keys: Hashes) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Return the places of keys that come more than once, (n,), which of these each has, (n,), and their number."""
    ordered = np.sort(keys)
    repeated = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    if not len(repeated):
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), 0
    at = np.minimum(np.searchsorted(repeated, keys), len(repeated) - 1)
    places = np.flatnonzero(repeated[at] == keys)
    return places, at[places], len(repeated)


def jaccard(first: Hashes, second: Hashes) -> float:
    """Return shared over all elements of two sorted arrays without repetitions."""
    shared = len(np.intersect1d(first, second, assume_unique=True))
    return shared / (len(first) + len(second) - shared)


def _word_hashes(words: Sequence[str]) -> tuple[Hashes, NDArray[np.int64]]:
    """Return the hashes of what is a word in text without spaces, (n,), and how many there are in each."""
    found = [_WORD.findall(word.casefold()) for word in words]
    hashes = np.array([zlib.crc32(word.encode()) for several in found for word in several], dtype=np.uint64)
    return hashes, np.array([len(several) for several in found], dtype=np.int64)


def _shingles(hashes: Hashes, num_words: NDArray[np.int64]) -> tuple[Hashes, NDArray[np.int64]]:
    """Return the shingles of all documents, repetitions included, and how many each document has."""
    counts = np.maximum(1, num_words - SHINGLE_WORDS + 1)
    firsts = np.cumsum(num_words) - num_words
    places = ragged_indexes(firsts, counts)
    left = np.repeat(firsts + num_words, counts) - places
    shingles = np.zeros(len(places), dtype=np.uint64)
    for offset in range(SHINGLE_WORDS):
        mixed = mix64(shingles + hashes[np.minimum(places + offset, len(hashes) - 1)])
        shingles = np.where(left > offset, mixed, shingles)
    return shingles, counts


# 128 hash functions h -> (factor * h + addend) mod 2**32, all at once by wrapping uint32 arithmetic. Odd factors make
# each of them one-to-one.
_FACTORS = (mix64(np.arange(_NUM_HASHES, dtype=np.uint64)) | np.uint64(1)).astype(np.uint32)
_ADDENDS = mix64(np.arange(_NUM_HASHES, 2 * _NUM_HASHES, dtype=np.uint64)).astype(np.uint32)


def _signatures(shingles: Hashes, counts: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Return the least value of each of the 128 hash functions over each document's shingles, (documents, 128).

    counts: shingles of each document, at least one.
    """
    least = np.full((_NUM_HASHES, len(counts)), np.iinfo(np.uint32).max, dtype=np.uint32)
    # The high half: after mix64 any 32 bits are as good, and uint32 halves the table.
    values = (shingles >> np.uint64(32)).astype(np.uint32)
    ends = np.cumsum(counts)
    hashed = np.empty((_NUM_HASHES, _CHUNK), dtype=np.uint32)
    for start in range(0, len(values), _CHUNK):
        part = values[start : start + _CHUNK]
        table = hashed[:, : len(part)]
        np.multiply(_FACTORS[:, None], part[None, :], out=table)
        table += _ADDENDS[:, None]
        # The documents that this chunk touches; reduceat takes the minimum over the part of each that lies in it.
        first, last = np.searchsorted(ends, [start, start + len(part) - 1], side="right")
        begins = np.maximum(ends[first : last + 1] - counts[first : last + 1] - start, 0)
        found = np.minimum.reduceat(table, begins, axis=1)
        least[:, first : last + 1] = np.minimum(least[:, first : last + 1], found)
    return least.T


def _band_keys(signatures: NDArray[np.uint32], rows: int) -> Hashes:
    """Hash each band of ``rows`` signatures: uint32 (documents, 128) to uint64 (documents, bands)."""
    num_bands = _NUM_HASHES // rows
    keys = np.zeros((len(signatures), num_bands), dtype=np.uint64)
    for row in range(rows):
        keys = mix64(keys + signatures[:, row : num_bands * rows : rows])
    return keys


def rows_per_band(similarity: float) -> int:
    """Return the most rows per band (the fewest false candidates) that still find nearly every true pair."""
    for rows in range(8, 1, -1):
        if (1 - similarity**rows) ** (_NUM_HASHES // rows) <= _MISSED:
            return rows
    return 1
