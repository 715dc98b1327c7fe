"""Durations as people read them."""

from __future__ import annotations


def render_duration(seconds: float) -> str:
    """Return ``42 s``, ``3:07 min`` or ``2:05 h``."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d} min"
    return f"{whole // 3600}:{whole % 3600 // 60:02d} h"
