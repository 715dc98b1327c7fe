"""One job on two machines: ``--hostfile`` and ``--ranks-per-node`` over real ssh.

Inputs: a tiny job and a host file. Nothing is mocked; the machines are network namespaces with host names of their
own. That both are used is what the world check before the first step makes sure of: it counts host names.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import ssh_hosts
from sample_job import sample_document
from tiny_run import ROOT


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[ssh_hosts.Hosts]:
    lacking = ssh_hosts.missing()
    if lacking:
        pytest.skip(f"requires {lacking}")
    with ssh_hosts.started_hosts(tmp_path, 2) as started:
        yield started


def write_job(folder: Path) -> Path:
    """Forty documents of plain sentences, a model of 8 features, three steps."""
    texts = folder / "texts"
    texts.mkdir()
    for number in range(40):
        words = [f"word{(number * step) % 97}" for step in range(1, 60)]
        lines = [" ".join(words[start : start + 6]) + " ." for start in range(0, 54, 6)]
        (texts / f"{number:02d}.txt").write_text("\n".join(lines) + "\n")
    document = sample_document()
    spec = document["spec"]
    spec["stages"][0]["prepare"] = {
        "text": str(texts), "vocabularySize": 200, "numShards": 2, "workers": 2, "numProcesses": 1
    }  # fmt: skip
    spec["stages"][1]["pretrain"].update({"sequenceLength": 32, "globalBatchSize": 8, "length": {"steps": 3}})
    spec["output"]["path"] = str(folder / "out")
    job = folder / "job.yaml"
    job.write_text(json.dumps(document))  # JSON is YAML
    return job


@pytest.mark.parametrize(
    "collectives",
    # torch's ranks on two hosts are in tests/pod, too, where hosts know each other by name.
    [pytest.param("horovod", marks=pytest.mark.horovod), pytest.param("torch", marks=pytest.mark.long)],
)
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_host_file_spreads_the_ranks_over_its_machines(
    tmp_path: Path, hosts: ssh_hosts.Hosts, collectives: str
) -> None:
    host_file = tmp_path / "HOSTFILE"
    host_file.write_text("# two machines\n" + "\n".join(hosts.addresses) + "\n")
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}/operator:{ROOT}/trainer",
        "OMP_NUM_THREADS": "1",
        "OMPI_MCA_plm_rsh_args": hosts.ssh_options,
        "PRTE_MCA_plm_ssh_args": hosts.ssh_options,
    }
    command = [sys.executable, "-m", "bert_operator", "local", str(write_job(tmp_path)), "--plain"]
    finished = subprocess.run(
        [*command, "--hostfile", str(host_file), "--ranks-per-node", "1", "--collectives", collectives],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    frozen = json.loads((tmp_path / "out" / "run-config.json").read_text())
    assert (frozen["world"], frozen["collectives"]) == ({"ranks": 2, "hosts": 2}, collectives)
    assert json.loads((tmp_path / "out" / "report.json").read_text())["ranks"] == 2
    assert "prepare in 2 ranks" in finished.stdout + finished.stderr
    assert json.loads((tmp_path / "out" / "data" / "dataset.json").read_text())["complete"] is True
