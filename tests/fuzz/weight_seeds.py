"""Files of weights that are refused, one for each check: archives of pickles, and indexes of TensorFlow checkpoints."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Iterator
from typing import Any

import torch

from bert_trainer.checkpoints.leveldb_table import read_table, write_table
from bert_trainer.checkpoints.protobuf_wire import encode_fields
from fuzz_reader import Chance
from mutations import write_zip

_MAP = b"ccollections\nOrderedDict\n"
_PICKLES = (
    b"cos\nsystem\n(X\x04\0\0\0truetR.",
    b"c__builtin__\ngetattr\n.",
    b"]q\0)R.",
    _MAP + b"(]tR.",
    _MAP + b")R}X\1\0\0\0aK\1sb.",
    _MAP + b")\x81}b.",
    b"ctorch._tensor\n_rebuild_from_type_v2\n(cos\nsystem\ntR.",
    b"((X\7\0\0\0storage]etQ.",
    b"(X\7\0\0\0storagetQ.",
    b"K\1(K\2e.",
    b"]K\1a.",
    b"](K\1K\2e.",
    b"}K\1K\2s.",
    b"}(K\1K\2u.",
    b"}]K\2s.",
    b"h\5.",
    b"I1\n.",
    b"0.",
    b"",
    b"(" * 3000 + b".",
)
"""Behind the mark of protocol 2: each meets one rule of ``pickle_scan``, or breaks it."""


def _as_archive(sound: bytes, content: bytes) -> bytes:
    """Return an archive of PyTorch's with another pickle in it."""
    with zipfile.ZipFile(io.BytesIO(sound)) as archive:
        members = [[info.filename, archive.read(info)] for info in archive.infolist()]
    return write_zip([[name, content if name.endswith("data.pkl") else held] for name, held in members])


def _saved(content: Any, *, is_archive: bool = True) -> bytes:
    file = io.BytesIO()
    torch.save(content, file, _use_new_zipfile_serialization=is_archive)
    return file.getvalue()


def spoiled_archives(sound: bytes) -> Iterator[bytes]:
    """Yield archives of torch.save, made from a sound one, that hold something else than plain tensors by name."""
    for content in _PICKLES:
        yield _as_archive(sound, b"\x80\2" + content)
        yield b"\x80\2" + content
    for held in ({(1,): 2}, {"a": 1}, [1, 2], {}, {1.5: 2}, {"a": {"b": [None, True]}}):
        yield _as_archive(sound, pickle.dumps(held, 2))
    # Legacy files begin with a magic number, a version and the machine's sizes, each a pickle.
    begin = b"".join(pickle.dumps(part, 2) for part in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}))
    yield from (begin, begin + b"\x80\2" + _PICKLES[0], begin + pickle.dumps({"a": 1}, 2) + pickle.dumps([], 2))
    tensors = {
        "complex": torch.zeros(2, dtype=torch.complex64),
        "whole": torch.zeros(2, dtype=torch.int64),
        "claimed": torch.zeros(1).expand(1 << 20),
        "sparse": torch.zeros(2, 2).to_sparse(),
        "on no device\x1b": torch.zeros(2, device="meta"),
    }
    for name, tensor in tensors.items():
        yield _saved({name: tensor})
        yield _saved({"model": {name: tensor}}, is_archive=False)
    yield _saved({"model": {1: torch.zeros(2)}})
    with zipfile.ZipFile(compressed := io.BytesIO(), "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"\x80\2}." * 50)
    yield compressed.getvalue()
    yield from (
        sound + write_zip([["archive/data.pkl", b"\x80\2}."]]),
        sound[: len(sound) // 2],
        sound[:-10],
        b"",
        b"PK\5\6",
    )
    yield write_zip([["archive/data.pkl", b"\x80\2}."]])
    # The directory at the end: more entries or bytes than there are, and entries that claim more.
    at, first = sound.rindex(b"PK\5\6"), sound.index(b"PK\1\2")
    yield sound[: at + 8] + b"\xff" * 4 + sound[at + 12 :]
    yield sound[: at + 12] + b"\xff\xff\xff\x0f" + sound[at + 16 :]
    yield sound[: first + 20] + b"\xff\xff\xff\x0f" * 2 + sound[first + 28 :]


Entries = list[tuple[bytes, bytes]]


def _indexes(entries: Entries) -> Iterator[Entries]:
    """Yield the entries of an index with a header or a tensor that breaks a rule."""
    (_, header), (name, _), *others = entries
    for fields in ({}, {2: 1}, {1: 1, 3: b"\x10\x7f"}, {1: 10**6}, {1: b"x"}, {1: 1, 3: 5}):
        yield [(b"", encode_fields(fields)), *entries[1:]]
    shape = {2: [encode_fields({1: 3})]}
    tensors: tuple[dict[int, Any], ...] = (
        {1: 1, 2: encode_fields({2: [encode_fields({1: 1})] * 300})},
        {1: 1, 2: encode_fields(shape), 4: 2**64 - 5, 5: 12},
        {1: 1, 2: encode_fields({2: [encode_fields({1: 2**40})] * 3})},
        {1: 1, 2: encode_fields(shape), 3: 7, 5: 12},
        {1: 1, 2: encode_fields(shape), 5: 11},
        {1: 1, 2: encode_fields(shape), 4: 10**9, 5: 12},
        {1: 1, 2: encode_fields(shape), 5: 12, 6: 1},
        {1: 19, 2: encode_fields(shape), 5: 6},
        {1: 99, 2: encode_fields(shape), 5: 6},
        {1: 1, 2: encode_fields(shape), 5: 12, 7: [b"\x0a\0"]},
        {1: 1, 2: 5},
        {1: b"x"},
    )
    for tensor in tensors:
        yield [(b"", header), (name, encode_fields(tensor)), *others]
    for raw in (b"\x80", b"\xff" * 11, b"\x0b", b"\x0a\x7f", b"\x09\1", b"\x08\1" * 3000):
        yield [(b"", header), (name, raw), *others]
    yield [(b"", header), (b"\xff\x1b", entries[1][1]), *others]
    yield [(b"", header), (b"\0slice", b""), *others]
    yield entries[1:]
    yield [(b"", header), (b"zz", entries[1][1]), *others]
    yield [(b"", header), *others, *others[:1]]


def spoiled_indexes(sound: bytes) -> Iterator[bytes]:
    """Yield indexes of TensorFlow checkpoints, made from a sound one, that break a rule of the format."""
    entries = list(read_table(sound))
    yield from map(write_table, _indexes(entries))
    yield from (b"", sound[:-1], sound[:-60] + b"\xff" * 52 + sound[-8:], b"\0" + sound[1:], sound[:40] + sound[-48:])
    # The first block's type, behind its content, and its checksum put right.
    one = write_table([(b"", b"x")])
    yield from (one, one[:8] + b"\1" + one[9:], one.replace(b"x", b"y"))


def mutate_index(data: bytes, chance: Chance) -> bytes:
    """Change an entry of an index and put its lengths and checksums right, or change bytes of the file."""
    if chance.draw.random() < 0.3:
        return chance.bytes(data)
    try:
        entries = list(read_table(data))
    except ValueError:
        return chance.bytes(data)
    if not entries:
        return chance.bytes(data)
    at = chance.draw.randrange(len(entries))
    key, value = entries[at]
    way = chance.draw.random()
    if way < 0.8:
        entries[at] = key, chance.bytes(value)
    elif way < 0.9:
        entries[at] = chance.bytes(key), value
    else:
        entries[at : at + 1] = [entries[at]] * chance.draw.choice((0, 2))
    return write_table(entries)
