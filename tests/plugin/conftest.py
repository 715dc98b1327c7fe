"""``kubectl bert`` without a cluster.

Inputs: a stand-in for kubectl that answers from a script (``kubectl_stand_in.py``), and jobs as kubectl
prints them (``seen_jobs.py``). Observed: standard output, standard error, exit codes, and what kubectl was asked. The
same verbs by the real kubectl on a real API server are in tests/api_server.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bert_operator.plugin import command_line
from bert_operator.plugin.context import Context
from kubectl_stand_in import KubectlStandIn
from seen_jobs import NOW_S


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KubectlStandIn:
    """The only kubectl in PATH."""
    stand_in = KubectlStandIn(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(stand_in.folder))
    return stand_in


@pytest.fixture
def bert(kubectl: KubectlStandIn, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Run ``kubectl bert`` at noon, with a clock that never waits; return the exit code."""

    def run(*words: str) -> int:
        return command_line.main(words, lambda kubectl: Context(kubectl, now=lambda: NOW_S, pause=lambda seconds: None))

    return run
