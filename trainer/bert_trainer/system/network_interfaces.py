"""This machine's network interfaces, and the address under which other machines reach it."""

from __future__ import annotations

import fcntl
import ipaddress
import itertools
import socket
import struct
from pathlib import Path

_ADDRESS_REQUEST = 0x8915  # SIOCGIFADDR (netdevice(7))
# RFC 5737's TEST-NET-1, which is routed as the rest of the world is. Nothing is sent to it.
_SOMEWHERE_ELSE = "192.0.2.1"
_LOOPBACK = "127.0.0.1"


def read_interfaces(root: Path = Path("/")) -> dict[str, str | None]:
    """Return the interfaces' names with their IPv4 addresses; None for one that has none. root: of sysfs."""
    names = sorted(path.name for path in (root / "sys/class/net").glob("*") if path.is_dir())
    return {name: _read_address(name) for name in names}


def _read_address(interface: str) -> str | None:
    request = struct.pack("256s", interface.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            return str(ipaddress.ip_address(fcntl.ioctl(asked, _ADDRESS_REQUEST, request)[20:24]))
        except OSError:  # it has none
            return None


def own_address(towards: str | None = None) -> str:
    """Return this machine's IPv4 address on the network on which others reach it; 127.0.0.1 if it is on none.

    Args:
        towards: name or address of another machine that they all reach; None if there is none yet.
    """
    # Not the address that the machine's own name stands for, which Gloo takes: on Debian that is 127.0.1.1, and a name
    # that nobody knows is asked for half a minute. The last resort is a network without a way out of it.
    candidates = itertools.chain(
        (_source_address(target) for target in (towards, _SOMEWHERE_ELSE) if target is not None),
        read_interfaces().values(),
    )
    return next((one for one in candidates if one and not ipaddress.ip_address(one).is_loopback), _LOOPBACK)


def _source_address(target: str) -> str | None:
    """Return the address from which this machine would talk to another; None if it has no route there."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            # Of a datagram socket: it looks up the route and sends nothing.
            asked.connect((target, 9))
            return str(asked.getsockname()[0])
        except OSError:
            return None
