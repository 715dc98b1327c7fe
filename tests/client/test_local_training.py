"""The trainer itself under ``LocalClient``: stopped from Python, it goes on from its checkpoint.

And ranks of a function, which torchrun joins.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bert_operator.client import LocalClient, make_function_manifest
from sample_job import PHASE1, sample_document
from tiny_run import write_dataset

WAIT_S = 100.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(150)]


def test_training_stops_and_goes_on_from_its_checkpoint(client: LocalClient, tmp_path: Path) -> None:
    write_dataset(tmp_path / "data")

    def change(spec: dict[str, Any]) -> None:
        stages = sample_document()["spec"]["stages"][PHASE1 : PHASE1 + 1]
        stages[0]["pretrain"] |= {"sequenceLength": 32, "maxPredictionsPerSequence": 5, "globalBatchSize": 8}
        stages[0]["pretrain"]["length"] = {"steps": 1_000_000}
        model = {"hiddenSize": 8, "numHiddenLayers": 1, "numAttentionHeads": 2, "intermediateSize": 16}
        logging = {"everySteps": 1, "tensorboard": False}
        spec.update(slotsPerWorker=1, stages=stages, model=model, dataset={"path": "data"}, logging=logging)

    client.submit(sample_document(change))
    client.wait("demo", "step=3", timeout_s=WAIT_S)
    client.suspend("demo")
    stopped = client.wait("demo", "stopped", timeout_s=WAIT_S)
    assert stopped is not None
    saved = stopped.status["checkpoint"]
    assert (saved["stage"], saved["step"] >= 3) == ("phase1", True)
    # output.ifExists is Fail: to go on is what was asked for.
    client.resume("demo")
    client.wait("demo", f"step={saved['step'] + 2}", timeout_s=WAIT_S)
    rows = client.metrics("demo")
    assert [row["step"] for row in rows[: saved["step"] + 2]] == list(range(1, saved["step"] + 3))
    assert {row["stage"] for row in rows} == {"phase1"}
    assert all(isinstance(row["sequences_per_s"], float) for row in rows)
    client.delete("demo")
    assert (client.jobs(), (tmp_path / "runs/demo/run.json").exists()) == ([], True)


def meet() -> None:
    import os
    import signal
    import sys
    import time

    stop: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, frame: stop.append(number))
    # In one write each: print ends a line by another one, and ranks share a pipe.
    sys.stdout.write(f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}\n")
    while not stop:
        time.sleep(0.02)
    sys.stdout.write(f"rank {os.environ['RANK']} is asked to stop\n")
    sys.exit(3)


@pytest.mark.ranks
def test_all_ranks_call_the_function_and_are_asked_to_stop(client: LocalClient) -> None:
    manifest = make_function_manifest(meet)
    manifest["spec"]["slotsPerWorker"] = 2
    client.submit(manifest, mpi="gloo", collectives="torch")
    lines = (line for line in client.follow("meet") if line.startswith("rank "))
    assert {next(lines), next(lines)} == {"rank 0 of 2", "rank 1 of 2"}
    client.suspend("meet")
    assert set(lines) == {"rank 0 is asked to stop", "rank 1 is asked to stop"}
    stopped = client.wait("meet", "stopped", timeout_s=WAIT_S)
    assert stopped is not None
