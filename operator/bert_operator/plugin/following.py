"""Follows a job's log from pod to pod: attempts, runs and broken connections are one stream, each line once.

A log is read with timestamps and asked for again from the second of the last line whenever a connection ends before the
pod has: the API server and the kubelet are restarted, and proxies close what is silent. Lines of that second arrive
again and are dropped by timestamp and text. Timestamps alone would not do: those of standard output and standard error
may cross each other by a few microseconds.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from bert_job.foreign_text import one_line
from bert_operator.errors import InputError
from bert_operator.names import CONTAINER
from bert_operator.plugin.errors import ApiRefused, NoSuchObject
from bert_operator.plugin.job import Job, Pod
from bert_operator.plugin.kubectl import Kubectl
from bert_operator.plugin.reading import first_line, read_job, read_pods_of
from bert_operator.timestamps import render_time, time_of

PAUSE_S = 2.0
"""Between two looks at a job that has no pod to read yet, and before a broken connection is tried again."""
_MAX_BROKEN = 30
"""Connections in a row that bring nothing new: a minute in which the kubelet does not answer."""

_HOW_FAR = (
    f'jsonpath={{.status.phase}} {{.status.containerStatuses[?(@.name=="{CONTAINER}")].state.terminated.exitCode}}'
)
_RANK = re.compile(r"\[([0-9]+)\] ")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSelection:
    """Selection of lines of a job's log."""

    rank: int | None = None
    """Only this rank's lines; None: all."""
    attempt: int | None = None
    """Only this attempt's lines; None: from the newest attempt on."""
    tail: int | None = None
    """Number of earlier lines of the first pod; None: all."""
    follow: bool = False
    """On and on, until the job (or the attempt) has ended."""
    timestamps: bool = False
    """With the time of each line, RFC 3339."""


@dataclass(slots=True)
class Stream:
    """Position in one pod's log."""

    second: int | None = None
    """Of the newest line, since 1970; None before the first."""
    _recent: Counter[str] = field(default_factory=Counter)
    """Lines of that second, with their timestamps, and how often each was passed on."""
    _again: Counter[str] = field(default_factory=Counter)
    """Those that the present connection may bring once more."""

    def connect(self) -> str | None:
        """Prepare for a reconnect: return the second to resume from, whose lines will come once more."""
        self._again = self._recent.copy()
        return None if self.second is None else render_time(self.second)

    def is_new(self, line: str) -> bool:
        """Return whether a line is new, and remember it. line: with its timestamp."""
        if self._again[line] > 0:
            self._again[line] -= 1
            return False
        # A node writes them in its own time zone.
        written_s = time_of(line.partition(" ")[0])
        second = None if written_s is None else int(written_s)
        if second is not None and (self.second is None or second > self.second):
            self.second = second
            self._recent.clear()
        if second == self.second:
            self._recent[line] += 1
        return True


class Follower:
    """Reads one job's log."""

    def __init__(
        self,
        kubectl: Kubectl,
        wanted: LogSelection,
        *,
        say: Callable[[str], None] = lambda text: None,
        tell_wait: Callable[[str], None] = lambda text: None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """Begin with nothing read.

        Args:
            kubectl: The way to the cluster.
            wanted: Which lines.
            say: Told which pod is read.
            tell_wait: Told what is waited for, over and over.
            pause: Waits for so many seconds.
        """
        self._kubectl, self._wanted, self._pause = kubectl, wanted, pause
        self._say, self._tell_wait = say, tell_wait
        self._last_read: tuple[int, float] | None = None
        """Attempt and time of creation of the newest pod whose log was read to its end; None: none was."""
        self._read_uids: set[str] = set()

    def lines(self, name: str) -> Iterator[str]:
        """Yield the lines of a job's log, each once.

        Raises:
            NoSuchObject: There is no such job, or the pod of the wanted attempt is gone.
            ApiRefused: The job or its log cannot be read.
        """
        job = read_job(self._kubectl, name)
        uid = job.uid
        self._check(job)
        while True:
            pod = self._next_pod(job)
            if pod is not None:
                yield from self._pod_lines(job, pod)
            if not self._wanted.follow:
                if pod is None:
                    raise NoSuchObject(self._nothing_to_read(job), hint="-f waits for it")
                return
            if self._is_over(job, pod):
                return
            if pod is None:
                self._tell_wait(f"waiting: {describe_wait(job)}")
                self._pause(PAUSE_S)
            job = read_job(self._kubectl, name)
            if job.uid != uid:
                self._say(f"{job.name} was deleted, and another job has its name now")
                return

    def _check(self, job: Job) -> None:
        attempt, rank = self._wanted.attempt, self._wanted.rank
        if attempt is not None and (attempt < job.attempt or job.has_ended and attempt > job.attempt):
            has_pod = any(pod.attempt == attempt for pod in read_pods_of(self._kubectl, job))
            if not has_pod:
                raise NoSuchObject(
                    f"attempt {attempt} of {job.name}: no pod is left of it (the newest attempt is {job.attempt})",
                    hint=f"its ranks' lines are on the volume, in logs/attempt-{attempt}/rank-N.log of the output "
                    "folder, and kubectl bert status shows how it failed",
                )
        workers = int(job.spec.get("workers") or 1)
        slots = job.spec.get("slotsPerWorker")
        if rank is not None and isinstance(slots, int) and rank >= workers * slots:
            raise InputError(f"--rank: got {rank}; allowed: 0 to {workers * slots - 1} ({workers} x {slots} ranks)")

    def _next_pod(self, job: Job) -> Pod | None:
        """Return the pod to read next: at first the newest one that has a log, then every one that follows it."""
        pods = [pod for pod in read_pods_of(self._kubectl, job) if pod.has_log and pod.has_started]
        if self._wanted.attempt is not None:
            pods = [pod for pod in pods if pod.attempt == self._wanted.attempt]
        if self._last_read is None:
            return pods[-1] if pods else None
        # Of one attempt there are several where a queue has suspended it and let it go on.
        later = (pod for pod in pods if (pod.attempt, pod.created_s) >= self._last_read)
        return next((pod for pod in later if pod.uid not in self._read_uids), None)

    def _is_over(self, job: Job, pod: Pod | None) -> bool:
        """Tell whether nothing more can come."""
        if pod is not None and self._wanted.attempt == pod.attempt:
            return True
        newer = self._wanted.attempt is not None and job.attempt > self._wanted.attempt
        # The status may end before its pod was looked at: once more after a pod that has just been read.
        return pod is None and (job.has_ended or newer)

    def _nothing_to_read(self, job: Job) -> str:
        which = f"attempt {self._wanted.attempt} of {job.name}" if self._wanted.attempt else job.name
        return f"{which}: no pod has started, so there is no log ({describe_wait(job)})"

    def _pod_lines(self, job: Job, pod: Pod) -> Iterator[str]:
        self._say(f"--- attempt {pod.attempt}, pod {pod.name}")
        stream, num_broken = Stream(), 0
        kubectl = self._kubectl.within(job.namespace)
        while True:
            # Asked before the log is: a log is whole that was read to its end after the pod had ended.
            is_last = not self._wanted.follow or self._has_ended(kubectl, pod)
            is_new, problem = False, None
            try:
                for line in self._connect(kubectl, pod, stream, follow=not is_last):
                    is_new = True
                    if (shown := self._select(line)) is not None:
                        yield shown
            except NoSuchObject:
                self._say(f"pod {pod.name} is gone; its last lines are on the volume, in logs/attempt-{pod.attempt}/")
                break
            except ApiRefused as refused:
                problem = refused
            if is_last and problem is None:
                break
            num_broken = 0 if is_new else num_broken + 1
            if problem is not None:
                if num_broken >= _MAX_BROKEN or not self._wanted.follow or problem.status in (401, 403):
                    raise problem
                self._tell_wait(f"the log of pod {pod.name} cannot be read for now ({first_line(problem)})")
            if not is_new:
                self._pause(PAUSE_S)
        self._last_read = pod.attempt, pod.created_s
        self._read_uids.add(pod.uid)

    def _connect(self, kubectl: Kubectl, pod: Pod, stream: Stream, *, follow: bool) -> Iterator[str]:
        """Yield the new lines of one connection, with their timestamps."""
        words = ["logs", pod.name, "--container", CONTAINER, "--timestamps", *(["--follow"] if follow else [])]
        since = stream.connect()
        if since is not None:
            words.append(f"--since-time={since}")
        elif self._wanted.tail is not None and self._last_read is None:
            words.append(f"--tail={self._wanted.tail}")
        with kubectl.lines(*words) as lines:
            for line in lines.read():
                if stream.is_new(line):
                    yield line
            lines.expect_success()

    def _has_ended(self, kubectl: Kubectl, pod: Pod) -> bool:
        try:
            told = kubectl.call("get", "pod", pod.name, "-o", _HOW_FAR)
        except NoSuchObject:
            # Reading its log says the same, and ends there.
            return True
        except ApiRefused:
            return False
        # Its phase, and the exit code of the trainer once there is one.
        return told.startswith(("Succeeded", "Failed")) or bool(told.partition(" ")[2].strip())

    def _select(self, line: str) -> str | None:
        """Return a line as it is shown; None if it is another rank's."""
        stamp, _, text = line.partition(" ")
        if not stamp[:4].isdigit():
            # The rest of a line that was too long to be passed on at once.
            stamp, text = "", line
        if self._wanted.rank is not None:
            # Lines of rank 0 and the launcher's own have no tag.
            tag = _RANK.match(text)
            if (int(tag[1]) if tag is not None else 0) != self._wanted.rank:
                return None
            text = text[tag.end() :] if tag is not None else text
        return f"{stamp} {text}" if self._wanted.timestamps and stamp else text


def describe_wait(job: Job) -> str:
    """Return what a job waits for, in one line."""
    attempt = f", attempt {job.attempt}" if job.attempt else ""
    return f"{job.name} is {job.phase}{attempt} ({one_line(job.why)})"
