"""Articles of a Wikipedia XML dump: a stream of pages, cleaned by several processes, in the order of the dump.

One process reads. It cuts the XML at ``</page>``, which cannot occur inside a page's text (there ``<`` is escaped), and
hands some pages at a time to the others. Where the dump is Wikimedia's multistream file, they decompress, too: each of
its streams is whole pages. Redirects, pages of other namespaces (talk, templates, files) and pages that are no wikitext
are skipped. Format: https://www.mediawiki.org/xml/export-0.11.xsd
"""

from __future__ import annotations

import bz2
import logging
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bert_trainer.dataset.corpus.document import Document
from bert_trainer.dataset.corpus.formats.streams import compression_of, read_head, read_pieces
from bert_trainer.dataset.corpus.formats.wikitext import HOLE, BrokenMarkupError, CostlyMarkupError, extract_paragraphs
from bert_trainer.dataset.corpus.sentences import LongSentences, clean_line, long_sentences, split_sentences
from bert_trainer.dataset.workers.pool import run_in_order
from bert_trainer.errors import InputError

logger = logging.getLogger(__name__)

_PIECE_BYTES = 1 << 19
_MAX_PAGE_BYTES = 8 << 20
"""Of XML; larger pages are skipped. MediaWiki keeps their text below 2 MiB; escaped as XML it may be some times
that."""
_MAX_BYTES = 64 << 20
"""Of XML without the end of a page, or from one stream of a multistream dump, which holds a hundred pages: what a file
that is no dump, or a bzip2 bomb, can take of memory."""
_GROUP_BYTES = 1 << 19
"""Of pages that are parsed together."""
_HEADER_BYTES = 1 << 20
_STREAMS_BYTES = 8 << 20
"""Enough for the first two streams of a multistream dump: the header, and a hundred pages."""
_PAGE = b"<page>"
_PAGE_END = b"</page>"
_END = b"</mediawiki>"
_TITLE = re.compile(rb"<title>([^<]{1,255})")
# With the mark of a stream's first block (the digits of pi): BZh and a digit also occur inside compressed data.
_STREAM_START = re.compile(rb"BZh[1-9]\x31\x41\x59\x26\x53\x59")
_NAMESPACE = re.compile(r'<namespace key="(-?\d+)"[^>]*?>([^<]*)</namespace>')
_FILES_AND_CATEGORIES = ("6", "14")
_ENGLISH_NAMES = ("category", "file", "image", "media")
"""Every wiki understands these beside its own names."""
_TOO_LARGE = "pages above 8 MiB"
_COSTLY = "pages with too much markup"
_BROKEN = "pages whose markup cannot be parsed"
SENTENCES_WITH_HOLES = "sentences with a template that is not known"
_WARNED_OF = frozenset({_COSTLY, _BROKEN})
_SHOWN_TITLE = 255


@dataclass(frozen=True, slots=True)
class DumpPart:
    """Some pages of a dump: the task of a worker."""

    path: Path
    offset: int
    """Of the first byte, for messages: in the file where it is compressed, in its content otherwise."""
    content: bytes
    """Whole ``<page>`` elements, or one bzip2 stream of such."""
    compressed: bool
    dropped_namespaces: frozenset[str]
    language: str


@dataclass(frozen=True, slots=True)
class Articles:
    """What a worker made of its pages."""

    texts: tuple[tuple[str, str], ...]
    """Name and sentences, in lines, of each document: as one text they take a tenth of the memory."""
    skipped: Counter[str]
    """Pages by the reason why they are no documents, sentences that were dropped, and templates that were rendered."""
    warnings: tuple[str, ...]
    """A warning for each page that a reader would miss."""
    long_sentences: LongSentences
    """Those of these pages that were split again: the worker's own count dies with it."""


def read_wikipedia(
    path: Path, *, language: str, num_processes: int, check: Callable[[], None], skipped: Counter[str]
) -> Iterator[Document]:
    """Yield the articles of a dump, in its order.

    skipped: counts the skipped pages by reason, beside them dropped sentences (``SENTENCES_WITH_HOLES``) and rendered
    templates (``wikitext.RENDERED``).

    Memory: per process a few hundred pages at a time.

    Raises:
        InputError: the file is no dump, is cut off, or its compressed data or its XML is damaged.
    """
    parts = _parts(path, language)
    for articles in run_in_order(extract_articles, parts, num_processes=num_processes, check=check):
        skipped.update(articles.skipped)
        long_sentences.add(articles.long_sentences)
        for warning in articles.warnings:
            logger.warning("%s: skipped %s", path, warning)
        for name, text in articles.texts:
            yield Document(name, tuple(text.split("\n")))


def extract_articles(part: DumpPart) -> Articles:
    """Clean some pages and split their text into sentences.

    Raises:
        InputError: damaged data.
    """
    content = _decompress(part) if part.compressed else part.content
    texts: list[tuple[str, str]] = []
    skipped: Counter[str] = Counter()
    warnings: list[str] = []
    long = LongSentences()
    for group in _groups(content):
        if len(group) > _MAX_PAGE_BYTES:
            title = _TITLE.search(group)
            shown = title[1].decode(errors="replace") if title else "?"
            skipped[_TOO_LARGE] += 1
            warnings.append(f"the page {shown!r}, one of the {_TOO_LARGE}")
            continue
        for page in _parse_pages(group, part):
            reason = _reason_to_skip(page)
            if reason is None:
                text, reason = _text_of(page, part, long, skipped)
                texts += [text] if text else []
            if reason is not None:
                skipped[reason] += 1
            if reason in _WARNED_OF:
                warnings.append(f"the page {page.findtext('title', '?')[:_SHOWN_TITLE]!r}, one of the {reason}")
    return Articles(tuple(texts), skipped, tuple(warnings), long)


def _groups(content: bytes) -> Iterator[bytes]:
    """Cut whole pages into groups small enough to be parsed; a page that is too large is a group of its own."""
    start = end = 0
    while (found := content.find(_PAGE_END, end)) >= 0:
        found += len(_PAGE_END)
        if end > start and found - start > _GROUP_BYTES:
            yield content[start:end]
            start = end
        end = found
    yield content[start:]


def _reason_to_skip(page: ElementTree.Element) -> str | None:
    if page.findtext("ns", "0").strip() != "0":
        return "pages of other namespaces"
    if page.find("redirect") is not None:
        return "redirects"
    if page.findtext("revision/model", "wikitext") != "wikitext":
        return "pages without wikitext"
    return None


def _parse_pages(content: bytes, part: DumpPart) -> ElementTree.Element:
    try:
        # Safe for a hostile dump: entities can be defined in a DOCTYPE only, which may not stand inside an element.
        return ElementTree.fromstring(b"<pages>" + content + b"</pages>")
    except ElementTree.ParseError as error:
        raise InputError(
            f"{part.path}: not well-formed XML near byte offset {part.offset} ({error})",
            hint="transfer it again and compare its checksum with the published one",
        ) from error


def _text_of(
    page: ElementTree.Element, part: DumpPart, long: LongSentences, skipped: Counter[str]
) -> tuple[tuple[str, str] | None, str | None]:
    """Return the name and the sentences of an article, or why it is none.

    long: counts those that were too long. skipped: those that miss what a template showed, and templates rendered.
    """
    counts: Counter[str] = Counter()
    wikitext = page.findtext("revision/text") or ""
    try:
        paragraphs = extract_paragraphs(wikitext, part.dropped_namespaces, counts)
    except CostlyMarkupError:
        return None, _COSTLY
    except (BrokenMarkupError, RecursionError):  # the second from nodes nested deeper than Python's stack
        return None, _BROKEN
    found = [
        sentence
        for text in paragraphs
        for sentence in split_sentences(clean_line(text), part.language, long)
        if sentence
    ]
    sentences = [sentence for sentence in found if HOLE not in sentence]
    if len(sentences) < len(found):
        skipped[SENTENCES_WITH_HOLES] += len(found) - len(sentences)
    if not sentences:
        return None, "articles without prose"
    skipped += counts
    return (f"{part.path}#{page.findtext('title', '?')}", "\n".join(sentences)), None


def _parts(path: Path, language: str) -> Iterator[DumpPart]:
    header = read_head(path, _HEADER_BYTES).partition(_PAGE)[0]
    if b"<mediawiki" not in header:
        raise InputError(
            f"{path}: not a MediaWiki dump: no <mediawiki> element at its beginning",
            hint="allowed: the files *-pages-articles*.xml or .xml.bz2 of dumps.wikimedia.org",
        )
    dropped = _dropped_namespaces(header.decode(errors="replace"))
    if _is_multistream(path):
        for offset, stream in _bzip2_streams(path):
            yield DumpPart(path, offset, stream, True, dropped, language)
    else:
        for offset, pages in _whole_pages(path):
            yield DumpPart(path, offset, pages, False, dropped, language)


def _dropped_namespaces(header: str) -> frozenset[str]:
    """Return the lower-cased names, in the wiki's language and in English, of files and categories."""
    own = (name for key, name in _NAMESPACE.findall(header) if key in _FILES_AND_CATEGORIES)
    return frozenset((*(name.strip().lower() for name in own), *_ENGLISH_NAMES))


def _whole_pages(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield runs of whole pages, and where in the content each begins."""
    waiting = bytearray()
    offset = 0
    for piece in read_pieces(path, _PIECE_BYTES):
        # An end of a page may lie across two pieces.
        search_from = max(0, len(waiting) - len(_PAGE_END))
        waiting += piece
        last = waiting.rfind(_PAGE_END, search_from)
        if last >= 0:
            last += len(_PAGE_END)
            first = waiting.find(_PAGE)
            if 0 <= first < last:
                yield offset + first, bytes(waiting[first:last])
            del waiting[:last]
            offset += last
        elif len(waiting) > _MAX_BYTES:
            raise InputError(
                f"{path}: no end of a page within {_MAX_BYTES >> 20} MiB from byte offset {offset}",
                hint="is it a MediaWiki dump of pages?",
            )
    if _END not in waiting:
        raise InputError(
            f"{path}: the dump is cut off after {offset + len(waiting)} bytes of XML: no </mediawiki> at its end",
            hint="transfer it again, to its end",
        )


def _is_multistream(path: Path) -> bool:
    """Return whether a file is many bzip2 streams that are cut between pages, the first of them before all pages.

    Parallel compressors (pbzip2, lbzip2) write many streams, too, but cut anywhere.
    """
    if compression_of(path) != "bzip2":
        return False
    with path.open("rb") as file:
        head = file.read(_STREAMS_BYTES)
    first, second = bz2.BZ2Decompressor(), bz2.BZ2Decompressor()
    try:
        header = first.decompress(head, _HEADER_BYTES)
        rest = first.unused_data if first.eof else b""
        pages = second.decompress(rest, _MAX_BYTES).strip() if rest else b""
    except OSError:
        return False
    ends = pages.endswith((_PAGE_END, _END)) or not second.eof
    return header.rstrip().endswith(b"</siteinfo>") and pages.startswith(_PAGE) and ends


def _bzip2_streams(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the streams of a file, compressed as they are, without the first; and where each begins."""
    waiting = b""
    offset = 0
    with path.open("rb") as file:
        while True:
            piece = file.read(_PIECE_BYTES)
            # The ten bytes that begin a stream may lie across two pieces.
            search_from = max(1, len(waiting) - 9)
            waiting += piece
            while begin := _STREAM_START.search(waiting, search_from):
                if offset:
                    yield offset, waiting[: begin.start()]
                waiting, offset = waiting[begin.start() :], offset + begin.start()
                search_from = 1
            if not piece:
                break
            if len(waiting) > _MAX_BYTES:
                size = f"{_MAX_BYTES >> 20} MiB"
                raise InputError(f"{path}: no end of a bzip2 stream within {size} from byte offset {offset}")
    last = _decompress(DumpPart(path, offset, waiting, True, frozenset(), ""), whole=False)
    if not last.rstrip().endswith(_END):
        raise InputError(
            f"{path}: the dump is cut off after {offset + len(waiting)} bytes: no </mediawiki> at its end",
            hint="transfer it again, to its end",
        )
    if _PAGE_END in last:
        yield offset, waiting


def _decompress(part: DumpPart, *, whole: bool = True) -> bytes:
    """Return the pages of one bzip2 stream. whole: refuse one that does not end."""
    decompressor = bz2.BZ2Decompressor()
    try:
        # Bounded: bzip2 packs 45 MB of zeros into 50 bytes.
        content = decompressor.decompress(part.content, _MAX_BYTES)
    except OSError as error:
        raise InputError(
            f"{part.path}: the compressed data is damaged in the stream at byte offset {part.offset} ({error})",
            hint="transfer it again and compare its checksum with the published one",
        ) from error
    if not decompressor.eof and len(content) == _MAX_BYTES:
        raise InputError(
            f"{part.path}: the bzip2 stream at byte offset {part.offset} holds more than {_MAX_BYTES >> 20} MiB; "
            "allowed: some hundred pages in a stream",
            hint=f"compress it as one stream: bzcat {part.path} | bzip2 > pages.xml.bz2",
        )
    if whole and not decompressor.eof:
        raise InputError(
            f"{part.path}: the bzip2 stream at byte offset {part.offset} is cut off",
            hint="transfer it again, to its end",
        )
    return content.replace(_END, b"") if whole else content
