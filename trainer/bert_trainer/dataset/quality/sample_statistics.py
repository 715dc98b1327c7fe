"""Statistics over samples: lengths, masks, predictions, pairs and repetitions. Pure functions of arrays.

Counts of parts add up to those of the whole, so any number of processes can count shards. Repetitions are counted in
bounded memory: things are 64-bit hashes, those below a limit are counted, and where there are too many different ones
the limit is halved (distinct sampling: Gibbons, VLDB 2001). The rest is a random part of all different things with
exact counts; until the first halving, all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from bert_trainer.dataset.shards.ragged import RaggedSamples
from bert_trainer.system.random_bits import mix64

MOST_KEYS = 1 << 20
"""Different hashes that are kept: 16 MB. The relative error of an estimate is about one in a thousand then."""

Hashes = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Repeats:
    """Counts of things."""

    keys: Hashes
    """(n,): different hashes, ascending, each with ``shift`` leading zero bits."""
    counts: NDArray[np.int64]
    """(n,): how often each came."""
    shift: int
    """One in 2**shift of the different things is kept."""

    @classmethod
    def of(cls, hashes: Hashes, *, shift: int = 0, most: int = MOST_KEYS) -> Repeats:
        """Count hashes, (m,). shift: keep one in 2**shift from the beginning."""
        keys, counts = np.unique(hashes[hashes <= _limit(shift)], return_counts=True)
        return cls(keys, counts.astype(np.int64), shift)._bounded(most)

    @classmethod
    def together(cls, several: Iterable[Repeats], *, most: int = MOST_KEYS) -> Repeats:
        """Return the counts of all things together; at least one."""
        several = list(several)
        shift = max(one.shift for one in several)
        parts = [one._shifted(shift) for one in several]
        keys, places = np.unique(np.concatenate([part.keys for part in parts]), return_inverse=True)
        counts = np.zeros(len(keys), dtype=np.int64)
        np.add.at(counts, places, np.concatenate([part.counts for part in parts]))
        return cls(keys, counts, shift)._bounded(most)

    @property
    def is_exact(self) -> bool:
        """Whether all things were counted."""
        return self.shift == 0

    @property
    def times(self) -> float:
        """How often a thing comes, on average over the different ones; 0 where there is none."""
        return float(self.counts.sum() / len(self.keys)) if len(self.keys) else 0.0

    @property
    def repeated_share(self) -> float:
        """Share of all things that an earlier one equals, in [0, 1)."""
        return 1 - 1 / self.times if len(self.keys) else 0.0

    def _bounded(self, most: int) -> Repeats:
        found = self
        while len(found.keys) > most:
            found = found._shifted(found.shift + 1)
        return found

    def _shifted(self, shift: int) -> Repeats:
        if shift == self.shift:
            return self
        left = int(np.searchsorted(self.keys, _limit(shift), side="right"))
        return Repeats(self.keys[:left].copy(), self.counts[:left].copy(), shift)


def _limit(shift: int) -> np.uint64:
    return np.uint64((1 << 64 - shift) - 1)


PIECE_TOKENS = 16
"""Length of the pieces of text whose repetitions are counted."""
MOST_KEYS_OF_FILE = MOST_KEYS >> 3
"""Different hashes that are kept of one file: what a process has to hand over."""
_PIECE_SHIFT = 6
"""One piece in 64 is counted; which ones, their tokens decide, so a piece is counted wherever it comes."""
_BASE = 0x9E3779B97F4A7C15
_INVERSE = pow(_BASE, -1, 1 << 64)

Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleStatistics:
    """Counts over N samples. n: tokens of a sample, [CLS] and [SEP] counted; p: its predictions."""

    rows: int
    """N."""
    lengths: Counts
    """(T + 1,): samples of so many tokens."""
    predictions: Counts
    """(P + 1,): samples of so many predictions."""
    random_next: int
    """Samples whose second segment is a random one."""
    masked: int
    """Predictions that show [MASK]."""
    unchanged: int
    """Predictions that show the original token."""
    unknown: int | None
    """[UNK] among the tokens before they were masked; empty where its id is not known."""
    sum_pp: int
    """Of p * p, as the next two for the standard error of the share of predicted tokens."""
    sum_pn: int
    sum_nn: int
    samples: Repeats
    """Whole samples: tokens as shown, segments, predictions, label."""
    texts: Repeats
    """Samples as they were before they were masked: tokens and segments."""
    pieces: Repeats
    """Runs of ``PIECE_TOKENS`` tokens inside a segment, before masking."""
    pieces_of_files: Counts
    """(2,): of each file for itself, together: pieces, different pieces; as far as counted."""

    @property
    def tokens(self) -> int:
        """Return all tokens, padding aside."""
        return int((np.arange(len(self.lengths)) * self.lengths).sum())

    @property
    def num_predictions(self) -> int:
        """Return all predictions."""
        return int((np.arange(len(self.predictions)) * self.predictions).sum())

    @property
    def padding_share(self) -> float:
        """Share of all positions that is padding, at the longest sample's length where the files state none."""
        return 1 - self.tokens / max(1, self.rows * (len(self.lengths) - 1))

    @property
    def predicted_share(self) -> float:
        """Share of all tokens that is predicted."""
        return self.num_predictions / max(1, self.tokens)

    @property
    def unknown_share(self) -> float | None:
        """Share of the text's tokens, [CLS] and [SEP] left out, that are [UNK], where its id is known."""
        return None if self.unknown is None else self.unknown / max(1, self.tokens - 3 * self.rows)

    @property
    def times_in_a_file(self) -> float:
        """How often a piece of text comes in one file, on average; 0 where there are none."""
        together, different = self.pieces_of_files.tolist()
        return together / different if different else 0.0

    @classmethod
    def of(
        cls,
        blocks: Sequence[RaggedSamples],
        *,
        sequence_length: int,
        max_predictions: int,
        mask_id: int | None,
        unk_id: int | None = None,
    ) -> SampleStatistics:
        """Count the samples of one file, given in blocks; at least one block.

        sequence_length, max_predictions: T and P; no row may exceed them. mask_id: empty: what predictions show most.
        unk_id: empty: it is not counted.
        """
        parts = [_count(block, sequence_length, max_predictions, mask_id, unk_id) for block in blocks]
        return cls.together(parts, of_one_file=True)

    @classmethod
    def together(cls, several: Sequence[SampleStatistics], *, of_one_file: bool = False) -> SampleStatistics:
        """Add up at least one. of_one_file: pieces that come in two of them come twice in a file."""
        values = {field.name: [getattr(one, field.name) for one in several] for field in fields(cls)}
        most = MOST_KEYS_OF_FILE if of_one_file else MOST_KEYS
        pieces = Repeats.together(values["pieces"], most=most)
        added = {name: sum(values[name]) for name in ("rows", "random_next", "masked", "unchanged")}
        sums = {name: sum(values[name]) for name in ("sum_pp", "sum_pn", "sum_nn")}
        in_files = _sizes(pieces) if of_one_file else np.sum(values["pieces_of_files"], axis=0)
        return cls(
            lengths=_added(values["lengths"]),
            predictions=_added(values["predictions"]),
            samples=Repeats.together(values["samples"], most=most),
            texts=Repeats.together(values["texts"], most=most),
            pieces=pieces,
            pieces_of_files=in_files,
            unknown=None if None in values["unknown"] else sum(values["unknown"]),
            **added,
            **sums,
        )


def _count(
    samples: RaggedSamples, sequence_length: int, max_predictions: int, mask_id: int | None, unk_id: int | None
) -> SampleStatistics:
    shown = samples.tokens[samples.prediction_places()]
    if mask_id is None and len(shown):
        mask_id = int(np.bincount(shown).argmax())
    n, p = samples.token_counts, samples.prediction_counts
    original = samples.unmasked() if len(shown) else samples
    pieces = Repeats.of(piece_hashes(original), shift=_PIECE_SHIFT)
    return SampleStatistics(
        rows=len(samples),
        lengths=np.bincount(n, minlength=sequence_length + 1),
        predictions=np.bincount(p, minlength=max_predictions + 1),
        random_next=int(samples.next_sentence_labels.sum(dtype=np.int64)),
        masked=int((shown == mask_id).sum()) if len(shown) else 0,
        unchanged=int((shown == samples.masked_lm_ids).sum()),
        unknown=None if unk_id is None else int((original.tokens == unk_id).sum()),
        sum_pp=int((p * p).sum()),
        sum_pn=int((p * n).sum()),
        sum_nn=int((n * n).sum()),
        samples=Repeats.of(sample_hashes(samples)),
        texts=Repeats.of(text_hashes(original)),
        pieces=pieces,
        pieces_of_files=_sizes(pieces),
    )


def _sizes(pieces: Repeats) -> Counts:
    return np.array([pieces.counts.sum() << pieces.shift, len(pieces.keys) << pieces.shift], dtype=np.int64)


def _added(several: Sequence[Counts]) -> Counts:
    together = np.zeros(max(map(len, several)), dtype=np.int64)
    for one in several:
        together[: len(one)] += one
    return together


def sample_hashes(samples: RaggedSamples) -> Hashes:
    """Return a hash of everything that a sample holds, (N,)."""
    hashes = text_hashes(samples) + samples.next_sentence_labels.astype(np.uint64)
    predicted = (samples.masked_lm_positions.astype(np.uint64) << np.uint64(32)) | samples.masked_lm_ids.astype(
        np.uint64
    )
    return mix64(hashes + _sums(mix64(predicted), samples.prediction_counts))


def text_hashes(samples: RaggedSamples) -> Hashes:
    """Return a hash of the tokens of each sample, their order and where its second segment begins, (N,)."""
    places = np.arange(len(samples.tokens)) - np.repeat(samples.token_starts, samples.token_counts)
    tokens = mix64((places.astype(np.uint64) << np.uint64(32)) | samples.tokens.astype(np.uint64))
    return mix64(_sums(tokens, samples.token_counts) + mix64(samples.first_segment_counts.astype(np.uint64)))


def piece_hashes(samples: RaggedSamples) -> Hashes:
    """Return a hash of every run of ``PIECE_TOKENS`` tokens in one segment, [CLS] and [SEP] left out, (n,)."""
    num_tokens = len(samples.tokens)
    if num_tokens < PIECE_TOKENS:
        return np.zeros(0, dtype=np.uint64)
    powers, inverses = _powers(1 << max(0, num_tokens - 1).bit_length())
    # A polynomial's value over a run is the difference of two running sums, brought to the same place.
    sums = np.zeros(num_tokens + 1, dtype=np.uint64)
    np.cumsum(mix64(samples.tokens.astype(np.uint64)) * powers[:num_tokens], out=sums[1:])
    starts = np.flatnonzero(_run_begins(samples))
    return mix64((sums[starts + PIECE_TOKENS] - sums[starts]) * inverses[starts])


def _run_begins(samples: RaggedSamples) -> NDArray[np.bool_]:
    """Tell for every token but the last ones whether a run that begins with it stays in its segment, (S - 15,)."""
    bounds = np.zeros(len(samples.tokens) + 1, dtype=np.int64)
    starts = samples.token_starts
    bounds[starts] = bounds[starts + samples.first_segment_counts - 1] = bounds[starts + samples.token_counts - 1] = 1
    before = np.concatenate([[0], np.cumsum(bounds)])
    last = len(samples.tokens) - PIECE_TOKENS + 1
    inside: NDArray[np.bool_] = before[PIECE_TOKENS : PIECE_TOKENS + last] == before[:last]
    return inside


def _sums(values: Hashes, counts: Counts) -> Hashes:
    """Return the sums of runs of so many values each, modulo 2**64."""
    ends = np.cumsum(counts)
    sums = np.zeros(len(values) + 1, dtype=np.uint64)
    np.cumsum(values, out=sums[1:])
    found: Hashes = sums[ends] - sums[ends - counts]
    return found


@lru_cache(maxsize=2)
def _powers(count: int) -> tuple[Hashes, Hashes]:
    """Return the powers of a number and of its inverse modulo 2**64."""
    factors = np.full((2, count), [[_BASE], [_INVERSE]], dtype=np.uint64)
    factors[:, 0] = 1
    powers = np.cumprod(factors, axis=1, dtype=np.uint64)
    return powers[0], powers[1]
