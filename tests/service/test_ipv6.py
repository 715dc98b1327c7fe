"""Kubelet's probes and Prometheus reach the operator, and Prometheus a job, where there is IPv6 alone.

Inputs: a network namespace without IPv4, with both, and this machine without IPv6. Observed: who is answered.
"""

from __future__ import annotations

import pytest

from ipv6_host import ADDRESS, ipv6_host

OPERATOR = """
import asyncio, urllib.request
from bert_operator.cluster.health import Health, serve_http
from bert_operator.cluster.metrics import Metrics
from bert_operator.cluster.settings import Settings

async def ask():
    settings = Settings(http_port=0)
    health = Health(dict, lambda: 0.0, lambda: True, settings)
    runner, port = await serve_http(settings, health, Metrics())
    for host in {hosts}:
        url = f"http://{{host}}:{{port}}/healthz"
        print(host, await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=5).status))
    await runner.cleanup()

asyncio.run(ask())
"""
TRAINER = """
import io, tempfile, urllib.request
from pathlib import Path
from bert_trainer.output.metrics import MetricsWriter
from bert_trainer.output.progress import Reporter
from whole_configs import logging_settings

writer = MetricsWriter(
    Path(tempfile.mkdtemp()), logging_settings(tensorboard=False, prometheus_port=0), Reporter("u", 1, io.StringIO())
)
for host in {hosts}:
    print(host, urllib.request.urlopen(f"http://{{host}}:{{writer.prometheus_port}}/metrics", timeout=5).status)
writer.close()
"""


@pytest.mark.parametrize("has_ipv4", [False, True], ids=["IPv6 alone", "both"])
@pytest.mark.parametrize("program", [OPERATOR, TRAINER], ids=["operator", "trainer"])
def test_both_families_are_answered_on_one_port(program: str, *, has_ipv4: bool) -> None:
    hosts = [f"[{ADDRESS}]", "[::1]", "127.0.0.1", *(["10.201.9.5"] if has_ipv4 else [])]
    with ipv6_host(has_ipv4=has_ipv4) as host:
        assert host.run_python(program.format(hosts=hosts)).splitlines() == [f"{each} 200" for each in hosts]


@pytest.mark.parametrize("program", [OPERATOR, TRAINER], ids=["operator", "trainer"])
def test_where_the_kernel_has_no_ipv6_they_listen_with_ipv4(program: str) -> None:
    without = """
import socket
made = socket.socket.__init__
def refuse(self, family=-1, *rest, **more):
    if family == socket.AF_INET6:
        raise OSError(97, "Address family not supported by protocol")
    made(self, family, *rest, **more)
socket.socket.__init__ = refuse
socket.has_ipv6 = False
"""
    with ipv6_host() as host:
        assert host.run_python(without + program.format(hosts=["127.0.0.1"])) == "127.0.0.1 200"
