"""Ranks find their own address, and each other, where there is IPv6 alone.

Inputs: network namespaces without IPv4. Observed: the address that a rank takes, and a run of two pods.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

import ssh_hosts
from ipv6_host import ADDRESS, ipv6_host
from tiny_run import pretrain_stage, run_document, write_dataset

ASK = """
import json
from bert_trainer.system.network_interfaces import own_address, read_interfaces
print(json.dumps([read_interfaces()["eth0"], own_address(), own_address("fd00:1::9"), own_address("::1")]))
"""


def test_an_address_for_other_machines_is_that_of_ipv6_where_there_is_no_other() -> None:
    with ipv6_host() as host:
        assert json.loads(host.run_python(ASK)) == [[ADDRESS], ADDRESS, ADDRESS, ADDRESS]


def test_with_both_ranks_meet_by_ipv4_and_answer_in_the_family_that_they_are_asked_in() -> None:
    with ipv6_host(has_ipv4=True) as host:
        assert json.loads(host.run_python(ASK)) == [["10.201.9.5", ADDRESS], "10.201.9.5", ADDRESS, "10.201.9.5"]


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_two_pods_train_over_ipv6_alone(tmp_path: Path) -> None:
    """Names, sshd, Open MPI, torch's store and Gloo."""
    if lacking := ssh_hosts.missing():
        pytest.skip(f"requires {lacking}")
    dataset = write_dataset(tmp_path / "data")
    stages = [pretrain_stage(length={"steps": 4})]
    changes: dict[str, Any] = {"stages": stages, "world": {"ranks": 2, "hosts": 2}, "collectives": "torch"}
    (tmp_path / "run.json").write_text(json.dumps(run_document(tmp_path / "out", dataset, **changes)))
    own = {"BERT_ATTEMPT": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    options = ["--mpi", "OpenMPI", "--ranks", "2", "--workers", "2", "--slots", "1", "--wait-seconds", "20"]
    options += ["--export", "OMP_NUM_THREADS,PYTHONPATH", "--termination-log", str(tmp_path / "record.json")]
    program = (sys.executable, "-m", "bert_trainer", "--config", str(tmp_path / "run.json"))
    with (
        ssh_hosts.started_cluster(tmp_path, 2, is_ipv6=True) as cluster,
        cluster.worker(0, **own),
        cluster.worker(1, **own),
        cluster.launcher(options, program, **own) as launcher,
    ):
        assert launcher.process.wait(100) == 0, launcher.output
