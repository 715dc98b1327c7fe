"""How a pod's program ended: exit codes, and the termination record that Kubernetes reads.

0 done, 1 failed, 2 wrong input, 3 stopped on request, 4 a worker was not reached or was lost or storage failed, 128 +
n ended by signal n. Writing or reading the termination record never fails a run.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_trainer.errors import (
    EXIT_BAD_INPUT,
    EXIT_FAILED,
    EXIT_INFRASTRUCTURE,
    EXIT_STOPPED,
    InputError,
    TrainerError,
)
from bert_trainer.pod.launcher_log import render_record

_SIGNALLED = 128


class WorkersUnreachable(TrainerError):
    """Some workers did not answer in time."""

    exit_code = EXIT_INFRASTRUCTURE

    def __init__(self, message: str, *, silent: tuple[str, ...] = (), hint: str | None = None) -> None:
        """silent: hosts that did not answer."""
        super().__init__(message, hint=hint)
        self.silent = silent


def read_return_code(return_code: int) -> int:
    """Turn Python's -n for signal n into a shell's 128 + n."""
    return return_code if return_code >= 0 else _SIGNALLED - return_code


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


def check_user() -> None:
    """Make sure that ssh will work for whoever this process runs as.

    Raises:
        InputError: the user id has no name.
    """
    user = os.getuid()
    try:
        pwd.getpwuid(user)
    except KeyError:
        raise InputError(
            f"/etc/passwd: has no entry for user id {user}; ssh refuses unknown users",
            hint=f"set spec.securityContext.runAsUser: {user}, for which the operator mounts a passwd file",
        ) from None


DEFAULT_TERMINATION_LOG = Path("/dev/termination-log")
_LONGEST_LEFT = 65_536  # bytes


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
