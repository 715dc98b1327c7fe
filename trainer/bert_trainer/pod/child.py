"""The one child of a pod that runs a program: started, listened to, waited for, together with whatever it leaves.

As process 1 of a container this process inherits every orphan in it and has to take note of their ends.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Literal

from bert_trainer.errors import InputError
from bert_trainer.pod.stopping import StopRequest

Stream = Literal["stdout", "stderr"]

_LONGEST_PIECE = 65_536  # bytes; a longer line comes in pieces
_LAST_OUTPUT_S = 5.0


def run_child(
    command: Sequence[str],
    environment: Mapping[str, str],
    stop: StopRequest,
    take: Callable[[Stream, str], None],
) -> int:
    """Run it to its end and return its exit code, -n for signal n.

    take: called from two threads with output as it comes, at most one line at a time, line end included.

    Raises:
        InputError: it cannot be started.
    """
    try:
        # A session of its own: Ctrl-C in a terminal reaches this process alone, which knows how to stop.
        process = subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise InputError(
            f"{command[0]}: cannot be started ({error.strerror})", hint="name a program that the image has, after --"
        ) from error
    assert process.stdout is not None, "a pipe was asked for"
    assert process.stderr is not None, "a pipe was asked for"
    streams: tuple[tuple[Stream, IO[bytes]], ...] = (("stdout", process.stdout), ("stderr", process.stderr))
    readers = [threading.Thread(target=_read, args=(pipe, name, take), daemon=True) for name, pipe in streams]
    for reader in readers:
        reader.start()
    stop.pass_to(process.pid)
    process.returncode = _wait_for(process.pid, stop)
    for reader in readers:
        # Somebody whom it has left behind may hold the pipe for ever.
        reader.join(_LAST_OUTPUT_S)
    return process.returncode


def _wait_for(child: int, stop: StopRequest) -> int:
    while True:
        # Looked at before it is reaped: until then nobody else can get its number, and a signal goes to it or nowhere.
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        assert ended is not None, "WNOHANG was not asked for"
        if ended.si_pid == child:
            stop.pass_to(None)
        _, status = os.waitpid(ended.si_pid, 0)
        if ended.si_pid == child:
            return os.waitstatus_to_exitcode(status)


def _read(pipe: IO[bytes], name: Stream, take: Callable[[Stream, str], None]) -> None:
    with pipe:
        while data := pipe.readline(_LONGEST_PIECE):
            take(name, data.decode("utf-8", errors="surrogateescape"))
