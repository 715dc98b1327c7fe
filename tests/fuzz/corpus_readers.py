"""Text of each format, plain and compressed."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from fuzz_reader import Reader
from mutations import mutate_json

from bert_trainer.dataset.corpus.corpora import open_corpus
from bert_trainer.dataset.corpus.formats.wikitext import extract_paragraphs
from small_dumps import dump, multistream, page

_TEXT = "First sentence here. A second one!\n\nAnother document; with words. Über alles.\n".encode()
_MARKUP = (
    "== Title ==\nSome '''bold''' [[link|text]] and {{template|a=1}} more words <ref>x</ref>.\n\n"
    "{| class=a\n|-\n| cell\n|}\n* item one\n[[File:a.png|thumb]] [http://a.b c] &amp; <!-- no --> end of it here."
)


def _read(path: Path) -> object:
    return deque(open_corpus(str(path)).documents(), maxlen=0)


def _compressed(_: Path) -> Iterator[bytes]:
    yield from (_TEXT, gzip.compress(_TEXT, mtime=0), bz2.compress(_TEXT), lzma.compress(_TEXT))


def _dumps(_: Path) -> Iterator[bytes]:
    pages = [
        page("One", _MARKUP),
        page("Two", "plain text of some words here", redirect=True),
        page("A:b", "x", namespace=1),
    ]
    yield dump(*pages)
    yield multistream(pages[:1], pages[1:])


_STREAMS = "bert_trainer.dataset.corpus.formats.streams"
_FORMATS = "bert_trainer.dataset.corpus.formats"
READERS = (
    Reader(
        name="plain-text",
        read=_read,
        seeds=lambda _: iter([_TEXT, "zwei\r\nZeilen\x0b".encode("utf-16"), b"a\tb\nc\td\n" * 9]),
        modules=(f"{_FORMATS}.plain_text",),
        file_name="text.txt",
    ),
    *(
        Reader(
            name=f"compressed-{ending}",
            read=_read,
            seeds=lambda _, squeeze=squeeze: iter([squeeze(_TEXT), squeeze(b"")]),
            modules=(_STREAMS,),
            leaves_out=() if ending == "xz" else ("_XzReader", "readable", "tell", "close", "readinto", "__init__"),
            file_name=f"text.txt.{ending}",
        )
        for ending, squeeze in (("gz", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress))
    ),
    Reader(
        name="json-lines",
        read=_read,
        seeds=lambda _: iter([b'{"text": "First sentence here. A second one!"}\n{"text": ["a b", "c d"]}\n']),
        modules=(f"{_FORMATS}.json_lines",),
        mutate=mutate_json,
        file_name="text.jsonl",
    ),
    Reader(
        name="wikipedia",
        read=_read,
        seeds=lambda _: iter([dump(page("One", _MARKUP), page("Two", "words", redirect=True))]),
        modules=(f"{_FORMATS}.wikipedia", f"{_FORMATS}.wikitext"),
        leaves_out=("_bzip2_streams",),
        file_name="dump.xml",
    ),
    Reader(
        name="wikipedia-bzip2",
        read=_read,
        seeds=lambda place: iter(list(_dumps(place))[1:]),
        modules=(f"{_FORMATS}.wikipedia",),
        file_name="dump.xml.bz2",
    ),
)

# Now: the first page imports the parser, whose bytecode Python writes, as a reader under watch may not.
extract_paragraphs(_MARKUP, frozenset())
