"""CRC-32C as TensorFlow's files hold it, "masked".

Tables, checkpoints and record files keep checksums beside the bytes that they cover. A checksum over bytes that hold
checksums says little, so those that are stored are rotated and shifted by a constant (LevelDB's ``util/crc32c.h``).
"""

from __future__ import annotations

import google_crc32c

_MASK_DELTA = 0xA282EAD8
_32_BITS = 0xFFFFFFFF


def extend(checksum: int, data: bytes) -> int:
    """Return the unmasked CRC-32C of bytes behind others that have ``checksum``, 0 for none; 3 GB/s on one core."""
    return google_crc32c.extend(checksum, data)  # type: ignore[no-any-return]


def mask(checksum: int) -> int:
    """Return the number that is stored for a CRC-32C."""
    rotated = (checksum >> 15 | checksum << 17) & _32_BITS
    return rotated + _MASK_DELTA & _32_BITS


def masked_crc32c(*pieces: bytes) -> int:
    """Return the number that is stored for pieces that follow each other."""
    checksum = 0
    for piece in pieces:
        checksum = extend(checksum, piece)
    return mask(checksum)
