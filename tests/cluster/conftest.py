"""Fixtures for jobs that really run on a cluster; `make test-cluster` runs this folder, `make test` does not.

``cluster``: one for the whole run, with mpi-operator and the operator in it: the one-node cluster of this machine, or
the one that ``KUBECONFIG`` names (job_cluster.py). Where neither can be had, every test is skipped and says why.
``enforcer``: enforces NetworkPolicies there from the first job on; None where that is the reader's own cluster.
``data``: a restricted namespace with a volume, the pod that reads it, and the dataset of training_job.
``whole``: the run in it that nothing happens to. ``fresh``: makes further namespaces, which end with their file.
``say``: prints a line that is seen without -s: times, mostly.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from job_cluster import JobCluster, Namespace, running_cluster
from node import BRIDGE_ADDRESS, build_images, missing_tools
from policy_enforcer import PolicyEnforcer
from real_jobs import DATA_JOB, WITHIN_REACH, RealJob, data_job, training_job

HERE = Path(__file__).parent
LIMITS = {
    "serviceAccounts": ["trainer"],
    "podLabels": ["team"],
    "podAnnotations": ["karpenter.sh/do-not-disrupt"],
}
"""What the operator's settings let jobs have beyond the shipped ones, which let them have none of it."""


@pytest.hookimpl(tryfirst=True)  # before -m looks for the marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.cluster)
    # It takes the operator of all others away.
    items.sort(key=lambda item: item.path == HERE / "test_installation.py")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build the images before the first test: compiling Horovod takes longer than any test may."""
    mine = [item for item in session.items if item.path.is_relative_to(HERE)]
    if not mine or session.config.getoption("collectonly") or os.environ.get("KUBECONFIG") or missing_tools():
        return
    # By default SIGTERM ends Python at once, and a whole cluster would be left behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    flavours = {str(item.callspec.params.get("mpi", "open-mpi")) for item in mine if hasattr(item, "callspec")}
    with session.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        build_images("operator", "trainer", *(f"trainer-{mpi}" for mpi in sorted(flavours - {"open-mpi"})))


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[JobCluster]:
    """A running cluster with the operator in it."""
    if not os.environ.get("KUBECONFIG") and (missing := missing_tools()):
        pytest.skip(f"no cluster: {missing}")
    with pytestconfig.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        context = running_cluster(tmp_path_factory.mktemp("node"))
        running = context.__enter__()
    try:
        running.install_operator(tmp_path_factory.mktemp("overlay"), {"limits": LIMITS})
        yield running
    finally:
        context.__exit__(None, None, None)


@pytest.fixture(scope="session")
def enforcer(cluster: JobCluster) -> Iterator[PolicyEnforcer | None]:
    """Every job trains under its NetworkPolicy, as far as the stand-in is one of a network plugin."""
    if cluster.node is None or not PolicyEnforcer.is_possible():
        yield None
        return
    with PolicyEnforcer(cluster.node.api, BRIDGE_ADDRESS) as enforcer:
        yield enforcer


@pytest.fixture(scope="session")
def data(cluster: JobCluster, enforcer: PolicyEnforcer | None) -> Iterator[Namespace]:
    """The namespace of most tests, with a dataset on its volume."""
    namespace = cluster.make_namespace("jobs")
    namespace.make_claim()
    namespace.apply(data_job(target=WITHIN_REACH))
    RealJob(namespace, DATA_JOB).wait_phase("Succeeded", timeout_s=240)
    yield namespace
    cluster.delete_namespace(namespace.name)


@pytest.fixture(scope="session")
def whole(data: Namespace) -> RealJob:
    """The run that nothing happens to; it has succeeded."""
    data.apply(training_job("whole"))
    job = RealJob(data, "whole")
    job.wait_phase("Succeeded", timeout_s=240)
    return job


@pytest.fixture(scope="module")
def fresh(cluster: JobCluster, enforcer: PolicyEnforcer | None) -> Iterator[Callable[[str, str], Namespace]]:
    """Makes namespaces: name, Pod Security standard."""
    made: list[Namespace] = []

    def make(name: str, level: str = "restricted") -> Namespace:
        made.append(cluster.make_namespace(name, level))
        return made[-1]

    yield make
    for namespace in made:
        cluster.delete_namespace(namespace.name)


@pytest.fixture
def say(pytestconfig: pytest.Config) -> Callable[[str], None]:
    """Print something for the reader of the whole run."""
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")

    def print_now(text: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\n  {text}", end="", flush=True)  # noqa: T201 - what it is for

    return print_now
