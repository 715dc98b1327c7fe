"""The rendered NetworkPolicy, enforced: a pod of another job reaches neither sshd nor MPI's ports; the job's own do.

Pods are network namespaces on a bridge, in a namespace that is their node; the policy becomes rules of nftables by a
stand-in (tests/pod/policy_stand_in.py). Inputs: two jobs, someone else, a name server. Observed: who is answered.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from bert_operator.api.parsing.validation import parse_job
from bert_operator.render.frozen import freeze
from bert_operator.render.network_policy import render_network_policy
from child_cases import IMAGE
from cluster_api import wait_until
from policy_enforcer import read_pods
from policy_stand_in import Pod, matches, translate
from sample_job import sample_document

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not (shutil.which("nft") and shutil.which("ip")), reason="requires root, nftables and iproute2"
)

NODE = "10.201.7.254"
SSH, MPI, METRICS, DNS, TRACKER = 2222, 45_123, 9400, 53, 5000
SERVICE = "10.201.8.53"
"""Of names: port 53, behind which pods listen on another port in some clusters."""
POD_DNS = (53, 5353, 8053)
PEOPLE = {
    # name: last part of the address, labels, labels of the namespace
    "launcher": (1, {"bert-operator.dev/job": "mine", "bert-operator.dev/role": "launcher"}, {}),
    "worker": (2, {"bert-operator.dev/job": "mine", "bert-operator.dev/role": "worker"}, {}),
    "other-job": (3, {"bert-operator.dev/job": "other"}, {}),
    "stranger": (4, {"app": "anything"}, {}),
    "prometheus": (5, {"app": "prometheus"}, {"kubernetes.io/metadata.name": "monitoring"}),
    "names": (6, {"k8s-app": "kube-dns"}, {"kubernetes.io/metadata.name": "kube-system"}),
}

# Answers on some TCP ports, and on those of names by UDP with what was asked. Says so when it listens.
SERVER = f"""
import select, socket
servers = []
asked = []
for port in ({SSH}, {MPI}, {METRICS}, *{POD_DNS}, {TRACKER}):
    servers.append(socket.create_server(("0.0.0.0", port), backlog=64))
for port in {POD_DNS}:
    asked.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    asked[-1].bind(("0.0.0.0", port))
print("listening", flush=True)
while True:
    for ready in select.select([*servers, *asked], [], [])[0]:
        if ready in asked:
            data, whom = ready.recvfrom(512)
            ready.sendto(data, whom)
        else:
            ready.accept()[0].close()
"""

# What gets an answer: prints 1 or 0. A packet that is dropped is never refused, so only time tells.
CLIENT = """
import socket, sys
kind, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
try:
    if kind == "tcp":
        socket.create_connection((address, port), timeout=0.7).close()
    else:
        asker = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        asker.settimeout(0.7)
        asker.sendto(b"who", (address, port))
        asker.recvfrom(512)
    print(1)
except OSError:
    print(0)
"""


class Node:
    """Namespaces by name, and the rules between them."""

    def __init__(self) -> None:
        self.netns = {name: f"t{os.getpid()}-{name}" for name in ("node", *PEOPLE)}

    def address(self, name: str) -> str:
        return f"10.201.7.{PEOPLE[name][0]}"

    def enforce(self, *policies: dict[str, Any]) -> None:
        """Replace the rules."""
        pods = [
            Pod(address=self.address(name), labels=labels, namespace="demo" if not of else "else", namespace_labels=of)
            for name, (_, labels, of) in PEOPLE.items()
        ]
        self._run("nft", "-f", "-", text=translate(policies, pods, node=NODE))

    def _run(self, *command: str, text: str = "") -> str:
        whole = ["ip", "netns", "exec", self.netns["node"], *command]
        return subprocess.run(whole, check=True, capture_output=True, text=True, input=text).stdout

    def serve(self, who: str, pod: str, port: int) -> None:
        """Have a pod find another's port behind the Service of names, as kube-proxy does: before policies see it."""
        rules = "".join(
            f"add rule ip service output ip daddr {SERVICE} {protocol} dport {DNS} dnat to {self.address(pod)}:{port}\n"
            for protocol in ("tcp", "udp")
        )
        table = "add table ip service\ndelete table ip service\nadd table ip service\n"
        table += "add chain ip service output { type nat hook output priority -100; }\n"
        subprocess.run(
            ["ip", "netns", "exec", self.netns[who], "nft", "-f", "-"], check=True, input=table + rules, text=True
        )

    def reaches(self, who: str, whom: str, port: int, kind: str = "tcp") -> bool:
        """Tell whether one gets an answer from another."""
        address = {"node": NODE, "service": SERVICE}.get(whom) or self.address(whom)
        command = ["ip", "netns", "exec", self.netns[who], sys.executable, "-S", "-c", CLIENT, kind, address, str(port)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip() == "1"


def ip(*words: str, check: bool = True) -> None:
    subprocess.run(["ip", *words], check=check, capture_output=True)


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    made = Node()
    servers: list[subprocess.Popen[str]] = []
    try:
        ip("netns", "add", made.netns["node"])
        inside = ("-n", made.netns["node"])
        ip(*inside, "link", "add", "pods", "type", "bridge")
        ip(*inside, "addr", "add", f"{NODE}/24", "dev", "pods")
        ip(*inside, "link", "set", "pods", "up")
        for name in PEOPLE:
            ip("netns", "add", made.netns[name])
            link = f"p{PEOPLE[name][0]}"
            peer = ("type", "veth", "peer", "name", "eth0", "netns", made.netns[name])
            ip(*inside, "link", "add", link, *peer)
            ip(*inside, "link", "set", link, "master", "pods", "up")
            for words in (
                ("addr", "add", f"{made.address(name)}/24", "dev", "eth0"),
                ("link", "set", "eth0", "up"),
                ("route", "add", "default", "via", NODE),
            ):
                ip("-n", made.netns[name], *words)
        for name in made.netns:
            command = ["ip", "netns", "exec", made.netns[name], sys.executable, "-S", "-c", SERVER]
            servers.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        for server in servers:
            assert server.stdout is not None
            assert server.stdout.readline() == "listening\n"
        # A port of a bridge learns before it forwards.
        wait_until(lambda: made.reaches("stranger", "worker", SSH), "the bridge to forward")
        yield made
    finally:
        for server in servers:
            server.kill()
            server.wait()
            if server.stdout is not None:
                server.stdout.close()
        for netns in reversed(made.netns.values()):
            ip("netns", "del", netns, check=False)


def policy(job: str, *egress: dict[str, Any], **spec: Any) -> dict[str, Any]:
    document = sample_document()
    document["metadata"] |= {"uid": f"uid-{job}", "name": job, "namespace": "demo"}
    document["spec"].update(spec)
    job = freeze(parse_job(document), default_image=IMAGE)
    rendered = render_network_policy(job, monitoring_namespace="monitoring", proxies=(), egress=egress)
    assert rendered is not None
    return rendered


def test_without_a_policy_everybody_reaches_everybody(node: Node) -> None:
    """Otherwise the tests below would show nothing."""
    node.enforce()
    assert all(node.reaches("other-job", "worker", port) for port in (SSH, MPI, METRICS))
    assert node.reaches("worker", "stranger", TRACKER)
    assert node.reaches("worker", "names", DNS, "udp")


def test_a_pod_of_another_job_reaches_neither_sshd_nor_mpi_and_the_job_s_own_do(node: Node) -> None:
    node.enforce(policy("mine"), policy("other"))
    assert node.reaches("launcher", "worker", SSH)
    assert node.reaches("launcher", "worker", MPI)
    assert node.reaches("worker", "launcher", MPI)
    for who in ("other-job", "stranger", "prometheus"):
        assert not any(node.reaches(who, whom, port) for whom in ("worker", "launcher") for port in (SSH, MPI)), who


def test_the_other_job_s_missing_policy_is_no_way_in(node: Node) -> None:
    node.enforce(policy("mine"))
    assert not node.reaches("other-job", "worker", SSH)
    assert not node.reaches("worker", "other-job", SSH)


def test_names_are_answered_and_nothing_else_is_reached(node: Node) -> None:
    node.enforce(policy("mine"))
    assert node.reaches("worker", "names", DNS, "udp")
    assert node.reaches("worker", "names", DNS)
    assert not node.reaches("worker", "names", TRACKER)
    assert not node.reaches("worker", "stranger", TRACKER)
    assert node.reaches("worker", "node", SSH), "a pod's own node is always reached, as Kubernetes has it"


@pytest.mark.parametrize("port", POD_DNS)
def test_names_are_answered_behind_a_service_whatever_port_its_pods_listen_on(node: Node, port: int) -> None:
    """A policy is held against the pod's port: 5353 with OpenShift, 8053 with Gardener."""
    node.serve("worker", "names", port)
    node.enforce(policy("mine"))
    assert node.reaches("worker", "service", DNS, "udp")
    assert node.reaches("worker", "service", DNS)
    assert not node.reaches("worker", "stranger", 5353, "udp"), "no pod but those that answer names"


def test_prometheus_reaches_the_metrics_alone_and_only_where_they_are_served(node: Node) -> None:
    node.enforce(policy("mine", logging={"prometheusPort": METRICS}))
    assert node.reaches("prometheus", "worker", METRICS)
    assert not node.reaches("prometheus", "worker", SSH)
    assert not node.reaches("stranger", "worker", METRICS)
    node.enforce(policy("mine"))
    assert not node.reaches("prometheus", "worker", METRICS)


def test_what_the_settings_allow_besides_is_reached(node: Node) -> None:
    rule = {
        "to": [{"ipBlock": {"cidr": f"{node.address('stranger')}/32"}}],
        "ports": [{"protocol": "TCP", "port": TRACKER}],
    }
    node.enforce(policy("mine", rule))
    assert node.reaches("worker", "stranger", TRACKER)
    assert not node.reaches("worker", "stranger", MPI)


def test_the_stand_in_knows_a_port_by_the_name_that_the_pod_gives_it() -> None:
    ingress = [{"ports": [{"protocol": "TCP", "port": name} for name in ("http", "other")]}]
    spec = {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": ingress}
    named = {"metadata": {"name": "a", "namespace": "demo"}, "spec": spec}
    pod = Pod(address="10.0.0.1", labels={}, namespace="demo", ports={"http": 8080})
    rules = translate([named], [pod], node=NODE)
    assert "tcp dport 8080 return" in rules
    assert rules.count("tcp dport") == 1


def test_the_stand_in_forgets_the_address_of_a_pod_that_has_ended() -> None:
    """The next pod may get it, and would be held by the policies of the first."""

    def pod(name: str, phase: str, **spec: Any) -> dict[str, Any]:
        ports = [{"name": "http", "containerPort": 8080}, {"containerPort": 9400}]
        return {
            "metadata": {"name": name, "namespace": "demo", "labels": {"app": name}},
            "spec": {"containers": [{"ports": ports}, {}], **spec},
            "status": {"phase": phase, "podIP": "10.0.0.1"},
        }

    pods = [pod("b", "Running"), pod("c", "Succeeded"), pod("d", "Failed"), pod("e", "Running", hostNetwork=True)]
    pods.append({**pod("f", "Pending"), "status": {"phase": "Pending"}})
    namespaces = [{"metadata": {"name": "demo", "labels": {"team": "1"}}}]
    assert read_pods(pods, namespaces) == [
        Pod(
            address="10.0.0.1",
            labels={"app": "b"},
            namespace="demo",
            namespace_labels={"team": "1"},
            ports={"http": 8080},
            name="b",
        )
    ]


@pytest.mark.parametrize(
    ("selector", "selected"),
    [
        ({}, True),
        ({"matchLabels": {"a": "1"}}, True),
        ({"matchLabels": {"a": "2"}}, False),
        ({"matchExpressions": [{"key": "a", "operator": "In", "values": ["1"]}]}, True),
        ({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["1"]}]}, False),
        ({"matchExpressions": [{"key": "b", "operator": "Exists"}]}, False),
        ({"matchLabels": {"a": "1"}, "matchExpressions": [{"key": "b", "operator": "DoesNotExist"}]}, True),
    ],
)
def test_the_stand_in_reads_selectors_as_kubernetes_does(selector: dict[str, Any], *, selected: bool) -> None:
    assert matches(selector, {"a": "1"}) is selected
