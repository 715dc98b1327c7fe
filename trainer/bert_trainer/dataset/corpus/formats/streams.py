"""Content of files that may be compressed, and the errors for those that are damaged.

Compression is recognized by the first bytes, not by the name. Memory: one piece, or one line, at a time, however much a
small file may decompress to: every read has a bound.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal, cast

from bert_trainer.errors import InputError

Compression = Literal["none", "gzip", "bzip2", "xz"]

LONGEST_LINE_BYTES = 8 << 20
"""Of a line that has to be read whole, as JSON has. Parsed, it takes up to thirty times that in memory."""
LONGEST_PIECE_BYTES = 2 << 20
"""Of other lines: longer ones are cut. Words and shingles of a line take fifty times that in memory."""
_XZ_MEMORY_BYTES = 128 << 20
"""``xz -9`` makes files that take 65 MiB to read; a hostile header may ask for 4 GiB."""

_MAGIC: tuple[tuple[bytes, Compression], ...] = ((b"\x1f\x8b", "gzip"), (b"BZh", "bzip2"), (b"\xfd7zXZ\x00", "xz"))
# All of them read several streams on end, as parallel compressors and cat make them.
_OPEN: dict[Compression, Callable[..., object]] = {
    "none": open,
    "gzip": gzip.open,
    "bzip2": bz2.open,
    "xz": lambda path, _: io.BufferedReader(_XzReader(path)),
}
_OTHER_ENCODINGS = (
    (codecs.BOM_UTF32_LE, "UTF-32LE"),
    (codecs.BOM_UTF32_BE, "UTF-32BE"),
    (codecs.BOM_UTF16_LE, "UTF-16LE"),
    (codecs.BOM_UTF16_BE, "UTF-16BE"),
)


def compression_of(path: Path) -> Compression:
    """Return how a file is compressed, by its first bytes.

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

    Errors of reading, also those inside the ``with`` statement, become an InputError that names the file and how
    much of the content came before.
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


def read_lines(path: Path, skipped: Callable[[int], None] | None = None) -> Iterator[tuple[int, str]]:
    """Yield each line of UTF-8 text, without its end, and the number of its first byte in the content.

    A byte order mark at the beginning is skipped.

    Args:
        path: The file.
        skipped: None: a line above 2 MiB comes as several lines, cut at spaces. Otherwise a line above 8 MiB comes as
            an empty one, and this is called with the number of its first byte.

    Raises:
        InputError: as ``read_pieces``; a line is not UTF-8.
    """
    offset = 0
    rest = b""
    longest = LONGEST_PIECE_BYTES if skipped is None else LONGEST_LINE_BYTES
    with open_content(path) as stream:
        # A file without line breaks must not be read into memory: readline stops at the bound.
        while raw := rest + stream.readline(longest - len(rest)):
            rest = b""
            if len(raw) == longest and not raw.endswith(b"\n"):
                if skipped is not None:
                    skipped(offset)
                    yield offset, ""
                    offset += len(raw) + _skip_line(stream)
                    continue
                end = raw.rfind(b" ") + 1 or _end_of_characters(raw)
                raw, rest = raw[:end], raw[end:]
            if offset == 0:
                _refuse_other_encodings(raw, path)
            content = raw.removeprefix(codecs.BOM_UTF8) if offset == 0 else raw
            yield offset, decode(content, path, offset + len(raw) - len(content)).rstrip("\r\n")
            offset += len(raw)


def _skip_line(stream: IO[bytes]) -> int:
    """Read what is left of a line and return how many bytes that were."""
    skipped = 0
    while piece := stream.readline(LONGEST_LINE_BYTES):
        skipped += len(piece)
        if piece.endswith(b"\n"):
            break
    return skipped


def _end_of_characters(raw: bytes) -> int:
    """Return how many of the bytes are whole characters; all of them where they are no UTF-8."""
    # UTF-8: a character begins with a byte from 0xC0 on, or is one byte below 0x80; up to three others follow.
    for length in range(1, 4):
        if raw[-length] >= 0xC0:
            return len(raw) - length
        if raw[-length] < 0x80:
            break
    return len(raw)


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


class _XzReader(io.RawIOBase):
    """``lzma.open`` with a bound for the memory that a file's header may ask for; that function has no such option."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("rb")
        self._decompressor: lzma.LZMADecompressor | None = None
        self._position = 0

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def close(self) -> None:
        self._file.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        while True:
            pending = b""
            if self._decompressor is not None and self._decompressor.eof:
                # Streams follow one another; zeros fill up to four bytes between them.
                pending = self._decompressor.unused_data.lstrip(b"\0")
                self._decompressor = None
            if self._decompressor is None or self._decompressor.needs_input:
                pending = pending or self._file.read(io.DEFAULT_BUFFER_SIZE)
                if not pending and self._decompressor is None:
                    return 0
                if not pending:
                    raise EOFError  # in the middle of a stream, as gzip and bz2 report it
            if self._decompressor is None:
                pending = pending.lstrip(b"\0")
                if not pending:
                    continue
                self._decompressor = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY_BYTES)
            try:
                # The second argument bounds what a few bytes of input may grow to; the rest stays in the decompressor.
                found = self._decompressor.decompress(pending, len(buffer))
            except lzma.LZMAError as error:
                if "limit" not in str(error):  # liblzma's "Memory usage limit was exceeded" has no type of its own
                    raise
                raise InputError(
                    f"{self._path}: takes more than {_XZ_MEMORY_BYTES >> 20} MiB of memory to decompress",
                    hint=f"compress it again: xz -dc {self._path} | xz > again.xz",
                ) from error
            if found:
                buffer[: len(found)] = found
                self._position += len(found)
                return len(found)


class _Position:
    """The position of a stream, for a message; known only once it is open."""

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
