"""How a pod's program ended: exit codes, and the termination record that Kubernetes reads.

0 done, 1 failed, 2 wrong input, 3 stopped on request, 4 a worker was not reached or was lost or storage failed, 128 +
n ended by signal n. Writing or reading the termination record never fails a run.
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

from bert_trainer.errors import EXIT_BAD_INPUT, EXIT_FAILED, EXIT_INFRASTRUCTURE, EXIT_STOPPED, StorageFailed
from bert_trainer.pod.launcher_log import FirstFailure, LauncherLog, find_error_message, find_exception

DEFAULT_TERMINATION_LOG = Path("/dev/termination-log")
MAX_RECORD_BYTES = 3_500
"""Kubernetes cuts a termination message at 4,096 bytes, and cut JSON would be no JSON."""

_SIGNAL_BASE = 128
_MAX_RANK_RECORD_BYTES = 65_536
_MAX_WORD_CHARACTERS = 80  # of a reason or a stage
_MAX_LOG_TAIL_CHARACTERS = 900  # with a sentence before them they fit into a status


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is known of a run besides its launcher's exit code."""

    combines_codes: bool = False
    """The launcher is MPICH's: it combines all ranks' codes bit by bit (1 and 2 give 3) and reports signal n as n."""
    failed_by_signal: int | None = None
    """Of the rank that failed first."""
    rank_exit_code: int | None = None
    """With which that rank failed, as it was told by whom had waited for it; None where a signal ended it."""
    lost_worker: bool = False
    """The launcher says that it has lost a worker. Open MPI 5.0.11 ends with 0 then, others with 137 or 255."""
    lost_peer: bool = False
    """Ranks found another one gone that had told of no failure."""
    ended_midway: bool = False
    """Rank 0 reported progress and then nothing that could be its end."""
    rank_0_exit_code: int | None = None
    """With which rank 0 reported that it fails. Another rank may leave before it and be the one that is counted."""
    reported_stop: bool = False
    """Rank 0 reported that it has stopped."""
    stop_requested: bool = False
    """This container was asked to."""
    never_started: bool = False
    """Not all ranks had come, at the end or when it was asked: nothing was done that could be lost."""


def shell_exit_code(return_code: int) -> int:
    """Turn Python's -n for signal n into a shell's 128 + n."""
    return return_code if return_code >= 0 else _SIGNAL_BASE - return_code


def decide_exit_code(code: int, evidence: Evidence) -> int:
    """Return what the container ends with, given the launcher's exit code, 128 + n for signal n."""
    if evidence.reported_stop:
        # It says so when all is saved; how the others then leave, and whom the launcher counts first, is chance.
        return EXIT_STOPPED
    if evidence.failed_by_signal is not None:
        code = _SIGNAL_BASE + evidence.failed_by_signal
    elif evidence.rank_exit_code is not None and not evidence.lost_worker:
        code = evidence.rank_exit_code
    if evidence.stop_requested and evidence.never_started and code != EXIT_BAD_INPUT:
        return EXIT_STOPPED
    if evidence.combines_codes and code == EXIT_STOPPED and not evidence.stop_requested:
        code = EXIT_FAILED
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
        # Still starting, without a handler: nothing was done that could be lost.
        number = code - _SIGNAL_BASE
        if evidence.combines_codes:
            number &= signal.SIGUSR1  # with what ended the others
        return EXIT_STOPPED if number == signal.SIGUSR1 else code
    return code


def build_record(
    exit_code: int, log: LauncherLog, failure: FirstFailure | None, rank_record: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the termination record: the keys of ``last_words`` and ``firstFailure``.

    rank_record: the record that a rank in this pod has written itself. One that tells of another kind of end than the
    exit code is not believed: the program may have been killed after it had said that all went well.
    """
    if rank_record is not None and (rank_record.get("exitCode") == 0) == (exit_code == 0):
        record = {key: rank_record.get(key) for key in ("reason", "exitCode", "stage", "step", "checkpoint", "message")}
    else:
        reason, message = _explain(exit_code, log, failure)
        checkpoint = log.checkpoint
        record = {"reason": reason, "stage": log.stage, "step": log.step, "checkpoint": checkpoint}
        record["message"] = message
    record["exitCode"] = exit_code
    if failure is not None and exit_code not in (0, EXIT_STOPPED):
        record["firstFailure"] = failure.to_json()
    return record


def render_record(record: Mapping[str, Any]) -> str:
    """Return it as JSON of at most 3,500 bytes; what is too much is cut from the start of the message."""
    # Bytes that are no text have come this far as halves of surrogate pairs, which JSON cannot carry.
    record = {key: _replace_surrogates(value) if isinstance(value, str) else value for key, value in record.items()}
    for key in ("reason", "stage"):
        record[key] = str(record[key])[:_MAX_WORD_CHARACTERS] if record.get(key) else record.get(key)
    message = _replace_surrogates(str(record.get("message") or ""))
    while len(text := _encode({**record, "message": message})) > MAX_RECORD_BYTES:
        if not message:
            # Paths of kilobytes; the reason and the code matter more.
            return json.dumps({"reason": record.get("reason"), "exitCode": record.get("exitCode"), "message": ""})
        excess = len(text) - MAX_RECORD_BYTES
        # A character is up to 4 bytes, or 6 when JSON escapes it.
        message = message[max(1, excess // 6) :]
    return text.decode()


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Write it in place: in a pod the file is a mount."""
    # Outside of a pod nothing is to appear in /dev.
    create = 0 if path.parent == Path("/dev") else os.O_CREAT
    data = render_record(record).encode()
    with contextlib.suppress(OSError), open(os.open(path, os.O_WRONLY | os.O_TRUNC | create, 0o644), "wb") as file:
        file.write(data)


def read_rank_record(path: Path) -> dict[str, Any] | None:
    """Return the record that a rank has written, None where there is none, or something else."""
    try:
        # Whatever the program has put there: a pipe would keep whoever opens it waiting.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            record = json.loads(file.read(_MAX_RANK_RECORD_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _explain(exit_code: int, log: LauncherLog, failure: FirstFailure | None) -> tuple[str, str]:
    """Return the reason, one word, and the message."""
    final = log.final_record or {}
    agrees = log.confirms(exit_code)
    if exit_code in (0, EXIT_STOPPED):
        reason = "Succeeded" if exit_code == 0 else "Stopped"
        return reason, final.get("message", "") if agrees and exit_code else ""
    lines = log.last_lines(failure.rank if failure else None)
    error = find_error_message(lines)
    is_reported = log.rank_0_exit_code == exit_code or error is not None and error[0] == StorageFailed.__name__
    if exit_code == EXIT_INFRASTRUCTURE and not is_reported:
        host = failure.host if failure and failure.host else "a worker"
        rank = "" if failure is None or failure.rank is None else f"rank {failure.rank} on "
        return "WorkerLost", f"the connection to {rank}{host} failed or broke"
    if agrees and exit_code < _SIGNAL_BASE:
        return final.get("reason", _default_reason(exit_code)), final.get("message", "")
    if exit_code < _SIGNAL_BASE and error:
        return error[0] or _default_reason(exit_code), error[1]
    if exit_code < _SIGNAL_BASE and (exception := find_exception(lines)):
        return exception
    reason, tail = _default_reason(exit_code), "\n".join(lines)
    if exit_code <= _SIGNAL_BASE:
        return reason, tail
    return reason, f"{_describe_signal(reason, log, failure)}\n{tail[-_MAX_LOG_TAIL_CHARACTERS:]}".rstrip()


def _describe_signal(name: str, log: LauncherLog, failure: FirstFailure | None) -> str:
    """Return a sentence about a rank that cannot tell what has ended it."""
    rank = "a rank" if failure is None or failure.rank is None else f"rank {failure.rank}"
    host = "" if failure is None or failure.host is None else f" on {failure.host}"
    when = "" if log.step is None else f" after step {log.step} of {log.stage}"
    why = "; most often memory has run out" if name == "SIGKILL" else ""
    return f"{rank}{host} was ended by {name}{when}{why}"


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
