"""Where clusters answer names, and how a Service is called there. The standard library alone, no I/O.

Policies are held against what a packet says once it is on its way to a pod: the pod's address and port, not those of
the Service. So the port 53 of a Service is a rule for nobody where its pods listen on another one.
"""

from __future__ import annotations

import re

SERVICES = ("kube-system/kube-dns", "kube-system/coredns", "openshift-dns/dns-default")
"""What the Service of names is called, whatever answers behind it; one of them is enough."""
NAMESPACES = tuple(sorted({service.partition("/")[0] for service in SERVICES}))
"""Where its pods are."""
PORT = 53
"""Of the Service, of most of its pods, and of a cache on the node (NodeLocal DNSCache, clouds' own)."""
POD_PORTS = (5353, 8053)
"""On which its pods listen elsewhere: OpenShift's, Gardener's."""

_LABEL = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_SERVICE = re.compile(rf"({_LABEL})\.({_LABEL})\.svc(?:\.cluster\.local)?\.?")


def service_of(host: str) -> tuple[str, str] | None:
    """Return namespace and name of the Service behind a host name; None for any other host.

    No other ending: ``proxy.emea.svc.corp.example`` is a host of a company's.
    """
    found = _SERVICE.fullmatch(host)
    return (found[2], found[1]) if found else None
