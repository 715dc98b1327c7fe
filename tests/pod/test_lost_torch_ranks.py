"""A rank of torch.distributed that is killed, alone or with its pod, counts as infrastructure and is named.

Under Horovod the MPI says that a peer has gone. Here it carries no gradients: the other rank sees a connection that
Gloo has lost, says one sentence and leaves. Inputs: the real trainer on two hosts. Observed: exit code and record.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

import ssh_hosts
from bert_trainer.pod.processes import find_ranks
from bert_trainer.system.process_tree import find_descendants
from cluster_api import wait_until
from tiny_run import pretrain_stage, run_document, write_dataset


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("what", ["program", "pod"])
def test_what_is_killed_is_not_the_program_s_failure(tmp_path: Path, what: str) -> None:
    if lacking := ssh_hosts.missing():
        pytest.skip(f"requires {lacking}")
    dataset = write_dataset(tmp_path / "data")
    stages = [pretrain_stage(length={"steps": 1_000_000})]
    changes: dict[str, Any] = {"stages": stages, "world": {"ranks": 2, "hosts": 2}, "collectives": "torch"}
    (tmp_path / "run.json").write_text(json.dumps(run_document(tmp_path / "out", dataset, **changes)))
    own = {"BERT_ATTEMPT": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    options = ["--mpi", "OpenMPI", "--ranks", "2", "--workers", "2", "--slots", "1", "--wait-seconds", "20"]
    options += ["--export", "OMP_NUM_THREADS,PYTHONPATH", "--termination-log", str(tmp_path / "record.json")]
    program = (sys.executable, "-m", "bert_trainer", "--config", str(tmp_path / "run.json"))
    with (
        ssh_hosts.started_cluster(tmp_path, 2) as cluster,
        cluster.worker(0, **own),
        cluster.worker(1, **own) as lost,
        cluster.launcher(options, program, **own) as launcher,
    ):
        progress = "event=progress stage=phase1 step=3 "
        wait_until(lambda: progress in launcher.output, lambda: f"{progress!r} in:\n{launcher.output}")
        if what == "pod":
            lost.kill()
        else:
            (rank,) = find_ranks(lost.process.pid)
            os.kill(max(find_descendants(rank)), signal.SIGKILL)
        code = launcher.process.wait(60)
        assert code in (4, 128 + signal.SIGKILL), launcher.output
    record = json.loads((tmp_path / "record.json").read_text())
    assert (record["exitCode"], record["stage"]) == (code, "phase1")
    assert record["reason"] in ("WorkerLost", "SIGKILL"), record
    if what == "program":
        assert (code, record["firstFailure"]["rank"]) == (128 + signal.SIGKILL, 1), launcher.output
