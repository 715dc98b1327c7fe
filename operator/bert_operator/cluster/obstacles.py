"""What keeps a child's pods from running, told as cause and remedy. Pure.

Kubernetes tells each cause in another place: pod conditions, container states, and events about the pod, the
Job, or the MPIJob, for which there is no condition at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bert_operator.api.conditions import ObstacleReason
from bert_operator.cluster.entries import ChildEntry, PodEntry, Warning
from bert_operator.observe import Obstacle

SILENCE_S = 30.0
"""Seconds after which an MPIJob that nobody has looked at is reported."""

_IMAGE_REASONS = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"}
)
_CONFIG_REASONS = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
_VOLUME_EVENTS = frozenset({"FailedMount", "FailedAttachVolume", "FailedMapVolume"})
_CREATION_EVENTS = frozenset({"FailedCreate", "MPIJobFailed", "ValidationError", "ErrResourceExists"})


def find_obstacle(
    child: ChildEntry,
    pods: Sequence[PodEntry],
    warnings: Mapping[str, Sequence[Warning]],
    *,
    workers: int,
    now_s: float,
) -> Obstacle | None:
    """Return what holds a child up that does not run yet; None where it only needs time.

    pods: those of this child. warnings: events by the name of what they are about.
    """
    for pod in pods:
        if pod.phase == "Pending" and (obstacle := _pod_obstacle(pod, _about(pod.uid, warnings.get(pod.name, ())))):
            return obstacle
    expected = 1 if child.kind == "Job" else workers + 1
    if len(pods) < expected:
        launcher = warnings.get(f"{child.name}-launcher", ())
        told = (
            *_about(child.uid, warnings.get(child.name, ())),
            # Nobody remembers the uid of a launcher's Job; what is older than the MPIJob was about a namesake.
            *(warning for warning in launcher if warning.seen_at_s >= child.created_at_s),
        )
        for warning in sorted(told, key=lambda warning: warning.seen_at_s, reverse=True):
            if warning.reason in _CREATION_EVENTS:
                return classify_refusal(warning.message, warning.reason)
    if child.kind == "MPIJob" and not child.was_looked_at and now_s - child.created_at_s >= SILENCE_S:
        return Obstacle(
            reason=ObstacleReason.MPI_OPERATOR_SILENT,
            # Without its age, with which every look would find something new to write.
            message=f"MPIJob {child.name} has no status after {SILENCE_S:.0f} s: mpi-operator does not run, or does "
            "not watch this namespace. Next: kubectl get deployments -A | grep mpi-operator",
        )
    return None


def _about(uid: str, warnings: Sequence[Warning]) -> list[Warning]:
    """Return the warnings about this very object, those about an earlier one of its name left out."""
    return [warning for warning in warnings if warning.uid in ("", uid)]


def classify_refusal(message: str, event: str = "") -> Obstacle:
    """Return the obstacle behind a refusal to create something, from the API server's own words."""
    lower = message.lower()
    if "exceeded quota" in lower or "must specify" in lower and "quota" in lower:
        reason = ObstacleReason.QUOTA_EXCEEDED
        remedy = "lower spec.workers or spec.resources, or have the ResourceQuota raised"
    elif "violates podsecurity" in lower:
        reason = ObstacleReason.POD_SECURITY_VIOLATED
        remedy = (
            "use a persistentVolumeClaim instead of nfs or hostPath, and a runAsUser other than 0, or label the "
            "namespace pod-security.kubernetes.io/enforce=baseline or privileged"
        )
    elif event == "ErrResourceExists":
        reason = ObstacleReason.NAME_TAKEN
        remedy = "delete the object that has the name, or rename the job"
    elif event in ("ValidationError", "MPIJobFailed"):
        reason = ObstacleReason.MPI_JOB_REJECTED
        remedy = "kubectl describe the MPIJob; it may be that mpi-operator is older than v0.8"
    elif "is forbidden" in lower or "cannot create" in lower:
        reason = ObstacleReason.FORBIDDEN
        remedy = "have the missing right granted to the service account that is named"
    else:
        reason, remedy = ObstacleReason.POD_CREATION_FAILED, "kubectl describe the Job or MPIJob"
    return Obstacle(reason=reason, message=f"{message}. Next: {remedy}")


def _pod_obstacle(pod: PodEntry, warnings: Sequence[Warning]) -> Obstacle | None:
    reason, told = pod.waiting
    if reason in _IMAGE_REASONS:
        return Obstacle(
            reason=ObstacleReason.IMAGE_PULL_FAILED,
            message=f"Pod {pod.name}: {reason}: {told or 'no further message'}. Next: correct spec.image, or name the "
            "registry's credentials in spec.imagePullSecrets",
        )
    if reason in _CONFIG_REASONS:
        return Obstacle(
            reason=ObstacleReason.CONTAINER_CONFIG_INVALID,
            message=f"Pod {pod.name}: {reason}: {told or 'no further message'}. Next: create the Secret or ConfigMap "
            "that is named, or set spec.securityContext.runAsUser to a user other than root",
        )
    if pod.unschedulable:
        return Obstacle(
            reason=ObstacleReason.UNSCHEDULABLE,
            message=f"Pod {pod.name}: {pod.unschedulable}. Next: lower spec.resources, or correct spec.scheduling; "
            "with an autoscaler, wait",
        )
    mount = next((warning for warning in reversed(warnings) if warning.reason in _VOLUME_EVENTS), None)
    if mount is not None:
        return Obstacle(
            reason=ObstacleReason.VOLUME_FAILED,
            message=f"Pod {pod.name}: {mount.message}. Next: check the claim or the NFS server and path of dataset, "
            "output and volumes, and that the node can reach it",
        )
    return None
