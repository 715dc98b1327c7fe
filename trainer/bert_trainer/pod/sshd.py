"""The private sshd of a worker: its configuration and the environment that it hands to what mpirun starts.

A session of sshd begins with a clean environment, while a job's settings and secrets come as variables of the
container: they have to stand in sshd's configuration. Source of the syntax: sshd_config(5) and ssh's quoting rules
since OpenSSH 8.7.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from bert_trainer.errors import InputError

# What every session has of its own, what concerns this process alone, and what names its terminal.
_OWN = frozenset(
    {"_", "HOME", "HOSTNAME", "LOGNAME", "OLDPWD", "PWD", "SHELL", "SHLVL", "TERM", "USER"}
    | {"BERT_TERMINATION_LOG", "K_MPI_JOB_ROLE"}
)
_SERVICE_PORT = re.compile(r"(.+)_SERVICE_PORT")
_LINE_ENDS = ("\n", "\r", "\0")


def choose_environment(environment: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the variables that a session gets, and the names of those that cannot be carried: several lines.

    Kubernetes adds seven or more variables for every service of the namespace; nobody here needs them.
    """
    services = {
        match[1]
        for name in environment
        if (match := _SERVICE_PORT.fullmatch(name)) and f"{match[1]}_SERVICE_HOST" in environment
    }
    chosen, skipped = {}, []
    for name, value in sorted(environment.items()):
        if name in _OWN or name.startswith("KUBERNETES_") or _is_of_service(name, services):
            continue
        if any(end in value for end in _LINE_ENDS):
            skipped.append(name)
        else:
            chosen[name] = value
    return chosen, tuple(skipped)


def _is_of_service(name: str, services: set[str]) -> bool:
    return any(
        name in (f"{service}_SERVICE_HOST", f"{service}_SERVICE_PORT", f"{service}_PORT")
        or name.startswith((f"{service}_SERVICE_PORT_", f"{service}_PORT_"))
        for service in services
    )


def render_config(*, port: int, key_folder: Path, environment: Mapping[str, str]) -> str:
    """Return a configuration for sshd that lets in whoever has the job's key, and nobody else.

    environment: of the sessions; its values hold no line ends.
    """
    lines = [
        f"Port {port}",
        "PidFile none",
        f"HostKey {quote(str(key_folder / 'id_rsa'))}",
        f"AuthorizedKeysFile {quote(str(key_folder / 'authorized_keys'))}",
        # A mounted secret belongs to root and may be readable by a group.
        "StrictModes no",
        "UsePAM no",
        "PubkeyAuthentication yes",
        "PasswordAuthentication no",
        "KbdInteractiveAuthentication no",
        "PermitRootLogin prohibit-password",
        "AllowTcpForwarding no",
        "X11Forwarding no",
        "PrintMotd no",
        # The default turns connections away at random when many come at once, as at the start of a job they do.
        "MaxStartups 1000",
        "LogLevel ERROR",
    ]
    if environment:
        # Only the first SetEnv counts, so all of them stand in one.
        lines.append("SetEnv " + " ".join(quote(f"{name}={value}") for name, value in environment.items()))
    return "\n".join(lines) + "\n"


def quote(word: str) -> str:
    """Return one word of a configuration line, whatever characters it has."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def check_keys(folder: Path) -> None:
    """Make sure that the job's key is there.

    Raises:
        InputError: a file is missing or cannot be read.
    """
    for name in ("id_rsa", "authorized_keys"):
        path = folder / name
        if not os.access(path, os.R_OK):
            state = "cannot be read" if path.exists() else "is missing"
            raise InputError(
                f"{path}: {state}; sshd needs it",
                hint="set spec.sshAuthMountPath of the MPIJob to this folder, and fsGroup to the user's group",
            )


def find_sshd() -> str:
    """Return sshd's path, which has to be absolute: sshd starts itself again for every connection.

    Raises:
        InputError: it is not installed.
    """
    found = shutil.which("sshd", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"]))
    if found is None:
        raise InputError("sshd: is not installed", hint="use an image with the OpenSSH client and server")
    return os.path.abspath(found)
