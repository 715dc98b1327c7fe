"""A folder that can be made to fail while pods use it: full, read-only or slow, one job's files at a time.

A file system in user space (fuse(4)) that passes everything on to a folder behind it. It needs /dev/fuse and libfuse 3,
and nothing of the kernel's device mapper, which test machines lack. What fails is said in a file, so that it can change
from one request to the next. As a program it serves one mount: ``faulty_volume.py BACKING MOUNT CONTROL``.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from component import Component

Trouble = Literal["full", "read-only", "slow"]
SLOW_WRITE_S, SLOW_SYNC_S = 0.05, 1.0
"""Of a request to write, which has up to 128 KiB or 1 MiB, and of one to sync."""
_STATFS = ("f_bavail", "f_bfree", "f_blocks", "f_bsize", "f_favail", "f_ffree", "f_files", "f_flag", "f_frsize", "f_namemax")  # fmt: skip  # noqa: E501
_TIMES = {"st_atime": "st_atime_ns", "st_mtime": "st_mtime_ns", "st_ctime": "st_ctime_ns"}


class FaultyVolume:
    """One such mount, served by a process of its own."""

    _mounts: ClassVar[dict[Path, FaultyVolume]] = {}

    def __init__(self, mounted: Path, folder: Path) -> None:
        """mounted: an existing folder that pods mount; folder: for what lies behind it, and for the log."""
        self.mounted, self.backing = mounted, folder / "backing"
        self._control = folder / "trouble.json"
        self.backing.mkdir(parents=True)
        self.backing.chmod(0o777)
        self._trouble: dict[str, Trouble] = {}
        self._changing = threading.Lock()
        self._write()
        words = [sys.executable, __file__, str(self.backing), str(mounted), str(self._control)]
        path = os.pathsep.join(word for word in sys.path if word)
        self._process = Component(
            "faulty volume", words, folder / "volume.log", mounted.is_mount, environment={"PYTHONPATH": path}
        )

    @classmethod
    def at(cls, mounted: Path) -> FaultyVolume:
        """Return the one that is mounted there."""
        return cls._mounts[mounted]

    def start(self) -> None:
        """Mount it."""
        self._mounts[self.mounted] = self
        self._process.start()

    def stop(self) -> None:
        """Unmount it."""
        self._process.stop()
        subprocess.run(["umount", "--lazy", str(self.mounted)], capture_output=True)

    def set_trouble(self, name: str, how: Trouble | None) -> None:
        """Make the files below one folder of the volume fail from now on; None: no longer."""
        with self._changing:  # jobs run side by side
            self._trouble.pop(name, None)
            if how is not None:
                self._trouble[name] = how
            self._write()

    def _write(self) -> None:
        # A new file every time: its reader goes by its number and time, and never reads half of one.
        fresh = self._control.with_suffix(".new")
        fresh.write_text(json.dumps(self._trouble))
        fresh.replace(self._control)


class _Files:
    """The requests of the kernel, in mfusepy's form; paths begin with a slash, file handles are descriptors."""

    use_ns = True

    def __init__(self, backing: str, control: str) -> None:
        self._backing, self._control = backing, control
        self._number, self._trouble = (0, 0), dict[str, Trouble]()

    def _at(self, path: str) -> str:
        return self._backing + path

    def _now(self) -> dict[str, Trouble]:
        found = os.stat(self._control)
        number = found.st_ino, found.st_mtime_ns
        if number != self._number:
            self._trouble = json.loads(Path(self._control).read_text())
            self._number = number
        return self._trouble

    def _how(self, path: str) -> Trouble | None:
        return self._now().get(path.split("/")[1])

    def _check(self, path: str, *, takes_space: bool = False) -> None:
        how = self._how(path)
        if how == "read-only":
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        if how == "full" and takes_space:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if how == "slow":
            time.sleep(SLOW_WRITE_S)

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        found = os.lstat(self._at(path))
        plain = ("st_mode", "st_nlink", "st_uid", "st_gid", "st_size", "st_blocks")
        return {name: getattr(found, name) for name in plain} | {
            name: getattr(found, source) for name, source in _TIMES.items()
        }

    def readdir(self, path: str, fh: int) -> Iterable[str]:
        return [".", "..", *os.listdir(self._at(path))]

    def statfs(self, path: str) -> dict[str, int]:
        found = os.statvfs(self._at(path))
        values = {name: getattr(found, name) for name in _STATFS}
        return {**values, "f_bavail": 0, "f_bfree": 0} if "full" in self._now().values() else values

    def open(self, path: str, flags: int) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR) and self._how(path) == "read-only":
            self._check(path)
        return os.open(self._at(path), flags & ~os.O_APPEND)  # the kernel says where to write

    def create(self, path: str, mode: int, fi: object = None) -> int:
        self._check(path, takes_space=True)
        file = os.open(self._at(path), os.O_RDWR | os.O_CREAT | os.O_TRUNC, mode)
        self._own(path)
        return file

    def mkdir(self, path: str, mode: int) -> int:
        self._check(path, takes_space=True)
        os.mkdir(self._at(path), mode)
        self._own(path)
        return 0

    def symlink(self, target: str, source: str) -> int:
        self._check(target, takes_space=True)
        os.symlink(source, self._at(target))
        self._own(target)
        return 0

    def readlink(self, path: str) -> str:
        return os.readlink(self._at(path))

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        return os.pread(fh, size, offset)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        self._check(path, takes_space=True)
        return os.pwrite(fh, data, offset)

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        self._check(path)
        os.truncate(self._at(path), length)
        return 0

    def unlink(self, path: str) -> int:
        self._check(path)
        os.unlink(self._at(path))
        return 0

    def rmdir(self, path: str) -> int:
        self._check(path)
        os.rmdir(self._at(path))
        return 0

    def rename(self, old: str, new: str) -> int:
        self._check(old)
        os.rename(self._at(old), self._at(new))
        return 0

    def chmod(self, path: str, mode: int) -> int:
        self._check(path)
        os.chmod(self._at(path), mode)
        return 0

    def chown(self, path: str, uid: int, gid: int) -> int:
        self._check(path)
        os.lchown(self._at(path), uid if uid < 2**31 else -1, gid if gid < 2**31 else -1)
        return 0

    def utimens(self, path: str, times: tuple[int, int] | None = None) -> int:
        self._check(path)
        os.utime(self._at(path), ns=times)
        return 0

    def fsync(self, path: str, datasync: int, fh: int) -> int:
        if self._how(path) == "slow":
            time.sleep(SLOW_SYNC_S)
        os.fsync(fh)
        return 0

    def release(self, path: str, fh: int) -> int:
        os.close(fh)
        return 0

    def _own(self, path: str) -> None:
        """Give what was made to whom it was made for: this process is root."""
        import mfusepy

        uid, gid, _ = mfusepy.fuse_get_context()
        os.lchown(self._at(path), uid, gid)


def _serve(backing: str, mounted: str, control: str) -> None:
    import mfusepy  # here: it loads libfuse, which only machines with a node have

    files = _Files(backing, control)
    names = [name for name in vars(_Files) if not name.startswith("_") and callable(getattr(files, name))]
    operations = type("Files", (mfusepy.Operations,), {name: staticmethod(getattr(files, name)) for name in names})()
    operations.use_ns = True
    serve = partial(mfusepy.FUSE, operations, mounted, foreground=True, allow_other=True)
    serve(default_permissions=True, fsname="bert-chaos")


if __name__ == "__main__":
    os.umask(0)
    assert stat.S_ISDIR(os.stat(sys.argv[2]).st_mode)
    _serve(*sys.argv[1:])
