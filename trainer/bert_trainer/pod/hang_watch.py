"""Watches the heartbeat of one rank: where it stops, asks for stacks, tells the launcher, and ends the rank.

The watcher is the rank's parent and needs nothing of it: a stopped process, one whose interpreter is locked up in a
library and one that waits in the kernel are seen alike. All ranks of a run make progress together, so all watchers
notice within seconds; which rank holds up the others the launcher concludes from their lines.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from bert_trainer.errors import InputError
from bert_trainer.pod.processes import signal_process
from bert_trainer.system.heartbeat import (
    DESCRIPTOR_VARIABLE,
    MEMORY_NAME,
    SIZE_BYTES,
    STACKS_SIGNAL,
    Beat,
    read_limits,
)
from bert_trainer.system.mpi_variables import read_rank
from bert_trainer.system.process_tree import find_descendants

ACTION_VARIABLE = "BERT_ON_HANG"
Action = Literal["Restart", "Notify"]

# Of the lower limit, every 15 of 120 s: how often the first rank of a host tells that its lines arrive.
_ALIVE_SHARE, _MAX_ALIVE_S = 1 / 8, 15.0
_POLL_S = 1.0
_FROZEN_S = 10.0
# Between a rank's stacks and its end: the other ranks, whose end this brings about, write theirs in that time.
_STACKS_S = 5.0
_PY_SPY_S = 10.0
_LEAVE_S = 20.0
"""Beyond the longest step, where a rank that is asked to stop waits for others: a volume may be slow for a moment."""
_STATES = {"T": "stopped", "t": "stopped by a debugger", "D": "waiting in the kernel", "Z": "ended"}
_LINE = re.compile(
    r"bert-pod/1 event=rank_hung rank=(\d{1,9}) steps=(\d{1,15}) silent_s=(\d{1,9}) limit_s=(\d{1,9}) "
    r"state=([A-Za-z?]) waiting=([01]) activity=(\S{1,60})"
)


@dataclass(frozen=True, slots=True)
class Hang:
    """A rank without progress, as its watcher reports it to the launcher."""

    rank: int
    steps: int
    """Optimizer steps that its process has taken."""
    silent_s: int
    limit_s: int
    state: str
    """Of the process, a letter of proc_pid_stat(5)."""
    is_waiting: bool
    """It only waits for other ranks."""
    activity: str

    def render(self) -> str:
        """Return its line for the launcher."""
        activity = re.sub(r"\s", "_", self.activity) or "?"
        return (
            f"bert-pod/1 event=rank_hung rank={self.rank} steps={self.steps} silent_s={self.silent_s} "
            f"limit_s={self.limit_s} state={self.state} waiting={int(self.is_waiting)} activity={activity}"
        )

    @classmethod
    def parse(cls, line: str) -> Self | None:
        """Return what a line says; None for any other line."""
        match = _LINE.fullmatch(line)
        if match is None:
            return None
        rank, steps, silent_s, limit_s = (int(match[number]) for number in range(1, 5))
        return cls(rank, steps, silent_s, limit_s, state=match[5], is_waiting=match[6] == "1", activity=match[7])

    def describe(self) -> str:
        """Return a sentence without its subject."""
        state = f"; its process is {_STATES[self.state]}" if self.state in _STATES else ""
        return (
            f"no progress in {self.activity} for {self.silent_s} s, more than {self.limit_s} s, after {self.steps} "
            f"steps of this attempt{state}"
        )


def find_culprits(hangs: Mapping[int, Hang], ranks: int, missing: Collection[int] = ()) -> list[int]:
    """Return the ranks that block the others; all hung ranks if they wait for each other.

    Args:
        hangs: What the watchers of ranks have told, by rank.
        ranks: How many there are. Those without a word are on a machine that is gone or frozen, watcher and all.
        missing: Ranks that Horovod names as those that the others wait for.
    """
    stopped = [rank for rank, hang in hangs.items() if hang.state in _STATES]
    silent = [rank for rank in range(ranks) if rank not in hangs]
    busy = [rank for rank, hang in hangs.items() if not hang.is_waiting]
    # Of ranks that all wait, in collectives that do not match, Horovod misses some or, of no use, all.
    named = [rank for rank in missing if rank in hangs]
    return sorted(stopped or busy or silent or named or hangs)


def find_leave_limit_s(beat: Beat) -> float:
    """Return for how long a rank may make no progress after a stop request.

    One that waits for others longer than any step has taken cannot save: they are gone, and its pod would stay for the
    whole grace period, for which the next attempt waits. Behind a checkpoint or an evaluation others may still be at
    it: ``expected_s`` is then 5 times what such steps have taken, and the upper limit behind the first of its kind. And
    one that does not wait may be saving, whatever it tells: that is what the grace period is for.
    """
    return beat.expected_s + _LEAVE_S if beat.is_waiting else beat.limit_s


def read_action(environment: Mapping[str, str]) -> Action:
    """Return the configured action on a hang.

    Raises:
        InputError: the variable holds something else.
    """
    match environment.get(ACTION_VARIABLE) or "Restart":
        case "Restart":
            return "Restart"
        case "Notify":
            return "Notify"
        case other:
            raise InputError(f"{ACTION_VARIABLE}: got {other!r}; allowed: Restart, Notify")


class HangWatch:
    """Watches one rank, from ``start`` to ``stop``."""

    def __init__(
        self,
        action: Action,
        environment: Mapping[str, str],
        write: Callable[[str], None],
        keepalive: str | None = None,
    ) -> None:
        """Watch nothing yet.

        Args:
            action: What follows when the rank has hung.
            environment: This process's own, for the number of the rank.
            write: Takes lines for the launcher.
            keepalive: A line for the launcher, written again and again; None: another rank of this host does.
        """
        self._keepalive = keepalive
        self._shortest_s = read_limits(environment)[0]
        self._alive_every_s = min(_ALIVE_SHARE * self._shortest_s, _MAX_ALIVE_S)
        self._action, self._rank, self._write = action, read_rank(environment), write
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._writer: threading.Thread | None = None
        self._descriptor = os.memfd_create(MEMORY_NAME, 0)  # no MFD_CLOEXEC: the rank inherits it
        os.ftruncate(self._descriptor, SIZE_BYTES)
        self._is_asked_to_stop = False
        self.has_ended_rank = False
        """The rank was ended because it had hung."""

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables for the rank, which must also inherit the descriptor."""
        return {DESCRIPTOR_VARIABLE: str(self._descriptor)}

    @property
    def descriptor(self) -> int:
        """The shared memory, which the rank has to inherit."""
        return self._descriptor

    def start(self, process: int) -> None:
        """Watch a process, in a thread."""
        if self._keepalive is not None:
            self._write(self._keepalive)
        self._thread = threading.Thread(target=self._watch, args=(process,), daemon=True)
        self._thread.start()

    def note_stop_request(self) -> None:
        """Note that the rank was asked to save and exit, which lost peers may prevent."""
        self._is_asked_to_stop = True

    def stop(self) -> None:
        """End the watch: the rank has ended."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        os.close(self._descriptor)

    def _watch(self, process: int) -> None:
        notified: tuple[float, bool] | None = None
        before: Beat | None = None
        progressed_at_s = 0.0
        told_at_s = looked_at_s = time.monotonic()
        excused_s = stopped_s = 0.0
        while not self._ended.wait(_POLL_S):
            now_s, before_s = time.monotonic(), looked_at_s
            looked_at_s = now_s
            if self._keepalive is not None and now_s - told_at_s >= self._alive_every_s:
                told_at_s = now_s
                self._tell(self._keepalive)
            beat = self._read()
            # Seen twice the same: one that is being written while it is read is no evidence.
            is_settled, before = beat is not None and beat == before, beat
            # A time in which this process did not run either, as in a machine that was paused, is no hang.
            gap_s = now_s - before_s
            # Until it makes progress: that it begins to wait for other ranks is none.
            if beat is not None and beat.at_s != progressed_at_s:
                excused_s, progressed_at_s = 0.0, beat.at_s
            excused_s += gap_s if gap_s > _FROZEN_S else 0.0
            if beat is None or not is_settled or (beat.at_s, self._is_asked_to_stop) == notified:
                stopped_s = 0.0
                continue
            # However long a checkpoint or an evaluation may take, a stopped process is at neither. Only the time in
            # which it was seen stopped counts: somebody may look at a rank for a moment in a long evaluation.
            stopped_s = stopped_s + min(gap_s, _FROZEN_S) if read_state(beat.process) == "T" else 0.0
            limit_s = min(beat.limit_s, self._shortest_s) if stopped_s > self._shortest_s else beat.limit_s
            if self._is_asked_to_stop:
                limit_s = min(limit_s, find_leave_limit_s(beat))
            silent_s = now_s - beat.at_s - excused_s
            if silent_s > limit_s:
                notified = beat.at_s, self._is_asked_to_stop
                self._handle(process, beat, silent_s, limit_s)
                looked_at_s = time.monotonic()

    def _read(self) -> Beat | None:
        return Beat.unpack(os.pread(self._descriptor, SIZE_BYTES, 0))

    def _handle(self, process: int, beat: Beat, silent_s: float, limit_s: float) -> None:
        trainer = _trainer_of(process, beat)
        state = read_state(trainer)
        hang = Hang(self._rank, beat.steps, int(silent_s), int(limit_s), state, beat.is_waiting, beat.activity)
        self._tell(hang.render())
        if trainer == beat.process:
            signal_process(trainer, STACKS_SIGNAL)
        if program := shutil.which("py-spy"):
            _write_native_stacks(program, trainer)
        # One that is asked to stop is to end in any case.
        if (self._action == "Notify" and not self._is_asked_to_stop) or self._ended.wait(_STACKS_S):
            return
        now = self._read()
        if now is not None and now.at_s != beat.at_s:
            return  # it goes on
        self._end(process, trainer)

    def _end(self, process: int, trainer: int) -> None:
        self.has_ended_rank = True
        for ended in {trainer, process}:
            signal_process(ended, signal.SIGKILL)

    def _tell(self, line: str) -> None:
        """Write a line, but never wait for long: whoever reads this process's output may be what hangs."""
        if self._writer is not None and self._writer.is_alive():
            return
        self._writer = threading.Thread(target=self._write, args=(line,), daemon=True)
        self._writer.start()
        self._writer.join(_POLL_S)


def _trainer_of(process: int, beat: Beat) -> int:
    """Return who beats, which need not be what this process started: a signal for the trainer would end a wrapper."""
    return beat.process if beat.process in find_descendants(process) else process


def _write_native_stacks(program: str, process: int) -> None:
    """Write stacks with C frames: py-spy needs no cooperation, but the right to trace (CAP_SYS_PTRACE)."""
    try:
        subprocess.run(
            [program, "dump", "--nonblocking", "--native", "--pid", str(process)],
            stdin=subprocess.DEVNULL, stdout=sys.stderr, stderr=subprocess.STDOUT, timeout=_PY_SPY_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        sys.stderr.write(f"bert-pod: {program}: no native stacks ({type(error).__name__})\n")


def read_state(process: int) -> str:
    """Return the state of a process as a letter, ``?`` if it cannot be read."""
    try:
        return Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "?"
