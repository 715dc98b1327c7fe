"""Shards for the trainer, made on the spot: lengths as in English Wikipedia, a language that can be learnt.

The same seed gives the same bytes on every machine: numbers are drawn as integers, and lengths come from a table.
"""

from __future__ import annotations

import hashlib
import importlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bert_trainer.dataset.shards import write_shard
from bert_trainer.dataset.shards.samples import Samples
from bert_trainer.dataset.tokens.wordpiece import SPECIAL_TOKENS, read_vocabulary

PREDICTIONS = {128: 20, 512: 80}
"""Masked positions of a row at most, as NVIDIA's recipes cap them."""
ROWS_PER_SHARD = 4096
_PLACES = 4096  # of the table of lengths
_CLS, _SEP, _MASK = 2, 3, 4
_FIRST_WORD = len(SPECIAL_TOKENS)


@dataclass(frozen=True, slots=True)
class MadeDataset:
    """Shards of one length."""

    folder: Path
    length: int
    predictions: int
    """Masked positions of a row at most."""
    vocabulary: int
    rows: int
    mean_tokens: float
    """Real tokens of a row."""
    mean_squared_tokens: float
    mean_predictions: float
    sha256: str
    """Over all files, which the same seed makes the same."""

    def flop_per_sequence(self, layers: int, hidden: int) -> float:
        """Return what training on one row takes, forward and backward, on real tokens and masked positions alone.

        6 for each weight of the encoder and token, 12 for each layer, feature and pair of tokens, 6 for each weight of
        the masked-LM head and position. Embeddings, LayerNorm and whatever is computed twice count nothing.
        """
        encoder = 6.0 * 12 * hidden**2 * layers * self.mean_tokens
        attention = 12.0 * layers * hidden * self.mean_squared_tokens
        return encoder + attention + 6.0 * (hidden**2 + hidden * self.vocabulary) * self.mean_predictions


def make_dataset(folder: Path, *, length: int, rows: int, vocabulary: int, seed: int = 1) -> MadeDataset:
    """Write ``vocab.txt`` and training shards of one length."""
    predictions = PREDICTIONS.get(length, max(1, length // 6))
    shards = folder / f"seq_len_{length}_max_pred_{predictions}"
    shards.mkdir(parents=True)
    words = [f"w{number}" for number in range(vocabulary - _FIRST_WORD)]
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, *words]) + "\n")
    entries = read_vocabulary(folder / "vocab.txt")
    rng = np.random.default_rng(seed)
    lengths, masked = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
    digest = hashlib.sha256()
    for number, start in enumerate(range(0, rows, ROWS_PER_SHARD)):
        count = min(ROWS_PER_SHARD, rows - start)
        samples = make_samples(count, rng, length=length, predictions=predictions, vocabulary=vocabulary)
        path = shards / f"training_{number:04d}.hdf5"
        write_shard(path, samples, vocabulary_sha256=entries.sha256, generator_version=1)
        digest.update(path.read_bytes())
        lengths[start : start + count] = samples.input_mask.sum(1)
        masked[start : start + count] = (samples.masked_lm_positions > 0).sum(1)
    return MadeDataset(
        folder=folder,
        length=length,
        predictions=predictions,
        vocabulary=vocabulary,
        rows=rows,
        mean_tokens=float(lengths.mean()),
        mean_squared_tokens=float((lengths**2).mean()),
        mean_predictions=float(masked.mean()),
        sha256=digest.hexdigest(),
    )


def make_samples(rows: int, rng: np.random.Generator, *, length: int, predictions: int, vocabulary: int) -> Samples:
    """Draw rows: two runs of words, each word the successor of the one before; label 1 where B does not follow A.

    A masked word can be told from its neighbours; where a run begins, low numbers come more often than high ones.
    """
    at_TR = np.arange(length)[None]
    lengths_R1 = np.maximum(_draw_lengths(rows, rng, length), 5)[:, None]
    first_R1 = (lengths_R1 - 3) // 2
    words = vocabulary - _FIRST_WORD
    begins_R1 = rng.integers(0, words, (3, rows, 1)).min(axis=0)
    random_next_R = rng.integers(0, 2, rows).astype(np.int8)
    others_R1 = np.where(random_next_R[:, None] == 1, rng.integers(0, words, (rows, 1)), begins_R1 + first_R1)
    in_first = at_TR <= first_R1
    ids = _FIRST_WORD + np.where(in_first, begins_R1 + at_TR - 1, others_R1 + at_TR - first_R1 - 2) % words
    real, separators = at_TR < lengths_R1, (at_TR == first_R1 + 1) | (at_TR == lengths_R1 - 1)
    ids = np.where(separators, _SEP, np.where(at_TR == 0, _CLS, ids))
    words_RT = real & ~separators & (at_TR > 0)
    # The lowest of random numbers, the same on every machine; places that hold no word come last.
    order = np.argsort(np.where(words_RT, rng.integers(0, 1 << 62, ids.shape), 1 << 62), axis=1, kind="stable")
    wanted_R1 = np.clip(np.rint(0.15 * lengths_R1).astype(np.int64), 1, predictions)
    chosen = np.where(np.arange(predictions) < wanted_R1, order[:, :predictions], length)
    chosen.sort(axis=1)
    used, rows_R1 = chosen < length, np.arange(rows)[:, None]
    positions = np.where(used, chosen, 0)
    labels = np.where(used, ids[rows_R1, positions], 0)
    masks = np.zeros(ids.shape, bool)
    masks[np.broadcast_to(rows_R1, used.shape)[used], positions[used]] = True
    return Samples(
        np.where(real, np.where(masks, _MASK, ids), 0).astype(np.int32),
        real.astype(np.int8),
        (real & ~in_first & (at_TR > first_R1 + 1)).astype(np.int8),
        positions.astype(np.int32),
        labels.astype(np.int32),
        random_next_R,
    )


def _draw_lengths(rows: int, rng: np.random.Generator, longest: int) -> NDArray[np.int64]:
    length_at = importlib.import_module("gpu_step").length_at
    table = np.array([length_at((place + 0.5) / _PLACES, min(longest, 512)) for place in range(_PLACES)])
    found: NDArray[np.int64] = table[rng.integers(0, _PLACES, rows)]
    return found
