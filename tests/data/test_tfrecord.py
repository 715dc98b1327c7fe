"""TFRecord files of create_pretraining_data.py: TensorFlow's are read with all fields, wrong ones refused by record."""

from __future__ import annotations

import gzip
import json
import resource
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from any_layout import encode_examples, frame_record, write_shard
from bert_trainer.dataset.__main__ import main
from bert_trainer.dataset.shards import (
    ShardFolder,
    list_shards,
    read_blocks,
    read_header,
    read_ragged,
    read_ragged_blocks,
    read_shard,
    written_name,
)
from bert_trainer.dataset.shards.examples import parse_examples, parse_widths
from bert_trainer.dataset.shards.samples import Samples
from bert_trainer.errors import InputError
from bert_trainer.system.crc32c import masked_crc32c
from tiny_run import make_samples

KEPT = Path(__file__).parents[1] / "fixtures" / "tensorflow-records"
THEIRS = KEPT / "part-00000-of-00001"
T, P = 32, 5


def some_samples(rows: int = 60) -> Samples:
    return make_samples(rows, np.random.default_rng(3), sequence_length=T, predictions=P)


def write(path: Path, samples: Samples | None = None) -> Path:
    write_shard(
        path,
        some_samples() if samples is None else samples,
        vocabulary_sha256=None,
        generator_version=None,
        layout="tfrecord",
        shape=(T, P),
    )
    return path


def write_raw(path: Path, records: list[bytes]) -> Path:
    path.write_bytes(b"".join(map(frame_record, records)))
    return path


def test_all_fields_of_tensorflow_s_records_are_read() -> None:
    rows = json.loads((KEPT / "rows.json").read_text())
    found = read_shard(THEIRS)
    assert len(found) == 40
    for name in ("input_ids", "input_mask", "segment_ids", "masked_lm_positions", "masked_lm_ids"):
        assert getattr(found, name).tolist() == [row[name] for row in rows], name
    assert found.next_sentence_labels.tolist() == [row["next_sentence_labels"][0] for row in rows]
    content = THEIRS.read_bytes()
    (length,) = struct.unpack_from("<Q", content)
    record = np.frombuffer(content[12 : 12 + length], np.uint8)
    widths = parse_widths(record.tobytes())
    _, weights = parse_examples(record, np.array([0]), np.array([length]), widths)
    assert weights.tolist() == [rows[0]["masked_lm_weights"]]


def test_a_record_is_what_tensorflow_writes() -> None:
    # But for the order of the features, which TensorFlow leaves open: of these rows one alone has the sorted one.
    content, at, theirs = THEIRS.read_bytes(), 0, []
    while at < len(content):
        (length,) = struct.unpack_from("<Q", content, at)
        theirs.append(content[at + 12 : at + 12 + length])
        at += length + 16
    ours = encode_examples(read_shard(THEIRS))
    assert [len(record) for record in ours] == [len(record) for record in theirs]
    assert all(sorted(one) == sorted(other) for one, other in zip(ours, theirs, strict=True))


def test_checksums_are_those_of_the_standard() -> None:
    # The check value of CRC-32C, and RFC 3720's example of 32 zeros; the mask rotates by 15 bits and adds.
    for text, plain in ((b"123456789", 0xE3069283), (bytes(32), 0x8A9136AA)):
        assert masked_crc32c(text) == ((plain >> 15 | plain << 17) + 0xA282EAD8) & 0xFFFFFFFF


def test_a_folder_of_records_is_opened_as_one_of_shards(tmp_path: Path) -> None:
    shutil.copy(THEIRS, tmp_path)
    # The text that the records were made from has the same kind of name.
    (tmp_path / "part-00000-of-00001.txt").write_text("text\n")
    (tmp_path / "notes").write_text("no record\n")
    folder = ShardFolder.open(tmp_path, split="training", sequence_length=64, max_predictions=10, vocabulary=None)
    assert (folder.rows, folder.num_samples) == ((40,), 40)
    whole = folder.read_ragged(0).to_padded(64, 10)
    part = folder.read_ragged(0, slice(7, 31)).to_padded(64, 10)
    assert part.input_ids.tolist() == whole.input_ids[7:31].tolist()
    assert part.next_sentence_labels.tolist() == whole.next_sentence_labels[7:31].tolist()
    blocks = [block.to_padded(64, 10) for block in read_ragged_blocks(tmp_path / "part-00000-of-00001")]
    assert np.array_equal(Samples.concatenate(blocks).input_ids, whole.input_ids)
    padded = Samples.concatenate(list(read_blocks(tmp_path / "part-00000-of-00001")))
    assert np.array_equal(padded.masked_lm_ids, whole.masked_lm_ids)


def test_records_become_hdf5_with_the_same_fields(tmp_path: Path) -> None:
    command = ["convert", str(THEIRS), str(tmp_path), "--layout", "compact", "--processes", "1"]
    assert main(command) == 0
    (path,) = list_shards(tmp_path)
    assert path.name == "part-00000-of-00001.hdf5"
    one, other = read_shard(THEIRS), read_shard(path)
    assert all(np.array_equal(getattr(one, name), getattr(other, name)) for name in Samples.__slots__)
    # A second run finds its work done.
    before = path.stat().st_mtime_ns
    assert main(command) == 0
    assert path.stat().st_mtime_ns == before


def test_a_header_states_what_the_records_do() -> None:
    header = read_header(THEIRS)
    assert (header.rows, header.sequence_length, header.max_predictions) == (40, 64, 10)
    assert (header.vocabulary_sha256, header.generator_version, header.layout) == (None, None, "tfrecord")


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("training_0.hdf5", "training_0.hdf5"),
        ("a.tfrecord", "a.hdf5"),
        ("a.tfrecords", "a.hdf5"),
        ("wiki.tfrecord-00001-of-00010", "wiki-00001-of-00010.hdf5"),
        ("part-00001-of-00010", "part-00001-of-00010.hdf5"),
        ("eval_10k", "eval_10k.hdf5"),
        ("a.h5", "a.h5"),
    ],
)
def test_a_converted_file_has_the_name_of_its_source(name: str, wanted: str) -> None:
    assert written_name(name) == wanted


def test_a_gap_in_tensorflow_s_numbering_is_found(tmp_path: Path) -> None:
    for number in (0, 2):
        write(tmp_path / f"training.tfrecord-0000{number}-of-00003")
    with pytest.raises(InputError, match=r"missing training\.tfrecord-00001-of-00003"):
        ShardFolder.open(tmp_path, split="training", sequence_length=T, max_predictions=P, vocabulary=None)


def changed(**values: Any) -> bytes:
    """Return a record of another row, in which some fields are replaced."""
    samples = some_samples(1)
    fields = {name: np.array(values.get(name, getattr(samples, name))) for name in Samples.__slots__}
    return encode_examples(Samples(**fields))[0]


def renamed(old: bytes, new: bytes) -> bytes:
    record = encode_examples(some_samples(1))[0]
    assert record.count(old) == 1
    return record.replace(old, new)


CASES: dict[str, tuple[Callable[[], bytes], str]] = {
    "another feature": (lambda: renamed(b"input_mask", b"input_tusk"), "record 60 holds the feature 'input_tusk'"),
    "a feature of the same name": (
        lambda: renamed(b"masked_lm_ids", b"segment_ids\0\0"),
        "record 60 holds the feature",
    ),
    "no example": (lambda: b"\xff" * 400, "record 60 has the tag 255 where its features begins"),
    "other lengths": (
        lambda: encode_examples(make_samples(1, np.random.default_rng(0), sequence_length=2 * T, predictions=P))[0],
        "record 60 holds 64 values of 'input_ids'; allowed: 32",
    ),
    "a label of 2": (lambda: changed(next_sentence_labels=[2]), "holds 0 to 2, allowed 0 to 1"),
    "a position behind the row": (lambda: changed(masked_lm_positions=[[T + 1, 0, 0, 0, 0]]), "allowed 0 to 31"),
    "a token of no vocabulary": (
        lambda: changed(input_ids=[[1 << 30] * T]),
        r"the largest token id in 'input_ids' is 1073741824",
    ),
    "terabytes": (lambda: b"", "states a length of 1099511627776 bytes; allowed"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_wrong_record_is_refused_by_its_number(tmp_path: Path, case: str) -> None:
    make, wanted = CASES[case]
    path = write(tmp_path / "training_0.tfrecord")
    record = frame_record(make()) if case != "terabytes" else frame_of_length(1 << 40)
    with path.open("ab") as file:
        file.write(record)
    with pytest.raises(InputError, match=wanted) as error:
        read_ragged(path, vocabulary_size=1000)
    assert str(path) in str(error.value)
    assert error.value.hint


def frame_of_length(length: int) -> bytes:
    """Return a record that claims to be longer than it is, with a right checksum."""
    content = struct.pack("<Q", length)
    return content + struct.pack("<I", masked_crc32c(content)) + bytes(300)


def test_weights_that_differ_from_the_positions_are_refused(tmp_path: Path) -> None:
    record = encode_examples(some_samples(1))[0]
    half = record.replace(struct.pack("<f", 1), struct.pack("<f", 0.5), 1)
    path = write_raw(tmp_path / "training_0.tfrecord", [half])
    with pytest.raises(InputError, match=r"record 0: prediction 0 has weight 0\.5 and position \d+"):
        read_ragged(path)


def test_a_changed_byte_or_a_missing_end_is_found(tmp_path: Path) -> None:
    path = write(tmp_path / "training_0.tfrecord")
    content = path.read_bytes()
    rng = np.random.default_rng(5)
    for _ in range(60):
        damaged = bytearray(content)
        damaged[int(rng.integers(len(content)))] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=r"training_0\.tfrecord: damaged or not a TFRecord file: record \d+"):
            read_shard(path)
    for end in (5, 12, 100, len(content) - 1):
        path.write_bytes(content[:end])
        with pytest.raises(InputError, match="damaged or not a TFRecord file: record"):
            read_header(path)


def test_a_compressed_file_is_named_as_such(tmp_path: Path) -> None:
    path = write(tmp_path / "training_0.tfrecord")
    path.write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(InputError, match="got a TFRecord file compressed with gzip"):
        read_header(path)


def test_a_file_that_claims_terabytes_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "training_0.tfrecord"
    first = write(tmp_path / "other.tfrecord", some_samples(1)).read_bytes()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for length in (1 << 62, 1 << 40, 1 << 30):
        path.write_bytes(first + frame_of_length(length))
        with path.open("r+b") as file:
            file.truncate(1 << 42)  # sparse
        with pytest.raises(InputError, match=f"record 1 states a length of {length} bytes"):
            read_header(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # kB
