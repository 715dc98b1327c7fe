"""Plays the machines of a cluster that has none: says through the API what becomes of pods.

Nothing runs. A pod is bound to a node that does not exist, and its status is patched to what a kubelet would report.
As on a cluster, a pod that is bound and then deleted stays, with a deletionTimestamp, until its kubelet says that its
containers are gone: ``remove_deleted``, or the thread that plays. A pod that was never bound goes at once.
"""

from __future__ import annotations

import contextlib
import signal as signals
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from bert_operator.timestamps import render_time
from cluster_api import Answer, Api, path_of

Json = dict[str, Any]
Action = Callable[[Json], None]

GROUP = "bert-operator.dev"
NODE = "node-1"
POLL_S = 0.1
FINAL_PHASES = ("Succeeded", "Failed")


class PodGone(AssertionError):
    """The pod was removed before its status could be told."""


class FakeKubelet:
    """The kubelet of one node that takes every pod of a namespace, or of all where none is named.

    ``with FakeKubelet(api, namespace, fates) as kubelet:`` plays on in a thread: it runs every pod, removes what was
    deleted, and ends the pods of Jobs, attempt by attempt. ``fates`` maps attempts to what is done with their pods;
    None lets them run on. Attempts that are not named succeed, and pods that are of none.
    """

    ran_for_s = 0.3
    """Not at once: mpi-operator says Running only if it finds launcher and workers running together."""

    def __init__(self, api: Api, namespace: str = "", fates: Mapping[int, Action | None] | None = None) -> None:
        self._api, self._namespace = api, namespace
        self.fates: dict[int, Action | None] = dict(fates or {})
        self.digests: dict[str, str] = {}
        """What the node has images from, as its runtime says it: by the image as the pod names it."""
        self._running_since_s: dict[str, float] = {}
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._problem: BaseException | None = None

    # What can become of a pod. Each takes the pod as the API server returned it, fresh or not.

    def bind(self, pod: Json) -> None:
        """Do the scheduler's part: give the pod to this node. Does nothing where it has one."""
        if pod["spec"].get("nodeName"):
            return
        target = {"apiVersion": "v1", "kind": "Node", "name": NODE}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": _name(pod)}, "target": target}
        answer = self._api.request("POST", path_of("v1/pods", _name(pod), _namespace(pod), "binding"), binding)
        # 409: it was bound since the pod was read, or is being deleted, which the next request shows.
        _check(answer, pod, 200, 201, 409)

    def run(self, pod: Json) -> None:
        """Its containers run and are ready."""
        self.bind(pod)
        running = {"state": {"running": {"startedAt": render_time(time.time())}}, "ready": True, "started": True}
        self._report(pod, "Running", running, ready=True)
        self._running_since_s.setdefault(pod["metadata"]["uid"], time.monotonic())

    def be_unready(self, pod: Json) -> None:
        """Its containers run, and their probes fail."""
        self.bind(pod)
        running = {"state": {"running": {"startedAt": render_time(time.time())}}, "ready": False, "started": True}
        self._report(pod, "Running", running)

    def succeed(self, pod: Json) -> None:
        """All its containers end with 0."""
        self.bind(pod)
        self._report(pod, "Succeeded", _ended({"exitCode": 0, "reason": "Completed"}))

    def fail(
        self,
        pod: Json,
        exit_code: int = 1,
        reason: str = "Error",
        message: str = "",
        signal: int | None = None,
        oom: bool = False,
    ) -> None:
        """Its containers end badly: by themselves, by a signal, or for lack of memory."""
        if oom:
            reason, signal = "OOMKilled", signals.SIGKILL
        if signal is not None:
            exit_code = 128 + signal
        # A kubelet leaves containerStatuses[].state.terminated.signal empty: the runtime interface has no such field.
        self.bind(pod)
        self._report(pod, "Failed", _ended({"exitCode": exit_code, "reason": reason, "message": message}))

    def evict(self, pod: Json, reason: str = "Evicted", message: str = "The node was low on resource: memory.") -> None:
        """The node ends the pod for its own sake."""
        self.bind(pod)
        disrupted = _condition("DisruptionTarget", True, reason="TerminationByKubelet", message=message)
        ended = _ended({"exitCode": 137, "reason": "Error"})
        self._report(pod, "Failed", ended, reason=reason, message=message, conditions=[disrupted])

    def wait_image(
        self, pod: Json, reason: str = "ImagePullBackOff", message: str = "Back-off pulling image: not found"
    ) -> None:
        """Its containers wait, for an image unless ``reason`` says otherwise (CreateContainerConfigError, ...)."""
        self.bind(pod)
        waiting = {"state": {"waiting": {"reason": reason, "message": message}}, "ready": False, "started": False}
        self._report(pod, "Pending", waiting)

    def remove(self, pod: Json) -> None:
        """Say that nothing of a deleted pod is left on the node, whereupon the API server removes it."""
        self._api.delete("v1/pods", _name(pod), _namespace(pod), grace_s=0).expect(200, 404)
        self._running_since_s.pop(pod["metadata"]["uid"], None)

    def remove_deleted(self) -> int:
        """Remove the pods that were deleted and wait for their kubelet; return how many."""
        deleted = [pod for pod in self.pods() if "deletionTimestamp" in pod["metadata"]]
        for pod in deleted:
            self.remove(pod)
        return len(deleted)

    def pods(self, selector: str = "") -> list[Json]:
        """Return the pods, those with these labels where a selector is given."""
        return self._api.list("v1/pods", self._namespace, **({"labelSelector": selector} if selector else {}))

    # Playing along by itself.

    def start(self) -> None:
        """Play on in a thread."""
        assert self._thread is None, "this kubelet plays already; stop() it first"
        self._stopping.clear()
        self._thread = threading.Thread(target=self._play, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread. Raises what went wrong in it."""
        thread, self._thread = self._thread, None
        self._stopping.set()
        if thread:
            thread.join()
        problem, self._problem = self._problem, None
        if problem:
            raise problem

    def __enter__(self) -> Self:
        """Begin to play."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def decide(self, pod: Json, ran_s: float) -> Action | None:
        """Say what to do with a pod that this kubelet has been running for so many seconds; None: nothing."""
        if not ran_s:
            return self.run
        is_of_job = any(owner["kind"] == "Job" for owner in pod["metadata"].get("ownerReferences") or ())
        return self.fates.get(attempt_of(pod), self.succeed) if is_of_job and ran_s >= self.ran_for_s else None

    def failing(self, exit_code: int = 1, message: str = "", **how: Any) -> Action:
        """Return the fate of a pod that fails."""
        return lambda pod: self.fail(pod, exit_code, message=message, **how)

    def _play(self) -> None:
        try:
            while not self._stopping.wait(POLL_S):
                try:
                    for pod in self.pods():
                        self._look_after(pod)
                except OSError:  # the API server is away; a kubelet waits for it as well
                    continue
        except BaseException as problem:  # handed to stop()
            self._problem = problem

    def _look_after(self, pod: Json) -> None:
        if "deletionTimestamp" in pod["metadata"]:
            self.remove(pod)
            return
        if pod["status"].get("phase") in FINAL_PHASES or pod["spec"].get("schedulingGates"):
            return
        since_s = self._running_since_s.get(pod["metadata"]["uid"])
        action = self.decide(pod, 0.0 if since_s is None else time.monotonic() - since_s)
        if action:
            with contextlib.suppress(PodGone):
                action(pod)

    def _report(
        self,
        pod: Json,
        phase: str,
        container: Json,
        *,
        ready: bool = False,
        reason: str = "",
        message: str = "",
        conditions: list[Json] | None = None,
    ) -> None:
        """Patch the status; ``container`` is what is said of every container alike."""
        spec, metadata = pod["spec"], pod["metadata"]
        # The same at every report, whoever makes it: an address or a start never changes.
        address = f"10.88.{int(metadata['uid'][:2], 16)}.{int(metadata['uid'][2:4], 16)}"
        initialized = _ended({"exitCode": 0, "reason": "Completed"})
        why = {"Succeeded": "PodCompleted", "Failed": "PodFailed"}.get(phase, "" if ready else "ContainersNotReady")
        status = {
            "phase": phase,
            "reason": reason or None,
            "message": message or None,
            "startTime": metadata["creationTimestamp"],
            "hostIP": "192.0.2.1",
            "podIP": address,
            "podIPs": [{"ip": address}],
            "conditions": [
                _condition("PodScheduled", True),
                _condition("Initialized", True),
                _condition("ContainersReady", ready, reason=why),
                _condition("Ready", ready, reason=why),
                *(conditions or ()),
            ],
            "initContainerStatuses": [
                # A sidecar, which is an init container that restarts, lives as long as the others.
                self._of_container(item, container if item.get("restartPolicy") == "Always" else initialized)
                for item in spec.get("initContainers") or ()
            ],
            "containerStatuses": [self._of_container(item, container) for item in spec["containers"]],
        }
        answer = self._api.patch(
            "v1/pods", _name(pod), {"status": status}, _namespace(pod), subresource="status", kind="strategic"
        )
        _check(answer, pod, 200)

    def _of_container(self, container: Json, said: Json) -> Json:
        image = container["image"]
        image_id = self.digests.get(image, f"fake/{image}")
        return {"name": container["name"], "image": image, "imageID": image_id, "restartCount": 0, **said}


def attempt_of(document: Json) -> int:
    """Return the attempt that a child or a pod is labelled with; 0 where it is of none."""
    label = (document["metadata"].get("labels") or {}).get(f"{GROUP}/attempt", "")
    return int(label) if label.isdecimal() else 0  # anyone may write labels


def _check(answer: Answer, pod: Json, *allowed: int) -> None:
    if answer.status == 404:
        raise PodGone(f"pod {_namespace(pod)}/{_name(pod)} is gone")
    answer.expect(*allowed)


def _ended(how: Json) -> Json:
    times = {"startedAt": render_time(time.time()), "finishedAt": render_time(time.time())}
    return {"state": {"terminated": {**how, **times}}, "ready": False, "started": False}


def _condition(kind: str, holds: bool, *, reason: str = "", message: str = "") -> Json:
    # Both are named even where they are empty: a patch would leave the old words otherwise.
    return {"type": kind, "status": str(holds), "reason": reason or None, "message": message or None}


def _name(pod: Json) -> str:
    return str(pod["metadata"]["name"])


def _namespace(pod: Json) -> str:
    return str(pod["metadata"]["namespace"])
