"""What became of the inputs that readers were shown."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Result:
    """What became of a reader's inputs."""

    reader: str
    inputs: int = 0
    refused: int = 0
    slowest_s: float = 0.0
    peak_mb: float = 0.0
    coverage: float = 0.0
    """Share of the lines that count, in [0, 1]."""
    problems: list[str] = field(default_factory=list)
    unreached: dict[str, list[int]] = field(default_factory=dict)

    def line(self) -> str:
        """Return the result on one line."""
        return (
            f"{self.reader}: inputs={self.inputs} refused={self.refused} coverage={100 * self.coverage:.0f}% "
            f"crashes={len(self.problems)} slowest_s={self.slowest_s:.2f} peak_mb={self.peak_mb:.0f}"
        )


def empty_scans(results: list[Result]) -> list[str]:
    """Return what keeps a run from saying anything about a reader: no finding is no news where nothing was tried."""
    found = [f"{result.reader}: was shown no input" for result in results if not result.inputs]
    return found + [
        f"{result.reader}: no input reached a line of it" for result in results if result.inputs and not result.coverage
    ]
