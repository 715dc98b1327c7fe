"""What keeps a child from running: every blocker with its cause, and with what to do about it."""

from __future__ import annotations

from typing import Any

import pytest

from bert_operator.api.schema.status import JobStatus
from bert_operator.cluster.blockers import (
    SCHEDULER_SILENCE_S,
    SILENCE_S,
    classify_refusal,
    find_blocker,
    normalize_message,
)
from bert_operator.cluster.object_summaries import read_child, read_pod
from bert_operator.cluster.observation import observe_child
from bert_operator.cluster.settings import DEFAULT_TRAINER_IMAGE
from bert_operator.cluster.warning_summaries import WarningSummary, read_warning
from bert_operator.state.observed import Blocker, Observed
from bert_operator.state.plan import plan
from child_documents import CREATED_S, at, child_document, event_document, pod_document
from sample_job import sample_job

Document = dict[str, Any]

LOOKED_AT = {"Created": "MPIJobCreated"}
QUOTA = 'pods "demo-a1-worker-1" is forbidden: exceeded quota: compute, requested: cpu=4, used: cpu=6, limited: cpu=8'
PSA = 'pods "x" is forbidden: violates PodSecurity "restricted:latest": restricted volume types (volume "output")'


def find(child: Document, *rest: Document, after: float = 10, workers: int = 2) -> Blocker | None:
    known = read_child(child)
    assert known is not None
    pods = [read[1] for read in (read_pod(item) for item in rest if item["kind"] == "Pod") if read is not None]
    warnings: dict[str, list[WarningSummary]] = {}
    for item in rest:
        if item["kind"] == "Event" and (read := read_warning(item)) is not None:
            warnings.setdefault(read[1], []).append(read[2])
    return find_blocker(known[1], pods, warnings, workers=workers, now_s=CREATED_S + after)


def waiting(reason: str, message: str) -> Document:
    return pod_document(phase="Pending", state={"waiting": {"reason": reason, "message": message}})


UNSCHEDULABLE = pod_document(
    phase="Pending",
    node="",
    conditions=(
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu",
        },
    ),
)
MOUNT = event_document("Pod", "demo-a1-worker-0", "FailedMount", "mount.nfs: access denied", uid="demo-a1-worker-0-uid")

DATA = 'failed to pull image "registry.example.com/wikipedia:128": not found'
UNNAMED = (
    f'failed to pull and unpack image "{DEFAULT_TRAINER_IMAGE}": failed to resolve: Head '
    '"https://registry.invalid/v2/": dial tcp: lookup registry.invalid on 10.96.0.10:53: no such host'
)
NO_IMAGES = (
    f'failed to generate container "{"2c12005f" * 8}" spec: failed to generate spec: failed to mkdir "": mkdir : no '
    "such file or directory"
)


def of_the_pod(reason: str, message: str) -> Document:
    return event_document("Pod", "demo-a1-worker-0", reason, message, uid="demo-a1-worker-0-uid")


NO_USERS = of_the_pod(
    "FailedCreatePodSandBox",
    "Failed to create pod sandbox: can't set `spec.hostUsers: false`, runtime does not support user namespaces",
)
NO_NETWORK = of_the_pod("FailedCreatePodSandBox", "Failed to create pod sandbox: network plugin is not ready")
NO_DRIVER = of_the_pod(
    "FailedPrepareDynamicResources",
    "Failed to prepare dynamic resources: DRA driver gpu.example.com is not registered",
)


def test_a_message_stays_the_same_from_try_to_try() -> None:
    other = waiting("CreateContainerError", NO_IMAGES.replace("2c", "3d"))
    assert find(child_document(), waiting("CreateContainerError", NO_IMAGES)) == find(child_document(), other)


def test_a_sandbox_that_only_needs_time_blocks_nothing() -> None:
    assert find(child_document(true=LOOKED_AT), pod_document(phase="Pending"), NO_NETWORK) is None


@pytest.mark.parametrize(
    ("pods", "reason", "cause", "remedy"),
    [
        ([waiting("ImagePullBackOff", "not found")], "ImagePullFailed", "not found", "correct spec.image"),
        ([waiting("ErrImagePull", UNNAMED)], "ImageNotNamed", "no such host", "name it as trainerImage"),
        ([waiting("ErrImagePull", "")], "ImagePullFailed", "no further message", "spec.imagePullSecrets"),
        (
            [waiting("CreateContainerConfigError", 'secret "s3" not found')],
            "ContainerConfigInvalid",
            'secret "s3" not found',
            "create the Secret",
        ),
        ([UNSCHEDULABLE], "Unschedulable", "Insufficient nvidia.com/gpu", "lower spec.resources"),
        ([pod_document(phase="Pending"), MOUNT], "VolumeFailed", "access denied", "check the claim"),
        (
            [waiting("ErrImagePull", "x@sha256:0")],
            "ImagePullFailed",
            "@sha256:0",
            "push the image of this digest again",
        ),
        ([waiting("ErrImagePull", DATA)], "ImagePullFailed", "wikipedia:128", "the volume's image.reference"),
        ([waiting("CreateContainerError", NO_IMAGES)], "VolumeFailed", "failed to mkdir", "containerd 2.1"),
        ([pod_document(phase="Pending"), NO_USERS], "UserNamespaceFailed", "hostUsers", "containerd 2.0"),
        ([pod_document(phase="Pending"), NO_DRIVER], "DevicesFailed", "not registered", "their driver to run"),
    ],
)
def test_a_pod_that_cannot_start_says_why(pods: list[Document], reason: str, cause: str, remedy: str) -> None:
    blocker = find(child_document(true=LOOKED_AT), *pods)
    assert blocker is not None
    assert blocker.reason == reason
    assert blocker.message.startswith("Pod demo-a1-worker-0: ")
    assert cause in blocker.message
    assert remedy in blocker.message.partition(" Next: ")[2]


@pytest.mark.parametrize(
    ("kind", "name", "reason", "message", "found", "remedy"),
    [
        ("Job", "demo-a1-training", "FailedCreate", QUOTA, "QuotaExceeded", "ResourceQuota raised"),
        ("Job", "demo-a1-training", "FailedCreate", PSA, "PodSecurityViolated", "use a persistentVolumeClaim"),
        ("MPIJob", "demo-a1", "MPIJobFailed", QUOTA, "QuotaExceeded", "lower spec.workers"),
        ("MPIJob", "demo-a1", "ValidationError", "spec.x: Invalid", "MPIJobRejected", "kubectl describe"),
        ("MPIJob", "demo-a1", "ErrResourceExists", "Resource exists", "NameTaken", "delete the object"),
        ("MPIJob", "demo-a1", "MPIJobFailed", "boom", "MPIJobRejected", "kubectl describe"),
        ("MPIJob", "demo-a1-launcher", "FailedCreate", PSA, "PodSecurityViolated", "pod-security"),
        ("Job", "demo-a1-training", "FailedCreate", "who knows", "PodCreationFailed", "kubectl describe"),
    ],
)
def test_events_report_pods_that_cannot_be_created(
    kind: str, name: str, reason: str, message: str, found: str, remedy: str
) -> None:
    blocker = find(child_document(kind, true=LOOKED_AT), event_document(kind, name, reason, message))
    assert blocker is not None
    assert blocker.reason == found
    cause, _, told = blocker.message.partition(". Next: ")
    assert cause == message
    assert remedy in told


@pytest.mark.parametrize(
    ("told", "remedies"),
    [
        ("1 node(s) had untolerated taint {node.kubernetes.io/not-ready: }", ["one is not ready"]),
        ("1 node(s) had untolerated taint {node.kubernetes.io/unreachable: }", ["one is not ready"]),
        ("1 node(s) had untolerated taint {node.kubernetes.io/disk-pressure: }", ["short of memory, disk"]),
        ("1 node(s) were unschedulable", ["cordoned"]),
        ("2 node(s) had untolerated taint {nvidia.com/gpu: present}", ["spec.scheduling.tolerations"]),
        ("2 node(s) had untolerated taint(s)", ["any other taint needs an entry"]),
        ("3 node(s) didn't match Pod's node affinity/selector", ["spec.scheduling.nodeSelector"]),
        ("1 node(s) didn't match pod anti-affinity rules", ["correct spec.scheduling.affinity, or add nodes"]),
        ("1 node(s) didn't satisfy existing pods anti-affinity rules", ["by their own anti-affinity"]),
        ("2 node(s) didn't match pod topology spread constraints", ["raise maxSkew"]),
        ("2 node(s) didn't match pod topology spread constraints (missing required label)", ["nodes lack that label"]),
        ("2 node(s) didn't satisfy plugin(s) [NodeAffinity]", ["spec.scheduling.nodeSelector"]),
        ("2 Too many pods", ["maxPods"]),
        ("1 Insufficient hugepages-2Mi", ["lower spec.resources"]),
        ("1 node(s) didn't have free ports for the requested pod ports", ["network.hostNetwork"]),
        ('persistentvolumeclaim "data" not found', ["create the claim"]),
        ("3 node(s) had volume node affinity conflict", ["another zone"]),
        ("3 node(s) didn't find available persistent volumes to bind", ["no volume that is free fits"]),
        ("3 node(s) exceed max volume count", ["as many volumes attached"]),
        ("3 node(s) did not have enough free storage", ["have storage freed"]),
        (
            "3 node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode",
            ["ReadWriteMany"],
        ),
        ("pod has unbound immediate PersistentVolumeClaims", ["kubectl get pvc"]),
        ("1 cannot allocate all claims", ["kubectl get resourceclaims"]),
        (
            "1 Insufficient cpu, 1 node(s) had untolerated taint {node.kubernetes.io/not-ready: }",
            ["lower spec.resources", "one is not ready"],
        ),
        ("who knows", ["kubectl describe pod demo-a1-worker-0"]),
    ],
)
def test_an_unschedulable_pod_is_reported_with_remedies(told: str, remedies: list[str]) -> None:
    message = f"0/3 nodes are available: {told}. preemption: 0/3 nodes are available: 3 No preemption victims found"
    scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    blocker = find(child_document(true=LOOKED_AT), pod_document(phase="Pending", node="", conditions=(scheduled,)))
    assert blocker is not None
    advice = blocker.message.partition(" Next: ")[2]
    assert all(remedy in advice for remedy in remedies), advice
    assert ("lower spec.resources" in advice) == any("lower" in remedy for remedy in remedies)
    assert advice.count("; or ") == len(remedies) - 1, "of no other cause"
    assert told in blocker.message


@pytest.mark.parametrize(
    ("reason", "told", "found", "remedy"),
    [
        (
            "SchedulingGated",
            "Scheduling is blocked due to non-empty scheduling gates",
            "SchedulingGated",
            "takes them away",
        ),
        (
            "Unschedulable",
            "3/4 tasks in gang unschedulable: pod group is not ready, 4 Pending, 4 minAvailable; Pending: 3 "
            "Unschedulable, 1 Undetermined",
            "Unschedulable",
            "kubectl describe podgroup",
        ),
        (
            "Unschedulable",
            "pre-filter pod demo-a1-worker-0 cannot find enough sibling pods, current pods number: 2, minMember of "
            "group: 5",
            "Unschedulable",
            "kubectl describe podgroup",
        ),
    ],
)
def test_pods_that_wait_for_others_are_told_to_ask_for_no_less(reason: str, told: str, found: str, remedy: str) -> None:
    scheduled = {"type": "PodScheduled", "status": "False", "reason": reason, "message": told}
    blocker = find(child_document(true=LOOKED_AT), pod_document(phase="Pending", node="", conditions=(scheduled,)))
    assert blocker is not None
    assert blocker.reason == found
    advice = blocker.message.partition(" Next: ")[2]
    assert remedy in advice
    assert "lower" not in advice


def unready(number: int, since: float, started: float = 0) -> Document:
    condition = {"type": "Ready", "status": "False", "lastTransitionTime": at(since)}
    return pod_document(number=number, conditions=(condition,), state={"running": {"startedAt": at(started)}})


def leaving(pod: Document) -> Document:
    return {**pod, "metadata": {**pod["metadata"], "deletionTimestamp": at(50)}}


@pytest.mark.parametrize(
    ("pods", "after", "told"),
    [
        ([unready(0, 0), unready(1, 0)], 29, None),
        ([unready(0, 20), unready(1, 10)], 41, "Pod demo-a1-worker-1 on node node-1 runs"),
        (
            [unready(0, 0), unready(1, 0)],
            60,
            f"worker-0 on node node-1 runs and has not been ready since {at(0)}. Next",
        ),
        # While an image is being pulled nobody is ready.
        ([unready(0, 0, started=100)], 129, None),
        ([pod_document(conditions=({"type": "Ready", "status": "True", "lastTransitionTime": at(0)},))], 99, None),
        ([leaving(unready(0, 0))], 99, None),
    ],
)
def test_an_unready_worker_is_reported_although_the_child_runs(
    pods: list[Document], after: float, told: str | None
) -> None:
    known = read_child(child_document(true={"Running": "MPIJobRunning"}))
    assert known is not None
    entries = [read[1] for read in map(read_pod, pods) if read is not None]
    child = observe_child(known[1], entries, {}, workers=2, now_s=CREATED_S + after)
    assert child.state == "Running"
    assert (child.blocker and child.blocker.reason) == (told and "PodNotReady")
    assert child.blocker is None or str(told) in child.blocker.message
    again = observe_child(known[1], entries, {}, workers=2, now_s=CREATED_S + 9999)
    if child.blocker is not None:
        assert again.blocker == child.blocker
        seen = Observed(status=JobStatus(phase="Running", attempt=1, run="training"), children=(child,))
        status = plan(sample_job(), seen, CREATED_S + after).status
        assert (status.phase, status.reason, status.message) == ("Running", "PodNotReady", child.blocker.message)


def test_events_no_longer_count_once_all_pods_are_there() -> None:
    event = event_document("Job", "demo-a1-training", "FailedCreate", QUOTA)
    assert find(child_document("Job"), event, pod_document("single", phase="Pending")) is None


def test_events_about_an_earlier_object_of_the_name_do_not_count() -> None:
    other = event_document("MPIJob", "demo-a1", "ErrResourceExists", "Resource exists", uid="another")
    assert find(child_document(true=LOOKED_AT), other) is None
    ours = event_document("MPIJob", "demo-a1", "ErrResourceExists", "Resource exists", uid="demo-a1-uid")
    assert find(child_document(true=LOOKED_AT), ours) is not None
    before = event_document("Job", "demo-a1-launcher", "FailedCreate", QUOTA, uid="any", after=-60)
    assert find(child_document(true=LOOKED_AT), before) is None


def test_the_newest_event_is_reported() -> None:
    old = event_document("MPIJob", "demo-a1", "ValidationError", "spec.x: Invalid", after=1)
    new = event_document("MPIJob", "demo-a1", "MPIJobFailed", QUOTA, after=9)
    blocker = find(child_document(true=LOOKED_AT), new, old)
    assert blocker is not None
    assert blocker.reason == "QuotaExceeded"


def test_an_mpi_job_without_a_status_is_reported_after_half_a_minute() -> None:
    assert find(child_document(), after=SILENCE_S - 1) is None
    blocker = find(child_document(), after=SILENCE_S)
    assert blocker is not None
    assert blocker.reason == "MPIOperatorSilent"
    assert "mpi-operator does not run" in blocker.message
    assert "kubectl get deployments" in blocker.message.partition(" Next: ")[2]
    # The same words at every later look: a status is written only where something has changed.
    assert find(child_document(), after=SILENCE_S + 3600) == blocker
    assert find(child_document("Job"), after=3600) is None
    assert find(child_document(true=LOOKED_AT), after=3600) is None


def test_waiting_is_no_blocker() -> None:
    assert find(child_document(true=LOOKED_AT), pod_document(phase="Pending"), after=3600) is None


def test_a_refusal_that_mpi_operator_passes_on_is_told_as_what_it_is() -> None:
    refused = 'worker pod created failed: pods "demo-a1-worker-0" is forbidden: no PriorityClass with name x was found'
    assert classify_refusal(refused, "MPIJobFailed").reason == "PodCreationFailed"
    assert classify_refusal("spec.mpiReplicaSpecs: Invalid", "MPIJobFailed").reason == "MPIJobRejected"


def test_a_quota_on_objects_counts_those_that_have_ended() -> None:
    refused = 'jobs.batch "x" is forbidden: exceeded quota: objects, requested: count/jobs.batch=1, used: 8, limited: 8'
    assert "Next: delete jobs that have ended, or have the" in classify_refusal(refused).message
    assert "Next: lower spec.workers or spec.resources, or have the" in classify_refusal(QUOTA).message


FORBIDDEN = 'pods "x" is forbidden: '


@pytest.mark.parametrize(
    ("refused", "reason", "remedy"),
    [
        (
            "failed quota: compute: must specify limits.cpu for: bert; limits.memory for: bert",
            "QuotaExceeded",
            "what is named set in spec.resources and launcher.resources",
        ),
        (
            "exceeded quota: objects, requested: services=1, used: services=5, limited: services=5",
            "QuotaExceeded",
            "delete objects of that kind",
        ),
        (
            "insufficient quota to match these scopes: [{PriorityClass In [high]}]",
            "QuotaExceeded",
            "have a ResourceQuota made for that scope",
        ),
        ("status unknown for quota: compute, resources: limits.cpu", "QuotaExceeded", "wait: nobody has counted"),
        ("no PriorityClass with name fast was found", "PodCreationFailed", "spec.scheduling.priorityClassName"),
        ('pod rejected: RuntimeClass "kata" not found', "PodCreationFailed", "another runtimeClassName"),
        ("maximum cpu usage per Container is 1, but limit is 2", "PodCreationFailed", "less in spec.resources"),
        (
            "minimum memory usage per Container is 1Gi, but request is 5Mi",
            "PodCreationFailed",
            "more in spec.resources",
        ),
        (
            "maximum cpu usage per Container is 1, but no limit is specified",
            "PodCreationFailed",
            "what is named set in",
        ),
        (
            'violates PodSecurity "baseline:latest": host namespaces (hostNetwork=true)',
            "PodSecurityViolated",
            "leave out network.hostNetwork; or label",
        ),
        (
            'violates PodSecurity "baseline:latest": non-default capabilities (container "bert" must not include '
            '"IPC_LOCK" in securityContext.capabilities.add)',
            "PodSecurityViolated",
            "leave out network.lockMemory and resources.rdma; or label",
        ),
        (
            'violates PodSecurity "restricted:latest": runAsNonRoot != true (pod or container "bert" must set it)',
            "PodSecurityViolated",
            "set a runAsUser other than 0 in spec.securityContext; or label",
        ),
        ("who knows", "PodCreationFailed", "kubectl describe the Job or MPIJob"),
    ],
)
def test_a_refusal_has_the_remedy_of_its_own_cause_and_of_no_other(refused: str, reason: str, remedy: str) -> None:
    blocker = classify_refusal(f"{FORBIDDEN}{refused}")
    assert blocker.reason == reason
    told, _, advice = blocker.message.partition(". Next: ")
    assert told == f"{FORBIDDEN}{refused}"
    assert remedy in advice
    assert ("lower" in advice, "nfs" in advice) == (False, False)


@pytest.mark.parametrize(
    ("reason", "told", "remedy"),
    [
        ("ImagePullBackOff", "failed to pull: unexpected status: 401 Unauthorized", "credentials"),
        ("ErrImagePull", "toomanyrequests: You have reached your pull rate limit", "wait, or name credentials"),
        ("ErrImagePull", "Head https://r/v2/x/manifests/1: 403 Forbidden", "credentials"),
        ("ErrImagePull", "unexpected status: 429, retry", "wait, or name credentials"),
        # Numbers of builds, and of a port, are none of HTTP.
        ("ErrImagePull", "r.example/trainer:429: not found", "whichever is named"),
        ("ErrImagePull", 'pull "r.example:403/trainer-401@sha256:0": not found', "whichever is named"),
        ("ErrImagePull", "write /var/lib/containerd/x: no space left on device", "its disk is full"),
        ("ErrImageNeverPull", 'Container image "x" is not present with pull policy of Never', "load the image"),
        ("ErrImagePull", "no match for platform in manifest: not found", "built for the nodes' processors"),
        ("CreateContainerConfigError", "couldn't find key token in Secret team-a/s3", "with that key"),
        ("CreateContainerConfigError", "container has runAsNonRoot and image will run as root", "other than root"),
        ("RunContainerError", 'exec: "bert-pod": executable file not found in $PATH: unknown', "holds this program"),
        ("CreateContainerError", "who knows", "kubectl describe pod demo-a1-worker-0"),
    ],
)
def test_a_container_that_cannot_start_has_the_remedy_of_its_own_cause(reason: str, told: str, remedy: str) -> None:
    blocker = find(child_document(true=LOOKED_AT), waiting(reason, told))
    assert blocker is not None
    assert remedy in blocker.message.partition(" Next: ")[2]


@pytest.mark.parametrize(
    ("told", "remedy"),
    [
        ('Multi-Attach error for volume "pvc-1" Volume is already exclusively attached to one node', "ReadWriteMany"),
        ("mount: bad option; for several filesystems you might need a /sbin/mount.<type> helper program", "nfs-common"),
        ('MountVolume.SetUp failed for volume "x" : secret "s3" not found', "create the Secret"),
        ("mount.nfs: Connection timed out", "check the claim or the NFS server"),
        ("who knows", "kubectl describe pod demo-a1-worker-0"),
    ],
)
def test_a_volume_that_cannot_be_mounted_has_the_remedy_of_its_own_cause(told: str, remedy: str) -> None:
    blocker = find(child_document(true=LOOKED_AT), pod_document(phase="Pending"), of_the_pod("FailedMount", told))
    assert blocker is not None
    assert remedy in blocker.message.partition(" Next: ")[2]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ('jobs.batch "x" is forbidden: exceeded quota: objects', "QuotaExceeded"),
        ("failed quota: compute: must specify limits.cpu", "QuotaExceeded"),
        (PSA, "PodSecurityViolated"),
        ('jobs.batch is forbidden: User "system:serviceaccount:a:b" cannot create resource "jobs"', "Forbidden"),
        ('pods "x-" is forbidden: no PriorityClass with name fast was found', "PodCreationFailed"),
        ('pods "x" is forbidden: maximum cpu usage per Container is 1, but limit is 2', "PodCreationFailed"),
    ],
)
def test_a_refusal_is_classified_by_its_message(message: str, reason: str) -> None:
    blocker = classify_refusal(message)
    assert blocker.reason == reason
    assert blocker.message.startswith(f"{message}. Next: ")


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ('persistentvolumeclaim "bert" not found. not found.', 'persistentvolumeclaim "bert" not found'),
        ("0/3 nodes are available. not found. not found", "0/3 nodes are available. not found"),
        ("stream error: stream ID 17; INTERNAL_ERROR", "stream error: stream ID; INTERNAL_ERROR"),
        ("read tcp 10.0.0.7:53422->192.0.2.1:443: reset", "read tcp 10.0.0.7->192.0.2.1:443: reset"),
        ("back-off 5m0s restarting failed container", "back-off restarting failed container"),
        ("0/3 nodes are available: 3 Insufficient cpu.", "0/3 nodes are available: 3 Insufficient cpu"),
    ],
)
def test_what_differs_from_try_to_try_is_left_out_and_nothing_said_twice(said: str, told: str) -> None:
    assert normalize_message(said) == told


def test_a_pod_that_no_scheduler_has_looked_at_is_told_with_the_schedulers_name() -> None:
    pod = pod_document("single", phase="Pending", node="")
    pod["spec"]["schedulerName"] = "volcano"
    assert blocker_at(pod, SCHEDULER_SILENCE_S - 1) is None
    late = blocker_at(pod, SCHEDULER_SILENCE_S)
    assert late is not None
    assert late.reason == "Unschedulable"
    assert "no scheduler called volcano has looked at it" in late.message
    gated = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
    pod["status"]["conditions"] = [gated]
    told = blocker_at(pod, SCHEDULER_SILENCE_S)
    assert told is None or "volcano" not in told.message


def blocker_at(pod: dict[str, Any], after_s: float) -> Blocker | None:
    child, read = read_child(child_document("Job")), read_pod(pod)
    assert child is not None
    assert read is not None
    return find_blocker(child[1], [read[1]], {}, workers=1, now_s=CREATED_S + after_s)
