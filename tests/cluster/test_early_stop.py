"""Pods that are deleted or suspended while they start hear it: they are gone before their grace is over.

Inputs: jobs of one pod and of several, a stop at a few moments after they were applied. Observed: that no pod of the
job is left while a pod that has not heard would still run, and in how many seconds. ``BERT_TEST_STOPS`` says how many
moments between 0 and 6 seconds are tried, half of them with each kind of job (``make test-stops-on-cluster``: 40, ten
minutes).
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable

import pytest

from job_cluster import Namespace, poll
from real_jobs import Clock, RealJob, training_job

pytestmark = pytest.mark.timeout(1200 if "BERT_TEST_STOPS" in os.environ else 600)
GRACE_S = 400  # far more than a busy node takes to end a pod that has heard
GONE_S = GRACE_S / 2
MOMENTS = int(os.environ.get("BERT_TEST_STOPS", "0")) // 2
LAST_S = 6.0
Say = Callable[[str], None]


def moments(chosen: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(LAST_S * number / (MOMENTS - 1) for number in range(MOMENTS)) if MOMENTS > 1 else chosen


@pytest.mark.parametrize(("workers", "moments_s"), [(1, moments((0.2, 1.0, 2.0, 4.0))), (2, moments((0.6, 2.5)))])
def test_a_stop_that_arrives_while_pods_start_is_heard(
    data: Namespace, say: Say, workers: int, moments_s: tuple[float, ...]
) -> None:
    told = []
    for number, moment_s in enumerate(moments_s):
        name = f"early-{workers}-{number}"
        data.apply(training_job(name, workers=workers, runPolicy={"stopGraceSeconds": GRACE_S}))
        threading.Event().wait(moment_s)  # what is tried, not something that is waited for
        clock = Clock()
        if number % 2:
            suspended = {"spec": {"runPolicy": {"suspend": True}}}
            data.kubectl("patch", "bpj", name, "--type=merge", "-p", json.dumps(suspended))
            RealJob(data, name).wait_phase("Stopped")
        else:
            data.kubectl("delete", "bpj", name, "--wait=false")
        poll(lambda: not data.list("pods", f"bert-operator.dev/job={name}"), "the pods to go", timeout_s=GONE_S)  # noqa: B023
        told.append(f"{clock.s:.1f} s when {'suspended' if number % 2 else 'deleted'} after {moment_s:.2g} s")
        if number % 2:
            data.kubectl("delete", "bpj", name)
    say(f"{workers} workers: pods gone after {', '.join(told)}")
