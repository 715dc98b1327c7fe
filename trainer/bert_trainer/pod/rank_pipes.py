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


class RankPipes:
    """Forwards two streams of one process to this process's own; ``write`` puts lines of ours between them."""

    def __init__(self) -> None:
        """Forward nothing yet."""
        self._lock = threading.Lock()
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
        """Write a line of our own, between lines of the program."""
        before = "\n" if target in self._unfinished else ""
        self._write(target, f"{before}{text}\n".encode(errors="replace"))

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
                if not self._write(target, data):
                    return  # mpirun has gone; the program learns of it by its closed pipe
                is_cut = not has_ended
                (self._unfinished.add if is_cut else self._unfinished.discard)(target)
                left_out = left_out if is_cut else 0

    def _write(self, target: int, data: bytes) -> bool:
        with self._lock:
            try:
                while data:
                    data = data[os.write(target, data) :]
            except OSError:
                return False
        return True
