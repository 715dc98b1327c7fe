"""One shard of samples from its documents: pairs, masks, rows. The unit of work of a build.

A shard depends on its documents, the settings and its own random stream, on nothing else: the same bytes come
out whichever process makes it and in whatever order. It does not read text and knows no vocabulary file.
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
from bert_trainer.dataset.shards.samples import DATASETS, Samples
from bert_trainer.dataset.shards.scratch import IN_MEMORY_TOKENS, ONE_PASS_LAYOUTS, SampleScratch
from bert_trainer.dataset.tokens.block_files import read_tokens
from bert_trainer.dataset.tokens.block_tasks import forget_words
from bert_trainer.dataset.tokens.token_documents import TokenDocuments, id_kind
from bert_trainer.system.random_bits import RandomBits

GENERATOR_VERSION = 3
"""Raised whenever the same text and settings would give other samples. From 3 on [UNK] is
never predicted, and no sentence is longer than a sentence can be."""

NUM_SPECIAL_TOKENS = 3
"""[CLS] and two [SEP]."""

BUCKET_TOKENS = 1 << 23
"""Of the rows that are sorted at a time, where they are shuffled on disk."""
_BLOCK_TOKENS = 1 << 17
"""Tokens of rows that are put together at a time: their tables stay in the processor's cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardTask:
    """Everything that decides the content of one file."""

    target: Path
    token_paths: tuple[Path, ...]
    """Blocks of tokens, in order."""
    num_groups: int
    """Groups that the documents in the blocks are dealt to."""
    groups: tuple[int, ...]
    """One for each pass; a group may come again. Documents are walked over as often in a pass as their draws say.
    Random spans come from the walked document's own group."""
    split: Split
    shard: int
    sequence_length: int
    short_sequence_probability: float
    seed: int
    masking: MaskingRule
    vocabulary_sha256: str
    masked: bool = True
    """Whether the file holds masks; without, the loader draws them."""
    layout: LayoutName = "compact"


def build_shard(task: ShardTask) -> int:
    """Make one file from its spooled documents and return its number of samples.

    Memory: the tokens of its groups twice, some 120 bytes per sample, and the samples themselves, as far as they are
    few; more of them are shuffled through scratch files beside the tokens.
    Raises TrainerError as ``write_shard``.
    """
    forget_words()  # of this process: it may have encoded text, and the cache grows with the corpus
    kind = id_kind(task.masking.vocabulary_size)
    drawn = _draw(read_tokens(task.token_paths, task.groups, task.num_groups, kind), task)
    num_rows = len(drawn.pairs)
    shape = task.sequence_length, task.masking.max_predictions
    stated: dict[str, Any] = {
        "vocabulary_sha256": task.vocabulary_sha256,
        "generator_version": GENERATOR_VERSION,
        "shape": shape,
        "masked": task.masked,
        "layout": task.layout,
    }
    if num_rows * task.sequence_length <= IN_MEMORY_TOKENS:
        write_shard(task.target, _assemble(drawn, task), **stated)
        return num_rows
    folder = task.token_paths[0].with_name(f"shuffle_{shape[0]}_{shape[1]}_{task.split}_{task.shard}")
    with Shuffle(folder, num_rows=num_rows, bucket_rows=max(1, BUCKET_TOKENS // task.sequence_length)) as shuffle:
        for places, samples in _blocks(drawn, task):
            shuffle.add(places, RaggedSamples.from_padded(samples))
        if task.layout in ONE_PASS_LAYOUTS:
            write_shard_blocks(task.target, shuffle.totals, shuffle.blocks, **stated)
        else:
            _write_sorted(task, shuffle, stated)
    return num_rows


def _write_sorted(task: ShardTask, shuffle: Shuffle, stated: dict[str, Any]) -> None:
    """Write a file of a layout that takes several passes, sorting the samples once."""
    folder = task.token_paths[0].parent
    with SampleScratch(folder, row_tokens=task.sequence_length, most_tokens=0) as scratch:
        for block in shuffle.blocks():
            scratch.add(block)
        write_shard_blocks(task.target, scratch.totals, scratch.blocks, **stated)


def random_bits(seed: int, sequence_length: int, split: str, shard: int) -> RandomBits:
    """Return the random numbers of one shard; no two shards share them (the original scripts' do)."""
    return RandomBits(f"{seed}/{sequence_length}/{split}/{shard}")


def groups_of_shard(shard: int, num_shards: int, dupe_factor: int) -> tuple[int, ...]:
    """Return the groups that a shard walks over, one for each pass.

    Each group is walked over ``dupe_factor`` times, each time for another shard where there are as many: so no
    document is twice in one file. Neighbouring groups are read with one access.
    """
    return tuple((shard + number) % num_shards for number in range(dupe_factor))


def make_samples(groups: Sequence[TokenDocuments], task: ShardTask, bits: RandomBits) -> Samples:
    """Draw pairs from the documents of every group, mask them, and shuffle them all. groups: one for each pass."""
    return _assemble(_draw(groups, task, bits), task)


@dataclass(frozen=True, slots=True)
class _Drawn:
    """What the samples of a shard are made of; N samples."""

    ids: NDArray[np.integer]
    """Tokens of all documents."""
    pairs: SentencePairs
    places: NDArray[np.int64]
    """(N,): the place of each pair among the shuffled samples."""
    bits: RandomBits


def _draw(groups: Sequence[TokenDocuments], task: ShardTask, bits: RandomBits | None = None) -> _Drawn:
    bits = bits or random_bits(task.seed, task.sequence_length, task.split, task.shard)
    documents = TokenDocuments.concatenate(groups)
    walks = Walks.over([group.num_documents for group in groups])
    times = [walks_in_pass(group.draws, number, len(groups)) for number, group in enumerate(groups)]
    del groups  # all of it is in documents
    pairs = draw_pairs(
        documents,
        walks.repeat(np.concatenate(times)),
        bits,
        capacity=task.sequence_length - NUM_SPECIAL_TOKENS,
        short_sequence_probability=task.short_sequence_probability,
    )
    return _Drawn(documents.ids, pairs, np.argsort(bits.words(len(pairs)), kind="stable"), bits)


def _assemble(drawn: _Drawn, task: ShardTask) -> Samples:
    """Return all samples, shuffled."""
    samples = _empty_samples(len(drawn.pairs), task.sequence_length, task.masking.max_predictions)
    for places, block in _blocks(drawn, task):
        for field in fields(block):
            getattr(samples, field.name)[places] = getattr(block, field.name)
    return samples


def _blocks(drawn: _Drawn, task: ShardTask) -> Iterator[tuple[NDArray[np.int64], Samples]]:
    """Yield samples in the order of their pairs, some at a time, with their places among the shuffled ones."""
    block_rows = max(1, _BLOCK_TOKENS // task.sequence_length)
    for start in range(0, len(drawn.pairs), block_rows):
        rows = slice(start, start + block_rows)
        yield drawn.places[rows], _put_together(_rows(drawn.pairs, rows), drawn.ids, task, drawn.bits)


def _rows(pairs: SentencePairs, rows: slice) -> SentencePairs:
    return SentencePairs(*(getattr(pairs, field.name)[rows] for field in fields(pairs)))


def _empty_samples(num_rows: int, sequence_length: int, max_predictions: int) -> Samples:
    shapes = [(num_rows, sequence_length)] * 3 + [(num_rows, max_predictions)] * 2 + [(num_rows,)]
    return Samples(*(np.empty(shape, dtype=kind) for shape, kind in zip(shapes, DATASETS.values(), strict=True)))


def _put_together(pairs: SentencePairs, ids: NDArray[np.integer], task: ShardTask, bits: RandomBits) -> Samples:
    """Return the samples of some pairs, masked where the task says so."""
    rule = task.masking
    columns = np.arange(task.sequence_length, dtype=np.int32)
    first_sep = (pairs.tokens_a + 1).astype(np.int32)[:, None]
    last_sep = (pairs.tokens_a + pairs.tokens_b + 2).astype(np.int32)[:, None]
    is_second = columns > first_sep
    is_real = columns <= last_sep
    # Where a column's token stands: [CLS] A [SEP] B [SEP], so A begins one column late and B two more.
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
