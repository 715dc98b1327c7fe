"""This machine's network interfaces, and the address under which other machines reach it."""

from __future__ import annotations

import fcntl
import ipaddress
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
    found = _source_address(towards) if towards is not None else None
    # The name of a Debian machine stands for 127.0.1.1 in its /etc/hosts: libraries that resolve it, as Gloo does,
    # would wait for other machines where none can come from.
    for candidate in (found, _address_of_name(socket.gethostname()), _source_address(_SOMEWHERE_ELSE)):
        if candidate is not None and not ipaddress.ip_address(candidate).is_loopback:
            return candidate
    return _LOOPBACK


def _source_address(target: str) -> str | None:
    """Return the address from which this machine would talk to another; None if it has no route there."""
    address = _address_of_name(target)
    if address is None:
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            # Of a datagram socket: it looks up the route and sends nothing.
            asked.connect((address, 9))
            return str(asked.getsockname()[0])
        except OSError:
            return None


def _address_of_name(name: str) -> str | None:
    try:
        return socket.gethostbyname(name)
    except OSError:
        return None
