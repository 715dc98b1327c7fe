"""From the release before to this one and back, definition and operator alike, while jobs run.

Inputs: the wheel and the definition of the release before; pods that are killed under each. Observed: attempts, status.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bert_operator.api.crd import render_crd
from cluster_api import Api
from cluster_jobs import Jobs, condition, job_document
from kept_release import release_before
from kubelet import FakeKubelet, attempt_of
from operator_process import OperatorProcess

SIGKILL = 9


@pytest.fixture
def definitions(api: Api) -> Iterator[None]:
    """Definitions may be changed; this release's is there afterwards."""
    yield
    api.apply_crd(render_crd())


@contextmanager
def release(folder: Path, config: Path, api: Api, *, before: bool) -> Iterator[OperatorProcess]:
    """One release as install.md has it: its definition, then its operator, until that is replaced."""
    api.apply_crd(release_before().manifest("crd") if before else render_crd())
    with OperatorProcess(folder, config, wheel=release_before().wheel if before else None) as running:
        yield running


class Machine(FakeKubelet):
    """Runs pods, and loses them when a test says so; by itself it removes what was deleted."""

    def decide(self, *_: object) -> None:
        """Do nothing with the others."""

    def run_newest(self, jobs: Jobs, name: str, attempt: int) -> None:
        """Run the pod of an attempt, once it is there, until the job says so."""
        jobs.wait(name, lambda _: any(attempt_of(pod) == attempt for pod in jobs.pods(name)), f"attempt {attempt}")
        self.run(next(pod for pod in jobs.pods(name) if attempt_of(pod) == attempt))
        jobs.wait_phase(name, "Running", attempt=attempt)

    def kill_newest(self, jobs: Jobs, name: str) -> None:
        """Kill the pod of the newest attempt."""
        self.fail(max(jobs.pods(name), key=attempt_of), signal=SIGKILL)


@pytest.mark.timeout(240)
def test_jobs_go_on_through_an_upgrade_and_back_and_forth_again(
    api: Api, namespace: str, jobs: Jobs, operator_config: Path, tmp_path: Path, definitions: None
) -> None:
    machine = Machine(api, namespace)
    machine.start()
    try:
        with release(tmp_path / "1", operator_config, api, before=True):
            for name in ("killed", "quiet"):
                api.create(job_document(name), namespace).expect()
                machine.run_newest(jobs, name, 1)
            quiet = jobs.child("quiet")["metadata"]["uid"]
        with release(tmp_path / "2", operator_config, api, before=False):
            machine.kill_newest(jobs, "killed")
            machine.run_newest(jobs, "killed", 2)
            assert jobs.status("killed")["frozenHash"]
            api.create(job_document("young"), namespace).expect()
            machine.run_newest(jobs, "young", 1)
        with release(tmp_path / "3", operator_config, api, before=True):
            machine.kill_newest(jobs, "young")
            machine.run_newest(jobs, "young", 2)
        with release(tmp_path / "4", operator_config, api, before=False) as operator:
            for name in ("killed", "young"):
                machine.kill_newest(jobs, name)
            for name in ("killed", "young"):
                machine.run_newest(jobs, name, 3)
            operator.wait_resyncs(2)
            assert "Traceback" not in operator.log()
        assert jobs.child("quiet")["metadata"]["uid"] == quiet, "nobody touches what runs"
        for name in ("killed", "quiet", "young"):
            assert jobs.status(name)["phase"] == "Running"
            assert condition(jobs.status(name), "Blocked").get("status") != "True"
    finally:
        machine.stop()
