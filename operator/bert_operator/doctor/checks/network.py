"""Names, and whether anything enforces the NetworkPolicies of jobs."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from bert_operator import cluster_dns
from bert_operator.doctor.finding import Finding, error, note
from bert_operator.doctor.objects import name_of
from bert_operator.doctor.snapshot import Snapshot
from bert_operator.json_paths import Json, dig, entries, mapping

ENGINES = (
    "anetd", "antrea-agent", "aws-node", "azure-npm", "calico-node", "canal", "cilium", "kindnet",
    "kube-network-policies", "kube-router", "ovnkube-node", "romana-agent", "weave-net",
)  # fmt: skip
"""DaemonSets of network plugins that enforce NetworkPolicies; of aws-node only where that is switched on."""
_BUILT_IN = ("+k3s", "+rke2")
"""Distributions whose own process does it."""


def check_names(snapshot: Snapshot) -> Iterator[Finding]:
    """Check that cluster DNS runs, by which workers find each other."""
    if not any(snapshot.endpoints.get(service) for service in cluster_dns.SERVICES):
        yield error(
            f"nobody answers for names: none of the Services {', '.join(cluster_dns.SERVICES)} has a ready endpoint",
            "launchers do not find their workers: attempts fail once their pods have run for mpi.workerWaitSeconds",
            "kubectl -n kube-system get pods -l k8s-app=kube-dns, and repair CoreDNS",
        )


def check_policies(snapshot: Snapshot) -> Iterator[Finding]:
    """Report if nothing is known to enforce NetworkPolicies, and what they would block."""
    settings = snapshot.settings
    if settings is None or settings.document.get("jobNetworkPolicy") is not True:
        return
    yield from _closed_ports(snapshot, settings.source, settings.document)
    version = str(dig(snapshot.one("version"), "gitVersion"))
    running = [name_of(item) for item in snapshot.items("daemon sets")]
    if any(name.startswith(ENGINES) for name in running) or any(mark in version for mark in _BUILT_IN):
        return
    yield note(
        f"ConfigMap {settings.source}, jobNetworkPolicy: got true, and no network plugin is known here to enforce "
        "NetworkPolicies",
        "where none does, the policies are written and nobody is kept from the pods of jobs",
        "ask whoever runs the network; Calico, Cilium and others do it (docs/concepts/network.md)",
    )


def proxy_services(snapshot: Snapshot) -> Iterator[tuple[str, int, str]]:
    """Yield the proxies that profiles give by the name of a Service: the profile's name, the port, the Service."""
    for profile_name, profile in snapshot.profiles().items():
        for address in {str(value) for value in mapping(profile, "proxy").values()}:
            try:
                parts = urlsplit(address if "//" in address else f"//{address}")
                port = parts.port or (443 if parts.scheme == "https" else 80)
            except ValueError:
                continue
            if service := cluster_dns.service_of(parts.hostname or ""):
                yield profile_name, port, "/".join(service)


def _closed_ports(snapshot: Snapshot, source: str, settings: Json) -> Iterator[Finding]:
    """Yield the Services that policies open a port for, and whose pods listen on another one."""
    remedy = f"add a rule with the ports of the pods to jobEgress in ConfigMap {source} (docs/concepts/network.md)"
    why = "policies are held against the port of the pod: jobs "
    for service in cluster_dns.SERVICES:
        asked = sorted(port for protocol, port in snapshot.ports.get(service, ()) if protocol == "UDP")
        known = {cluster_dns.PORT, *cluster_dns.POD_PORTS}
        if (
            snapshot.endpoints.get(service)
            and asked
            and not any(port in known or _opens(settings, port) for port in asked)
        ):
            problem = f"Service {service}: its pods answer names on port {asked[0]}; allowed to jobs: "
            yield error(problem + ", ".join(map(str, sorted(known))), f"{why}resolve no name", remedy)
    for profile, port, service in proxy_services(snapshot):
        there = sorted(port for protocol, port in snapshot.ports.get(service, ()) if protocol == "TCP")
        if there and port not in there and not any(_opens(settings, each) for each in there):
            listed = ", ".join(map(str, there))
            problem = f"profile {profile}, proxy: port {port} of Service {service} leads to port {listed} of its pods"
            yield error(problem, f"{why}do not reach the proxy", remedy)


def _opens(settings: Json, port: int) -> bool:
    """Return whether a rule of jobEgress lets through what goes to a port, wherever that is."""
    for rule in entries(settings, "jobEgress"):
        ports = entries(rule, "ports")
        if not ports or any(
            item.get("port") is None or item["port"] <= port <= (item.get("endPort") or item["port"]) for item in ports
        ):
            return True
    return False
