"""What a job goes through in a cluster, from the first write to the last: start, ends, retries, stops."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cluster_api import Api, wait_until
from cluster_jobs import Jobs, condition, conditions
from kubelet import FakeKubelet, attempt_of
from operator_process import OperatorProcess

Json = dict[str, Any]
pytestmark = pytest.mark.usefixtures("operator")


def names(children: list[Json]) -> list[tuple[str, str]]:
    return [(child["kind"], child["metadata"]["name"]) for child in children]


def failures(status: Json) -> list[tuple[int, str, str, int | None]]:
    return [(item["attempt"], item["kind"], item["reason"], item.get("exitCode")) for item in status["failures"]]


def test_a_single_pod_job_is_created_runs_and_succeeds(api: Api, namespace: str, jobs: Jobs) -> None:
    jobs.create("bert")
    status = jobs.wait("bert", lambda status: status.get("reason") == "WaitingToStart", "the first word about the job")
    assert (status["phase"], status["attempt"], status["run"]) == ("Pending", 1, "training")
    wait_until(lambda: jobs.children("bert"), "the child")
    child = jobs.child("bert")
    (owner,) = child["metadata"]["ownerReferences"]
    assert names([child]) == [("Job", "bert-a1-training")]
    assert (owner["uid"], owner["controller"]) == (jobs.get("bert")["metadata"]["uid"], True)

    kubelet = FakeKubelet(api, namespace)
    (pod,) = wait_until(lambda: jobs.pods("bert"), "the pod")
    kubelet.run(pod)
    status = jobs.wait_phase("bert", "Running")
    assert status["child"] == {
        "kind": "Job", "name": "bert-a1-training", "uid": child["metadata"]["uid"], "attempt": 1
    }  # fmt: skip
    assert status["logs"] == f"kubectl logs -f -n {namespace} job/bert-a1-training -c trainer"
    assert conditions(status) == {"Running": "ChildRunning"}
    assert status["observedGeneration"] == 1

    kubelet.succeed(pod)
    status = jobs.wait_phase("bert", "Succeeded")
    assert conditions(status) == {"Succeeded": "AllStagesDone"}
    assert condition(status, "Running")["status"] == "False"
    assert (status["completedRuns"], status.get("failures", [])) == (["training"], [])
    assert status["startTime"] <= status["completionTime"]
    told = ["AttemptStarted", "AllStagesDone", "RunCompleted", "Running"]
    wait_until(lambda: jobs.events("bert") == sorted(told), f"the Events {told}")
    assert names(jobs.children("bert")) == [("Job", "bert-a1-training")], "a child that is done stays for its log"


def test_a_job_with_two_workers_runs_as_an_mpi_job(api: Api, namespace: str, jobs: Jobs) -> None:
    jobs.create("bert", workers=2)
    with FakeKubelet(api, namespace, {1: None}) as kubelet:
        status = jobs.wait_phase("bert", "Running")
        assert names(jobs.children("bert")) == [("MPIJob", "bert-a1")]
        assert (status["child"]["kind"], status["child"]["name"]) == ("MPIJob", "bert-a1")
        assert status["logs"] == f"kubectl logs -f -n {namespace} job/bert-a1-launcher -c trainer"
        assert api.get("batch/v1/jobs", "bert-a1-launcher", namespace).status == 200, "what the hint names exists"
        roles = sorted(pod["metadata"]["labels"]["bert-operator.dev/role"] for pod in jobs.pods("bert"))
        assert roles == ["launcher", "worker", "worker"]
        kubelet.fates[1] = kubelet.succeed
        status = jobs.wait_phase("bert", "Succeeded")
    assert conditions(status) == {"Succeeded": "AllStagesDone"}
    told = sorted(["AttemptStarted", "AllStagesDone", "RunCompleted", "Running"])
    wait_until(lambda: jobs.events("bert") == told, f"the Events {told}")


def test_data_are_prepared_by_one_pod_before_the_training(api: Api, namespace: str, jobs: Jobs) -> None:
    jobs.create("bert", prepare=True, workers=2)
    with FakeKubelet(api, namespace):
        status = jobs.wait_phase("bert", "Succeeded")
    assert names(jobs.children("bert")) == [("Job", "bert-a1-prepare"), ("MPIJob", "bert-a2")]
    assert status["completedRuns"] == ["prepare", "training"]
    assert condition(status, "Prepared")["status"] == "True"
    ended = jobs.children("bert")[0]["status"]["completionTime"]
    assert jobs.children("bert")[1]["metadata"]["creationTimestamp"] >= ended


def test_a_failed_attempt_is_removed_before_the_next_one_reads_the_same_configuration(
    api: Api, namespace: str, jobs: Jobs
) -> None:
    jobs.create("bert")
    seen: list[list[int]] = []
    message = json.dumps({"exitCode": 1, "reason": "Diverged", "message": "loss is not a number"})
    with FakeKubelet(api, namespace) as kubelet:
        kubelet.fates |= {1: kubelet.failing(1, message), 2: None}
        frozen = wait_until(lambda: api.get("v1/configmaps", "bert-frozen", namespace).body.get("data"), "files")
        version = jobs.frozen("bert")["metadata"]["resourceVersion"]

        def second_runs(status: Json) -> bool:
            seen.append([attempt_of(child) for child in jobs.children("bert")])
            return bool(status.get("attempt") == 2 and status["phase"] == "Running")

        status = jobs.wait("bert", second_runs, "the second attempt")
        assert [1, 2] not in seen, "two attempts at the same time"
        assert names(jobs.children("bert")) == [("Job", "bert-a2-training")]
        assert (jobs.frozen("bert")["data"], jobs.frozen("bert")["metadata"]["resourceVersion"]) == (frozen, version)
        assert failures(status) == [(1, "Application", "Diverged", 1)]
        assert status["failures"][0]["message"] == "loss is not a number"
        (pod,) = jobs.pods("bert")
        assert status["failures"][0]["pod"].startswith("bert-a1-training-")
        assert status["failures"][0]["node"] == "node-1"
        assert {"name": "BERT_ATTEMPT", "value": "2"} in pod["spec"]["containers"][0]["env"]
        kubelet.fates[2] = kubelet.succeed
        jobs.wait_phase("bert", "Succeeded")
    assert "AttemptFailed" in jobs.events("bert")


def test_a_job_fails_when_its_retries_are_spent(api: Api, namespace: str, jobs: Jobs) -> None:
    jobs.create("bert", runPolicy={"applicationRetries": 1})
    with FakeKubelet(api, namespace) as kubelet:
        kubelet.fates |= {1: kubelet.failing(1), 2: kubelet.failing(1, "no such file: corpus")}
        status = jobs.wait_phase("bert", "Failed")
    assert conditions(status) == {"Failed": "ApplicationRetriesSpent"}
    assert failures(status) == [(1, "Application", "Exited", 1), (2, "Application", "Exited", 1)]
    assert "no such file: corpus" in status["message"]
    assert names(jobs.children("bert")) == [("Job", "bert-a2-training")], "the last one stays, to be looked at"


@pytest.mark.parametrize(
    ("how", "kind", "reason", "code"),
    [
        pytest.param({"exit_code": 4}, "Infrastructure", "Killed", 4, id="exit code 4"),
        pytest.param({"exit_code": 3}, "Infrastructure", "StoppedUnasked", 3, id="exit code 3, unasked"),
        pytest.param({"signal": 11}, "Infrastructure", "Killed", 139, id="a signal"),
        pytest.param({"oom": True}, "Infrastructure", "OOMKilled", None, id="out of memory"),
    ],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_an_end_counts_against_the_budget_of_its_cause(
    api: Api, namespace: str, jobs: Jobs, how: Json, kind: str, reason: str, code: int | None, workers: int
) -> None:
    jobs.create("bert", workers=workers, runPolicy={"applicationRetries": 0, "infrastructureRetries": 1})
    with FakeKubelet(api, namespace) as kubelet:
        kubelet.fates[1] = lambda pod: kubelet.fail(pod, **how)
        status = jobs.wait_phase("bert", "Succeeded", attempt=2)
    assert failures(status) == [(1, kind, reason, code)]


def test_input_that_was_refused_is_never_tried_again(api: Api, namespace: str, jobs: Jobs) -> None:
    jobs.create("bert", runPolicy={"applicationRetries": 5})
    message = json.dumps({"exitCode": 2, "reason": "ConfigError", "message": "dataset.path: no shards"})
    with FakeKubelet(api, namespace) as kubelet:
        kubelet.fates[1] = kubelet.failing(2, message)
        status = jobs.wait_phase("bert", "Failed")
    assert conditions(status) == {"Failed": "InvalidInput"}
    assert status["attempt"] == 1
    assert "dataset.path: no shards" in status["message"]


@pytest.mark.parametrize("workers", [1, 2])
def test_an_evicted_pod_counts_as_infrastructure(api: Api, namespace: str, jobs: Jobs, workers: int) -> None:
    jobs.create("bert", workers=workers, runPolicy={"applicationRetries": 0})
    with FakeKubelet(api, namespace, {1: None}) as kubelet:
        jobs.wait_phase("bert", "Running")
        role = "worker" if workers > 1 else "single"
        victim = next(pod for pod in jobs.pods("bert") if pod["metadata"]["labels"]["bert-operator.dev/role"] == role)
        kubelet.evict(victim)
        status = jobs.wait_phase("bert", "Succeeded", attempt=2)
    (failure,) = status["failures"]
    assert (failure["kind"], failure["pod"]) == ("Infrastructure", victim["metadata"]["name"])
    assert failure["reason"] in ("Evicted", "Disrupted")
    assert failure["node"] == "node-1"


def test_a_deleted_child_counts_as_lost_and_its_pod_is_waited_for(api: Api, namespace: str, jobs: Jobs) -> None:
    jobs.create("bert")
    kubelet = FakeKubelet(api, namespace)
    (pod,) = wait_until(lambda: jobs.pods("bert"), "the pod")
    kubelet.run(pod)
    jobs.wait_phase("bert", "Running")
    # In the background, as kubectl does: the Job goes at once, its pod keeps its grace period.
    api.delete("batch/v1/jobs", "bert-a1-training", namespace).expect()
    status = jobs.wait("bert", lambda status: condition(status, "Blocked").get("status") == "True", "a word about it")
    assert pod["metadata"]["name"] in status["message"]
    assert len(jobs.pods("bert")) == 1, "two attempts that write into the same folder"
    with FakeKubelet(api, namespace):
        status = jobs.wait_phase("bert", "Succeeded", attempt=2)
    assert failures(status) == [(1, "Infrastructure", "Lost", None)]


def test_a_suspended_job_stops_gracefully_and_goes_on_in_another_attempt(api: Api, namespace: str, jobs: Jobs) -> None:
    jobs.create("bert")
    kubelet = FakeKubelet(api, namespace)
    (pod,) = wait_until(lambda: jobs.pods("bert"), "the pod")
    kubelet.run(pod)
    jobs.wait_phase("bert", "Running")

    jobs.change("bert", runPolicy={"suspend": True}).expect()
    status = jobs.wait_phase("bert", "Stopping")
    assert status["reason"] == "StoppingOnRequest"
    (leaving,) = wait_until(
        lambda: [pod for pod in jobs.pods("bert") if "deletionTimestamp" in pod["metadata"]], "the pod's deletion"
    )
    assert leaving["metadata"]["deletionGracePeriodSeconds"] == 120
    assert jobs.status("bert")["phase"] == "Stopping", "its checkpoint is not yet written"
    kubelet.fail(leaving, exit_code=3)
    kubelet.remove(leaving)
    status = jobs.wait_phase("bert", "Stopped")
    assert conditions(status) == {"Stopped": "StoppedOnRequest"}
    assert (jobs.children("bert"), status.get("failures", [])) == ([], [])

    jobs.change("bert", runPolicy={"suspend": False}).expect()
    with FakeKubelet(api, namespace):
        status = jobs.wait_phase("bert", "Succeeded", attempt=2)
    assert condition(status, "Stopped")["reason"] == "Resumed"
    told = jobs.events("bert")
    assert told.count("AttemptStarted") == 2
    assert "StoppedOnRequest" in told


def test_a_job_that_outlives_its_ttl_is_deleted(api: Api, namespace: str, jobs: Jobs) -> None:
    jobs.create("bert", runPolicy={"ttlSecondsAfterFinished": 1})
    with FakeKubelet(api, namespace):
        wait_until(lambda: jobs.is_gone("bert") and not jobs.pods("bert"), "the job to be deleted")


def test_a_job_that_is_late_fails_and_leaves_nothing_running(api: Api, namespace: str, jobs: Jobs) -> None:
    jobs.create("bert", runPolicy={"activeDeadlineSeconds": 3})
    with FakeKubelet(api, namespace, {1: None}):
        status = jobs.wait_phase("bert", "Failed")
        assert conditions(status) == {"Failed": "DeadlineExceeded"}
        wait_until(lambda: not jobs.pods("bert"), "its pod to go")


RESOURCES = ("batch/v1/jobs", "kubeflow.org/v2beta1/mpijobs", "v1/pods", "v1/configmaps", "v1/secrets", "v1/services")


def inventory(api: Api, namespace: str) -> set[tuple[str, str]]:
    return {(kind, item["metadata"]["name"]) for kind in RESOURCES for item in api.list(kind, namespace)}


@pytest.mark.parametrize("workers", [1, 2])
def test_a_deleted_job_leaves_nothing_behind(api: Api, namespace: str, jobs: Jobs, workers: int) -> None:
    wait_until(lambda: api.get("v1/configmaps", "kube-root-ca.crt", namespace).status != 500, "the API server")
    before = inventory(api, namespace)
    jobs.create("bert", workers=workers)
    with FakeKubelet(api, namespace, {1: None}):
        jobs.wait_phase("bert", "Running")
        made = {kind for kind, _ in inventory(api, namespace) - before}
        assert made >= ({"v1/secrets", "v1/services"} if workers > 1 else {"batch/v1/jobs", "v1/configmaps"})
        jobs.delete("bert")
        wait_until(lambda: jobs.is_gone("bert"), "the job to go")
        wait_until(lambda: inventory(api, namespace) <= before, "everything that it made to go")


def test_a_job_of_the_same_name_waits_for_the_pods_of_its_namesake(api: Api, namespace: str, jobs: Jobs) -> None:
    jobs.create("bert")
    kubelet = FakeKubelet(api, namespace)
    (old,) = wait_until(lambda: jobs.pods("bert"), "the pod")
    kubelet.run(old)
    first = jobs.wait_phase("bert", "Running")["child"]["uid"]
    jobs.delete("bert")
    wait_until(lambda: jobs.is_gone("bert"), "the job to go")
    new = jobs.create("bert")["metadata"]["uid"]
    # Its pod runs on a machine until that says that it is gone.
    wait_until(lambda: "deletionTimestamp" in jobs.pods("bert")[0]["metadata"], "the old pod's deletion")
    waiting = jobs.wait("bert", lambda status: status.get("reason") == "NameTaken", "a word about the namesake")
    assert old["metadata"]["name"] in waiting["message"]
    assert len(jobs.pods("bert")) == 1, "two jobs that write into the same folder"
    assert jobs.children("bert") == []
    with FakeKubelet(api, namespace):
        status = jobs.wait_phase("bert", "Succeeded")
    assert status["child"]["uid"] != first
    assert jobs.child("bert")["metadata"]["ownerReferences"][0]["uid"] == new
    assert jobs.frozen("bert")["metadata"]["ownerReferences"][0]["uid"] == new
    assert condition(status, "Blocked")["status"] == "False"
    assert (status["attempt"], status.get("failures", [])) == (1, [])


def test_a_retry_runs_the_image_that_the_first_attempt_ran(
    operator: OperatorProcess, api: Api, namespace: str, jobs: Jobs
) -> None:
    def image_of_the_pod() -> str:
        (pod,) = jobs.pods("bert")
        return str(pod["spec"]["containers"][0]["image"])

    operator.kill()
    operator.configure(trainerImage="registry.example.com/trainer:old")
    operator.start()
    try:
        jobs.create("bert", image=None)
        with FakeKubelet(api, namespace, {1: None, 2: None}) as kubelet:
            jobs.wait_phase("bert", "Running")
            assert image_of_the_pod() == "registry.example.com/trainer:old"
            operator.kill()
            operator.configure(trainerImage="registry.example.com/trainer:new")
            kubelet.fates[1] = kubelet.failing(1)
            operator.start()
            jobs.wait_phase("bert", "Running", attempt=2)
            assert image_of_the_pod() == "registry.example.com/trainer:old"
            kubelet.fates[2] = kubelet.succeed
            jobs.wait_phase("bert", "Succeeded")
    finally:
        operator.kill()
        operator.configure()
        operator.start()


def test_a_status_that_says_nothing_new_is_not_written(
    operator: OperatorProcess, api: Api, namespace: str, jobs: Jobs
) -> None:
    jobs.create("running", workers=2)
    jobs.create("waiting", runPolicy={"suspend": True})
    with FakeKubelet(api, namespace, {1: None}):
        jobs.wait_phase("running", "Running")
        jobs.wait_phase("waiting", "Stopped")
        operator.wait_resyncs(1)
        before = [jobs.get(name)["metadata"]["resourceVersion"] for name in ("running", "waiting")]
        operator.wait_resyncs(3)
        assert [jobs.get(name)["metadata"]["resourceVersion"] for name in ("running", "waiting")] == before


def test_once_started_only_the_run_policy_may_change(api: Api, namespace: str, jobs: Jobs) -> None:
    jobs.create("bert", runPolicy={"applicationRetries": 0})
    with FakeKubelet(api, namespace, {1: None}) as kubelet:
        jobs.wait_phase("bert", "Running")
        refused = jobs.change("bert", seed=7)
        assert refused.status == 422
        assert "spec" in refused.message
        jobs.change("bert", runPolicy={"applicationRetries": 1}).expect()
        jobs.wait("bert", lambda status: status["observedGeneration"] == 2, "the new generation to be seen")
        kubelet.fates[1] = kubelet.failing(1)
        status = jobs.wait_phase("bert", "Succeeded", attempt=2)
    assert failures(status) == [(1, "Application", "Exited", 1)]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_child_that_a_queue_holds_back_is_left_to_the_queue(
    operator: OperatorProcess, api: Api, namespace: str, jobs: Jobs, workers: int
) -> None:
    resource = "kubeflow.org/v2beta1/mpijobs" if workers > 1 else "batch/v1/jobs"

    def suspend(value: bool) -> Json:
        return {"spec": {"runPolicy": {"suspend": value}} if workers > 1 else {"suspend": value}}

    jobs.create("bert", workers=workers, queueName="team")
    name = wait_until(lambda: jobs.children("bert"), "the child")[0]["metadata"]["name"]
    assert jobs.child("bert")["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    # What Kueue's webhook would do before anybody sees the child.
    api.patch(resource, name, suspend(True), namespace).expect()
    status = jobs.wait_phase("bert", "Queued")
    assert status["reason"] == "Queued"
    generation = jobs.child("bert")["metadata"]["generation"]
    operator.wait_resyncs(2)
    child = jobs.child("bert")
    assert (child["metadata"]["name"], child["metadata"]["generation"]) == (name, generation)
    assert not any(entry["manager"] == "bert-operator" and entry["operation"] == "Apply"
                   for entry in child["metadata"]["managedFields"])  # fmt: skip
    api.patch(resource, name, suspend(False), namespace).expect()
    with FakeKubelet(api, namespace):
        status = jobs.wait_phase("bert", "Succeeded")
    assert status["attempt"] == 1
    assert jobs.child("bert")["metadata"]["generation"] == generation + 1
