"""Rendezvous: every rank announces its host before its program starts, and the launcher counts them.

mpirun reports neither where ranks run nor how each of them ended, and if it misses its host file it may start all of
them in the launcher's own pod. It also takes many minutes to notice that a host cannot be reached any more. Hence lines
of our own, ``bert-pod/1 event=rank``, ``rank_alive``, ``rank_hung`` and ``rank_ended``, which ``bert-pod rank`` prints
on a rank's output and which are taken out of the log.
"""

from __future__ import annotations

import contextlib
import re
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from bert_trainer.errors import EXIT_INFRASTRUCTURE, EXIT_STOPPED, WrongWorld
from bert_trainer.pod.hang_watch import Action, Hang, find_culprits, read_action
from bert_trainer.pod.launcher_log import FirstFailure, LauncherLog
from bert_trainer.pod.processes import StopForwarder
from bert_trainer.pod.rank_output import Line
from bert_trainer.system.heartbeat import DEFAULT_LIMITS_S, read_limits
from bert_trainer.system.mpi_variables import read_rank, read_size

# Numbers and names are bounded: a program may print such lines as well, and int() refuses thousands of digits.
_RANK_STARTED = re.compile(r"bert-pod/1 event=rank rank=(\d{1,9}) size=(\d{1,9}) host=(\S{1,253})")
_RANK_ENDED = re.compile(r"bert-pod/1 event=rank_ended rank=(\d{1,9}) code=(-?\d{1,3})( hung)?")
_RANK_ALIVE = re.compile(r"bert-pod/1 event=rank_alive rank=(\d{1,9})")
# Of the lower limit for hangs: 100 of 120 s. A network that is cut for 30 s is not given up: by its back-off, TCP sends
# again up to 51 s after the cut began.
_SILENT_SHARE = 5 / 6
# A watcher that collects stacks tells nothing meanwhile; and no lower limit for steps makes a lost host wait for hours.
_MIN_SILENT_S, _MAX_SILENT_S = 20.0, 100.0
_TICK_S = 1.0
_FROZEN_S = 10.0  # between two ticks: this process itself did not run
# How long a launcher has to notice by itself that a rank failed.
_LAUNCHER_NOTICE_S = 5.0
# How long after the first rank without progress the others' watchers may tell of theirs; before that one is ended.
_COLLECT_S = 3.0


@dataclass(frozen=True, slots=True)
class NoProgress:
    """Why a run that has not ended makes no progress."""

    reason: str
    message: str
    failure: FirstFailure
    """The rank that holds up the others."""


@dataclass(slots=True)
class Rendezvous:
    """Compares the ranks that a launcher started with those requested."""

    ranks: int
    hosts: int
    _size: int | None = None
    failures: list[FirstFailure] = field(default_factory=list)
    """Ranks that were reported to have failed, in this order."""
    hangs: dict[int, Hang] = field(default_factory=dict)
    """Ranks that make no progress, as of their latest report."""
    missing: frozenset[int] = frozenset()
    """Ranks that Horovod misses."""
    has_hung: bool = False
    """A rank was ended because it had hung."""
    silent_limit_s: float = _SILENT_SHARE * DEFAULT_LIMITS_S[0]
    """For how long nothing need be heard of a host."""
    start_limit_s: float = DEFAULT_LIMITS_S[1]
    """For how long ranks may be missing."""
    heard_at_s: dict[int, float] = field(default_factory=dict)
    """When the first rank of each host was heard last, by rank, on the monotonic clock."""
    all_ended_at_s: float | None = None
    """When the last rank ended, on the monotonic clock."""
    _host_of: dict[int, str] = field(default_factory=dict)
    _ended: set[int] = field(default_factory=set)

    def take(self, text: str) -> bool:
        """Handle a line of output; return whether it was a rendezvous message."""
        if match := _RANK_STARTED.fullmatch(text):
            self._size = int(match[2])
            self._host_of[int(match[1])] = match[3]
        elif match := _RANK_ENDED.fullmatch(text):
            self.has_hung = self.has_hung or match[3] is not None
            self._ended.add(int(match[1]))
            if self.is_complete and self.all_ended_at_s is None and self._ended >= self._host_of.keys():
                self.all_ended_at_s = time.monotonic()
            self.heard_at_s.pop(int(match[1]), None)
            self._add_end(int(match[1]), int(match[2]))
        elif match := _RANK_ALIVE.fullmatch(text):
            if int(match[1]) in self._host_of.keys() - self._ended:
                self.heard_at_s[int(match[1])] = time.monotonic()
        elif (hang := Hang.parse(text)) is not None and hang.rank < self.ranks:
            self.hangs[hang.rank] = hang
            return True
        return match is not None

    def _add_end(self, rank: int, code: int) -> None:
        # Bounded: a program may print such lines itself, without end.
        if code not in (0, EXIT_STOPPED) and len(self.failures) < self.ranks:
            kind = {"signal": -code} if code < 0 else {"exit_code": code}
            self.failures.append(FirstFailure(rank=rank, host=self._host_of.get(rank), **kind))

    @property
    def hang(self) -> NoProgress | None:
        """Ranks that report no progress; None if there are none."""
        hangs = dict(self.hangs)  # lines arrive in another thread
        if not hangs:
            return None
        culprits = find_culprits(hangs, self.ranks, self.missing)
        # Where all wait for each other, none of them, nor its node, is to blame.
        rank, *others = culprits
        failure = FirstFailure() if others else FirstFailure(rank=rank, host=self._host_of.get(rank))
        return NoProgress("Hung", self._describe_hang(hangs, culprits), failure)

    def silent_host(self, now_s: float) -> NoProgress | None:
        """Return a host that has sent nothing for too long; None if there is none."""
        rank = min(self.heard_at_s, key=self.heard_at_s.__getitem__, default=None)
        if rank is None or (silent_s := now_s - self.heard_at_s[rank]) <= self.silent_limit_s:
            return None
        host = self._host_of.get(rank)
        message = (
            f"nothing is heard of {host} for {silent_s:.0f} s, where rank {rank} runs: the node is gone or frozen, or "
            "the network between it and the launcher is cut"
        )
        return NoProgress("WorkerLost", message, FirstFailure(rank=rank, host=host))

    def not_started(self, waited_s: float) -> NoProgress | None:
        """Return the ranks that have not started within the limit; None if all have, or time is left."""
        if self.is_complete or waited_s <= self.start_limit_s:
            return None
        missing = join_names(str(rank) for rank in range(self.ranks) if rank not in self._host_of)
        started = f"{len(self._host_of)} of {self.ranks} ranks"
        message = f"the launcher has started {started} in {waited_s:.0f} s; missing: {missing}"
        return NoProgress("Hung", message, FirstFailure())

    def outlived(self, now_s: float) -> NoProgress | None:
        """Return that the launcher is still running long after all its ranks ended; None if not."""
        if self.all_ended_at_s is None or (since_s := now_s - self.all_ended_at_s) <= self.silent_limit_s:
            return None
        message = f"all ranks ended {since_s:.0f} s ago, and the launcher that started them did not"
        return NoProgress("Hung", message, FirstFailure())

    def _describe_hang(self, hangs: Mapping[int, Hang], culprits: Sequence[int]) -> str:
        hosts = {rank: f" on {self._host_of[rank]}" if rank in self._host_of else "" for rank in culprits}
        names = join_names(f"rank {rank}{host}" for rank, host in hosts.items())
        told = [hangs[rank] for rank in culprits if rank in hangs]
        message = (told or list(hangs.values()))[0].describe()
        if not told:
            message = f"nothing is heard of it, while other ranks made {message}"
        waiting = len(hangs) - len(told)
        return f"{names}: {message}" + (f"; ranks that wait for it: {waiting}" if waiting and told else "")

    @property
    def is_complete(self) -> bool:
        """Whether all ranks have announced themselves."""
        return len(self._host_of) == self.ranks

    @property
    def problem(self) -> str | None:
        """Difference between the ranks started and those requested; None if there is none, or it is too early."""
        asked = f"the job asks for {_count(self.ranks, 'rank')} on {_count(self.hosts, 'host')}"
        if self._size is not None and self._size != self.ranks:
            return f"world: the launcher started {_count(self._size, 'rank')}, {asked}"
        found = self._ranks_by_host()
        # Too many hosts are wrong at once; too few only when everybody is there.
        if len(found) > self.hosts or self.is_complete and len(found) < self.hosts:
            named = f"{_count(len(found), 'host')} ({join_names(sorted(found))})"
            return f"world: the launcher started ranks on {named}, {asked}"
        return None

    def describe(self) -> str:
        """Return which ranks run where, for the log."""
        places = [f"{_format_ranks(ranks)} on {host}" for host, ranks in self._ranks_by_host().items()]
        shown = ", ".join(places[:8]) + (f" and {len(places) - 8} more hosts" if len(places) > 8 else "")
        return f"{_count(self.ranks, 'rank')} on {_count(self.hosts, 'host')}: {shown}"

    def _ranks_by_host(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = defaultdict(list)
        for rank in sorted(self._host_of):
            found[self._host_of[rank]].append(rank)
        return found


@dataclass(slots=True)
class LaunchMonitor:
    """Watches a launcher's output and ends it on a wrong number of ranks, a failed rank or a hang."""

    log: LauncherLog
    rendezvous: Rendezvous
    stop: StopForwarder
    report: Callable[[str], None] | None = None
    """Called once, with where the ranks run."""
    action: Action = "Restart"
    """What becomes of a run that makes no progress."""
    ended_for: NoProgress | None = field(default=None, init=False)
    """Why the launcher was ended, if it was because a host is silent."""
    _problem: str | None = field(default=None)

    @classmethod
    def of(
        cls,
        log: LauncherLog,
        stop: StopForwarder,
        environment: Mapping[str, str],
        *,
        ranks: int,
        hosts: int,
        report: Callable[[str], None] | None = None,
    ) -> Self:
        """Watch a launcher of so many ranks, within the limits that the environment sets.

        Raises:
            InputError: the environment says something else.
        """
        shortest_s, longest_s = read_limits(environment)
        silent_limit_s = min(max(_SILENT_SHARE * shortest_s, _MIN_SILENT_S), _MAX_SILENT_S)
        rendezvous = Rendezvous(ranks, hosts, silent_limit_s=silent_limit_s, start_limit_s=longest_s)
        return cls(log, rendezvous, stop, report, read_action(environment))

    def __post_init__(self) -> None:
        """Let a stop request that arrives before the ranks run end the launcher."""
        self.stop.has_started = lambda: self.has_started

    @property
    def has_started(self) -> bool:
        """Whether all ranks run: each has announced itself, or rank 0 reports.

        The latter because an announcement may be mangled on its way. The count would stay short for ever, and a stop
        hours later would end the launcher without a checkpoint.
        """
        return self.rendezvous.is_complete or self.log.last_event is not None

    def take(self, line: Line) -> bool:
        """Handle a line; return whether it belongs in the log."""
        hangs = len(self.rendezvous.hangs)
        if not self.rendezvous.take(line.text):
            step_before = self.log.stage, self.log.step
            self.log.note(line)
            self.rendezvous.missing = self.log.missing_ranks
            # A checkpoint may be written while ranks hang.
            is_step = self.log.last_event == "progress" and (self.log.stage, self.log.step) != step_before
            if hangs and is_step and not self.rendezvous.has_hung:
                self.rendezvous.hangs = {}  # over: the next one is news again
            return True
        if not hangs and self.rendezvous.hangs:
            timer = threading.Timer(_COLLECT_S, self._report_hang)
            timer.daemon = True
            timer.start()
        if self._problem is None and (problem := self.rendezvous.problem):
            self._problem = problem
            self.stop.end_child()
        elif self.rendezvous.failures:
            # With Hydra (MPICH, Intel MPI) the others wait for ever for a rank that failed before MPI_Init. Usually
            # the launcher notices by itself within these seconds, and its banner is useful.
            self.stop.end_child(_LAUNCHER_NOTICE_S)
        elif self._problem is None and self.rendezvous.is_complete and self.report is not None:
            self.report(self.rendezvous.describe())
            self.report = None
        return False

    @property
    def no_progress(self) -> NoProgress | None:
        """Why the run was ended although no rank had failed; None if it was not."""
        return self.ended_for or (self.rendezvous.hang if self.rendezvous.has_hung else None)

    @contextlib.contextmanager
    def watching(self, is_stuck: Callable[[], bool]) -> Iterator[None]:
        """Inside the block, check every second that all hosts send keepalives.

        is_stuck: Whether this process cannot read now what they write.
        """
        ended = threading.Event()
        thread = threading.Thread(target=self._watch, args=(ended, is_stuck), daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(_TICK_S)

    def _watch(self, ended: threading.Event, is_stuck: Callable[[], bool]) -> None:
        began_at_s = looked_at_s = time.monotonic()
        while not ended.wait(_TICK_S):
            now_s, before_s = time.monotonic(), looked_at_s
            looked_at_s = now_s
            heard = self.rendezvous.heard_at_s
            if now_s - before_s > _FROZEN_S or is_stuck():
                # This pod is stopped, or cannot write its log, not the others: what they write is still on its way.
                heard.update(dict.fromkeys(list(heard), now_s))
            elif (found := self._find_trouble(now_s, began_at_s)) is not None:
                self._report(found.message)
                if self.action == "Restart":
                    self.ended_for = found
                    self.stop.end_child()
                    return
                # Told once, until it is heard again.
                heard.pop(found.failure.rank or 0, None)
                self.rendezvous.all_ended_at_s = None
                began_at_s = now_s

    def _find_trouble(self, now_s: float, began_at_s: float) -> NoProgress | None:
        missing = None if self.has_started else self.rendezvous.not_started(now_s - began_at_s)
        return missing or self.rendezvous.silent_host(now_s) or self.rendezvous.outlived(now_s)

    def _report_hang(self) -> None:
        if (hang := self.rendezvous.hang) is not None:
            self._report(hang.message)

    def _report(self, message: str) -> None:
        log = self.log
        # As a record, which the operator reads, and in this process's own name: rank 0 may be the one that has hung.
        message += log.stall
        sys.stdout.write(log.source.render_record("hung", stage=log.stage, step=log.step, message=message) + "\n")
        sys.stdout.flush()

    def check(self) -> None:
        """Raise ``WrongWorld`` if the launcher was ended because it started other ranks."""
        if self._problem is not None:
            raise WrongWorld(
                self._problem,
                hint="check that spec.mpi.implementation names the MPI that the image's programs were built for, "
                "and that no variable in the environment overrides the launcher's host file",
            )


def render_announcement(environment: Mapping[str, str], host: str) -> str:
    """Return the line that announces a rank; without a launcher it is rank 0 of 1."""
    return f"bert-pod/1 event=rank rank={read_rank(environment)} size={read_size(environment)} host={host}"


def render_keepalive(environment: Mapping[str, str]) -> str:
    """Return the line by which a rank shows that its output arrives."""
    return f"bert-pod/1 event=rank_alive rank={read_rank(environment)}"


def render_rank_end(environment: Mapping[str, str], return_code: int, *, has_hung: bool = False) -> str:
    """Return the line that reports the end of a rank.

    Args:
        environment: For the number of the rank.
        return_code: -n for signal n.
        has_hung: It was ended because it made no progress.
    """
    end = f"{EXIT_INFRASTRUCTURE} hung" if has_hung else return_code
    return f"bert-pod/1 event=rank_ended rank={read_rank(environment)} code={end}"


def join_names(hosts: Iterable[str], limit: int = 8) -> str:
    """Join names for a message: the first ones, and how many more there are."""
    names = list(hosts)
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def _format_ranks(ranks: list[int]) -> str:
    if len(ranks) < 3:
        return ", ".join(map(str, ranks))
    if ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"{ranks[0]}-{ranks[-1]}"
    return f"{', '.join(map(str, ranks[:3]))}, ..."


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
