"""Rendezvous: every rank announces its host before its program starts, and the launcher counts them.

Until all ranks have announced themselves, a missing host is reported by name; from then on the launcher's output is
read for the run's own records.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from bert_trainer.errors import EXIT_STOPPED, WrongWorld
from bert_trainer.pod.launcher_log import FirstFailure, LauncherLog
from bert_trainer.pod.processes import StopForwarder
from bert_trainer.pod.rank_output import Line
from bert_trainer.system.mpi_variables import read_rank, read_size

_RANK_STARTED = re.compile(r"bert-pod/1 event=rank rank=(\d{1,9}) size=(\d{1,9}) host=(\S{1,253})")
_RANK_ENDED = re.compile(r"bert-pod/1 event=rank_ended rank=(\d{1,9}) code=(-?\d{1,3})")
_LAUNCHER_NOTICE_S = 5.0


@dataclass(slots=True)
class Rendezvous:
    """Counts the ranks of a launcher that was asked for so many on so many hosts."""

    ranks: int
    hosts: int
    _size: int | None = None
    failures: list[FirstFailure] = field(default_factory=list)
    """Ranks whose end was told and was no good one, in that order."""
    _host_of: dict[int, str] = field(default_factory=dict)

    def take(self, text: str) -> bool:
        """Take a line of output; return whether it was an announcement."""
        if match := _RANK_STARTED.fullmatch(text):
            self._size = int(match[2])
            self._host_of[int(match[1])] = match[3]
        elif match := _RANK_ENDED.fullmatch(text):
            self._add_end(int(match[1]), int(match[2]))
        return match is not None

    def _add_end(self, rank: int, code: int) -> None:
        if code not in (0, EXIT_STOPPED) and len(self.failures) < self.ranks:
            kind = {"signal": -code} if code < 0 else {"exit_code": code}
            self.failures.append(FirstFailure(rank=rank, host=self._host_of.get(rank), **kind))

    @property
    def is_complete(self) -> bool:
        """Whether every rank has come."""
        return len(self._host_of) == self.ranks

    @property
    def problem(self) -> str | None:
        """What is wrong with those who have come; None where nothing is, or where it cannot be known yet."""
        asked = f"the job asks for {_count(self.ranks, 'rank')} on {_count(self.hosts, 'host')}"
        if self._size is not None and self._size != self.ranks:
            return f"world: the launcher started {_count(self._size, 'rank')}, {asked}"
        found = self._ranks_by_host()
        if len(found) > self.hosts or self.is_complete and len(found) < self.hosts:
            named = f"{_count(len(found), 'host')} ({join_names(sorted(found))})"
            return f"world: the launcher started ranks on {named}, {asked}"
        return None

    def describe(self) -> str:
        """Return a sentence for the log: which rank is where."""
        places = [f"{_format_ranks(ranks)} on {host}" for host, ranks in self._ranks_by_host().items()]
        shown = ", ".join(places[:8]) + (f" and {len(places) - 8} hosts more" if len(places) > 8 else "")
        return f"{_count(self.ranks, 'rank')} on {_count(self.hosts, 'host')}: {shown}"

    def _ranks_by_host(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = defaultdict(list)
        for rank in sorted(self._host_of):
            found[self._host_of[rank]].append(rank)
        return found


@dataclass(slots=True)
class LaunchMonitor:
    """Ends a launcher that has started something else than it was asked for."""

    log: LauncherLog
    rendezvous: Rendezvous
    stop: StopForwarder
    report: Callable[[str], None] | None = None
    """Told once where the ranks are."""
    _problem: str | None = field(default=None)

    def __post_init__(self) -> None:
        """From now on a stop that comes before the run has begun ends the launcher."""
        self.stop.has_started = lambda: self.has_started

    @property
    def has_started(self) -> bool:
        """Whether all ranks have come, or rank 0 reports: an announcement may be mangled on its way, all are there."""
        return self.rendezvous.is_complete or self.log.last_event is not None

    def take(self, line: Line) -> bool:
        """Take a line; return whether it is for people."""
        if not self.rendezvous.take(line.text):
            self.log.note(line)
            return True
        if self._problem is None and (problem := self.rendezvous.problem):
            self._problem = problem
            self.stop.end_child()
        elif self.rendezvous.failures:
            # Others may wait for it for ever. Usually the launcher notices, and what they still say is of use.
            self.stop.end_child(_LAUNCHER_NOTICE_S)
        elif self._problem is None and self.rendezvous.is_complete and self.report is not None:
            self.report(self.rendezvous.describe())
            self.report = None
        return False

    def check(self) -> None:
        """Raise ``WrongWorld`` if that is why it was ended."""
        if self._problem is not None:
            raise WrongWorld(
                self._problem,
                hint="see whether spec.mpi.implementation names the MPI that the image's programs were built for, "
                "and whether something in the environment keeps the launcher from its host file",
            )


def render_announcement(environment: Mapping[str, str], host: str) -> str:
    """Return the line with which a rank announces itself; alone it is rank 0 of 1."""
    return f"bert-pod/1 event=rank rank={read_rank(environment)} size={read_size(environment)} host={host}"


def render_rank_end(environment: Mapping[str, str], return_code: int) -> str:
    """Return the line with which a rank's end is told. return_code: -n for signal n."""
    return f"bert-pod/1 event=rank_ended rank={read_rank(environment)} code={return_code}"


def join_names(hosts: Iterable[str], limit: int = 8) -> str:
    """Join some names for a sentence: the first ones, and how many more there are."""
    names = list(hosts)
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def _format_ranks(ranks: list[int]) -> str:
    return f"{ranks[0]}-{ranks[-1]}" if len(ranks) > 2 and ranks[-1] - ranks[0] == len(ranks) - 1 else _join(ranks)


def _join(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks)) if len(ranks) < 3 else f"{', '.join(map(str, ranks[:3]))}, ..."


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
