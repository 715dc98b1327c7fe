"""The real trainer with every MPI: two hosts, one rank on each, reductions over the network between them."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

import pods
import ssh_hosts
from flavours import FLAVOURS, Flavour
from tiny_run import pretrain_stage, run_document, write_dataset


@pytest.mark.horovod
@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("flavour", FLAVOURS, ids=lambda flavour: flavour.name.replace(" ", "-"))
def test_every_mpi_trains_on_two_hosts(flavour: Flavour, tmp_path: Path) -> None:
    flavour.require_horovod()
    if lacking := ssh_hosts.missing():
        pytest.skip(f"requires {lacking}")
    dataset = write_dataset(tmp_path / "data")
    stages = [pretrain_stage(length={"steps": 4})]
    world = {"ranks": 2, "hosts": 2}
    (tmp_path / "run.json").write_text(json.dumps(run_document(tmp_path / "out", dataset, stages=stages, world=world)))
    own = {"BERT_ATTEMPT": "1", "OMP_NUM_THREADS": "1", **flavour.variables()}
    if flavour.horovod is not None:
        own["PYTHONPATH"] = f"{flavour.horovod}:{pods.ROOT}/trainer"
    options = ["--mpi", flavour.mpi, "--ranks", "2", "--workers", "2", "--slots", "1", "--wait-seconds", "20"]
    options += ["--export", "OMP_NUM_THREADS,PYTHONPATH", "--termination-log", str(tmp_path / "record.json")]
    program = (sys.executable, "-m", "bert_trainer", "--config", str(tmp_path / "run.json"))
    with (
        ssh_hosts.started_cluster(tmp_path, 2) as cluster,
        cluster.worker(0, **own),
        cluster.worker(1, **own),
        cluster.launcher(options, program, **own) as launcher,
    ):
        code = launcher.process.wait(120)
        assert code == 0, launcher.output
    assert re.search(f"^Starting 2 ranks with {flavour.name}", launcher.output, re.MULTILINE)
    assert "2 ranks on 2 hosts: 0 on run-worker-0, 1 on run-worker-1" in launcher.lines
    for rank in (0, 1):
        assert re.search(rf"^(\[{rank}\] )?rank {rank} on run-worker-{rank}: ", launcher.output, re.MULTILINE)
    assert re.search(
        r"^bert-trainer/1 event=progress stage=phase1 step=4 steps=4 loss=\d", launcher.output, re.MULTILINE
    )
    assert json.loads((tmp_path / "record.json").read_text())["reason"] == "Succeeded"
