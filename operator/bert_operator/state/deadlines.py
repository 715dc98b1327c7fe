"""After how many seconds time alone changes a job. Pure.

A limit begins once what it waits for can happen: the wait for pods once no queue holds them, the launcher's wait for
its workers once all of them run.
"""

from __future__ import annotations

from bert_operator.api.schema.bert_pretrain_job import BertPretrainJob
from bert_operator.api.schema.status import JobStatus
from bert_operator.state.observed import Child, Observed
from bert_operator.timestamps import parse_time


def seconds_left(job: BertPretrainJob, previous: JobStatus, now_s: float) -> float | None:
    """Return the seconds until ``activeDeadlineSeconds`` expires; None without a limit."""
    deadline_s = job.spec.run_policy.active_deadline_seconds
    if deadline_s is None:
        return None
    # From the first child on, as the field says: queues, pauses and back-offs count.
    started_at_s = parse_time(previous.start_time) if previous.start_time else now_s
    return started_at_s + deadline_s - now_s


def seconds_to_start(job: BertPretrainJob, child: Child, now_s: float) -> float | None:
    """Return the seconds until ``startDeadlineSeconds`` expires for a child's pods; None: no deadline applies."""
    deadline_s = job.spec.run_policy.start_deadline_seconds
    if deadline_s is None or child.state != "Pending" or child.stopping or child.waiting_since_s is None:
        return None
    return child.waiting_since_s + deadline_s - now_s


def seconds_to_reach_workers(job: BertPretrainJob, observed: Observed, child: Child, now_s: float) -> float | None:
    """Return the seconds until a launcher that waits for workers fails; None: no deadline applies.

    The launcher itself cannot tell a worker without a node from one that does not answer, so it has no limit of its
    own. What counts is the time in which every pod ran.
    """
    # Of a log that cannot be read the last word is of before: the launcher may have reached them since.
    if not observed.waits_for_workers(child) or observed.unreadable is not None:
        return None
    if child.stopping or child.running_since_s is None:
        return None
    # Nodes write when a container started, by clocks of their own; the status has when all of them were seen to run.
    previous = observed.status
    was_running = previous.phase == "Running" and previous.attempt == child.attempt
    seen_at_s = now_s
    if was_running:
        seen_at_s = parse_time(previous.phase_since) if previous.phase_since else child.running_since_s
    return max(child.running_since_s, seen_at_s) + job.spec.mpi.worker_wait_seconds - now_s


def seconds_to_live(job: BertPretrainJob, ended: JobStatus, now_s: float) -> float | None:
    """Return the seconds until an ended job's TTL expires; None: never."""
    ttl_s = job.spec.run_policy.ttl_seconds_after_finished
    if ttl_s is None or ended.completion_time is None:
        return None
    return parse_time(ended.completion_time) + ttl_s - now_s


def earliest(*moments_s: float | None) -> float | None:
    """Return the first of some moments; None if there is none."""
    return min((moment for moment in moments_s if moment is not None), default=None)
