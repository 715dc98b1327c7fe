"""Gradients are reduced while the last backward pass runs, and the sums are those of a reduction after it.

Real ranks under mpirun, a model of many small buckets, micro-batches that differ in number between ranks. Observed:
sums, the order and time of starts, bytes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tiny_run import COLLECTIVES, run_child

WAYS = ["plain", "split", "fp16", "fp16 split", "none on the last rank", "fp16, none on the last rank"]


def run_ranks(folder: Path, ranks: int, library: str) -> list[dict[str, Any]]:
    """Run the child on real ranks; return what each saw."""
    finished = run_child(Path(__file__).with_name("reduction_child.py"), folder, ranks, library)
    files = [folder / f"{rank}.json" for rank in range(ranks)]
    assert all(file.exists() for file in files), finished.stderr
    return [json.loads(file.read_text()) for file in files]


@pytest.fixture(scope="module", params=COLLECTIVES)
def library(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=[2, pytest.param(3, marks=pytest.mark.long)])
def seen(
    request: pytest.FixtureRequest, library: str, tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    return run_ranks(tmp_path_factory.mktemp("ranks"), request.param, library)


pytestmark = pytest.mark.timeout(180)


@pytest.mark.parametrize("way", ["plain", "none on the last rank"])
def test_sums_are_those_of_a_reduction_after_the_backward_pass_to_the_bit(seen: list[dict[str, Any]], way: str) -> None:
    assert all(rank[way]["equal"] for rank in seen)


def test_shares_of_the_sums_are_equal_to_the_bit_on_two_ranks_and_within_rounding_on_three(
    seen: list[dict[str, Any]],
) -> None:
    shares = [rank["split"] for rank in seen]
    if len(seen) == 2:
        assert all(share["equal"] for share in shares)
    # Three numbers may be added in another order when the sums are scattered.
    assert all(share["relative"] < 1e-6 for share in shares)
    assert max(share["rows"] for share in shares) - min(share["rows"] for share in shares) <= shares[0]["buckets"]


@pytest.mark.parametrize("way", WAYS)
def test_buckets_start_before_the_backward_pass_ends_and_in_the_same_order_on_every_rank(
    seen: list[dict[str, Any]], way: str
) -> None:
    # Bounds of compressed buckets among them: torch.distributed matches collectives by their order alone.
    assert all(rank[way]["started"] == seen[0][way]["started"] for rank in seen)
    sent = [name for name in seen[0][way]["started"] if name.startswith("gradients.")]
    assert sorted(sent) == sorted(f"gradients.{number}" for number in range(seen[0][way]["buckets"]))
    for number, rank in enumerate(seen):
        if "none" in way and number == len(seen) - 1:
            assert rank[way]["early"] == 0
        else:
            # What holds the token table or the first LayerNorm has to wait for the very end of it.
            assert rank[way]["early"] >= rank[way]["buckets"] // 2
        assert rank[way]["exposed_within_total"]


@pytest.mark.parametrize("way", ["fp16", "fp16 split", "fp16, none on the last rank", "fp16, tiny", "fp16, huge"])
def test_fp16_compression_stays_within_the_stated_tolerance_whatever_the_size_of_gradients(
    seen: list[dict[str, Any]], way: str
) -> None:
    for rank in seen:
        assert 0 < rank[way]["worst"] <= 1.001
        assert rank[way]["relative"] < 1e-3
        assert not rank[way]["equal"]


def test_fp16_halves_the_bytes(seen: list[dict[str, Any]]) -> None:
    for rank in seen:
        assert rank["fp16"]["sent_bytes"] * 2 == rank["plain"]["sent_bytes"] > 0


def test_a_rank_that_leaves_is_noticed_in_the_backward_pass_as_a_lost_peer(seen: list[dict[str, Any]]) -> None:
    assert [rank["lost"] for rank in seen] == [*[{"lost_peer": True}] * (len(seen) - 1), {"left": True}]
