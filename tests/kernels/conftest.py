"""Kernels of every kind that this processor can run."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator

import pytest
import torch

from bert_trainer.model.backends.cpu import library


@pytest.fixture(autouse=True)
def _built() -> None:
    """Skip tests of kernels that a set-up without a compiler has left out."""
    built = all(library.build.library_path(name).exists() for name in library.build.flavours())
    if not built and shutil.which(shlex.split(os.environ.get("CXX", "g++"))[0]) is None:
        pytest.skip("requires g++")


@pytest.fixture(params=library.build.flavours())
def flavour(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Make the trainer use one library after the other, not the best one alone."""
    name: str = request.param
    options, needed = library.build.flavours()[name]
    if not needed <= library.processor_flags():
        pytest.skip(f"this processor lacks {sorted(needed - library.processor_flags())}")
    loaded = library.Library(library.build.library_path(name), name)
    monkeypatch.setattr(library, "find", lambda: (loaded, ""))
    return name


@pytest.fixture(name="library")
def _library(flavour: str) -> library.Library:
    """Return the library of that flavour, for tests that call it themselves."""
    found, _ = library.find()
    assert found is not None
    assert found.flavour == flavour
    return found


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> int:
    """Compute with so many threads; afterwards they are again as many as before, by ``one_torch_thread``."""
    torch.set_num_threads(request.param)
    number: int = request.param
    return number
