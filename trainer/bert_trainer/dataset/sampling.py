"""One shard of samples from its documents: pairs, masks, rows. The unit of work of a build.

A shard depends on its documents, the settings and its own random stream, on nothing else: the same bytes come
out whichever process makes it and in whatever order. It does not read text and knows no vocabulary file.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from bert_trainer.dataset.masking import MaskedTokens, MaskingRule, mask_tokens
from bert_trainer.dataset.samples import DATASETS, Samples
from bert_trainer.dataset.sentence_pairs import SentencePair, TokenDocument, draw_pairs
from bert_trainer.dataset.shards import Split, write_shard
from bert_trainer.dataset.spool import read_tokens

GENERATOR_VERSION = 1
"""Raised whenever the same text and settings would give other samples."""

NUM_SPECIAL_TOKENS = 3
"""[CLS] and two [SEP]."""

_BLOCK_ROWS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardTask:
    """Everything that decides the content of one file."""

    target: Path
    spool_folder: Path
    split: Split
    shard: int
    sequence_length: int
    dupe_factor: int
    short_sequence_probability: float
    seed: int
    masking: MaskingRule
    vocabulary_sha256: str


def build_shard(task: ShardTask) -> int:
    """Make one file from its spooled documents and return its number of samples.

    Memory: the shard's tokens once, its samples twice. Raises TrainerError as ``write_shard``.
    """
    documents = read_tokens(task.spool_folder, task.split, task.shard)
    samples = make_samples(documents, task, random_stream(task.seed, task.sequence_length, task.split, task.shard))
    write_shard(
        task.target,
        samples,
        vocabulary_sha256=task.vocabulary_sha256,
        generator_version=GENERATOR_VERSION,
    )
    return len(samples)


def random_stream(seed: int, sequence_length: int, split: str, shard: int) -> random.Random:
    """Return the random numbers of one shard; no two shards share them (the original scripts' do)."""
    name = f"{seed}/{sequence_length}/{split}/{shard}"
    return random.Random(hashlib.sha256(name.encode()).digest())


def make_samples(documents: Sequence[TokenDocument], task: ShardTask, rng: random.Random) -> Samples:
    """Draw pairs from every document ``dupe_factor`` times, mask them, and shuffle them all.

    documents: at least one, none empty. Returns at least one sample.
    """
    rows = _Rows(task.sequence_length, task.masking.max_predictions)
    for _ in range(task.dupe_factor):
        for index in range(len(documents)):
            for pair in draw_pairs(
                documents,
                index,
                rng,
                capacity=task.sequence_length - NUM_SPECIAL_TOKENS,
                short_sequence_probability=task.short_sequence_probability,
            ):
                rows.add(pair, mask_tokens(_tokens(pair, task.masking), task.masking, rng))
    order = list(range(len(rows)))
    rng.shuffle(order)
    return rows.take(order)


def _tokens(pair: SentencePair, rule: MaskingRule) -> list[int]:
    return [rule.cls_id, *pair.tokens_a, rule.sep_id, *pair.tokens_b, rule.sep_id]


class _Rows:
    """Samples of unknown number, collected in blocks."""

    def __init__(self, sequence_length: int, max_predictions: int) -> None:
        self._shapes = [(sequence_length,)] * 3 + [(max_predictions,)] * 2 + [()]
        self._blocks: list[Samples] = []
        self._num_rows = 0

    def __len__(self) -> int:
        return self._num_rows

    def add(self, pair: SentencePair, masked: MaskedTokens) -> None:
        row = self._num_rows % _BLOCK_ROWS
        if row == 0:
            kinds = DATASETS.values()
            arrays = (
                np.zeros((_BLOCK_ROWS, *shape), dtype=kind) for shape, kind in zip(self._shapes, kinds, strict=True)
            )
            self._blocks.append(Samples(*arrays))
        block, length, count = self._blocks[-1], len(masked.tokens), len(masked.positions)
        block.input_ids[row, :length] = masked.tokens
        block.input_mask[row, :length] = 1
        block.segment_ids[row, len(pair.tokens_a) + 2 : length] = 1
        block.masked_lm_positions[row, :count] = masked.positions
        block.masked_lm_ids[row, :count] = masked.labels
        block.next_sentence_labels[row] = pair.is_random_next
        self._num_rows += 1

    def take(self, order: list[int]) -> Samples:
        # One dataset after another, so that only one of them is there a third time.
        return Samples(
            *(
                np.concatenate([getattr(block, field.name) for block in self._blocks])[order]
                for field in fields(Samples)
            )
        )
