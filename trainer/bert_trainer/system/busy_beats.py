"""Beats of work that has no steps of one length: it makes progress as long as its processes use the processor.

A pass over a corpus may take hours without a result to count, and looks the same from outside whether it reads or
waits for ever for a server that is gone. What tells them apart is the processor: even a build that a slow disk holds up
parses what it reads, while one that waits only looks round a few times a second.
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
_LEAST_SHARE = 0.02
"""Of one processor, over ``_EVERY_S``. A build whose workers are all stopped uses 0.002, by looking round."""


@contextlib.contextmanager
def beat_while_busy(name: str, every_s: float = _EVERY_S) -> Iterator[None]:
    """Tell of progress in this activity whenever this process and those below it have used the processor."""
    ended = threading.Event()
    with watched().activity(name):
        thread = threading.Thread(target=_beat, args=(ended, every_s), daemon=True, name="busy-beats")
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def _beat(ended: threading.Event, every_s: float) -> None:
    process = os.getpid()
    at_s, used_s = time.monotonic(), processor_time_s(process)
    while not ended.wait(every_s):
        before = at_s, used_s
        at_s, used_s = time.monotonic(), processor_time_s(process)
        # Less than before: a process has gone that nobody has waited for.
        if used_s < before[1] or used_s - before[1] >= _LEAST_SHARE * (at_s - before[0]):
            watched().alive()
