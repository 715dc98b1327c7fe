"""Whom a job's pods reach, and who reaches them, as its NetworkPolicy says. Inputs: jobs and settings; pure."""

from __future__ import annotations

import json
from collections.abc import Collection
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest

from bert_operator.api.parsing.validation import parse_job
from bert_operator.cluster.egress import read_egress
from bert_operator.cluster.settings import Settings, load_settings
from bert_operator.errors import SettingsError
from bert_operator.render.children import render_child
from bert_operator.render.frozen import Frozen, freeze
from bert_operator.render.network_policy import render_network_policy
from bert_operator.state.runs import ChildSpec, list_runs
from child_cases import IMAGE, UID
from sample_job import Document, sample_document

DNS = [
    {"ports": [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]},
    {
        "to": [
            {
                "namespaceSelector": {
                    "matchExpressions": [
                        {
                            "key": "kubernetes.io/metadata.name",
                            "operator": "In",
                            "values": ["kube-system", "openshift-dns"],
                        }
                    ]
                }
            }
        ],
        "ports": [
            {"protocol": "UDP", "port": 5353},
            {"protocol": "TCP", "port": 5353},
            {"protocol": "UDP", "port": 8053},
            {"protocol": "TCP", "port": 8053},
        ],
    },
]


def frozen(**spec: Any) -> Frozen:
    document = sample_document()
    document["metadata"]["uid"] = UID
    document["spec"].update(spec)
    return freeze(parse_job(document), default_image=IMAGE)


def policy(*egress: Document, proxies: Collection[str] = (), **spec: Any) -> Document:
    job = frozen(**spec)
    rendered = render_network_policy(job, monitoring_namespace="watchers", proxies=proxies, egress=egress)
    assert rendered is not None
    return rendered


def test_pods_of_a_job_hear_and_reach_each_other_and_ask_for_names_and_nothing_else() -> None:
    document = policy(workers=2)
    name = sample_document()["metadata"]["name"]
    own = {"podSelector": {"matchLabels": {"bert-operator.dev/job": name}}}
    assert document["metadata"]["name"] == f"{name}-pods"
    assert [owner["uid"] for owner in document["metadata"]["ownerReferences"]] == [UID]
    assert document["spec"] == {
        **own,
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": [own]}],
        "egress": [{"to": [own]}, *DNS],
    }


@pytest.mark.parametrize("workers", [1, 2])
def test_every_pod_of_every_run_is_in_it(workers: int) -> None:
    job = frozen(workers=workers)
    selector = policy(workers=workers)["spec"]["podSelector"]["matchLabels"]
    for run in list_runs(job.job):
        child = render_child(job, ChildSpec(run=run.name, attempt=3, stages=run.stages, ranks=run.ranks))
        spec = child["spec"]
        templates = (
            [spec["template"]] if "template" in spec else [r["template"] for r in spec["mpiReplicaSpecs"].values()]
        )
        assert templates
        assert all(selector.items() <= template["metadata"]["labels"].items() for template in templates)


def test_prometheus_reaches_the_port_of_the_metrics_alone() -> None:
    _, rule = policy(logging={"prometheusPort": 9400})["spec"]["ingress"]
    assert rule == {
        "from": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "watchers"}}}],
        "ports": [{"protocol": "TCP", "port": 9400}],
    }
    assert len(policy(logging={"prometheusPort": 0})["spec"]["ingress"]) == 1, "a free port is known to nobody here"


@pytest.mark.parametrize(
    ("proxy", "ports"),
    [
        ({"http": "http://proxy.example:3128", "https": "http://proxy.example:3128"}, [3128]),
        ({"http": "proxy:8080", "https": "https://secure.example"}, [443, 8080]),
        ({"https": "http://proxy.example"}, [80]),
        ({"http": "http://proxy.example:port", "noProxy": "*"}, []),
        ({"http": "http://[bad", "https": "http://a\u2100b:3128"}, []),
        # Hosts outside of the cluster, whatever they are called, and names that no selector can have.
        ({"http": "http://proxy.emea.svc.corp.example:3128"}, [3128]),
        ({"http": "http://squid.proxies.svc.cluster.local.example:3128"}, [3128]),
        ({"http": "http://a.-x.svc:3128"}, [3128]),
        ({"http": "http://a.x-.svc:3128"}, [3128]),
        ({"http": f"http://a.{'x' * 64}.svc:3128"}, [3128]),
    ],
)
def test_the_proxy_of_a_profile_is_reached_at_its_port(proxy: Document, ports: list[int]) -> None:
    rules = policy(proxy=proxy, proxies=proxy.values())["spec"]["egress"][3:]
    assert [rule["ports"] for rule in rules] == [[{"protocol": "TCP", "port": port}] for port in ports]
    for rule in rules:
        assert not is_reached("169.254.169.254", rule), "where clouds hand out a node's credentials"
        assert not is_reached("fe80::1", rule)
        assert is_reached("203.0.113.7", rule)
        assert is_reached("2001:db8::7", rule)
        assert {"namespaceSelector": {}} in rule["to"]


ANY_POD: Document = {"namespaceSelector": {}}


@pytest.mark.parametrize(
    ("address", "port", "peers"),
    [
        ("http://10.1.2.3:3128", 3128, [{"ipBlock": {"cidr": "10.1.2.3/32"}}, ANY_POD]),
        ("http://[2001:DB8::7]:3128", 3128, [{"ipBlock": {"cidr": "2001:db8::7/128"}}, ANY_POD]),
        # Where clouds hand out a node's credentials.
        ("169.254.169.254:80", 80, [ANY_POD]),
        ("http://[::ffff:169.254.169.254]:80", 80, [ANY_POD]),
        ("http://[fe80::1%eth0]:80", 80, [ANY_POD]),
        ("http://[::ffff:10.1.2.3]:3128", 3128, [{"ipBlock": {"cidr": "10.1.2.3/32"}}, ANY_POD]),
        *(
            (
                f"http://squid.proxies.svc{end}:3128",
                3128,
                [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "proxies"}}}],
            )
            for end in ("", ".", ".cluster.local", ".cluster.local.")
        ),
    ],
)
def test_a_proxy_by_its_address_or_service_is_reached_there_alone(
    address: str, port: int, peers: list[Document]
) -> None:
    rules = policy(proxy={"http": address, "https": address}, proxies=[address])["spec"]["egress"][3:]
    assert rules == [{"to": peers, "ports": [{"protocol": "TCP", "port": port}]}]


def is_reached(address: str, rule: Document) -> bool:
    """Return whether a rule lets through what goes to an address outside of the cluster."""
    blocks = [peer["ipBlock"] for peer in rule["to"] if "ipBlock" in peer]
    return any(
        ip_address(address) in ip_network(block["cidr"])
        and not any(ip_address(address) in ip_network(left_out) for left_out in block["except"])
        for block in blocks
    )


@pytest.mark.parametrize("address", ["http://x", "https://10.96.0.1:6443", "http://proxy.example:3129", "http://[bad"])
def test_a_proxy_of_the_jobs_own_opens_nothing(address: str) -> None:
    rules = policy(proxy={"http": address, "https": address}, proxies=["http://proxy.example:3128"])["spec"]["egress"]
    assert len(rules) == 3


def test_proxies_are_those_of_the_profiles_that_a_namespace_may_use() -> None:
    profiles: dict[str, Document] = {
        "all": {"proxy": {"http": "http://a:1", "noProxy": ".svc"}},
        "theirs": {"proxy": {"http": "http://b:2", "https": "http://c:3"}},
        "none": {"image": "x"},
    }
    settings = Settings(profiles=profiles, profile_namespaces={"theirs": ("bert",)})
    assert settings.seen_from("other").list_proxies() == {"http://a:1"}
    assert settings.seen_from("bert").list_proxies() == {"http://a:1", "http://b:2", "http://c:3"}


def test_what_the_settings_allow_besides_comes_last() -> None:
    tracker = {"to": [{"ipBlock": {"cidr": "10.1.2.3/32"}}], "ports": [{"protocol": "TCP", "port": 5000}]}
    assert policy(tracker)["spec"]["egress"][3:] == [tracker]


def test_a_job_on_the_nodes_network_has_none() -> None:
    job = frozen(network={"hostNetwork": True})
    assert render_network_policy(job, monitoring_namespace="watchers", proxies=(), egress=()) is None


def test_egress_is_read_as_the_api_server_stores_it() -> None:
    peers = [{"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "tracker"}}}, {"podSelector": {}}]
    block = {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}
    rules = read_egress([{"to": [*peers, block], "ports": [{"port": 5000}, {"port": 6000, "endPort": 6010}]}, {}])
    assert rules == (
        {
            "to": [*peers, block],
            "ports": [{"protocol": "TCP", "port": 5000}, {"protocol": "TCP", "port": 6000, "endPort": 6010}],
        },
        {},
    )


@pytest.mark.parametrize(
    ("rule", "named"),
    [
        ({"port": 443}, "0.port"),
        ({"to": []}, "0.to"),
        ({"to": [{}]}, "name either ipBlock"),
        ({"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}, "podSelector": {}}]}, "name either ipBlock"),
        ({"to": [{"ipBlock": {"cidr": "10.0.0.1/8"}}]}, "host bits set"),
        ({"ports": [{"port": 70000}]}, "0.ports.0.port"),
        ({"ports": [{"port": 9, "endPort": 8}]}, "endPort: got 8"),
        ({"ports": [{"port": "https"}]}, "0.ports.0.port"),
        ("everywhere", "0: got 'everywhere'"),
    ],
)
def test_a_mistake_in_the_settings_is_named_where_they_are_read(rule: Any, named: str, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(json.dumps({"jobEgress": [rule]}))
    with pytest.raises(SettingsError, match=named):
        load_settings(file)
