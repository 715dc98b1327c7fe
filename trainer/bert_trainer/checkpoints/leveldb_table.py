"""LevelDB's table file: keys in order with a value each, in blocks that carry checksums.

TensorFlow keeps the index of a checkpoint in one. Source: LevelDB's ``doc/table_format.md``, and its
``table/block_builder.cc`` for the entries of a block; TensorFlow's copy is ``core/lib/io/table*.cc``.

* block: entries, the offsets of those that spell their key out (uint32 each), their number (uint32); behind it one
  byte for the compression and the masked CRC-32C of all that;
* entry: bytes shared with the key before, other bytes of the key, bytes of the value (varints), then both;
* footer, the last 48 bytes: offset and size (varints) of the meta index and of the index, zeros, a magic number. The
  index is a block whose values are the offset and size of each block of data.

What a file claims is bounded before memory is taken for it: a hostile one costs at most ``MAX_ENTRIES`` keys of
``MAX_KEY_BYTES`` with values of ``MAX_VALUE_BYTES``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from bert_trainer.checkpoints.protobuf_wire import read_varint, write_varint
from bert_trainer.system.crc32c import masked_crc32c

MAX_ENTRIES = 10_000
"""BERT-large has 398 variables, and three times as many with Adam's moments."""
MAX_VALUE_BYTES = 64 << 10
"""That of a tensor has some thirty bytes."""
MAX_KEY_BYTES = 1024
"""Keys share their beginnings, so that a few bytes each can stand for long ones."""

_MAGIC = 0xDB4775248B80FB57
_FOOTER_BYTES = 48
_TRAILER = struct.Struct("<BI")  # compression, masked CRC-32C
_UNCOMPRESSED, _SNAPPY = 0, 1
# As TensorFlow writes them.
_BLOCK_BYTES = 256 << 10
_RESTART_EVERY = 16


def read_table(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield every key and its value, in the order of the keys.

    Raises:
        ValueError: not such a file, damaged, compressed, or beyond the bounds above.
    """
    if len(content) < _FOOTER_BYTES:
        raise ValueError(f"got {len(content)} bytes; allowed: a table, of {_FOOTER_BYTES} or more")
    magic = int.from_bytes(content[-8:], "little")
    if magic != _MAGIC:
        raise ValueError(f"got magic number {magic:#x} at its end; allowed: {_MAGIC:#x}, that of a table")
    footer = content[-_FOOTER_BYTES:-8]
    _, _, at = _read_handle(footer, 0)
    offset, size, _ = _read_handle(footer, at)
    last_key: bytes | None = None
    count, free_from = 0, 0
    for _, handle in _entries(_read_block(content, offset, size)):
        offset, size, _ = _read_handle(handle, 0)
        # Otherwise a small file could be read as many large ones.
        if offset < free_from:
            raise ValueError(f"got a block at byte {offset}; allowed: byte {free_from} or later, behind the one before")
        free_from = offset + size + _TRAILER.size
        for key, value in _entries(_read_block(content, offset, size)):
            if last_key is not None and key <= last_key:
                raise ValueError(f"got key {key[:100]!r} behind {last_key[:100]!r}; allowed: keys in order, each once")
            count += 1
            if count > MAX_ENTRIES:
                raise ValueError(f"got more than {MAX_ENTRIES} entries; allowed: those of one BERT with its optimizer")
            last_key = key
            yield key, value


def _read_handle(data: bytes, at: int) -> tuple[int, int, int]:
    """Return offset and size of a block, and where the next byte lies."""
    offset, at = read_varint(data, at, len(data))
    size, at = read_varint(data, at, len(data))
    return offset, size, at


def _read_block(content: bytes, offset: int, size: int) -> bytes:
    end = offset + size
    if end + _TRAILER.size > len(content) - _FOOTER_BYTES:
        raise ValueError(
            f"got a block of {size} bytes at byte {offset}; allowed: within the {len(content)} of the file"
        )
    compression, stored = _TRAILER.unpack_from(content, end)
    checksum = masked_crc32c(content[offset : end + 1])
    if checksum != stored:
        raise ValueError(
            f"got checksum {checksum:#x} for {size} bytes at byte {offset}; allowed: {stored:#x}, as stored"
        )
    if compression != _UNCOMPRESSED:
        name = "Snappy" if compression == _SNAPPY else f"number {compression}"
        raise ValueError(f"got a block compressed by {name}; allowed: uncompressed ones, as TensorFlow writes them")
    return content[offset:end]


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    num_restarts = int.from_bytes(block[-4:], "little")
    end = len(block) - 4 * (num_restarts + 1)
    if end < 0:
        raise ValueError(f"got a block of {len(block)} bytes with {num_restarts} restarts; allowed: 4 bytes for each")
    key, at = b"", 0
    # The restarts serve those who look for one key; whoever reads all of them needs none.
    while at < end:
        num_shared, at = read_varint(block, at, end)
        num_other, at = read_varint(block, at, end)
        value_bytes, at = read_varint(block, at, end)
        too_long = num_shared + num_other > MAX_KEY_BYTES or value_bytes > MAX_VALUE_BYTES
        if too_long or num_shared > len(key) or num_other + value_bytes > end - at:
            raise ValueError(
                f"got an entry with {num_shared} + {num_other} bytes of key and {value_bytes} of value; allowed: at "
                f"most {len(key)} shared, {MAX_KEY_BYTES} together, {MAX_VALUE_BYTES} of value, and the {end - at} "
                "that are left of the block"
            )
        key = key[:num_shared] + block[at : at + num_other]
        at += num_other
        yield key, block[at : at + value_bytes]
        at += value_bytes


def write_table(entries: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return a table's content, uncompressed.

    Args:
        entries: Keys with their values, in the order of the keys, each once.
    """
    content = bytearray()
    index: list[tuple[bytes, bytes]] = []
    waiting: list[tuple[bytes, bytes]] = []
    num_bytes = 0

    def flush(bound: bytes) -> None:
        handle = _append_block(content, _encode_block(waiting, _RESTART_EVERY))
        index.append((bound, handle))
        waiting.clear()

    for key, value in entries:
        if num_bytes >= _BLOCK_BYTES:
            flush(waiting[-1][0])
            num_bytes = 0
        waiting.append((key, value))
        num_bytes += len(key) + len(value)
    if waiting:
        flush(_short_successor(waiting[-1][0]))
    meta = _append_block(content, _encode_block([], _RESTART_EVERY))
    footer = meta + _append_block(content, _encode_block(index, 1))
    return bytes(content) + footer.ljust(_FOOTER_BYTES - 8, b"\0") + _MAGIC.to_bytes(8, "little")


def _append_block(content: bytearray, block: bytes) -> bytes:
    """Append a block with its trailer; return its offset and size, encoded."""
    handle = write_varint(len(content)) + write_varint(len(block))
    compression = bytes([_UNCOMPRESSED])
    content += block + _TRAILER.pack(_UNCOMPRESSED, masked_crc32c(block, compression))
    return handle


def _encode_block(entries: Iterable[tuple[bytes, bytes]], restart_every: int) -> bytes:
    block = bytearray()
    restarts = [0]
    last_key = b""
    for number, (key, value) in enumerate(entries):
        shared = 0
        if number % restart_every == 0:
            if number:
                restarts.append(len(block))
        else:
            while shared < min(len(key), len(last_key)) and key[shared] == last_key[shared]:
                shared += 1
        block += (
            write_varint(shared) + write_varint(len(key) - shared) + write_varint(len(value)) + key[shared:] + value
        )
        last_key = key
    return bytes(block) + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))


def _short_successor(key: bytes) -> bytes:
    """Return the shortest key that is no smaller, by which LevelDB bounds the last block."""
    for number, byte in enumerate(key):
        if byte != 0xFF:
            return key[:number] + bytes([byte + 1])
    return key
