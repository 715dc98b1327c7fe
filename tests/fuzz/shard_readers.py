"""Shards of each layout: HDF5 made from a description whose values are changed, HDF5's and TFRecord's bytes."""

from __future__ import annotations

import io
import json
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from any_layout import shard_name, write_shard
from bert_trainer.dataset.shards import (
    LAYOUTS,
    read_header,
    read_shard,
    row_blocks,
    tfrecord_file,
)
from bert_trainer.dataset.shards.files import read_ragged
from bert_trainer.dataset.shards.row_blocks import read_blocks, read_ragged_blocks
from fuzz_reader import Chance, NoInput, Reader
from mutations import each_changed, mutate_value
from tiny_run import make_samples

NAME = "training_0.hdf5"


def write(place: Path, layout: Any, rows: int = 3) -> bytes:
    """Return a sound shard, which is written into a folder."""
    path = place / shard_name(NAME, layout)
    samples = make_samples(rows, np.random.default_rng(1), sequence_length=16, predictions=3)
    write_shard(path, samples, vocabulary_sha256="a" * 64, generator_version=1, layout=layout)
    return path.read_bytes()


def _describe(content: bytes) -> bytes:
    """Return what an HDF5 file holds as a JSON document, from which ``_build`` makes it again."""
    datasets = {}
    with h5py.File(io.BytesIO(content)) as file:
        for name, held in file.items():
            kind = h5py.check_vlen_dtype(held.dtype)
            values = [part.tolist() for part in held[...]] if kind is not None else held[...].tolist()
            datasets[name] = {
                "type": (kind if kind is not None else held.dtype).str,
                "ragged": kind is not None,
                "shape": list(held.shape),
                "chunks": list(held.chunks) if held.chunks else None,
                "compression": held.compression,
                "values": values,
                "attributes": {key: _plain(value) for key, value in held.attrs.items()},
            }
        attributes = {key: _plain(value) for key, value in file.attrs.items()}
    return json.dumps({"datasets": datasets, "attributes": attributes}).encode()


def _plain(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value.item() if isinstance(value, np.generic) else str(value)


_MAX_BYTES = 1 << 24
"""That a dataset or a chunk may have of which something is written; what is only claimed may be of any size."""


def _build(path: Path) -> bytes | None:
    """Return the file that a description makes, without those of its parts that no file can hold; None of no object."""
    try:
        document = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return None
    datasets, attributes, changes = (
        _held(document, key, kind) for key, kind in (("datasets", dict), ("attributes", dict), ("bytes", list))
    )
    if not datasets and not attributes:
        return None
    with h5py.File("built", "w", driver="core", backing_store=False, libver=("v110", "v110")) as file:
        for name, wanted in datasets.items():
            with suppress(*_IMPOSSIBLE):
                _build_one(file, name, wanted)
        for key, value in attributes.items():
            with suppress(*_IMPOSSIBLE):
                file.attrs[key] = np.bytes_(value.encode()) if isinstance(value, str) else value
        file.flush()
        image: bytes = file.id.get_file_image()
    # Where a file holds what the library does not write.
    for change in changes:
        with suppress(*_IMPOSSIBLE):
            image = image.replace(bytes.fromhex(change[0]), bytes.fromhex(change[1]), 1)
    return image


_IMPOSSIBLE = (
    SyntaxError,
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    AttributeError,
    OverflowError,
    RuntimeError,
    OSError,
)


def _held(document: Any, key: str, kind: type[Any]) -> Any:
    value = document.get(key) if isinstance(document, dict) else None
    return value if isinstance(value, kind) else kind()


def _build_one(file: h5py.File, name: str, wanted: dict[str, Any]) -> None:
    shape, dtype = tuple(wanted["shape"]), np.dtype(wanted["type"])
    # h5py itself hangs while it looks for chunks of a shape below 0.
    if dtype.hasobject or any(type(size) is not int or size < 0 for size in shape):
        return
    chunks = tuple(wanted["chunks"]) if wanted["chunks"] else None
    ragged = bool(wanted["ragged"])
    item_bytes = 16 if ragged else dtype.itemsize
    is_small = item_bytes * prod(float(size) for size in chunks or shape) <= _MAX_BYTES
    if chunks is None and not is_small:
        return
    kind = h5py.vlen_dtype(dtype) if ragged else dtype
    held = file.create_dataset(name, shape, kind, chunks=chunks, compression=wanted["compression"])
    is_small &= item_bytes * prod(map(float, shape)) <= _MAX_BYTES
    with suppress(*_IMPOSSIBLE), np.errstate(all="ignore"):
        if ragged and is_small:
            for row, values in enumerate(wanted["values"]):
                held[row] = np.array(values).astype(dtype).reshape(-1)  # h5py itself dies of a scalar
        elif is_small and (values := np.array(wanted["values"]).astype(dtype)).shape == shape:
            held[...] = values
    for key, value in wanted["attributes"].items():
        # Whoever writes a dataset writes its checksum as well; 0 is a wrong one.
        if key == "crc32" and value and is_small and not ragged:
            value = zlib.crc32(np.ascontiguousarray(held[...]).data)
        with suppress(*_IMPOSSIBLE):
            is_text = isinstance(value, str)
            held.attrs[key] = np.bytes_(value.encode()) if is_text else np.uint32(value) if key == "crc32" else value


def _mutate_description(data: bytes, chance: Chance) -> bytes:
    """Change a value of a description: one that is no JSON makes no file."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return chance.bytes(data)
    for _ in range(chance.draw.choice((1, 1, 1, 2, 3))):
        part = chance.draw.choice(("datasets", "datasets", "datasets", "attributes", "bytes"))
        if isinstance(document, dict) and part in document:
            document[part] = mutate_value(document[part], chance)
    return json.dumps(document).encode()


def _read_built(path: Path) -> object:
    content = _build(path)
    if content is None:
        raise NoInput
    path = path.with_name(NAME)
    path.write_bytes(content)
    return read_in_every_way(path)


def read_in_every_way(path: Path) -> object:
    """Read a shard in two of the ways in which programs of the trainer do."""
    # Kept by a file's size and time, which two inputs may share.
    for kept in (tfrecord_file._offsets, row_blocks._read_block, row_blocks._compact_index, row_blocks._packed_starts):
        kept.cache_clear()
    found = read_header(path)
    ways: list[Callable[[], object]] = [
        lambda: read_shard(path, 61),
        lambda: read_ragged(path, 61, slice(1, 3)),
        lambda: deque(read_ragged_blocks(path, 61), maxlen=0),
        lambda: deque(read_blocks(path), maxlen=0),
    ]
    # By the content: an input always meets the same.
    first, step = divmod(zlib.crc32(path.read_bytes()) % 12, 3)
    for way in (ways[first], ways[(first + step + 1) % 4]):
        way()
    return found


def _spoil(description: bytes) -> Iterator[bytes]:
    """Yield a shard's description with each change that a check is made for."""
    document = json.loads(description)
    datasets = document["datasets"]
    one = "tokens" if "tokens" in datasets else "input_ids"
    held, at = datasets[one], f"datasets/{one}"
    rows, *width = held["shape"]
    empty = {name: {**each, "shape": [0, *each["shape"][1:]], "values": []} for name, each in datasets.items()}
    yield from each_changed(document, {at: ..., "datasets": {"a\x1b": held}, "datasets ": empty})
    yield from each_changed({**document, "datasets": empty}, {"attributes/made_from": "x"})
    yield from each_changed(document, {f"{at}/type": "<f4", f"{at}/shape": [rows, 2, 2], f"{at}/attributes/crc32": 0})
    yield from each_changed(document, {f"{at}/chunks": [1] * len(held["shape"]), f"{at}/values/0": [] if width else 70})
    yield from each_changed(document, {f"{at}/shape": [rows + 1, *width], "attributes": {}})
    yield from each_changed(document, {"attributes/sequence_length": 0, "attributes/max_predictions": 2**40})
    yield from each_changed(document, {"attributes/sequence_length": 2, "attributes/masking": "none"})
    # Of next to nothing stored; then also in chunks of hundreds of megabytes.
    large = {**held, "shape": [1 << 20, 1 << 10][: 1 + len(width)], "compression": "gzip"}
    for chunks in ([1 << 10, 1 << 10], [1 << 20, 1 << 9]):
        yield from each_changed(document, {at: {**large, "chunks": chunks[: 1 + len(width)]}})
    for name, each in datasets.items():
        yield from _spoil_values(document, f"datasets/{name}", each)
    if "segment_ids" in datasets:
        yield from each_changed(document, {"datasets/segment_ids/values/0": [1, 0] * (len(held["values"][0]) // 2)})
    # Heaps, of which rows of variable length are made: another mark, and another size.
    yield from each_changed(document, {"bytes": [[b"GCOL\1".hex(), b"GCOX\1".hex()]]})
    yield from each_changed(document, {"bytes": [["47434f4c010000000010", "47434f4c010000000090"]]})


def _spoil_values(document: Any, at: str, held: dict[str, Any]) -> Iterator[bytes]:
    values = held["values"]
    if values:
        yield from each_changed(document, {f"{at}/values": _all(-1, values), f"{at}/values/0": values[-1]})
        yield from each_changed(document, {f"{at}/values": _all(0, values)})
    if held["ragged"]:
        for squeezed in ("gzip", None):
            yield from each_changed(document, {at: {**held, "chunks": [2], "compression": squeezed}})
        yield from each_changed(document, {f"{at}/values": [row[:-1] for row in values], f"{at}/shape": [900]})


def _all(number: int, values: Any) -> Any:
    """Return nested lists of the same lengths with one number throughout."""
    return [_all(number, value) for value in values] if isinstance(values, list) else number


_SHARDS = "bert_trainer.dataset.shards"
_MODULES = {
    "compact": (f"{_SHARDS}.compact", f"{_SHARDS}.header"),
    "mlperf-variable": (f"{_SHARDS}.variable", f"{_SHARDS}.vlen_reader"),
    "mlperf-packed": (f"{_SHARDS}.variable", f"{_SHARDS}.vlen_reader"),
}
_WRITERS = ("write", "values", "columns", "refuse_large_ids", "ids", "is_hdf5")
_OF_PACKED = ("_unpack", "count_samples", "read_counts")


def _seeds(layout: str) -> Any:
    def seeds(place: Path) -> Iterator[bytes]:
        sound = _describe(write(place, layout))
        yield sound
        yield from _spoil(sound)

    return seeds


def _images(place: Path) -> Iterator[bytes]:
    for layout in LAYOUTS:
        if layout != "tfrecord":
            sound = write(place, layout)
            yield from (sound, sound[:-100], sound[:600], sound[:8] + b"\xff" * 8 + sound[16:])
    for description in _spoil(_describe(write(place, "intel"))):
        (place / "description").write_bytes(description)
        if (image := _build(place / "description")) is not None:
            yield image


READERS = (
    *(
        Reader(
            name=f"shards-{layout}",
            read=_read_built,
            seeds=_seeds(layout),
            modules=_MODULES.get(layout, (f"{_SHARDS}.fixed", f"{_SHARDS}.header")),
            leaves_out=(*_WRITERS, *(_OF_PACKED if layout == "mlperf-variable" else ())),
            mutate=_mutate_description,
            file_name="description.json",
            max_bytes=1 << 15,
        )
        for layout in LAYOUTS
        if layout != "tfrecord"
    ),
    Reader(
        name="shards-hdf5-bytes",
        read=read_in_every_way,
        seeds=_images,
        modules=(f"{_SHARDS}.header",),
        leaves_out=("is_hdf5",),
        file_name=NAME,
        max_bytes=1 << 15,
    ),
)
