"""Statistics over samples: lengths, masks, predictions, sentence pairs and repetitions. Pure functions of arrays.

Counts of parts add up to those of the whole, so any number of processes can count shards. Repetitions are counted in
bounded memory by distinct sampling (Gibbons, VLDB 2001): of 64-bit hashes those below a limit are counted, and when
there are too many different ones the limit is halved. What remains is a random sample of the different hashes with
exact counts; until the limit is halved for the first time, it is all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from bert_trainer.dataset.shards.ragged import RaggedSamples, ragged_sums
from bert_trainer.system.random_bits import mix64

MAX_KEYS = 1 << 20
"""Different hashes that are kept: 16 MB. The relative error of an estimate is then about one in a thousand."""
MAX_KEYS_PER_FILE = MAX_KEYS >> 3
"""Different hashes that are kept of one file: what a worker sends back."""
NGRAM_TOKENS = 16
"""Length of the n-grams whose repetitions are counted; users see them as pieces of text."""

# One n-gram in 64 is counted. Its hash decides which, so an n-gram is counted everywhere or nowhere.
_NGRAM_SHIFT = 6
# Of a polynomial modulo 2**64: odd, so that it has an inverse.
_BASE = 0x9E3779B97F4A7C15
_INVERSE = pow(_BASE, -1, 1 << 64)

Hashes = NDArray[np.uint64]
Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class DistinctCounts:
    """Counts of different hashes, of all or of a random sample of them."""

    keys: Hashes
    """(n,): different hashes, ascending, each with ``shift`` leading zero bits."""
    counts: Counts
    """(n,): occurrences of each."""
    shift: int
    """One in 2**shift of the different hashes is kept."""

    @classmethod
    def of(cls, hashes: Hashes, *, shift: int = 0, most: int = MAX_KEYS) -> DistinctCounts:
        """Count hashes, (m,). shift: keep one in 2**shift from the start. most: different ones to keep."""
        keys, counts = np.unique(hashes[hashes <= _limit(shift)], return_counts=True)
        return cls(keys, counts.astype(np.int64), shift)._bounded(most)

    @classmethod
    def merged(cls, several: Iterable[DistinctCounts], *, most: int = MAX_KEYS) -> DistinctCounts:
        """Add up at least one. The order does not matter."""
        several = list(several)
        # All samples have to follow the strictest limit before their counts may be added.
        shift = max(one.shift for one in several)
        parts = [one._shifted(shift) for one in several]
        keys, indexes = np.unique(np.concatenate([part.keys for part in parts]), return_inverse=True)
        counts = np.zeros(len(keys), dtype=np.int64)
        # Not counts[indexes] += ..., which adds once for each index, however often it comes.
        np.add.at(counts, indexes, np.concatenate([part.counts for part in parts]))
        return cls(keys, counts, shift)._bounded(most)

    @property
    def is_exact(self) -> bool:
        """Whether all different hashes were counted."""
        return self.shift == 0

    @property
    def mean_count(self) -> float:
        """Occurrences of a hash, averaged over the different ones; 0 if there are none."""
        return float(self.counts.sum() / len(self.keys)) if len(self.keys) else 0.0

    @property
    def duplicate_share(self) -> float:
        """Share of all hashes that repeat an earlier one, in [0, 1)."""
        return 1 - 1 / self.mean_count if len(self.keys) else 0.0

    def _bounded(self, most: int) -> DistinctCounts:
        found = self
        # Halving the limit keeps every second key on average, and may have to be repeated.
        while len(found.keys) > most:
            found = found._shifted(found.shift + 1)
        return found

    def _shifted(self, shift: int) -> DistinctCounts:
        if shift == self.shift:
            return self
        # Keys are sorted, so those below the limit are a prefix; copied, to release the rest.
        left = int(np.searchsorted(self.keys, _limit(shift), side="right"))
        return DistinctCounts(self.keys[:left].copy(), self.counts[:left].copy(), shift)


def _limit(shift: int) -> np.uint64:
    """Return the largest hash with ``shift`` leading zero bits."""
    return np.uint64((1 << 64 - shift) - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleStatistics:
    """Counts over N samples, as (T + 1,) and (P + 1,) histograms and sums."""

    rows: int
    """N."""
    lengths: Counts
    """(T + 1,): samples by number of tokens, [CLS] and [SEP] counted."""
    predictions: Counts
    """(P + 1,): samples by number of predictions."""
    special: int
    """[CLS] and [SEP]: three in a pair, two around every piece of a document."""
    random_next: int
    """Samples whose second segment is random."""
    masked: int
    """Predictions that show [MASK]."""
    unchanged: int
    """Predictions that show the original token."""
    unknown: int | None
    """[UNK] among the original tokens; None if its id is not known."""
    sum_pp: int
    """Sum of p * p, where p are the predictions of a sample and n its tokens. This and the next two give the standard
    error of the share of predicted tokens."""
    sum_pn: int
    sum_nn: int
    samples: DistinctCounts
    """Whole samples: tokens as shown, segments, predictions, label."""
    texts: DistinctCounts
    """Samples before masking: tokens and segments."""
    ngrams: DistinctCounts
    """Runs of ``NGRAM_TOKENS`` tokens inside a segment, before masking."""
    ngrams_per_file: Counts
    """(2,): n-grams and different n-grams, each counted per file, then summed over the files."""

    @property
    def tokens(self) -> int:
        """Number of tokens without padding."""
        return int((np.arange(len(self.lengths)) * self.lengths).sum())

    @property
    def num_predictions(self) -> int:
        """Number of predictions."""
        return int((np.arange(len(self.predictions)) * self.predictions).sum())

    @property
    def padding_share(self) -> float:
        """Share of padding in all positions; rows are as long as the files state, or as the longest one."""
        return 1 - self.tokens / max(1, self.rows * (len(self.lengths) - 1))

    @property
    def predicted_share(self) -> float:
        """Share of the tokens that is predicted."""
        return self.num_predictions / max(1, self.tokens)

    @property
    def unknown_share(self) -> float | None:
        """Share of [UNK] in the tokens of the text, without [CLS] and [SEP]; None if its id is not known."""
        return None if self.unknown is None else self.unknown / max(1, self.tokens - self.special)

    @property
    def mean_count_per_file(self) -> float:
        """Occurrences of an n-gram within one file, on average; 0 if there are none."""
        occurrences, different = self.ngrams_per_file.tolist()
        return occurrences / different if different else 0.0

    @classmethod
    def of(
        cls,
        blocks: Sequence[RaggedSamples],
        *,
        sequence_length: int,
        max_predictions: int,
        mask_id: int | None,
        unk_id: int | None = None,
        documents: bool = False,
    ) -> SampleStatistics:
        """Count the samples of one file.

        Args:
            blocks: the samples; at least one block.
            sequence_length: T; no row may be longer.
            max_predictions: P; no row may have more.
            mask_id: of [MASK]; None: the token that predictions show most often.
            unk_id: of [UNK]; None: it is not counted.
            documents: whether rows are pieces of documents.
        """
        parts = [
            _count(block, sequence_length, max_predictions, mask_id, unk_id, documents=documents) for block in blocks
        ]
        return cls.merged(parts, same_file=True)

    @classmethod
    def merged(cls, several: Sequence[SampleStatistics], *, same_file: bool = False) -> SampleStatistics:
        """Add up at least one. same_file: they are parts of one file, whose n-grams are counted together."""
        values = {field.name: [getattr(one, field.name) for one in several] for field in fields(cls)}
        most = MAX_KEYS_PER_FILE if same_file else MAX_KEYS
        ngrams = DistinctCounts.merged(values["ngrams"], most=most)
        added = {name: sum(values[name]) for name in ("rows", "special", "random_next", "masked", "unchanged")}
        sums = {name: sum(values[name]) for name in ("sum_pp", "sum_pn", "sum_nn")}
        per_file = _sizes(ngrams) if same_file else np.sum(values["ngrams_per_file"], axis=0)
        return cls(
            lengths=_added(values["lengths"]),
            predictions=_added(values["predictions"]),
            samples=DistinctCounts.merged(values["samples"], most=most),
            texts=DistinctCounts.merged(values["texts"], most=most),
            ngrams=ngrams,
            ngrams_per_file=per_file,
            unknown=None if None in values["unknown"] else sum(values["unknown"]),
            **added,
            **sums,
        )


def _count(
    samples: RaggedSamples,
    sequence_length: int,
    max_predictions: int,
    mask_id: int | None,
    unk_id: int | None,
    *,
    documents: bool,
) -> SampleStatistics:
    # What the predictions show: mostly [MASK], by which its id is found where the vocabulary is not known.
    shown = samples.tokens[samples.prediction_places()]
    if mask_id is None and len(shown):
        mask_id = int(np.bincount(shown).argmax())
    n, p = samples.token_counts, samples.prediction_counts
    original = samples.unmasked() if len(shown) else samples
    bounds = original.special_places(documents=documents)
    ngrams = DistinctCounts.of(ngram_hashes(original, bounds), shift=_NGRAM_SHIFT)
    return SampleStatistics(
        rows=len(samples),
        lengths=np.bincount(n, minlength=sequence_length + 1),
        predictions=np.bincount(p, minlength=max_predictions + 1),
        special=len(bounds),
        random_next=int(samples.next_sentence_labels.sum(dtype=np.int64)),
        masked=int((shown == mask_id).sum()) if len(shown) else 0,
        unchanged=int((shown == samples.masked_lm_ids).sum()),
        unknown=None if unk_id is None else int((original.tokens == unk_id).sum()),
        # All int64: RaggedSamples keeps counts so, and squares of a million rows stay far below 2**63.
        sum_pp=int((p * p).sum()),
        sum_pn=int((p * n).sum()),
        sum_nn=int((n * n).sum()),
        samples=DistinctCounts.of(sample_hashes(samples)),
        texts=DistinctCounts.of(text_hashes(original)),
        ngrams=ngrams,
        ngrams_per_file=_sizes(ngrams),
    )


def _sizes(ngrams: DistinctCounts) -> Counts:
    """Return the estimated numbers of n-grams and of different ones, (2,)."""
    return np.array([ngrams.counts.sum() << ngrams.shift, len(ngrams.keys) << ngrams.shift], dtype=np.int64)


def _added(several: Sequence[Counts]) -> Counts:
    """Add histograms of any lengths: files that state no length have that of their longest row."""
    total = np.zeros(max(map(len, several)), dtype=np.int64)
    for one in several:
        total[: len(one)] += one
    return total


def sample_hashes(samples: RaggedSamples) -> Hashes:
    """Return a hash of the whole content of each sample, (N,)."""
    hashes = text_hashes(samples) + samples.next_sentence_labels.astype(np.uint64)
    predicted = (samples.masked_lm_positions.astype(np.uint64) << np.uint64(32)) | samples.masked_lm_ids.astype(
        np.uint64
    )
    return mix64(hashes + ragged_sums(mix64(predicted), samples.prediction_counts, np.uint64))


def text_hashes(samples: RaggedSamples) -> Hashes:
    """Return a hash of the tokens of each sample, their order and the start of its second segment, (N,)."""
    # A sum does not depend on the order of its terms, so each term hashes the token together with its position.
    positions = np.arange(len(samples.tokens)) - np.repeat(samples.token_starts, samples.token_counts)
    tokens = mix64((positions.astype(np.uint64) << np.uint64(32)) | samples.tokens.astype(np.uint64))
    return mix64(
        ragged_sums(tokens, samples.token_counts, np.uint64) + mix64(samples.first_segment_counts.astype(np.uint64))
    )


def ngram_hashes(samples: RaggedSamples, bounds: Counts) -> Hashes:
    """Return a hash of every run of ``NGRAM_TOKENS`` tokens that has none of the bounds in it, (n,)."""
    num_tokens = len(samples.tokens)
    if num_tokens < NGRAM_TOKENS:
        return np.zeros(0, dtype=np.uint64)
    powers, inverses = _powers(1 << max(0, num_tokens - 1).bit_length())
    # A rolling hash modulo 2**64: the polynomial of an n-gram is the difference of two prefix sums. It is divided by
    # the power of its start, so that it does not depend on where the n-gram is.
    sums = np.zeros(num_tokens + 1, dtype=np.uint64)
    np.cumsum(mix64(samples.tokens.astype(np.uint64)) * powers[:num_tokens], out=sums[1:])
    starts = np.flatnonzero(_ngram_starts(num_tokens, bounds))
    return mix64((sums[starts + NGRAM_TOKENS] - sums[starts]) * inverses[starts])


def _ngram_starts(num_tokens: int, bounds: Counts) -> NDArray[np.bool_]:
    """Return for every token but the last 15 whether the n-gram from it on holds no bound, (S - 15,)."""
    is_bound = np.zeros(num_tokens + 1, dtype=np.int64)
    is_bound[bounds] = 1
    before = np.concatenate([[0], np.cumsum(is_bound)])
    last = num_tokens - NGRAM_TOKENS + 1
    inside: NDArray[np.bool_] = before[NGRAM_TOKENS : NGRAM_TOKENS + last] == before[:last]
    return inside


@lru_cache(maxsize=2)
def _powers(count: int) -> tuple[Hashes, Hashes]:
    """Return the powers of the base and of its inverse modulo 2**64. Cached: callers round ``count`` up."""
    factors = np.full((2, count), [[_BASE], [_INVERSE]], dtype=np.uint64)
    factors[:, 0] = 1
    powers = np.cumprod(factors, axis=1, dtype=np.uint64)
    return powers[0], powers[1]
