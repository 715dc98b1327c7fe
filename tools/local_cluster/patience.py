"""How long tests wait for what has to happen: one number, so long that no busy machine breaks it.

Whoever waits polls or is told, so that only a test that fails waits so long. It is less than pytest's own limit for a
test (``timeout`` in pyproject.toml), which would not say what was waited for.
"""

from __future__ import annotations

PATIENCE_S = 150.0
