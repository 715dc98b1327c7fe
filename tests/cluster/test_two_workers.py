"""Two pods with one rank each, seen from inside: where the ranks are, as whom, with which environment and limits.

Inputs: the job of the other tests, held at work by many steps. Observed: processes of the worker pods, the namespace.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from job_cluster import USER, Namespace, poll
from real_jobs import RealJob, pod_name, training_job

pytestmark = pytest.mark.timeout(400)

_LOOK_INSIDE = """
import json, os, pathlib, socket
from bert_trainer.pod.processes import find_ranks
from bert_trainer.system.process_tree import find_descendants
def read(*paths):
    return next((pathlib.Path(path).read_text().strip() for path in paths if os.path.exists(path)), None)
ranks = []
for pid in find_ranks(1):
    process = pathlib.Path(f'/proc/{pid}')
    pairs = [entry.partition('=') for entry in (process / 'environ').read_text().split(chr(0)) if entry]
    # bert-pod rank waits for the program, which alone loads what was chosen.
    family = [pid, *find_descendants(pid)]
    maps = ''.join(pathlib.Path(f'/proc/{member}/maps').read_text() for member in family)
    ranks.append({
        'environment': {name: value for name, _, value in pairs},
        'user': (process / 'status').read_text().split('Uid:')[1].split()[0],
        'capabilities': (process / 'status').read_text().split('CapEff:')[1].split()[0],
        'libraries': sorted({line.split('/')[-1] for line in maps.splitlines() if '.so' in line}),
    })
print(json.dumps({
    'host': socket.gethostname(),
    'groups': os.getgroups(),
    'ranks': ranks,
    'memory': read('/sys/fs/cgroup/memory.max', '/sys/fs/cgroup/memory/memory.limit_in_bytes'),
    'root_is_writable': os.access('/', os.W_OK),
    'key': read('/mnt/keys/token'),
    'setting': read('/mnt/settings/FROM_CONFIG'),
    'scratch': os.statvfs('/mnt/scratch').f_bsize > 0 and os.access('/mnt/scratch', os.W_OK),
    'token_of_account': os.path.exists('/var/run/secrets/kubernetes.io/serviceaccount/token'),
}))
"""
ACCOUNT = "trainer"
METADATA = {"labels": {"team": "nlp"}, "annotations": {"karpenter.sh/do-not-disrupt": "true"}}
VOLUMES = [
    {"name": "keys", "source": {"secret": {"name": "wandb"}, "mountPath": "/mnt/keys"}},
    {"name": "settings", "source": {"configMap": {"name": "settings"}, "mountPath": "/mnt/settings"}},
    {"name": "scratch", "source": {"emptyDir": {"sizeLimit": "1Gi"}, "mountPath": "/mnt/scratch"}},
]


@pytest.fixture(scope="module")
def running(data: Namespace) -> Iterator[RealJob]:
    """A job at work, with variables from three places, jemalloc, and whatever else pods may have."""
    metadata = {"name": "settings"}
    data.apply(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"FROM_CONFIG": "two words"}},
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "wandb"}, "stringData": {"token": "of a secret"}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT}},
    )
    job = training_job(
        "inside",
        env=[
            {"name": "OMP_NUM_THREADS", "value": "1"},
            {"name": "PLAIN", "value": 'a "quoted" $HOME, and more'},
            {"name": "ONE_KEY", "configMap": {"name": "settings", "key": "FROM_CONFIG"}},
        ],
        envFrom=[{"configMap": "settings", "prefix": "ALL_"}],
        cpu={"allocator": "jemalloc"},
        serviceAccountName=ACCOUNT,
        podMetadata=METADATA,
        volumes=VOLUMES,
    )
    job["spec"]["stages"][0]["pretrain"]["length"] = {"steps": 100_000}
    data.apply(job)
    running = RealJob(data, "inside")
    running.wait_steps(1)
    yield running
    data.kubectl("delete", "bpj", "inside", "--wait=false")
    poll(lambda: not running.pods("worker"), "the pods to go")


@pytest.fixture(scope="module")
def inside(running: RealJob) -> list[dict[str, Any]]:
    """What each worker pod sees."""
    pods = [pod_name(pod) for pod in running.pods("worker")]
    return [json.loads(running.namespace.python(_LOOK_INSIDE, pod=pod)) for pod in pods]


def test_both_ranks_are_in_different_pods(inside: list[dict[str, Any]]) -> None:
    assert [worker["host"] for worker in inside] == ["inside-a1-worker-0", "inside-a1-worker-1"]
    ranks = [[rank["environment"]["OMPI_COMM_WORLD_RANK"] for rank in worker["ranks"]] for worker in inside]
    assert ranks == [["0"], ["1"]]


def test_they_run_as_a_user_that_no_image_knows_without_any_capability(inside: list[dict[str, Any]]) -> None:
    for worker in inside:
        (rank,) = worker["ranks"]
        assert rank["user"] == str(USER)
        assert int(rank["capabilities"], 16) == 0
        assert USER in worker["groups"]


def test_the_namespace_enforces_the_restricted_standard(running: RealJob) -> None:
    namespace = running.namespace
    (found,) = (item for item in namespace.list("namespaces") if item["metadata"]["name"] == namespace.name)
    assert found["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


def test_every_variable_reaches_every_rank(inside: list[dict[str, Any]]) -> None:
    for worker in inside:
        environment = worker["ranks"][0]["environment"]
        assert environment["OMP_NUM_THREADS"] == "1"
        assert environment["PLAIN"] == 'a "quoted" $HOME, and more'
        assert environment["ONE_KEY"] == "two words"
        assert environment["ALL_FROM_CONFIG"] == "two words"
        assert environment["BERT_ATTEMPT"] == "1"


def test_the_pods_have_the_limits_that_the_job_names(inside: list[dict[str, Any]], running: RealJob) -> None:
    assert [worker["memory"] for worker in inside] == [str(2 * 2**30)] * 2
    for pod in running.pods("worker"):
        (container,) = pod["spec"]["containers"]
        assert container["resources"]["limits"] == container["resources"]["requests"] == {"memory": "2Gi"}


def test_every_pod_has_the_account_and_the_metadata_of_the_job(running: RealJob) -> None:
    pods = [*running.pods("launcher"), *running.pods("worker")]
    assert len(pods) == 3
    for pod in pods:
        assert pod["spec"]["serviceAccountName"] == ACCOUNT
        assert pod["metadata"]["labels"].items() >= METADATA["labels"].items()
        assert pod["metadata"]["annotations"].items() >= METADATA["annotations"].items()


def test_secrets_settings_and_scratch_are_folders_of_every_pod(inside: list[dict[str, Any]]) -> None:
    for worker in inside:
        assert (worker["key"], worker["setting"], worker["scratch"]) == ("of a secret", "two words", True)
        assert not worker["token_of_account"], "for identities that a cloud gives to the account"


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ({"serviceAccountName": "default"}, "serviceAccountName"),
        ({"podMetadata": {"labels": {"cost-centre": "1"}}}, "podMetadata.labels"),
        ({"podMetadata": {"annotations": {"example.com/mesh": "off"}}}, "podMetadata.annotations"),
        ({"scheduling": {"schedulingPolicy": {"queue": "theirs"}}}, "schedulingPolicy.queue"),
    ],
)
def test_what_the_operator_s_settings_do_not_name_is_refused(data: Namespace, spec: dict[str, Any], named: str) -> None:
    name = named.lower().replace(".", "-")
    data.apply(training_job(name, **spec))
    status = RealJob(data, name).wait_phase("Invalid")
    assert f"spec.{named}" in status["message"] or f"spec.scheduling.{named}" in status["message"]
    assert not RealJob(data, name).pods("worker")
    data.kubectl("delete", "bpj", name)


def test_the_chosen_allocator_is_loaded_and_named(inside: list[dict[str, Any]], running: RealJob) -> None:
    for worker in inside:
        assert "libjemalloc.so.2" in worker["ranks"][0]["libraries"]
    log = running.namespace.kubectl("logs", running.pod("launcher"))
    assert log.count("jemalloc") >= 2, "one line of each rank"


def test_kubectl_get_shows_how_far_it_is(running: RealJob) -> None:
    running.wait(lambda status: (status.get("progress") or {}).get("step", 0) >= 5, "progress")
    header, line = running.namespace.kubectl("get", "bpj", "inside", "-o", "wide").splitlines()
    columns = {name: line[header.index(name) :].split()[0] for name in ("STAGE", "PHASE", "STEPS", "ETA", "LOSS")}
    assert (columns["STAGE"], columns["PHASE"], columns["STEPS"]) == ("phase1", "Running", "100000")
    assert float(columns["LOSS"]) > 0
    first = running.status()["progress"]["step"]
    running.wait(lambda status: status["progress"]["step"] > first, "more progress")


def test_the_launcher_says_whom_it_waits_for_and_tags_what_ranks_say(running: RealJob) -> None:
    log = running.namespace.kubectl("logs", running.pod("launcher"))
    assert "Waiting for 2 workers" in log
    assert "All 2 workers answer" in log


def test_every_rank_has_a_log_file_on_the_volume(running: RealJob) -> None:
    names = running.namespace.python("import os; print(sorted(os.listdir('/volume/inside/logs/attempt-1')))")
    assert "rank-0" in names
    assert "rank-1" in names
