"""Every reader, in the order in which they are fuzzed; a family in each module."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

from fuzz_reader import Reader

_FAMILIES = (
    *("operator_readers", "setting_readers", "task_readers", "corpus_readers", "shard_readers", "tfrecord_readers"),
    *("checkpoint_readers", "moment_readers"),
)


def every_reader() -> Iterator[Reader]:
    """Yield all of them; a family is imported when its first is asked for, and the last families need PyTorch."""
    for family in _FAMILIES:
        yield from importlib.import_module(family).READERS


def find_reader(name: str) -> Reader:
    """Return the reader of a name; families after its own are not imported."""
    return next(reader for reader in every_reader() if reader.name == name)
