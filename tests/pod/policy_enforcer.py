"""The stand-in for a network plugin at work on a node: it follows policies and pods, and loads rules where they change.

Plugins see a pod before it has begun. This hears of its address from the API server, a second or two later: until then
nothing holds back what the pod sends, and pods that are isolated do not hear it. TCP asks again.
"""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Callable, Collection
from types import TracebackType

from cluster_api import Api, Json, wait_until
from node import POLICY_TABLE
from policy_stand_in import Pod, is_isolated, translate

POLICIES, NAMESPACES, PODS = "networking.k8s.io/v1/networkpolicies", "v1/namespaces", "v1/pods"
_WATCH_S = 2
"""As long takes an end: a watch is not broken off."""


class PolicyEnforcer:
    """Enforces while it is entered."""

    def __init__(self, api: Api, node: str) -> None:
        """node: the address at which pods find their node."""
        self._api, self._node = api, node
        self._objects: dict[str, dict[str, Json]] = {resource: {} for resource in (POLICIES, NAMESPACES, PODS)}
        self._lock, self._news, self._ended = threading.Lock(), threading.Event(), threading.Event()
        self._problem = ""
        self.isolated: frozenset[tuple[str, str]] = frozenset()
        """Namespace and name of the pods that the loaded rules isolate."""
        self.ever_isolated: set[tuple[str, str]] = set()
        """The same since it began."""
        self._threads = [
            threading.Thread(target=self._kept, args=[self._follow, resource]) for resource in self._objects
        ]
        self._threads.append(threading.Thread(target=self._kept, args=[self._load]))

    @staticmethod
    def is_possible() -> bool:
        """Tell whether this machine has what it needs."""
        return shutil.which("nft") is not None

    def __enter__(self) -> PolicyEnforcer:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._news.set()
        for thread in self._threads:
            thread.join()
        subprocess.run(["nft", "delete", "table", "bridge", POLICY_TABLE], capture_output=True)
        assert not self._problem, self._problem

    def wait_isolated(self, namespace: str, pods: Collection[str]) -> None:
        """Wait until the rules isolate these pods."""
        wanted = {(namespace, pod) for pod in pods}
        wait_until(lambda: wanted <= self.isolated, lambda: f"rules for {wanted}; there are {self.isolated}")

    def _kept(self, work: Callable[..., None], *words: str) -> None:
        """Do it in a thread; what ends it is a problem of the tests."""
        try:
            work(*words)
        except Exception as error:
            self._problem = repr(error)
            raise

    def _follow(self, resource: str) -> None:
        version = ""
        while not self._ended.is_set():
            try:
                version = version or self._list(resource)
                for event in self._api.watch(resource, version, seconds=_WATCH_S):
                    version = self._note(resource, event)
            except OSError:  # tests stop the API server
                version = ""
                self._ended.wait(0.5)

    def _list(self, resource: str) -> str:
        """Take what there is; return its version."""
        status, found = self._api.get(resource, "")
        if status != 200:
            raise OSError(f"{resource}: {status}")
        with self._lock:
            self._objects[resource] = {item["metadata"]["uid"]: item for item in found["items"]}
        self._news.set()
        return str(found["metadata"]["resourceVersion"])

    def _note(self, resource: str, event: Json) -> str:
        """Take what has happened; return the version after it, empty where the version asked for is too old."""
        if event["type"] == "ERROR":
            return ""
        metadata = event["object"]["metadata"]
        with self._lock:
            if event["type"] == "DELETED":
                self._objects[resource].pop(metadata["uid"], None)
            else:
                self._objects[resource][metadata["uid"]] = event["object"]
        self._news.set()
        return str(metadata["resourceVersion"])

    def _load(self) -> None:
        loaded = ""
        while self._news.wait() and not self._ended.is_set():
            self._news.clear()
            with self._lock:
                policies, namespaces, pods = (list(self._objects[one].values()) for one in (POLICIES, NAMESPACES, PODS))
            known = read_pods(pods, namespaces)
            rules = translate(policies, known, node=self._node)
            if rules != loaded:
                answer = subprocess.run(["nft", "-f", "-"], input=rules, capture_output=True, text=True)
                if answer.returncode != 0:
                    self._problem = f"nft: {answer.stderr}\n{rules}"
                    continue
                loaded = rules
            self.isolated = frozenset((pod.namespace, pod.name) for pod in known if is_isolated(policies, pod))
            self.ever_isolated |= self.isolated


def read_pods(pods: Collection[Json], namespaces: Collection[Json]) -> list[Pod]:
    """Return what policies know of the pods that have an address of their own, in the order of their names."""
    labels_of = {item["metadata"]["name"]: item["metadata"].get("labels") or {} for item in namespaces}
    found = []
    for pod in pods:
        metadata, spec, status = pod["metadata"], pod["spec"], pod["status"]
        # One that has ended keeps the address in its status, and another pod may get it.
        if not status.get("podIP") or status.get("phase") in ("Succeeded", "Failed") or spec.get("hostNetwork"):
            continue
        ports = (port for container in spec["containers"] for port in container.get("ports") or ())
        found.append(
            Pod(
                address=status["podIP"],
                labels=metadata.get("labels") or {},
                namespace=metadata["namespace"],
                namespace_labels=labels_of.get(metadata["namespace"], {}),
                ports={port["name"]: port["containerPort"] for port in ports if "name" in port},
                name=metadata["name"],
            )
        )
    return sorted(found, key=lambda pod: (pod.namespace, pod.name))
