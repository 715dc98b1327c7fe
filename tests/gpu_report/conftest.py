"""The report's modules, which are no part of either package. Observed outputs: its page, its files, their order."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.extend(str(Path(__file__).parents[2] / folder) for folder in ("tools", "benchmarks"))
