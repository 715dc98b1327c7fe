"""What a file is by its first bytes, whatever its name: formats that hold no plain text are refused with a way out.

Text in UTF-16 and UTF-32 is among them. Nothing is parsed here. Signatures: those of the formats' specifications, as
``file`` has them, too.
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from pathlib import Path

from bert_job.foreign_text import printable
from bert_trainer.errors import InputError

HEAD_BYTES = 512
"""Enough for every signature below."""


@dataclass(frozen=True, slots=True)
class Signature:
    """A format that is not read."""

    name: str
    magic: bytes
    remedy: str
    """``{path}`` stands for the file."""
    offset: int = 0


_PLAIN = "take its text out: pandoc --to plain --output text.txt {path}"
_UNTAR = "unpack it, and name the folder: mkdir text; tar -xf {path} -C text"
_RECODE = "convert it: iconv -f {0} -t UTF-8 {{path}} > text.txt"
_COLUMN = "write the column that holds the text as JSON Lines, for example with pandas: {0}.to_json('text.jsonl', "
_COLUMN += "orient='records', lines=True)"

_SIGNATURES = (
    Signature("a 7z archive", b"7z\xbc\xaf\x27\x1c", "unpack it, and name the folder: 7z x {path} -otext"),
    Signature("a RAR archive", b"Rar!\x1a\x07", "unpack it, and name the folder: unrar x {path} text/"),
    # With what ends the mark, of POSIX and of GNU: "ustar" alone may stand there in a text about customary things.
    Signature("a tar archive", b"ustar\x00", _UNTAR, 257),
    Signature("a tar archive", b"ustar  \x00", _UNTAR, 257),
    Signature("compressed by gzip twice, or by gzip inside", b"\x1f\x8b\x08", "decompress it once"),
    Signature("compressed by bzip2 inside", b"BZh91AY&SY", "decompress it once"),
    Signature("compressed by xz inside", b"\xfd7zXZ\x00", "decompress it once"),
    Signature("compressed by zstd inside", b"\x28\xb5\x2f\xfd", "decompress it once"),
    Signature("a zip archive inside another file", b"PK\x03\x04", "unpack it, and name the folder: unzip -d text FILE"),
    Signature("compressed by lz4", b"\x04\x22\x4d\x18", "decompress it: lz4 -d {path} text.txt"),
    Signature("compressed by lzip", b"LZIP\x01", "decompress it: lzip -dc {path} > text.txt"),
    Signature("compressed by lzma", b"\x5d\x00\x00", "decompress it: xz --format=lzma -dc {path} > text.txt"),
    Signature("compressed by compress", b"\x1f\x9d", "decompress it: gzip -dc {path} > text.txt"),
    Signature("compressed by snappy", b"\xff\x06\x00\x00sNaPpY", "decompress it: snzip -dc {path} > text.txt"),
    Signature("a PDF document", b"%PDF-", "take its text out: pdftotext {path} text.txt"),
    Signature("a PostScript document", b"%!PS-", "take its text out: ps2ascii {path} text.txt"),
    Signature("an RTF document", b"{\\rtf", _PLAIN),
    Signature("a Microsoft Office document", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "save it as text, or as .docx and "
              "take its text out with pandoc"),
    Signature("a Parquet file", b"PAR1\x15", _COLUMN.format("read_parquet('{path}')")),
    Signature("an Arrow file", b"ARROW1\x00\x00", _COLUMN.format("read_feather('{path}')")),
    Signature("an Arrow stream", b"\xff\xff\xff\xff", "write its text column as JSON Lines: with datasets, "
              "Dataset.from_file('{path}').to_json('text.jsonl')"),
    Signature("an Avro file", b"Obj\x01", "write its records as JSON Lines: avro-tools tojson {path} > text.jsonl"),
    Signature("an HDF5 file", b"\x89HDF\r\n\x1a\n", "are these shards that exist already? Name their folder as shards"),
    Signature("a SQLite database", b"SQLite format 3\x00", "write its text out: sqlite3 {path} 'SELECT ...' > a.txt"),
    Signature("a NumPy array", b"\x93NUMPY", "write its text as lines of a .txt file"),
    Signature("a PNG image", b"\x89PNG\r\n", "take it out of the text"),
    Signature("a JPEG image", b"\xff\xd8\xff", "take it out of the text"),
    Signature("a program", b"\x7fELF", "take it out of the text"),
    # UTF-32's mark begins with that of UTF-16.
    Signature("text in UTF-32", codecs.BOM_UTF32_LE, _RECODE.format("UTF-32")),
    Signature("text in UTF-32", codecs.BOM_UTF32_BE, _RECODE.format("UTF-32")),
    Signature("text in UTF-16", codecs.BOM_UTF16_LE, _RECODE.format("UTF-16")),
    Signature("text in UTF-16", codecs.BOM_UTF16_BE, _RECODE.format("UTF-16")),
)  # fmt: skip


def refuse_foreign(path: Path, head: bytes) -> None:
    """Refuse a file whose content is no text in UTF-8 by its beginning. head: up to ``HEAD_BYTES`` of the content.

    Raises:
        InputError: names the format and what to do.
    """
    found = next((it for it in _SIGNATURES if head.startswith(it.magic, it.offset)), None) or _unmarked_utf_16(head)
    if found is not None:
        raise InputError(
            f"{printable(path)}: got {found.name}, by its first bytes; allowed: text in UTF-8, also compressed with "
            "gzip, bzip2, xz or zstd, or in a zip archive",
            hint=found.remedy.format(path=printable(path)),
        )


def _unmarked_utf_16(head: bytes) -> Signature | None:
    """Tell UTF-16 without a mark, which would be read as text: every other byte of what is ASCII is zero."""
    even, odd = head[::2].count(0), head[1::2].count(0)
    most, least = max(even, odd), min(even, odd)
    if len(head) < 4 or least or most < len(head) // 4:
        return None
    return Signature("text in UTF-16", b"", _RECODE.format("UTF-16BE" if even else "UTF-16LE"))
