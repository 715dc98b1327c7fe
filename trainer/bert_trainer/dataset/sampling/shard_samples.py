"""Builds one shard from its documents: pairs or packed pieces, masks, rows. The unit of work of a build.

A shard depends on its documents, the settings and its own random stream alone: any process makes the same bytes, in
any order. Text and vocabulary files are not read here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bert_job.dataset_names import SamplesOf
from bert_trainer.dataset.corpus.weights import repeats_in_pass
from bert_trainer.dataset.sampling.masking import MaskingRule, mask_rows
from bert_trainer.dataset.sampling.packed_documents import PIECE_SPECIAL_TOKENS, PackedDocuments, pack_documents
from bert_trainer.dataset.sampling.sentence_pairs import SentencePairs, Walks, draw_pairs
from bert_trainer.dataset.shards import Split, WrittenLayout, write_shard, write_shard_blocks
from bert_trainer.dataset.shards.ragged import RaggedSamples, ragged_sums
from bert_trainer.dataset.shards.sample_buffer import IN_MEMORY_TOKENS, SampleBuffer
from bert_trainer.dataset.tokens.block_files import read_tokens
from bert_trainer.dataset.tokens.block_tasks import clear_word_caches
from bert_trainer.dataset.tokens.token_documents import TokenDocuments, id_kind
from bert_trainer.dataset.tokens.word_cache import ragged_indexes
from bert_trainer.errors import InputError
from bert_trainer.system.random_bits import RandomBits

GENERATOR_VERSION = 4
"""Raised whenever the same text and settings would give other samples. From 3 on [UNK] is never predicted, and the
length of a sentence is bounded; from 4 on each row's masks are drawn from a key of its own."""

NUM_SPECIAL_TOKENS = 3
"""[CLS] and two [SEP]."""

BLOCK_TOKENS = 1 << 17
"""Tokens of the rows that are assembled at a time, padding counted: their arrays stay in the processor's cache."""


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
    samples: SamplesOf = "pairs"
    layout: WrittenLayout = "compact"


def build_shard(task: ShardTask) -> int:
    """Build one file from its encoded documents and return its number of samples.

    Memory: the tokens of its groups twice, some 120 bytes per sample, and the samples themselves up to
    ``IN_MEMORY_TOKENS``; the samples of larger shards wait in a scratch file beside the tokens.

    Raises:
        InputError: the text holds special tokens, and rows of documents are to be told apart by them.
        TrainerError: as ``write_shard``.
    """
    # This worker may have encoded text before: its cache of words takes memory that the shard needs.
    clear_word_caches()
    dtype = id_kind(task.masking.vocabulary_size)
    drawn = draw_shard(read_tokens(task.token_paths, task.groups, task.num_groups, dtype), task)
    attributes: dict[str, Any] = {
        "vocabulary_sha256": task.vocabulary_sha256,
        "generator_version": GENERATOR_VERSION,
        "shape": (task.sequence_length, task.masking.max_predictions),
        "masked": task.masked,
        "documents": task.samples == "documents",
        "layout": task.layout,
    }
    if len(drawn.rows) * task.sequence_length <= IN_MEMORY_TOKENS:
        samples = [*assemble_shard(drawn, task)] or [RaggedSamples.empty()]
        write_shard(task.target, RaggedSamples.concatenate(samples), **attributes)
        return len(drawn.rows)
    # Beside the tokens, in the work folder: what a killed process leaves is removed with it.
    with SampleBuffer(task.token_paths[0].parent, row_tokens=task.sequence_length, max_tokens=0) as buffer:
        for block in assemble_shard(drawn, task):
            buffer.add(block)
        write_shard_blocks(task.target, buffer.totals, buffer.blocks, **attributes)
    return len(drawn.rows)


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
class DrawnRows:
    """The N samples of a shard before they are assembled, in the order in which they are written."""

    ids: NDArray[np.integer]
    """Tokens of all documents."""
    rows: SentencePairs | PackedDocuments
    keys: NDArray[np.uint64]
    """(N,): what decides the masks of each sample."""


def draw_shard(
    groups: Sequence[Sequence[TokenDocuments]], task: ShardTask, bits: RandomBits | None = None
) -> DrawnRows:
    """Draw the rows of a shard and shuffle them.

    Args:
        groups: One for each pass, in any number of parts.
        task: The shard's.
        bits: None: the shard's own stream.
    """
    bits = bits or random_bits(task.seed, task.sequence_length, task.split, task.shard)
    documents = TokenDocuments.concatenate([part for parts in groups for part in parts])
    times = np.concatenate(
        [repeats_in_pass(part.draws, number, len(groups)) for number, parts in enumerate(groups) for part in parts]
    )
    pools = [sum(part.num_documents for part in parts) for parts in groups]
    del groups  # their tokens have been copied
    rows: SentencePairs | PackedDocuments
    if task.samples == "documents":
        _refuse_special_tokens(documents.ids, task)
        rows = pack_documents(documents.bounds, times, bits, row_tokens=task.sequence_length)
    else:
        rows = draw_pairs(
            documents.bounds,
            Walks.over(pools).repeat(times),
            bits,
            capacity=task.sequence_length - NUM_SPECIAL_TOKENS,
            short_sequence_probability=task.short_sequence_probability,
        )
    # Sorting random words shuffles; a stable sort, so that equal words do not depend on the version of NumPy.
    order = np.argsort(bits.words(len(rows)), kind="stable")
    return DrawnRows(documents.ids, rows.take(order), bits.words(len(rows)))


def _refuse_special_tokens(ids: NDArray[np.integer], task: ShardTask) -> None:
    # Words are split at the brackets of BERT's own; a vocabulary may call them otherwise.
    for name, number in (("[CLS]", task.masking.cls_id), ("[SEP]", task.masking.sep_id)):
        if (ids == number).any():
            raise InputError(
                f"{task.target}: the text holds the token {number}, which is the vocabulary's {name}; "
                "allowed with samples: documents: text without it",
                hint="choose another vocabulary, or build samples: pairs",
            )


def assemble_shard(drawn: DrawnRows, task: ShardTask) -> Iterator[RaggedSamples]:
    """Yield the samples of a shard, masked if the task says so, a block at a time."""
    block_rows = max(1, BLOCK_TOKENS // task.sequence_length)
    for start in range(0, len(drawn.rows), block_rows):
        rows = slice(start, start + block_rows)
        taken = drawn.rows.take(rows)
        if isinstance(taken, PackedDocuments):
            samples = _assemble_documents(taken, drawn.ids, task.masking)
        else:
            samples = _assemble_pairs(taken, drawn.ids, task.masking)
        yield mask_rows(samples, drawn.keys[rows], task.masking) if task.masked else samples


def _assemble_pairs(pairs: SentencePairs, ids: NDArray[np.integer], rule: MaskingRule) -> RaggedSamples:
    """Return the samples of some pairs with their original tokens: [CLS] A [SEP] B [SEP]."""
    # Each row is two runs of the documents' tokens: A and the token before it, B and those on both sides. Special
    # tokens then replace these neighbours, which at both ends of the array are clipped to it.
    runs = np.stack([pairs.first_a - 1, pairs.first_b - 1], axis=1).ravel()
    run_counts = np.stack([pairs.tokens_a + 1, pairs.tokens_b + 2], axis=1)
    tokens = ids.take(ragged_indexes(runs, run_counts.ravel()), mode="clip")
    counts = run_counts.sum(axis=1)
    ends = np.cumsum(counts)
    tokens[ends - counts] = rule.cls_id
    tokens[ends - pairs.tokens_b - 2] = rule.sep_id
    tokens[ends - 1] = rule.sep_id
    return RaggedSamples(
        tokens=tokens,
        token_counts=counts,
        first_segment_counts=pairs.tokens_a + 2,
        next_sentence_labels=pairs.is_random_next.astype(np.int8),
        prediction_counts=np.zeros(len(pairs), np.int64),
        masked_lm_positions=np.zeros(0, np.uint16),
        masked_lm_ids=tokens[:0],
    )


def _assemble_documents(rows: PackedDocuments, ids: NDArray[np.integer], rule: MaskingRule) -> RaggedSamples:
    """Return the samples of some rows with their original tokens: [CLS] piece [SEP] of each of their pieces."""
    # Each piece and the tokens on both sides, which special tokens replace.
    counts = rows.tokens + PIECE_SPECIAL_TOKENS
    tokens = ids.take(ragged_indexes(rows.first - 1, counts), mode="clip")
    ends = np.cumsum(counts)
    tokens[ends - counts] = rule.cls_id
    tokens[ends - 1] = rule.sep_id
    token_counts = ragged_sums(counts, rows.pieces)
    return RaggedSamples(
        tokens=tokens,
        token_counts=token_counts,
        first_segment_counts=token_counts,
        next_sentence_labels=np.zeros(len(rows), np.int8),
        prediction_counts=np.zeros(len(rows), np.int64),
        masked_lm_positions=np.zeros(0, np.uint16),
        masked_lm_ids=tokens[:0],
    )
