"""``doctor`` as a verb; what it finds is in tests/doctor."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from kubectl_stand_in import KubectlStandIn, refuses, says

Bert = Callable[..., int]
SILENT = says("", errors="The connection to the server 10.0.0.1:6443 was refused - did you specify?\n", code=1)


def test_a_cluster_that_does_not_answer_is_an_error_and_no_report(
    bert: Bert, kubectl: KubectlStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    kubectl.answer("", SILENT)
    assert bert("doctor", "--context", "far") == 1
    output, remarks = capsys.readouterr()
    assert output == ""
    assert remarks.startswith("the API server gave no answer: ")
    assert "hint: kubectl version must show a server" in remarks
    assert all(call.startswith("--context far ") for call in kubectl.calls())


def test_what_may_not_be_looked_at_is_told_for_people_and_for_programs(
    bert: Bert, kubectl: KubectlStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    kubectl.answer("get --raw /version", says({"gitVersion": "v1.36.0", "major": "1", "minor": "36"}))
    kubectl.answer("get --raw /apis --request", says({"kind": "APIGroupList", "groups": []}))
    kubectl.answer("", refuses("Forbidden", "forbidden"))
    assert bert("doctor") == 1
    assert "not looked at" in capsys.readouterr().out
    assert bert("doctor", "-o", "json") == 1
    assert json.loads(capsys.readouterr().out)
