"""A process that reads shards for a test, so that a reader which hangs or dies takes nobody along."""

from __future__ import annotations

import resource
from collections.abc import Callable
from dataclasses import fields
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from bert_trainer.dataset.shards import read_blocks, read_shard, row_blocks
from bert_trainer.dataset.shards.samples import Samples
from bert_trainer.errors import InputError

ADDRESS_SPACE_BYTES = 8 << 30


def read_in_child(requests: Connection) -> None:
    """Read the file of every request, whole and in blocks; answer with how that went, or with its rows."""
    # A shape that memory is taken for blindly is a finding as well, and must not take the machine's.
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES))
    while True:
        path = requests.recv()
        if path is None:
            return
        try:
            whole, in_blocks = _try(read_shard, path), _try(_read_in_blocks, path)
            if isinstance(whole, str) != isinstance(in_blocks, str) or not _same(whole, in_blocks):
                requests.send(("failed", f"whole: {whole}; in blocks: {in_blocks}"))
            else:
                requests.send(("refused" if isinstance(whole, str) else "read", whole))
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is the finding
            requests.send(("failed", repr(error)))


def _try(read: Callable[[Path], Samples], path: Path) -> Samples | str:
    """Return the rows, or why they are refused."""
    try:
        return read(path)
    except InputError as error:
        return str(error)


def _read_in_blocks(path: Path) -> Samples:
    """Read as convert, chop and verify do."""
    row_blocks.BLOCK_ROWS = 7
    blocks = list(read_blocks(path))
    if not blocks:
        return read_shard(path)
    return Samples(*(np.concatenate([getattr(block, field.name) for block in blocks]) for field in fields(Samples)))


def _same(one: Samples | str, other: Samples | str) -> bool:
    if isinstance(one, str) or isinstance(other, str):
        return True  # which of several kinds of damage is met first may differ
    return all(np.array_equal(getattr(one, field.name), getattr(other, field.name)) for field in fields(Samples))
