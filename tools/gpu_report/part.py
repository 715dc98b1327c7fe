"""What a part of the report is given and what it leaves: a result that is on the disk as soon as it is known."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

Cell = str | int | float | None

PEAK_TFLOPS = {"H200": 989, "H100 PCIe": 756, "H100": 989, "A100": 312, "A800": 312, "L40S": 362, "B200": 2250}
"""Dense bf16 without sparsity, by NVIDIA's data sheets; the first name found in a card's name counts."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A figure beside what was asked of it."""

    what: str
    wanted: str
    got: str
    holds: bool | None
    """None: not judged, such as speed on a CPU."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of a table on the page."""

    title: str
    columns: list[str]
    rows: Sequence[Sequence[Cell]]


@dataclass(slots=True)
class Result:
    """What a part has found so far."""

    figures: dict[str, Cell] = field(default_factory=dict)
    """By what they are, with the unit."""
    verdicts: list[Verdict] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """What could not be done here, and why."""
    files: list[str] = field(default_factory=list)
    """Raw files to keep, by path."""
    done: bool = False
    """Whether the part came to its end."""


@dataclass(frozen=True, slots=True)
class Part:
    """Where a part runs and how large."""

    name: str
    device: str
    """``cuda`` or ``cpu``."""
    small: bool
    scratch: Path
    """A folder that all parts share; it is not kept."""

    @property
    def root(self) -> Path:
        """Return the root of the source tree."""
        return Path(__file__).resolve().parents[2]

    @property
    def folder(self) -> Path:
        """Return a folder of this part's own."""
        path = self.scratch / self.name
        path.mkdir(exist_ok=True)
        return path

    def publish(self, result: Result) -> None:
        """Put what is known on the disk."""
        write_atomically(self.scratch / f"{self.name}.result.json", json.dumps(asdict(result)))


def read_result(scratch: Path, name: str) -> Result | None:
    """Return what a part has published; None before it has."""
    try:
        found = json.loads((scratch / f"{name}.result.json").read_text())
    except (OSError, ValueError):
        return None
    found["verdicts"] = [Verdict(**one) for one in found["verdicts"]]
    found["tables"] = [Table(**one) for one in found["tables"]]
    return Result(**found)


def write_atomically(path: Path, text: str) -> None:
    """Replace a file as a whole; it is on the disk when this returns."""
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def find_peak_tflops(card: str) -> float | None:
    """Return the data sheet's bf16 rate of a card, or None."""
    return next((float(rate) for name, rate in PEAK_TFLOPS.items() if name in card), None)
