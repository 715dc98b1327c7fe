"""Records of ``create_pretraining_data.py``: ``tf.train.Example`` messages of seven features, many at a time.

Only what those messages consist of is read (``tensorflow/core/example/{example,feature}.proto``; the encoding:
"Protocol Buffers, Encoding")::

    Example {1: Features {1: entry {1: name, 2: Feature {2: FloatList {1: packed}} or {3: Int64List {1: packed}}}}}

All records are parsed in step: their tags and lengths are read as arrays, whose entries differ since integers take one
to five bytes and the features of a record come in any order. Nothing here knows files.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

INTEGER_FEATURES = (
    "input_ids",
    "input_mask",
    "segment_ids",
    "masked_lm_positions",
    "masked_lm_ids",
    "next_sentence_labels",
)
WEIGHTS = "masked_lm_weights"
"""float32: 1 for a prediction, 0 behind the last one; other layouts do not store it."""
FEATURES = tuple(sorted((*INTEGER_FEATURES, WEIGHTS)))
"""In the order in which they are written, which is that of TensorFlow's deterministic serialization."""

_LENGTH_DELIMITED = 2
_FIRST = 1 << 3 | _LENGTH_DELIMITED
_SECOND = 2 << 3 | _LENGTH_DELIMITED
_THIRD = 3 << 3 | _LENGTH_DELIMITED
_MAX_VARINT_BYTES = 5
"""Of a length or a number below 2**31; negative ones take ten."""


class RecordError(ValueError):
    """What is wrong with one of the records."""

    def __init__(self, row: int, problem: str) -> None:
        """Keep the record's place among those that were given, from 0."""
        super().__init__(problem)
        self.row = row


@dataclass(frozen=True, slots=True)
class Widths:
    """Values of each feature, the same in all records of a file."""

    sequence_length: int
    max_predictions: int

    def of(self, feature: str) -> int:
        """Return the values of a feature."""
        if feature == "next_sentence_labels":
            return 1
        return self.max_predictions if feature.startswith("masked_lm") else self.sequence_length

    @property
    def min_bytes(self) -> int:
        """Bytes of the smallest record: one for each integer, and the names."""
        return sum(len(name) + self.of(name) * (4 if name == WEIGHTS else 1) for name in FEATURES)


@dataclass(frozen=True, slots=True)
class _Cursor:
    """A place in each of n records, moved forward in step."""

    content: NDArray[np.uint8]
    at: NDArray[np.int64]
    """(n,), offsets in the content; changed in place."""

    def read_byte(self, ends: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return the next byte of each record."""
        _refuse(self.at >= ends, "ends in the middle of a message")
        found = self.content[self.at]
        self.at[:] += 1
        return found

    def read_varint(self, ends: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the next number of each record."""
        values = np.zeros(len(self.at), np.int64)
        unfinished = np.ones(len(self.at), np.bool_)
        for byte in range(_MAX_VARINT_BYTES):
            _refuse(unfinished & (self.at >= ends), "ends in the middle of a number")
            # Those that have ended read a byte again, which counts for nothing; it may lie behind the content.
            found = self.content[np.minimum(self.at, len(self.content) - 1)]
            values += np.where(unfinished, (found & 0x7F).astype(np.int64) << (7 * byte), 0)
            self.at[:] += unfinished
            unfinished &= found >= 0x80
            if not unfinished.any():
                return values
        _refuse(unfinished, "has a length of more than five bytes")
        raise AssertionError("the line above raises")

    def enter(self, tag: int, ends: NDArray[np.int64], what: str) -> NDArray[np.int64]:
        """Read the tag and the length of a part; return where it ends."""
        found = self.read_byte(ends)
        _refuse(found != tag, f"has the tag {{}} where {what} begins; allowed: {tag}", found)
        counts = self.read_varint(ends)
        inner = self.at + counts
        _refuse(inner > ends, f"has {{}} bytes for {what}, more than are left", counts)
        return inner


def parse_widths(record: bytes) -> Widths:
    """Return the number of values of each feature of one record.

    Raises:
        RecordError: it is no such record, or its features do not fit together.
    """
    content = np.frombuffer(record, np.uint8)
    found = _find_features(content, np.zeros(1, np.int64), np.array([len(record)]))
    counts = {}
    for name, (start, stop) in found.items():
        part = content[start[0] : stop[0]]
        counts[name] = len(part) // 4 if name == WEIGHTS else int((part < 0x80).sum())
    widths = Widths(counts["input_ids"], counts["masked_lm_positions"])
    for name in FEATURES:
        if counts[name] != widths.of(name) or not counts[name]:
            like = "masked_lm_positions" if name.startswith("masked_lm") else "input_ids"
            several = f"as many as of {like!r}, {widths.of(name)}, and not 0"
            wanted = "1" if name == "next_sentence_labels" else several
            raise RecordError(0, f"holds {counts[name]} values of {name!r}; allowed: {wanted}")
    return widths


def parse_examples(
    content: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64], widths: Widths
) -> tuple[dict[str, NDArray[np.int64]], NDArray[np.float32]]:
    """Return the integers of each feature, (n, width), and the weights, (n, predictions). Ranges are not checked.

    content: a buffer with n records. starts, ends: (n,), where each lies in it.

    Raises:
        RecordError: a record is no such message, lacks a feature or has another, or has another number of values.
    """
    found = _find_features(content, starts, ends)
    integers = {name: _decode_varints(content, *found[name], widths.of(name), name) for name in INTEGER_FEATURES}
    first, last = found[WEIGHTS]
    width = widths.of(WEIGHTS)
    _refuse(last - first != 4 * width, f"holds {{}} bytes of {WEIGHTS!r}; allowed: {4 * width}", last - first)
    return integers, _joined(content, first, last).view("<f4").reshape(-1, width)


def _find_features(
    content: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Return where the values of each feature begin and end in each record, (n,) each."""
    num = len(starts)
    cursor = _Cursor(content, starts.copy())
    inner = cursor.enter(_FIRST, ends, "its features")
    _refuse(inner != ends, "holds more than its features")
    found = {name: (np.full(num, -1, np.int64), np.full(num, -1, np.int64)) for name in FEATURES}
    by_length = {len(name): name for name in FEATURES}
    assert len(by_length) == len(FEATURES), "names are told apart by their lengths first"
    for number in range(len(FEATURES)):
        _refuse(cursor.at >= inner, f"holds {number} features; allowed: {', '.join(FEATURES)}")
        entry = cursor.enter(_FIRST, inner, "a feature")
        name_ends = cursor.enter(_FIRST, entry, "a feature's name")
        lengths = name_ends - cursor.at
        name_starts = cursor.at.copy()
        cursor.at[:] = name_ends
        feature = cursor.enter(_SECOND, entry, "a feature's values")
        _refuse(feature != entry, "holds more in a feature than its name and values")
        kinds = content[np.minimum(cursor.at, len(content) - 1)]
        unknown = np.ones(num, np.bool_)
        for length in np.unique(lengths).tolist():
            name = by_length.get(length)
            if name is None:
                continue
            rows = np.flatnonzero(lengths == length)
            spelled = content[name_starts[rows, None] + np.arange(length)] == np.frombuffer(name.encode(), np.uint8)
            rows = rows[spelled.all(axis=1)]
            unknown[rows] = False
            twice = np.zeros(num, np.bool_)
            twice[rows] = found[name][0][rows] >= 0
            _refuse(twice, f"holds the feature {name!r} twice")
            wrong = np.zeros(num, np.bool_)
            wrong[rows] = kinds[rows] != (_SECOND if name == WEIGHTS else _THIRD)
            allowed = "floats" if name == WEIGHTS else "integers"
            _refuse(wrong, f"holds a feature {name!r} of another type; allowed: {allowed}")
            found[name][0][rows] = 0
        if unknown.any():
            row = int(unknown.argmax())
            other = content[name_starts[row] : name_ends[row]][:40].tobytes().decode(errors="replace")
            raise RecordError(row, f"holds the feature {other!r}; allowed: {', '.join(FEATURES)}")
        cursor.at[:] += 1
        counts = cursor.read_varint(feature)
        _refuse(cursor.at + counts != feature, "holds more in a feature than one list of values")
        values = cursor.enter(_FIRST, feature, "a feature's packed values")
        _refuse(values != feature, "holds a feature whose values are not packed in one part")
        for length, name in by_length.items():
            rows = np.flatnonzero(lengths == length)
            found[name][0][rows], found[name][1][rows] = cursor.at[rows], values[rows]
        cursor.at[:] = values
    if (cursor.at != inner).any():
        raise RecordError(int((cursor.at != inner).argmax()), f"holds more features than {', '.join(FEATURES)}")
    return found


def _decode_varints(
    content: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64], width: int, name: str
) -> NDArray[np.int64]:
    """Return the numbers of one feature, (n, width)."""
    counts = ends - starts
    flat = _joined(content, starts, ends)
    if (counts == width).all() and int(flat.max(initial=0)) < 0x80:
        # One byte each, as masks have: no need to look for their ends.
        small: NDArray[np.int64] = flat.astype(np.int64).reshape(-1, width)
        return small
    offsets = np.cumsum(counts) - counts
    is_last = flat < 0x80
    numbers = np.zeros(len(flat) + 1, np.int32)
    np.cumsum(is_last, out=numbers[1:])
    found = numbers[offsets + counts] - numbers[offsets]
    _refuse(found != width, f"holds {{}} values of {name!r}; allowed: {width}, as in the first record", found)
    cut = ~is_last[offsets + counts - 1]
    _refuse(cut, f"ends in the middle of a number of {name!r}")
    last = np.flatnonzero(is_last)
    first = np.concatenate([[0], last[:-1] + 1])
    num_bytes = last - first + 1
    if num_bytes.max(initial=0) > _MAX_VARINT_BYTES:
        row = int(num_bytes.argmax()) // width
        raise RecordError(row, f"holds a number of {name!r} that is negative or above 2**34; allowed: 0 to 2**31 - 1")
    values = (flat[first] & 0x7F).astype(np.int64)
    for byte in range(1, int(num_bytes.max(initial=1))):
        longer = np.flatnonzero(num_bytes > byte)
        values[longer] |= (flat[first[longer] + byte] & 0x7F).astype(np.int64) << (7 * byte)
    rows: NDArray[np.int64] = values.reshape(-1, width)
    return rows


def _joined(content: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Return parts of a buffer end to end."""
    # Slices, a microsecond each; indexes of all bytes would take longer and eight times the memory.
    parts = [content[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
    return np.concatenate(parts)


def _refuse(wrong: NDArray[np.bool_], problem: str, values: NDArray[np.integer] | None = None) -> None:
    if wrong.any():
        row = int(wrong.argmax())
        raise RecordError(row, problem if values is None else problem.format(int(values[row])))
