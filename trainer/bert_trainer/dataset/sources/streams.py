"""Bytes out of files that may be compressed, and the messages for files that are damaged.

Compression is told by the first bytes, not by the name. Memory: one piece, or one line, at a time.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Literal, cast

from bert_trainer.errors import InputError

Compression = Literal["none", "gzip", "bzip2", "xz"]

LONGEST_LINE_BYTES = 64 << 20
"""A longer line is no text: it would have to be held in memory as one sentence or paragraph."""

_MAGIC: tuple[tuple[bytes, Compression], ...] = ((b"\x1f\x8b", "gzip"), (b"BZh", "bzip2"), (b"\xfd7zXZ\x00", "xz"))
_OPEN: dict[Compression, Callable[..., object]] = {
    "none": open,
    "gzip": gzip.open,
    "bzip2": bz2.open,
    "xz": lzma.open,
}
_OTHER_ENCODINGS = (
    (codecs.BOM_UTF32_LE, "UTF-32LE"),
    (codecs.BOM_UTF32_BE, "UTF-32BE"),
    (codecs.BOM_UTF16_LE, "UTF-16LE"),
    (codecs.BOM_UTF16_BE, "UTF-16BE"),
)


def compression_of(path: Path) -> Compression:
    """Tell how a file is compressed by its first bytes.

    Raises:
        InputError: the file cannot be read.
    """
    with _errors_named(path, _Position()), path.open("rb") as file:
        head = file.read(6)
    return next((kind for magic, kind in _MAGIC if head.startswith(magic)), "none")


def read_head(path: Path, num_bytes: int) -> bytes:
    """Return the first bytes of a file's content, decompressed; errors as ``read_pieces``."""
    with open_content(path) as stream:
        return stream.read(num_bytes)


@contextmanager
def open_content(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for reading what it holds, decompressed.

    Errors of reading, inside the ``with`` statement, too, become an InputError that names the file and how
    much of the content was read before it.
    """
    position = _Position()
    compression = compression_of(path)
    with _errors_named(path, position), cast(IO[bytes], _OPEN[compression](path, "rb")) as stream:
        position.stream = stream
        yield stream


def read_pieces(path: Path, piece_bytes: int) -> Iterator[bytes]:
    """Yield the content of a file, decompressed, in pieces of at most so many bytes.

    Raises:
        InputError: the file cannot be read, or its compressed data is damaged or cut off.
    """
    with open_content(path) as stream:
        while piece := stream.read(piece_bytes):
            yield piece


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield each line of UTF-8 text, without its end, and the number of its first byte in the content.

    A byte order mark at the beginning is left out.

    Raises:
        InputError: as ``read_pieces``; a line is not UTF-8 or above 64 MiB.
    """
    offset = 0
    with open_content(path) as stream:
        while raw := stream.readline(LONGEST_LINE_BYTES + 1):
            if len(raw) > LONGEST_LINE_BYTES:
                raise InputError(
                    f"{path}: the line at byte offset {offset} is longer than {LONGEST_LINE_BYTES >> 20} MiB; "
                    "allowed: text in lines",
                    hint="is it a text file? Break its text into lines or sentences",
                )
            if offset == 0:
                _refuse_other_encodings(raw, path)
            content = raw.removeprefix(codecs.BOM_UTF8) if offset == 0 else raw
            yield offset, decode(content, path, offset + len(raw) - len(content)).rstrip("\r\n")
            offset += len(raw)


def decode(raw: bytes, path: Path, offset: int) -> str:
    """Return the text of some bytes of a file's content. offset: of the first of them.

    Raises:
        InputError: they are not UTF-8; names the file and the byte.
    """
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: not UTF-8 at byte offset {offset + error.start} (byte 0x{raw[error.start]:02x})",
            hint=f"convert it, for example: iconv -f LATIN1 -t UTF-8 {path}",
        ) from error


def _refuse_other_encodings(raw: bytes, path: Path) -> None:
    for mark, name in _OTHER_ENCODINGS:
        if raw.startswith(mark):
            raise InputError(
                f"{path}: begins with the byte order mark of {name}; allowed: UTF-8",
                hint=f"convert it: iconv -f {name} -t UTF-8 {path}",
            )


class _Position:
    """Where a stream is, for a message; known only once it is open."""

    stream: IO[bytes] | None = None

    def describe(self) -> str:
        try:
            return f" after {self.stream.tell()} bytes of content" if self.stream is not None else ""
        except (OSError, ValueError, EOFError):
            return ""


@contextmanager
def _errors_named(path: Path, position: _Position) -> Iterator[None]:
    try:
        yield
    except EOFError as error:
        raise InputError(
            f"{path}: the compressed file is cut off{position.describe()}", hint="transfer it again, to its end"
        ) from error
    except (gzip.BadGzipFile, zlib.error, lzma.LZMAError) as error:
        raise _damaged(path, position, error) from error
    except OSError as error:
        # bz2 reports damage as an OSError without a number.
        if error.errno is None:
            raise _damaged(path, position, error) from error
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error


def _damaged(path: Path, position: _Position, error: Exception) -> InputError:
    return InputError(
        f"{path}: the compressed data is damaged{position.describe()} ({error})",
        hint="transfer it again and compare its checksum with the published one",
    )
