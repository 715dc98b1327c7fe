"""Files of tensors that others have written, read without running anything in them: safetensors, ``torch.save``.

What a file claims is compared with its own size before anything is allocated for it: tensors of a good file are mapped
into memory, not copied, and a bad one costs no more than its own bytes. Nothing here knows names or models.
"""

from __future__ import annotations

import io
import pickle
import re
import stat
import struct
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import Parameter

from bert_job.foreign_text import printable
from bert_trainer.checkpoints.pickle_scan import RefusedPickle, scan_pickles
from bert_trainer.errors import InputError
from bert_trainer.system.files import bytes_in_holes

MAX_HEADER_BYTES = 4 << 20
"""Of a safetensors file; BERT-large's has 40 kB. The format itself allows 100 MB, a million Python objects."""
MAX_PICKLE_BYTES = 4 << 20
"""Of the pickle inside a file of ``torch.save``, which holds everything but the tensors' elements: of BERT-large with
its optimizer's state and master weights, 0.2 MB."""
_MAX_NAME = 200
"""Characters of a tensor's name that a message shows: whoever wrote the file chose it."""
MAX_DIRECTORY_BYTES = 1 << 20
"""Of a file of ``torch.save``, which lists its storages at its end; BERT-large's with its optimizer's state, 0.2 MB. An
entry takes ten times as much memory as room in the file."""
# PyTorch's file before version 1.6: a magic number, a version, the machine, the content, the names of the storages.
_LEGACY_PICKLES = 5

# A damaged pickle may fail in any operation; these are what Python's and PyTorch's readers raise.
_UNREADABLE = (
    *(OSError, RuntimeError, EOFError, MemoryError, RecursionError, AssertionError, ArithmeticError),
    *(ValueError, TypeError, LookupError, AttributeError, SafetensorError, pickle.UnpicklingError, struct.error),
)
_ALLOWED_CONTENT = "tensors, numbers, text, and lists and maps of them"
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""Of weights: others need scales, which stand in no tensor of their name."""
_INTEGERS = (torch.int64, torch.int32)
_NUMBERS = "position_ids"
"""The last word of the names of tensors that count, which some programs store."""
_MAX_HOLES_BYTES = 64 << 20
"""Bytes of a file that no disk holds: a sparse copy leaves out pages of zeros, of which weights have few."""
_COPY_AGAIN = "copy it again, or have it written anew by the program that made it"


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file, by name; raises InputError where it is none."""
    try:
        check_header(path)
        return {name: _plain(f"{path}: ", name, tensor) for name, tensor in load_file(path).items()}
    except _UNREADABLE as error:
        raise _unreadable(path, error) from error


def check_header(path: Path) -> None:
    """Refuse a safetensors file whose header is too large to be one of a model.

    The library compares the offsets with the file's size, but parses a header of up to 100 MB first.

    Raises:
        InputError: it is.
        OSError: the file cannot be read.
    """
    _check_regular(path)
    with path.open("rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
    if header_bytes > min(MAX_HEADER_BYTES, path.stat().st_size):
        raise InputError(
            f"{path}: cannot be read (its header claims {header_bytes} bytes; allowed: at most {MAX_HEADER_BYTES}, "
            "inside the file)",
            hint=_COPY_AGAIN,
        )


def read_pickled_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file that ``torch.save`` wrote, by name; raises InputError where it holds others."""
    return tensors_by_name(path, read_pickled(path))


def read_pickled(path: Path) -> Any:
    """Return what ``torch.save`` wrote: tensors, numbers, text, and lists and maps of them.

    Raises:
        InputError: it cannot be read, or holds an object that would have to run code.
    """
    try:
        _check_regular(path)
        is_archive = zipfile.is_zipfile(path)
        if is_archive:
            _check_archive(path)
        else:
            _check_legacy(path)
        # What it warns of is refused below: tensors that are not plain.
        with warnings.catch_warnings(action="ignore", category=UserWarning):
            # weights_only: a pickle runs code otherwise. mmap: tensors then cost memory when they are used, not before.
            return torch.load(path, map_location="cpu", weights_only=True, mmap=is_archive)
    except pickle.UnpicklingError as error:
        raise _refused_object(path, error) from error
    except (*_UNREADABLE, zipfile.BadZipFile, NotImplementedError) as error:
        raise _unreadable(path, error) from error


def tensors_by_name(path: Path, content: Any, place: str = "") -> dict[str, Tensor]:
    """Check that what a file holds is plain tensors by name, and return it.

    Args:
        path: The file, for messages.
        content: What was read, as a whole or in part.
        place: Where in the file it stood, for messages.

    Raises:
        InputError: it is something else, or a tensor claims more elements than are stored.
    """
    where = f"{path}: {place}: " if place else f"{path}: "
    if not isinstance(content, Mapping) or not content:
        raise InputError(f"{where}got something other than tensors by name", hint=_COPY_AGAIN)
    if not all(isinstance(name, str | int) for name in content):
        raise InputError(f"{where}got a tensor whose name is neither text nor a number", hint=_COPY_AGAIN)
    return {str(name): _plain(where, str(name), tensor) for name, tensor in content.items()}


def scalar(where: str, value: object) -> object:
    """Return the number in a tensor of one element; anything else unchanged.

    Raises:
        InputError: a tensor without a number, such as one on no device.
    """
    if not isinstance(value, Tensor):
        return value
    _check_kind(where, value)
    if value.dtype not in _DTYPES + _INTEGERS or value.numel() != 1:
        raise InputError(f"{where}: got {value.numel()} of {_say(value.dtype)}; allowed: a number")
    return value.item()


def _plain(where: str, name: str, tensor: object) -> Tensor:
    place = f"{where}{printable(name)[:_MAX_NAME]}"
    tensor = _check_kind(place, tensor)
    if tensor.dtype not in _DTYPES + (_INTEGERS if name.endswith(_NUMBERS) else ()):
        raise InputError(
            f"{place}: got {_say(tensor.dtype)}; allowed: {', '.join(map(_say, _DTYPES))}",
            hint="save the model anew in one of them, without quantization",
        )
    return tensor.detach()


def _check_kind(where: str, tensor: object) -> Tensor:
    if (
        not isinstance(tensor, Tensor)
        or type(tensor) not in (Tensor, Parameter)
        or tensor.layout is not torch.strided
        or tensor.device.type != "cpu"
    ):
        raise InputError(f"{where}: got something other than tensors by name", hint=_COPY_AGAIN)
    # A step of 0 lets a few bytes pass for a tensor of any size, which the first computation would then fill.
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise InputError(f"{where}: claims the shape {list(tensor.shape)}; allowed: as many elements as are stored")
    return tensor


def _say(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _check_regular(path: Path) -> None:
    """Refuse pipes and devices, which never end or never begin, and files of holes; raises OSError where nothing is."""
    state = path.stat()
    if not stat.S_ISREG(state.st_mode):
        raise InputError(f"{path}: got a folder, a pipe or a device; allowed: a file", hint="name a file")
    if state.st_size > _MAX_HOLES_BYTES and (num_bytes := bytes_in_holes(path, _MAX_HOLES_BYTES)) > _MAX_HOLES_BYTES:
        raise InputError(
            f"{path}: got {num_bytes} bytes that were never written, of {state.st_size}; allowed: a whole file",
            hint=_COPY_AGAIN,
        )


def _stated_directory(path: Path) -> tuple[int, int] | None:
    """Return where a zip file's end records say that its directory begins and how long it is; None where they differ.

    Records by APPNOTE.TXT 6.3: the end record, size and offset at bytes 12 and 16, is the last 22 bytes without a
    comment; before it, where a file has ZIP64's, a locator of 20 bytes and a record of 56 with them at bytes 40 and 48.
    """
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 98))
        tail = file.read()
    end, locator, end_64 = tail[-22:], tail[-42:-22], tail[:-42]
    if len(end) < 22 or not end.startswith(b"PK\5\6"):
        return None
    sizes, offsets = {int.from_bytes(end[12:16], "little")}, {int.from_bytes(end[16:20], "little")}
    if locator.startswith(b"PK\6\7"):
        record = end_64[-56:]
        # All ones: only ZIP64's record can hold it.
        sizes = (sizes - {2**32 - 1}) | {int.from_bytes(record[40:48], "little")}
        offsets = (offsets - {2**32 - 1}) | {int.from_bytes(record[48:], "little")}
    return (offsets.pop(), sizes.pop()) if len(offsets) == len(sizes) == 1 else None


def _check_archive(path: Path) -> None:
    """Refuse a zip file that unpacks to more than itself; ``torch.save`` stores without compression."""
    size, stated = path.stat().st_size, _stated_directory(path)
    if stated is not None and max(size - stated[0], stated[1]) > MAX_DIRECTORY_BYTES:
        raise InputError(
            f"{path}: cannot be read (its directory claims {max(size - stated[0], stated[1])} bytes; allowed: at most "
            f"{MAX_DIRECTORY_BYTES})",
            hint=_save_anew(path),
        )
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        # Python looks for the directory right before its end record, PyTorch where that record says: a file with two
        # directories would show each its own.
        if stated is None or stated[0] != archive.start_dir:
            raise InputError(f"{path}: cannot be read (two directories of entries)", hint=_COPY_AGAIN)
        if any(
            entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size for entry in entries
        ):
            raise InputError(
                f"{path}: cannot be read (compressed entries; allowed: stored ones, as torch.save writes them)",
                hint=_COPY_AGAIN,
            )
        if sum(entry.file_size for entry in entries) > size:
            raise InputError(f"{path}: cannot be read (its entries claim more than its {size} bytes)", hint=_COPY_AGAIN)
        for entry in entries:
            # PyTorch looks for data.pkl in any case.
            if not entry.filename.lower().endswith(".pkl"):
                continue
            if entry.file_size > MAX_PICKLE_BYTES:
                raise InputError(
                    f"{path}: {printable(entry.filename)[:200]}: got {entry.file_size} bytes of pickle; allowed: "
                    f"{MAX_PICKLE_BYTES}, since tensors lie outside it",
                    hint=_save_anew(path),
                )
            _check_pickles(path, archive.read(entry))


def _check_legacy(path: Path) -> None:
    """Refuse a file whose pickles, all of them at its beginning, are too large, or none of tensors; raises as below."""
    with path.open("rb") as file:
        _check_pickles(path, file.read(MAX_PICKLE_BYTES), _LEGACY_PICKLES)


def _check_pickles(path: Path, content: bytes, count: int = 1) -> None:
    """Refuse pickles that are not of tensors by name, or would make much more of their bytes.

    Raises:
        InputError: they would.
        ValueError: there are not that many.
        LookupError: they are damaged.
    """
    try:
        scan_pickles(io.BytesIO(content), count)
    except RefusedPickle as error:
        raise InputError(
            f"{path}: cannot be read (it holds {printable(str(error))[:300]}); allowed: {_ALLOWED_CONTENT}",
            hint=_save_anew(path),
        ) from error


def _refused_object(path: Path, error: pickle.UnpicklingError) -> InputError:
    found = re.search(r"GLOBAL (\S+)", str(error))
    if found is None:
        return _unreadable(path, error)
    return InputError(
        f"{path}: cannot be read (it holds a pickled {found[1]}, which would run code when it is loaded); allowed: "
        f"{_ALLOWED_CONTENT}",
        hint=_save_anew(path),
    )


def _save_anew(path: Path) -> str:
    return (
        "if you trust it, save it anew without that object, where it was written: c = torch.load"
        f"({path.name!r}, map_location='cpu', weights_only=False); torch.save({{k: c[k] for k in ('model', 'optimizer',"
        f" 'master params') if k in c}}, {path.name!r})"
    )


def _unreadable(path: Path, error: BaseException) -> InputError:
    if not isinstance(error, OSError | RuntimeError | MemoryError | SafetensorError):
        # Words of the machine inside, such as "pop from empty list", or advice to read it without protection.
        return InputError(f"{path}: cannot be read (no file of torch.save, or a damaged one)", hint=_COPY_AGAIN)
    # PyTorch's messages go on for paragraphs.
    lines = (getattr(error, "strerror", None) or str(error) or repr(error)).splitlines()
    return InputError(f"{path}: cannot be read ({printable(lines[0][:200])})", hint=_COPY_AGAIN)
