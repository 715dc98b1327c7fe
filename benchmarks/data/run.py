"""All data benchmarks: text to shards, shards to batches, batches to a training run.

The last line has the figures that are compared between versions. Arguments go to ``build.py``. A figure that was not
measured is ``nan``, a line before it gives the reason, and the exit code is 1 unless an argument left it out.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

KEYS = (
    "build128",
    "build512",
    "both",
    "scale2",
    "rss_mb_200",
    "rss_mb_2000",
    "load_samples_per_s",
    "dynamic_cost_128",
    "dynamic_cost_512",
    "wait_share",
)
_REASONS = {
    "rss_mb_200": "--memory-mb left 200 out, or the build failed",
    "rss_mb_2000": "--memory-mb left 2000 out, or the build failed",
    "scale2": "one core only, --rounds 0, or the build failed",
    "wait_share": "the training run failed",
    "load_samples_per_s": "loading failed",
    "dynamic_cost_128": "loading failed",
    "dynamic_cost_512": "loading failed",
}


def main() -> int:
    """Run all three benchmarks, print their output and the summary line."""
    here = Path(__file__).parent
    failed = False
    figures: dict[str, float] = {}
    for script, arguments in (("build.py", sys.argv[1:]), ("loading.py", []), ("waiting.py", [])):
        lines, status = _run([sys.executable, str(here / script), *arguments])
        failed = failed or status != 0
        for line in lines:
            figures.update(_figures(line))
    for key in KEYS:
        if math.isnan(figures.setdefault(key, math.nan)):
            print(f"{key} was not measured: {_REASONS.get(key, '--rounds 0, or the build failed')}")
    print("bench-data: " + " ".join(f"{key}={figures[key]:.4g}" for key in KEYS))
    return int(failed)


def _run(command: list[str]) -> tuple[list[str], int]:
    """Run a program, print its lines as they come, and return them with its exit status."""
    lines = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            print(line, end="", flush=True)
            lines.append(line.strip())
    return lines, child.returncode


def _figures(line: str) -> dict[str, float]:
    """Return the figures of a line of JSON or of ``key=value``; other lines have none."""
    if line.startswith("{"):
        return {name: float(value) for name, value in json.loads(line).items()}
    pair = line.split("=")
    try:
        return {pair[0]: float(pair[1])} if len(pair) == 2 else {}
    except ValueError:
        return {}


if __name__ == "__main__":
    sys.exit(main())
