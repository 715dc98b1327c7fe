"""The benchmarks' modules, whose arithmetic is tested here. The benchmarks themselves are never part of a test."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
