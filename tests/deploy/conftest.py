"""Everything here makes manifests with programs that are built the first time: make test-manifests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from control_plane import ControlPlane
from manifests import Json, module_files, parse


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.manifests)


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
