"""A stand-in for a network plugin: NetworkPolicies become rules of nftables on the bridge that pods hang on.

It shows what a policy lets through and what not, on one node, with IPv4; it is no plugin. Differences that matter here:
it keeps no state, so an answer is told by TCP's flags, and for UDP by the port that a question may go to (of pods that
are isolated in both directions); policies and pods are those of the moment in which it was asked
(policy_enforcer.py asks again and again); ports have names on the way in only. Source of the meaning: NetworkPolicySpec
of networking.k8s.io/v1. A pod that a policy selects is isolated in that direction; what any of its policies allows
passes; both ends have to allow a packet; what a pod's own node sends or receives always passes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from node import POLICY_TABLE

Document = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Pod:
    """What policies know of a pod."""

    address: str
    labels: Mapping[str, str]
    namespace: str = "default"
    namespace_labels: Mapping[str, str] = field(default_factory=dict)
    ports: Mapping[str, int] = field(default_factory=dict)
    """Those of its containers that have names."""
    name: str = ""


def matches(selector: Document, labels: Mapping[str, str]) -> bool:
    """Tell whether a label selector selects these labels; an empty one selects all."""
    for key, value in selector.get("matchLabels", {}).items():
        if labels.get(key) != value:
            return False
    for requirement in selector.get("matchExpressions", []):
        key, operator, values = requirement["key"], requirement["operator"], requirement.get("values", [])
        holds = {
            "In": labels.get(key) in values,
            "NotIn": labels.get(key) not in values,
            "Exists": key in labels,
            "DoesNotExist": key not in labels,
        }[operator]
        if not holds:
            return False
    return True


def translate(policies: Sequence[Document], pods: Sequence[Pod], *, node: str) -> str:
    """Return what ``nft -f -`` loads; it replaces what was loaded before. node: the address of the pods' node."""
    lines = [f"table bridge {POLICY_TABLE}", f"delete table bridge {POLICY_TABLE}", f"table bridge {POLICY_TABLE} {{"]
    jumps: dict[str, list[str]] = {"saddr": [], "daddr": []}
    for number, pod in enumerate(pods):
        for side, direction, mirror in (("saddr", "egress", "ingress"), ("daddr", "ingress", "egress")):
            selecting = _selecting(policies, pod, direction)
            if not selecting:
                continue
            allowed = [text for policy in selecting for text in _rules(policy, direction, pods, pod)]
            asked = _selecting(policies, pod, mirror)
            answers = [text for policy in asked for text in _rules(policy, mirror, pods, pod, is_answer=True)]
            chain = f"{direction}_{number}"
            lines += [f"  chain {chain} {{", *(f"    {rule}" for rule in [*allowed, *answers, "drop"]), "  }"]
            jumps[side].append(f"    ip {side} {pod.address} jump {chain}")
    begin = "    tcp flags & (syn | ack) != syn accept"  # an answer, or what follows one
    lines += ["  chain forward {", "    type filter hook forward priority 0; policy accept;", begin]
    lines += [*jumps["saddr"], *jumps["daddr"], "  }"]
    # To the node, or through it to somewhere else.
    lines += ["  chain input {", "    type filter hook input priority 0; policy accept;", begin]
    lines += [f"    ip daddr {node} accept", *jumps["saddr"], "  }", "}"]
    return "\n".join(lines) + "\n"


def is_isolated(policies: Sequence[Document], pod: Pod) -> bool:
    """Tell whether any policy selects a pod."""
    return any(_selecting(policies, pod, direction) for direction in ("egress", "ingress"))


def _selecting(policies: Sequence[Document], pod: Pod, direction: str) -> list[Document]:
    return [
        policy
        for policy in policies
        if policy["metadata"].get("namespace", "default") == pod.namespace
        and direction.capitalize() in policy["spec"]["policyTypes"]
        and matches(policy["spec"]["podSelector"], pod.labels)
    ]


def _rules(
    policy: Document, direction: str, pods: Sequence[Pod], own: Pod, *, is_answer: bool = False
) -> Iterator[str]:
    """Yield a rule for every peer and port. own: the pod that is isolated. is_answer: for what comes back, of UDP."""
    to_peer = (direction == "egress") != is_answer
    side, port_side = ("daddr" if to_peer else "saddr"), ("sport" if is_answer else "dport")
    for rule in policy["spec"].get(direction, []):
        peers = rule.get("to" if direction == "egress" else "from")
        if peers is None:
            addresses = [""]
        else:
            addresses = [f"ip {side} {each} " for peer in peers for each in _addresses(peer, policy, pods, side)]
        ports = rule.get("ports") or [None]
        for address in addresses:
            for port in ports:
                if port is None:
                    yield f"{address}{'meta l4proto udp ' if is_answer else ''}return"
                    continue
                protocol = port.get("protocol", "TCP").lower()
                if is_answer and protocol != "udp":
                    continue
                if "port" not in port:
                    yield f"{address}meta l4proto {protocol} return"
                    continue
                number = own.ports.get(port["port"]) if isinstance(port["port"], str) else port["port"]
                if number is None:  # no container of the pod calls a port so
                    continue
                last = f"-{port['endPort']}" if "endPort" in port else ""
                yield f"{address}{protocol} {port_side} {number}{last} return"


def _addresses(peer: Document, policy: Document, pods: Sequence[Pod], side: str) -> Iterator[str]:
    if "ipBlock" in peer:
        block = peer["ipBlock"]
        if ":" in block["cidr"]:  # IPv6
            return
        left_out = block.get("except", [])
        yield block["cidr"] + (f" ip {side} != {{ {', '.join(left_out)} }}" if left_out else "")
        return
    own = policy["metadata"].get("namespace", "default")
    for pod in pods:
        if "namespaceSelector" in peer:
            is_there = matches(peer["namespaceSelector"], pod.namespace_labels)
        else:
            is_there = pod.namespace == own
        if is_there and matches(peer.get("podSelector", {}), pod.labels):
            yield pod.address
