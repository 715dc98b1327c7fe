"""The launcher's log as evidence: which records belong to this attempt, and which process failed first.

Rank 0 may run in another pod than the launcher, so its lines are all that the launcher learns of it. A program may
also print the log of another job, or imitate our records in part: only those of this job and attempt count. Three
sources say who failed first: ``bert-pod rank``, which reports how its program ended, the MPI launcher's banner, and
the ranks' own messages. None is complete: a rank whose peer was killed may abort before anything noticed that death.
"""

from __future__ import annotations

import json
import re
import signal
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from bert_trainer.errors import EXIT_STOPPED, NAMED
from bert_trainer.output.progress import PREFIX, parse_line
from bert_trainer.pod.mpi import short_name
from bert_trainer.pod.rank_output import Line

_PROGRAMS = ("bert-train", "bert-data")
_MODULE = "bert_trainer"

_MAX_KEPT_LINES = 20
_MAX_LINE_CHARACTERS = 1_000  # characters; a longer one says nothing more

_FINAL_EVENTS = {"succeeded": 0, "stopped": EXIT_STOPPED}
# With one of these a run may end well: the trainer's last record, and that of the preparation.
_SUCCESS_EVENTS = ("succeeded", "stage_finished")
_STEP = re.compile(r"[0-9]{1,15}")
_FAILURE_CODES = ("1", "2", "4")

_ERROR_LINE = re.compile(r"bert-(?:train|data|pod): (.+)")
_EXCEPTION_LINE = re.compile(r"([A-Za-z_][A-Za-z0-9_.]*)(?:: (.*))?")
_TRACEBACK = "Traceback (most recent call last):"
_BANNER_RULE = re.compile(r"[-=]{60,}")
_MACHINE_LINE = re.compile(r"rank \d+ on \S+: ")  # what a rank has got of its machine, before it begins

# Open MPI wraps its sentences at 80 characters, so white space is any.
_OPEN_MPI_SIGNAL = re.compile(r"process rank (\d+) with PID \d+ on node (\S+) exited on\s+signal (\d+)")
_OPEN_MPI_CODE = re.compile(r"Process name:\s+\[.*,(\d+)\]\s+Exit code:\s+(\d+)")
_INTEL_SIGNAL = re.compile(r"RANK (\d+) PID \d+ RUNNING AT (\S+)\s+=\s+KILLED BY SIGNAL: (\d+)")
_MPICH_END = re.compile(r"= +PID \d+ RUNNING AT (\S+)\s+=\s+EXIT CODE: (\d+)")
_MPICH_SIGNAL = re.compile(r"EXIT STRING: .*\(signal (\d+)\)")

# What launchers say when a worker vanishes or cannot be used; the group, if any, is its name. The last one is ssh's.
_WORKER_LOST = (
    re.compile(r"A daemon failed to report back after being spawned[\s\S]*Remote host:\s+(\S+)"),
    re.compile(r"unable to reliably start one or more daemons"),
    re.compile(r"lost communication with a remote daemon[\s\S]*Remote daemon:\s+\S+ on node (\S+)"),
    re.compile(r"lost communication with a remote daemon|daemon has unexpectedly failed after launch"),
    re.compile(r"Downstream from host (\S+) exited abnormally"),
    re.compile(r"control_cb .*: assert \(!closed\) failed"),
    re.compile(r"Connection to (\S+) closed by remote host"),
)
# What a rank of Open MPI says whose peer has gone; it may do so, and abort, before the launcher notices that death.
_PEER_GONE = re.compile(
    r"MPI communication peer process has unexpectedly disconnected[\s\S]*?Peer host:\s+(\S+)",
)
# The same from any MPI. Wrong use of MPI has words of its own: MPI_ERR_TRUNCATE, "Invalid rank".
_PEER_LOST = re.compile(
    r"MPI communication peer process has unexpectedly disconnected"
    r"|\*\*\* An error occurred in Socket closed"
    r"|\*\*\* (?:Unknown error|MPI_ERR_(?:OTHER|INTERN|UNKNOWN|PROC_FAILED|REVOKED)\b)"
    r"|Fatal error in \w+: (?:Other MPI error|Unknown error class|Internal MPI error|.*(?i:process failed))"
    r"|process_vm_readv\(pid=\d+.*No such process"
)
# What ranks say besides that where their peers have gone, by themselves or not.
_PEER_FAILED = re.compile(
    r"HorovodInternalError|mpi4py\.MPI\.Exception: MPI_ERR_(?:OTHER|INTERN|UNKNOWN|PROC_FAILED)"
    r"|Another rank has ended; its own message says why"
)


@dataclass(frozen=True, slots=True)
class RecordSource:
    """Who writes the records of this pod."""

    job: str | None = None
    """Uid; None: not known, as where no operator has made the pod."""
    attempt: str = "1"
    is_ours: bool = True
    """The program is the trainer: a run of it that ends well says so."""

    def matches(self, fields: Mapping[str, str]) -> bool:
        """Tell whether a record is this attempt's."""
        if self.job is None:
            return fields.get("attempt", self.attempt) == self.attempt
        return (fields.get("job"), fields.get("attempt")) == (self.job, self.attempt)


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstFailure:
    """The process that ended badly before all others, as far as the launcher names it."""

    rank: int | None = None
    host: str | None = None
    exit_code: int | None = None
    signal: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return what is known."""
        named = {"rank": self.rank, "host": self.host, "exitCode": self.exit_code, "signal": self.signal}
        return {key: value for key, value in named.items() if value is not None}


@dataclass(slots=True)
class LauncherLog:
    """Listens to all lines. Of records it believes those of rank 0 that are this attempt's."""

    source: RecordSource = RecordSource()
    stage: str | None = None
    step: int | None = None
    checkpoint: str | None = None
    """Path of the newest one that was reported."""
    final_record: dict[str, str] | None = None
    """The record with which rank 0 took its leave."""
    last_event: str | None = None
    _lines: dict[int | None, deque[str]] = field(default_factory=dict)
    _all_ranks: deque[str] = field(default_factory=lambda: deque(maxlen=_MAX_KEPT_LINES))

    def note(self, line: Line) -> None:
        """Take one line."""
        text = line.text[:_MAX_LINE_CHARACTERS]
        if line.text.startswith(PREFIX + " "):
            fields = parse_line(line.text) if line.rank == 0 else None
            if fields is not None and self.source.matches(fields):
                self._add_record(fields)
        elif text.strip():
            # The launcher's last words stand in a frame of many lines.
            self._lines.setdefault(line.rank, deque(maxlen=_MAX_KEPT_LINES * 3)).append(text)
            if line.rank is not None:
                self._all_ranks.append(text)

    def _add_record(self, fields: dict[str, str]) -> None:
        event = fields["event"]
        self.last_event = event
        self.stage = fields.get("stage", self.stage)
        if _STEP.fullmatch(fields.get("step", "")):
            self.step = int(fields["step"])
        if event == "checkpoint":
            self.checkpoint = fields.get("path", self.checkpoint)
        if event in (*_FINAL_EVENTS, "failed"):
            self.final_record = fields

    @property
    def reported_stop(self) -> bool:
        """Whether rank 0 said that it stopped."""
        return self.final_record is not None and self.final_record["event"] == "stopped"

    def has_stopped(self, exit_code: int, *, stop_requested: bool) -> bool:
        """Tell whether rank 0 is believed that it stopped.

        A program that is not ours, that nobody has asked to stop and that ends with 0 has succeeded.
        """
        is_believed = self.source.is_ours or exit_code != 0 or stop_requested or self.has_lost_worker
        return self.reported_stop and is_believed

    def confirms(self, exit_code: int) -> bool:
        """Tell whether rank 0's last record stands for this exit code; "failed" stands for every other code."""
        event = (self.final_record or {}).get("event")
        return event is not None and (
            _FINAL_EVENTS.get(event) == exit_code or event == "failed" and exit_code not in (0, EXIT_STOPPED)
        )

    @property
    def rank_0_exit_code(self) -> int | None:
        """The exit code with which rank 0 said that it fails."""
        record = self.final_record or {}
        code = record.get("exit_code", "") if record.get("event") == "failed" else ""
        return int(code) if code in _FAILURE_CODES else None

    @property
    def ended_midway(self) -> bool:
        """Whether rank 0 reported something, and nothing that could be the end of a good run of ours."""
        return self.source.is_ours and self.last_event is not None and self.last_event not in _SUCCESS_EVENTS

    @property
    def has_lost_worker(self) -> bool:
        """Whether the launcher says that a worker has vanished."""
        return self._match_lost_worker() is not None

    @property
    def has_lost_peer(self) -> bool:
        """Whether ranks found another one gone, and no rank told of a failure: something has killed it."""
        if (self.final_record or {}).get("event") == "failed" or any(self.has_own_error(rank) for rank in self._lines):
            return False
        return any(_PEER_LOST.search(self._text_of(rank)) for rank in self._lines)

    def has_own_error(self, rank: int | None) -> bool:
        """Tell whether a rank told of a failure of its own."""
        text = self._text_of(rank)
        return _ERROR_LINE.search(text) is not None or _TRACEBACK in text and _PEER_FAILED.search(text) is None

    def only_lost_peer(self, rank: int | None) -> bool:
        """Tell whether a rank says nothing but that it has lost another one."""
        text = self._text_of(rank)
        is_lost = _PEER_LOST.search(text) or _PEER_FAILED.search(text)
        return is_lost is not None and not self.has_own_error(rank)

    def _find_lost_peer(self) -> str | None:
        """Return the host of a rank that others found gone."""
        texts = map(self._text_of, self._lines)
        match = next((match for text in texts if (match := _PEER_GONE.search(text))), None)
        return None if match is None or not self.has_lost_peer else short_name(match[1])

    def _match_lost_worker(self) -> re.Match[str] | None:
        text = self._text_of(None)
        return next((match for pattern in _WORKER_LOST if (match := pattern.search(text))), None)

    def _text_of(self, rank: int | None) -> str:
        """Return what a rank said last, None: the launcher."""
        return "\n".join(self._lines.get(rank, ()))

    def named_failure(self, hosts: tuple[str, ...] = (), slots: int = 1) -> FirstFailure | None:
        """Return what the launcher names. hosts, slots: where ranks are, in the order of the host file."""
        if lost := self._match_lost_worker():
            return FirstFailure(host=short_name(lost[1])) if lost.re.groups else None
        failure = _parse_banner(self._text_of(None))
        if (failure is None or failure.signal is None) and (peer := self._find_lost_peer()) is not None:
            return FirstFailure(rank=hosts.index(peer) if slots == 1 and peer in hosts else None, host=peer)
        if failure is None or failure.host is not None or failure.rank is None:
            return failure
        place = failure.rank // slots
        host = hosts[place] if place < len(hosts) else None
        return FirstFailure(rank=failure.rank, host=host, exit_code=failure.exit_code, signal=failure.signal)

    def last_lines(self, rank: int | None) -> list[str]:
        """Return the last plain lines of a rank, of all of them where it said nothing, else the launcher's."""
        own = deque[str]() if rank is None else self._lines.get(rank)
        lines = own or self._all_ranks or self._lines.get(None) or deque[str]()
        plain = [line for line in lines if not (_BANNER_RULE.fullmatch(line) or _MACHINE_LINE.match(line))]
        return plain[-_MAX_KEPT_LINES:]


def read_record_source(program: Sequence[str], environment: Mapping[str, str]) -> RecordSource:
    """Return what is known of who writes records here."""
    return RecordSource(
        job=_read_uid(environment.get("BERT_RUN_CONFIG")),
        attempt=environment.get("BERT_ATTEMPT", "1"),
        is_ours=_is_ours(program),
    )


def find_first_failure(
    reported: Sequence[FirstFailure],
    log: LauncherLog,
    *,
    hosts: tuple[str, ...],
    slots: int,
    banner_names_killed: bool = False,
) -> FirstFailure | None:
    """Return the process that has brought the others down, None where nobody names one.

    Args:
        reported: Failed ranks as ``bert-pod rank`` reported them, in that order.
        log: Output of the launcher and of all ranks.
        hosts: Pods that run ranks, in the order of the host file.
        slots: Ranks per host.
        banner_names_killed: The launcher's banner also names ranks that the launcher killed itself.
    """
    named = log.named_failure(hosts, slots)
    # Launchers end whoever tells of it, and a rank with it; what has killed the program alone came from outside.
    killed = next((end for end in reported if end.signal == signal.SIGKILL), None)
    if killed is not None or log.has_lost_worker:
        return killed or named
    is_named_by_signal = named is not None and named.signal is not None and not banner_names_killed
    for end in reported:
        if end.exit_code is None or log.only_lost_peer(end.rank):
            continue
        if not is_named_by_signal or log.has_own_error(end.rank):
            return end
    # Where the banner also names whom the launcher has ended, a rank that told of a signal of its own comes first.
    own = [end for end in reported if end.signal not in (None, signal.SIGTERM)] if banner_names_killed else []
    by_signal = next((end for end in (*own, named, *reported) if end is not None and end.signal is not None), None)
    if by_signal is not None or named is not None or log.has_lost_peer or not reported:
        return by_signal or named
    return reported[0]


def find_error_message(lines: list[str]) -> tuple[str | None, str] | None:
    """Return the last sentence that a program of ours ended with, with its hint, and the reason if it names one."""
    for number in range(len(lines) - 1, -1, -1):
        if match := _ERROR_LINE.fullmatch(lines[number]):
            following = lines[number + 1 : number + 3]
            hints = [line for line in following[:1] if line.startswith("hint: ")]
            reasons = [line.removeprefix("reason: ") for line in following if line.startswith("reason: ")]
            reason = next((name for name in reasons if name in NAMED), None)
            return reason, "\n".join([match[1], *hints])
    return None


def find_exception(lines: list[str]) -> tuple[str, str] | None:
    """Return type and text of the exception of the last traceback."""
    starts = [number for number, line in enumerate(lines) if line == _TRACEBACK]
    for line in lines[starts[-1] + 1 :] if starts else []:
        if not line.startswith(" ") and (match := _EXCEPTION_LINE.fullmatch(line)):
            return match[1].rpartition(".")[2], match[2] or ""
    return None


def _is_ours(program: Sequence[str]) -> bool:
    if PurePath(program[0]).name in _PROGRAMS:
        return True
    return "-m" in program[:-1] and program[program.index("-m") + 1].partition(".")[0] == _MODULE


def _read_uid(run_config: str | None) -> str | None:
    """Return the job's uid, None where there is none to be read: the program itself says what is wrong with it."""
    if run_config is None:
        return None
    try:
        uid = json.loads(Path(run_config).read_bytes())["job"]["uid"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return uid if isinstance(uid, str) else None


def _parse_banner(text: str) -> FirstFailure | None:
    if match := _OPEN_MPI_SIGNAL.search(text):
        return FirstFailure(rank=int(match[1]), host=match[2], signal=int(match[3]))
    if match := _OPEN_MPI_CODE.search(text):
        return FirstFailure(rank=int(match[1]), exit_code=int(match[2]))
    if match := _INTEL_SIGNAL.search(text):
        return FirstFailure(rank=int(match[1]), host=match[2], signal=int(match[3]))
    if match := _MPICH_END.search(text):
        if ended := _MPICH_SIGNAL.search(text):
            return FirstFailure(host=match[1], signal=int(ended[1]))
        return FirstFailure(host=match[1], exit_code=int(match[2]))
    return None
