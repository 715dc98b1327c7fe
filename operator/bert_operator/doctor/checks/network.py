"""Names, and whether anything enforces the NetworkPolicies of jobs."""

from __future__ import annotations

from collections.abc import Iterator

from bert_operator.doctor.finding import Finding, error, note
from bert_operator.doctor.objects import dig, name_of
from bert_operator.doctor.snapshot import Snapshot

DNS = ("kube-system/kube-dns", "kube-system/coredns", "openshift-dns/dns-default")
"""What the Service of names is called, whatever answers behind it; one of them is enough."""

ENGINES = (
    "anetd", "antrea-agent", "aws-node", "azure-npm", "calico-node", "canal", "cilium", "kindnet",
    "kube-network-policies", "kube-router", "ovnkube-node", "romana-agent", "weave-net",
)  # fmt: skip
"""DaemonSets of network plugins that enforce NetworkPolicies; of aws-node only where that is switched on."""
_BUILT_IN = ("+k3s", "+rke2")
"""Distributions whose own process does it."""


def check_names(snapshot: Snapshot) -> Iterator[Finding]:
    """See whether somebody answers for names, by which workers find each other."""
    if not any(snapshot.endpoints.get(service) for service in DNS):
        yield error(
            f"nobody answers for names: none of the Services {', '.join(DNS)} has a ready endpoint",
            "launchers do not find their workers: attempts fail after mpi.workerWaitSeconds",
            "kubectl -n kube-system get pods -l k8s-app=kube-dns, and repair CoreDNS",
        )


def check_policies(snapshot: Snapshot) -> Iterator[Finding]:
    """Tell where nothing is known to enforce the policies that the operator writes."""
    settings = snapshot.settings
    if settings is None or settings.document.get("jobNetworkPolicy") is not True:
        return
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
