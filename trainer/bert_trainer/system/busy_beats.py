"""Beats of work that has no steps of one length: it makes progress as long as its processes use the processor.

A pass over a corpus may take hours without a result to count, and looks the same from outside whether it reads or
waits for ever for a server that is gone. What tells them apart is the processor: even a build that a slow disk holds up
parses what it reads, while one that waits only looks round a few times a second. Not so the listing of many files over
a network, which mostly waits for answers: that tells of each file by itself.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator

from bert_trainer.system.heartbeat import watched
from bert_trainer.system.process_tree import processor_time_s

_EVERY_S = 10.0
_PERIODS = 6
"""At least, in the time after which it has hung: in any of them it may have been kept from the processor."""
_MIN_SHARE = 0.02
"""Of one processor, over a period. A build whose workers are all stopped uses 0.002, by looking round."""


@contextlib.contextmanager
def beat_while_busy(name: str) -> Iterator[None]:
    """Report progress of this activity whenever this process and its descendants have used CPU time."""
    ended = threading.Event()
    every_s = min(_EVERY_S, watched().upper_limit_s / _PERIODS)
    with watched().activity(name):
        thread = threading.Thread(target=_beat, args=(ended, every_s), daemon=True, name="busy-beats")
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def _beat(ended: threading.Event, every_s: float) -> None:
    at_s, used_s = time.monotonic(), _used_s()
    while not ended.wait(every_s):
        before_s, used_before_s = at_s, used_s
        at_s, used_s = time.monotonic(), _used_s()
        # What has gone without being waited for takes its time along: then the next period tells.
        if used_s - used_before_s >= _MIN_SHARE * (at_s - before_s):
            watched().alive()


def _used_s() -> float:
    # Without this thread's own: it reads about every process of the machine.
    return processor_time_s(os.getpid()) - time.thread_time()
