"""TFRecord files of create_pretraining_data.py: TensorFlow's are read with all fields, wrong ones refused by record."""

from __future__ import annotations

import gzip
import json
import os
import resource
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_trainer.dataset.__main__ import main
from bert_trainer.dataset.shards import (
    ShardFolder,
    list_shards,
    read_blocks,
    read_header,
    read_ragged,
    read_ragged_blocks,
    read_shard,
    shard_name,
    write_shard,
)
from bert_trainer.dataset.shards.examples import encode_examples, parse_examples, parse_widths
from bert_trainer.dataset.shards.samples import Samples
from bert_trainer.dataset.shards.tfrecord_file import note_path, write_records
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
        vocabulary_sha256="a" * 64,
        generator_version=3,
        layout="tfrecord",
        shape=(T, P),
    )
    return path


def write_raw(path: Path, records: list[bytes]) -> Path:
    with path.open("wb") as file:
        write_records(file, records)
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


def test_records_become_hdf5_and_records_again_with_the_same_fields(tmp_path: Path) -> None:
    shutil.copy(THEIRS, tmp_path)
    there, back = tmp_path / "hdf5", tmp_path / "again"
    assert main(["convert", str(THEIRS), str(there), "--layout", "compact", "--processes", "1"]) == 0
    assert [path.name for path in list_shards(there)] == ["part-00000-of-00001.hdf5"]
    assert main(["convert", str(there), str(back), "--layout", "tfrecord", "--processes", "1"]) == 0
    (path,) = list_shards(back)
    assert path.name == "part-00000-of-00001.tfrecord"
    one, other = read_shard(THEIRS), read_shard(path)
    assert all(np.array_equal(getattr(one, name), getattr(other, name)) for name in Samples.__slots__)
    # A second run finds its work done: what HDF5 keeps as attributes is kept beside the records.
    before = path.stat().st_mtime_ns
    assert main(["convert", str(there), str(back), "--layout", "tfrecord", "--processes", "1"]) == 0
    assert path.stat().st_mtime_ns == before


@pytest.mark.usefixtures("no_collection")
def test_a_note_speaks_for_its_own_file_alone(tmp_path: Path) -> None:
    path = write(tmp_path / "training_0.tfrecord")
    header = read_header(path)
    assert (header.vocabulary_sha256, header.generator_version, header.layout) == ("a" * 64, 3, "tfrecord")
    # Hidden: TensorFlow's scripts take training* for their input.
    assert [found.name for found in tmp_path.glob("training*")] == ["training_0.tfrecord"]
    write_raw(path, encode_examples(some_samples(30)))
    header = read_header(path)
    assert (header.rows, header.vocabulary_sha256) == (30, None)
    note_path(path).write_text("[" * 5000)
    with pytest.raises(InputError, match=r"training_0\.tfrecord\.json: cannot be read"):
        read_header(path)


def test_a_pipe_in_the_place_of_a_note_is_not_waited_for(tmp_path: Path) -> None:
    path = write_raw(tmp_path / "training_0.tfrecord", encode_examples(some_samples(30)))
    os.mkfifo(note_path(path))
    header = read_header(path)
    assert (header.rows, header.vocabulary_sha256) == (30, None)


@pytest.mark.parametrize(
    ("name", "layout", "wanted"),
    [
        ("training_0.hdf5", "tfrecord", "training_0.tfrecord"),
        ("a.tfrecord", "compact", "a.hdf5"),
        ("a.tfrecords", "intel", "a.hdf5"),
        ("wiki.tfrecord-00001-of-00010", "compact", "wiki-00001-of-00010.hdf5"),
        ("part-00001-of-00010", "compact", "part-00001-of-00010.hdf5"),
        ("eval_10k", "mlperf", "eval_10k.hdf5"),
        ("a.h5", "mlperf", "a.h5"),
        ("part-00001-of-00010", "tfrecord", "part-00001-of-00010"),
    ],
)
def test_a_name_tells_the_kind_of_file(name: str, layout: Any, wanted: str) -> None:
    assert shard_name(name, layout) == wanted


def test_a_gap_in_tensorflow_s_numbering_is_found(tmp_path: Path) -> None:
    for number in (0, 2):
        write(tmp_path / f"training.tfrecord-0000{number}-of-00003")
    with pytest.raises(InputError, match=r"missing training\.tfrecord-00001-of-00003"):
        ShardFolder.open(tmp_path, split="training", sequence_length=T, max_predictions=P, vocabulary=None)


def frame(content: bytes) -> bytes:
    """Return one record with its lengths and checksums."""
    length = struct.pack("<Q", len(content))
    head, tail = masked_crc32c(length), masked_crc32c(content)
    return length + struct.pack("<I", head) + content + struct.pack("<I", tail)


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
    record = frame(make()) if case != "terabytes" else frame_of_length(1 << 40)
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


def test_a_dataset_is_built_as_records(tmp_path: Path, write_corpus: Callable[..., Path]) -> None:
    text = write_corpus(documents=20)
    command = ["build", "--text", str(text), "--length", "64:9", "--vocabulary-size", "120", "--shards", "2"]
    command += ["--processes", "1", "--dupe-factor", "1"]
    for name, layout in (("a", "compact"), ("b", "tfrecord")):
        assert main([*command, "--output", str(tmp_path / name), "--layout", layout]) == 0
    folder = tmp_path / "b" / "seq_len_64_max_pred_9"
    assert [path.name for path in list_shards(folder)] == [
        "held_out_0000.tfrecord",
        "training_0000.tfrecord",
        "training_0001.tfrecord",
    ]
    for path in list_shards(folder):
        one, other = read_shard(path), read_shard(tmp_path / "a" / folder.name / f"{path.stem}.hdf5")
        assert all(np.array_equal(getattr(one, name), getattr(other, name)) for name in Samples.__slots__)
    assert main(["verify", str(tmp_path / "b")]) == 0
    # The dataset may be converted as a whole: dataset.json then names the new files.
    assert main(["convert", str(tmp_path / "b"), str(tmp_path / "c"), "--layout", "compact", "--processes", "1"]) == 0
    assert main(["verify", str(tmp_path / "c")]) == 0
    assert main(["inspect", str(folder), "--samples", "1"]) == 0
