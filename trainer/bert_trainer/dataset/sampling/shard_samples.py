"""Builds one shard from its documents: pairs, masks, rows. The unit of work of a build.

A shard depends on its documents, the settings and its own random stream alone: any process makes the same bytes, in
any order. Text and vocabulary files are not read here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bert_trainer.dataset.corpus.weights import walks_in_pass
from bert_trainer.dataset.sampling.masking import MaskingRule, mask_tokens
from bert_trainer.dataset.sampling.sentence_pairs import SentencePairs, Walks, draw_pairs
from bert_trainer.dataset.sampling.shuffle import Shuffle
from bert_trainer.dataset.shards import LayoutName, Split, write_shard, write_shard_blocks
from bert_trainer.dataset.shards.ragged import RaggedSamples
from bert_trainer.dataset.shards.sample_buffer import IN_MEMORY_TOKENS, SINGLE_PASS_LAYOUTS, SampleBuffer
from bert_trainer.dataset.shards.samples import DATASETS, Samples
from bert_trainer.dataset.tokens.block_files import read_tokens
from bert_trainer.dataset.tokens.block_tasks import forget_words
from bert_trainer.dataset.tokens.token_documents import TokenDocuments, id_kind
from bert_trainer.system.random_bits import RandomBits

GENERATOR_VERSION = 3
"""Raised whenever the same text and settings would give other samples. From 3 on [UNK] is never predicted, and the
length of a sentence is bounded."""

NUM_SPECIAL_TOKENS = 3
"""[CLS] and two [SEP]."""

BUCKET_TOKENS = 1 << 23
"""Tokens of the rows that are sorted at a time when a shard is shuffled on disk."""
# Tokens of the rows that are assembled at a time: their arrays stay in the processor's cache.
_BLOCK_TOKENS = 1 << 17


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardTask:
    """Everything that decides the content of one file."""

    target: Path
    token_paths: tuple[Path, ...]
    """Blocks of tokens, in order."""
    num_groups: int
    """Groups of the documents in the blocks."""
    groups: tuple[int, ...]
    """One for each pass; groups may repeat. In a pass each document is walked over as often as its draws say. Random
    spans come from the document's own group."""
    split: Split
    shard: int
    sequence_length: int
    short_sequence_probability: float
    seed: int
    masking: MaskingRule
    vocabulary_sha256: str
    masked: bool = True
    """Whether the file holds masks; otherwise the data loader draws them."""
    layout: LayoutName = "compact"


def build_shard(task: ShardTask) -> int:
    """Build one file from its encoded documents and return its number of samples.

    Memory: the tokens of its groups twice, some 120 bytes per sample, and the samples themselves up to
    ``IN_MEMORY_TOKENS``; larger shards are shuffled through scratch files beside the tokens.

    Raises:
        TrainerError: as ``write_shard``.
    """
    # This worker may have encoded text before: its cache of words takes memory that the shard needs.
    forget_words()
    dtype = id_kind(task.masking.vocabulary_size)
    drawn = draw_shard(read_tokens(task.token_paths, task.groups, task.num_groups, dtype), task)
    num_rows = len(drawn.pairs)
    shape = task.sequence_length, task.masking.max_predictions
    attributes: dict[str, Any] = {
        "vocabulary_sha256": task.vocabulary_sha256,
        "generator_version": GENERATOR_VERSION,
        "shape": shape,
        "masked": task.masked,
        "layout": task.layout,
    }
    if num_rows * task.sequence_length <= IN_MEMORY_TOKENS:
        write_shard(task.target, assemble_shard(drawn, task), **attributes)
        return num_rows
    # Beside the tokens, in the work folder: what a killed process leaves is removed with it.
    folder = task.token_paths[0].with_name(f"shuffle_{shape[0]}_{shape[1]}_{task.split}_{task.shard}")
    with Shuffle(folder, num_rows=num_rows, bucket_rows=max(1, BUCKET_TOKENS // task.sequence_length)) as shuffle:
        for positions, samples in _blocks(drawn, task):
            shuffle.add(positions, RaggedSamples.from_padded(samples))
        if task.layout in SINGLE_PASS_LAYOUTS:
            write_shard_blocks(task.target, shuffle.totals, shuffle.blocks, **attributes)
        else:
            _write_sorted(task, shuffle, attributes)
    return num_rows


def _write_sorted(task: ShardTask, shuffle: Shuffle, attributes: dict[str, Any]) -> None:
    """Write a file of a layout that takes several passes, but sort the samples once."""
    folder = task.token_paths[0].parent
    with SampleBuffer(folder, row_tokens=task.sequence_length, max_tokens=0) as buffer:
        for block in shuffle.blocks():
            buffer.add(block)
        write_shard_blocks(task.target, buffer.totals, buffer.blocks, **attributes)


def random_bits(seed: int, sequence_length: int, split: str, shard: int) -> RandomBits:
    """Return the random stream of one shard. No two shards share one; in the original scripts all do."""
    return RandomBits(f"{seed}/{sequence_length}/{split}/{shard}")


def groups_of_shard(shard: int, num_shards: int, dupe_factor: int) -> tuple[int, ...]:
    """Return the groups of a shard, one for each pass.

    Each group is used ``dupe_factor`` times, by different shards if there are as many, so no document is in a file
    twice. Neighbouring groups are read with one access.
    """
    return tuple((shard + number) % num_shards for number in range(dupe_factor))


@dataclass(frozen=True, slots=True)
class DrawnPairs:
    """The N samples of a shard before they are assembled."""

    ids: NDArray[np.integer]
    """Tokens of all documents."""
    pairs: SentencePairs
    positions: NDArray[np.int64]
    """(N,): the position of each pair among the shuffled samples."""
    bits: RandomBits


def draw_shard(groups: Sequence[TokenDocuments], task: ShardTask, bits: RandomBits | None = None) -> DrawnPairs:
    """Draw the pairs of a shard and shuffle them. groups: one for each pass. bits: None: the shard's own stream."""
    bits = bits or random_bits(task.seed, task.sequence_length, task.split, task.shard)
    documents = TokenDocuments.concatenate(groups)
    walks = Walks.over([group.num_documents for group in groups])
    times = [walks_in_pass(group.draws, number, len(groups)) for number, group in enumerate(groups)]
    del groups  # their tokens have been copied
    pairs = draw_pairs(
        documents,
        walks.repeat(np.concatenate(times)),
        bits,
        capacity=task.sequence_length - NUM_SPECIAL_TOKENS,
        short_sequence_probability=task.short_sequence_probability,
    )
    # Sorting random words shuffles; a stable sort, so that equal words do not depend on the version of NumPy.
    return DrawnPairs(documents.ids, pairs, np.argsort(bits.words(len(pairs)), kind="stable"), bits)


def assemble_shard(drawn: DrawnPairs, task: ShardTask) -> Samples:
    """Return all samples of a shard, shuffled and masked. Memory: all of them with their padding."""
    samples = _empty_samples(len(drawn.pairs), task.sequence_length, task.masking.max_predictions)
    for positions, block in _blocks(drawn, task):
        for field in fields(block):
            getattr(samples, field.name)[positions] = getattr(block, field.name)
    return samples


def _blocks(drawn: DrawnPairs, task: ShardTask) -> Iterator[tuple[NDArray[np.int64], Samples]]:
    """Yield blocks of samples in the order of their pairs, with their positions among the shuffled ones.

    In this order the random stream is used: the masks do not depend on how a shard is written.
    """
    block_rows = max(1, _BLOCK_TOKENS // task.sequence_length)
    for start in range(0, len(drawn.pairs), block_rows):
        rows = slice(start, start + block_rows)
        yield drawn.positions[rows], _assemble_rows(_rows(drawn.pairs, rows), drawn.ids, task, drawn.bits)


def _rows(pairs: SentencePairs, rows: slice) -> SentencePairs:
    return SentencePairs(*(getattr(pairs, field.name)[rows] for field in fields(pairs)))


def _empty_samples(num_rows: int, sequence_length: int, max_predictions: int) -> Samples:
    shapes = [(num_rows, sequence_length)] * 3 + [(num_rows, max_predictions)] * 2 + [(num_rows,)]
    return Samples(*(np.empty(shape, dtype=kind) for shape, kind in zip(shapes, DATASETS.values(), strict=True)))


def _assemble_rows(pairs: SentencePairs, ids: NDArray[np.integer], task: ShardTask, bits: RandomBits) -> Samples:
    """Return the samples of some pairs, masked if the task says so."""
    rule = task.masking
    columns = np.arange(task.sequence_length, dtype=np.int32)
    first_sep = (pairs.tokens_a + 1).astype(np.int32)[:, None]
    last_sep = (pairs.tokens_a + pairs.tokens_b + 2).astype(np.int32)[:, None]
    is_second = columns > first_sep
    is_real = columns <= last_sep
    # [CLS] A [SEP] B [SEP]: the token of column c is first_a + c - 1 in A, first_b + c - tokens_a - 2 in B. Columns of
    # special tokens and padding gather some other token, clipped to the array, which is overwritten below.
    shift_a = (pairs.first_a - 1)[:, None]
    shift_b = (pairs.first_b - pairs.tokens_a - 2)[:, None]
    tokens = ids.take(np.where(is_second, shift_b, shift_a) + columns, mode="clip").astype(np.int32)
    tokens *= is_real
    rows = np.arange(len(pairs))
    tokens[:, 0] = rule.cls_id
    tokens[rows, first_sep[:, 0]] = rule.sep_id
    tokens[rows, last_sep[:, 0]] = rule.sep_id
    candidates = is_real.copy()
    candidates[:, 0] = False
    candidates[rows, first_sep[:, 0]] = False
    candidates[rows, last_sep[:, 0]] = False
    if task.masked:
        masked = mask_tokens(tokens, candidates, rule, bits)
        shown, positions, labels = masked.tokens, masked.positions, masked.labels
    else:
        shown = tokens
        positions, labels = (np.zeros((len(pairs), rule.max_predictions), np.int32) for _ in range(2))
    return Samples(
        input_ids=shown,
        input_mask=is_real.astype(np.int8),
        segment_ids=(is_second & is_real).astype(np.int8),
        masked_lm_positions=positions,
        masked_lm_ids=labels,
        next_sentence_labels=pairs.is_random_next.astype(np.int8),
    )
