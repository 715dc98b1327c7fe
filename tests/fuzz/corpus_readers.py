"""Text of each format, plain and compressed."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import zipfile
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from bert_trainer.dataset.corpus.corpora import open_corpus
from bert_trainer.dataset.corpus.formats.streams import zstd
from bert_trainer.dataset.corpus.formats.wikitext import extract_paragraphs
from fuzz_reader import Reader
from mutations import each_changed, mutate_json
from small_dumps import END, HEADER, dump, multistream, page

_TEXT = "First sentence here. A second one!\n\nAnother document; with words. Über alles.\n".encode()
_MARKUP = (
    "== Title ==\nSome '''bold''' [[link|text]] and {{template|a=1}} more words <ref>x</ref>.\n\n"
    "{| class=a\n|-\n| cell\n|}\n* item one\n[[File:a.png|thumb]] [http://a.b c] &amp; <!-- no --> end of it here."
)


def _read(path: Path) -> object:
    return deque(open_corpus(str(path)).documents(), maxlen=0)


def _compressed(squeeze: Callable[[bytes], bytes]) -> Callable[[Path], Iterator[bytes]]:
    def seeds(_: Path) -> Iterator[bytes]:
        whole = squeeze(_TEXT)
        yield from (whole, squeeze(b""), whole * 2, whole + b"\0" * 8, whole + b"x", whole[:-9], whole[:20])
        yield from (whole[: len(whole) // 2] + b"\xff" + whole[len(whole) // 2 + 1 :], whole[:-5] + b"\0" * 5)
        yield from map(
            squeeze, ("ü".encode("latin-1"), b"\xef\xbb\xbfText.", "Text.".encode("utf-16"), b"a\tb\tc\n" * 20)
        )
        if squeeze is gzip.compress:
            # A few bytes, and a line longer than is read at once, which is cut between two characters. It is refused as
            # a table then: to split such a line into sentences would take most of the time.
            yield squeeze(b"a\tb\n" * 40 + "ü".encode() * (5 << 18))

    return seeds


_MARKED_UP = (
    _MARKUP,
    "{{convert|1|km}} {{lang|de|Wort}} {{lang-fr|mot}} {{formatnum:1000}} {{spaced ndash}} {{nowrap|a b}} {{snd}}.",
    "<nowiki>[[a]]</nowiki> <ref name=x/> <math>x</math> <poem>Lines</poem> <ref>never <br> <li>item <!-- never",
    "[[Datei:a.png|thumb|b]] [[:Category:A]] [[de:Wort]] [[Category:B]] [[a|]] [[a#b|c]] &#x110000; &bogus; &lt;",
    "{|\n|-\n{|\n| inner\n|}\n| outer\n|}\nText after.\n{|\n| never ends\n== Next ==\nMore text; and (, ) more ( ).",
    "# a\n* b\n; c\n: d\n----\n__NOTOC__ ''bold'' {{{argument|x}}} [//a.b c] [https://a.b] https://c.d It ends so:",
    "[[" * 150,
    "{{a|" * 90 + "[[b|" * 90 + "c|" * 1500,
    "=" + "a=" * 300,
    "{{a|" * 60 + "x" + "}}" * 60 + "&a " * 900,
)
"""Pages that show what each kind of markup becomes, and some that are refused."""
_STREAMS = "bert_trainer.dataset.corpus.formats.streams"
_FORMATS = "bert_trainer.dataset.corpus.formats"
_OF_OTHERS = ("read_head", "read_pieces", "_skip_line", "content_bytes")
_OF_RAW = ("readable", "tell", "close", "readinto", "__init__", "_stream")
_OF_STREAMS = {
    "gz": (*_OF_RAW, "_new_xz", "_new_zstd"),
    "bz2": (*_OF_RAW, "_new_xz", "_new_zstd"),
    "xz": ("_new_zstd",),
    "zst": ("_new_xz",),
}
"""Of each way of compression, what only others enter."""


def _zip_archives(_: Path) -> Iterator[bytes]:
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2):
        for names in (("a.txt", "b/c.txt", ".d", "e/"), ("a.txt",), ("../a.txt",), ("mimetype",), ()):
            file = io.BytesIO()
            with zipfile.ZipFile(file, "w", method) as archive:
                for name in names:
                    archive.writestr(zipfile.ZipInfo(name), _TEXT, method)
            yield file.getvalue()
    yield file.getvalue()[:-9]


def _json_lines(_: Path) -> Iterator[bytes]:
    line = {"text": "First sentence here. A second one!", "other": 1}
    yield json.dumps(line).encode() + b'\n{"text": ["a b", "c d", ""]}\n\n{"text": null}\n'
    yield from each_changed(line, {"text": ..., "text ": 1})
    yield from (
        b"[1]\n",
        b"{\n",
        b"[" * 5000,
        b'{"text": [1]}\n',
        b'{"\x1b": 1}\n',
        b'{"text": "\\ud800\\n\\u2028 b"}\n',
    )
    yield gzip.compress(b'{"text": "%b"}\n{"text": "b"}\n' % (b"a" * (9 << 20)), mtime=0)


def _wikitext(_: Path) -> Iterator[bytes]:
    for text in _MARKED_UP:
        yield dump(page("One", text), page("Two", "words", redirect=True))
    plain = page("One", _MARKUP)
    yield dump(plain, page("A", "x", namespace=1), page("B", "{}", model="json"), page("C", ""), page("D", _MARKUP))
    yield from (
        dump(plain)[:-20],
        dump(plain)[:700],
        b"",
        b"<mediawiki>",
        dump(plain).replace(b"</title>", b"</titel>"),
    )
    yield dump(plain).replace(b"<text", b"&#0;<text")


def _multistreams(_: Path) -> Iterator[bytes]:
    one, two = page("One", _MARKUP), page("Two", "plain text of some words here", redirect=True)
    whole = multistream([one, two], [page("A:b", "x", namespace=1)], [one])
    streams = [bz2.compress(part) for part in (HEADER.encode(), one.encode(), END.encode())]
    yield from (whole, bz2.compress(dump(one)), b"".join(streams), b"".join(streams[:2]), whole[:-30])
    yield streams[0] + streams[1][:-20] + streams[2]
    yield streams[0] + streams[1][:60] + b"\xff" * 9 + streams[1][69:] + streams[2]
    yield streams[0] + bz2.compress((one + END).encode())
    yield streams[0] + bz2.compress(b"not a page") + streams[2]
    yield bz2.compress(b"no dump")


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
            seeds=_compressed(squeeze),
            modules=(_STREAMS,),
            leaves_out=(*_OF_OTHERS, *_OF_STREAMS[ending]),
            file_name=f"text.txt.{ending}",
        )
        for ending, squeeze in (
            ("gz", gzip.compress),
            ("bz2", bz2.compress),
            ("xz", lzma.compress),
            ("zst", zstd.compress),
        )
    ),
    Reader(
        name="zip",
        read=_read,
        seeds=_zip_archives,
        modules=(f"{_FORMATS}.zip_archives",),
        file_name="text.zip",
    ),
    Reader(
        name="json-lines",
        read=_read,
        seeds=_json_lines,
        modules=(f"{_FORMATS}.json_lines",),
        mutate=mutate_json,
        file_name="text.jsonl",
    ),
    Reader(
        name="wikipedia",
        read=_read,
        seeds=_wikitext,
        modules=(f"{_FORMATS}.wikipedia", f"{_FORMATS}.wikitext"),
        leaves_out=("_bzip2_streams", "_decompress"),
        file_name="dump.xml",
    ),
    Reader(
        name="wikipedia-bzip2",
        read=_read,
        seeds=_multistreams,
        modules=(f"{_FORMATS}.wikipedia",),
        file_name="dump.xml.bz2",
    ),
)

# Now: the first page imports the parser, whose bytecode Python writes, as a reader under watch may not.
extract_paragraphs(_MARKUP, frozenset())
