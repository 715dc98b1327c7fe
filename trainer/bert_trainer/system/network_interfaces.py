"""This machine's network interfaces, and the address under which other machines reach it."""

from __future__ import annotations

import fcntl
import ipaddress
import itertools
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

_ADDRESS_REQUEST = 0x8915  # SIOCGIFADDR (netdevice(7))
_IPV6_ADDRESSES = Path("/proc/net/if_inet6")
_GLOBAL_SCOPE = "00"  # unique local addresses included; proc(5)
# RFC 5737's TEST-NET-1 and RFC 3849's prefix for documentation, which are routed as the rest of the world is. Nothing
# is sent to them. IPv4 first: where a pod has both, all pods of the job have both.
_SOMEWHERE_ELSE = ("192.0.2.1", "2001:db8::1")
_LOOPBACK = "127.0.0.1"


def read_interfaces(root: Path = Path("/")) -> dict[str, tuple[str, ...]]:
    """Return the interfaces' names with their addresses: that of IPv4, then those of IPv6 beyond the link.

    root: of sysfs.
    """
    names = sorted(path.name for path in (root / "sys/class/net").glob("*") if path.is_dir())
    ipv6 = _read_ipv6_addresses()
    return {name: (*_read_ipv4_address(name), *ipv6.get(name, ())) for name in names}


def _read_ipv4_address(interface: str) -> Iterator[str]:
    request = struct.pack("256s", interface.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            yield str(ipaddress.ip_address(fcntl.ioctl(asked, _ADDRESS_REQUEST, request)[20:24]))
        except OSError:  # it has none
            return


def _read_ipv6_addresses() -> dict[str, list[str]]:
    try:
        lines = _IPV6_ADDRESSES.read_text().splitlines()
    except OSError:  # the kernel has no IPv6
        return {}
    found: dict[str, list[str]] = {}
    for line in lines:
        digits, _, _, scope, _, name = line.split()
        if scope == _GLOBAL_SCOPE:
            found.setdefault(name, []).append(str(ipaddress.IPv6Address(bytes.fromhex(digits))))
    return found


def own_address(towards: str | None = None) -> str:
    """Return this machine's address on the network on which others reach it; 127.0.0.1 if it is on none.

    Args:
        towards: name or address of another machine that they all reach; None if there is none yet.
    """
    # Not the address that the machine's own name stands for, which Gloo takes: on Debian that is 127.0.1.1, and a name
    # that nobody knows is asked for half a minute. The last resort is a network without a way out of it.
    candidates = itertools.chain(
        *(_source_addresses(target) for target in (towards, *_SOMEWHERE_ELSE) if target is not None),
        *read_interfaces().values(),
    )
    return next((one for one in candidates if _is_reached(one)), _LOOPBACK)


def _is_reached(address: str) -> bool:
    found = ipaddress.ip_address(address)
    return not found.is_loopback and not found.is_link_local


def _source_addresses(target: str) -> Iterator[str]:
    """Yield the addresses from which this machine would talk to another; none if it has no route there."""
    try:
        found = socket.getaddrinfo(target, 9, type=socket.SOCK_DGRAM)
    except OSError:
        return
    for family, kind, _, _, where in found:
        try:
            # Of a datagram socket: it looks up the route and sends nothing.
            with socket.socket(family, kind) as asked:
                asked.connect(where)
                yield str(asked.getsockname()[0]).partition("%")[0]
        except OSError:
            continue
