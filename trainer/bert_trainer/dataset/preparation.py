"""From a corpus to tokens in shards: clean, drop near-duplicates, split, learn a vocabulary, encode.

Four passes, each in a stream, through scratch files in the work folder. The outcome is noted at the end, so
that an interrupted build goes on with its shards at once. Making the shards is not done here.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bert_trainer.atomic_files import write_atomically, write_json_atomically
from bert_trainer.config import PrepareStage
from bert_trainer.dataset.corpus import Corpus, digest_document
from bert_trainer.dataset.near_duplicates import NearDuplicates
from bert_trainer.dataset.record import BuildSettings, Counts
from bert_trainer.dataset.spool import TextSpool, TokenSpool
from bert_trainer.dataset.wordpiece import Encoder, read_vocabulary, train_vocabulary
from bert_trainer.errors import InputError

logger = logging.getLogger(__name__)

PASSES = 4
_PREPARED_FILE = "prepared.json"
_DOCUMENTS_PER_CHECK = 256
_DOCUMENTS_PER_SHARD = 2
"""At least: in a shard with one document no next sentence could be a random one."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What the passes found; the tokens themselves lie in the work folder."""

    corpus_sha256: str
    vocabulary_sha256: str
    counts: Counts
    num_training_shards: int


@dataclass(frozen=True, slots=True)
class _Texts:
    """The kept documents, on disk, and for each whether it is held out."""

    spool: TextSpool
    held_out: list[bool | None]
    """``None``: dropped."""
    corpus_sha256: str

    def documents(self, *, held_out: bool) -> Iterator[tuple[str, ...]]:
        for which, sentences in zip(self.held_out, self.spool, strict=True):
            if which is held_out:
                yield sentences


@dataclass(frozen=True, slots=True)
class _TrainingSentences:
    """The training text, as often as it is asked for: nothing is learnt from held-out documents."""

    texts: _Texts
    check: Callable[[], None]

    def __iter__(self) -> Iterator[str]:
        for number, sentences in enumerate(self.texts.documents(held_out=False)):
            if number % _DOCUMENTS_PER_CHECK == 0:
                self.check()
            yield from sentences


def prepare_tokens(
    stage: PrepareStage,
    corpus: Corpus,
    settings: BuildSettings,
    *,
    vocabulary_path: Path,
    vocabulary_size: int | None,
    work_folder: Path,
    check: Callable[[], None],
    pass_done: Callable[[], None],
) -> Prepared:
    """Run the passes that the work folder does not have behind it already.

    vocabulary_path: read, after it was written where ``vocabulary_size`` says that one is to be learnt.
    check: called every few hundred documents; may raise. pass_done: called after each of the four passes.

    Raises:
        InputError: the text cannot be read, is empty or too small to be split, or the vocabulary is wrong.
        TrainerError: the disk is full.
    """
    key: dict[str, Any] = {"settings": settings.model_dump(), "fingerprint": corpus.fingerprint}
    done = _read_prepared(work_folder, key, vocabulary_path)
    if done is not None:
        for _ in range(PASSES):
            pass_done()
        return done
    duplicates = NearDuplicates(work_folder, stage.near_duplicate_similarity)
    try:
        digests, spool = _read_texts(corpus, duplicates, work_folder, check)
        pass_done()
        dropped = duplicates.find()
        pass_done()
    finally:
        duplicates.close()
    corpus_sha256 = hashlib.sha256(b"".join(digests)).hexdigest()
    texts = _Texts(spool, split_documents(stage, digests, dropped), corpus_sha256)
    if vocabulary_size is not None:
        sentences = _TrainingSentences(texts, check)
        content = train_vocabulary(sentences, size=vocabulary_size, lower_case=stage.lower_case)
        write_atomically(vocabulary_path, content)
    pass_done()
    prepared = _encode(stage, texts, vocabulary_path, work_folder, check)
    pass_done()
    document = {"key": key, **asdict(prepared), "counts": prepared.counts.model_dump()}
    write_json_atomically(work_folder / _PREPARED_FILE, document)
    return prepared


def split_documents(stage: PrepareStage, digests: list[bytes], dropped: set[int]) -> list[bool | None]:
    """Decide for every document whether it is held out; ``None`` for those dropped.

    A document's text and the seed decide, not its place: with more text, or in another order, it stays on its
    side. Where chance would leave one side empty, the document nearest to it goes there.

    Raises:
        InputError: fewer than two documents are left.
    """
    scores = {
        number: _fraction(f"{stage.seed}/held-out/".encode() + digest)
        for number, digest in enumerate(digests)
        if number not in dropped
    }
    if len(scores) < 2:
        raise InputError(
            f"{stage.text}: {len(scores)} of {len(digests)} documents are left without near-duplicates; "
            "at least 2 are needed, one to train on and one to hold out",
            hint="documents are separated by blank lines",
        )
    held_out = {number for number, score in scores.items() if score < stage.held_out_fraction}
    if not held_out:
        held_out = {min(scores, key=lambda number: scores[number])}
    elif len(held_out) == len(scores):
        held_out.remove(max(scores, key=lambda number: scores[number]))
    return [number in held_out if number in scores else None for number in range(len(digests))]


def _fraction(content: bytes) -> float:
    """Return a number in [0, 1) that only the content decides."""
    return int.from_bytes(hashlib.sha256(content).digest()[:8]) / 2**64


def _read_texts(
    corpus: Corpus, duplicates: NearDuplicates, work_folder: Path, check: Callable[[], None]
) -> tuple[list[bytes], TextSpool]:
    spool = TextSpool(work_folder / "text.txt")
    digests: list[bytes] = []
    with closing(spool):
        for document in corpus.documents():
            if len(digests) % _DOCUMENTS_PER_CHECK == 0:
                check()
            digests.append(digest_document(document))
            duplicates.add(document)
            spool.add(document)
    return digests, spool


def _encode(
    stage: PrepareStage, texts: _Texts, vocabulary_path: Path, work_folder: Path, check: Callable[[], None]
) -> Prepared:
    vocabulary = read_vocabulary(vocabulary_path)
    encoder = Encoder(vocabulary, lower_case=stage.lower_case)
    num_training = texts.held_out.count(False)
    num_shards = max(1, min(stage.num_shards, num_training // _DOCUMENTS_PER_SHARD))
    if num_shards < stage.num_shards:
        logger.warning(
            "%d training documents are too few for %d shards; making %d",
            num_training,
            stage.num_shards,
            num_shards,
        )
    spools = {}
    for held_out in (False, True):
        name = "held_out" if held_out else "training"
        spool = spools[name] = TokenSpool(work_folder, name, 1 if held_out else num_shards)
        for number, document in enumerate(encoder.encode_documents(texts.documents(held_out=held_out))):
            if number % _DOCUMENTS_PER_CHECK == 0:
                check()
            if document:
                spool.add(document)
        spool.flush()
        if not spool.num_documents:
            raise InputError(f"{stage.text}: no token of the vocabulary in the {name} documents")
    training, held_out_spool = spools["training"], spools["held_out"]
    counts = Counts(
        documents_read=len(texts.held_out),
        duplicates_dropped=texts.held_out.count(None),
        documents_training=training.num_documents,
        documents_held_out=held_out_spool.num_documents,
        tokens_training=training.num_tokens,
        tokens_held_out=held_out_spool.num_tokens,
    )
    # Documents without a token leave the last shards empty where there are hardly any others.
    num_shards = min(num_shards, training.num_documents)
    return Prepared(texts.corpus_sha256, vocabulary.sha256, counts, num_shards)


def _read_prepared(work_folder: Path, key: dict[str, Any], vocabulary_path: Path) -> Prepared | None:
    path = work_folder / _PREPARED_FILE
    if not path.exists() or not vocabulary_path.exists():
        return None
    document = json.loads(path.read_text())
    if document.pop("key") != key or document["vocabulary_sha256"] != read_vocabulary(vocabulary_path).sha256:
        return None
    document["counts"] = Counts.model_validate(document["counts"])
    return Prepared(**document)
