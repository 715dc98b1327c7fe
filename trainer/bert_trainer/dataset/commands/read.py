"""``bert-data read``: the text that a build would read, to check a corpus before it is built."""

from __future__ import annotations

import argparse
import logging
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from bert_job.foreign_text import printable
from bert_job.preparation import CorpusSpec
from bert_trainer.dataset.commands.arguments import parse_corpus
from bert_trainer.dataset.commands.terminal import ProgressBar, print_line
from bert_trainer.dataset.corpus.corpora import Corpora, open_corpora
from bert_trainer.dataset.corpus.document import Document
from bert_trainer.dataset.workers.pool import usable_cores
from bert_trainer.errors import InputError
from bert_trainer.system.atomic_files import create_partial, disk_errors

_SHOWN_FILES = 3
"""Of those that are read and that the same is said of."""
_FORMATS = "bert_trainer.dataset.corpus.formats."
_TICK_S = 0.2
"""Between two updates of the bar: one per document would cost more than reading."""


def add_command(commands: Any) -> None:
    """Add the verb and its arguments."""
    command = commands.add_parser("read", help="show, count or write the text that a build would read")
    command.set_defaults(command=read)
    command.description = (
        "Read text in any format and say what is in it; show some of it, or write all of it with one sentence per line "
        "and an empty line between documents, which any BERT script reads."
    )
    command.add_argument(
        "corpora", nargs="+", type=parse_corpus, metavar="PATH[,FIELD=VALUE]", help="as --corpus of bert-data build"
    )
    command.add_argument("--documents", type=int, default=3, metavar="N", help="shown of the first ones (%(default)s)")
    command.add_argument("--sentences", type=int, default=5, metavar="N", help="shown of each (%(default)s)")
    command.add_argument("--output", type=Path, help="file to write all text to; nothing is shown then")
    command.add_argument("--processes", type=int, default=usable_cores(), help="for dumps (one per core)")


def read(arguments: argparse.Namespace) -> int:
    """Read corpora to their ends and print what they hold."""
    # At INFO each file's format and each reason for leaving something out is logged.
    logging.getLogger("bert_trainer.dataset").setLevel(logging.INFO)
    with _Alike() as alike:
        _read(arguments, alike)
    return 0


def _read(arguments: argparse.Namespace, alike: _Alike) -> None:
    bar = ProgressBar()
    corpora = open_corpora(arguments.corpora, num_processes=max(1, arguments.processes), compared=bar.compared)
    began_s = time.monotonic()
    documents = sentences = num_bytes = 0
    with _Output(arguments.output) as output:
        for document in _with_bar(corpora, bar):
            text = "\n".join(document.sentences)
            output.add(text)
            if arguments.output is None and documents < arguments.documents:
                _show(document, arguments.sentences)
            documents += 1
            sentences += len(document.sentences)
            num_bytes += len(text.encode()) + 1
    elapsed_s = max(1e-9, time.monotonic() - began_s)
    print_line(
        f"{corpora.source}: {documents:,} documents, {sentences:,} sentences, {num_bytes / 1e6:,.1f} MB of text in "
        f"{elapsed_s:.1f} s ({num_bytes / 1e6 / elapsed_s:.1f} MB/s)",
    )
    for corpus in corpora.members:
        print_line(f"  {_describe(corpus.settings)}")
    for line in alike.rest():
        print_line(f"  {line}")


class _Alike(logging.Filter):
    """Lets the first lines pass that say the same of files that are read, and counts the others."""

    def __init__(self) -> None:
        super().__init__()
        self._counts: Counter[str] = Counter()
        self._handlers = tuple(logging.getLogger().handlers)

    def __enter__(self) -> _Alike:
        for handler in self._handlers:
            handler.addFilter(self)
        return self

    def __exit__(self, *_: object) -> None:
        for handler in self._handlers:
            handler.removeFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        # What is left out is named, file by file.
        is_read = record.name.startswith(_FORMATS) and record.levelno == logging.INFO
        if not is_read or not isinstance(record.args, tuple) or not record.args:
            return True
        # The first argument is the file.
        said = (record.msg % ("", *record.args[1:])).removeprefix(": ")
        self._counts[said] += 1
        return self._counts[said] <= _SHOWN_FILES

    def rest(self) -> Iterator[str]:
        """Yield how many files there were that nothing was shown of."""
        for said, count in self._counts.items():
            if count > _SHOWN_FILES:
                yield f"{count - _SHOWN_FILES:,} more files: {said}"


def _describe(settings: CorpusSpec) -> str:
    chosen = settings.model_dump(exclude_defaults=True, exclude={"path"})
    return f"{settings.path}: " + (", ".join(f"{name} {value}" for name, value in chosen.items()) or "defaults")


def _show(document: Document, num_sentences: int) -> None:
    print_line(printable(document.name))
    for sentence in document.sentences[:num_sentences]:
        print_line(f"    {sentence}")
    if len(document.sentences) > num_sentences:
        print_line(f"    ({len(document.sentences) - num_sentences} more sentences)")
    print_line("")


def _with_bar(corpora: Corpora, bar: ProgressBar) -> Iterator[Document]:
    """Yield all documents, with a bar of the text read so far on a terminal; its end is an estimate."""
    with bar:
        bar.begin("read", corpora.text_bytes or None, unit="MB of text")
        pending, advanced_at_s = 0, time.monotonic()
        for document in corpora.documents():
            yield document
            # Characters for bytes: the total is an estimate, too.
            pending += sum(map(len, document.sentences))
            if time.monotonic() - advanced_at_s >= _TICK_S:
                bar.advance(pending)
                pending, advanced_at_s = 0, time.monotonic()


class _Output:
    """A text file that appears under its name only when it is complete; without a path, nothing is written."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._file: IO[bytes] | None = None
        # Asked before hours of reading, not after them.
        if path is not None and path.exists():
            raise InputError(f"{path}: exists", hint="name another file, or delete this one")

    def __enter__(self) -> _Output:
        if self._path is not None:
            with disk_errors(self._path):
                self._partial = create_partial(self._path)
                self._file = self._partial.open("wb")
        return self

    def add(self, text: str) -> None:
        if self._file is not None and self._path is not None:
            with disk_errors(self._path):
                self._file.write(f"{text}\n\n".encode())

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._file is None or self._path is None:
            return
        with disk_errors(self._path):
            self._file.close()
            if kind is None:
                self._partial.replace(self._path)
            else:
                self._partial.unlink(missing_ok=True)
