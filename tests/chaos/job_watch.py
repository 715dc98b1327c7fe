"""What a job writes, seen from outside while it runs: when it trained each step, who committed which checkpoint."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

EVERY_S = 0.1
A_PAUSE_S = 3.0
"""No step without a fault takes so long, nor does an evaluation."""
Step = tuple[str, int]


class Trained(NamedTuple):
    """A line of the ledger: one step, with the numbers of its samples."""

    stage: str
    step: int
    samples: tuple[int, ...]
    seen_s: float = 0.0
    """Monotonic time."""

    @property
    def key(self) -> Step:
        """Stage, and step of the stage."""
        return self.stage, self.step


@dataclass(frozen=True, slots=True)
class Commit:
    """A checkpoint that appeared in its place."""

    name: str
    owner: str
    """uid, attempt and launcher of the run that wrote it."""
    seen_s: float


def read_ledger(text: str, seen_s: float = 0.0) -> tuple[list[Trained], int]:
    """Return the lines of a ledger, and how many cannot be read: a write that was cut off."""
    lines, broken = [], 0
    for line in text.splitlines():
        try:
            entry = json.loads(line)
            lines.append(Trained(entry["stage"], entry["step"], tuple(entry["samples"]), seen_s))
        except (ValueError, KeyError, TypeError):
            broken += 1
    return lines, broken


def surviving(lines: Iterable[Trained]) -> dict[Step, tuple[int, ...]]:
    """Return the samples of the history that the final weights have: of a step trained twice, the second ones."""
    return {line.key: line.samples for line in lines}


def longest_pause(lines: list[Trained], since_s: float) -> tuple[float, float]:
    """Return the end and the length of the longest time without a step since a moment."""
    times = [since_s, *(line.seen_s for line in lines if line.seen_s > since_s)]
    pauses = [(after - before, after) for before, after in zip(times, times[1:], strict=False)]
    length, end = max(pauses, default=(0.0, since_s))
    return end, length


def seconds_to_a_step(lines: list[Trained], over_s: float) -> float | None:
    """Return how long after a fault the job took steps again; None where it took none, as one that had no more to take.

    That is the end of the longest pause since then; where there was none, the job went on, and its first step counts.
    """
    first_s = next((line.seen_s for line in lines if line.seen_s > over_s), None)
    if first_s is None:
        return None
    end_s, pause_s = longest_pause(lines, over_s)
    return (first_s if pause_s < A_PAUSE_S else end_s) - over_s


class JobWatch:
    """Reads a job's folder ten times a second, in a thread of its own: ``with JobWatch(folder) as watch: ...``.

    Nothing is asked of the API server, which may be away, and nothing of the job.
    """

    def __init__(self, folder: Path) -> None:
        """Folder: the job's output folder, which need not exist yet."""
        self.folder = folder
        self.lines: list[Trained] = []
        self.commits: list[Commit] = []
        self._offset = 0
        self._torn = b""
        self.broken_lines = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def reached(self) -> int:
        """How many different steps have been trained."""
        return len({line.key for line in [*self.lines]})

    def most_steps_during_a_write(self) -> int:
        """Return how many steps were trained at most between a checkpoint's own step and its appearance."""
        most = 0
        for commit in self.commits:
            stage, _, number = commit.name.rpartition("-")
            own = [line.seen_s for line in self.lines if line.key == (stage, int(number) - 1)]
            own = [seen_s for seen_s in own if seen_s <= commit.seen_s]
            if own:
                most = max(most, sum(own[-1] < line.seen_s <= commit.seen_s for line in self.lines))
        return most

    def _watch(self) -> None:
        while not self._ended.wait(EVERY_S):
            self._look()
        self._look()

    def _look(self) -> None:
        try:
            self._read_ledger()
            self._read_checkpoints()
        except OSError:
            pass  # a volume that fails on purpose, or a folder that is not there yet

    def _read_ledger(self) -> None:
        with (self.folder / "ledger.jsonl").open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        now_s = time.monotonic()
        self._offset += len(data)
        whole, separator, self._torn = (self._torn + data).rpartition(b"\n")
        lines, broken = read_ledger((whole + separator).decode(errors="replace"), now_s)
        self.lines += lines
        self.broken_lines += broken

    def _read_checkpoints(self) -> None:
        known = {(commit.name, commit.owner) for commit in self.commits}
        found = []
        for path in (self.folder / "checkpoints").glob("[!.]*/manifest.json"):
            try:
                owner = describe_owner(json.loads(path.read_text()))
                written_s = path.stat().st_mtime
            except (OSError, ValueError, KeyError):
                continue  # pruned meanwhile, or damaged on purpose
            if (path.parent.name, owner) not in known:
                found.append((written_s, path.parent.name, owner))
        now_s = time.monotonic()
        self.commits += [Commit(name, owner, now_s) for _, name, owner in sorted(found)]


def describe_owner(manifest: Mapping[str, Any]) -> str:
    """Say which run wrote a checkpoint; one job has several, one after another."""
    run = manifest["run"]
    return f"{run['job']} {run['uid']} attempt {run['attempt']} {run['launcher']}"
