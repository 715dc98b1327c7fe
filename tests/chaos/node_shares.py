"""Slows pods of this machine's node down, by the quota of processor time that their control groups have.

Root is needed. kubelet keeps a pod's processes in a group that is named after its uid, in version 1 of control groups
below every controller (https://docs.kernel.org/scheduler/sched-bwc.html, and "CPU" in admin-guide/cgroup-v2.html).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from job_cluster import Json

GROUPS = Path("/sys/fs/cgroup")
_PERIOD_US = 100_000


@contextlib.contextmanager
def slowed(pods: Sequence[Json], share: float) -> Iterator[None]:
    """Give each of some pods no more than a share of one core.

    Raises:
        LookupError: none of them has processes any more.
    """
    files = [file for pod in pods for file in _quota_files(pod["metadata"]["uid"])]
    if not files:
        raise LookupError("no control group of these pods has a quota of processor time")
    before = {file: file.read_text().strip() for file in files}
    quota_us = int(share * _PERIOD_US)
    try:
        for file in files:
            file.write_text(str(quota_us) if file.name.endswith("quota_us") else f"{quota_us} {_PERIOD_US}")
        yield
    finally:
        for file, text in before.items():
            with contextlib.suppress(OSError):  # the pod has ended
                file.write_text(text)


def _quota_files(uid: str) -> list[Path]:
    """Return where a pod's quota is written: of version 1, and of version 2."""
    roots = [root for root in (GROUPS / "cpu/kubepods", GROUPS / "kubepods") if root.is_dir()]
    places = [place for root in roots for place in (*root.glob(f"*/pod{uid}"), *root.glob(f"pod{uid}"))]
    files = [place / name for place in places for name in ("cpu.cfs_quota_us", "cpu.max")]
    return [file for file in files if file.exists()]
