"""How a pod's program ended: exit codes, and the termination record that Kubernetes reads.

0 done, 1 failed, 2 wrong input, 3 stopped on request, 4 infrastructure (a worker not reached or lost, storage failed),
128 + n ended by signal n. The operator retries by these codes: 2 is never retried unchanged, 4 and signals do not count
as the program's own failures. Writing or reading the termination record never fails a run.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_trainer.errors import EXIT_BAD_INPUT, EXIT_FAILED, EXIT_INFRASTRUCTURE, EXIT_STOPPED, NAMED
from bert_trainer.pod.launcher_log import FirstFailure, LauncherLog, find_error_message, find_exception
from bert_trainer.pod.rendezvous import NoProgress

DEFAULT_TERMINATION_LOG = Path("/dev/termination-log")
MAX_RECORD_BYTES = 3_500
"""Kubernetes cuts a termination message at 4,096 bytes, and cut JSON would be no JSON."""

_SIGNAL_BASE = 128
# The program may leave a file of any size where its record should be.
_MAX_RANK_RECORD_BYTES = 65_536
_MAX_WORD_CHARACTERS = 80  # of a reason or a stage
_MAX_LOG_TAIL_CHARACTERS = 900  # together with one sentence before them they fit into the status

_INFRASTRUCTURE_REASONS = [name for name, kind in NAMED.items() if kind.exit_code == EXIT_INFRASTRUCTURE]
"""Of errors that name what else would be taken for a worker that was lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Evidence about a run's end besides its launcher's exit code."""

    combines_codes: bool = False
    """The launcher is MPICH's: its exit code is the bitwise OR of all ranks' codes, with n for signal n."""
    failed_by_signal: int | None = None
    """The signal that ended the rank that failed first."""
    rank_exit_code: int | None = None
    """That rank's exit code, as its ``bert-pod rank`` reported it; None if a signal ended it."""
    made_no_progress: bool = False
    """It was ended because a rank had hung, or a host was silent."""
    lost_worker: bool = False
    """The launcher reports a lost worker. Open MPI 5.0.11 exits with 0 then, others with 137 or 255."""
    lost_peer: bool = False
    """Ranks lost the connection to another one, and none reported a failure of its own."""
    ended_midway: bool = False
    """Rank 0 reported progress, but no end of its run."""
    rank_0_exit_code: int | None = None
    """The exit code in rank 0's last record. Another rank may leave before it and be the one that mpirun counts."""
    reported_stop: bool = False
    """Rank 0 reported that it stopped on request."""
    stop_requested: bool = False
    """This container received a stop signal."""
    never_started: bool = False
    """Not all ranks had announced themselves by the end, or by the stop request: there is no progress to lose."""


def shell_exit_code(return_code: int) -> int:
    """Turn Python's -n for signal n into a shell's 128 + n."""
    return return_code if return_code >= 0 else _SIGNAL_BASE - return_code


def decide_exit_code(code: int, evidence: Evidence) -> int:
    """Return the container's exit code. The order of the rules is their precedence.

    Args:
        code: The launcher's, 128 + n for signal n.
        evidence: What the output of the launcher and its ranks adds to it.
    """
    if evidence.reported_stop:
        # Rank 0 reports this once everything is saved. Which rank leaves first after that, and with which code
        # mpirun then ends, is chance.
        return EXIT_STOPPED
    if evidence.made_no_progress and code != 0:
        return EXIT_INFRASTRUCTURE
    # Which of several codes mpirun passes on differs by MPI. bert-pod rank reports each one exactly.
    if evidence.failed_by_signal is not None:
        code = _SIGNAL_BASE + evidence.failed_by_signal
    elif evidence.rank_exit_code is not None and not evidence.lost_worker:
        code = evidence.rank_exit_code
    if evidence.stop_requested and evidence.never_started and code != EXIT_BAD_INPUT:
        return EXIT_STOPPED
    if evidence.combines_codes and code == EXIT_STOPPED and not evidence.stop_requested:
        code = EXIT_FAILED  # 1 | 2 is 3: a failed rank and one with wrong input, and no stop
    if evidence.rank_0_exit_code is not None and (
        code == EXIT_FAILED or evidence.combines_codes and code < _SIGNAL_BASE
    ):
        code = evidence.rank_0_exit_code
    is_known = evidence.failed_by_signal is not None or evidence.rank_exit_code is not None
    is_lost = evidence.lost_worker or evidence.lost_peer and not is_known
    if is_lost and code not in (EXIT_BAD_INPUT, EXIT_STOPPED):
        return EXIT_INFRASTRUCTURE
    if code == 0 and evidence.ended_midway:
        return EXIT_FAILED
    if evidence.stop_requested and code > _SIGNAL_BASE:
        # SIGUSR1 ended a program that had no handler yet: it was still starting and had nothing to save.
        number = code - _SIGNAL_BASE
        if evidence.combines_codes:
            number &= signal.SIGUSR1  # combined with the signals that ended other ranks
        return EXIT_STOPPED if number == signal.SIGUSR1 else code
    return code


def build_record(
    exit_code: int,
    log: LauncherLog,
    failure: FirstFailure | None,
    rank_record: Mapping[str, Any] | None,
    *,
    no_progress: NoProgress | None = None,
) -> dict[str, Any]:
    """Return the termination record: the keys of ``output/termination.py``, and ``firstFailure``.

    Args:
        exit_code: The container's.
        log: Output of the launcher and of all ranks.
        failure: The rank that failed first, if it is known.
        rank_record: What a rank in this pod wrote itself. It is used if it agrees with the exit code about success:
            the program may have been killed after it wrote that it succeeded.
        no_progress: Why the run was ended, if no rank had failed.
    """
    record: dict[str, Any]
    if no_progress is not None and exit_code == EXIT_INFRASTRUCTURE:
        record = {"reason": no_progress.reason, "stage": log.stage, "step": log.step, "checkpoint": log.checkpoint}
        record["message"] = no_progress.message
    elif rank_record is not None and (rank_record.get("exitCode") == 0) == (exit_code == 0):
        record = {key: rank_record.get(key) for key in ("reason", "exitCode", "stage", "step", "checkpoint", "message")}
    else:
        reason, message = _explain(exit_code, log, failure)
        checkpoint = log.checkpoint
        record = {"reason": reason, "stage": log.stage, "step": log.step, "checkpoint": checkpoint}
        record["message"] = message
    if exit_code not in (0, EXIT_STOPPED) and log.stall:
        record["message"] = f"{record['message'] or 'failed'}{log.stall}"
    record["exitCode"] = exit_code
    if failure is not None and exit_code not in (0, EXIT_STOPPED):
        record["firstFailure"] = failure.to_json()
    return record


def render_record(record: Mapping[str, Any]) -> str:
    """Return the record as JSON of at most ``MAX_RECORD_BYTES``; a longer message loses its start.

    The end of a message says more: the exception stands below its traceback.
    """
    # Output that is no UTF-8 arrives here as lone surrogates (surrogateescape), which cannot be encoded again.
    record = {key: _replace_surrogates(value) if isinstance(value, str) else value for key, value in record.items()}
    for key in ("reason", "stage"):
        record[key] = str(record[key])[:_MAX_WORD_CHARACTERS] if record.get(key) else record.get(key)
    message = _replace_surrogates(str(record.get("message") or ""))
    while len(text := _encode({**record, "message": message})) > MAX_RECORD_BYTES:
        if not message:
            # Even without a message it is too long, say because of a path of kilobytes. Reason and code matter most.
            return json.dumps({"reason": record.get("reason"), "exitCode": record.get("exitCode"), "message": ""})
        excess = len(text) - MAX_RECORD_BYTES
        # A character takes up to 6 bytes, when JSON escapes it: cutting excess / 6 of them never cuts too much.
        message = message[max(1, excess // 6) :]
    return text.decode()


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Write the record in place: in a pod the file is a bind mount, which cannot be replaced by a rename."""
    # In a pod the kubelet has created /dev/termination-log. Elsewhere, as root, it must not appear in /dev.
    create = 0 if path.parent == Path("/dev") else os.O_CREAT
    data = render_record(record).encode()
    with contextlib.suppress(OSError), open(os.open(path, os.O_WRONLY | os.O_TRUNC | create, 0o644), "wb") as file:
        file.write(data)


def read_rank_record(path: Path) -> dict[str, Any] | None:
    """Return the record that a rank wrote; None if there is none, or if the file holds something else."""
    try:
        # The program can put anything there. Opening a FIFO would block until somebody writes to it.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            record = json.loads(file.read(_MAX_RANK_RECORD_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _explain(exit_code: int, log: LauncherLog, failure: FirstFailure | None) -> tuple[str, str]:
    """Return the reason (one word) and the message; the most specific source wins."""
    final = log.final_record
    agrees = final is not None and log.confirms(exit_code)
    message = final.text("message") or "" if final is not None else ""
    if exit_code in (0, EXIT_STOPPED):
        reason = "Succeeded" if exit_code == 0 else "Stopped"
        return reason, message if agrees and exit_code else ""
    lines = log.last_lines(failure.rank if failure else None)
    error, exception = find_error_message(lines), find_exception(lines)
    if error is None and exception is None:
        error = _error_of_rank_0(exit_code, log)
    is_reported = log.rank_0_exit_code == exit_code or error is not None and error[0] in _INFRASTRUCTURE_REASONS
    if exit_code == EXIT_INFRASTRUCTURE and not is_reported:
        host = failure.host if failure and failure.host else "a worker"
        rank = "" if failure is None or failure.rank is None else f"rank {failure.rank} on "
        return "WorkerLost", f"lost the connection to {rank}{host}"
    if final is not None and agrees and exit_code < _SIGNAL_BASE:
        return final.text("reason") or _default_reason(exit_code), message
    if exit_code < _SIGNAL_BASE and error:
        return error[0] or _default_reason(exit_code), error[1]
    if exit_code < _SIGNAL_BASE and exception:
        return exception
    reason, tail = _default_reason(exit_code), "\n".join(lines)
    if exit_code <= _SIGNAL_BASE:
        return reason, tail
    return reason, f"{_describe_signal(reason, log, failure)}\n{tail[-_MAX_LOG_TAIL_CHARACTERS:]}".rstrip()


def _error_of_rank_0(exit_code: int, log: LauncherLog) -> tuple[str | None, str] | None:
    """Return what rank 0 has ended the run for, as ``find_error_message`` does; None where that fits no such exit code.

    A rank that leaves because of it says nothing, has the same exit code, and may be the first one to be seen.
    """
    if not log.has_own_error(0):
        return None
    # What bert-pod says beside a program that runs, as of stacks that it could not read, ends no run.
    error = find_error_message([line for line in log.last_lines(0) if not line.startswith("bert-pod: ")])
    if error is None:
        return None
    # Trouble with files has the code of the error that it replaces before the first step, EXIT_BAD_INPUT mostly.
    code = EXIT_FAILED if error[0] is None else NAMED[error[0]].exit_code
    return error if exit_code in (EXIT_BAD_INPUT, code) else None


def _describe_signal(name: str, log: LauncherLog, failure: FirstFailure | None) -> str:
    """Return a sentence about a rank that a signal ended: it had no chance to report anything itself."""
    rank = "a rank" if failure is None or failure.rank is None else f"rank {failure.rank}"
    host = "" if failure is None or failure.host is None else f" on {failure.host}"
    when = "" if log.step is None else f" after step {log.step} of {log.stage}"
    why = "; most often out of memory" if name == "SIGKILL" else ""
    return f"{rank}{host} was killed by {name}{when}{why}"


def _default_reason(exit_code: int) -> str:
    if exit_code == EXIT_BAD_INPUT:
        return "InputError"
    number = exit_code - _SIGNAL_BASE
    if number in {int(known) for known in signal.Signals}:
        return signal.Signals(number).name
    return "Failed"


def _encode(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, ensure_ascii=False).encode(errors="replace")


def _replace_surrogates(value: str) -> str:
    return value.encode(errors="replace").decode()
