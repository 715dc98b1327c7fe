"""TFRecord shards, whose records are changed by the features that they hold."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from any_layout import frame_record
from bert_trainer.dataset.shards.tfrecord_file import FOOTER, HEADER
from fuzz_reader import Chance, Reader
from shard_readers import read_in_every_way, write

Feature = tuple[str, int, bytes]
"""Its name, the tag of the list that holds its values, and these, packed."""
_LISTS = {"bytes": 0x0A, "floats": 0x12, "integers": 0x1A}


def _part(tag: int, content: bytes) -> bytes:
    """Return a field of a protocol buffers message: its tag, its length and itself."""
    size, left = bytearray(), len(content)
    while left > 127:
        size.append(left & 127 | 128)
        left >>= 7
    return bytes([tag, *size, left]) + content


def _join_features(features: list[Feature]) -> bytes:
    """Return a ``tf.train.Example``, https://www.tensorflow.org/tutorials/load_data/tfrecord ."""
    entries = [
        _part(0x0A, _part(0x0A, name.encode(errors="replace")) + _part(0x12, _part(kind, _part(0x0A, values))))
        for name, kind, values in features
    ]
    return _part(0x0A, b"".join(entries))


def _features_of(record: bytes) -> list[Feature]:
    """Return the features of an example as the trainer writes it; raises ValueError or IndexError of another one."""

    def enter(data: bytes) -> tuple[int, bytes, bytes]:
        tag, size, at = data[0], 0, 1
        while True:
            size |= (data[at] & 127) << 7 * (at - 1)
            at += 1
            if data[at - 1] < 128:
                break
        if size > len(data) - at:
            raise ValueError("no such message")
        return tag, data[at : at + size], data[at + size :]

    _, entries, _ = enter(record)
    found = []
    while entries:
        _, entry, entries = enter(entries)
        _, name, rest = enter(entry)
        kind, values, _ = enter(enter(rest)[1])
        found.append((name.decode(errors="replace"), kind, enter(values)[1]))
    return found


def _mutate_features(record: bytes, chance: Chance) -> bytes:
    """Change a feature's values, name or kind, or take it twice or away, lengths put right."""
    try:
        features = _features_of(record)
        at = chance.draw.randrange(len(features))
    except (ValueError, IndexError):
        return chance.bytes(record)
    name, kind, values = features[at]
    way = chance.draw.random()
    if way < 0.7:
        features[at] = name, kind, chance.bytes(values)
    elif way < 0.8:
        features[at] = name, chance.draw.choice(list(_LISTS.values())), values
    elif way < 0.9:
        features[at] = chance.bytes(name.encode()).decode(errors="replace"), kind, values
    else:
        features[at : at + 1] = [features[at]] * chance.draw.choice((0, 2))
    return _join_features(features)


def _split_records(data: bytes) -> list[bytes]:
    records, at = [], 0
    while at + HEADER.size <= len(data):
        length = HEADER.unpack_from(data, at)[0]
        if length > len(data):
            break
        records.append(data[at + HEADER.size : at + HEADER.size + length])
        at += HEADER.size + length + FOOTER.size
    return records


def _mutate_records(data: bytes, chance: Chance) -> bytes:
    """Change the content of a record and put lengths and checksums right, or change bytes of the file."""
    records = _split_records(data)
    if not records or chance.draw.random() < 0.2:
        return chance.bytes(data)
    number = chance.draw.randrange(len(records))
    change = chance.bytes if chance.draw.random() < 0.4 else lambda record: _mutate_features(record, chance)
    records[number] = change(records[number])
    return b"".join(map(frame_record, records))


def _records(place: Path) -> Iterator[bytes]:
    sound = write(place, "tfrecord")
    yield sound
    yield from (
        b"",
        sound[:-5],
        sound[:40],
        sound[:6],
        b"\x1f\x8b" + sound,
        sound[:12] + b"\0" + sound[13:],
        sound + b"\0",
    )
    yield sound[:8] + b"\0" + sound[9:]
    yield frame_record(b"") + sound
    first, *others = _split_records(sound)
    features = _features_of(first)
    name, kind, values = features[0]
    spoiled: list[list[Feature]] = [
        features[1:],
        [*features, features[0]],
        [*features[1:], features[1]],
        [(name, _LISTS["floats"], values), *features[1:]],
        [("other\x1b", kind, values), *features[1:]],
        [(name, kind, values + b"\1"), *features[1:]],
        [(name, kind, values[:-1] + b"\x80"), *features[1:]],
        [(name, kind, b"\x3d" + values[1:]), *features[1:]],
        [(name, kind, b"\xff" * 9 + values[:1]), *features[1:]],
        [(name, kind, b"\x80\x80\1" + values[1:]) for name, kind, values in features],
        [(name, kind, values[::-1]) for name, kind, values in features],
        [(name, kind, values[:0]) for name, kind, values in features],
        [(name, kind, values * 200) for name, kind, values in features],
    ]
    records = [_join_features(features) for features in spoiled]
    records += [first + b"\0", first[:-1], b"\x12" + first[1:], b"\x0a\xff\xff\xff\xff\xff\xff", _part(0x0A, b"")]
    records += [_part(0x0A, first[3:] + b"\x0a\0"), _part(0x0A, _part(0x0A, _part(0x0A, b"x") + b"\x12\2\x1a\0"))]
    for record in records:
        yield b"".join(map(frame_record, (record, *others)))
        yield b"".join(map(frame_record, (first, record)))


_SHARDS = "bert_trainer.dataset.shards"
READERS = (
    Reader(
        name="shards-tfrecord",
        read=read_in_every_way,
        seeds=_records,
        modules=(f"{_SHARDS}.tfrecord", f"{_SHARDS}.tfrecord_file", f"{_SHARDS}.examples"),
        leaves_out=("without_suffix",),
        file_name="training_0.tfrecord",
        mutate=_mutate_records,
    ),
)
