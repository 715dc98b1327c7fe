"""Whose line is it? mpirun's tagged output comes apart into lines of ranks and is passed on.

Rank 0's lines go on as they were written, because its records are recognised by how a line begins; other ranks'
lines get a short tag. Tags can stand inside of a line: some launchers pass unfinished lines on as they come.
"""

from __future__ import annotations

import contextlib
import re
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path

from bert_trainer.pod.processes import Stream

_MAX_LINE_CHARACTERS = 65_536  # characters


@dataclass(frozen=True, slots=True)
class Line:
    """One line without its end."""

    rank: int | None
    """None: the launcher's own."""
    text: str


@dataclass(slots=True)
class LineSplitter:
    """Takes one stream apart."""

    tag: re.Pattern[str] | None
    """None: everything is rank 0's."""
    _unfinished: dict[int | None, str] = field(default_factory=dict)
    _last_owner: int | None = None
    """Whose the last piece was, where it had no end."""

    def feed(self, piece: str) -> list[Line]:
        """Take a line, or a part of one, and return what is complete."""
        has_ended = piece.endswith("\n")
        parts = self._split(piece.rstrip("\r\n") if has_ended else piece)
        for owner, text in parts:
            self._unfinished[owner] = self._unfinished.get(owner, "") + text
        if not has_ended:
            self._last_owner = parts[-1][0]
            # Something that never ends its lines must not fill the memory.
            long = [owner for owner, text in self._unfinished.items() if len(text) > _MAX_LINE_CHARACTERS]
            return [Line(owner, self._unfinished.pop(owner)) for owner in long]
        owner, self._last_owner = parts[-1][0], None
        return [Line(owner, self._unfinished.pop(owner))]

    def finish(self) -> list[Line]:
        """Return what was never completed."""
        rest = [Line(owner, text) for owner, text in self._unfinished.items() if text]
        self._unfinished.clear()
        return rest

    def _split(self, text: str) -> list[tuple[int | None, str]]:
        if self.tag is None:
            return [(0, text)]
        tags = list(self.tag.finditer(text))
        # A very long line comes in pieces, of which only the first has a tag.
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
    """Passes output on: to this process's own streams, to files per rank, and to whoever listens."""

    def __init__(self, tag: re.Pattern[str] | None, files: RankLogFiles, handle_line: Callable[[Line], bool]) -> None:
        """listen: called with every line, one at a time; returns whether it is passed on."""
        self._splitters: dict[Stream, LineSplitter] = {"stdout": LineSplitter(tag), "stderr": LineSplitter(tag)}
        self._files = files
        self._handle_line = handle_line
        self._lock = threading.Lock()

    def take(self, stream: Stream, piece: str) -> None:
        """Take output as it comes."""
        with self._lock:
            self._pass_on(stream, self._splitters[stream].feed(piece))

    def finish(self) -> None:
        """Pass on what lacks a line end, and close the files."""
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
            with contextlib.suppress(OSError):  # nobody reads the log any more
                target.buffer.write(_encode(shown))
                target.buffer.flush()
            if line.rank is not None:
                self._files.append(line.rank, line.text)


class RankLogFiles:
    """One file per rank, for reading after the pods are gone; a nicety that never stops a run."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Write below BERT_LOG_FOLDER, nothing if that is not set."""
        root, attempt = environment.get("BERT_LOG_FOLDER"), environment.get("BERT_ATTEMPT", "1")
        self._folder = Path(root) / f"attempt-{attempt}" if root else None
        self._files: dict[int, FileIO] = {}

    def append(self, rank: int, text: str) -> None:
        """Add one line."""
        if self._folder is None:
            return
        try:
            if rank not in self._files:
                self._folder.mkdir(parents=True, exist_ok=True)
                # Unbuffered: a line is one write, and is there when the pod dies.
                self._files[rank] = (self._folder / f"rank-{rank}.log").open("ab", buffering=0)
            self._files[rank].write(_encode(text))
        except OSError as error:
            sys.stderr.write(f"bert-pod: {self._folder}: log files are not written any more ({error.strerror})\n")
            self.close()
            self._folder = None

    def close(self) -> None:
        """Close them all."""
        for file in self._files.values():
            file.close()
        self._files.clear()


def _encode(text: str) -> bytes:
    return text.encode("utf-8", errors="surrogateescape") + b"\n"
