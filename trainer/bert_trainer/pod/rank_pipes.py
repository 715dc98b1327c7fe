"""A rank's output on its way to mpirun: whole lines, and none longer than MPI's daemons forward well.

A line of 100 MB, such as a program that prints a tensor's bytes, stops Open MPI 5's forwarding for all ranks of the
job. So ``bert-pod rank`` reads its program's output and passes it on in lines; of a longer one the start.
"""

from __future__ import annotations

import os
import threading
from typing import IO

MAX_LINE_BYTES = 16_384
"""Twice what a progress record may have."""
_DRAIN_S = 5.0  # for output that is still in a pipe after the program's end
_LINE_S = 1.0  # a progress bar never ends its line, and a sign of life must not come too late


class RankPipes:
    """Forwards two streams of one process to this process's own; ``write`` puts lines of ours between them."""

    def __init__(self) -> None:
        """Forward nothing yet."""
        self._line_ended = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._unfinished: set[int] = set()
        """Streams whose latest line has no end yet."""

    def forward(self, stdout: IO[bytes], stderr: IO[bytes]) -> None:
        """Forward from now on, in threads."""
        for pipe, target in ((stdout, 1), (stderr, 2)):
            thread = threading.Thread(target=self._forward, args=(pipe, target), daemon=True)
            self._threads.append(thread)
            thread.start()

    def finish(self) -> None:
        """Forward what is left. What the program has started may hold the pipes for ever: not longer than 5 s."""
        for thread in self._threads:
            thread.join(_DRAIN_S)

    def write(self, text: str, target: int = 1) -> None:
        """Write a line of our own, between lines of the program; within one where its end takes longer than 1 s."""
        with self._line_ended:
            self._line_ended.wait_for(lambda: target not in self._unfinished, _LINE_S)
            before = "\n" if target in self._unfinished else ""
            _write(target, f"{before}{text}\n".encode(errors="replace"))

    def _forward(self, pipe: IO[bytes], target: int) -> None:
        is_cut, left_out = False, 0
        with pipe:
            while data := pipe.readline(MAX_LINE_BYTES):
                has_ended = data.endswith(b"\n")
                if is_cut:
                    left_out += len(data) - has_ended
                    data = b""
                if is_cut and has_ended and left_out:
                    data = f" [{left_out} bytes left out]".encode()
                if is_cut and has_ended:
                    data += b"\n"
                is_cut = not has_ended
                if not self._pass_on(target, data, is_unfinished=is_cut):
                    return  # mpirun has gone; the program learns of it by its closed pipe
                left_out = left_out if is_cut else 0
        if is_cut:
            self._pass_on(target, b"\n", is_unfinished=False)

    def _pass_on(self, target: int, data: bytes, *, is_unfinished: bool) -> bool:
        with self._line_ended:
            is_written = _write(target, data)
            (self._unfinished.add if is_unfinished and is_written else self._unfinished.discard)(target)
            self._line_ended.notify_all()
        return is_written


def _write(target: int, data: bytes) -> bool:
    try:
        while data:
            data = data[os.write(target, data) :]
    except OSError:
        return False
    return True
