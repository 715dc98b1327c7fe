"""The users that pods run as, and the passwd and group files by which ssh and MPI know them. Pure.

ssh logs in under its own user's name, so the user has the same name in both roles; ids may differ between roles.
"""

from __future__ import annotations

from bert_operator.api.schema.bert_pretrain_job import JobSpec
from bert_operator.api.schema.cluster import SecurityContextSpec
from bert_operator.names import PREPARE_RUN, TRAINING_RUN
from bert_operator.render import names
from bert_operator.state.runs import run_placement

USER_NAME = "bert"
HOME = "/home/bert"
ROOT = 0
# Only in this folder does mpi-operator make the keys unreadable to others, without which ssh rejects root's keys.
ROOT_HOME = "/root"

PASSWD, GROUP = "passwd", "group"
"""Files below /etc."""

_OVERFLOW_ID = 65534
_SSHD_ID = 100


def user_of(spec: JobSpec, role: str) -> SecurityContextSpec:
    """Return the user that the pods of a role run as."""
    own = spec.launcher if role == names.LAUNCHER else spec.worker
    return own.security_context or spec.security_context


def home_of(user: SecurityContextSpec) -> str:
    """Return the user's home folder, a writable volume."""
    return ROOT_HOME if user.run_as_user == ROOT else HOME


def file_keys(spec: JobSpec, role: str) -> dict[str, str]:
    """Return the files that a role mounts and their keys in the frozen configuration; none for the image's own user."""
    user = user_of(spec, role)
    if user.run_as_user is None:
        return {}
    prefix = "" if user == user_of(spec, names.WORKER) else f"{role}-"
    return {file: prefix + file for file in (PASSWD, GROUP)}


def render_files(spec: JobSpec) -> dict[str, str]:
    """Return the content of all files by key."""
    files: dict[str, str] = {}
    is_spread = any(run_placement(spec, run).workers > 1 for run in (PREPARE_RUN, TRAINING_RUN))
    for role in (names.WORKER, names.LAUNCHER) if is_spread else (names.SINGLE,):
        user, keys = user_of(spec, role), file_keys(spec, role)
        if keys:
            files |= {keys[PASSWD]: _passwd(user), keys[GROUP]: _group(user)}
    return files


def group_of(user: SecurityContextSpec) -> int | None:
    """Return the primary group; None for that of the image's own user."""
    return user.run_as_user if user.run_as_group is None else user.run_as_group


def _passwd(user: SecurityContextSpec) -> str:
    number = user.run_as_user
    assert number is not None, "files are rendered for explicit users only"
    # The first line with an id wins, and the job's user may have the id of a system user.
    lines = {} if number == ROOT else {number: f"{USER_NAME}:x:{number}:{group_of(user)}::{HOME}:/bin/bash"}
    root_group = group_of(user) if number == ROOT else ROOT
    for other, line in (
        (ROOT, f"root:x:{ROOT}:{root_group}:root:{ROOT_HOME}:/bin/bash"),
        (_OVERFLOW_ID, f"nobody:x:{_OVERFLOW_ID}:{_OVERFLOW_ID}:nobody:/nonexistent:/usr/sbin/nologin"),
        # Root's sshd does not start without a user of this name (privilege separation).
        (_SSHD_ID, f"sshd:x:{_SSHD_ID}:{_OVERFLOW_ID}::/run/sshd:/usr/sbin/nologin"),
    ):
        lines.setdefault(other, line)
    return "\n".join(lines.values()) + "\n"


def _group(user: SecurityContextSpec) -> str:
    name = "root" if user.run_as_user == ROOT else USER_NAME
    own = group_of(user)
    known = {ROOT: "root", _OVERFLOW_ID: "nogroup"}
    further = dict.fromkeys(number for number in (user.fs_group, *user.supplemental_groups) if number is not None)
    lines = []
    for number in dict.fromkeys((*known, own, *further)):
        assert number is not None, "files are rendered for explicit users only"
        # Root's sshd gives a session only the groups in which this file lists the user.
        member = name if number in further and number != own else ""
        title = known.get(number) or (USER_NAME if number == own else f"group{number}")
        lines.append(f"{title}:x:{number}:{member}\n")
    return "".join(lines)
