"""The time by the API server's clock, from the Date headers of its responses (RFC 9110, section 6.6.1).

Every deadline counts from a time that the API server wrote, or that was written by this clock. So a wrong clock of this
machine, or one that is set while the operator runs, moves no deadline.
"""

from __future__ import annotations

import logging
import math
import time
from email.utils import parsedate_to_datetime
from functools import lru_cache

_LOGGED_FROM_S = 5.0
LOGGED_EVERY_S = 60.0
"""Shortest time between two log lines: behind a load balancer, two API servers may have different clocks."""

_log = logging.getLogger(__name__)


class ServerClock:
    """Tracks the API server's clock; before its first response, uses this machine's."""

    def __init__(self) -> None:
        """Start at the time of this machine."""
        # An offset to the monotonic clock, which cannot be set.
        self._epoch_s = time.time() - time.monotonic()
        self._logged_ahead_s, self._logged_at_s = 0.0, -math.inf

    def now_s(self) -> float:
        """Return the seconds since 1970."""
        return self._epoch_s + time.monotonic()

    def update(self, date: str | None, sent_s: float) -> None:
        """Take the Date of a response that has just arrived.

        Args:
            date: The header; None, or anything that is no date, is ignored.
            sent_s: When the request was sent, on the monotonic clock.
        """
        if (date_s := _parse_date(date or "")) is None:
            return
        # The date was written between request and response, and cut to whole seconds. An offset within these bounds is
        # kept: slow responses must not move a clock that is right.
        earliest_s, latest_s = date_s - time.monotonic(), date_s + 1.0 - sent_s
        self._epoch_s = min(max(self._epoch_s, earliest_s), latest_s)
        self._log_skew(self.now_s() - time.time(), time.monotonic())

    def _log_skew(self, ahead_s: float, now_s: float) -> None:
        """Log the difference from this machine's clock if it has changed."""
        if abs(ahead_s - self._logged_ahead_s) > _LOGGED_FROM_S and now_s - self._logged_at_s >= LOGGED_EVERY_S:
            _log.warning("The API server's clock, which counts, is %+.0f s from this machine's", ahead_s)
            self._logged_ahead_s, self._logged_at_s = ahead_s, now_s


@lru_cache(maxsize=4)
def _parse_date(text: str) -> float | None:
    """Return a Date in seconds since 1970; None for no date, or for a proxy's.

    Kept: many responses come within a second, and have the same.
    """
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError):
        return None
