"""What keeps a child's pods from running, with cause and remedy. Pure.

Kubernetes reports each cause in a different place: pod conditions, container states, and events about the pod, the
Job, or the MPIJob, for which there is no condition at all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from bert_operator.api.schema.conditions import BlockerReason
from bert_operator.cluster.object_summaries import ChildSummary, PodSummary
from bert_operator.cluster.remedies import (
    IMAGE_NAMES,
    how_to_be_admitted,
    how_to_fit_quota,
    how_to_mount,
    how_to_pass_pod_security,
    how_to_pull,
    how_to_schedule,
    how_to_start,
)
from bert_operator.cluster.warning_summaries import WarningSummary
from bert_operator.render.images import PLACEHOLDER_REGISTRY
from bert_operator.state.observed import Blocker
from bert_operator.timestamps import render_time

SCHEDULER_SILENCE_S = 120.0
"""Seconds after which a pod that no scheduler has said anything of is reported; a busy one takes a while."""
SILENCE_S = 30.0
"""Seconds after which an MPIJob without a status is reported, and a pod that runs and is not ready."""

_IMAGE_REASONS = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"}
)
_CONFIG_REASONS = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
_VOLUME_EVENTS = frozenset({"FailedMount", "FailedAttachVolume", "FailedMapVolume"})
_CLAIM_EVENTS = frozenset({"FailedPrepareDynamicResources", "FailedResourceClaimCreation"})
_SANDBOX_EVENT = "FailedCreatePodSandBox"
_GATED = re.compile(r"scheduling gates|SchedulingGated")
_CREATION_EVENTS = frozenset({"FailedCreate", "MPIJobFailed", "ValidationError", "ErrResourceExists"})

# What runtimes and kubelet say about user namespaces and images as volumes: prose, too, in events and in states of
# containers alike. runc names the mount that could not be mapped.
_USER_NAMESPACES = re.compile(r"MOUNT_ATTR_IDMAP|idmap|hostUsers|user ?namespaces?|userns", re.IGNORECASE)
_RUNTIME_REMEDIES = (
    (
        _USER_NAMESPACES,
        BlockerReason.USER_NAMESPACE_FAILED,
        "nodes need Linux 6.3, and containerd 2.0 with runc 1.2, or CRI-O 1.25; have them upgraded, or delete the job "
        "and apply it without securityContext.hostUsers",
    ),
    (
        # containerd before 2.1 takes the image for a folder of the node without a name.
        re.compile(r"image volume|ImageVolumeMountFailed|mount image|failed to mkdir \"\"", re.IGNORECASE),
        BlockerReason.VOLUME_FAILED,
        "nodes need containerd 2.1 or CRI-O 1.31 to mount images; have them upgraded, or delete the job and apply it "
        "with a claim in place of the image",
    ),
)
# Others for every try: with them the message would be another status write each time.
_UNSTEADY = (
    (re.compile(r"\b(back-off) [0-9][0-9hms.]*", re.IGNORECASE), r"\1"),
    (re.compile(r' "[0-9a-f]{64}"'), ""),
    (re.compile(r"\b(stream(?: ID)?) [0-9]+", re.IGNORECASE), r"\1"),
    # The port at this end of a connection: read tcp 10.0.0.7:53422->192.0.2.1:443
    (re.compile(r"(?<=[0-9\]]):[0-9]{1,5}(?=->)"), ""),
    # The scheduler's two parts may say the same: persistentvolumeclaim "x" not found. not found.
    (re.compile(r"\b(\w[^.]*)\. \1(?=\.|$)"), r"\1"),
)


def normalize_message(message: str) -> str:
    """Strip what changes from one try to the next, and the final full stop, from another component's message."""
    for words, instead in _UNSTEADY:
        message = words.sub(instead, message)
    return message.rstrip(". ")


def is_about_user_namespaces(message: str) -> bool:
    """Return whether a container runtime reports that it cannot create a user namespace."""
    return _USER_NAMESPACES.search(message) is not None


def find_blocker(
    child: ChildSummary,
    pods: Sequence[PodSummary],
    warnings: Mapping[str, Sequence[WarningSummary]],
    *,
    workers: int,
    now_s: float,
) -> Blocker | None:
    """Return what blocks a child that does not run yet; None if it only needs time.

    Args:
        child: Its summary.
        pods: Those of this child.
        warnings: Warning events by the name of their subject.
        workers: Of its run.
        now_s: By the API server's clock.
    """
    for pod in pods:
        if pod.phase == "Pending" and (
            blocker := _pod_blocker(pod, _about(pod.uid, warnings.get(pod.name, ())), now_s)
        ):
            return blocker
    expected = 1 if child.kind == "Job" else workers + 1
    # Not once they are there: the Warning of a refusal outlives the next try, which has succeeded.
    if len(pods) < expected:
        launcher = warnings.get(f"{child.name}-launcher", ())
        found = (
            *_about(child.uid, warnings.get(child.name, ())),
            # The launcher's Job is not in the index, so its uid is unknown: an event that is older than the MPIJob was
            # about a namesake.
            *(warning for warning in launcher if warning.seen_at_s >= child.created_at_s),
        )
        for warning in sorted(found, key=lambda warning: warning.seen_at_s, reverse=True):
            if warning.reason in _CREATION_EVENTS:
                return classify_refusal(warning.message, warning.reason)
    if child.kind == "MPIJob" and not child.has_status and now_s - child.created_at_s >= SILENCE_S:
        return Blocker(
            reason=BlockerReason.MPI_OPERATOR_SILENT,
            # Without its age: a message that changes at every reconcile would be a status write each time.
            message=f"MPIJob {child.name} has no status after {SILENCE_S:.0f} s: mpi-operator does not run, or does "
            "not watch this namespace. Next: kubectl get deployments -A | grep mpi-operator",
        )
    return None


def find_unready(pods: Sequence[PodSummary], now_s: float) -> Blocker | None:
    """Return the pod that has been running but not ready for longest: its node or its sshd does not answer."""
    found = [
        pod
        for pod in pods
        # The node wrote the condition's time by its own clock; the API server wrote the creation time.
        if not pod.is_deleting
        and not pod.has_ended
        and pod.unready_since_s is not None
        and now_s - max(pod.unready_since_s, pod.created_at_s) >= SILENCE_S
    ]
    if not found:
        return None
    pod = min(found, key=lambda pod: (pod.unready_since_s or 0.0, pod.name))
    # Since when, and without its age, as above.
    since = render_time(max(pod.unready_since_s or 0.0, pod.created_at_s))
    return Blocker(
        reason=BlockerReason.POD_NOT_READY,
        message=f"Pod {pod.name} on node {pod.node} runs and has not been ready since {since}. Next: "
        f"kubectl get node {pod.node}, and kubectl describe pod {pod.name}",
    )


def _about(uid: str, warnings: Sequence[WarningSummary]) -> list[WarningSummary]:
    """Return the warnings about this very object, without those about an earlier one of the same name."""
    return [warning for warning in warnings if warning.uid in ("", uid)]


def classify_refusal(message: str, event: str = "") -> Blocker:
    """Return the blocker behind a refused creation.

    Quota, Pod Security and RBAC all refuse with status 403 and reason Forbidden: only the message tells them apart.
    """
    lower = message.lower()
    look = "kubectl describe the Job or MPIJob"
    if fits := how_to_fit_quota(message):
        reason, remedy = BlockerReason.QUOTA_EXCEEDED, fits
    elif "violates podsecurity" in lower:
        reason, remedy = BlockerReason.POD_SECURITY_VIOLATED, how_to_pass_pod_security(message)
    elif event == "ErrResourceExists":
        reason = BlockerReason.NAME_TAKEN
        remedy = "delete the object that has the name, or rename the job"
    # Before the next branch: this message says "is forbidden" as well.
    elif "because it is being terminated" in lower:
        reason = BlockerReason.NAMESPACE_TERMINATING
        remedy = "apply the job in another namespace"
    # Not "is forbidden": so begin the refusals of admission plugins as well (a PriorityClass that is not there, a
    # LimitRange), which no right helps against.
    elif re.search(r"\bcannot [a-z]+ resource\b", lower) or "cannot create" in lower:
        reason = BlockerReason.FORBIDDEN
        remedy = "have the missing right granted to the service account that is named"
    elif "is forbidden" in lower or how_to_be_admitted(message):
        reason, remedy = BlockerReason.POD_CREATION_FAILED, how_to_be_admitted(message) or look
    elif event in ("ValidationError", "MPIJobFailed"):
        reason = BlockerReason.MPI_JOB_REJECTED
        remedy = "kubectl describe the MPIJob; it may be that mpi-operator is older than v0.8"
    else:
        reason, remedy = BlockerReason.POD_CREATION_FAILED, look
    return Blocker(reason=reason, message=f"{message}. Next: {remedy}")


def _pod_blocker(pod: PodSummary, warnings: Sequence[WarningSummary], now_s: float) -> Blocker | None:
    if (blocker := _waiting_blocker(pod)) is not None:
        return blocker
    look = f"kubectl describe pod {pod.name}"
    if pod.unseen_by and now_s - pod.created_at_s >= SCHEDULER_SILENCE_S:
        return Blocker(
            reason=BlockerReason.UNSCHEDULABLE,
            message=f"Pod {pod.name}: no scheduler called {pod.unseen_by} has looked at it for "
            f"{SCHEDULER_SILENCE_S:.0f} s. Next: see whether it runs; if there is none of that name, delete the job "
            "and apply it with another spec.scheduling.schedulerName, or without one",
        )
    if pod.unschedulable:
        return Blocker(
            reason=BlockerReason.SCHEDULING_GATED if _GATED.search(pod.unschedulable) else BlockerReason.UNSCHEDULABLE,
            message=f"Pod {pod.name}: {normalize_message(pod.unschedulable)}. "
            f"Next: {how_to_schedule(pod.unschedulable) or look}",
        )
    for warning in reversed(warnings):
        # Other sandboxes fail for a moment only, while the node's network starts.
        if warning.reason == _SANDBOX_EVENT and (blocker := _runtime_blocker(pod, warning.message)):
            return blocker
        if warning.reason in _CLAIM_EVENTS:
            return Blocker(
                reason=BlockerReason.DEVICES_FAILED,
                message=f"Pod {pod.name}: {normalize_message(warning.message)}. Next: kubectl describe pod {pod.name}; "
                "the claims and templates of resources.resourceClaims have to exist in the namespace, and their "
                "driver to run on the node",
            )
    mount = next((warning for warning in reversed(warnings) if warning.reason in _VOLUME_EVENTS), None)
    if mount is not None:
        return Blocker(
            reason=BlockerReason.VOLUME_FAILED,
            message=f"Pod {pod.name}: {normalize_message(mount.message)}. Next: {how_to_mount(mount.message) or look}",
        )
    return None


def _waiting_blocker(pod: PodSummary) -> Blocker | None:
    """Return the blocker of a pod one of whose containers cannot start."""
    if pod.waiting is None:
        return None
    name, reason, details = pod.waiting
    details = details or "no further message"
    said = normalize_message(f"{reason}: {details}")
    if name:
        return _foreign_blocker(pod, name, reason, said)
    if reason in _IMAGE_REASONS and f"{PLACEHOLDER_REGISTRY}/" in details:
        return Blocker(
            reason=BlockerReason.IMAGE_NOT_NAMED,
            message=f"Pod {pod.name}: {said}. Next: build the trainer's image (images/README.md), push "
            "it, name it as trainerImage in the operator's settings (in the chart settings.trainerImage) or as "
            "spec.image, then delete the job and apply it again: its image is frozen",
        )
    if reason in _IMAGE_REASONS:
        # Written in place of the tag by this operator, perhaps.
        again = ", or push the image of this digest again" if "@sha256:" in details else ""
        remedy = how_to_pull(said) or (
            f"correct {IMAGE_NAMES}, or name the registry's credentials in spec.imagePullSecrets"
        )
        return Blocker(reason=BlockerReason.IMAGE_PULL_FAILED, message=f"Pod {pod.name}: {said}. Next: {remedy}{again}")
    if reason not in _CONFIG_REASONS:
        return None
    return _runtime_blocker(pod, said) or Blocker(
        reason=BlockerReason.CONTAINER_CONFIG_INVALID,
        message=f"Pod {pod.name}: {said}. Next: {how_to_start(details) or f'kubectl describe pod {pod.name}'}",
    )


def _foreign_blocker(pod: PodSummary, name: str, reason: str, said: str) -> Blocker:
    """Return the blocker of a pod in which a container of others cannot start."""
    kind = BlockerReason.IMAGE_PULL_FAILED if reason in _IMAGE_REASONS else BlockerReason.CONTAINER_NOT_STARTING
    return Blocker(
        reason=kind,
        message=f"Pod {pod.name}: container {name}: {said}. It is not the job's: an "
        f"admission webhook has added it. Next: kubectl logs {pod.name} -c {name}; have whoever adds it correct it, or "
        "leave these pods out",
    )


def _runtime_blocker(pod: PodSummary, message: str) -> Blocker | None:
    """Return the blocker if a node cannot set up a pod with an image as a volume, or with a user namespace."""
    for words, reason, remedy in _RUNTIME_REMEDIES:
        if words.search(message):
            return Blocker(reason=reason, message=f"Pod {pod.name}: {normalize_message(message)}. Next: {remedy}")
    return None
