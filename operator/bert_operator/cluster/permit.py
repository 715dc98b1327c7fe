"""Until when this process may write to the cluster: always, or for as long as it surely holds its Lease.

The one place where that is decided; the client asks here before every write. Who extends it, and why that is safe, is
in ``lease``. What is and what is not promised:

* No write is begun after the deadline. The client looks twice: before it asks for a connection, and in the very step
  that hands the request's body to the kernel, since a process may be stopped, or a handshake take long, in between.
* A write that is under way at the deadline is given up, and its connection closed. What the API server has read by then
  it may still carry out, and what the kernel has taken may still arrive: the seconds that the Lease lasts longer than
  the permit are for that, and no more can be promised by a client.
* The clock goes on while the machine sleeps. It may stand still with a virtual machine that is paused; then up to
  one permit's length of writes may follow.

Nothing depends on this for being right: names, uids and resource versions refuse what comes too late (reconciler).
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class NotLeader(Exception):
    """This process may not write, or no longer."""


def now_s() -> float:
    """Return a monotonic time in seconds that includes system suspend."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Permit:
    """Permission to write until a deadline; ends the writes under way when it expires."""

    def __init__(self, until_s: float = math.inf) -> None:
        """until_s: by ``now_s``; by default there is no end."""
        self._until_s = until_s
        self._under_way: set[asyncio.Timeout] = set()

    @property
    def left_s(self) -> float:
        """Seconds until the deadline; negative afterwards."""
        return self._until_s - now_s()

    def holds(self) -> bool:
        """Return whether this process may write now."""
        return self.left_s > 0

    def check(self) -> None:
        """Raise NotLeader if this process may not write."""
        if not self.holds():
            raise NotLeader("this operator does not hold its Lease, and writes nothing")

    def extend(self, until_s: float) -> None:
        """Move the deadline, also for writes under way."""
        self._until_s = until_s
        self._limit_all()

    def end(self) -> None:
        """End the permission now and abort writes under way."""
        self.extend(-math.inf)

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        """Run a write until the deadline, which may be extended meanwhile. Raises NotLeader."""
        self.check()
        try:
            async with asyncio.timeout_at(self._limit_s()) as limit:
                self._under_way.add(limit)
                try:
                    yield
                finally:
                    self._under_way.discard(limit)
        except TimeoutError as late:
            raise NotLeader("this operator lost its Lease while it wrote") from late

    def _limit_all(self) -> None:
        for limit in self._under_way:
            # One that is being cancelled cannot be put off any more.
            if not limit.expired():
                limit.reschedule(self._limit_s())

    def _limit_s(self) -> float | None:
        """Return the end on the loop's clock."""
        return None if self._until_s == math.inf else asyncio.get_running_loop().time() + max(0.0, self.left_s)
