"""A cluster of one node for a program that is run by hand."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from job_cluster import JobCluster, running_cluster
from node import missing_tools


@contextmanager
def own_cluster(program: str) -> Iterator[tuple[JobCluster, Path]]:
    """Start the cluster, in a folder of which nothing is left at the end, also after SIGTERM.

    Raises:
        SystemExit: 2; this machine cannot have it, and standard error says why.
    """
    missing = "unset KUBECONFIG, this needs a node of its own" if os.environ.get("KUBECONFIG") else missing_tools()
    if missing:
        print(f"{program}: {missing}", file=sys.stderr)
        raise SystemExit(2)
    # By default SIGTERM ends Python at once, and a whole cluster would be left behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = Path(tempfile.mkdtemp(prefix=f"bert-{program}-"))
    try:
        with running_cluster(folder / "node") as cluster:
            yield cluster, folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
