"""One or several corpora, each a folder, a file or a builtin, as a stream of documents.

Formats are read by ``formats``. Documents are yielded one by one in a fixed order, so memory does not grow with a
corpus, and a build is the same on every machine.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bert_job.foreign_text import printable
from bert_job.preparation import CorpusSpec
from bert_trainer.dataset.corpus.document import Document, digest_sentences
from bert_trainer.dataset.corpus.formats.json_lines import read_json_lines
from bert_trainer.dataset.corpus.formats.mlperf_text import check_parts, find_checksums
from bert_trainer.dataset.corpus.formats.plain_text import TextRules, read_plain_text
from bert_trainer.dataset.corpus.formats.recognition import (
    EXPECTED,
    FileFormat,
    Format,
    FoundFiles,
    find_files,
    join_paths,
)
from bert_trainer.dataset.corpus.formats.streams import content_bytes, size_and_time
from bert_trainer.dataset.corpus.formats.wikipedia import SENTENCES_WITH_HOLES, read_wikipedia
from bert_trainer.dataset.corpus.formats.wikitext import EXTRACTOR_VERSION, RENDERED
from bert_trainer.dataset.corpus.languages import check_language
from bert_trainer.dataset.corpus.python_docs import python_docs_fingerprint, read_python_docs
from bert_trainer.dataset.corpus.sentences import MAX_SENTENCE, SPLITTER_VERSION, LongSentences, long_sentences
from bert_trainer.errors import InputError
from bert_trainer.system.heartbeat import watched

logger = logging.getLogger(__name__)

PYTHON_DOCS = "builtin:python-docs"

# Estimates, for progress bars and for the disk and memory that a build needs.
_PROSE_PER_DUMP_BYTE = 0.3
"""Of a dump's XML; about the share that is left of the English Wikipedia's."""

_DOCUMENTS_PER_CHECK = 256
_WITHOUT_TEXT = "files without text"
_EXPECTED_SKIPS = frozenset({"redirects", "pages of other namespaces", "pages without wikitext", SENTENCES_WITH_HOLES})
"""Every dump has these; of all else that is skipped the user is warned."""

Compared = Callable[[int, int], None]
"""Called with how many of how many bytes of text were compared with published checksums."""


def _ignore_progress(done: int, total: int) -> None:
    """Report nothing."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """Documents in a fixed order, read anew by every call of ``documents``."""

    source: str
    """What the user wrote."""
    files: tuple[Path, ...]
    """Empty for a builtin corpus."""
    fingerprint: str
    """Changes when the text may have changed. Cheap: of names, sizes and times of files, not of their content."""
    earlier_fingerprints: tuple[str, ...]
    """What the fingerprint of the same files was under each earlier ``EXTRACTOR_VERSION``, the first one first."""
    formats: tuple[FileFormat, ...] = ()
    """Of each file."""
    kind: Format | None = None
    """Of the whole; empty: that of the files."""
    settings: CorpusSpec = field(default_factory=lambda: CorpusSpec(path=PYTHON_DOCS))
    num_processes: int = 1
    """Extract text from dumps; the other formats are read in this process."""
    check: Callable[[], None] = lambda: None
    """Called every few hundred documents, and now and then while files are read; may raise."""
    compared: Compared = _ignore_progress
    """Called with how much of the text was compared with published checksums."""
    found: FoundFiles | None = None
    """The files and what lies beside them; None for a builtin corpus."""

    @property
    def text_bytes(self) -> int:
        """Return about how many bytes of text there are; 0 for a builtin corpus."""
        return sum(_text_bytes(path, kind) for path, kind in zip(self.files, self.formats, strict=True))

    def documents(self) -> Iterator[Document]:
        """Yield every document.

        Raises:
            InputError: a file cannot be read or is damaged, the text is not the published one, the language is
                unknown, or there is no document at all.
        """
        check_language(self.settings.language)
        self._log_skipped_files()
        skipped: Counter[str] = Counter()
        without_text: list[Path] = []
        before = replace(long_sentences)  # it counts for the whole process, this corpus is one of several
        kept = LongSentences()
        number = characters = 0
        for document in self._read(skipped, without_text):
            if number % _DOCUMENTS_PER_CHECK == 0:
                self.check()
            number += 1
            lengths = list(map(len, document.sentences))
            characters += sum(lengths) + len(lengths)
            if max(lengths) > MAX_SENTENCE:
                long = [length for length in lengths if length > MAX_SENTENCE]
                kept = LongSentences(kept.sentences + len(long), kept.characters + sum(long))
            yield (
                document if self.settings.weight == document.weight else replace(document, weight=self.settings.weight)
            )
        skipped[_WITHOUT_TEXT] = len(without_text)
        rendered = skipped.pop(RENDERED, 0)
        summary = ", ".join(f"{count:,} {reason}" for reason, count in sorted((+skipped).items()))
        parts = [f"{rendered:,} {RENDERED}"] if rendered else []
        if summary:
            parts.insert(0, f"skipped {summary}{f' ({join_paths(without_text)})' if without_text else ''}")
        if parts:
            level = logging.WARNING if _is_remarkable(skipped) else logging.INFO
            logger.log(level, "%s: %s", printable(self.source), "; ".join(parts))
        self._warn_of_long_sentences(long_sentences.since(before), kept, characters)
        if not number:
            raise InputError(f"{self.source}: holds no text{f' (skipped {summary})' if summary else ''}; {EXPECTED}")

    def _log_skipped_files(self) -> None:
        """Log the files of the folder that are not read: a warning with the first ones, and at level INFO each."""
        if self.found is None:
            return
        reasons = Counter(reason for _, reason in self.found.skipped)
        for reason, count in sorted(reasons.items()):
            paths = [path for path, why in self.found.skipped if why == reason]
            logger.warning(
                "%s: skipped %s file(s) %s: %s", printable(self.source), f"{count:,}", reason, join_paths(paths)
            )
        for path, reason in self.found.skipped:
            logger.info("%s: skipped, one of those %s", printable(path), reason)
        for path in self.found.hidden:
            logger.info("%s: skipped (its name begins with a full stop)", printable(path))

    def _warn_of_long_sentences(self, split: LongSentences, kept: LongSentences, characters: int) -> None:
        for found, what in (
            (
                split,
                "were split again as if they had no quotation marks or brackets; a stray one hides ends of sentences",
            ),
            (kept, "are lines of their own and stay; what does not fit into a row is cut away"),
        ):
            if found.sentences:
                logger.warning(
                    "%s: %s sentence(s) of more than %s characters, %.1f %% of the text, %s",
                    printable(self.source),
                    f"{found.sentences:,}",
                    f"{MAX_SENTENCE:,}",
                    100 * found.characters / max(1, characters),
                    what,
                )

    def _read(self, skipped: Counter[str], without_text: list[Path]) -> Iterator[Document]:
        """Yield the documents of all files. without_text: receives the files that give none."""
        if not self.files:
            yield from read_python_docs()
            return
        settings = self.settings
        rules = TextRules(settings.language, settings.lines, settings.documents)
        if self.kind == "mlperf":
            folder = self.files[0].parent
            given = Path(settings.checksums) if settings.checksums else find_checksums(folder)
            check_parts(folder, given, self.check, self.compared)
            # Its parts have one sentence per line, whatever the settings of the corpus say.
            rules = replace(rules, lines="sentences", documents="emptyLines")
        for path, kind in zip(self.files, self.formats, strict=True):
            number = 0
            for document in self._read_file(path, kind, rules, skipped):
                number += 1
                yield document
            if not number:
                without_text.append(path)
                logger.info("%s: skipped (no text)", printable(path))

    def _read_file(self, path: Path, kind: FileFormat, rules: TextRules, skipped: Counter[str]) -> Iterator[Document]:
        settings = self.settings
        if kind == "wikipedia":
            return read_wikipedia(
                path,
                language=settings.language,
                num_processes=self.num_processes,
                check=self.check,
                skipped=skipped,
            )
        if kind == "jsonLines":
            return read_json_lines(path, settings.text_field, rules, skipped)
        return read_plain_text(path, rules)


@dataclass(frozen=True, slots=True)
class Corpora:
    """Several corpora, one after the other, as one."""

    members: tuple[Corpus, ...]

    @property
    def source(self) -> str:
        """Return what the user wrote."""
        return ", ".join(corpus.source for corpus in self.members)

    @property
    def files(self) -> tuple[Path, ...]:
        """Return all files."""
        return tuple(path for corpus in self.members for path in corpus.files)

    @property
    def fingerprint(self) -> str:
        """Return that of the only member, or of all."""
        return _combined([corpus.fingerprint for corpus in self.members])

    @property
    def earlier_fingerprints(self) -> tuple[str, ...]:
        """Return those of the only member, or of all under the same version."""
        return tuple(map(_combined, zip(*(corpus.earlier_fingerprints for corpus in self.members), strict=True)))

    @property
    def text_bytes(self) -> int:
        """Return about how many bytes of text there are."""
        return sum(corpus.text_bytes for corpus in self.members)

    @property
    def mean_weight(self) -> float:
        """Return the mean of the weights, by the size of the text."""
        weighted = sum(corpus.text_bytes * corpus.settings.weight for corpus in self.members)
        return weighted / self.text_bytes if self.text_bytes else 1.0

    def documents(self) -> Iterator[Document]:
        """Yield every document; errors as ``Corpus.documents``."""
        for corpus in self.members:
            yield from corpus.documents()


AnyCorpus = Corpus | Corpora


def open_corpora(
    settings: Sequence[CorpusSpec],
    *,
    num_processes: int = 1,
    check: Callable[[], None] = lambda: None,
    compared: Compared = _ignore_progress,
) -> Corpora:
    """Find the files of all corpora without reading them; arguments and errors as ``open_corpus``.

    check, compared: as ``Corpus`` has them.
    """
    opened = (_open(corpus, num_processes=num_processes, check=check, compared=compared) for corpus in settings)
    return Corpora(tuple(opened))


def open_corpus(text: str) -> Corpus:
    """Find the files of a corpus that is named by its path alone, without reading them.

    text: a folder (its files of known formats, at any depth, sorted by path), one file, or
    ``builtin:python-docs``.

    Raises:
        InputError: nothing is there that can be read.
    """
    return _open(CorpusSpec(path=text), num_processes=1, check=lambda: None, compared=_ignore_progress)


def _open(settings: CorpusSpec, *, num_processes: int, check: Callable[[], None], compared: Compared) -> Corpus:
    if settings.path.startswith("builtin:"):
        if settings.path != PYTHON_DOCS:
            raise InputError(f"text: got {settings.path!r}; allowed: a folder, a file or {PYTHON_DOCS!r}")
        fingerprint = python_docs_fingerprint()
        earlier = (fingerprint,) * (EXTRACTOR_VERSION - 1)
        return Corpus(settings.path, (), fingerprint, earlier, settings=settings, check=check)
    root = Path(settings.path)
    found = find_files(root, None if settings.format == "auto" else settings.format)
    files, formats = tuple(path for path, _ in found.files), tuple(kind for _, kind in found.files)
    base = root if root.is_dir() else root.parent
    fingerprints = _fingerprints(files, formats, base, settings)
    return Corpus(
        source=settings.path,
        files=files,
        fingerprint=fingerprints[-1],
        earlier_fingerprints=fingerprints[:-1],
        formats=formats,
        kind=found.kind,
        settings=settings,
        num_processes=num_processes,
        check=check,
        compared=compared,
        found=found,
    )


def digest_corpus(corpus: AnyCorpus) -> str:
    """Read the whole corpus and return a hexadecimal SHA-256 of its text, in order."""
    total = hashlib.sha256()
    for document in corpus.documents():
        total.update(digest_sentences(document.sentences))
    return total.hexdigest()


def _fingerprints(
    files: Sequence[Path], formats: Sequence[FileFormat], base: Path, settings: CorpusSpec
) -> tuple[str, ...]:
    """Return a digest of the files' names, sizes and times, and of all that decides which sentences are read from them.

    One for each version of the extractor from the first to this one, whose digest is stored in dataset.json: another
    value makes a resumed build read and compare the whole corpus.
    """
    # Not the path, since text may be moved, nor the weight, which decides how often documents are drawn. Another field
    # in CorpusSpec changes every fingerprint: a build that resumes then reads and compares the whole text.
    rules = settings.model_dump_json(exclude={"path", "weight"})
    # The first version was 1 and is part of the fingerprints of all formats; new rules for dumps leave those of other
    # text as they are.
    versions = [version if "wikipedia" in formats else 1 for version in range(1, EXTRACTOR_VERSION + 1)]
    totals = [hashlib.sha256(f"{rules} {SPLITTER_VERSION} wikitext/{version}\n".encode()) for version in versions]
    for path in files:
        watched().alive()  # over a network a listing takes long, and next to no processor
        size, modified_ns = size_and_time(path)
        for total in totals:
            # A name need not be UTF-8.
            total.update(os.fsencode(path.relative_to(base).as_posix()))
            total.update(f"\0{size}\0{modified_ns}\n".encode())
    return tuple(total.hexdigest() for total in totals)


def _combined(fingerprints: Sequence[str]) -> str:
    if len(fingerprints) == 1:
        return fingerprints[0]
    return hashlib.sha256("\n".join(fingerprints).encode()).hexdigest()


def _text_bytes(path: Path, kind: FileFormat) -> int:
    watched().alive()
    share = _PROSE_PER_DUMP_BYTE if kind == "wikipedia" else 1.0
    return int(content_bytes(path) * share)


def _is_remarkable(skipped: Counter[str]) -> bool:
    """Return whether anything is skipped that not every dump has."""
    return any(count for reason, count in skipped.items() if reason not in _EXPECTED_SKIPS)
