"""Protocol Buffers' wire format: variable-length integers, and the fields of a message.

Only what TensorFlow's bundles hold: no groups, no packed fields. Source: protobuf.dev, "Encoding". LevelDB's tables
use the same integers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

_MAX_BYTES = 10  # of 7 bits each: 64 bits
_64_BITS = (1 << 64) - 1
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED_BYTES = {_FIXED64: 8, _FIXED32: 4}

MAX_FIELDS = 64
"""Of a message, repeated ones counted: a shape has one for each dimension, of which there are at most 32. From two
bytes in the file a field becomes a list of Python's."""

Fields = dict[int, list[int | bytes]]
"""Values in order, by field number."""


def read_varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Return the unsigned 64-bit integer at ``at``, and where the next byte lies.

    Raises:
        ValueError: it does not end before ``end``, or after 10 bytes.
    """
    value = 0
    for number in range(_MAX_BYTES):
        if at + number >= end:
            raise ValueError(f"got an integer at byte {at} that is cut off; allowed: one that ends before byte {end}")
        byte = data[at + number]
        value |= (byte & 0x7F) << (7 * number)
        if byte < 0x80:
            return value & _64_BITS, at + number + 1
    raise ValueError(f"got an integer of more than {_MAX_BYTES} bytes at byte {at}; allowed: 64 bits")


def write_varint(value: int) -> bytes:
    """Encode an integer; negative ones as 64-bit two's complement."""
    value &= _64_BITS
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def read_fields(message: bytes) -> Fields:
    """Parse a message's fields; nested messages stay bytes.

    Raises:
        ValueError: a field is cut off, of a kind that is not read here, or one too many.
    """
    fields: Fields = {}
    at, end, count = 0, len(message), 0
    while at < end:
        count += 1
        if count > MAX_FIELDS:
            raise ValueError(f"got more than {MAX_FIELDS} fields in a message; allowed: those of a checkpoint's index")
        tag, at = read_varint(message, at, end)
        number, kind = tag >> 3, tag & 7
        value: int | bytes
        if kind == _VARINT:
            value, at = read_varint(message, at, end)
        else:
            if kind == _BYTES:
                length, at = read_varint(message, at, end)
            elif kind in _FIXED_BYTES:
                length = _FIXED_BYTES[kind]
            else:
                raise ValueError(f"got field {number} of wire type {kind}; allowed: 0, 1, 2, 5")
            if length > end - at:
                raise ValueError(f"got field {number} of {length} bytes; allowed: the {end - at} that are left")
            value = message[at : at + length]
            value = value if kind == _BYTES else int.from_bytes(value, "little")
            at += length
        fields.setdefault(number, []).append(value)
    return fields


def integer(fields: Fields, number: int) -> int:
    """Return a field's last value as a signed 64-bit integer, 0 where it is absent, as proto3 says.

    Raises:
        ValueError: it is no integer.
    """
    value = fields.get(number, [0])[-1]
    if isinstance(value, bytes):
        raise ValueError(f"got field {number} as bytes; allowed: an integer")
    return value - (1 << 64) if value >> 63 else value


def messages(fields: Fields, number: int) -> list[Fields]:
    """Return the messages of a field, each taken apart.

    Raises:
        ValueError: one is no message.
    """
    found = []
    for value in fields.get(number, []):
        if not isinstance(value, bytes):
            raise ValueError(f"got field {number} as an integer; allowed: a message")
        found.append(read_fields(value))
    return found


def encode_fields(
    fields: Mapping[int, int | bytes | Sequence[bytes]], fixed32: Mapping[int, int] = MappingProxyType({})
) -> bytes:
    """Encode a message; integers of 0 are left out, as proto3 says.

    Args:
        fields: Integers as varints, bytes as messages, sequences of bytes as repeated messages.
        fixed32: Integers of 4 bytes, which come last.
    """
    encoded = bytearray()
    for number, value in fields.items():
        if isinstance(value, int):
            if value:
                encoded += write_varint(number << 3 | _VARINT) + write_varint(value)
            continue
        for message in [value] if isinstance(value, bytes) else value:
            encoded += write_varint(number << 3 | _BYTES) + write_varint(len(message)) + message
    for number, value in fixed32.items():
        encoded += write_varint(number << 3 | _FIXED32) + value.to_bytes(4, "little")
    return bytes(encoded)
