"""A fresh folder for temporary files, taken away at the end.

Open MPI calls its own folder after a process id (/tmp/prted.209) and fails, without a word, where that exists. In a
container process ids repeat from start to start, and a volume at /tmp keeps what a killed one has left.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def fresh_folder() -> Iterator[Path]:
    """Make a folder that nobody else can read, below TMPDIR or /tmp.

    Hand a folder inside of it on as TMPDIR to what is started.
    """
    # Whoever is still ending may write into it while it is taken away.
    with tempfile.TemporaryDirectory(prefix="bert-pod-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "tmp").mkdir(mode=0o700)
        yield folder
