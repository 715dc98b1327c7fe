"""Splits mpirun's tagged output into lines of single ranks and forwards them to the log and to files per rank.

Lines of rank 0 are forwarded unchanged, because its records are recognized by how a line begins; lines of other ranks
get a short tag. A tag can stand in the middle of a line: some launchers pass unfinished lines on as they come, so that
one line of theirs holds pieces of several ranks.
"""

from __future__ import annotations

import contextlib
import re
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from bert_trainer.pod.processes import Stream
from bert_trainer.pod.rank_logs import RankLogFiles

_MAX_LINE_CHARACTERS = 65_536
_STUCK_S = 2.0


@dataclass(frozen=True, slots=True)
class Line:
    """One line, without its line end."""

    rank: int | None
    """None: the launcher's own."""
    text: str


@dataclass(slots=True)
class LineSplitter:
    """Splits one stream of a launcher."""

    tag: re.Pattern[str] | None
    """None: no launcher, everything is rank 0's."""
    _unfinished: dict[int | None, str] = field(default_factory=dict)
    _last_owner: int | None = None
    """Whose the last piece was, if it had no line end."""

    def feed(self, piece: str) -> list[Line]:
        """Add a line, or a part of one, and return the lines that are complete."""
        has_ended = piece.endswith("\n")
        parts = self._split(piece.rstrip("\r\n") if has_ended else piece)
        for owner, text in parts:
            self._unfinished[owner] = self._unfinished.get(owner, "") + text
        if not has_ended:
            self._last_owner = parts[-1][0]
            # A program that never ends its lines must not fill the memory.
            long = [owner for owner, text in self._unfinished.items() if len(text) > _MAX_LINE_CHARACTERS]
            return [Line(owner, self._unfinished.pop(owner)) for owner in long]
        owner, self._last_owner = parts[-1][0], None
        return [Line(owner, self._unfinished.pop(owner))]

    def finish(self) -> list[Line]:
        """Return lines that never got a line end."""
        rest = [Line(owner, text) for owner, text in self._unfinished.items() if text]
        self._unfinished.clear()
        return rest

    def _split(self, text: str) -> list[tuple[int | None, str]]:
        if self.tag is None:
            return [(0, text)]
        tags = list(self.tag.finditer(text))
        # A very long line arrives in pieces, and only the first has a tag. Without this the others would count as the
        # launcher's own lines, which are believed about lost workers.
        before = self._last_owner
        if not tags:
            return [(before, text)]
        ends = [tag.start() for tag in tags[1:]] + [len(text)]
        parts: list[tuple[int | None, str]] = []
        if own := text[: tags[0].start()]:
            parts.append((before, own))
        parts += [(int(tag[1]), text[tag.end() : end]) for tag, end in zip(tags, ends, strict=True)]
        return parts


class OutputForwarder:
    """Forwards output to this process's own streams, to files per rank, and to a handler."""

    def __init__(self, tag: re.Pattern[str] | None, files: RankLogFiles, handle_line: Callable[[Line], bool]) -> None:
        """Create one without output yet.

        Args:
            tag: What the launcher puts before a rank's output; None: all of it is rank 0's.
            files: Where each rank's lines are kept besides.
            handle_line: Called with every line, one at a time; returns whether to forward it.
        """
        self._splitters: dict[Stream, LineSplitter] = {"stdout": LineSplitter(tag), "stderr": LineSplitter(tag)}
        self._files = files
        self._handle_line = handle_line
        self._lock = threading.Lock()
        self._busy_since_s: float | None = None

    def take(self, stream: Stream, piece: str) -> None:
        """Add output as it comes; from two threads, one per stream."""
        with self._lock:
            self._busy_since_s = time.monotonic()
            try:
                self._pass_on(stream, self._splitters[stream].feed(piece))
            finally:
                self._busy_since_s = None

    def is_stuck(self) -> bool:
        """Return whether a line is on its way to the log or a file for longer than a healthy disk takes."""
        busy_since_s = self._busy_since_s
        return busy_since_s is not None and time.monotonic() - busy_since_s > _STUCK_S

    def finish(self) -> None:
        """Forward what lacks a line end, and close the files."""
        with self._lock:
            for stream, splitter in self._splitters.items():
                self._pass_on(stream, splitter.finish())
            self._files.close()

    def _pass_on(self, stream: Stream, lines: list[Line]) -> None:
        for line in lines:
            if not self._handle_line(line):
                continue
            shown = line.text if line.rank in (0, None) else f"[{line.rank}] {line.text}"
            target = sys.stdout if stream == "stdout" else sys.stderr
            with contextlib.suppress(OSError):  # the reader of the log is gone, the run goes on
                target.buffer.write(_encode(shown))
                target.buffer.flush()
            if line.rank is not None:
                self._files.append(line.rank, _encode(line.text))


def _encode(text: str) -> bytes:
    return text.encode("utf-8", errors="surrogateescape") + b"\n"
