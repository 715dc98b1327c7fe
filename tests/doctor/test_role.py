"""The roles that are shipped for whoever runs the doctor let it look at everything, and at nothing else.

Inputs: the requests that it makes of a healthy cluster, and deploy/kustomize. Observed: the rights of both.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import yaml

from bert_operator.doctor.command import run
from bert_operator.doctor.gathering import SOURCES
from bert_operator.doctor.reading import FORBIDDEN, Refused
from doctor_cluster import OPERATOR, MemoryCluster

NAME = "bert-operator-doctor"
ROLES = Path(__file__).parents[2] / "deploy/kustomize/base/user-roles.yaml"


class Request(NamedTuple):
    """What is asked for, as rules name it; an empty namespace means all, an empty name all objects."""

    group: str
    resource: str
    namespace: str
    name: str

    @property
    def verb(self) -> str:
        return "get" if self.name else "list"


class AskedCluster(MemoryCluster):
    """Remembers what it is asked for, and refuses what no role grants."""

    def __init__(self, *roles: dict[str, Any]) -> None:
        super().__init__()
        pod = {"kind": "PodMetrics", "metadata": {"name": "x", "namespace": OPERATOR}, "containers": []}
        self.objects[f"apis/metrics.k8s.io/v1beta1/namespaces/{OPERATOR}/pods/x"] = pod
        self.roles, self.asked = roles, set[Request]()

    def get(self, path: str) -> Any:
        if path.startswith(("/api/", "/apis/")):
            request = parse(path)
            self.asked.add(request)
            if not any(grants(role, request) for role in self.roles):
                raise Refused(FORBIDDEN, f"forbidden: {path}")
        return super().get(path)


def parse(path: str) -> Request:
    words = urlsplit(path).path.strip("/").split("/")
    group, rest = ("", words[2:]) if words[0] == "api" else (words[1], words[3:])
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    return Request(group, rest[0], namespace, rest[1] if len(rest) > 1 else "")


def grants(role: dict[str, Any], request: Request) -> bool:
    if role["kind"] == "Role" and role["metadata"]["namespace"] != request.namespace:
        return False
    return any(
        request.group in rule["apiGroups"]
        and request.resource in rule["resources"]
        and request.verb in rule["verbs"]
        and (not rule.get("resourceNames") or request.name in rule["resourceNames"])
        for rule in role["rules"]
    )


def shipped(name: str) -> list[dict[str, Any]]:
    found = yaml.safe_load_all(ROLES.read_text())
    return [item for item in found if item["kind"] in ("ClusterRole", "Role") and item["metadata"]["name"] == name]


def rights(roles: list[dict[str, Any]]) -> Iterator[tuple[str, str, str]]:
    for rule in (rule for role in roles for rule in role["rules"]):
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                yield from ((group, resource, verb) for verb in rule["verbs"])


def test_with_the_roles_that_are_shipped_every_check_looks() -> None:
    cluster = AskedCluster(*shipped(NAME))
    report = run(argparse.Namespace(pre=False), cluster)
    assert report.lines()[1:] == [f"{len(report.outcomes)} checks: 0 errors, 0 warnings, 0 notes; 0 not looked at"]
    assert len(cluster.asked) > len(SOURCES)


def test_no_right_is_there_for_nothing() -> None:
    cluster = AskedCluster(*shipped(NAME))
    run(argparse.Namespace(pre=False), cluster)
    assert {(each.group, each.resource, each.verb) for each in cluster.asked} == set(rights(shipped(NAME)))


def test_nobody_reads_secrets_or_the_configmaps_of_all_namespaces_by_them() -> None:
    for role in shipped(NAME):
        for rule in role["rules"]:
            assert set(rule["verbs"]) <= {"get", "list"}
            assert "secrets" not in rule["resources"]
            if "configmaps" in rule["resources"]:
                assert role["kind"] == "Role" or rule["resourceNames"]
