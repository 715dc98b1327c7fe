"""An operator that works in many namespaces has five watches open in each of them."""

from __future__ import annotations

from pathlib import Path

from api_stand_in import ApiStandIn
from cluster_api import wait_until
from operator_process import OperatorProcess

NAMESPACES = [f"team-{number}" for number in range(64)]
KINDS = 5


def test_sixty_four_namespaces_are_watched_and_ready_within_ten_seconds(tmp_path: Path) -> None:
    with ApiStandIn() as server:
        operator = OperatorProcess(tmp_path, server.kubeconfig(tmp_path), namespaces=NAMESPACES)
        try:
            operator.launch()
            wait_until(lambda: operator.page("/healthz"), "the program to have started")
            wait_until(operator.is_ready, "an operator that knows everything in all namespaces")
            wait_until(lambda: server.watches == KINDS * len(NAMESPACES), "a watch on every kind and namespace")
            # Requests still find a connection.
            operator.wait_resyncs(2)
        finally:
            operator.kill()
