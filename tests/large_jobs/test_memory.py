"""However large jobs are, the operator's memory is not: 2,000 of the largest allowed fit into half of its limit.

``make test`` shows it with fewer of them; LARGE_JOBS asks for another number, and ``make test-memory`` for all.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from api_stand_in import ApiStandIn
from bert_operator.api.parsing.validation import parse_job
from bert_operator.api.rules.size_bound import MAX_BYTES, spec_size
from bert_operator.cluster.paths import path_of
from cluster_api import wait_until
from operator_process import OperatorProcess
from sample_job import Document, sample_document

COUNT = int(os.environ.get("LARGE_JOBS", "120"))
MAX_GROWTH_BYTES = 256 * 10**6
RESYNCED = "last_sweep_timestamp_seconds"
ANNOTATIONS = 256 * 1024 - 64  # the API server's limit


def largest_job() -> Document:
    """A suspended job as large as it may be, of characters that are the largest in memory."""
    job = sample_document(
        lambda spec: spec.update(
            runPolicy={"suspend": True},
            output={"path": "/x", "volume": {"nfs": {"server": "a", "path": "/"}, "mountPath": "/x"}},
        )
    )
    job["metadata"] = {
        "name": "any",
        "annotations": {"a": "😀" * (ANNOTATIONS // 4)},
    }
    env = job["spec"]["env"] = []
    while True:
        env.append({"name": f"N{len(env)}", "value": "😀" * 1000})
        if spec_size(job["spec"]) > MAX_BYTES:
            env.pop()
            parse_job(job)
            return job


def peak_bytes(pid: int) -> int:
    """Return the most memory that a process ever had."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))


@pytest.mark.slow
@pytest.mark.timeout(120 + 3 * COUNT)
def test_the_largest_jobs_take_little_memory(tmp_path: Path) -> None:
    job = largest_job()
    with ApiStandIn() as server:
        for number in range(COUNT):
            metadata = {**job["metadata"], "name": f"job-{number}"}
            server.put(path_of("BertPretrainJob", "default"), {**job, "metadata": metadata})
        operator = OperatorProcess(tmp_path, server.kubeconfig(tmp_path), sweepSeconds=max(1, COUNT // 50))
        operator.launch()
        try:
            wait_until(
                lambda: all(
                    job.get("status", {}).get("phase") == "Stopped" for job in server.cluster.all("BertPretrainJob")
                ),
                "a look at each",
                timeout_s=40 + COUNT,
            )
            # Ready after a resync that finds nothing missing; the next one queues every job again.
            before = wait_until(
                lambda: operator.is_ready() and operator.figure(RESYNCED), "a resync", timeout_s=20 + COUNT
            )
            wait_until(lambda: operator.figure(RESYNCED) > before, "another resync", timeout_s=20 + COUNT)
            taken = peak_bytes(operator.pid)
        finally:
            operator.kill()
    print(f"{COUNT} jobs of 256 KiB and as much in annotations: {taken / 1e6:.0f} MB")
    assert taken < MAX_GROWTH_BYTES
