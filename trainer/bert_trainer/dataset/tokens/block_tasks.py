"""Tasks of workers on one block of text: survey its documents (digests, MinHash bands), then tokenize them.

Both depend on the block and the settings alone, so any process can do any block. Which documents stay, and which shard
they go to, is decided from all of them in ``build.passes``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bert_trainer.dataset.corpus.document import digest_text
from bert_trainer.dataset.corpus.weights import draw_chance
from bert_trainer.dataset.tokens.block_files import TextBlock, split_text, write_tokens
from bert_trainer.dataset.tokens.near_duplicates import Hashes, Signatures
from bert_trainer.dataset.tokens.token_documents import TokenDocuments, id_kind
from bert_trainer.dataset.tokens.word_cache import BATCH_CHARACTERS, HitRate, WordCache
from bert_trainer.dataset.tokens.wordpiece import Encoder, read_vocabulary

_DOCUMENT_COST = 256
"""Characters that a document counts for beside its own: its signature takes 512 bytes, and documents may be letters."""


@dataclass(frozen=True, slots=True)
class SurveyTask:
    """A block whose documents are to be surveyed."""

    block: TextBlock
    similarity: float
    seed: int


@dataclass(frozen=True, slots=True)
class Survey:
    """Digests and MinHash bands of D documents, which decide about copies, held-out and draws."""

    digests: bytes
    """32 bytes each: SHA-256 of the text."""
    bands: Hashes
    """(D, bands): MinHash bands, as ``near_duplicates.Signatures`` computes them."""
    scores: NDArray[np.float64]
    """(D,): a number in [0, 1) that depends on text and seed alone; small ones are held out."""
    chances: NDArray[np.float64]
    """(D,): another such number, for the documents of weighted corpora."""


@dataclass(frozen=True, slots=True)
class EncodeTask:
    """A block whose documents are to be tokenized."""

    block: TextBlock
    groups: NDArray[np.int32]
    """(D,): the group of each document; -1: left out."""
    draws: NDArray[np.int32]
    """(D,): how often each document is drawn; 0: once in every pass."""
    num_groups: int
    vocabulary_path: Path
    lower_case: bool
    target: Path


@dataclass(frozen=True, slots=True)
class Encoded:
    """Counts of a tokenized block of D documents."""

    tokens: NDArray[np.int64]
    """(D,): tokens of each document; 0 where it was dropped."""
    num_tokens: int
    """Of all documents, including sentences that are dropped."""
    num_unknown: int
    """[UNK] among them."""
    hit_rate: HitRate
    """Of this block's words, in the cache of the process that tokenized it."""


def survey_block(task: SurveyTask) -> Survey:
    """Survey the documents of one block. Memory: the block some twenty times."""
    digests: list[bytes] = []
    bands: list[Hashes] = []
    batch: list[Sequence[str]] = []
    batched = 0
    signatures = _signatures(task.similarity)
    for text in task.block.texts():
        digests.append(digest_text(text))
        sentences = split_text(text)
        batch.append(sentences)
        batched += sum(map(len, sentences)) + _DOCUMENT_COST
        if batched >= BATCH_CHARACTERS:
            bands.append(signatures.bands(batch))
            batch, batched = [], 0
    if batch:
        bands.append(signatures.bands(batch))
    # From the text and not from its place: a document is held out, or not, wherever in the corpus it stands.
    salt = f"{task.seed}/held-out/".encode()
    scores = [int.from_bytes(hashlib.sha256(salt + digest).digest()[:8]) / 2**64 for digest in digests]
    chances = [draw_chance(digest, task.seed) for digest in digests]
    return Survey(b"".join(digests), np.concatenate(bands), np.array(scores), np.array(chances))


def encode_block(task: EncodeTask) -> Encoded:
    """Tokenize the documents of one block and write them, sorted by group.

    Sentences without a token, or of nothing but [UNK], are dropped, and so are documents without any other.
    """
    cache, between, size, unk_id = _token_cache(task.vocabulary_path, task.lower_case)
    before = HitRate(cache.hit_rate.words, cache.hit_rate.unseen)
    is_kept = task.groups >= 0
    kept = np.flatnonzero(is_kept)
    texts = zip(task.block.texts(), is_kept.tolist(), strict=True)
    documents = [split_text(text) for text, is_wanted in texts if is_wanted]
    ids, sentence_lengths = cache.look_up_texts(
        [between + text if number else text for document in documents for number, text in enumerate(document)]
    )
    # From here on no loop over sentences: arrays of all tokens (n,), per sentence (S,) and per document (D,).
    owners = np.repeat(np.arange(len(documents)), [len(document) for document in documents])
    num_tokens, num_unknown = len(ids), int((ids == unk_id).sum())
    if num_unknown:
        ids, sentence_lengths = _without_unknown_sentences(ids, sentence_lengths, unk_id)
    tokens = np.bincount(owners, weights=sentence_lengths, minlength=len(documents)).astype(np.int64)
    full = sentence_lengths > 0
    document_lengths = np.bincount(owners[full], minlength=len(documents))
    found = document_lengths > 0
    write_tokens(
        task.target,
        TokenDocuments(
            ids.astype(id_kind(size)), sentence_lengths[full], document_lengths[found], task.draws[kept][found]
        ),
        task.groups[kept][found],
        task.num_groups,
    )
    all_tokens = np.zeros(len(task.groups), dtype=np.int64)
    all_tokens[kept] = tokens
    rate = HitRate(cache.hit_rate.words - before.words, cache.hit_rate.unseen - before.unseen)
    return Encoded(all_tokens, num_tokens, num_unknown, rate)


def _without_unknown_sentences(
    ids: NDArray[np.int32], sentence_lengths: NDArray[np.int64], unk_id: int
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return the ids without those of sentences of nothing but [UNK], and the sentences' lengths, 0 for these."""
    # Prefix sums of known tokens, taken at the sentences' ends: their differences are the known tokens of each.
    known = np.concatenate([[0], np.cumsum(ids != unk_id)])[np.cumsum(sentence_lengths)]
    lengths = np.where(np.diff(known, prepend=0) > 0, sentence_lengths, 0)
    return ids[np.repeat(lengths > 0, sentence_lengths)], lengths


# Caches of a worker process live from block to block: filling one anew for each would cost most of the hits.
@lru_cache(maxsize=1)
def _signatures(similarity: float) -> Signatures:
    return Signatures(similarity)


@lru_cache(maxsize=1)
def _token_cache(vocabulary_path: Path, lower_case: bool) -> tuple[WordCache, str, int, int]:
    """Keep the words of one vocabulary from block to block.

    Return also what goes before a document's further sentences, the vocabulary's size and the id of [UNK].
    """
    # All blocks are surveyed before the first is tokenized: that cache is done, and a process need not hold both.
    _signatures.cache_clear()
    vocabulary = read_vocabulary(vocabulary_path)
    encoder = Encoder(vocabulary, lower_case=lower_case)
    cache = WordCache(encoder.encode_words, encoder.split)
    return cache, encoder.before_next, vocabulary.size, vocabulary.unk_id


def clear_word_caches() -> None:
    """Free the word caches of a process that goes on to build shards."""
    _signatures.cache_clear()
    _token_cache.cache_clear()
