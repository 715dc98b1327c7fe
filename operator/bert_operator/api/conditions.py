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
    """What can be true of a job; every condition is True, False, or absent while nothing is known."""

    PREPARED = "Prepared", "The dataset of the prepare stage is complete."
    RUNNING = "Running", "A child of the current attempt is running."
    STOPPED = "Stopped", "The job was stopped on request and can go on from its newest checkpoint."
    SUCCEEDED = "Succeeded", "Every stage is done; nothing changes any more."
    FAILED = "Failed", "The job ended without success; nothing changes any more."


class Reason(_Described):
    """Why a condition has its value."""

    WAITING_TO_START = "WaitingToStart", "The child of this attempt is created and does not run yet."
    CHILD_RUNNING = "ChildRunning", "The child of this attempt is running."
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
        "Processes were killed or lost more often than runPolicy.infrastructureRetries allows.",
    )
    DEADLINE_EXCEEDED = "DeadlineExceeded", "The job was not done after runPolicy.activeDeadlineSeconds."


class FailureReason(_Described):
    """Why one attempt failed, where the child itself did not say."""

    REFUSED_INPUT = "RefusedInput", "The child ended with exit code 2."
    EXITED = "Exited", "The child ended with another exit code than 0, 2 and 3."
    KILLED = "Killed", "The child ended by a signal."
    STOPPED_UNASKED = (
        "StoppedUnasked",
        "The child left with a checkpoint though nobody asked it to: its machine was drained.",
    )
    LOST = "Lost", "The attempt is on record, but nothing is left of its child."
