"""Condition types and reasons, each with the sentence that says when it appears.

Machines compare the names; people read the sentences, from which the reference page is made.
"""

from __future__ import annotations

from enum import StrEnum


class _Described(StrEnum):
    """A name that carries a sentence."""

    sentence: str

    def __new__(cls, value: str, sentence: str) -> _Described:
        member = str.__new__(cls, value)
        member._value_ = value
        member.sentence = sentence
        return member


class ConditionType(_Described):
    """Condition types of a job; a condition is True, False, or absent while unknown."""

    PREPARED = "Prepared", "The dataset of the prepare stage is complete."
    VALID = "Valid", "The spec can be carried out in this cluster; False: the message lists what is wrong."
    BLOCKED = "Blocked", "Something outside the job keeps its pods from running; the message says what to do."
    RUNNING = "Running", "A child of the current attempt is running."
    STRAGGLING = (
        "Straggling",
        "A rank has been slower than the others for several reports in a row; the message names its pod and node.",
    )
    NODE_UNHEALTHY = (
        "NodeUnhealthy",
        "A node or a device under a running pod is reported as unhealthy; the message names it. The attempt goes on.",
    )
    PROGRESS_UNKNOWN = (
        "ProgressUnknown",
        "The log of the running attempt cannot be read, or not to its end: step and loss in the status are old. The "
        "attempt goes on.",
    )
    GRACE_TOO_SHORT = (
        "GraceTooShort",
        "What a stop has to write takes longer than its pods have for it (runPolicy.stopGraceSeconds); the message has "
        "the numbers. The attempt goes on, and the next one gets more time where the operator's settings allow it.",
    )
    STOPPED = "Stopped", "The job was stopped on request and can go on from its newest checkpoint."
    SUCCEEDED = "Succeeded", "Every stage is done; nothing changes any more."
    FAILED = "Failed", "The job ended without success; nothing changes any more."
    READY = (
        "Ready",
        "The job does what its spec asks for: it runs, is stopped on request, or has succeeded. For tools that wait "
        "for objects (kstatus, Flux, kubectl wait).",
    )
    STALLED = (
        "Stalled",
        "The job cannot go on by itself: it has failed, or its spec is invalid. For the same tools.",
    )


FINDINGS = (
    ConditionType.STRAGGLING,
    ConditionType.NODE_UNHEALTHY,
    ConditionType.PROGRESS_UNKNOWN,
    ConditionType.GRACE_TOO_SHORT,
)
"""Conditions that a running attempt goes on with."""


class Reason(_Described):
    """Reasons of conditions."""

    SPEC_ACCEPTED = "SpecAccepted", "Every rule holds, those that only the controller knows included."
    SPEC_INVALID = (
        "SpecInvalid",
        "The spec breaks a rule that only the controller knows; nothing is created until it is corrected.",
    )
    WAITING_TO_START = "WaitingToStart", "The child of this attempt is created and does not run yet."
    CHILD_RUNNING = "ChildRunning", "The child of this attempt is running."
    NO_PROGRESS = (
        "NoProgress",
        "A rank of this attempt makes no progress; the message names it. With runPolicy.onHang: Notify it goes on.",
    )
    SLOW_RANK = "SlowRank", "All other ranks wait for one in every step."
    NODE_NOT_READY = "NodeNotReady", "A node does not answer, or says that it is not ready."
    NODE_CONDITION = (
        "NodeCondition",
        "A node is short of something (MemoryPressure, DiskPressure, PIDPressure), or an agent such as "
        "node-problem-detector says that something is wrong with it.",
    )
    DEVICE_UNHEALTHY = "DeviceUnhealthy", "kubelet says that a device of a pod is unhealthy."
    LOG_UNREADABLE = "LogUnreadable", "The API server or the kubelet does not hand out the log; the message says why."
    LOG_CUT = (
        "LogCut",
        "The last 60 lines of the log have more than 64 KiB, of which the operator reads the first: what is new is not "
        "seen. Next: let the program write shorter lines.",
    )
    SLOW_CHECKPOINTS = (
        "SlowCheckpoints",
        "A step and the longest of the last checkpoints take more than 0.8 of the pods' grace period.",
    )
    RECOVERED = "Recovered", "What the condition told of is over, or its attempt is."
    QUEUED = "Queued", "A queue holds the child back; it starts when its turn comes."
    PREEMPTED = (
        "Preempted",
        "A queue gave the place of the child to another one. It is held back, keeps its attempt, and goes on from its "
        "newest checkpoint when its turn comes again.",
    )
    REMOVING_PREVIOUS = (
        "RemovingPrevious",
        "The attempt before is being deleted; the next one is created once its pods are gone.",
    )
    RETRYING_AT_ONCE = (
        "RetryingAtOnce",
        "The attempt before failed for the first time; the next one starts now.",
    )
    BACKING_OFF = "BackingOff", "The attempts before failed; the next one starts after a pause."
    STOPPING_ON_REQUEST = (
        "StoppingOnRequest",
        "A stop was requested; the child writes a checkpoint and leaves.",
    )
    STOPPING_AT_DEADLINE = (
        "StoppingAtDeadline",
        "The deadline has passed; the child writes a checkpoint and leaves.",
    )
    STOPPING_DUPLICATES = (
        "StoppingDuplicates",
        "More than one child is active; all but the newest are stopped.",
    )
    STOPPED_ON_REQUEST = "StoppedOnRequest", "A stop was requested and no child is left."
    RESUMED = "Resumed", "The request to stop was withdrawn."
    DATASET_COMPLETE = "DatasetComplete", "The prepare run ended with success."
    ALL_STAGES_DONE = "AllStagesDone", "Every run of the job ended with success."
    INVALID_INPUT = (
        "InvalidInput",
        "A child refused its input (exit code 2); trying again unchanged cannot help.",
    )
    APPLICATION_RETRIES_SPENT = (
        "ApplicationRetriesSpent",
        "The program failed by itself more often than runPolicy.applicationRetries allows.",
    )
    INFRASTRUCTURE_RETRIES_SPENT = (
        "InfrastructureRetriesSpent",
        "Processes were killed or lost more often in a row, without a new checkpoint or finished part of a data build "
        "in between, than runPolicy.infrastructureRetries allows; or twice as often without any that a later attempt "
        "went on from.",
    )
    DEADLINE_EXCEEDED = "DeadlineExceeded", "The job was not done after runPolicy.activeDeadlineSeconds."
    START_DEADLINE_EXCEEDED = (
        "StartDeadlineExceeded",
        "The pods of an attempt did not start within runPolicy.startDeadlineSeconds.",
    )
    STOPPING_AT_START_DEADLINE = (
        "StoppingAtStartDeadline",
        "The pods did not start in time; the child is deleted.",
    )
    STOPPING_TO_RESTART = (
        "StoppingToRestart",
        "The stop was withdrawn while the child was still leaving; the next attempt follows.",
    )


class BlockerReason(_Described):
    """Reasons of the condition Blocked: why a child does not start."""

    CLEARED = "Cleared", "What kept the pods from running is gone."
    MPI_JOB_API_MISSING = (
        "MPIJobAPIMissing",
        "The cluster does not know kubeflow.org/v2beta1 MPIJobs; install mpi-operator, or use workers: 1.",
    )
    MPI_OPERATOR_SILENT = (
        "MPIOperatorSilent",
        "Nothing has looked at the MPIJob for half a minute: mpi-operator does not run, or not for this namespace.",
    )
    MPI_JOB_REJECTED = "MPIJobRejected", "mpi-operator refused the MPIJob, or could not create what it needs."
    QUOTA_EXCEEDED = "QuotaExceeded", "A ResourceQuota of the namespace leaves no room for the pods."
    NAMESPACE_LIMIT_REACHED = (
        "NamespaceLimitReached",
        "The operator's settings bound what all jobs of a namespace may have at one time.",
    )
    POD_SECURITY_VIOLATED = (
        "PodSecurityViolated",
        "The namespace's Pod Security standard forbids the pods as the job asks for them.",
    )
    FORBIDDEN = "Forbidden", "The operator, or a controller, lacks a right in this namespace."
    NAMESPACE_TERMINATING = (
        "NamespaceTerminating",
        "The namespace is being deleted, and nothing can be created in it any more.",
    )
    POD_CREATION_FAILED = "PodCreationFailed", "The pods cannot be created for another reason."
    INADMISSIBLE = (
        "Inadmissible",
        "The queue cannot admit the child as it is, however long it waits; the message has Kueue's words.",
    )
    DEACTIVATED = (
        "Deactivated",
        "The child was taken out of its queue (spec.active of its Workload): by somebody, or by Kueue after too many "
        "tries. Somebody has to put it back.",
    )
    PODS_READY_TIMEOUT = (
        "PodsReadyTimeout",
        "Kueue suspended the child because its pods were not all ready in time (waitForPodsReady); it tries again.",
    )
    NAME_TAKEN = (
        "NameTaken",
        "Objects of names that the job needs exist and are not its own; the message has one command for all of them.",
    )
    FROZEN_CONFIGURATION_MISSING = (
        "FrozenConfigurationMissing",
        "The ConfigMap with which the first attempt ran is gone, and a later one must not run anything else.",
    )
    FROZEN_CONFIGURATION_UNTRUSTED = (
        "FrozenConfigurationUntrusted",
        "The ConfigMap of the first attempt is not the one that the operator wrote; nothing is run from it.",
    )
    FROZEN_CONFIGURATION_UNREADABLE = (
        "FrozenConfigurationUnreadable",
        "The ConfigMap of the first attempt was written by another release, and this one cannot read it.",
    )
    REJECTED = "Rejected", "The API server refuses what the job asks for."
    FIELD_DROPPED = (
        "FieldDropped",
        "The cluster takes the pods and leaves out a field that they need: a feature that is off, or not there yet.",
    )
    IMAGE_PULL_FAILED = "ImagePullFailed", "A node cannot pull the image."
    IMAGE_NOT_NAMED = (
        "ImageNotNamed",
        "The image is the placeholder that is shipped, which no registry has: nobody has named a trainer's image yet.",
    )
    CONTAINER_CONFIG_INVALID = (
        "ContainerConfigInvalid",
        "A container cannot be set up: a Secret or ConfigMap is missing, or the image's user is root.",
    )
    CONTAINER_NOT_STARTING = (
        "ContainerNotStarting",
        "A container that others have added to a pod does not start, and the trainer's waits for it.",
    )
    POD_HELD = (
        "PodHeld",
        "The trainer has ended, and a container that others have added goes on and keeps the pod. After a minute the "
        "trainer's exit code counts, and the pod is deleted.",
    )
    UNSCHEDULABLE = "Unschedulable", "No node fits the pods, or their group waits for room for all of it."
    SCHEDULING_GATED = (
        "SchedulingGated",
        "The scheduler does not look for nodes yet: somebody has put scheduling gates on the pods, as queues do.",
    )
    POD_NOT_READY = (
        "PodNotReady",
        "A pod that runs has not been ready for half a minute: its node does not answer, or its ssh server.",
    )
    VOLUME_FAILED = "VolumeFailed", "A volume cannot be mounted."
    DEVICES_FAILED = "DevicesFailed", "The devices of a resource claim cannot be had, or not be prepared on the node."
    USER_NAMESPACE_FAILED = (
        "UserNamespaceFailed",
        "A node cannot give the pods user ids of their own, as hostUsers: false asks for.",
    )
    STORAGE_FAILED = (
        "StorageFailed",
        "The newest attempt could not read or write its files; another one follows after a pause.",
    )


class FailureReason(_Described):
    """Reasons of a failed attempt; a reason reported by the child takes precedence."""

    REFUSED_INPUT = "RefusedInput", "The child ended with exit code 2."
    WRONG_MPI = "WrongMPI", "The image does not hold the MPI that mpi.implementation names; no rank was started."
    WRONG_WORLD = (
        "WrongWorld",
        "The launcher started ranks in another number, or on other hosts, than the job asks for; it was ended before "
        "the first step.",
    )
    WRONG_TOPOLOGY = (
        "WrongTopology",
        "A node has another number of sockets, NUMA nodes or threads per core than spec.cpu says, or kubelet gave a "
        "pod other cores than its ranks are pinned to.",
    )
    TRANSPORT_UNUSABLE = (
        "TransportUnusable",
        "A variable asks MPI, UCX or NCCL for a network, a card or a library that a worker does not have; the message "
        "names what is missing.",
    )
    DEVICE_UNUSABLE = (
        "DeviceUnusable",
        "The job asks for an accelerator, and PyTorch finds none (no driver in the container, no device, an image "
        "that was made for CPUs) or fewer than the worker has ranks.",
    )
    UNSUPPORTED_PRECISION = (
        "UnsupportedPrecision",
        "The processors or GPUs cannot compute with the precision that the job asks for.",
    )
    ENGINE_UNUSABLE = (
        "EngineUnusable",
        "The image lacks what the job's engine needs, or has another release of it. The message names the image that "
        "has it; engine: eager runs in every one.",
    )
    OUT_OF_DEVICE_MEMORY = (
        "OutOfDeviceMemory",
        "A GPU's memory ran out; the message names settings that need less. Not tried again unchanged.",
    )
    TRAINING_UNHEALTHY = (
        "TrainingUnhealthy",
        "Training went wrong and spec.health says to stop: gradients that are not finite, a spike of their norm or of "
        "the loss, or a loss scale below its limit. The message names step, figures and what to change.",
    )
    DATA_UNREADABLE = (
        "DataUnreadable",
        "A shard is damaged, gone, or not the one that the run began with; the message names it. Next: restore it, or "
        "start the job again with dataset.onUnreadableShard: Skip and output.ifExists: Resume.",
    )
    FENCED = (
        "FencedError",
        "A newer attempt has claimed the output folder: this one was cut off and came back. It has committed nothing "
        "since, and counts as infrastructure.",
    )
    RANKS_DISAGREE = (
        "RanksDisagree",
        "Ranks have made different things of the same gradients, which memory or devices that are at fault can do. It "
        "counts as infrastructure: the next attempt resumes from a checkpoint on which all ranks agreed.",
    )
    STORAGE_FAILED = (
        "StorageFailed",
        "Files could not be read or written: a full disk, a volume that is read-only or does not answer. After the "
        "first step, and in a data build that has begun, it counts as infrastructure.",
    )
    DEVICE_UNHEALTHY = (
        "DeviceUnhealthy",
        "The node on which the attempt failed, or a device of a pod, is reported as unhealthy; the message has the "
        "report. The next attempt avoids the node where there are others.",
    )
    EXITED = "Exited", "The child exited with another code than 0, 2, 3 and 4."
    HUNG = (
        "Hung",
        "A rank made no progress for 5 times the longest step of its stage, or the launcher is silent. The message "
        "names it, and the log holds the stacks of all ranks that could write them. See runPolicy.onHang.",
    )
    KILLED = "Killed", "A process of the child was killed or lost: a signal, exit code 4, or a worker pod that ended."
    WORKERS_UNREACHABLE = (
        "WorkersUnreachable",
        "All pods of the attempt have run for mpi.workerWaitSeconds, and the launcher does not reach every worker by "
        "name and ssh. The message says which, and why.",
    )
    STOPPED_UNASKED = (
        "StoppedUnasked",
        "The child left with a checkpoint though nobody asked it to: its machine was drained.",
    )
    EVICTED = "Evicted", "A pod was evicted from its node."
    DISRUPTED = "Disrupted", "A pod was removed by a drain, a preemption or its taint (DisruptionTarget)."
    OUT_OF_MEMORY = "OOMKilled", "A container exceeded its memory limit."
    USER_NAMESPACE_FAILED = (
        "UserNamespaceFailed",
        "The node could not give a container user ids of its own, mostly because a volume's file system cannot map "
        "them, as NFS cannot. Next: use a claim of another file system, or delete the job and apply it without "
        "securityContext.hostUsers.",
    )
    POD_REJECTED = (
        "PodRejected",
        "The kubelet of a node refused the pod before any container started (OutOfcpu, UnexpectedAdmissionError, "
        "TopologyAffinityError and the like); the message has its words. The next attempt avoids the node where there "
        "are others.",
    )
    INIT_CONTAINER_FAILED = (
        "InitContainerFailed",
        "An init container that others have added to a pod failed before the trainer's started; the message has its "
        "name, exit code and last line. Counts as infrastructure.",
    )
    POD_DELETED = "PodDeleted", "A pod is gone and left no exit code."
    LOST = "Lost", "The attempt is on record, but nothing is left of its child."
