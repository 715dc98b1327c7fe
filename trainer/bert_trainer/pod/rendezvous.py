"""Rendezvous: every rank announces its host before its program starts, and the launcher counts them.

mpirun reports neither where ranks run nor how each of them ended, and if it misses its host file it may start all of
them in the launcher's own pod. Hence lines of our own, ``bert-pod/1 event=rank``, ``event=rank_hung`` and
``event=rank_ended``, which ``bert-pod rank`` prints on a rank's output and which are taken out of the log.
"""

from __future__ import annotations

import re
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from bert_trainer.errors import EXIT_INFRASTRUCTURE, EXIT_STOPPED, WrongWorld
from bert_trainer.pod.hang_watch import Hang, find_culprits
from bert_trainer.pod.launcher_log import FirstFailure, LauncherLog
from bert_trainer.pod.processes import StopForwarder
from bert_trainer.pod.rank_output import Line
from bert_trainer.system.mpi_variables import read_rank, read_size

# Numbers and names are bounded: a program may print such lines as well, and int() refuses thousands of digits.
_RANK_STARTED = re.compile(r"bert-pod/1 event=rank rank=(\d{1,9}) size=(\d{1,9}) host=(\S{1,253})")
_RANK_ENDED = re.compile(r"bert-pod/1 event=rank_ended rank=(\d{1,9}) code=(-?\d{1,3})( hung)?")
# How long a launcher has to notice by itself that a rank failed.
_LAUNCHER_NOTICE_S = 5.0
# How long after the first rank without progress the others' watchers may tell of theirs; before that one is ended.
_COLLECT_S = 3.0


@dataclass(slots=True)
class Rendezvous:
    """Counts the ranks that a launcher started, against those that it was asked for."""

    ranks: int
    hosts: int
    _size: int | None = None
    failures: list[FirstFailure] = field(default_factory=list)
    """Ranks that were reported to have failed, in this order."""
    hangs: dict[int, Hang] = field(default_factory=dict)
    """Ranks that make no progress, as of their latest report."""
    has_hung: bool = False
    """A rank was ended because it had hung."""
    _host_of: dict[int, str] = field(default_factory=dict)

    def take(self, text: str) -> bool:
        """Take a line of output; return whether it was one of ours."""
        if match := _RANK_STARTED.fullmatch(text):
            self._size = int(match[2])
            self._host_of[int(match[1])] = match[3]
        elif match := _RANK_ENDED.fullmatch(text):
            self.has_hung = self.has_hung or match[3] is not None
            self._add_end(int(match[1]), int(match[2]))
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
    def hung_rank(self) -> FirstFailure | None:
        """The first of the ranks for which the others wait; None if no rank has hung."""
        if not self.hangs:
            return None
        rank = find_culprits(self.hangs, self.ranks)[0]
        return FirstFailure(rank=rank, host=self._host_of.get(rank))

    def describe_hang(self) -> str:
        """Return which ranks hold up the run, and since when, in a sentence."""
        culprits = find_culprits(self.hangs, self.ranks)
        hosts = {rank: f" on {self._host_of[rank]}" if rank in self._host_of else "" for rank in culprits}
        names = join_names(f"rank {rank}{host}" for rank, host in hosts.items())
        told = [self.hangs[rank] for rank in culprits if rank in self.hangs]
        message = (told or list(self.hangs.values()))[0].describe()
        if not told:
            message = f"nothing is heard of it, while other ranks made {message}"
        waiting = len(self.hangs) - len(told)
        return f"{names}: {message}" + (f"; ranks that wait for it: {waiting}" if waiting and told else "")

    @property
    def is_complete(self) -> bool:
        """Whether every rank has announced itself."""
        return len(self._host_of) == self.ranks

    @property
    def problem(self) -> str | None:
        """How the ranks differ from what was asked for; None if they do not, or if it is too early to know."""
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
    """Watches a launcher's output: ends it if it started other ranks than it was asked for, or if one has failed."""

    log: LauncherLog
    rendezvous: Rendezvous
    stop: StopForwarder
    report: Callable[[str], None] | None = None
    """Called once, with where the ranks run."""
    _problem: str | None = field(default=None)

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
        """Take a line; return whether it belongs into the log."""
        hangs = len(self.rendezvous.hangs)
        if not self.rendezvous.take(line.text):
            self.log.note(line)
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

    def _report_hang(self) -> None:
        log, message = self.log, self.rendezvous.describe_hang()
        # As a record, which the operator reads, and in this process's own name: rank 0 may be the one that has hung.
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
