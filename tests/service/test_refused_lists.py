"""Lists that are refused, or whose pages expire, cost time and not the operator."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from api_stand_in import ApiStandIn
from bert_operator.cluster.paths import path_of
from bert_operator.cluster.watches import JOBS_PER_PAGE
from cluster_api import wait_until
from cluster_jobs import job_document
from operator_process import OperatorProcess

KINDS = 5


def test_a_list_that_is_refused_holds_up_no_other(tmp_path: Path) -> None:
    with ApiStandIn() as server:
        server.refuses.add(path_of("BertPretrainJob", "closed"))
        server.put(path_of("BertPretrainJob", "open"), job_document("job"))
        operator = OperatorProcess(tmp_path, server.kubeconfig(tmp_path), namespaces=("closed", "open"))
        try:
            operator.launch()
            wait_until(lambda: any("/jobs/job-" in path for path in list(server.objects)), "the job's child")
            assert operator.page("/readyz") == (503, "starting\n")
            server.refuses.clear()
            wait_until(operator.is_ready, "it to be ready")
        finally:
            operator.kill()


@pytest.mark.parametrize("namespaces", [(), ("demo", "other")])
def test_a_list_whose_pages_expire_is_begun_again_within_the_process(
    namespaces: tuple[str, ...], tmp_path: Path
) -> None:
    with ApiStandIn() as server:
        server.tells, server.expires = True, 1
        watches = KINDS * max(1, len(namespaces))
        jobs = [f"job-{number}" for number in range(2 * JOBS_PER_PAGE + 1)]
        for name in jobs:
            server.put(path_of("BertPretrainJob", "demo"), job_document(name))
        with OperatorProcess(tmp_path, server.kubeconfig(tmp_path), namespaces=namespaces) as operator:
            wait_until(lambda: server.expires == 0, "a page to have expired")
            wait_until(lambda: server.watches == watches, "each watch to be open once, that on jobs too")
            later = server.put(path_of("BertPretrainJob", "demo"), job_document("later"))["metadata"]["name"]
            names = [*jobs, later]
            child = f"{path_of('Job', 'demo')}/{{}}-a1-training".format
            wait_until(lambda: all(child(name) in server.objects for name in names), "a child of every job")
            assert operator.is_ready()
            assert "restarting it" in operator.log()
            os.kill(operator.pid, signal.SIGTERM)
            wait_until(lambda: not operator.pid, "it to heed a signal still")
