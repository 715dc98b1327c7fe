"""Names of the layouts of shards, which settings and readers share. Nothing is imported here: workers start fast."""

from __future__ import annotations

from typing import Literal

LayoutName = Literal["compact", "nvidia", "intel", "mlperf", "mlperf-variable", "mlperf-packed"]
