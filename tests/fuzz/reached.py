"""Which lines of a reader its inputs reach."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from fuzz_reader import Reader
from trial import Verdict, judge

Line = tuple[str, int]
"""A file's path, and a line's number in it."""


@dataclass(slots=True)
class Reached:
    """What inputs have reached of a reader."""

    lines: set[Line] = field(default_factory=set)
    left_out: set[str] = field(default_factory=set)
    """Functions that were entered although the reader says that no input enters them."""
    verdicts: list[Verdict] = field(default_factory=list)
    """Of each input that was shown."""


def lines_of(reader: Reader) -> set[Line]:
    """Return the lines that count."""
    return {(file, line) for file, lines in reader.lines().items() for line in lines}


def trace(
    reader: Reader,
    inputs: Iterable[bytes],
    work: Path,
    *,
    seconds: float = float("inf"),
    see: Callable[[bytes, set[Line]], None] = lambda data, lines: None,
) -> Reached:
    """Show inputs to a reader and return what they reach of the lines that count.

    Args:
        reader: the reader.
        inputs: in the order in which they are shown.
        work: a folder for them.
        seconds: after which the rest is not shown any more.
        see: is called with each input and the lines that it reached.
    """
    wanted, found = lines_of(reader), Reached()
    files = {file for file, _ in wanted}
    whose: dict[CodeType, bool] = {}
    hit: set[Line] = set()

    def follow(frame: FrameType, event: str, _: object) -> Any:
        code = frame.f_code
        ours = whose.get(code)
        if ours is None:
            ours = whose[code] = code.co_filename in files
        if not ours:
            return None
        if event == "line":
            hit.add((code.co_filename, frame.f_lineno))
        elif event == "call" and code.co_name in reader.leaves_out:
            found.left_out.add(f"{Path(code.co_filename).name}: {code.co_qualname}")
        return follow

    until, before = time.monotonic() + seconds, sys.gettrace()
    for data in inputs:
        hit.clear()
        sys.settrace(follow)
        try:
            verdict = judge(reader, data, work)
        finally:
            sys.settrace(before)
        found.verdicts.append(verdict)
        found.lines |= hit & wanted
        see(data, hit & wanted)
        if time.monotonic() > until:
            break
    return found
