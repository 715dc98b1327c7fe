"""The NetworkPolicy of a job: its pods reach each other, names and a profile's proxy; nobody else reaches them. Pure.

One for each job, since a policy of a whole namespace cannot say "of the same job": it would let every job of the
namespace at the sshd and the MPI ports of every other. docs/adr/0010 has what it allows and why. What one policy allows
no other takes away, so whoever may write policies in the namespace can allow a job more by another one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from ipaddress import IPv6Address, ip_address
from typing import Any
from urllib.parse import urlsplit

from bert_operator import cluster_dns
from bert_operator.api.schema.cluster import ProxySpec
from bert_operator.render import names
from bert_operator.render.frozen import Frozen, owner_reference

Document = dict[str, Any]

_USUAL_PORTS = {"http": 80, "https": 443}
_NAMESPACE = "kubernetes.io/metadata.name"
_ANY_POD: Document = {"namespaceSelector": {}}
_ANYWHERE: list[Document] = [
    # Not the node itself, where clouds hand out its credentials (RFC 3927 and 4291: link-local).
    {"ipBlock": {"cidr": "0.0.0.0/0", "except": ["169.254.0.0/16"]}},
    {"ipBlock": {"cidr": "::/0", "except": ["fe80::/10"]}},
    _ANY_POD,  # ranges are addresses outside of the cluster, with some plugins
]


def render_network_policy(
    frozen: Frozen, *, monitoring_namespace: str, proxies: Collection[str], egress: Sequence[Document]
) -> Document | None:
    """Return the policy; None for a job on the nodes' network, whose pods have no address of their own.

    Args:
        frozen: The job.
        monitoring_namespace: Where Prometheus runs, which may reach the port that the job serves its metrics at.
        proxies: Addresses whose ports are opened where the job has them. Not whatever the job names: who submits jobs
            would decide what the network lets through.
        egress: Further rules, as Kubernetes has them.
    """
    spec = frozen.job.spec
    # No policy holds for such pods, and by labels they are not found as peers either: what would be cut off is the
    # launcher, the only pod with an address of its own, from its workers.
    if spec.network.host_network:
        return None
    own = {"podSelector": {"matchLabels": {names.JOB_LABEL: frozen.job.ref.name}}}
    ingress: list[Document] = [{"from": [own]}]
    if spec.logging.prometheus_port:  # 0: a free one, which nobody knows here
        there = {"namespaceSelector": {"matchLabels": {_NAMESPACE: monitoring_namespace}}}
        ingress.append({"from": [there], "ports": [_port(spec.logging.prometheus_port)]})
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {
            "name": names.network_policy_name(frozen.job.ref.name),
            "namespace": frozen.job.ref.namespace,
            "labels": {"app.kubernetes.io/managed-by": "bert-operator", names.JOB_LABEL: frozen.job.ref.name},
            "ownerReferences": [owner_reference(frozen)],
        },
        "spec": {
            **own,
            "policyTypes": ["Ingress", "Egress"],
            "ingress": ingress,
            # All ports: sshd's aside, MPI, NCCL and Gloo choose theirs.
            "egress": [
                {"to": [own]},
                *_names(),
                *(
                    {"to": _peers(host), "ports": [_port(port)]}
                    for port, host in sorted(set(_proxy_places(spec.proxy, proxies)))
                ),
                *egress,
            ],
        },
    }


def _names() -> Iterator[Document]:
    """Yield the rules for asking names."""
    # Anywhere: where names are answered differs between clusters (pods, an address of the node).
    yield {"ports": [_port(cluster_dns.PORT, protocol) for protocol in ("UDP", "TCP")]}
    # A rule is held against the port of the pod that a Service leads to. Nobody else answers names there.
    there = {"key": _NAMESPACE, "operator": "In", "values": [*cluster_dns.NAMESPACES]}
    yield {
        "to": [{"namespaceSelector": {"matchExpressions": [there]}}],
        "ports": [_port(port, protocol) for port in cluster_dns.POD_PORTS for protocol in ("UDP", "TCP")],
    }


def _port(port: int, protocol: str = "TCP") -> Document:
    return {"protocol": protocol, "port": port}


def _proxy_places(proxy: ProxySpec, proxies: Collection[str]) -> Iterator[tuple[int, str]]:
    """Yield port and host of a job's proxies that are among those. Empty: a host that a policy cannot name."""
    for address in (proxy.http, proxy.https):
        if address is None or address not in proxies:
            continue
        try:
            parts = urlsplit(address if "//" in address else f"//{address}")
            port = parts.port
            host = parts.hostname or ""
        except ValueError:  # as somebody has mistyped it; programs will say so
            continue
        yield port or _USUAL_PORTS.get(parts.scheme, 80), _policy_host(host)


def _policy_host(host: str) -> str:
    """Return a host as a policy can name it: an address, or a Service without the dot at its end. Else empty."""
    if cluster_dns.service_of(host):
        return host.removesuffix(".")
    try:
        ip_address(host)
    except ValueError:
        return ""
    return host


def _peers(host: str) -> list[Document]:
    """Return whom a proxy's port is open to. A policy knows addresses and pods, no names outside of the cluster."""
    if service := cluster_dns.service_of(host):
        return [{"namespaceSelector": {"matchLabels": {_NAMESPACE: service[0]}}}]
    if not host:
        return _ANYWHERE
    address = ip_address(host)
    if isinstance(address, IPv6Address):
        if address.scope_id is not None:  # fe80::1%eth0: only addresses of a link have a zone, and ranges have none
            return [_ANY_POD]
        # What is sent to ::ffff:169.254.169.254 goes to 169.254.169.254.
        address = address.ipv4_mapped or address
    block = {"ipBlock": {"cidr": f"{address}/{address.max_prefixlen}"}}
    # Pods as well: the address may be a Service's, and what is behind it is looked at.
    return [_ANY_POD] if address.is_link_local else [block, _ANY_POD]
