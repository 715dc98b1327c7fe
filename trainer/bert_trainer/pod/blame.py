"""Which process has ended badly first, and whether by itself. Values in, values out.

Three witnesses are heard: ``bert-pod rank``, which tells how its program ended, the launcher's banner, and the words of
the ranks. None sees everything: a rank whose peer was killed may abort before anybody has noticed that death.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence

from bert_trainer.pod.story import FirstFailure, Story


def find_failure(
    told: Sequence[FirstFailure],
    story: Story,
    *,
    hosts: tuple[str, ...],
    slots: int,
    names_all: bool = False,
) -> FirstFailure | None:
    """Return the process that has brought the others down, None where nobody names one.

    told: bad ends in the order in which they were told. hosts, slots: where ranks are, in the order of the host file.
    names_all: the launcher's banner also names ranks that the launcher has ended itself.
    """
    named = story.first_failure(hosts, slots)
    # Launchers end whoever tells of it, and a rank with it; what has killed the program alone came from outside.
    killed = next((end for end in told if end.signal == signal.SIGKILL), None)
    if killed is not None or story.has_lost_worker:
        return killed or named
    is_named_by_signal = named is not None and named.signal is not None and not names_all
    for end in told:
        if end.exit_code is None or story.blames_peer(end.rank):
            continue
        if not is_named_by_signal or story.explains(end.rank):
            return end
    # Where the banner also names whom the launcher has ended, a rank that told of a signal of its own comes first.
    own = [end for end in told if end.signal not in (None, signal.SIGTERM)] if names_all else []
    by_signal = next((end for end in (*own, named, *told) if end is not None and end.signal is not None), None)
    if by_signal is not None or named is not None or story.has_lost_peer or not told:
        return by_signal or named
    return told[0]
