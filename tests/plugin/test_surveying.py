"""``events`` and ``tree``."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from bert_operator.plugin.job import Job
from bert_operator.plugin.related_objects import is_about
from bert_operator.plugin.terminal import Ink
from bert_operator.plugin.views.tree_view import show_tree
from kubectl_stand_in import KubectlStandIn, items, refuses, says
from seen_jobs import NOW_S, UID, pod, running

GET = "get bertpretrainjobs.bert-operator.dev corpus"
LABEL = "--selector bert-operator.dev/job=corpus"
Bert = Callable[..., int]
Json = dict[str, Any]


def event(kind: str, name: str, reason: str, *, last: str = "2026-01-01T11:30:00Z", **more: Any) -> Json:
    about = {"kind": kind, "name": name, "namespace": "team", **more.pop("about", {})}
    said = {"type": "Normal", "message": f"{reason} of {name}", "lastTimestamp": last, "count": 1, **more}
    return {"kind": "Event", "involvedObject": about, "reason": reason, **said}


def owned(kind: str, name: str, owner: str, **more: Any) -> Json:
    metadata = {
        "name": name,
        "uid": f"uid-of-{name}",
        "creationTimestamp": "2026-01-01T11:00:00Z",
        "ownerReferences": [{"uid": owner}],
    }
    return {"kind": kind, "metadata": metadata, **more}


def test_events_of_the_job_and_of_all_that_came_of_it_are_one_list(
    bert: Bert, kubectl: KubectlStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    kubectl.answer(GET, says(running()))
    newer = {"eventTime": "2026-01-01T11:59:30.5Z", "lastTimestamp": None, "count": None, "type": "Warning"}
    found = [
        event("Pod", "corpus-a3-launcher-x", "BackOff", **newer, series={"count": 4}, message="Back-off\x1b[2J\nagain"),
        event("BertPretrainJob", "corpus", "AttemptStarted", about={"uid": UID}, count=2),
        event("MPIJob", "corpus-a2", "Created", last="2026-01-01T11:00:00Z"),
        event("Pod", "other-a1-launcher-x", "Other"),
    ]
    kubectl.answer("get events", items(*found))
    assert bert("events", "corpus") == 0
    assert capsys.readouterr().out.splitlines() == [
        "AGO         TIMES   TYPE      OBJECT                     REASON           MESSAGE",
        "1:00 h      1       Normal    MPIJob/corpus-a2           Created          Created of corpus-a2",
        "30:00 min   2       Normal    BertPretrainJob/corpus     AttemptStarted   AttemptStarted of corpus",
        "30 s        4       Warning   Pod/corpus-a3-launcher-x   BackOff          Back-off [2J again",
    ]
    assert bert("events", "corpus", "--warnings", "-o", "json") == 0
    assert [item["reason"] for item in json.loads(capsys.readouterr().out)["items"]] == ["BackOff"]


@pytest.mark.parametrize(
    ("kind", "name", "more", "is_it"),
    [
        ("BertPretrainJob", "corpus", {"about": {"uid": UID}}, True),
        ("BertPretrainJob", "corpus", {"about": {"uid": "a namesake's"}}, False),
        ("Job", "corpus-a1-prepare", {}, True),
        ("Pod", "corpus-a1-training-x2f", {}, True),
        ("Pod", "corpus-a12-worker-0", {}, True),
        ("ConfigMap", "corpus-frozen", {}, True),
        ("Pod", "corpus-a1-training-x2f", {"last": "2026-01-01T09:00:00Z"}, False),
        ("Pod", "corpus-a1-a2-launcher-x", {}, False),
        ("Pod", "corpus-two-a1-launcher-x", {}, False),
        ("Pod", "corpusXa1", {}, False),
    ],
)
def test_events_of_other_jobs_and_of_a_namesake_are_left_out(kind: str, name: str, more: Json, is_it: bool) -> None:
    assert is_about(event(kind, name, "Some", **more), Job(running())) is is_it


def test_a_tree_hangs_each_object_below_its_owner(
    bert: Bert, kubectl: KubectlStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    kubectl.answer(GET, says(running()))
    condition = {"type": "Running", "status": "True"}
    prepared = {"conditions": [{"type": "Complete", "status": "True"}]}
    launcher_owner = {"ownerReferences": [{"uid": "uid-of-corpus-a3-launcher"}]}
    worker_owner = {"ownerReferences": [{"uid": "uid-of-corpus-a3"}]}
    kubectl.answer(f"get configmaps {LABEL}", items(owned("ConfigMap", "corpus-frozen", UID)))
    kubectl.answer(f"get networkpolicies.networking.k8s.io {LABEL}", refuses("Forbidden", "may not list"))
    kubectl.answer(
        f"get jobs.batch {LABEL}",
        items(
            owned("Job", "corpus-a1-prepare", UID, status=prepared), owned("Job", "corpus-a1-prepare", "a namesake's")
        ),
    )
    kubectl.answer(
        f"get mpijobs.kubeflow.org {LABEL}",
        items(owned("MPIJob", "corpus-a3", UID, status={"conditions": [condition]})),
    )
    waits = {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off"}}
    kubectl.answer(
        f"get pods {LABEL}",
        items(
            pod("corpus-a3-launcher-x", metadata=launcher_owner),
            pod("corpus-a3-worker-0", role="worker", phase="Pending", state=waits, metadata=worker_owner),
        ),
    )
    kubectl.answer(
        "get jobs.batch corpus-a3-launcher --ignore-not-found",
        says(owned("Job", "corpus-a3-launcher", "uid-of-corpus-a3", status={"active": 1})),
    )
    assert bert("tree", "corpus") == 0
    output, remarks = capsys.readouterr()
    assert [line.rstrip() for line in output.splitlines()] == [
        "OBJECT                              STATE      NODE     AGE      WHY",
        "BertPretrainJob/corpus              Running    -        2:00 h",
        "├─ ConfigMap/corpus-frozen          -          -        1:00 h",
        "├─ Job/corpus-a1-prepare            Complete   -        1:00 h",
        "└─ MPIJob/corpus-a3                 Running    -        1:00 h",
        "   ├─ Job/corpus-a3-launcher        Active     -        1:00 h",
        "   │  └─ Pod/corpus-a3-launcher-x   Running    node-1   1:00 h",
        "   └─ Pod/corpus-a3-worker-0        Pending    node-1   1:00 h   ImagePullBackOff: Back-off",
    ]
    assert remarks.startswith("not shown: networkpolicies: kubectl get networkpolicies")


def test_a_cluster_without_mpi_operator_has_a_tree_as_well(
    bert: Bert, kubectl: KubectlStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    kubectl.answer(GET, says(running()))
    missing = says("", errors='error: the server doesn\'t have a resource type "mpijobs"\n', code=1)
    kubectl.answer("mpijobs", missing)
    kubectl.answer(LABEL, items())
    assert bert("tree", "corpus") == 0
    output, remarks = capsys.readouterr()
    assert (len(output.splitlines()), remarks) == (2, "")


def test_objects_that_own_each_other_stand_once() -> None:
    layers = [[UID]] + [[f"uid-of-{layer}-{number}" for number in range(2)] for layer in range(30)]
    objects = []
    for above, names in zip(layers, layers[1:], strict=False):
        for name in names:
            item = owned("ConfigMap", name.removeprefix("uid-of-"), "nobody")
            item["metadata"]["ownerReferences"] = [{"uid": owner} for owner in above]
            objects.append(item)
    objects[0]["metadata"]["ownerReferences"].append({"uid": objects[-1]["metadata"]["uid"]})
    assert len(show_tree(Job(running()), objects, Ink(), NOW_S)) == 2 + len(objects)


def test_an_object_that_has_lost_its_owner_stands_in_the_tree_and_is_told() -> None:
    orphan = owned("Job", "corpus-a1-training", UID)
    del orphan["metadata"]["ownerReferences"]
    of_orphan = pod("corpus-a1-training-x", metadata={"ownerReferences": [{"uid": orphan["metadata"]["uid"]}]})
    lines = show_tree(Job(running()), [orphan, of_orphan, owned("Job", "another", "a namesake's")], Ink(), NOW_S)
    assert len(lines) == 4
    assert "no owner: it is not deleted with the job" in lines[2]
    assert "Pod/corpus-a1-training-x" in lines[3]
