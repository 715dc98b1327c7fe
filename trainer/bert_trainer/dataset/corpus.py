"""Where documents come from: a folder of text files, one text file, or documentation found in every Python.

A text file holds one sentence per line with a blank line between documents (the format of BERT's
``create_pretraining_data``), in UTF-8. Documents are yielded one by one, so memory does not grow with the
corpus. It neither splits sentences nor repairs encodings.
"""

from __future__ import annotations

import codecs
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bert_trainer.dataset.document import Document
from bert_trainer.dataset.python_docs import python_docs_fingerprint, read_python_docs
from bert_trainer.errors import InputError

PYTHON_DOCS = "builtin:python-docs"

_EXPECTED = "expected: .txt files in UTF-8, one sentence per line, a blank line between documents"


@dataclass(frozen=True, slots=True)
class Corpus:
    """Documents in a fixed order, read anew by every call of ``documents``."""

    source: str
    """What the user wrote."""
    files: tuple[Path, ...]
    """Empty for a builtin corpus."""
    fingerprint: str
    """Changes when the text may have changed; cheap: file names, sizes and times, not their content."""

    def documents(self) -> Iterator[Document]:
        """Yield every document.

        Raises:
            InputError: a file cannot be read, is not UTF-8, or there is no document at all.
        """
        empty = True
        for document in _read_files(self.files) if self.files else read_python_docs():
            empty = False
            yield document
        if empty:
            raise InputError(f"{self.source}: holds no text; {_EXPECTED}")


def open_corpus(text: str) -> Corpus:
    """Find the files of a corpus without reading them.

    text: a folder (its ``.txt`` files, at any depth, sorted by path), one file, or ``builtin:python-docs``.

    Raises:
        InputError: nothing is there, or no ``.txt`` file is below the folder.
    """
    if text.startswith("builtin:"):
        if text != PYTHON_DOCS:
            raise InputError(f"text: got {text!r}; allowed: a folder, a file or {PYTHON_DOCS!r}")
        return Corpus(source=text, files=(), fingerprint=python_docs_fingerprint())
    root = Path(text)
    if root.is_dir():
        files = [path for path in root.rglob("*.txt") if path.is_file() and not _hidden(path.relative_to(root))]
        if not files:
            raise InputError(f"{text}: no .txt file in this folder; {_EXPECTED}")
    elif root.is_file():
        files, root = [root], root.parent
    else:
        raise InputError(f"{text}: no such folder or file; {_EXPECTED} (or {PYTHON_DOCS!r})")
    files.sort(key=lambda path: path.relative_to(root).as_posix())
    return Corpus(source=text, files=tuple(files), fingerprint=_fingerprint(files, root))


def digest_document(document: Document) -> bytes:
    """Return 32 bytes that stand for a document's text, whatever its name is."""
    return hashlib.sha256("\n".join(document.sentences).encode()).digest()


def digest_corpus(corpus: Corpus) -> str:
    """Read the whole corpus and return a hexadecimal SHA-256 of its text, in order."""
    total = hashlib.sha256()
    for document in corpus.documents():
        total.update(digest_document(document))
    return total.hexdigest()


def _hidden(path: Path) -> bool:
    # A mounted ConfigMap shows every file twice, once below a folder called `..2026_01_31_...`.
    return any(part.startswith(".") for part in path.parts)


def _fingerprint(files: list[Path], root: Path) -> str:
    total = hashlib.sha256()
    for path in files:
        status = path.stat()
        total.update(f"{path.relative_to(root).as_posix()}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return total.hexdigest()


def _read_files(files: tuple[Path, ...]) -> Iterator[Document]:
    for path in files:
        number = 0
        sentences: list[str] = []
        for line in _lines(path):
            if line:
                sentences.append(line)
            elif sentences:
                number += 1
                yield Document(name=f"{path}#{number}", sentences=tuple(sentences))
                sentences = []
        if sentences:
            yield Document(name=f"{path}#{number + 1}", sentences=tuple(sentences))


def _lines(path: Path) -> Iterator[str]:
    """Yield the stripped lines of a file; its end counts as the end of a document, too."""
    offset = 0
    try:
        with path.open("rb") as file:
            for raw in file:
                content = raw.removeprefix(codecs.BOM_UTF8) if offset == 0 else raw
                skipped = offset + len(raw) - len(content)
                yield " ".join(_decode(content, path, skipped).split())
                offset += len(raw)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error


def _decode(raw: bytes, path: Path, offset: int) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: not UTF-8 at byte offset {offset + error.start} (byte 0x{raw[error.start]:02x})",
            hint=f"convert it, for example: iconv -f LATIN1 -t UTF-8 {path}",
        ) from error
