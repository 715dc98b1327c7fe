"""Writes shards in every layout that is read: by the product where it writes one, else as other programs' files are.

MLPerf's layouts without padding (``mlperf-variable``, ``mlperf-packed``) and Google's TFRecords are read by the
product alone.
"""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from bert_trainer.checkpoints.protobuf_wire import encode_fields, write_varint
from bert_trainer.dataset.shards import WRITTEN_LAYOUTS, LayoutName
from bert_trainer.dataset.shards import write_shard as write_by_the_product
from bert_trainer.dataset.shards.examples import FEATURES, WEIGHTS
from bert_trainer.dataset.shards.ragged import RaggedSamples
from bert_trainer.dataset.shards.samples import Samples
from bert_trainer.dataset.shards.tfrecord_file import FOOTER
from bert_trainer.system.crc32c import masked_crc32c
from packing import pack


def shard_name(name: str, layout: LayoutName) -> str:
    """Return the name of a shard: of a TFRecord file with its suffix."""
    return str(Path(name).with_suffix(".tfrecord")) if layout == "tfrecord" else name


def write_shard(
    path: Path,
    samples: Samples | RaggedSamples,
    *,
    vocabulary_sha256: str | None,
    generator_version: int | None,
    layout: LayoutName = "compact",
    shape: tuple[int, int] | None = None,
    masked: bool = True,
) -> None:
    """Write one file; arguments as the product's ``write_shard``. Records hold no attributes."""
    if written := next((name for name in WRITTEN_LAYOUTS if name == layout), None):
        write_by_the_product(
            path,
            samples,
            vocabulary_sha256=vocabulary_sha256,
            generator_version=generator_version,
            layout=written,
            shape=shape,
            masked=masked,
        )
        return
    assert masked, "only the compact layout holds samples without masks"
    if shape is None:
        assert isinstance(samples, Samples), "only padded samples state their shape"
        shape = (samples.input_ids.shape[1], samples.masked_lm_positions.shape[1])
    if layout == "tfrecord":
        padded = samples.to_padded(*shape) if isinstance(samples, RaggedSamples) else samples
        path.write_bytes(b"".join(map(frame_record, encode_examples(padded))))
        return
    ragged = RaggedSamples.from_padded(samples) if isinstance(samples, Samples) else samples
    # In memory first: a file with times of its own has other bytes each time.
    with h5py.File(path.name, "w", driver="core", backing_store=False) as file:
        _write_variable(file, *(_pack(ragged, shape[0]) if layout == "mlperf-packed" else (ragged, None)))
        attributes = {"sequence_length": shape[0], "max_predictions": shape[1], "generator_version": generator_version}
        for name, value in attributes.items():
            if value is not None:
                file.attrs[name] = value
        if vocabulary_sha256 is not None:
            file.attrs["vocabulary_sha256"] = np.bytes_(vocabulary_sha256.encode())
        file.flush()
        path.write_bytes(file.id.get_file_image())


def _pack(samples: RaggedSamples, sequence_length: int) -> tuple[RaggedSamples, NDArray[np.int64]]:
    """Return samples in the order in which they are packed, and how many share each row: at most three, by best fit."""
    packs = pack(samples.token_counts, sequence_length)
    order = np.array([sample for one in packs for sample in one], dtype=np.int64)
    return samples.take(order), np.array([len(one) for one in packs], dtype=np.int64)


def _write_variable(file: h5py.File, samples: RaggedSamples, per_row: NDArray[np.int64] | None) -> None:
    """Write rows of variable length, one dataset after the other. per_row: samples of each packed row."""
    num_rows = len(samples) if per_row is None else len(per_row)
    row_of_sample = np.arange(num_rows) if per_row is None else np.repeat(np.arange(num_rows), per_row)
    row_tokens = np.bincount(row_of_sample, samples.token_counts, num_rows).astype(np.int64)
    row_predictions = np.bincount(row_of_sample, samples.prediction_counts, num_rows).astype(np.int64)
    # Positions count from the start of the row that a sample is packed into.
    offsets = samples.token_starts - np.repeat(np.cumsum(row_tokens) - row_tokens, np.bincount(row_of_sample))
    positions = samples.masked_lm_positions + np.repeat(offsets, samples.prediction_counts)
    places = np.arange(len(samples.tokens)) - np.repeat(samples.token_starts, samples.token_counts)
    segments = places >= np.repeat(samples.first_segment_counts, samples.token_counts)
    _write_rows(file, "input_ids", "<i2", samples.tokens, row_tokens)
    _write_rows(file, "segment_ids", "|i1", segments, row_tokens)
    _write_rows(file, "masked_lm_positions", "<i2", positions, row_predictions)
    _write_rows(file, "masked_lm_ids", "<i2", samples.masked_lm_ids, row_predictions)
    if per_row is None:
        file.create_dataset("next_sentence_labels", data=samples.next_sentence_labels, dtype="|i1")
        return
    _write_rows(file, "next_sentence_labels", "|i1", samples.next_sentence_labels, per_row)
    _write_rows(file, "packed_input_len", "<i2", samples.token_counts, per_row)
    _write_rows(file, "packed_masked_lm_len", "<i2", samples.prediction_counts, per_row)


def _write_rows(file: h5py.File, name: str, dtype: str, values: NDArray[np.integer], counts: NDArray[np.int64]) -> None:
    assert not values.size or int(values.max()) <= np.iinfo(np.dtype(dtype)).max
    dataset = file.create_dataset(name, (len(counts),), dtype=h5py.vlen_dtype(np.dtype(dtype)))
    if not len(counts):
        return
    cells = np.empty(len(counts), dtype=dataset.dtype)
    for row, content in enumerate(np.split(values.astype(dtype), np.cumsum(counts)[:-1])):
        cells[row] = content
    # Not by assignment: if all rows have the same length, h5py takes them for a matrix and refuses it.
    dataset.id.write(h5py.h5s.create_simple((len(counts),)), dataset.id.get_space(), cells)


def frame_record(record: bytes) -> bytes:
    """Return a record with its length and checksums, as a TFRecord file holds it."""
    length = len(record).to_bytes(8, "little")
    return length + FOOTER.pack(masked_crc32c(length)) + record + FOOTER.pack(masked_crc32c(record))


def encode_examples(samples: Samples) -> list[bytes]:
    """Return each sample as a ``tf.train.Example``, its features sorted as TensorFlow's deterministic writer does."""
    weights = (samples.masked_lm_positions > 0).astype("<f4")

    def feature(name: str, row: int) -> bytes:
        # FloatList or Int64List, packed.
        if name == WEIGHTS:
            return encode_fields({2: encode_fields({1: weights[row].tobytes()})})
        values: list[int] = getattr(samples, name)[row].reshape(-1).tolist()
        return encode_fields({3: encode_fields({1: b"".join(map(write_varint, values))})})

    def example(row: int) -> bytes:
        entries = [encode_fields({1: name.encode(), 2: feature(name, row)}) for name in FEATURES]
        return encode_fields({1: encode_fields({1: entries})})

    return [example(row) for row in range(len(samples))]
