"""A rank that stays slower than the others, as the newest record of the trainer names it. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from bert_job.progress import ProgressRecord

LASTING_INTERVALS = 3
LASTING_S = 60.0
"""So long a rank is slow before the status says so: a neighbour on its cores, or a cold cache, is gone by then."""


def describe_straggler(record: ProgressRecord | None, attempt: int, nodes: Mapping[str, str]) -> str | None:
    """Return a sentence about the slow rank of an attempt; None if there is none, or not for long.

    Args:
        record: The newest about progress.
        attempt: The newest one.
        nodes: Of its pods, by name.
    """
    if record is None or record.attempt != attempt or (rank := record.count("slow_rank")) is None:
        return None
    score, for_s = record.number("slow_rank_score"), record.number("slow_rank_s")
    intervals = record.count("slow_rank_intervals")
    if score is None or for_s is None or intervals is None:
        return None
    if intervals < LASTING_INTERVALS or for_s < LASTING_S:
        return None
    # Its pod by its host's name, which a program may print as it likes: only a pod of the attempt has a node.
    host = (record.text("slow_rank_host") or "an unknown host")[:63]
    where = f"pod {host} on node {nodes[host]}" if host in nodes else host
    node = f": kubectl describe node {nodes[host]}" if host in nodes else ""
    return (
        f"Rank {rank} in {where} takes {score:.1f} times as long as the others for its part of a step, and they wait "
        f"for it. Next: look for throttled, faulty or shared processors, devices and disks there{node}"
    )
