"""``doctor`` as a verb, whose findings are in tests/doctor, and ``version``."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from bert_operator import __version__
from kubectl_stand_in import KubectlStandIn, items, refuses, says

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


OPERATOR = {
    "metadata": {"name": "bert-operator", "namespace": "bert-operator"},
    "spec": {
        "replicas": 1,
        "template": {"spec": {"containers": [{"name": "operator", "image": "registry.example.com/bert-operator:1.2"}]}},
    },
    "status": {"readyReplicas": 1},
}
ASKED = "get deployments.apps --selector app.kubernetes.io/name=bert-operator"


def test_versions_are_those_of_plugin_operator_and_cluster(
    bert: Bert, kubectl: KubectlStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    kubectl.answer(f"{ASKED} --all-namespaces", items(OPERATOR))
    kubectl.answer(ASKED, items())
    kubectl.answer("get --raw /version", says({"gitVersion": "v1.36.0"}))
    assert bert("version") == 0
    assert capsys.readouterr().out.splitlines() == [
        f"kubectl bert   {__version__}",
        "operator       bert-operator/bert-operator: registry.example.com/bert-operator:1.2, 1 of 1 ready",
        "Kubernetes     v1.36.0",
    ]
    assert bert("version", "-n", "team") == 0
    assert "operator       none found; kubectl bert doctor -n team says" in capsys.readouterr().out
    assert bert("version", "-o", "json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "plugin": __version__,
        "operators": [
            {
                "name": "bert-operator/bert-operator",
                "image": "registry.example.com/bert-operator:1.2",
                "ready": "1 of 1",
            }
        ],
        "kubernetes": "v1.36.0",
    }


def test_a_version_that_may_not_be_read_is_named_and_the_others_are_shown(
    bert: Bert, kubectl: KubectlStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    kubectl.answer(ASKED, refuses("Forbidden", "deployments.apps is forbidden"))
    kubectl.answer("get --raw /version", SILENT)
    assert bert("version") == 0
    output, remarks = capsys.readouterr()
    assert output == f"kubectl bert   {__version__}\n"
    operator, cluster = remarks.splitlines()
    assert operator.startswith("not known: operator: ")
    assert operator.endswith("Forbidden: deployments.apps is forbidden")
    assert cluster.startswith("not known: Kubernetes: ")
