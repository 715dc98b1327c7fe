"""Where the time of some steps went, part by part: gathered sums to a table. Values in, values out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

Part = Literal["data", "forward", "backward", "reduction", "optimizer", "checkpoint"]
PARTS: tuple[Part, ...] = get_args(Part)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Seconds over several steps of one stage, on one rank."""

    stage: str
    first: int
    last: int
    """Steps counted from 1; both belong to it."""
    total_s: float
    part_s: Mapping[Part, float]

    @property
    def steps(self) -> int:
        """How many there are."""
        return self.last - self.first + 1

    @property
    def other_s(self) -> float:
        """What no part accounts for: reports, and Python between the parts."""
        return max(0.0, self.total_s - sum(self.part_s.values()))

    def to_record(self) -> dict[str, str | int | float | None]:
        """Return flat fields for the metrics, in seconds per step."""
        parts = {f"{part}_s": self.part_s.get(part, 0.0) / self.steps for part in PARTS}
        return {
            "stage": self.stage,
            "first_step": self.first,
            "last_step": self.last,
            "step_s": self.total_s / self.steps,
            **parts,
            "other_s": self.other_s / self.steps,
        }


def render_step_times(times: StepTimes) -> str:
    """Return a table for people: milliseconds per step and the share of each part."""
    rows = [*((part, times.part_s.get(part, 0.0)) for part in PARTS), ("other", times.other_s)]
    whole = max(times.total_s, 1e-12)
    lines = [f"{times.stage}, steps {times.first} to {times.last}: where a step's time went"]
    lines += [f"  {name:<10} {1e3 * seconds / times.steps:>10.2f} ms {seconds / whole:>7.1%}" for name, seconds in rows]
    lines.append(f"  {'step':<10} {1e3 * times.total_s / times.steps:>10.2f} ms")
    return "\n".join(lines)
