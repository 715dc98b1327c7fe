"""What tests of fetching share: a server of their own, and no proxy on the way to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bert_trainer.dataset.downloads.transfer import Transfer
from http_stand_in import Server
from transfer_notes import Notes


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    with Server() as server:
        yield server


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture
def transfer(notes: Notes) -> Transfer:
    """A transfer that does not wait before it tries again."""
    return Transfer(notes, wait=notes.waits.append, timeout_s=10.0)
