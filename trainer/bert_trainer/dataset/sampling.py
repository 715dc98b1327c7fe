"""One shard of samples from its documents: pairs, masks, rows. The unit of work of a build.

A shard depends on its documents, the settings and its own random stream, on nothing else: the same bytes come
out whichever process makes it and in whatever order. It does not read text and knows no vocabulary file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bert_trainer.dataset.masking import MaskingRule, mask_tokens
from bert_trainer.dataset.random_bits import RandomBits
from bert_trainer.dataset.samples import DATASETS, Samples
from bert_trainer.dataset.sentence_pairs import SentencePairs, Walks, draw_pairs
from bert_trainer.dataset.shards import LayoutName, Split, write_shard
from bert_trainer.dataset.spool import read_tokens
from bert_trainer.dataset.token_documents import TokenDocuments, id_kind
from bert_trainer.dataset.weights import walks_in_pass

GENERATOR_VERSION = 2
"""Raised whenever the same text and settings would give other samples."""

NUM_SPECIAL_TOKENS = 3
"""[CLS] and two [SEP]."""

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

    Memory: the tokens of its groups, its samples once, and what writing takes. Raises TrainerError as
    ``write_shard``.
    """
    kind = id_kind(task.masking.vocabulary_size)
    groups = read_tokens(task.token_paths, task.groups, task.num_groups, kind)
    samples = make_samples(groups, task, random_bits(task.seed, task.sequence_length, task.split, task.shard))
    write_shard(
        task.target,
        samples,
        vocabulary_sha256=task.vocabulary_sha256,
        generator_version=GENERATOR_VERSION,
        masked=task.masked,
        layout=task.layout,
    )
    return len(samples)


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
    documents = TokenDocuments.concatenate(groups)
    walks = Walks.over([group.num_documents for group in groups])
    times = [walks_in_pass(group.draws, number, len(groups)) for number, group in enumerate(groups)]
    pairs = draw_pairs(
        documents,
        walks.repeat(np.concatenate(times)),
        bits,
        capacity=task.sequence_length - NUM_SPECIAL_TOKENS,
        short_sequence_probability=task.short_sequence_probability,
    )
    samples = _empty_samples(len(pairs), task.sequence_length, task.masking.max_predictions)
    places = np.argsort(bits.words(len(pairs)), kind="stable")
    samples.next_sentence_labels[places] = pairs.is_random_next
    block_rows = max(1, _BLOCK_TOKENS // task.sequence_length)
    for start in range(0, len(pairs), block_rows):
        rows = slice(start, start + block_rows)
        _fill(samples, places[rows], _rows(pairs, rows), documents.ids, task, bits)
    return samples


def _rows(pairs: SentencePairs, rows: slice) -> SentencePairs:
    return SentencePairs(*(getattr(pairs, field.name)[rows] for field in fields(pairs)))


def _empty_samples(num_rows: int, sequence_length: int, max_predictions: int) -> Samples:
    shapes = [(num_rows, sequence_length)] * 3 + [(num_rows, max_predictions)] * 2 + [(num_rows,)]
    return Samples(*(np.empty(shape, dtype=kind) for shape, kind in zip(shapes, DATASETS.values(), strict=True)))


def _fill(
    samples: Samples,
    places: NDArray[np.int64],
    pairs: SentencePairs,
    ids: NDArray[np.integer],
    task: ShardTask,
    bits: RandomBits,
) -> None:
    """Put the rows of some pairs together and write them to their places. N pairs; places: (N,)."""
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
    samples.input_mask[places] = is_real
    samples.segment_ids[places] = is_second & is_real
    if not task.masked:
        samples.input_ids[places] = tokens
        samples.masked_lm_positions[places] = 0
        samples.masked_lm_ids[places] = 0
        return
    masked = mask_tokens(tokens, candidates, rule, bits)
    samples.input_ids[places] = masked.tokens
    samples.masked_lm_positions[places] = masked.positions
    samples.masked_lm_ids[places] = masked.labels
