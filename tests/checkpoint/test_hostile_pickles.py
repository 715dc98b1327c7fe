"""Pickles that run no code and do harm all the same are refused before any of them is carried out.

Inputs: operations that PyTorch's restricted reader carries out: the same value copied again and again, keys whose hash
takes exponential time, memory by its size alone. Observed: the message; whoever carries them out says it after years.
"""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from types import MappingProxyType

import pytest
import torch
from torch import nn

from bert_trainer.checkpoints.pickle_scan import scan_pickles
from bert_trainer.checkpoints.tensor_files import read_pickled, read_pickled_tensors
from bert_trainer.errors import InputError
from weight_sources import load, nvidia_tensors, small_model, write_vocabulary

NONE, TUPLE1, TUPLE2, REDUCE, BUILD, MARK = b"N", b"\x85", b"\x86", b"R", b"b", b"("
MAP, LIST, ITEM, ITEMS = b"}", b"]", b"s", b"u"
ORDERED_MAP = b"ccollections\nOrderedDict\n"


def put(number: int) -> bytes:
    return b"r" + number.to_bytes(4, "little")


def get(number: int) -> bytes:
    return b"j" + number.to_bytes(4, "little")


def text(content: bytes) -> bytes:
    return b"X" + len(content).to_bytes(4, "little") + content


def write_archive(path: Path, operations: bytes, *, empty: int = 0) -> Path:
    """Write what ``torch.save`` does around these operations, and so many empty entries."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02" + operations + b".")
        archive.writestr("archive/version", "3\n")
        for number in range(empty):
            archive.writestr(f"archive/data/{number}", b"")
    return path


PICKLES = MappingProxyType({
    "text that is encoded again and again": (
        text(b"a" * (1 << 20)) + put(0) + text(b"latin1") + TUPLE2
        + (b"c_codecs\nencode\n" + get(0) + text(b"latin1") + TUPLE2 + REDUCE) * 30_000,
        "a pickled _codecs.encode",
    ),
    "a key that takes years to hash": (
        MAP + NONE + (put(0) + get(0) + TUPLE2) * 60 + NONE + ITEM, "a map with keys that are neither text nor numbers"
    ),
    "a key that is nested deeper than the stack": (
        MAP + MARK + NONE + TUPLE1 * 100_000 + NONE + ITEMS, "a map with keys that are neither text nor numbers"
    ),
    "elements under such a name": (
        NONE + (put(0) + get(0) + TUPLE2) * 60 + put(1) + text(b"storage") + get(1) + TUPLE2 + b"Q",
        "elements of a tensor under a name that is neither text nor a number",
    ),
    "copies of a long list": (
        MARK + NONE * 90_000 + b"t" + put(0) + (b"ctorch\nSize\n" + get(0) + TUPLE1 + REDUCE) * 50_000,
        "more than 300000 operations of pickle",
    ),
    "a list that grows behind its copies": (
        LIST + put(0) + TUPLE1 + put(1) + get(0) + MARK + NONE * 90_000 + b"e"
        + (b"ctorch\nSize\n" + get(1) + REDUCE) * 50_000,
        "more than 300000 operations of pickle",
    ),
    "maps of maps": (ORDERED_MAP + LIST + TUPLE1 + REDUCE, "a map that is made from another value"),
    "attributes of many maps": (
        MAP + put(0) + MARK + b"".join(text(b"%d" % number) + NONE for number in range(40_000)) + ITEMS
        + (ORDERED_MAP + b")" + REDUCE + get(0) + BUILD) * 50_000,
        "more than 300000 operations of pickle",
    ),
    "a tensor made by another call": (
        b"ctorch._tensor\n_rebuild_from_type_v2\n" + ORDERED_MAP + TUPLE1 + REDUCE,
        "a tensor that is made in another way than torch.save writes",
    ),
    "a storage that is called": (b"ctorch\nFloatStorage\n" + NONE + TUPLE1 + REDUCE, "a call of something else than"),
    "a tensor of any size": (b"ctorch\nTensor\nK\x08" + TUPLE1 + REDUCE, "a call of something else than PyTorch's"),
    "a storage of any size": (b"ctorch.storage\nUntypedStorage\n", "a pickled torch.storage.UntypedStorage"),
    "a name of control characters": (b"cos\n\x1b[31m\n", r"a pickled os.\\x1b\[31m, which would run code"),
})  # fmt: skip


@pytest.mark.parametrize(("operations", "complaint"), PICKLES.values(), ids=PICKLES)
def test_it_is_refused_by_name(tmp_path: Path, operations: bytes, complaint: str) -> None:
    path = write_archive(tmp_path / "ckpt_1.pt", operations)
    with pytest.raises(InputError, match=f"cannot be read .it holds {complaint}") as error:
        read_pickled(path)
    assert str(error.value).startswith(f"{path}: ")


def test_tuples_that_are_nested_deeper_than_the_stack_are_nothing_but_no_tensors(tmp_path: Path) -> None:
    path = write_archive(tmp_path / "ckpt_1.pt", MAP + text(b"a") + NONE + TUPLE1 * 100_000 + ITEM)
    with pytest.raises(InputError, match="a: got something other than tensors by name"):
        read_pickled_tensors(path)


def test_an_archive_of_empty_entries_is_refused(tmp_path: Path) -> None:
    path = write_archive(tmp_path / "ckpt_1.pt", MAP, empty=17_000)
    with pytest.raises(InputError, match=r"its directory claims \d{7} bytes; allowed: at most 1048576"):
        read_pickled(path)


def test_an_archive_of_many_tensors_is_read(tmp_path: Path) -> None:
    tensors = {f"layer.{number}.weight": torch.full((1,), float(number)) for number in range(3000)}
    torch.save(tensors, tmp_path / "ckpt_1.pt")
    assert read_pickled_tensors(tmp_path / "ckpt_1.pt") == tensors


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "before PyTorch 1.6"])
def test_what_trainers_save_is_read(tmp_path: Path, legacy: bool) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
    state = {"step": torch.tensor(1.0), "exp_avg": torch.ones(4, 3), "exp_avg_sq": torch.ones(4, 3)}
    groups = [{"lr": 1e-4, "betas": (0.9, 0.999), "fused": None, "amsgrad": False, "params": [0, 1]}]
    marked = nn.Parameter(torch.ones(2))
    marked.shared = True  # type: ignore[attr-defined]
    content = {
        "model": model.state_dict(),
        "optimizer": {"state": {0: state}, "param_groups": groups}, "master params": [marked],
        "files": ["a", 3, None], "shape": torch.Size([3, 4]), "type": torch.float16, "device": torch.device("cpu"),
    }  # fmt: skip
    path = tmp_path / "ckpt_1.pt"
    torch.save(content, path, _use_new_zipfile_serialization=not legacy)
    found = read_pickled(path)
    assert list(found) == list(content)
    assert torch.equal(found["model"]["0.weight"], model[0].weight)
    assert found["optimizer"]["param_groups"] == groups
    assert torch.equal(found["master params"][0], torch.ones(2))
    assert (found["files"], found["shape"], found["type"]) == (["a", 3, None], (3, 4), torch.float16)


def test_large_models_stay_far_below_the_bound(tmp_path: Path) -> None:
    names = [f"bert.encoder.layer.{number}.attention.self.query.weight" for number in range(400)]
    state = {number: dict.fromkeys(("exp_avg", "exp_avg_sq"), torch.ones(1)) for number in range(400)}
    content = {"model": dict.fromkeys(names, torch.ones(1)), "optimizer": {"state": state}}
    path = tmp_path / "large.pt"
    torch.save(content, path)
    with zipfile.ZipFile(path) as archive:
        operations = archive.read("large/data.pkl")
    scan_pickles(io.BytesIO(operations))


def test_a_step_on_no_device_is_refused(tmp_path: Path) -> None:
    vocabulary = write_vocabulary(tmp_path)
    tensors = nvidia_tensors(small_model())
    held = [name for name in tensors if "decoder.weight" not in name]
    decayed = [name for name in held if not any(word in name for word in ("bias", "gamma", "beta", "LayerNorm"))]
    groups = [{"params": [*range(len(decayed))]}, {"params": [*range(len(decayed), len(held))]}]
    others = [name for name in held if name not in decayed]
    state = {
        number: {"exp_avg": tensors[name], "exp_avg_sq": tensors[name].square(), "step": torch.ones(3)[:2]}
        for number, name in enumerate([*decayed, *others])
    }
    torch.save({"model": tensors, "optimizer": {"param_groups": groups, "state": state}}, tmp_path / "ckpt_1.pt")
    with pytest.raises(InputError, match="optimizer: step: got 2 of float32; allowed: a number"):
        load(tmp_path / "ckpt_1.pt", "nvidia", small_model(), vocabulary, what="weightsAndOptimizer")
