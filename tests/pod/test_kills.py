"""A killed rank is never taken for one that failed by itself, nor the other way round.

Ranks of a real MPI reduce over sockets, as between hosts, and one of them ends at a random moment: its program or what
waits for it. ``BERT_TEST_KILLS`` says how many are killed per MPI; ``make test-stops`` kills 100.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
from pathlib import Path

import pytest

import pods
from bert_trainer.pod.processes import find_ranks
from bert_trainer.system.process_tree import find_descendants
from flavours import FLAVOURS, Flavour

KILLS = int(os.environ.get("BERT_TEST_KILLS", "2"))
REDUCE = """
import os, sys, time
import mpi4py
mpi4py.rc.finalize = False  # an exception would wait for the others there
from mpi4py import MPI
world, ends_at_s = MPI.COMM_WORLD, time.monotonic() + 60
mine, sum = bytearray(80000), bytearray(80000)
if world.rank == 0:
    print("bert-trainer/1 event=progress stage=phase1 step=1 steps=10", flush=True)
print("up", flush=True)
while time.monotonic() < ends_at_s:
    world.Allreduce([mine, MPI.BYTE], [sum, MPI.BYTE], MPI.BOR)
    if world.rank == 1 and os.path.exists("fail"): FAIL
"""
# Between two processes of one machine MPIs use memory, where nobody notices that the other one has gone.
SOCKETS = {
    "OMPI_MCA_btl": "tcp,self",
    "OMPI_MCA_pml": "ob1",
    "OMPI_MCA_btl_tcp_if_include": "lo",  # others come and go with other tests
    "MPIR_CVAR_NOLOCAL": "1",
    "UCX_TLS": "tcp",
    "I_MPI_FABRICS": "ofi",
    "BERT_ATTEMPT": "1",
}


@pytest.fixture(params=FLAVOURS, ids=lambda flavour: flavour.name.replace(" ", "-"))
def flavour(request: pytest.FixtureRequest) -> Flavour:
    found: Flavour = request.param
    found.require()
    pytest.importorskip("mpi4py")
    return found


def start(tmp_path: Path, flavour: Flavour, fail: str = "pass") -> list[str]:
    words = ["single", "--ranks", "2", "--mpi", flavour.mpi, "--termination-log", str(tmp_path / "record.json")]
    program = REDUCE.replace('"fail"', repr(str(tmp_path / "fail"))).replace("FAIL", fail)
    return [*pods.POD, *words, "--", sys.executable, "-c", program]


@pytest.mark.parametrize("number", range(KILLS))
def test_a_killed_rank_counts_as_killed_whoever_notices_first(flavour: Flavour, tmp_path: Path, number: int) -> None:
    draw = random.Random(f"{flavour.name} {number}")
    with pods.running(start(tmp_path, flavour), tmp_path / "log", **SOCKETS, **flavour.variables()) as pod:
        pod.wait_for("up", 2)
        threading.Event().wait(draw.uniform(0.0, 0.3))  # what is tried, not something that is waited for
        rank = draw.choice(sorted(find_ranks(pod.process.pid)))
        os.kill(draw.choice(sorted(find_descendants(rank))), signal.SIGKILL)
        code = pod.end()
    # By a signal, or by the loss of a worker.
    assert code == 4 or 128 < code < 193, f"{code}\n{pod.output}"
    assert json.loads((tmp_path / "record.json").read_text())["exitCode"] == code


@pytest.mark.parametrize(
    ("fail", "code"),
    [
        ("raise ValueError('x')", 1),
        ("sys.exit('words')", 1),
        ("os._exit(2)", 2),
        ("os._exit(7)", 7),
        ("os.kill(os.getpid(), 11)", 139),
    ],
)
def test_a_rank_that_leaves_by_itself_has_failed(flavour: Flavour, tmp_path: Path, fail: str, code: int) -> None:
    with pods.running(start(tmp_path, flavour, fail), tmp_path / "log", **SOCKETS, **flavour.variables()) as pod:
        pod.wait_for("up", 2)
        (tmp_path / "fail").touch()
        assert pod.end() == code, pod.output
