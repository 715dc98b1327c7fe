"""What a person is shown of a child's output: every error once, and no frame that only says that a process ended. Pure.

The same error comes many times: as a record, on standard error of every rank, in a frame of mpirun's or a traceback of
horovodrun's, and in the termination record. From the first line on that gives the reason for an end, output is
therefore held back; when the child has ended, the executor tells the reason, and of what was held only the rest is
shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_GIVES_REASON = re.compile(r"bert-(?:train|data): ")
_REASON_NAME = re.compile(r"reason: \w+")  # below the message, for launchers in other pods
_PEER_ENDED = "Another rank has ended; its own message says why"
_GREETING = re.compile(r"rank \d+ on \S+: ")  # every rank's first line: its share of the machine

_EDGE = re.compile(r"-{60,}")
_MAX_FRAME = 30
"""Lines; what is longer is no frame of Open MPI's."""
# Open MPI 4 and 5; other frames say what is wrong, such as too few slots or a program that is not there.
_SAYS_THAT_IT_ENDED = re.compile(
    r"(?:prterun|prte|mpirun|mpiexec|orterun) (?:noticed that|detected that one or more|has exited due to)"
    r"|MPI_ABORT was invoked on rank"
    r"|Primary job\s+terminated normally"
    r"|MPI communication peer process has unexpectedly disconnected"
)
_MORE_FRAMES = re.compile(
    r"\[.*\] (?:\d+ more process(?:es)? ha(?:s|ve) sent help message|Set MCA parameter \"\w+_help_aggregate\")"
)


class OutputOnce:
    """Deduplicates the output of one child, line by line."""

    def __init__(self) -> None:
        """Nothing was seen yet."""
        self._frame: list[str] = []
        """Lines since an edge, while it is not known what the frame says."""
        self._held: list[str] = []
        self._of_launcher: list[str] = []
        self._is_ending = self._has_rank_spoken = False

    def take(self, line: str, *, from_rank: bool = True) -> list[str]:
        """Add a line and return the lines to show now. from_rank: False if the launcher itself wrote it."""
        if not from_rank:
            self._of_launcher.append(line)
            return []
        self._has_rank_spoken = True
        shown = self._through_frames(line)
        if self._is_ending:
            self._held += shown
            return []
        for number, each in enumerate(shown):
            if _GIVES_REASON.match(each):
                self._is_ending = True
                self._held += shown[number:]
                return shown[:number]
        return shown

    def take_reason(self, message: str) -> None:
        """Add the reason for the end from a termination record."""
        self._has_rank_spoken = self._is_ending = True
        self._held += message.splitlines()

    def end(self, told: str) -> list[str]:
        """Return the remaining lines to show after the child's end.

        told: The reason for the end as the executor tells it; empty for none.
        """
        held = [*self._held, *without_frames(self._frame)]
        if not self._has_rank_spoken:
            held += self._of_launcher
        known, rest = {line.strip() for line in told.splitlines()}, []
        for line in held:
            text = _GIVES_REASON.sub("", line, count=1).strip()
            if text not in known and not _REASON_NAME.fullmatch(text) and _PEER_ENDED not in text:
                rest.append(line)
                known.add(text)
        return rest

    def _through_frames(self, line: str) -> list[str]:
        """Return the lines that have turned out to stand in no frame, or in one that says more than that it ended."""
        if _MORE_FRAMES.match(line):
            return []
        is_edge = _EDGE.fullmatch(line) is not None
        if not self._frame and not is_edge:
            return [line]
        self._frame.append(line)
        is_closed = is_edge and len(self._frame) > 1
        if not is_closed and len(self._frame) <= _MAX_FRAME:
            return []
        frame, self._frame = self._frame, []
        return without_frames(frame) if is_closed else frame


def without_frames(lines: Iterable[str]) -> list[str]:
    """Return the lines without Open MPI's frames that only say that a process ended; the last one may be cut off."""
    kept: list[str] = []
    frame: list[str] = []
    for line in lines:
        is_edge = _EDGE.fullmatch(line) is not None
        if frame or is_edge:
            frame.append(line)
        else:
            kept.append(line)
        if is_edge and len(frame) > 1:
            kept += _worth_showing(frame)
            frame = []
    return [*kept, *_worth_showing(frame)]


def _worth_showing(frame: list[str]) -> list[str]:
    return [] if _SAYS_THAT_IT_ENDED.search(" ".join(frame)) else frame


def find_last_message(lines: Iterable[str]) -> str:
    """Return the last line that may explain why a child ended; empty for none."""
    lines = [line for line in without_frames(lines) if line.strip(" -=") and not _GREETING.match(line)]
    return lines[-1] if lines else ""
