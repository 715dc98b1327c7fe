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
from bert_trainer.pod.launcher_log import FirstFailure, Story, find_raised, find_told

DEFAULT_TERMINATION_LOG = Path("/dev/termination-log")
MAX_RECORD_BYTES = 3_500
"""Kubernetes cuts a termination message at 4,096 bytes, and cut JSON would be no JSON."""

_SIGNALLED = 128
_LONGEST_LEFT = 65_536  # bytes
_LONGEST_WORD = 80  # characters; of a reason or a stage
_LAST_WORDS = 900  # characters; with a sentence before them they fit into a status


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is known of a run besides its launcher's exit code."""

    mixes_codes: bool = False
    """The launcher is MPICH's: it combines all ranks' codes bit by bit (1 and 2 give 3) and reports signal n as n."""
    failed_by_signal: int | None = None
    """Of the rank that failed first."""
    told_code: int | None = None
    """With which that rank failed, as it was told by whom had waited for it; None where a signal ended it."""
    lost_worker: bool = False
    """The launcher says that it has lost a worker. Open MPI 5.0.11 ends with 0 then, others with 137 or 255."""
    lost_peer: bool = False
    """Ranks found another one gone that had told of no failure."""
    left_early: bool = False
    """Rank 0 reported progress and then nothing that could be its end."""
    said_code: int | None = None
    """With which rank 0 reported that it fails. Another rank may leave before it and be the one that is counted."""
    told_stop: bool = False
    """Rank 0 reported that it has stopped."""
    asked_to_stop: bool = False
    """This container was asked to."""
    never_began: bool = False
    """Not all ranks had come, at the end or when it was asked: nothing was done that could be lost."""


def read_return_code(return_code: int) -> int:
    """Turn Python's -n for signal n into a shell's 128 + n."""
    return return_code if return_code >= 0 else _SIGNALLED - return_code


def settle_exit_code(code: int, evidence: Evidence) -> int:
    """Return what the container ends with, given the launcher's exit code, 128 + n for signal n."""
    if evidence.told_stop:
        # It says so when all is saved; how the others then leave, and whom the launcher counts first, is chance.
        return EXIT_STOPPED
    if evidence.failed_by_signal is not None:
        code = _SIGNALLED + evidence.failed_by_signal
    elif evidence.told_code is not None and not evidence.lost_worker:
        code = evidence.told_code
    if evidence.asked_to_stop and evidence.never_began and code != EXIT_BAD_INPUT:
        return EXIT_STOPPED
    if evidence.mixes_codes and code == EXIT_STOPPED and not evidence.asked_to_stop:
        code = EXIT_FAILED
    if evidence.said_code is not None and (code == EXIT_FAILED or evidence.mixes_codes and code < _SIGNALLED):
        code = evidence.said_code
    is_known = evidence.failed_by_signal is not None or evidence.told_code is not None
    has_lost = evidence.lost_worker or evidence.lost_peer and not is_known
    if has_lost and code not in (EXIT_BAD_INPUT, EXIT_STOPPED):
        return EXIT_INFRASTRUCTURE
    if code == 0 and evidence.left_early:
        return EXIT_FAILED
    if evidence.asked_to_stop and code > _SIGNALLED:
        # Still starting, without a handler: nothing was done that could be lost.
        number = code - _SIGNALLED
        if evidence.mixes_codes:
            number &= signal.SIGUSR1  # with what ended the others
        return EXIT_STOPPED if number == signal.SIGUSR1 else code
    return code


def build_record(
    exit_code: int, story: Story, failure: FirstFailure | None, left: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the termination record: the keys of ``last_words`` and ``firstFailure``.

    left: the record that a rank in this pod has written itself. One that tells of another kind of end than the
    exit code is not believed: the program may have been killed after it had said that all went well.
    """
    if left is not None and (left.get("exitCode") == 0) == (exit_code == 0):
        record = {key: left.get(key) for key in ("reason", "exitCode", "stage", "step", "checkpoint", "message")}
    else:
        reason, message = _explain(exit_code, story, failure)
        checkpoint = story.checkpoint
        record = {"reason": reason, "stage": story.stage, "step": story.step, "checkpoint": checkpoint}
        record["message"] = message
    record["exitCode"] = exit_code
    if failure is not None and exit_code not in (0, EXIT_STOPPED):
        record["firstFailure"] = failure.to_json()
    return record


def render_record(record: Mapping[str, Any]) -> str:
    """Return it as JSON of at most 3,500 bytes; what is too much is cut from the start of the message."""
    # Bytes that are no text have come this far as halves of surrogate pairs, which JSON cannot carry.
    record = {key: _text(value) if isinstance(value, str) else value for key, value in record.items()}
    for key in ("reason", "stage"):
        record[key] = str(record[key])[:_LONGEST_WORD] if record.get(key) else record.get(key)
    message = _text(str(record.get("message") or ""))
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


def read_left(path: Path) -> dict[str, Any] | None:
    """Return the record that a rank has written, None where there is none, or something else."""
    try:
        # Whatever the program has put there: a pipe would keep whoever opens it waiting.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            record = json.loads(file.read(_LONGEST_LEFT))
    except (OSError, ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _explain(exit_code: int, story: Story, failure: FirstFailure | None) -> tuple[str, str]:
    """Return the reason, one word, and the message."""
    final = story.final or {}
    agrees = story.confirms(exit_code)
    if exit_code in (0, EXIT_STOPPED):
        reason = "Succeeded" if exit_code == 0 else "Stopped"
        return reason, final.get("message", "") if agrees and exit_code else ""
    lines = story.last_lines(failure.rank if failure else None)
    told = find_told(lines)
    has_said = story.said_code == exit_code or told is not None and told[0] == StorageFailed.__name__
    if exit_code == EXIT_INFRASTRUCTURE and not has_said:
        host = failure.host if failure and failure.host else "a worker"
        rank = "" if failure is None or failure.rank is None else f"rank {failure.rank} on "
        return "WorkerLost", f"the connection to {rank}{host} failed or broke"
    if agrees and exit_code < 128:
        return final.get("reason", _default_reason(exit_code)), final.get("message", "")
    raised = find_raised(lines)
    if exit_code < 128 and told:
        return told[0] or _default_reason(exit_code), told[1]
    if exit_code < 128 and raised:
        return raised
    reason, last = _default_reason(exit_code), "\n".join(lines)
    if exit_code <= 128:
        return reason, last
    return reason, f"{_tell_signal(reason, story, failure)}\n{last[-_LAST_WORDS:]}".rstrip()


def _tell_signal(name: str, story: Story, failure: FirstFailure | None) -> str:
    """Return a sentence about a rank that cannot tell what has ended it."""
    rank = "a rank" if failure is None or failure.rank is None else f"rank {failure.rank}"
    host = "" if failure is None or failure.host is None else f" on {failure.host}"
    when = "" if story.step is None else f" after step {story.step} of {story.stage}"
    why = "; most often memory has run out" if name == "SIGKILL" else ""
    return f"{rank}{host} was ended by {name}{when}{why}"


def _default_reason(exit_code: int) -> str:
    if exit_code == EXIT_BAD_INPUT:
        return "InputError"
    number = exit_code - 128
    if number in {int(known) for known in signal.Signals}:
        return signal.Signals(number).name
    return "Failed"


def _encode(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, ensure_ascii=False).encode(errors="replace")


def _text(value: str) -> str:
    return value.encode(errors="replace").decode()
