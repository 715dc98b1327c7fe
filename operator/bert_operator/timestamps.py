"""Seconds since 1970 to Kubernetes' timestamps (RFC 3339, UTC, whole seconds) and back. Reads no clock."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache


def render_time(time_s: float) -> str:
    """Render seconds since 1970 as ``2025-03-01T12:00:00Z``; fractions of a second are cut."""
    # Whole seconds, as Kubernetes writes its own; two times within one second compare equal.
    return _render_second(int(time_s))


@lru_cache(maxsize=16)
def _render_second(second: int) -> str:
    # Kept: almost all times that are rendered are now, several for each job.
    return datetime.fromtimestamp(second, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: str) -> float:
    """Return the seconds since 1970 of a timestamp.

    Raises:
        ValueError: it is not a timestamp.
    """
    return datetime.fromisoformat(text).timestamp()


def time_of(text: object) -> float | None:
    """Return the seconds since 1970 of a timestamp that others wrote; None if it is none."""
    try:
        return parse_time(str(text)) if text else None
    except ValueError:
        return None


MAX_ESTIMATE_S = 10 * 365 * 86_400.0
"""What a program expects to take longer is no estimate."""
