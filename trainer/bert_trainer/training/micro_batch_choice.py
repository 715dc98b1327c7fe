"""Which micro-batch sizes are worth a try, and which of those that were tried is taken. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

GOOD_ENOUGH = 0.97
"""Share of the best speed above which the smaller size is taken: it leaves memory, and noise decides less often."""
HEADROOM = 0.9
"""Share of the memory that passes may fill: allocators fragment, and the optimizer works beside them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Speed and memory of one size, on rows of full length."""

    size: int
    """Sequences of one forward and backward pass on one rank."""
    sequences_per_s: float | None = None
    """Of one rank; None: it was not run, or did not fit."""
    peak_bytes: int | None = None
    """Memory of the rank while it ran."""
    note: str = ""
    """Why it has no speed."""


def candidate_sizes(rows: int) -> list[int]:
    """Return the sizes worth a try, ascending. rows: of one step on the rank that has most of them.

    About one for every power of two: the largest divisor of ``rows`` in each octave, so that every pass is full;
    where an octave has none, the size that cuts ``rows`` into the fewest, nearly equal passes.
    """
    divisors = [size for size in range(1, rows + 1) if rows % size == 0]
    sizes = {rows}
    target = 1
    while target <= rows:
        fitting = [size for size in divisors if target // 2 < size <= target]
        passes = -(-rows // target)
        sizes.add(fitting[-1] if fitting else -(-rows // passes))
        target *= 2
    return sorted(sizes)


def fits(peak_bytes: float, limit_bytes: int | None) -> bool:
    """Return whether a peak leaves enough headroom below a limit."""
    return limit_bytes is None or peak_bytes <= HEADROOM * limit_bytes


def expected_peak(base_bytes: int, last: Measurement, size: int) -> float:
    """Return the extrapolated peak memory of a larger size: activations grow with the number of sequences."""
    assert last.peak_bytes is not None, "only a size that ran predicts others"
    return base_bytes + max(0, last.peak_bytes - base_bytes) * size / last.size


def choose_size(measurements: Sequence[Measurement], limit_bytes: int | None) -> int | None:
    """Return the smallest size that is nearly as fast as the fastest that fits; None if none fits."""
    speeds = {
        entry.size: entry.sequences_per_s
        for entry in measurements
        if entry.sequences_per_s is not None and fits(entry.peak_bytes or 0, limit_bytes)
    }
    if not speeds:
        return None
    best = max(speeds.values())
    return min(size for size, speed in speeds.items() if speed >= GOOD_ENOUGH * best)


def is_getting_slower(measurements: Sequence[Measurement]) -> bool:
    """Return whether the last two sizes were clearly slower than the best one, so that larger ones won't help."""
    speeds = [entry.sequences_per_s for entry in measurements if entry.sequences_per_s is not None]
    return len(speeds) > 2 and max(speeds[-2:]) < 0.9 * max(speeds)


def render_measurements(title: str, measurements: Sequence[Measurement], chosen: int | None) -> str:
    """Return a table for people."""
    lines = [title, f"  {'size':>6} {'sequences/s':>12} {'peak GiB':>9}"]
    for entry in measurements:
        speed = "-" if entry.sequences_per_s is None else f"{entry.sequences_per_s:.1f}"
        peak = "-" if entry.peak_bytes is None else f"{entry.peak_bytes / 2**30:.2f}"
        remark = "chosen" if entry.size == chosen else entry.note
        lines.append(f"  {entry.size:>6} {speed:>12} {peak:>9}  {remark}".rstrip())
    return "\n".join(lines)
