"""Signs of life of a pod's main process: a record in the log every minute.

A launcher that is stopped, or whose node is frozen, watches nothing any more. From the outside only its silence tells;
so it promises to write something every so often, and the operator holds it to that. Only once it has written such a
record: older images promise nothing.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator, Mapping

from bert_trainer.pod.launcher_log import RecordSource
from bert_trainer.system.heartbeat import read_limits

_MAX_EVERY_S, _MIN_EVERY_S = 60.0, 1.0


@contextlib.contextmanager
def keepalives(source: RecordSource, environment: Mapping[str, str]) -> Iterator[None]:
    """Write ``event=alive`` to the log at once, and every ``every_s`` inside the block.

    Whatever else is written: a program may repeat one line for ever, so that the end of its log never changes. This
    record does, by its ``uptime_s``.
    """
    every_s = min(max(read_limits(environment)[0] / 2, _MIN_EVERY_S), _MAX_EVERY_S)
    began_at_s, ended = time.monotonic(), threading.Event()

    def repeat() -> None:
        is_first = True
        while is_first or not ended.wait(every_s):
            is_first = False
            record = source.render_record("alive", every_s=every_s, uptime_s=int(time.monotonic() - began_at_s))
            sys.stdout.write(record + "\n")
            sys.stdout.flush()

    if source.job is None:  # nobody reads it
        yield
        return
    # In a thread from the first line on: what reads this log may hang.
    threading.Thread(target=repeat, daemon=True).start()
    try:
        yield
    finally:
        ended.set()
