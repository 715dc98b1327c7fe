"""A stand-in for NFS on a kernel that has no client: the kubelet's mount of a share becomes a bind mount of a folder.

It shows that server, path and options arrive at the node as they were rendered, and that pods work on what was
mounted; it says nothing about the protocol.
"""

from __future__ import annotations

import json
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

_MOUNT = """#!/bin/sh
# The kubelet calls mount -t nfs [-o OPTIONS] SERVER:PATH TARGET, as it would for mount(8) to call mount.nfs.
case " $* " in *" -t nfs "*) exec {mount_nfs} "$@" ;; esac
exec {mount} "$@"
"""
_MOUNT_NFS = """#!/bin/sh
while [ $# -gt 0 ]; do
    case $1 in
        -t) shift ;;
        -o) options=$2; shift ;;
        *) [ -n "$share" ] && target=$1 || share=$1 ;;
    esac
    shift
done
folder={exports}/${{share%%:*}}/${{share#*:}}
printf '{{"share": "%s", "options": "%s", "target": "%s"}}\\n' "$share" "$options" "$target" >>{record}
if [ ! -d "$folder" ]; then
    echo "mount.nfs: mounting $share failed, reason given by server: No such file or directory" >&2
    exit 32
fi
exec {mount} --bind "$folder" "$target"
"""


@dataclass(frozen=True, slots=True)
class NfsMount:
    """What the kubelet asked for."""

    server: str
    path: str
    options: frozenset[str]
    target: Path


class NfsStandIn:
    """Servers, their shares, and a record of what was mounted."""

    def __init__(self, folder: Path) -> None:
        """Write the programs; folder: must not exist."""
        self.programs = folder / "programs"
        """To be put first into the kubelet's PATH."""
        self._exports, self._record = folder / "exports", folder / "mounts.jsonl"
        self.programs.mkdir(parents=True)
        places = {
            "mount": shlex.quote(str(shutil.which("mount"))),
            "mount_nfs": shlex.quote(str(self.programs / "mount.nfs")),
            "exports": shlex.quote(str(self._exports)),
            "record": shlex.quote(str(self._record)),
        }
        for name, text in (("mount", _MOUNT), ("mount.nfs", _MOUNT_NFS)):
            (self.programs / name).write_text(text.format(**places))
            (self.programs / name).chmod(0o755)

    def export(self, server: str, path: str) -> Path:
        """Make a share that anybody may write to; return its folder on this machine."""
        folder = self._exports / server / path.lstrip("/")
        folder.mkdir(parents=True)
        folder.chmod(0o777)
        return folder

    def mounts(self) -> list[NfsMount]:
        """Return every mount that was tried, in order."""
        lines = self._record.read_text().splitlines() if self._record.exists() else []
        found = []
        for line in lines:
            record = json.loads(line)
            server, _, path = record["share"].partition(":")
            options = frozenset(filter(None, record["options"].split(",")))
            found.append(NfsMount(server, path, options, Path(record["target"])))
        return found
