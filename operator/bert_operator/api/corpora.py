"""The part of the job that says which text a dataset is made from."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from bert_operator.api.section import FilePath, Section

LANGUAGE_PATTERN = r"^[a-z]{2,3}(-[A-Za-z]+)*$"
BUILTIN_TEXTS = ("builtin:python-docs",)


class CorpusSpec(Section):
    """Text of one origin: where it is and how it is read."""

    path: FilePath
    """A folder with files of known formats at any depth, one file, or ``builtin:python-docs``. Compressed files
    (gzip, bzip2, xz) are read as they are."""
    format: Literal["auto", "text", "wikipedia", "jsonLines", "mlperf"] = "auto"
    """``auto``: told by names and content. ``text``: plain text in UTF-8; ``wikipedia``: an XML dump
    (pages-articles, multistream or not); ``jsonLines``: one object per line; ``mlperf``: the folder results4 of the
    MLPerf benchmark, compared with its published MD5 sums before it is used, without its evaluation text."""
    weight: Annotated[float, Field(gt=0, le=1000)] = 1.0
    """Every document of this corpus is drawn dupeFactor x weight times. Of a number that is not whole, the fraction is
    the share of the documents that are drawn once more; their text and the seed decide which. Held-out documents are
    drawn once whatever the weight. Default: 1."""
    language: Annotated[str, Field(max_length=16, pattern=LANGUAGE_PATTERN)] = "en"
    """ISO 639 code: the rules by which sentences are split. Default: en."""
    lines: Literal["auto", "sentences", "paragraphs", "wrapped"] = "auto"
    """What a line of text holds: one sentence, which is kept as it is; whole sentences, which are split; or as much as
    its width allowed, so that lines of a paragraph are joined first. ``auto``: told by the first lines of each file; in
    JSON Lines, paragraphs."""
    documents: Literal["emptyLines", "files"] = "emptyLines"
    """What parts documents of plain text besides the ends of files. Default: emptyLines, as the published scripts have
    it; files for books, whose paragraphs are parted by empty lines."""
    text_field: Annotated[str, Field(min_length=1, max_length=256)] = "text"
    """The field of JSON Lines that holds the text, or a list of sentences. Default: text."""
    checksums: FilePath | None = None
    """For mlperf: the published list, bert_reference_results_text_md5.txt. Empty: looked for in the folder and beside
    it."""
