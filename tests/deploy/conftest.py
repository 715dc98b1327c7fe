"""Everything here makes manifests with programs that are built the first time: make test-manifests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from control_plane import ControlPlane, built_programs
from manifests import Json, module_files, parse, program, schemas

HERE = Path(__file__).parent


def _items_here(items: list[pytest.Item]) -> list[pytest.Item]:
    return [item for item in items if item.path.is_relative_to(HERE)]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in _items_here(items):
        item.add_marker(pytest.mark.manifests)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build all of it before the first test: a compiler takes longer than any test may."""
    if _items_here(session.items) and not session.config.getoption("collectonly"):
        with session.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            program("helm")
            schemas()
            module_files()
            built_programs()


@pytest.fixture(scope="session")
def bench() -> Iterator[ControlPlane]:
    """The control plane of tests/api_server, once for all files here, with the definitions that deploy/ uses."""
    definitions = [
        document
        for path in module_files().rglob("*.yaml")
        for document in parse(path.read_text())
        # MPIJob is there already.
        if document["kind"] == "CustomResourceDefinition" and "mpijobs" not in document["metadata"]["name"]
    ]
    with ControlPlane(definitions=[without_webhook(document) for document in definitions]) as running:
        yield running


def without_webhook(definition: Json) -> Json:
    """Return a definition whose versions are not converted, since Kueue's program, which would do that, is not here."""
    definition["spec"].pop("conversion", None)
    definition["metadata"].get("annotations", {}).pop("cert-manager.io/inject-ca-from", None)
    return definition
