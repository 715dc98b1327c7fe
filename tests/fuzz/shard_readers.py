"""Shards of each layout: HDF5 made from a description whose values are changed, HDF5's and TFRecord's bytes."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from fuzz_reader import Chance, Reader
from mutations import mutate_json

from bert_trainer.dataset.shards import LAYOUTS, read_header, read_shard, shard_name, write_shard
from bert_trainer.dataset.shards.tfrecord_file import FOOTER, HEADER
from bert_trainer.system.crc32c import masked_crc32c
from tiny_run import make_samples

_NAME = "training_0.hdf5"


def _write(place: Path, layout: Any, rows: int = 3) -> bytes:
    path = place / shard_name(_NAME, layout)
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


def _build(path: Path) -> bytes | None:
    """Return the file that a description makes; None where it makes none."""
    try:
        document = json.loads(path.read_bytes())
        with h5py.File("built", "w", driver="core", backing_store=False, libver=("v110", "v110")) as file:
            for name, wanted in document["datasets"].items():
                _build_one(file, name, wanted)
            for key, value in document["attributes"].items():
                file.attrs[key] = np.bytes_(value.encode()) if isinstance(value, str) else value
            file.flush()
            return file.id.get_file_image()
    # Whatever a description says that no file can hold.
    except Exception:  # noqa: BLE001
        return None


def _build_one(file: h5py.File, name: str, wanted: dict[str, Any]) -> None:
    shape, dtype = tuple(wanted["shape"]), np.dtype(wanted["type"])
    if dtype.hasobject:
        return
    if np.prod([float(size) for size in shape]) * dtype.itemsize > 1 << 24 and not wanted["chunks"]:
        return
    if wanted["ragged"]:
        held = file.create_dataset(name, shape, h5py.vlen_dtype(dtype))
        for row, values in enumerate(wanted["values"]):
            held[row] = np.array(values).astype(dtype).reshape(-1)  # h5py itself dies of a scalar
    else:
        chunks = tuple(wanted["chunks"]) if wanted["chunks"] else None
        held = file.create_dataset(name, shape, dtype, chunks=chunks, compression=wanted["compression"])
        values = np.array(wanted["values"]).astype(dtype)
        if values.shape == shape:
            held[...] = values
        if "crc32" in wanted["attributes"]:
            import zlib

            wanted["attributes"]["crc32"] = zlib.crc32(np.ascontiguousarray(held[...]).data)
    for key, value in wanted["attributes"].items():
        is_text = isinstance(value, str)
        held.attrs[key] = np.bytes_(value.encode()) if is_text else np.uint32(value) if key == "crc32" else value


def _read_built(path: Path) -> object:
    content = _build(path)
    if content is None:
        return None
    path = path.with_name(_NAME)
    path.write_bytes(content)
    return _read(path)


def _read(path: Path) -> object:
    read_header(path)
    return read_shard(path, 61)


def _mutate_records(data: bytes, chance: Chance) -> bytes:
    """Change the content of a record and put lengths and checksums right, or change bytes of the file."""
    if chance.draw.random() < 0.2:
        return chance.bytes(data)
    records, at = [], 0
    while at + HEADER.size <= len(data):
        length = HEADER.unpack_from(data, at)[0]
        if length > len(data):
            break
        records.append(data[at + HEADER.size : at + HEADER.size + length])
        at += HEADER.size + length + FOOTER.size
    if not records:
        return chance.bytes(data)
    number = chance.draw.randrange(len(records))
    records[number] = chance.bytes(records[number])
    content = b""
    for record in records:
        size = len(record).to_bytes(8, "little")
        content += size + FOOTER.pack(masked_crc32c(size)) + record + FOOTER.pack(masked_crc32c(record))
    return content


_SHARDS = "bert_trainer.dataset.shards"
_MODULES = {
    "compact": (f"{_SHARDS}.compact", f"{_SHARDS}.header"),
    "mlperf-variable": (f"{_SHARDS}.variable", f"{_SHARDS}.vlen_reader"),
    "mlperf-packed": (f"{_SHARDS}.variable", f"{_SHARDS}.vlen_reader"),
}
_WRITERS = ("write", "values", "columns", "rows_of", "packed_rows_of", "count_rows", "refuse_large_ids")
_IN_BLOCKS = ("make_index", "read_block", "is_hdf5", "block_counts", "_packed_rows", "read_counts")


def _seeds(layout: str) -> Any:
    def seeds(place: Path) -> Iterator[bytes]:
        yield _describe(_write(place, layout))

    return seeds


READERS = (
    *(
        Reader(
            name=f"shards-{layout}",
            read=_read_built,
            seeds=_seeds(layout),
            modules=_MODULES.get(layout, (f"{_SHARDS}.fixed", f"{_SHARDS}.header")),
            leaves_out=(*_WRITERS, *_IN_BLOCKS),
            mutate=mutate_json,
            file_name="description.json",
            most_bytes=1 << 15,
        )
        for layout in LAYOUTS
        if layout != "tfrecord"
    ),
    Reader(
        name="shards-hdf5-bytes",
        read=_read,
        seeds=lambda place: (_write(place, layout) for layout in LAYOUTS if layout != "tfrecord"),
        modules=(f"{_SHARDS}.header",),
        leaves_out=("is_hdf5",),
        file_name=_NAME,
        most_bytes=1 << 15,
    ),
    Reader(
        name="shards-tfrecord",
        read=_read,
        seeds=lambda place: iter([_write(place, "tfrecord")]),
        modules=(f"{_SHARDS}.tfrecord", f"{_SHARDS}.tfrecord_file", f"{_SHARDS}.examples"),
        leaves_out=(
            *("write", "write_records", "write_note", "encode_examples", "_encode_varints", "_part", "is_tfrecord"),
            *("without_suffix", "read", "has_tfrecord_name"),
        ),
        file_name="training_0.tfrecord",
        mutate=_mutate_records,
    ),
)
