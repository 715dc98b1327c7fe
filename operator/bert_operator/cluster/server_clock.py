"""What time it is by the API server's clock, from the Date headers of its answers (RFC 9110, section 6.6.1).

Everything that is waited for counts from times that the API server has written or that were written by this clock, so
a clock of this machine that is wrong, or that is set while the operator runs, moves no deadline.
"""

from __future__ import annotations

import logging
import math
import time
from email.utils import parsedate_to_datetime

_TOLD_FROM_S = 5.0
TOLD_EVERY_S = 60.0
"""At most: two API servers whose clocks differ would otherwise be told of at every answer."""

_log = logging.getLogger(__name__)


class ServerClock:
    """Follows the API server's clock; until it has been heard, the clock of this machine counts."""

    def __init__(self) -> None:
        """At the time of this machine."""
        # Over the monotonic clock, which nobody can set.
        self._epoch_s = time.time() - time.monotonic()
        self._told_ahead_s, self._told_at_s = 0.0, -math.inf

    def now_s(self) -> float:
        """Return the seconds since 1970."""
        return self._epoch_s + time.monotonic()

    def hear(self, date: str | None, sent_s: float) -> None:
        """Take the Date of an answer that has just come in. sent_s: when it was asked for, on the monotonic clock."""
        try:
            told_s = parsedate_to_datetime(date or "").timestamp()
        except (ValueError, OverflowError):  # none, or a proxy's
            return
        # It was written in between, and cut to the whole second. What lies within that is left as it is: however slow
        # answers are, they move nothing that was right.
        earliest_s, latest_s = told_s - time.monotonic(), told_s + 1.0 - sent_s
        self._epoch_s = min(max(self._epoch_s, earliest_s), latest_s)
        self._tell(self.now_s() - time.time(), time.monotonic())

    def _tell(self, ahead_s: float, now_s: float) -> None:
        """Say how far from this machine's clock it is, where that is news."""
        if abs(ahead_s - self._told_ahead_s) > _TOLD_FROM_S and now_s - self._told_at_s >= TOLD_EVERY_S:
            _log.warning("The API server's clock, which counts, is %+.0f s from this machine's", ahead_s)
            self._told_ahead_s, self._told_at_s = ahead_s, now_s
