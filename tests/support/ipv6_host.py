"""A network namespace without IPv4, but for the loopback interface: a pod of a cluster with IPv6 alone."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

ADDRESS = "fd00:1::5"
"""Its own, unique local (RFC 4193)."""


@dataclass(frozen=True)
class Host:
    """A namespace with ::1, 127.0.0.1 and ``ADDRESS``."""

    namespace: str

    def run_python(self, text: str) -> str:
        """Run a program there; return what it prints."""
        command = ["ip", "netns", "exec", self.namespace, sys.executable, "-c", text]
        path = {"PYTHONPATH": os.pathsep.join(sys.path)}
        answer = subprocess.run(command, capture_output=True, text=True, timeout=50, env={**os.environ, **path})
        assert answer.returncode == 0, answer.stderr
        return answer.stdout.strip()


@contextlib.contextmanager
def ipv6_host(*, has_ipv4: bool = False) -> Iterator[Host]:
    """Make one; skips where that is not possible. has_ipv4: it has 10.201.9.5 as well."""
    namespace = f"t{os.getpid()}six"

    def ip(*words: str, check: bool = True) -> int:
        return subprocess.run(["ip", *words], check=check, capture_output=True).returncode

    if shutil.which("ip") is None or os.geteuid() != 0 or ip("netns", "add", namespace, check=False) != 0:
        pytest.skip("requires root, iproute2 and the right to make network namespaces")
    inside = ("-n", namespace)
    try:
        ip(*inside, "link", "add", "eth0", "type", "veth", "peer", "name", "other")
        for device in ("lo", "eth0", "other"):
            ip(*inside, "link", "set", device, "up")
        if ip(*inside, "addr", "add", f"{ADDRESS}/64", "dev", "eth0", "nodad", check=False) != 0:
            pytest.skip("requires IPv6 in the kernel")
        ip(*inside, "-6", "route", "add", "default", "via", "fd00:1::1", "dev", "eth0")
        if has_ipv4:
            ip(*inside, "addr", "add", "10.201.9.5/24", "dev", "eth0")
            ip(*inside, "route", "add", "default", "via", "10.201.9.1", "dev", "eth0")
        yield Host(namespace)
    finally:
        ip("netns", "del", namespace, check=False)
