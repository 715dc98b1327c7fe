"""A client of this machine whose jobs end with the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bert_operator.client import LocalClient


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalClient]:
    monkeypatch.chdir(tmp_path)
    found = LocalClient(tmp_path / "jobs")
    yield found
    for job in found.jobs():
        found.delete(job.name)
