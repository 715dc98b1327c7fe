"""Kernels of every kind that this processor can run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bert_trainer.model.backends.cpu import library


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
