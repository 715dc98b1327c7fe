"""Whoever starts sums while another rank leaves is told of a lost peer, and never waits for ever."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tiny_run import COLLECTIVES, run_child

CHILD = Path(__file__).with_name("leaving_child.py")


@pytest.mark.parametrize("library", COLLECTIVES)
def test_a_rank_that_starts_sums_without_a_pause_is_told_of_a_lost_peer(tmp_path: Path, library: str) -> None:
    # Horovod's thread used to wait for the GIL under a lock that the start of a sum waited for with the GIL.
    finished = run_child(CHILD, tmp_path, 2, library)
    assert (tmp_path / "0.json").exists(), finished.stderr
    assert json.loads((tmp_path / "0.json").read_text()) is True
