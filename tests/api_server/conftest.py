"""Fixtures for tests against a real API server; `make test-api` runs this folder, `make test` does not.

``control_plane``: one for the whole run, mpi-operator and its CRD included. It is built before the first test where
the cache is empty, so that no test's time limit has to hold for a compiler.
``api``: its administrator's client. ``namespace``: a fresh one per test.
``operator``: one for the tests of a file, with the rights that it is shipped with; it compares every second.
``jobs``: the BertPretrainJobs of the namespace.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from bert_operator.api.crd import render_crd
from cluster_api import Api, wait_until
from cluster_jobs import Jobs
from control_plane import ControlPlane, built_programs, namespace_of
from operator_process import OperatorProcess, install_operator

HERE = Path(__file__).parent
FURTHER_PROGRAMS = {"test_kueue.py": "kueue", "test_gangs.py": "scheduler-plugins"}
"""What these files need beside a control plane."""
_numbers = itertools.count(1)


@pytest.hookimpl(tryfirst=True)  # before -m looks for the marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in _items_here(items):
        item.add_marker(pytest.mark.api_server)
        # What takes half a minute takes more beside the tests of the other process and whatever else the machine does.
        if not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(180))


def pytest_collection_finish(session: pytest.Session) -> None:
    here = _items_here(session.items)
    if here and not session.config.getoption("collectonly"):
        with session.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            built_programs()
            for program in sorted({FURTHER_PROGRAMS.get(item.path.name, "") for item in here} - {""}):
                built_programs(program)


def _items_here(items: list[pytest.Item]) -> list[pytest.Item]:
    return [item for item in items if item.path.is_relative_to(HERE)]


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A running control plane. A test that stops a part of it starts that part again."""
    with ControlPlane(tmp_path_factory.mktemp("control-plane"), definitions=[render_crd()]) as running:
        yield running


@pytest.fixture(scope="session")
def api(control_plane: ControlPlane) -> Api:
    """The administrator's client, of a server that knows the kind."""
    return control_plane.api


@pytest.fixture
def namespace(api: Api) -> Iterator[str]:
    """A fresh namespace in which pods can be created; deleted afterwards, without waiting for that."""
    name = f"test-{next(_numbers)}"
    api.create(namespace_of(name)).expect()
    # Until then pods are refused.
    wait_until(lambda: api.get("v1/serviceaccounts", "default", name).status == 200, f"ServiceAccount in {name}")
    yield name
    # Pods that were bound would wait for their kubelet, and the namespace with them.
    api.request("DELETE", f"/api/v1/namespaces/{name}/pods", {"gracePeriodSeconds": 0}).expect()
    api.delete("v1/namespaces", name).expect()


@pytest.fixture(scope="module")
def operator_config(control_plane: ControlPlane) -> Path:
    """A kubeconfig of the operator's own account; definition and rights are applied."""
    return control_plane.kubeconfig(install_operator(control_plane))


@pytest.fixture(scope="module")
def operator(operator_config: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    """A running operator. A test that ends it, or starts it with other settings, sees to it that it runs again."""
    with OperatorProcess(tmp_path_factory.mktemp("operator"), operator_config) as running:
        yield running


@pytest.fixture
def jobs(api: Api, namespace: str) -> Jobs:
    """The jobs of the test's namespace."""
    return Jobs(api, namespace)
