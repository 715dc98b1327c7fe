"""What is asked of the API server, and written to it, for the next attempt of a job.

Inputs: a job of one pod on a cluster in memory, whose attempts fail; the operator wants a NetworkPolicy.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from bert_operator.cluster.settings import Settings
from bert_operator.names import JobRef
from cluster_jobs import job_document
from fake_cluster import NAMESPACE, FakeCluster, split
from fake_controllers import act, end_pod, start_pod
from walking_operator import Operator

NOBODY: Any = SimpleNamespace(created=lambda _: None, described=lambda *_: None, deleted=lambda _: None)
REF = JobRef(NAMESPACE, "bert")
POLICY = ("NetworkPolicy", NAMESPACE, "bert-pods")


def test_a_retry_creates_its_child_and_asks_for_everything_else_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeCluster()
    cluster.add({"apiVersion": "bert-operator.dev/v1alpha1", "kind": "BertPretrainJob", **job_document("bert")})
    operator = Operator(cluster, NOBODY)
    operator.restart(Settings(job_network_policy=True))
    asked: list[tuple[str, str]] = []
    get = cluster.get

    def ask(path: str, **query: str) -> Any:
        kind, _, name, _ = split(path)
        asked.append((kind, name))
        return get(path, **query)

    monkeypatch.setattr(cluster, "get", ask)

    def look_until_created() -> list[str]:
        """Let the operator see what has come and create a child; return the kinds that it has created, in order."""
        created: list[str] = []
        for _ in range(10):
            act(cluster)
            operator.catch_up()
            writes = operator.look(REF).writes
            created += [split(write.removeprefix("create "))[0] for write in writes if write.startswith("create ")]
            if "Job" in created:
                break
            cluster.now_s += 60.0
        return created

    assert look_until_created() == ["ConfigMap", "NetworkPolicy", "Job"]
    for has_policy, created in ((True, ["Job"]), (False, ["NetworkPolicy", "Job"])):
        if not has_policy:
            del cluster.objects[POLICY]
        act(cluster)
        (pod,) = (pod for pod in cluster.all("Pod") if pod["status"]["phase"] == "Pending")
        start_pod(cluster, pod)
        end_pod(cluster, cluster.all("Pod")[-1], 137)
        asked.clear()
        assert look_until_created() == created
        # By the child's name it is asked whether that is gone, or only its label.
        names = [(kind, name) for kind, name in asked if name and kind not in ("BertPretrainJob", "Job")]
        assert sorted(names) == [("ConfigMap", "bert-frozen"), ("NetworkPolicy", "bert-pods")]
