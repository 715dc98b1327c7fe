"""A rank's heartbeat: when it made progress last, at what, and for how long it may make none.

``bert-pod rank`` starts a rank with a descriptor of shared memory (memfd_create(2)), named by ``BERT_HEARTBEAT``; the
trainer writes there after each step, and ``pod.hang_watch`` reads. The clock is CLOCK_MONOTONIC, which all processes of
a machine share. Without the variable, as under a plain ``mpirun bert-train``, nobody watches and nothing is written.

A rank has hung when it made no progress for longer than 5 times the longest step of its stage, yet for no less than the
lower and no longer than the upper limit (NVRx's fault tolerance, too, takes 5 times the longest observed). The first
steps of a stage compile kernels and fill caches, and activities without steps have no pace to learn: for them the
upper limit counts. One per process, like its signal handlers: code anywhere tells of its progress without being handed
anything.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import struct
import time
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Self

from bert_trainer.errors import InputError

DESCRIPTOR_VARIABLE = "BERT_HEARTBEAT"
LIMITS_VARIABLE = "BERT_HANG_LIMITS_S"
"""Lower and upper limit in seconds, ``120,1800``."""
STACKS_SIGNAL = signal.SIGUSR2
"""A trainer that gets it writes the stacks of all its threads to standard error and goes on."""

_STDERR = 2
DEFAULT_LIMITS_S = (120.0, 1800.0)
_FACTOR = 5.0
_WARM_UP_STEPS = 5

# When (s), limit (s), expected (s), steps in this process, its id, whether it waits for other ranks, activity.
_FORMAT = struct.Struct("<dddQI?43s")
_ACTIVITY_BYTES = 43
SIZE_BYTES = _FORMAT.size
MEMORY_NAME = "heartbeat"
"""Of the shared memory, as /proc shows it."""


@dataclass(frozen=True, slots=True)
class Beat:
    """Last heartbeat of a rank."""

    at_s: float
    """On the monotonic clock."""
    limit_s: float
    """How long it may go on without another beat."""
    expected_s: float
    """How long it has taken to another beat at the same: in steps the longest, behind an activity 5 times the longest
    of such steps; the limit where that is not known."""
    steps: int
    """Optimizer steps that this process has taken."""
    process: int
    """Its id: a wrapper may stand between the trainer and ``bert-pod rank``."""
    is_waiting: bool
    """It waits for other ranks, so that not it but one of them holds the run up."""
    activity: str

    def pack(self) -> bytes:
        """Return it as ``unpack`` reads it."""
        activity = self.activity.encode(errors="replace")[:_ACTIVITY_BYTES]
        numbers = self.at_s, self.limit_s, self.expected_s, self.steps, self.process
        return _FORMAT.pack(*numbers, self.is_waiting, activity)

    @classmethod
    def unpack(cls, data: bytes) -> Self | None:
        """Return what was written; None if nothing was."""
        if len(data) != SIZE_BYTES:
            return None
        at_s, limit_s, expected_s, steps, process, is_waiting, activity = _FORMAT.unpack(data)
        text = activity.rstrip(b"\0").decode(errors="replace")
        return cls(at_s, limit_s, expected_s, steps, process, is_waiting, text) if at_s else None


class Pace:
    """Tracks step times of a stage and derives hang limits."""

    def __init__(self, limits_s: tuple[float, float]) -> None:
        """limits_s: the lower and the upper one."""
        self._shortest_s, self._longest_s = limits_s
        self.start()

    def start(self) -> None:
        """Reset at the start of a stage."""
        self._steps, self._slowest_s = 0, 0.0

    def add(self, seconds: float) -> None:
        """Add a step."""
        self._steps += 1
        if self._steps > _WARM_UP_STEPS:
            self._slowest_s = max(self._slowest_s, seconds)

    @property
    def limit_s(self) -> float:
        """Seconds after which a step counts as hung."""
        if self._steps <= _WARM_UP_STEPS:
            return self._longest_s
        return min(max(_FACTOR * self._slowest_s, self._shortest_s), self._longest_s)

    @property
    def expected_s(self) -> float:
        """The longest that a step of the stage has taken; its limit before that is known."""
        return self.limit_s if self._steps <= _WARM_UP_STEPS else self._slowest_s

    @property
    def upper_limit_s(self) -> float:
        """Seconds after which anything else counts as hung."""
        return self._longest_s


class Heartbeat:
    """Writes heartbeats. Never raises after creation: monitoring must not end a run."""

    def __init__(self, descriptor: int | None, limits_s: tuple[float, float]) -> None:
        """descriptor: shared memory; None: nobody watches."""
        self._descriptor, self._pace = descriptor, Pace(limits_s)
        self._activity, self._steps, self._is_waiting = "starting", 0, False
        self._behind = ""
        """The activity since the last step; empty if there was none."""
        self._behind_s: dict[str, float] = {}
        """Longest time from the end of such an activity to that of its step."""
        self.waited_s = 0.0
        """Seconds for which this process has waited for other ranks."""
        self._at_s = time.monotonic()
        self._limit_s = self._expected_s = self._pace.upper_limit_s

    def step(self) -> None:
        """Report a finished optimizer step."""
        now_s = time.monotonic()
        # The rest of a step in which other ranks evaluated, saved or read for longer than this one is no step's pace.
        if self._behind:
            self._behind_s[self._behind] = max(self._behind_s.get(self._behind, 0.0), now_s - self._at_s)
        else:
            self._pace.add(now_s - self._at_s)
        self._behind = ""
        self._steps += 1
        self._limit_s, self._expected_s = self._pace.limit_s, self._pace.expected_s
        self._write(now_s)

    @property
    def upper_limit_s(self) -> float:
        """Seconds without a beat after which an activity counts as hung."""
        return self._pace.upper_limit_s

    def alive(self) -> None:
        """Report progress within an activity that has no steps."""
        self._write(time.monotonic())

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Context of a stage's steps, whose pace is learnt anew."""
        self._pace.start()
        with self._during(name, self._pace.limit_s):
            yield

    @contextlib.contextmanager
    def activity(self, name: str) -> Iterator[None]:
        """Context of work without steps; its time does not count as a step."""
        with self._during(name, self._pace.upper_limit_s):
            yield

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Context of waiting for other ranks; not progress in itself."""
        self._is_waiting = True
        began_at_s = time.perf_counter()
        self._write(self._at_s)
        try:
            yield
        finally:
            self.waited_s += time.perf_counter() - began_at_s
            self._is_waiting = False
            self._write(self._at_s)

    @contextlib.contextmanager
    def _during(self, name: str, limit_s: float) -> Iterator[None]:
        before = self._activity
        self._activity, self._limit_s, self._expected_s = name, limit_s, limit_s
        self.alive()
        try:
            yield
        finally:
            # Rank 0 may still be at it: a checkpoint that it alone writes lets the others go on, and wait in the next
            # step. So that one has the upper limit as well.
            self._activity, self._behind = before, name
            self._limit_s = self._expected_s = self._pace.upper_limit_s
            if name in self._behind_s:
                self._expected_s = min(_FACTOR * self._behind_s[name], self._limit_s)
            self.alive()

    def _write(self, at_s: float) -> None:
        self._at_s = at_s
        if self._descriptor is not None:
            times_s = at_s, self._limit_s, self._expected_s
            beat = Beat(*times_s, self._steps, os.getpid(), self._is_waiting, self._activity)
            with contextlib.suppress(OSError):
                os.pwrite(self._descriptor, beat.pack(), 0)


_process = Heartbeat(None, DEFAULT_LIMITS_S)


def watched() -> Heartbeat:
    """Return this process's heartbeat."""
    return _process


def begin(environment: MutableMapping[str, str] | None = None) -> None:
    """Start heartbeats if a watcher is present, and write stacks on request. Call once at process start.

    Raises:
        InputError: the limits are none.
    """
    global _process
    environment = os.environ if environment is None else environment
    limits_s = read_limits(environment)
    # Not for processes that this one starts: their progress is not the run's.
    descriptor = environment.pop(DESCRIPTOR_VARIABLE, "")
    # Also where nobody watches, for people; and before the first beat: whoever sees one may send the signal, which
    # would end a process without handler. By number: sys.stderr may be replaced by something without one.
    faulthandler.register(STACKS_SIGNAL, file=_STDERR, all_threads=True)
    try:
        # A wrapper may have closed it, and opened something else under its number.
        if not os.readlink(f"/proc/self/fd/{int(descriptor)}").startswith(f"/memfd:{MEMORY_NAME}"):
            return
        os.set_inheritable(int(descriptor), False)
    except (OSError, ValueError):
        return
    _process = Heartbeat(int(descriptor), limits_s)
    _process.alive()


def read_limits(environment: Mapping[str, str]) -> tuple[float, float]:
    """Return the lower and the upper limit in seconds.

    Raises:
        InputError: the variable holds something else.
    """
    text = environment.get(LIMITS_VARIABLE)
    if not text:
        return DEFAULT_LIMITS_S
    try:
        shortest_s, longest_s = map(float, text.split(","))
    except ValueError:
        shortest_s, longest_s = 0.0, 0.0
    if not 0 < shortest_s <= longest_s < 1e9:
        raise InputError(
            f"{LIMITS_VARIABLE}: got {text!r}; allowed: two numbers of seconds, the lower limit first, such as 120,1800"
        )
    return shortest_s, longest_s
