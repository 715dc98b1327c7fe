"""What is known of the cluster: newer beats older, what is gone stays gone, and memory has bounds."""

from __future__ import annotations

from typing import Any

import pytest

from bert_operator.cluster import index as index_module
from bert_operator.cluster.index import MAX_WARNINGS, Index
from bert_operator.cluster.object_summaries import MAX_KEPT_BYTES, ChildRecord
from bert_operator.names import JobRef
from bert_operator.render.names import name_prefix
from child_documents import NAMESPACE, child_document, event_document, pod_document

Document = dict[str, Any]

DEMO = JobRef(NAMESPACE, "demo")


def job(name: str = "demo", *, uid: str = "job-uid", version: int = 1, phase: str = "Pending") -> Document:
    metadata = {"name": name, "namespace": NAMESPACE, "uid": uid, "resourceVersion": str(version)}
    return {"kind": "BertPretrainJob", "metadata": metadata, "spec": {}, "status": {"phase": phase}}


def phase(index: Index) -> str:
    entry = index.job(DEMO)
    return "" if entry is None else entry.phase


def test_an_older_version_of_a_job_is_ignored() -> None:
    index = Index()
    assert index.put_job(job(version=5, phase="Running")) == DEMO
    assert index.put_job(job(version=4)) is None
    assert phase(index) == "Running"
    index.put_job(job(version=6, phase="Failed"))
    assert phase(index) == "Failed"


def test_a_version_that_is_no_number_is_taken_for_new() -> None:
    index = Index()
    for current in ("Pending", "Running"):
        document = job(phase=current)
        document["metadata"]["resourceVersion"] = "a1"
        assert index.put_job(document) == DEMO
        assert phase(index) == current


def test_what_is_known_already_is_no_news() -> None:
    index = Index()
    for put, document in (
        (index.put_job, job(version=5)),
        (index.put_child, child_document(version=5)),
        (index.put_pod, pod_document(version=5)),
    ):
        assert put(document) == DEMO
        assert put(document) is None
        # A controller has noted something that no decision is made of.
        metadata = {**document["metadata"], "resourceVersion": "6", "annotations": {"seen": "yes"}}
        assert put({**document, "metadata": metadata}) is None
    (job_version,) = (version for *_, version in index.known("BertPretrainJob"))
    (child,), (pod,) = index.children(DEMO), index.all_pods(DEMO)
    assert (job_version, child.version, pod.version) == (6, 6, 6), "the newest one is the precondition of a write"


def test_every_change_that_decides_something_is_news() -> None:
    index = Index()
    index.put_job(job(version=5))
    changed = job(version=6)
    changed["spec"] = {"runPolicy": {"suspend": True}}
    assert index.put_job(changed) == DEMO
    assert index.put_job(job(version=7, phase="Running")) == DEMO
    assert index.put_job(job(version=8, uid="another")) == DEMO
    index.put_child(child_document(version=5))
    assert index.put_child(child_document(version=6, true={"Running": ""})) == DEMO
    assert index.put_child(child_document(version=7, uid="another")) == DEMO
    index.put_pod(pod_document(version=5))
    assert index.put_pod(pod_document(version=6, phase="Failed")) == DEMO
    assert index.put_pod(pod_document(version=7, phase="Failed", uid="another")) == DEMO


def test_every_version_of_a_job_too_large_to_be_kept_is_news() -> None:
    index = Index()
    for version in (5, 6):
        large = job(version=version)
        large["spec"] = {"env": ["x" * MAX_KEPT_BYTES]}
        assert index.put_job(large) == DEMO
        assert index.put_job(large) is None


def test_a_namespace_s_jobs_are_kept_up_to_a_bound_and_read_again_beyond(monkeypatch: pytest.MonkeyPatch) -> None:
    index = Index()
    index.put_job(job("first"))
    first = index.job(JobRef(NAMESPACE, "first"))
    assert first is not None
    assert first.content is not None
    monkeypatch.setattr(index_module, "MAX_KEPT_BYTES_EACH", len(first.content) + 1)

    def is_kept(name: str) -> bool:
        entry = index.job(JobRef(NAMESPACE, name))
        assert entry is not None
        return entry.content is not None

    for name in ("second", "third"):
        index.put_job(job(name, uid=name))
    index.put_job(job("first", version=2, phase="Running"))
    assert [is_kept(name) for name in ("first", "second", "third")] == [True, True, False]
    elsewhere = job("fourth", uid="fourth")
    elsewhere["metadata"]["namespace"] = "team-b"
    index.put_job(elsewhere)
    other = index.job(JobRef("team-b", "fourth"))
    assert other is not None
    assert other.content is not None, "no other namespace's"
    index.drop(job("second", uid="second"))
    index.put_job(job("third", uid="third", version=2))
    assert is_kept("third"), "there is room again"


def test_the_document_of_a_job_is_at_hand_for_the_first_look_and_kept_as_bytes_for_the_next() -> None:
    index, document = Index(), job(version=5)
    index.put_job(document)
    summary = index.job(DEMO)
    assert summary is not None
    taken = index.take_document(DEMO, summary)
    assert taken["spec"] is document["spec"]
    again = index.take_document(DEMO, summary)
    assert again == taken
    assert again["spec"] is not taken["spec"], "whoever has taken it may hold it, and no other has the same"
    index.put_job(job(version=6, phase="Running"))
    assert index.take_document(DEMO, summary)["status"] == {"phase": "Pending"}, "that of the summary, and no newer one"


def test_only_the_latest_documents_are_at_hand() -> None:
    index, count = Index(), index_module._MAX_AT_HAND + 1
    for number in range(count):
        index.put_job(job(f"job-{number}", uid=f"uid-{number}"))
    summaries = [index.job(JobRef(NAMESPACE, f"job-{number}")) for number in range(count)]
    documents = [index.take_document(JobRef(NAMESPACE, f"job-{n}"), s) for n, s in enumerate(summaries) if s]
    assert [document["metadata"]["uid"] for document in documents] == [f"uid-{number}" for number in range(count)]
    assert not index._at_hand
    index.put_job(job(version=9))
    index.drop(job(version=9))
    assert not index._at_hand


def test_another_job_of_the_name_replaces_the_first() -> None:
    index = Index()
    index.put_job(job(version=5, phase="Failed"))
    index.put_job(job(uid="other", version=3))
    assert phase(index) == "Pending"


def test_an_older_version_of_a_child_is_ignored() -> None:
    index = Index()
    leaving = child_document(version=12)
    leaving["metadata"]["deletionTimestamp"] = "2023-11-14T22:13:20Z"
    index.put_child(leaving)
    index.put_child(child_document(version=11))
    (entry,) = index.children(DEMO)
    assert (entry.version, entry.is_deleting) == (12, True)


def test_what_was_deleted_does_not_come_back() -> None:
    index = Index()
    for put, document in (
        (index.put_job, job()),
        (index.put_child, child_document()),
        (index.put_pod, pod_document()),
    ):
        put(document)
        assert index.drop(document) == DEMO
        put(document)
    assert index.count() == {"jobs": 0, "children": 0, "pods": 0, "warnings": 0}


def test_a_deletion_concerns_one_object_not_its_name() -> None:
    index = Index()
    index.put_job(job(uid="new"))
    index.put_child(child_document(uid="new"))
    index.drop(job(uid="old"))
    index.drop(child_document(uid="old"))
    assert index.job(DEMO) is not None
    assert [child.uid for child in index.children(DEMO)] == ["new"]


def test_a_warning_may_come_before_what_it_is_about() -> None:
    index = Index()
    event = event_document("Pod", "demo-a1-worker-0", "FailedMount", "denied")
    assert index.put_warning(event) is None
    index.put_pod(pod_document())
    assert index.put_warning(event) == DEMO
    (warning,) = index.warnings(DEMO, ["demo-a1-worker-0", "demo-a1"])["demo-a1-worker-0"]
    assert (warning.reason, warning.message) == ("FailedMount", "denied")


def test_a_launcher_s_job_is_known_by_its_mpi_job() -> None:
    index = Index()
    index.put_child(child_document())
    assert index.put_warning(event_document("Job", "demo-a1-launcher", "FailedCreate", "quota")) == DEMO


def test_a_warning_that_comes_again_is_kept_once_and_last() -> None:
    index = Index()
    for reason, message in (("FailedMount", "a"), ("BackOff", "b"), ("FailedMount", "c")):
        index.put_warning(event_document("Pod", "p", reason, message))
    kept = index.warnings(DEMO, ["p"])["p"]
    assert [(warning.reason, warning.message) for warning in kept] == [("BackOff", "b"), ("FailedMount", "c")]


@pytest.mark.parametrize("name", ["a", "a-b", "a-b-a1", "a-a1-a1-training"])
def test_names_with_dashes_lead_to_their_own_job(name: str) -> None:
    index = Index()
    for other in ("a", "a-b", "a-b-a1", "a-a1-a1-training"):
        index.put_child(child_document("Job", other))
        index.put_pod(pod_document("single", job=other))
        index.put_child(child_document(job=other, attempt=2))
    ref = JobRef(NAMESPACE, name)
    for kind, subject in (
        ("Job", f"{name_prefix(name)}-a1-training"),
        ("Pod", f"{name_prefix(name)}-a1-training-x0"),
        ("MPIJob", f"{name_prefix(name)}-a2"),
        ("Job", f"{name_prefix(name)}-a2-launcher"),
    ):
        assert index.put_warning(event_document(kind, subject, "FailedCreate", "x")) == ref
    pod = pod_document("single", job=name)
    assert index.drop(pod) == ref
    assert index.drop(child_document("Job", name)) == ref
    assert [child.attempt for child in index.children(ref)] == [2]


def test_a_child_that_is_not_called_after_its_job_is_found_before_it_has_pods() -> None:
    index, name = Index(), "my-launcher"
    assert name_prefix(name) != name
    index.put_child(child_document("Job", name))
    event = event_document("Job", f"{name_prefix(name)}-a1-training", "FailedCreate", "x")
    assert index.put_warning(event) == JobRef(NAMESPACE, name)


def test_the_same_name_in_another_namespace_is_another_job() -> None:
    index = Index()
    index.put_child(child_document())
    event = event_document("MPIJob", "demo-a1", "ValidationError", "x")
    event["metadata"]["namespace"] = "team-b"
    assert index.put_warning(event) is None
    assert index.warnings(DEMO, ["demo-a1"]) == {}


def test_pods_that_an_earlier_job_left_behind_are_not_the_child_s() -> None:
    index = Index()
    index.put_child(child_document(uid="new"))
    index.put_pod(pod_document(number=0, owner="old"))
    index.put_pod(pod_document(number=1, owner="new"))
    index.put_pod(pod_document("launcher", 0, owner="launcher-job", created=-60))
    index.put_pod(pod_document("launcher", 1, owner="launcher-job", created=1))
    names = {pod.name for pod in index.pods(DEMO, "demo-a1")}
    assert names == {"demo-a1-worker-1", "demo-a1-launcher-1"}


def test_a_child_that_is_not_known_yet_has_all_pods_of_its_name() -> None:
    index = Index()
    index.put_pod(pod_document(owner="any"))
    assert len(index.pods(DEMO, "demo-a1")) == 1
    assert index.pods(DEMO, "demo-a2") == []


def test_warnings_are_bounded_and_the_oldest_go_first() -> None:
    index = Index()
    for number in range(MAX_WARNINGS + 10):
        index.put_warning(event_document("Pod", f"stranger-{number}", "BackOff", "x"))
    for number in range(20):
        index.put_warning(event_document("Pod", "chatty", f"Reason{number}", "x"))
    assert index.count()["warnings"] == MAX_WARNINGS
    assert len(index.warnings(DEMO, ["chatty"])["chatty"]) == 4
    assert index.warnings(DEMO, ["stranger-0"]) == {}


def test_what_is_deleted_leaves_nothing_but_a_bounded_memory_of_uids() -> None:
    index = Index()
    for number in range(100):
        name = f"job-{number}"
        documents = [child_document(job=name), pod_document(job=name)]
        index.put_job(job(name, uid=f"u{number}"))
        index.put_child(documents[0])
        index.put_pod(documents[1])
        index.put_warning(event_document("Pod", documents[1]["metadata"]["name"], "BackOff", "x"))
        for document in (documents[1], documents[0], job(name, uid=f"u{number}")):
            index.drop(document)
    assert index.count() == {"jobs": 0, "children": 0, "pods": 0, "warnings": 0}
    assert index._child_lists.is_empty
    for number in range(20_100):
        index.drop_uid("Pod", NAMESPACE, f"pod-{number}", f"uid-{number}")
    # The oldest are forgotten: so late an echo may come back, and the next list takes it away.
    assert index.put_pod({**pod_document(), "metadata": {**pod_document()["metadata"], "uid": "uid-0"}}) == DEMO
    assert index.count()["pods"] == 1


def test_everything_of_a_kind_is_listed_for_comparisons() -> None:
    index = Index()
    index.put_job(job(version=3))
    index.put_child(child_document("Job"))
    index.put_child(child_document(attempt=2))
    index.put_pod(pod_document())
    assert list(index.known("BertPretrainJob")) == [(NAMESPACE, "demo", "job-uid", 3)]
    assert [item[1] for item in index.known("Job")] == ["demo-a1-training"]
    assert [item[1] for item in index.known("MPIJob")] == ["demo-a2"]
    assert [item[1] for item in index.known("Pod")] == ["demo-a1-worker-0"]
    assert index.count_phases() == {"Pending": 1}


def test_what_is_labelled_with_another_job_s_name_is_known_once_and_dropped_with_its_deletion() -> None:
    """Anyone may label Jobs and pods of theirs with any name: none of them may stay in memory when it is gone."""
    index = Index()
    index.put_job(job())
    for put, document, labels in (
        (index.put_child, child_document(version=5), {"bert-operator.dev/job": "other"}),
        (index.put_pod, pod_document(version=5), {"bert-operator.dev/job": "other"}),
    ):
        put(document)
        before = index.count()
        metadata = {**document["metadata"], "labels": document["metadata"]["labels"] | labels, "resourceVersion": "6"}
        assert put({**document, "metadata": metadata}) == JobRef(NAMESPACE, "other")
        assert index.count() == before
        assert index.drop({**document, "metadata": metadata}) == JobRef(NAMESPACE, "other")
    assert index.count() == {"jobs": 1, "children": 0, "pods": 0, "warnings": 0}


def test_a_child_that_others_relabel_stays_with_the_job_that_is_on_record() -> None:
    index, child = Index(), child_document(version=5)
    index.put_job(job())
    child["metadata"]["labels"] |= {"bert-operator.dev/job": "other"}
    assert index.put_child(child) == JobRef(NAMESPACE, "other")
    name, uid = child["metadata"]["name"], child["metadata"]["uid"]
    child["metadata"]["resourceVersion"] = "6"
    assert index.restore_child(child, ChildRecord("demo", "job-uid", "MPIJob", name, uid, "training", 1)) == DEMO
    assert [(each.uid, each.version) for each in index.own_children(DEMO, "job-uid")] == [(uid, 6)]
    assert index.count()["children"] == 1
    assert index.drop(child) == DEMO
    assert index.num_records == 0


@pytest.mark.parametrize("owner", ["", "job-uid"])
def test_a_job_of_an_mpi_job_s_name_takes_nothing_from_it(owner: str) -> None:
    """Anyone may make one, with any labels and owner; MPIJobs and Jobs have names of their own."""
    index, child, pod = Index(), child_document(version=5), pod_document()
    record = ChildRecord("demo", "job-uid", "MPIJob", "demo-a1", child["metadata"]["uid"], "training", 1)
    index.put_job(job())
    index.restore_child(child, record)
    index.put_pod(pod)
    planted = child_document(uid="planted", owner=owner, version=6) | {"kind": "Job"}
    index.put_child(planted)
    assert child["metadata"]["uid"] in [each.uid for each in index.own_children(DEMO, "job-uid")]
    assert [each.name for each in index.pods(DEMO, "demo-a1")] == [pod["metadata"]["name"]]
    assert index.drop(planted) == DEMO
    assert [each.uid for each in index.own_children(DEMO, "job-uid")] == [child["metadata"]["uid"]]
    assert index.num_records == 1
    assert index.drop(child) == DEMO
    assert index.children(DEMO) == []
    assert index.num_records == 0
