"""The passes over a corpus: clean, drop near-duplicates, split, train a vocabulary, encode to tokens in groups.

The source text is read once, into blocks in the work folder; all processes work on blocks. The result is saved at the
end, so that an interrupted build resumes with its shards. Shards are not built here.
"""

from __future__ import annotations

import hashlib
import heapq
import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bert_job.run_stages import PrepareStage
from bert_trainer.dataset.build.estimates import MIN_SHARDS, SHARD_BYTES
from bert_trainer.dataset.build.fit import warn_about_accents
from bert_trainer.dataset.build.progress import BuildProgress
from bert_trainer.dataset.corpus.corpora import AnyCorpus
from bert_trainer.dataset.corpus.weights import count_draws
from bert_trainer.dataset.shards.dataset_info import BuildSettings, Counts, read_json_object
from bert_trainer.dataset.tokens.block_files import BLOCK_FORMAT, TextBlock, split_text, write_text_blocks
from bert_trainer.dataset.tokens.block_tasks import EncodeTask, Survey, SurveyTask, encode_block, survey_block
from bert_trainer.dataset.tokens.byte_bpe import train_byte_bpe
from bert_trainer.dataset.tokens.near_duplicates import NearDuplicates
from bert_trainer.dataset.tokens.wordpiece import read_vocabulary, train_vocabulary
from bert_trainer.dataset.workers.pool import TaskPool
from bert_trainer.errors import InputError
from bert_trainer.system.atomic_files import disk_errors, write_atomically, write_json_atomically

logger = logging.getLogger(__name__)

_RESULT_FILE = "prepared.json"
_ASSIGNED_AT_ONCE = 1 << 14
# A random next sentence comes from another document of the group.
_MIN_DOCUMENTS_PER_GROUP = 2


@dataclass(frozen=True, slots=True)
class EncodedCorpus:
    """Result of the passes; the tokens themselves are in the work folder.

    There are as many groups of training documents as training shards; the groups of held-out documents follow them.
    """

    corpus_sha256: str
    vocabulary_sha256: str
    counts: Counts
    num_training_shards: int
    num_held_out_shards: int
    num_blocks: int
    word_hit_rate: float
    """Share of the words whose tokens were in the worker's cache, in [0, 1]."""
    unknown_share: float
    """Share of the tokens that are [UNK], in [0, 1]."""

    @property
    def num_groups(self) -> int:
        """Groups of documents, training and held-out."""
        return self.num_training_shards + self.num_held_out_shards


@dataclass(frozen=True, slots=True)
class _Texts:
    """D documents: their text in blocks on disk, and what was found of each."""

    blocks: list[TextBlock]
    scores: NDArray[np.float64]
    """(D,): as ``Survey``."""
    chances: NDArray[np.float64]
    """(D,): as ``Survey``."""
    dropped: NDArray[np.bool_]
    """(D,): near-duplicates of an earlier document."""
    corpus_sha256: str

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Return the bytes of text of each document, (D,)."""
        return np.concatenate([block.sizes for block in self.blocks])

    @property
    def weights(self) -> NDArray[np.float64]:
        """Return the weight of each document, (D,)."""
        return np.concatenate([block.weights for block in self.blocks])

    def in_block(self, block: TextBlock) -> slice:
        return slice(block.first_document, block.first_document + block.num_documents)


@dataclass(frozen=True, slots=True)
class _TrainingSentences:
    """The sentences of the training documents, any number of times: the vocabulary learns from nothing held out."""

    texts: _Texts
    held_out: NDArray[np.bool_]
    check: Callable[[], None]

    def __iter__(self) -> Iterator[str]:
        wanted = ~(self.held_out | self.texts.dropped)
        for block in self.texts.blocks:
            self.check()
            for text, is_wanted in zip(block.texts(), wanted[self.texts.in_block(block)].tolist(), strict=True):
                if is_wanted:
                    yield from split_text(text)


@dataclass(frozen=True, slots=True)
class CorpusPasses:
    """The passes over one corpus, and what they share."""

    stage: PrepareStage
    corpus: AnyCorpus
    work_folder: Path
    vocabulary_path: Path
    """Where the vocabulary is read; written first if one is trained."""
    pool: TaskPool
    check: Callable[[], None]
    """Called between blocks where this process reads them; may raise."""
    progress: BuildProgress

    def run(self, settings: BuildSettings, *, vocabulary_size: int | None) -> EncodedCorpus:
        """Run the passes, or return their result from the work folder of an interrupted build.

        vocabulary_size: of the vocabulary to train; None if it exists.

        Raises:
            InputError: the text cannot be read, is empty or too small to be split, or the vocabulary is wrong.
            TrainerError: the disk is full.
        """
        # As JSON has it: a tuple would never equal the list that is read back.
        key: dict[str, Any] = {
            "settings": settings.model_dump(mode="json"),
            "fingerprint": self.corpus.fingerprint,
            "block_format": BLOCK_FORMAT,
        }
        earlier = _read_result(self.work_folder, key, self.vocabulary_path)
        if earlier is not None:
            self.progress.keep()
            return earlier
        # Without a result all passes run again. Scratch files of an interrupted attempt are overwritten, and those
        # with higher numbers are never read: blocks are addressed by number.
        texts = self._read_texts()
        held_out = split_documents(self.stage, texts.scores, texts.dropped)
        if vocabulary_size is not None:
            sentences = _TrainingSentences(texts, held_out, self.check)
            if self.stage.tokenizer == "byte-bpe":
                content = train_byte_bpe(sentences, size=vocabulary_size)
            else:
                content = train_vocabulary(sentences, size=vocabulary_size, lower_case=self.stage.lower_case)
            write_atomically(self.vocabulary_path, content)
        said = read_vocabulary(self.vocabulary_path).settings.strip_accents
        if self.stage.lower_case if said is None else said:
            first = (sentence for text in texts.blocks[0].texts() for sentence in split_text(text))
            warn_about_accents(self.stage.source, first)
        self.progress.advance()
        encoded = self._encode(texts, held_out)
        # Before the result is saved: with it, nothing would remove the text any more but the end of the build.
        for block in texts.blocks:
            block.path.unlink()
        document = {"key": key, **asdict(encoded), "counts": encoded.counts.model_dump()}
        # The last file of the passes: where it exists, all token files do.
        write_json_atomically(self.work_folder / _RESULT_FILE, document)
        self.progress.save()
        return encoded

    def _read_texts(self) -> _Texts:
        """Write the text to blocks and survey every document, then find near-duplicates: two passes."""
        blocks: list[TextBlock] = []
        found: dict[int, Survey] = {}
        scores: list[NDArray[np.float64]] = []
        chances: list[NDArray[np.float64]] = []
        digest = hashlib.sha256()
        duplicates = NearDuplicates(self.work_folder, self.stage.near_duplicate_similarity)
        try:
            for task, survey in self.pool.run(survey_block, self._survey_tasks(blocks)):
                found[task.block.first_document] = survey
                self.progress.advance()
                # Workers finish in any order, but the corpus's digest and which of two near-duplicates is the earlier
                # one depend on the order of documents: results wait for their predecessors.
                while (first := sum(map(len, scores))) in found:
                    ready = found.pop(first)
                    digest.update(ready.digests)
                    duplicates.add(ready.bands, ready.digests)
                    scores.append(ready.scores)
                    chances.append(ready.chances)
            self.progress.set_blocks(len(blocks))
            dropped = np.zeros(sum(map(len, scores)), dtype=np.bool_)
            with disk_errors(self.work_folder):
                dropped[duplicates.find(_reader(blocks))] = True
            self.progress.advance()
        finally:
            duplicates.close()
        return _Texts(blocks, np.concatenate(scores), np.concatenate(chances), dropped, digest.hexdigest())

    def _survey_tasks(self, blocks: list[TextBlock]) -> Iterator[SurveyTask]:
        for block in write_text_blocks(self.corpus.documents(), self.work_folder):
            blocks.append(block)
            yield SurveyTask(block, self.stage.near_duplicate_similarity, self.stage.seed)

    def _encode(self, texts: _Texts, held_out: NDArray[np.bool_]) -> EncodedCorpus:
        """Assign the documents to groups and encode them.

        That a document has no token shows only here. If there are any, they are dropped, and all documents are split,
        assigned and encoded again.
        """
        empty = np.zeros_like(held_out)
        unknown_share: float | None = None
        while True:
            draws, undrawn = draw_documents(self.stage, texts, held_out)
            groups, num_training, num_held_out = assign_groups(self.stage, texts, held_out, empty | undrawn, draws)
            tokens, hit_rate, share = self._encode_blocks(texts, groups, draws, num_training + num_held_out)
            # Of the first round, which has the whole text: documents of nothing but [UNK] are not in the second.
            unknown_share = share if unknown_share is None else unknown_share
            newly_empty = (groups >= 0) & (tokens == 0)
            if not newly_empty.any():
                break
            empty |= newly_empty
            held_out = self._split_again(texts, empty)
        training, held = (tokens[(groups >= 0) & (held_out == which)] for which in (False, True))
        counts = Counts(
            documents_read=len(held_out),
            duplicates_dropped=int(texts.dropped.sum()),
            documents_not_drawn=int(undrawn.sum()),
            documents_training=len(training),
            documents_held_out=len(held),
            tokens_training=int(training.sum()),
            tokens_held_out=int(held.sum()),
        )
        # Of the file that was used: the user may have given it, and may replace it before the next attempt.
        sha256 = read_vocabulary(self.vocabulary_path).sha256
        return EncodedCorpus(
            corpus_sha256=texts.corpus_sha256,
            vocabulary_sha256=sha256,
            counts=counts,
            num_training_shards=num_training,
            num_held_out_shards=num_held_out,
            num_blocks=len(texts.blocks),
            word_hit_rate=hit_rate,
            unknown_share=unknown_share,
        )

    def _split_again(self, texts: _Texts, empty: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Split the documents that have tokens. Each stays on its side, unless one side is empty now."""
        num_left = int((~(texts.dropped | empty)).sum())
        holds_out = self.stage.held_out_fraction > 0
        if num_left < (2 if holds_out else 1):
            raise InputError(
                f"{self.stage.source}: {num_left} documents have a token of the vocabulary {self.vocabulary_path}; "
                + (
                    "at least 2 are needed, one to train on and one to hold out"
                    if holds_out
                    else "at least 1 is needed"
                ),
                hint="is it the vocabulary of another language, or cased where the text is lower-cased?",
            )
        return split_documents(self.stage, texts.scores, texts.dropped | empty)

    def _encode_blocks(
        self, texts: _Texts, groups: NDArray[np.int32], draws: NDArray[np.int32], num_groups: int
    ) -> tuple[NDArray[np.int64], float, float]:
        """Encode all blocks; return the tokens of each document, (D,), the cache's hit rate and the share of [UNK]."""
        tasks = [
            EncodeTask(
                block=block,
                groups=groups[texts.in_block(block)],
                draws=draws[texts.in_block(block)],
                num_groups=num_groups,
                vocabulary_path=self.vocabulary_path,
                lower_case=self.stage.lower_case,
                target=token_path(self.work_folder, number),
            )
            for number, block in enumerate(texts.blocks)
        ]
        tokens = np.zeros(len(groups), dtype=np.int64)
        words = unseen = num_tokens = num_unknown = 0
        for task, encoded in self.pool.run(encode_block, tasks):
            tokens[texts.in_block(task.block)] = encoded.tokens
            self.progress.advance()
            words, unseen = words + encoded.hit_rate.words, unseen + encoded.hit_rate.unseen
            num_tokens, num_unknown = num_tokens + encoded.num_tokens, num_unknown + encoded.num_unknown
        return tokens, round(1 - unseen / max(1, words), 6), round(num_unknown / max(1, num_tokens), 6)


def _reader(blocks: list[TextBlock]) -> Callable[[int], list[str]]:
    """Return a function that reads a document by its number."""
    # Near-duplicate candidates are few and anywhere: single documents are read, not blocks.
    firsts = np.array([block.first_document for block in blocks])

    def read(document: int) -> list[str]:
        block = blocks[int(np.searchsorted(firsts, document, side="right")) - 1]
        return block.read_document(document - block.first_document)

    return read


def token_path(work_folder: Path, block: int) -> Path:
    """Return the file that holds the tokens of a block."""
    return work_folder / f"tokens_{block:05d}"


def split_documents(stage: PrepareStage, scores: NDArray[np.float64], dropped: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Decide for every document whether it is held out, (D,); false for dropped ones.

    A document's text and the seed decide, not its position: with more text, or in another order, it stays on its
    side. If one side would be empty, the document with the nearest score goes there; with a fraction of 0 none is
    held out.

    Raises:
        InputError: fewer than two documents are left, or none with a fraction of 0.
    """
    left = np.flatnonzero(~dropped)
    if stage.held_out_fraction == 0 and len(left):
        return np.zeros_like(dropped)
    if len(left) < 2:
        raise InputError(
            f"{stage.source}: {len(left)} of {len(scores)} documents are left without near-duplicates; "
            + (
                "at least 2 are needed, one to train on and one to hold out"
                if stage.held_out_fraction
                else "at least 1 is needed"
            ),
            hint="documents are separated by blank lines",
        )
    held_out = (scores < stage.held_out_fraction) & ~dropped
    if not held_out.any():
        held_out[left[np.argmin(scores[left])]] = True
    elif held_out.sum() == len(left):
        held_out[left[np.argmax(scores[left])]] = False
    return held_out


def draw_documents(
    stage: PrepareStage, texts: _Texts, held_out: NDArray[np.bool_]
) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """Return how often every document is drawn, int32 (D,), 0: once in every pass; and which never are, (D,).

    Held-out documents are drawn once, in their only pass.

    Raises:
        InputError: the weights leave no document to train on.
    """
    weights = texts.weights
    if (weights == 1).all():
        return np.zeros(len(weights), dtype=np.int32), np.zeros_like(held_out)
    draws = np.where(held_out, 0, count_draws(weights, texts.chances, stage.dupe_factor)).astype(np.int32)
    training = ~(held_out | texts.dropped)
    undrawn = training & (draws == 0)
    if (undrawn == training).all():
        raise InputError(
            f"{stage.source}: dupeFactor {stage.dupe_factor} x weight draws none of {int(training.sum())} training "
            "documents",
            hint="raise dupeFactor or the weights",
        )
    return draws, undrawn


def assign_groups(
    stage: PrepareStage,
    texts: _Texts,
    held_out: NDArray[np.bool_],
    left_out: NDArray[np.bool_],
    draws: NDArray[np.int32],
) -> tuple[NDArray[np.int32], int, int]:
    """Assign every document to a group, so that all groups have about the same text, repetitions counted.

    Each document goes to the group with the least text so far (greedy scheduling), so a group has documents from all
    over the corpus.

    Args:
        stage: the settings.
        texts: the D documents.
        held_out: (D,).
        left_out: (D,), documents that are in no group beside the dropped ones.
        draws: (D,), as ``draw_documents`` returns them.

    Returns:
        The group of every document, int32 (D,), -1 for none; the number of training groups; that of held-out groups.
    """
    groups = np.full(len(held_out), -1, dtype=np.int32)
    sides = [np.flatnonzero((held_out == which) & ~texts.dropped & ~left_out) for which in (False, True)]
    sizes = texts.sizes * np.where(held_out, 1, np.where(draws == 0, stage.dupe_factor, draws))
    num_bytes = [int(sizes[side].sum()) for side in sides]
    wanted = stage.num_shards or max(MIN_SHARDS, math.ceil(num_bytes[0] / SHARD_BYTES))
    num_training = max(1, min(wanted, len(sides[0]) // _MIN_DOCUMENTS_PER_GROUP))
    if stage.num_shards and num_training < stage.num_shards and not left_out.any():
        logger.warning(
            "%d training documents are too few for %d shards; making %d", len(sides[0]), stage.num_shards, num_training
        )
    # Held-out documents are used once: as many groups as make a held-out shard as large as a training shard.
    share = num_training * num_bytes[1] / max(1, num_bytes[0])
    num_held_out = max(1, min(math.ceil(share), len(sides[1]) // _MIN_DOCUMENTS_PER_GROUP)) if len(sides[1]) else 0
    for side, first, number in zip(sides, (0, num_training), (num_training, num_held_out), strict=True):
        # A heap of (bytes, group); ties go to the lower group, so the result does not depend on anything else.
        loads = [(0, group) for group in range(first, first + number)]
        # In batches: all sizes as Python integers would take ten times the memory.
        for start in range(0, len(side), _ASSIGNED_AT_ONCE):
            documents = side[start : start + _ASSIGNED_AT_ONCE]
            assigned = []
            for size in sizes[documents].tolist():
                load, group = loads[0]
                heapq.heapreplace(loads, (load + size, group))
                assigned.append(group)
            groups[documents] = assigned
    return groups, num_training, num_held_out


def _read_result(work_folder: Path, key: dict[str, Any], vocabulary_path: Path) -> EncodedCorpus | None:
    """Return the saved result of the same settings, text, vocabulary and block format; otherwise None."""
    document = read_json_object(work_folder / _RESULT_FILE, hint="delete it: the text is then encoded again")
    if document is None or not vocabulary_path.exists():
        return None
    if document.pop("key") != key or document["vocabulary_sha256"] != read_vocabulary(vocabulary_path).sha256:
        return None
    document["counts"] = Counts.model_validate(document["counts"])
    encoded = EncodedCorpus(**document)
    # A finished build deletes the folder; if that was interrupted, this file can outlive the token files.
    if not all(token_path(work_folder, block).exists() for block in range(encoded.num_blocks)):
        return None
    return encoded
