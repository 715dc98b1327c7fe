"""Signs of life of a pod's main process: a record in the log whenever that has been silent for a while.

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
from bert_trainer.pod.rank_output import OutputForwarder
from bert_trainer.system.heartbeat import read_limits

_LONGEST_EVERY_S, _SHORTEST_EVERY_S = 60.0, 1.0


@contextlib.contextmanager
def signs_of_life(source: RecordSource, forwarder: OutputForwarder, environment: Mapping[str, str]) -> Iterator[None]:
    """Write ``event=alive`` to the log at once, and inside the block whenever it has been silent for ``every_s``."""
    every_s = min(max(read_limits(environment)[0] / 2, _SHORTEST_EVERY_S), _LONGEST_EVERY_S)
    ended = threading.Event()

    def write() -> None:
        sys.stdout.write(source.render_record("alive", every_s=every_s) + "\n")
        sys.stdout.flush()

    def repeat() -> None:
        written_at_s = time.monotonic()
        while not ended.wait(max(written_at_s + every_s - time.monotonic(), 0.05)):
            written_at_s = max(written_at_s, forwarder.forwarded_at_s)
            if time.monotonic() >= written_at_s + every_s:
                write()
                written_at_s = time.monotonic()

    if source.job is None:  # nobody reads it
        yield
        return
    write()
    threading.Thread(target=repeat, daemon=True).start()
    try:
        yield
    finally:
        ended.set()
