"""Damaged and hostile checkpoints are refused by name, before memory is taken for what they claim.

Inputs: the kept checkpoint with bytes changed, and indices made for the purpose: well-formed tables whose entries
claim what no file holds. Observed: the message, and the memory that the refusal took.
"""

from __future__ import annotations

import os
import random
import shutil
import struct
from collections.abc import Iterable
from pathlib import Path

import pytest

from bert_trainer.checkpoints.leveldb_table import MAX_ENTRIES, write_table
from bert_trainer.checkpoints.protobuf_wire import encode_fields, write_varint
from bert_trainer.checkpoints.tensorflow_bundle import open_bundle
from bert_trainer.checkpoints.tensorflow_import import read_tensorflow_checkpoint
from bert_trainer.errors import InputError
from bert_trainer.system.crc32c import masked_crc32c
from memory_of_refusals import refuse_all
from tensorflow_cases import GOOGLE, MLPERF, SMALL, model_of

TERABYTES = 1 << 42
TRAILER_BYTES = 5
EMPTY_BLOCK = struct.pack("<IIB", 0, 1, 0)
HEADER = (b"", encode_fields({1: 1, 3: encode_fields({1: 1})}))
TABLE, POSITIONS = "bert/embeddings/word_embeddings", "bert/embeddings/position_embeddings"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return shutil.copytree(GOOGLE, tmp_path / "google")


def entry(
    *shape: int, dtype: int = 1, shard: int = 0, offset: int = 0, size: int | None = None, **others: int
) -> bytes:
    """Return the message of a tensor; its size is that of float32 where none is given."""
    count = 4
    for length in shape:
        count *= length
    place = {1: dtype, 2: encode_fields({2: [encode_fields({1: length}) for length in shape]}), 3: shard}
    rest = {4: offset, 5: count if size is None else size, **{int(name[1:]): value for name, value in others.items()}}
    return encode_fields({**place, **rest}, {6: 0})


def write_index(folder: Path, entries: Iterable[tuple[str, bytes]]) -> None:
    named = [(name.encode(errors="surrogateescape"), value) for name, value in entries]
    (folder / "bert_model.ckpt.index").write_bytes(write_table([HEADER, *named]))


def refusal(path: Path) -> str:
    """Return why a checkpoint is refused."""
    with pytest.raises(InputError) as caught:
        read_tensorflow_checkpoint(path, model_of(SMALL))
    message = str(caught.value)
    assert "got" in message
    assert "allowed" in message
    return message


def test_the_checksum_is_the_one_of_the_standard() -> None:
    # RFC 3720, B.4: 32 bytes of zeros have 0x8a9136aa.
    crc = 0x8A9136AA
    assert masked_crc32c(bytes(20), bytes(12)) == (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


@pytest.mark.parametrize("at", [0, 700, 1500, 1700, 1745, 1788])
def test_a_changed_byte_of_the_index_is_noticed(folder: Path, at: int) -> None:
    path = folder / "bert_model.ckpt.index"
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    assert f"{path}: not a readable index of a TensorFlow checkpoint: got " in refusal(folder)


def test_a_changed_byte_of_a_tensor_is_noticed(folder: Path) -> None:
    path = folder / "bert_model.ckpt.data-00000-of-00001"
    content = bytearray(path.read_bytes())
    content[5000] ^= 1
    path.write_bytes(content)
    message = refusal(folder)
    assert message.startswith(f"{path}: bert/encoder/layer_1/")
    assert "bytes with checksum 0x" in message


@pytest.mark.parametrize("length", [0, 47, 48, 1000, 1788])
def test_an_index_that_is_cut_off_is_noticed(folder: Path, length: int) -> None:
    path = folder / "bert_model.ckpt.index"
    path.write_bytes(path.read_bytes()[:length])
    assert refusal(folder).startswith(f"{path}: not a readable index of a TensorFlow checkpoint: got ")


def test_a_data_file_that_is_cut_off_is_noticed_without_reading_it(folder: Path) -> None:
    path = folder / "bert_model.ckpt.data-00000-of-00001"
    path.write_bytes(path.read_bytes()[:-1])
    assert f"{path}: got 9299 bytes; allowed: the 9300 that the index names\nhint: copy" in refusal(folder)


def test_a_missing_data_file_is_named(tmp_path: Path) -> None:
    folder = shutil.copytree(MLPERF, tmp_path / "mlperf")
    (folder / "model.ckpt-28252.data-00001-of-00003").unlink()
    assert refusal(folder).startswith(f"{folder}/model.ckpt-28252.data-00001-of-00003: got no such file")


ENTRIES = {
    "terabytes that are not there": ([(TABLE, entry(TERABYTES))], "got 9300 bytes; allowed: the 17592186044416"),
    "dimensions whose product has no bound": (
        [("strings", entry(*[2**62] * 32, dtype=7, size=64))], "904]; allowed: 72057594037927936 elements"
    ),
    "too many dimensions": ([(TABLE, entry(*[1] * 33))], "got 33 dimensions; allowed: 32"),
    "a negative dimension": ([(TABLE, entry(-4, size=16))], "got shape [-4], 16 bytes at byte 0"),
    "a negative size": ([(TABLE, entry(4, size=-16))], "got shape [4], -16 bytes at byte 0"),
    "a negative offset": ([(TABLE, entry(4, offset=-16))], "got shape [4], 16 bytes at byte -16"),
    "an offset behind the end": ([(TABLE, entry(4, offset=TERABYTES))], "got 9300 bytes; allowed: the 4398046511120"),
    "another size than its shape's": ([(TABLE, entry(27, 8, size=860))], "got 860 bytes; allowed: 864"),
    "a data file beyond the last": ([(TABLE, entry(4, shard=1))], "got data file number 1; allowed: below 1"),
    "tensors that overlap": (
        [("a", entry(4)), ("b", entry(4, offset=12))], "b: got byte 12 of data file 0 as its first; allowed: 16"
    ),
    "a type that is no number": ([(TABLE, entry(27, 8, dtype=7))], "got type string; allowed: whole tensors of"),
    "a partitioned variable": ([(TABLE, entry(27, 8, f7=1))], "got a partitioned variable; allowed: whole tensors"),
    "a name that is no text": ([("\udcff", entry(4))], "got a tensor called b'\\xff'; allowed: names in UTF-8"),
    "a dimension that is no message": (
        [(TABLE, encode_fields({1: 1, 2: encode_fields({2: 3})}))], "got field 2 as an integer; allowed: a message"
    ),
    "a message that is cut off": ([(TABLE, b"\x12\x7f\x00")], "got field 2 of 127 bytes; allowed: the 1 that are left"),
    "a field of groups": ([(TABLE, b"\x0b")], "got field 1 of wire type 3; allowed: 0, 1, 2, 5"),
    "a message of fields alone": (
        [(TABLE, b"".join(write_varint(number << 3) + b"\0" for number in range(1, 10_000)))],
        "got more than 64 fields in a message; allowed: those of a checkpoint's index",
    ),
    "an integer without end": ([(TABLE, b"\x08" + b"\xff" * 11)], "got an integer of more than 10 bytes"),
    "a checkpoint of tensorflow 2": (
        [("_CHECKPOINTABLE_OBJECT_GRAPH", entry(dtype=7, size=9))], "got a checkpoint of TensorFlow 2"
    ),
    "a table of another width": ([(TABLE, entry(27, 9))], "got shape [27, 9]; allowed: [27, 8], this run's"),
}  # fmt: skip


@pytest.mark.parametrize(("entries", "complaint"), ENTRIES.values(), ids=ENTRIES)
def test_claims_are_checked(folder: Path, entries: list[tuple[str, bytes]], complaint: str) -> None:
    write_index(folder, entries)
    assert complaint in refusal(folder)


def claim_rows_of_terabytes(folder: Path) -> None:
    """Let a table of words claim terabytes, in a file of holes that has them."""
    with (folder / "bert_model.ckpt.data-00000-of-00001").open("rb+") as file:
        file.truncate(2 * TERABYTES)
    write_index(folder, [(TABLE, entry(TERABYTES // 32, 8))])


def test_a_sparse_file_of_terabytes_is_not_read(folder: Path) -> None:
    """The claims agree with the file, whose holes take no room; reading it would."""
    rows = TERABYTES // 32
    with (folder / "bert_model.ckpt.data-00000-of-00001").open("wb") as file:
        file.truncate(2 * TERABYTES)
    write_index(folder, [("another/table", entry(rows, 8)), (POSITIONS, entry(rows, 8, offset=TERABYTES))])
    tensors, _ = read_tensorflow_checkpoint(folder, model_of(SMALL))
    assert {name: (str(tensor.device), tuple(tensor.shape)) for name, tensor in tensors.items()} == {
        "another/table": ("meta", (rows, 8)),
        "embeddings.positions.weight": ("meta", (rows, 8)),
    }
    claim_rows_of_terabytes(folder)
    assert f"got shape [{rows}, 8]; allowed: [27, 8], this run's, and at most 4096 rows of padding" in refusal(folder)


def test_a_compressed_index_is_named(folder: Path) -> None:
    block = b"anything"
    content = block + b"\x01" + struct.pack("<I", masked_crc32c(block, b"\x01"))
    handle = write_varint(0) + write_varint(len(block))
    footer = (handle + handle).ljust(40, b"\0") + (0xDB4775248B80FB57).to_bytes(8, "little")
    (folder / "bert_model.ckpt.index").write_bytes(content + footer)
    assert "got a block compressed by Snappy; allowed: uncompressed ones" in refusal(folder)


def table_of(block: bytes, *, repeated: int = 1) -> bytes:
    """Return a table whose index names one block of data again and again."""
    content = bytearray()

    def append(part: bytes) -> bytes:
        handle = write_varint(len(content)) + write_varint(len(part))
        content.extend(part + b"\0" + struct.pack("<I", masked_crc32c(part, b"\0")))
        return handle

    handle = append(block)
    one = b"\0\1" + write_varint(len(handle)) + b"k" + handle
    footer = handle + append(one * repeated + struct.pack("<II", 0, 1))
    return bytes(content) + footer.ljust(40, b"\0") + (0xDB4775248B80FB57).to_bytes(8, "little")


def block_of(entries: Iterable[tuple[int, bytes, bytes]]) -> bytes:
    """Return a block of entries: bytes shared with the key before, the others, the value."""
    written = b"".join(
        write_varint(shared) + write_varint(len(other)) + write_varint(len(value)) + other + value
        for shared, other, value in entries
    )
    return written + struct.pack("<II", 0, 1)


BLOCKS = {
    "keys that grow without end": (
        table_of(block_of([(0, *HEADER), *((number, b"k", b"") for number in range(2000))])),
        "got an entry with 1024 + 1 bytes of key and 0 of value",
    ),
    "a key that shares more than there is": (table_of(block_of([(0, *HEADER), (5, b"k", b"")])), "at most 0 shared"),
    "the same key again": (
        table_of(block_of([(0, *HEADER), (0, b"k", b""), (1, b"", b"")])),
        "got key b'k' behind b'k'",
    ),
    "the same block again": (table_of(block_of([(0, *HEADER)]), repeated=2), "got a block at byte 0; allowed: byte "),
    "a value that is longer than the block": (table_of(b"\0\0\x7f" + struct.pack("<II", 0, 1)), "and 127 of value"),
    "restarts beyond the block": (table_of(struct.pack("<II", 0, 2**31)), "with 2147483648 restarts"),
    "no entries": (table_of(struct.pack("<II", 0, 1)), "got no header; allowed: one under the empty key"),
    "a big-endian machine's": (table_of(block_of([(0, b"", b"\x08\x01\x10\x01")])), "got big-endian tensors"),
    "a later version's": (table_of(block_of([(0, b"", b"\x08\x01\x1a\x02\x10\x02")])), "for readers of version 2"),
    "no data files": (table_of(block_of([(0, b"", b"")])), "got 0 data files; allowed: 1 to 99999"),
}


@pytest.mark.parametrize(("content", "complaint"), BLOCKS.values(), ids=BLOCKS)
def test_tables_that_would_not_come_from_tensorflow_are_refused(folder: Path, content: bytes, complaint: str) -> None:
    (folder / "bert_model.ckpt.index").write_bytes(content)
    assert complaint in refusal(folder)


def test_all_of_them_together_cost_less_than_100_mb(tmp_path: Path) -> None:
    cases = {}
    for case in (*ENTRIES, *BLOCKS, "fields alone", "terabytes"):
        folder = shutil.copytree(GOOGLE, tmp_path / case.replace(" ", "-"))
        cases[case] = [str(folder), "--format", "tensorflow"]
        if case in BLOCKS:
            (folder / "bert_model.ckpt.index").write_bytes(BLOCKS[case][0])
        elif case in ENTRIES:
            write_index(folder, ENTRIES[case][0])
        elif case == "fields alone":
            fields = b"".join(write_varint(number << 3) + b"\0" for number in range(1, 1_000_000))
            write_index(folder, [(TABLE, fields)])
        else:
            claim_rows_of_terabytes(folder)
    messages, grown_mb = refuse_all([str(GOOGLE), "--format", "tensorflow"], cases, tmp_path)
    assert [case for case in cases if "bert_model.ckpt" not in messages[case]] == []
    assert max(grown_mb.values()) < 100, grown_mb


def test_whatever_an_index_says_it_is_read_or_refused(folder: Path) -> None:
    """The kept index with some bytes of its entries changed, taken out or put in, and right checksums."""
    path, model, chance = folder / "bert_model.ckpt.index", model_of(SMALL), random.Random(1)
    # The only block of data ends where its own trailer, the empty meta index and the rest begin.
    content = path.read_bytes()
    block = content[: content.index(EMPTY_BLOCK) - TRAILER_BYTES]
    path.write_bytes(table_of(block))
    assert len(read_tensorflow_checkpoint(folder, model)[0]) == 46
    refused = 0
    for _ in range(300):
        changed = bytearray(block)
        for _ in range(chance.choice([1, 1, 2, 5])):
            at = chance.randrange(len(changed))
            put_in = bytes(chance.choice([0, 1, 0x7F, 0x80, 0xFF]) for _ in range(chance.randrange(3)))
            changed[at : at + chance.randrange(3)] = put_in
        path.write_bytes(table_of(bytes(changed)))
        try:
            read_tensorflow_checkpoint(folder, model)
        except InputError:
            refused += 1
    assert refused > 200


def test_more_entries_than_any_bert_has_are_refused(folder: Path) -> None:
    content = write_table([HEADER, *((b"%09d" % number, b"") for number in range(MAX_ENTRIES))])
    (folder / "bert_model.ckpt.index").write_bytes(content)
    assert f"got more than {MAX_ENTRIES} entries" in refusal(folder)


def test_a_value_larger_than_any_tensor_s_is_not_looked_into(folder: Path) -> None:
    value = b"\x12" + write_varint(2 << 20) + b"\x12\0" * (1 << 20)
    write_index(folder, [(TABLE, value)])
    assert f"{len(value)} of value; allowed: at most" in refusal(folder)


@pytest.mark.parametrize("shape", [(0, 8), (4,)])
def test_a_pipe_for_tensors_is_not_waited_for(folder: Path, shape: tuple[int, ...]) -> None:
    path = folder / "bert_model.ckpt.data-00000-of-00001"
    path.unlink()
    os.mkfifo(path)
    write_index(folder, [("anything", entry(*shape))])
    assert f"{path}: got a folder, a pipe or a device; allowed: a file" in refusal(folder)


@pytest.mark.parametrize("rows", [0, 26])
def test_a_table_with_fewer_rows_than_the_vocabulary_is_refused(folder: Path, rows: int) -> None:
    write_index(folder, [(TABLE, entry(rows, 8))])
    assert f"got shape [{rows}, 8]; allowed: [27, 8], this run's" in refusal(folder)


def test_an_index_larger_than_any_berts_is_not_read(folder: Path) -> None:
    with (folder / "bert_model.ckpt.index").open("r+b") as file:
        file.truncate(TERABYTES)
    assert f"bert_model.ckpt.index: got {TERABYTES} bytes; allowed: 16777216" in refusal(folder)


def test_slices_of_a_partitioned_variable_are_no_tensors(folder: Path) -> None:
    write_index(folder, [("\0slice", entry(4)), ("bert/pooler/dense/bias", entry(8))])
    assert list(open_bundle(folder / "bert_model.ckpt").entries) == ["bert/pooler/dense/bias"]


def test_distilbert_has_no_such_checkpoints() -> None:
    model = model_of(SMALL, architecture="distilbert", objective="mlm")
    with pytest.raises(InputError, match=r"google: got model.architecture 'distilbert'; allowed: 'bert'"):
        read_tensorflow_checkpoint(GOOGLE, model)
