"""Content of files that may be compressed or lie in zip archives, and the errors for those that are damaged.

Compression is recognized by the first bytes, not by the name, and so is what holds no text (``signatures``). Memory:
one piece, or one line, at a time, however much a small file may decompress to: every read has a bound.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, Literal, Protocol, cast

from bert_trainer.dataset.corpus.formats.signatures import HEAD_BYTES, refuse_foreign
from bert_trainer.dataset.corpus.formats.zip_archives import find_archive, member_bytes, open_member
from bert_trainer.errors import InputError
from bert_trainer.system.files import unreadable

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

Compression = Literal["none", "gzip", "bzip2", "xz", "zstd"]

MAX_LINE_BYTES = 8 << 20
"""Of a line that has to be read whole, as JSON has. Parsed, it takes up to thirty times that in memory."""
MAX_PIECE_BYTES = 2 << 20
"""Of other lines: longer ones are cut. Words and shingles of a line take fifty times that in memory."""
_DECOMPRESSION_BYTES = 128 << 20
"""``xz -9`` makes files that take 65 MiB to read, ``zstd --ultra -22`` 128 MiB; a hostile header may ask for 4 GiB."""


class _Decompressor(Protocol):
    """Of lzma and zstd."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, /, max_length: int = -1) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Method:
    """A way in which files are compressed."""

    magic: tuple[bytes, ...]
    """First bytes."""
    suffix: str
    expansion: float
    """Estimate: bytes of text for one of the compressed file; of the English Wikipedia's dump by bzip2 it is 4.2."""
    open: Callable[[IO[bytes], Path], object]
    """Of a file that is open; the path is for messages. Each reads several streams on end, as parallel compressors and
    cat make them."""


_BZIP2_MAGIC = tuple(b"BZh%d%b" % (level, begin) for level in range(1, 10) for begin in (b"1AY&SY", b"\x17rE8P\x90"))
"""With the mark of the first block, or of an end without any (the digits of pi, and of its root)."""
_MAGIC_BYTES = 10


def _new_xz() -> _Decompressor:
    return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_DECOMPRESSION_BYTES)


def _new_zstd() -> _Decompressor:
    # 2 ** 27 bytes, the window that zstd itself allows without a word.
    return zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: 27})


METHODS: Mapping[Compression, Method] = MappingProxyType(
    {
        "gzip": Method((b"\x1f\x8b",), ".gz", 3.0, lambda file, _: gzip.GzipFile(fileobj=file)),
        "bzip2": Method(_BZIP2_MAGIC, ".bz2", 4.3, lambda file, _: bz2.BZ2File(file)),
        "xz": Method((b"\xfd7zXZ\x00",), ".xz", 4.5, lambda file, path: _stream(file, path, _new_xz)),
        # The second begins a frame without content, as pzstd writes them.
        "zstd": Method(
            (b"\x28\xb5\x2f\xfd", b"\x50\x2a\x4d\x18"), ".zst", 3.5, lambda file, path: _stream(file, path, _new_zstd)
        ),
    }
)
"""All that are read; plain files have none of them."""


def compression_of(path: Path) -> Compression:
    """Return how a file is compressed, by its first bytes.

    Raises:
        InputError: the file cannot be read.
    """
    with _errors_named(path, _Position()), _open_file(path) as file:
        head = file.read(_MAGIC_BYTES)
    return next((kind for kind, method in METHODS.items() if head.startswith(method.magic)), "none")


def content_bytes(path: Path) -> int:
    """Return about how many bytes a file holds, decompressed; errors as ``compression_of``, and OSError."""
    archive = find_archive(path)
    size = path.stat().st_size if archive is None else member_bytes(*archive)
    compression = compression_of(path)
    return size if compression == "none" else int(size * METHODS[compression].expansion)


def size_and_time(path: Path) -> tuple[int, int]:
    """Return the size of a file as it lies there and its time, in nanoseconds since 1970; a member's is the archive's.

    Raises:
        OSError: there is no such file.
    """
    archive = find_archive(path)
    status = (path if archive is None else archive[0]).stat()
    return (status.st_size if archive is None else member_bytes(*archive)), status.st_mtime_ns


def _open_file(path: Path) -> IO[bytes]:
    archive = find_archive(path)
    return path.open("rb") if archive is None else open_member(*archive)


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
    with _errors_named(path, position), _open_file(path) as file:
        opened = file if compression == "none" else METHODS[compression].open(file, path)
        with cast(io.BufferedReader, opened) as stream:
            position.stream = stream
            refuse_foreign(path, stream.peek(HEAD_BYTES)[:HEAD_BYTES])
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
    longest = MAX_PIECE_BYTES if skipped is None else MAX_LINE_BYTES
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
            content = raw.removeprefix(codecs.BOM_UTF8) if offset == 0 else raw
            yield offset, decode(content, path, offset + len(raw) - len(content)).rstrip("\r\n")
            offset += len(raw)


def _skip_line(stream: IO[bytes]) -> int:
    """Read what is left of a line and return how many bytes that were."""
    skipped = 0
    while piece := stream.readline(MAX_LINE_BYTES):
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
            hint=f"convert it, for example: iconv -f LATIN1 -t UTF-8 {path}"
            if b"\0" not in raw
            else "is it text at all? It holds bytes of zero",
        ) from error


def _stream(file: IO[bytes], path: Path, new: Callable[[], _Decompressor]) -> io.BufferedReader:
    return io.BufferedReader(_Decompressed(file, path, new))


class _Decompressed(io.RawIOBase):
    """Streams that follow one another, with a bound for the memory that a header may ask for.

    ``lzma.open`` and ``zstd.open`` have no such option, or none for the size of a read.
    """

    def __init__(self, file: IO[bytes], path: Path, new: Callable[[], _Decompressor]) -> None:
        self._path = path
        self._file = file
        self._new = new
        self._decompressor: _Decompressor | None = None
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
                self._decompressor = self._new()
            try:
                # The second argument bounds what a few bytes of input may grow to; the rest stays in the decompressor.
                found = self._decompressor.decompress(pending, len(buffer))
            except (lzma.LZMAError, zstd.ZstdError) as error:
                # liblzma's "Memory usage limit was exceeded" and zstd's "Frame requires too much memory for decoding"
                # have no types of their own.
                if "limit" not in str(error) and "too much memory" not in str(error):
                    raise
                again = (
                    "xz -dc {0} | xz > {0}.xz" if isinstance(error, lzma.LZMAError) else "zstd --long=31 -dc {0} | zstd"
                )
                raise InputError(
                    f"{self._path}: takes more than {_DECOMPRESSION_BYTES >> 20} MiB of memory to decompress",
                    hint=f"compress it again: {again.format(self._path)}",
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
    except (gzip.BadGzipFile, zipfile.BadZipFile, zlib.error, lzma.LZMAError, zstd.ZstdError) as error:
        raise _damaged(path, position, error) from error
    except OSError as error:
        # bz2 reports damage as an OSError without a number.
        if error.errno is None:
            raise _damaged(path, position, error) from error
        raise unreadable(path, error) from error


def _damaged(path: Path, position: _Position, error: Exception) -> InputError:
    return InputError(
        f"{path}: the compressed data is damaged{position.describe()} ({error})",
        hint="transfer it again and compare its checksum with the published one",
    )
