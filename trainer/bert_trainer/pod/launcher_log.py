"""The launcher's log as evidence: which records belong to this attempt, and which process failed first.

Rank 0 may run in another pod than the launcher, so its output is all that the launcher learns of it. A program may
also print the log of another job, or imitate our records in part: only those of this job and attempt count.

Three sources say who failed first: ``bert-pod rank``, which reports how its program ended; the banner that mpirun
prints; and the ranks' own messages. None is complete. A rank whose peer was killed may abort before anything noticed
that death, and then the banner names the rank that aborted.
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

from bert_job.progress import (
    ATTEMPT_VARIABLE,
    ProgressRecord,
    Value,
    format_line,
    parse_progress_line,
    starts_like_record,
)
from bert_trainer.errors import EXIT_STOPPED, NAMED, PEER_ENDED
from bert_trainer.pod.mpi import short_name
from bert_trainer.pod.rank_output import Line

# Programs that end every good run with a record. Of others an exit code of 0 is enough.
_PROGRAMS = ("bert-train", "bert-data")
_MODULE = "bert_trainer"

_MAX_KEPT_LINES = 20
_MAX_KEPT_CHARACTERS = 1_000
_MAX_MISSING, _MAX_SHOWN = 4096, 8  # ranks

_FINAL_EVENTS = {"succeeded": 0, "stopped": EXIT_STOPPED}
# Last records of a run that ended well: the trainer's, and that of a dataset's preparation.
_SUCCESS_EVENTS = ("succeeded", "stage_finished")
_FAILURE_CODES = ("1", "2", "4")  # those that rank 0 may claim; anything else in its record is not believed

_ERROR_LINE = re.compile(r"bert-(?:train|data|pod): (.+)")
_EXCEPTION_LINE = re.compile(r"([A-Za-z_][A-Za-z0-9_.]*)(?:: (.*))?")
_TRACEBACK = "Traceback (most recent call last):"
_BANNER_RULE = re.compile(r"[-=]{60,}")
# The settings that each rank logs as it starts. Without this exception they would explain why a rank was killed early.
_MACHINE_LINE = re.compile(r"rank \d+ on \S+: ")

# Banners of the MPI launchers. Open MPI wraps its sentences at 80 characters: a line end may stand for any blank.
_OPEN_MPI_SIGNAL = re.compile(r"process rank (\d+) with PID \d+ on node (\S+) exited on\s+signal (\d+)")
_OPEN_MPI_CODE = re.compile(r"Process name:\s+\[.*,(\d+)\]\s+Exit code:\s+(\d+)")
_INTEL_SIGNAL = re.compile(r"RANK (\d+) PID \d+ RUNNING AT (\S+)\s+=\s+KILLED BY SIGNAL: (\d+)")
_MPICH_END = re.compile(r"= +PID \d+ RUNNING AT (\S+)\s+=\s+EXIT CODE: (\d+)")
_MPICH_SIGNAL = re.compile(r"EXIT STRING: .*\(signal (\d+)\)")

# What launchers print when a worker vanishes or cannot be used; the group, if any, is its name. In this order: Open MPI
# (four), Hydra of MPICH and Intel MPI (two), ssh. A pattern with a name precedes the same message without one.
_WORKER_LOST = (
    re.compile(r"A daemon failed to report back after being spawned[\s\S]*Remote host:\s+(\S+)"),
    re.compile(r"unable to reliably start one or more daemons"),
    re.compile(r"lost communication with a remote daemon[\s\S]*Remote daemon:\s+\S+ on node (\S+)"),
    re.compile(r"lost communication with a remote daemon|daemon has unexpectedly failed after launch"),
    re.compile(r"Downstream from host (\S+) exited abnormally"),
    re.compile(r"control_cb .*: assert \(!closed\) failed"),
    re.compile(r"Connection to (\S+) closed by remote host"),
)
# Horovod's stall inspector, on rank 0, in several lines: this one, a heading, and a line for every rank that it misses,
# with the collectives that others wait in. It tells nothing where a whole process is stopped: it then waits for that
# one's answer itself.
_STALLED = re.compile(
    r"tensors were submitted to be reduced.* waiting for remainder of ranks for more than \d+ seconds"
)
_STALLED_HEADING = "Missing ranks:"
_STALLED_RANK = re.compile(r"(\d{1,9}): \[.*")

# A rank of Open MPI whose peer has died prints this and aborts, sometimes before mpirun notices that death.
_PEER_GONE = re.compile(
    r"MPI communication peer process has unexpectedly disconnected[\s\S]*?Peer host:\s+(\S+)",
)
# The same from torch.distributed: Gloo's, and NCCL's where it says that the other end has gone.
_TORCH_PEER_LOST = (
    r"gloo/transport/tcp/\S+\] (?:Connection closed by peer|Read error .*reset by peer|writev\(\) failed .*Broken pipe)"
    r"|\bncclRemoteError\b"
)
# The same from any MPI, and from our own program by torch.distributed, which prints no more of it. Wrong use of MPI has
# other messages, such as MPI_ERR_TRUNCATE or "Invalid rank", and must not match: it is the program's own failure.
# process_vm_readv is how ranks of one machine read each other's memory.
_PEER_LOST = re.compile(
    r"MPI communication peer process has unexpectedly disconnected"
    r"|\*\*\* An error occurred in Socket closed"
    r"|\*\*\* (?:Unknown error|MPI_ERR_(?:OTHER|INTERN|UNKNOWN|PROC_FAILED|REVOKED)\b)"
    r"|Fatal error in \w+: (?:Other MPI error|Unknown error class|Internal MPI error|.*(?i:process failed))"
    r"|process_vm_readv\(pid=\d+.*No such process"
    rf"|{_TORCH_PEER_LOST}|{re.escape(PEER_ENDED)}"
)
# Follow-up errors of a rank whose peer has left, killed or not: they never name the cause.
_PEER_FAILED = re.compile(
    r"HorovodInternalError|mpi4py\.MPI\.Exception: MPI_ERR_(?:OTHER|INTERN|UNKNOWN|PROC_FAILED)"
    rf"|{_TORCH_PEER_LOST}|{re.escape(PEER_ENDED)}"
)


@dataclass(frozen=True, slots=True)
class RecordSource:
    """Identity that a record must have to be this attempt's."""

    job: str | None = None
    """Uid; None if it is not known, because no operator created the pod."""
    attempt: str = "1"
    is_ours: bool = True
    """The program is the trainer or the dataset builder, which end every good run with a record."""

    def matches(self, record: ProgressRecord) -> bool:
        """Return whether a record is this attempt's."""
        if self.job is None:
            return record.attempt is None or str(record.attempt) == self.attempt
        return (record.job, str(record.attempt)) == (self.job, self.attempt)

    def render_record(self, event: str, **fields: Value) -> str:
        """Return a record of this attempt."""
        return format_line({"event": event, **fields, "job": self.job, "attempt": self.attempt})


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstFailure:
    """The process that failed first, as far as known."""

    rank: int | None = None
    host: str | None = None
    exit_code: int | None = None
    signal: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return ``firstFailure`` of the termination record: what is known, nothing else."""
        named = {"rank": self.rank, "host": self.host, "exitCode": self.exit_code, "signal": self.signal}
        return {key: value for key, value in named.items() if value is not None}


@dataclass(slots=True)
class LauncherLog:
    """Parses the output of the launcher and all ranks line by line; keeps each one's last lines.

    Believes records of rank 0 alone, and only those of this job and attempt.
    """

    source: RecordSource = RecordSource()
    stage: str | None = None
    step: int | None = None
    checkpoint: str | None = None
    """Path of the newest checkpoint that rank 0 reported."""
    final_record: ProgressRecord | None = None
    """Rank 0's last record: that it succeeded, stopped or failed."""
    last_event: str | None = None
    missing_ranks: frozenset[int] = frozenset()
    """Those that Horovod's stall check has named since the last step."""
    _reads_missing: bool = False
    _lines: dict[int | None, deque[str]] = field(default_factory=dict)
    _all_ranks: deque[str] = field(default_factory=lambda: deque(maxlen=_MAX_KEPT_LINES))

    def note(self, line: Line) -> None:
        """Add one line."""
        # Only cut for what is kept: a cut record could read as another, valid one.
        text = line.text[:_MAX_KEPT_CHARACTERS]
        if starts_like_record(line.text):
            record = parse_progress_line(line.text) if line.rank == 0 else None
            if record is not None and self.source.matches(record):
                self._add_record(record)
        elif text.strip():
            if line.rank == 0:
                self._note_stall(text)
            # More than is shown: banners of launchers spend many lines on rules and explanations.
            self._lines.setdefault(line.rank, deque(maxlen=_MAX_KEPT_LINES * 3)).append(text)
            if line.rank is not None:
                self._all_ranks.append(text)

    def _note_stall(self, text: str) -> None:
        if _STALLED.search(text):
            self.missing_ranks, self._reads_missing = frozenset(), True
        elif self._reads_missing and (match := _STALLED_RANK.fullmatch(text)):
            # Bounded: a program may print such lines without end.
            if len(self.missing_ranks) < _MAX_MISSING:
                self.missing_ranks |= {int(match[1])}
        else:
            self._reads_missing = self._reads_missing and text.strip() == _STALLED_HEADING

    @property
    def stall(self) -> str:
        """Ranks that Horovod reports as missing, as the end of a sentence; empty if none."""
        if not self.missing_ranks:
            return ""
        shown = ", ".join(map(str, sorted(self.missing_ranks)[:_MAX_SHOWN]))
        more = f" and {len(self.missing_ranks) - _MAX_SHOWN} more" if len(self.missing_ranks) > _MAX_SHOWN else ""
        return f"; Horovod's stall check misses rank {shown}{more}"

    def _add_record(self, record: ProgressRecord) -> None:
        self.last_event = record.event
        self.stage = record.stage if record.stage is not None else self.stage
        if (step := record.count("step")) is not None:
            self.step = step
        if record.event == "progress":
            self.missing_ranks = frozenset()  # all have come
        if record.event == "checkpoint":
            self.checkpoint = record.text("path") or self.checkpoint
        if record.event in (*_FINAL_EVENTS, "failed"):
            self.final_record = record

    @property
    def final_event(self) -> str | None:
        """Event of rank 0's last record; None without any."""
        return None if self.final_record is None else self.final_record.event

    @property
    def reported_stop(self) -> bool:
        """Whether rank 0's last record reports a stop."""
        return self.final_event == "stopped"

    def has_stopped(self, exit_code: int, *, stop_requested: bool) -> bool:
        """Return whether that record is trusted.

        Another program than ours that exits with 0, and that nobody asked to stop, has succeeded whatever it printed.
        """
        is_believed = self.source.is_ours or exit_code != 0 or stop_requested or self.has_lost_worker
        return self.reported_stop and is_believed

    def confirms(self, exit_code: int) -> bool:
        """Return whether rank 0's last record agrees with an exit code; "failed" agrees with all but 0 and 3."""
        event = self.final_event
        return event is not None and (
            _FINAL_EVENTS.get(event) == exit_code or event == "failed" and exit_code not in (0, EXIT_STOPPED)
        )

    @property
    def rank_0_exit_code(self) -> int | None:
        """The exit code that rank 0 reported with its failure."""
        code = self.final_record.text("exit_code") if self.final_record is not None else None
        return int(code) if self.final_event == "failed" and code in _FAILURE_CODES and code is not None else None

    @property
    def ended_midway(self) -> bool:
        """Whether a program of ours reported something, but not that it ended well."""
        return self.source.is_ours and self.last_event is not None and self.last_event not in _SUCCESS_EVENTS

    @property
    def has_lost_worker(self) -> bool:
        """Whether the launcher reports that it lost a worker."""
        return self._match_lost_worker() is not None

    @property
    def has_lost_peer(self) -> bool:
        """Whether ranks lost the connection to another one and none reported a failure: something killed it."""
        if self.final_event == "failed" or any(self.has_own_error(rank) for rank in self._lines):
            return False
        return any(_PEER_LOST.search(self._text_of(rank)) for rank in self._lines)

    def has_own_error(self, rank: int | None) -> bool:
        """Return whether a rank printed an error that is not a consequence of another rank's end."""
        text = self._text_of(rank)
        return _ERROR_LINE.search(text) is not None or _TRACEBACK in text and _PEER_FAILED.search(text) is None

    def only_lost_peer(self, rank: int | None) -> bool:
        """Return whether all that a rank printed of a failure is that it lost another rank."""
        text = self._text_of(rank)
        is_lost = _PEER_LOST.search(text) or _PEER_FAILED.search(text)
        return is_lost is not None and not self.has_own_error(rank)

    def _find_lost_peer(self) -> str | None:
        """Return the host of a rank that others lost the connection to."""
        texts = map(self._text_of, self._lines)
        match = next((match for text in texts if (match := _PEER_GONE.search(text))), None)
        return None if match is None or not self.has_lost_peer else short_name(match[1])

    def _match_lost_worker(self) -> re.Match[str] | None:
        # Only in the launcher's own lines: a rank may print such a message about something else.
        text = self._text_of(None)
        return next((match for pattern in _WORKER_LOST if (match := pattern.search(text))), None)

    def _text_of(self, rank: int | None) -> str:
        """Return the last lines of a rank; None: of the launcher."""
        return "\n".join(self._lines.get(rank, ()))

    def named_failure(self, hosts: tuple[str, ...] = (), slots: int = 1) -> FirstFailure | None:
        """Return the failed process that the launcher's banner, or a rank that lost its peer, names.

        Args:
            hosts: Pods that run ranks, in the order of the host file.
            slots: Ranks per host. Launchers fill hosts in this order, so rank r runs on host r // slots.
        """
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
        """Return the last lines of a rank; if it printed none, those of all ranks, else those of the launcher."""
        own = deque[str]() if rank is None else self._lines.get(rank)
        lines = own or self._all_ranks or self._lines.get(None) or deque[str]()
        plain = [line for line in lines if not (_BANNER_RULE.fullmatch(line) or _MACHINE_LINE.match(line))]
        return plain[-_MAX_KEPT_LINES:]


def read_record_source(program: Sequence[str], environment: Mapping[str, str]) -> RecordSource:
    """Return which records are those of this pod's run."""
    return RecordSource(
        job=_read_uid(environment.get("BERT_RUN_CONFIG")),
        attempt=environment.get(ATTEMPT_VARIABLE, "1"),
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
    """Return the process that brought the others down; None if none is named.

    Args:
        reported: Failed ranks as ``bert-pod rank`` reported them, in that order.
        log: Output of the launcher and of all ranks.
        hosts: Pods that run ranks, in the order of the host file.
        slots: Ranks per host.
        banner_names_killed: The launcher's banner also names ranks that the launcher killed itself.
    """
    # Which process mpirun blames for a killed rank is partly chance. Of 16 kills each of one of two ranks that reduced
    # over TCP, Open MPI 5.0.11 ended 3 with exit code 14, of a peer that had aborted first, and Intel MPI 2021.17 ended
    # 8 with 255. By the rules below, 0 of 100 kills were misjudged with each of the MPIs (make test-stops).
    # Not covered: under MPICH 5.0.2 the peer of a rank that leaves may crash (signal 11) before that end is reported.
    named = log.named_failure(hosts, slots)
    if named is not None and named.signal is None and log.only_lost_peer(named.rank):
        named = None  # the first that left, because another had gone with its pod
    # When a launcher ends a rank, it ends the ``bert-pod rank`` that would report it as well. A reported SIGKILL
    # therefore came from elsewhere, most often from the kernel's OOM killer, and outweighs whoever failed after it.
    killed = next((end for end in reported if end.signal == signal.SIGKILL), None)
    if killed is not None or log.has_lost_worker:
        return killed or named
    is_named_by_signal = named is not None and named.signal is not None and not banner_names_killed
    for end in reported:
        if end.exit_code is None or log.only_lost_peer(end.rank):
            continue
        if not is_named_by_signal or log.has_own_error(end.rank):
            return end
    # Where the banner also names ranks that the launcher itself ended, a signal that a rank reported comes before it;
    # SIGTERM may have come from the launcher as well.
    own = [end for end in reported if end.signal not in (None, signal.SIGTERM)] if banner_names_killed else []
    by_signal = next((end for end in (*own, named, *reported) if end is not None and end.signal is not None), None)
    if by_signal is not None or named is not None or log.has_lost_peer or not reported:
        return by_signal or named
    return reported[0]


def find_error_message(lines: list[str]) -> tuple[str | None, str] | None:
    """Return the reason, if it is one of ``NAMED``, and the message with its hint of the last error of our programs."""
    for number in range(len(lines) - 1, -1, -1):
        if match := _ERROR_LINE.fullmatch(lines[number]):
            following = lines[number + 1 : number + 3]
            hints = [line for line in following[:1] if line.startswith("hint: ")]
            reasons = [line.removeprefix("reason: ") for line in following if line.startswith("reason: ")]
            reason = next((name for name in reasons if name in NAMED), None)
            return reason, "\n".join([match[1], *hints])
    return None


def find_exception(lines: list[str]) -> tuple[str, str] | None:
    """Return the type and the text of the exception below the last traceback."""
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
    """Return the job's uid; None if it cannot be read: the program itself will report what is wrong with the file."""
    if run_config is None:
        return None
    try:
        uid = json.loads(Path(run_config).read_bytes())["job"]["uid"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return uid if isinstance(uid, str) else None


def _parse_banner(text: str) -> FirstFailure | None:
    # Open MPI names the host only with a signal, MPICH never names the rank.
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
