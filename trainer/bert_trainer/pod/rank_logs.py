"""Files with the lines of each rank, to read after the pods are gone. Trouble with them never stops a run.

They are bounded, since whatever a rank prints would otherwise fill the volume that checkpoints are written to: all of a
run's together take at most ``MAX_BYTES``. Half of that is the newest attempt's, shared alike by its ranks; a rank has
two files, ``rank-N.log`` and, older, ``rank-N.log.1``, so that of what it printed at least the newest half of its share
is there. The other half is that of earlier attempts, of which the oldest are deleted.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO

from bert_trainer.system.atomic_files import open_no_link

MAX_BYTES = 512 * 1_048_576
"""Of the files of all attempts of a run."""

_FILES_PER_RANK = 2
_ATTEMPT = re.compile(r"attempt-([0-9]+)")


class RankLogFiles:
    """Writes a file for each rank of one attempt."""

    def __init__(self, environment: Mapping[str, str], *, ranks: int = 1, max_bytes: int = MAX_BYTES) -> None:
        """Write below BERT_LOG_FOLDER; nothing if it is not set.

        Args:
            environment: Of this pod.
            ranks: How many there are. Lines of others, which a program can pretend, get no file.
            max_bytes: Of all files.
        """
        root, attempt = environment.get("BERT_LOG_FOLDER"), environment.get("BERT_ATTEMPT", "1")
        self._folder = Path(root) / f"attempt-{attempt}" if root else None
        self._ranks = ranks
        self._bytes_of_earlier = max_bytes // 2
        self._bytes_per_file = max_bytes // 2 // ranks // _FILES_PER_RANK
        self._files: dict[int, IO[bytes]] = {}
        self._sizes: dict[int, int] = {}

    def append(self, rank: int, line: bytes) -> None:
        """Add one line; of one that is longer than a file may be, its end."""
        if self._folder is None or not 0 <= rank < self._ranks:
            return
        line = line[-self._bytes_per_file :]
        path = self._folder / f"rank-{rank}.log"
        try:
            if not self._sizes:
                self._folder.mkdir(parents=True, exist_ok=True)
                _drop_oldest(self._folder, self._bytes_of_earlier)
            if rank not in self._files:
                self._open(rank, path)
            if self._sizes[rank] + len(line) > self._bytes_per_file:
                self._files.pop(rank).close()
                path.replace(path.with_name(f"{path.name}.1"))
                self._open(rank, path)
            self._files[rank].write(line)
            self._sizes[rank] += len(line)
        except OSError as error:
            sys.stderr.write(f"bert-pod: {self._folder}: no more log files are written ({error.strerror})\n")
            self.close()
            self._folder = None

    def _open(self, rank: int, path: Path) -> None:
        # Unbuffered: each line is one write, and none is lost when the pod dies.
        self._files[rank] = open_no_link(path, "ab", buffering=0)
        self._sizes[rank] = self._files[rank].tell()

    def close(self) -> None:
        """Close them all."""
        for file in self._files.values():
            file.close()
        self._files.clear()


def _drop_oldest(folder: Path, max_bytes: int) -> None:
    """Delete the oldest attempts beside a folder until the others have no more than so many bytes."""
    earlier = sorted(
        (int(match[1]), path)
        for path in folder.parent.iterdir()
        if path != folder and (match := _ATTEMPT.fullmatch(path.name)) and not path.is_symlink()
    )
    sizes = {path: _size_of(path) for _, path in earlier}
    for _, path in earlier:
        if sum(sizes.values()) <= max_bytes:
            return
        del sizes[path]
        shutil.rmtree(path, ignore_errors=True)


def _size_of(folder: Path) -> int:
    size = 0
    for path in folder.glob("*"):
        with suppress(FileNotFoundError):  # another attempt that still ends may rename its own
            size += path.lstat().st_size
    return size
