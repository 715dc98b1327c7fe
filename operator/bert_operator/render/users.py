"""As whom pods run, and the passwd and group files by which ssh and MPI know that user. Pure.

ssh logs in under its own user's name, so both roles call their user alike; numbers may differ from role to role.
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
# mpi-operator lets nobody but their owner read the keys in this folder, and ssh refuses root's keys otherwise.
ROOT_HOME = "/root"

PASSWD, GROUP = "passwd", "group"
"""Files below /etc."""

_OVERFLOW_ID = 65534
_SSHD_ID = 100


def user_of(spec: JobSpec, role: str) -> SecurityContextSpec:
    """Return as whom the pods of a role run."""
    own = spec.launcher if role == names.LAUNCHER else spec.worker
    return own.security_context or spec.security_context


def home_of(user: SecurityContextSpec) -> str:
    """Return the user's home, which is a writable volume."""
    return ROOT_HOME if user.run_as_user == ROOT else HOME


def file_keys(spec: JobSpec, role: str) -> dict[str, str]:
    """Return the key in the frozen configuration of each file that a role mounts; none for the image's own user."""
    user = user_of(spec, role)
    if user.run_as_user is None:
        return {}
    prefix = "" if user == user_of(spec, names.WORKER) else f"{role}-"
    return {file: prefix + file for file in (PASSWD, GROUP)}


def render_files(spec: JobSpec) -> dict[str, str]:
    """Return the files of every role by their keys."""
    files: dict[str, str] = {}
    is_spread = any(run_placement(spec, run).workers > 1 for run in (PREPARE_RUN, TRAINING_RUN))
    for role in (names.WORKER, names.LAUNCHER) if is_spread else (names.SINGLE,):
        user, keys = user_of(spec, role), file_keys(spec, role)
        if keys:
            files |= {keys[PASSWD]: _passwd(user), keys[GROUP]: _group(user)}
    return files


def group_of(user: SecurityContextSpec) -> int | None:
    """Return the main group; None for that of the image's own user."""
    return user.run_as_user if user.run_as_group is None else user.run_as_group


def _passwd(user: SecurityContextSpec) -> str:
    number = user.run_as_user
    assert number is not None, "files are made for given users only"
    # The first line with a number wins: the job's user may have one of those that a system gives to others.
    lines = {} if number == ROOT else {number: f"{USER_NAME}:x:{number}:{group_of(user)}::{HOME}:/bin/bash"}
    root_group = group_of(user) if number == ROOT else ROOT
    for other, line in (
        (ROOT, f"root:x:{ROOT}:{root_group}:root:{ROOT_HOME}:/bin/bash"),
        (_OVERFLOW_ID, f"nobody:x:{_OVERFLOW_ID}:{_OVERFLOW_ID}:nobody:/nonexistent:/usr/sbin/nologin"),
        # The sshd of root starts only where there is a user of this name.
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
        assert number is not None, "files are made for given users only"
        # The sshd of root gives a session the groups in which this file names the user, and no other.
        member = name if number in further and number != own else ""
        title = known.get(number) or (USER_NAME if number == own else f"group{number}")
        lines.append(f"{title}:x:{number}:{member}\n")
    return "".join(lines)
