"""Every fault is found by its own check and by no other; a healthy cluster has no finding."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import pytest

from bert_operator.doctor.catalog import CHECKS, Check, Outcome, examine
from bert_operator.doctor.command import run
from bert_operator.doctor.finding import Finding, Level
from bert_operator.doctor.report import Report
from bert_operator.doctor.snapshot import Snapshot
from doctor_cluster import MemoryCluster
from doctor_faults import ASKED_FOR, FURTHER, Fault


def report_of(cluster: MemoryCluster, **options: object):
    return run(argparse.Namespace(**{"pre": False, **options}), cluster)


def test_a_healthy_cluster_has_no_finding() -> None:
    report = report_of(MemoryCluster())
    assert report.lines()[1:] == [f"{len(report.outcomes)} checks: 0 errors, 0 warnings, 0 notes; 0 not looked at"]
    assert report.exit_code == 0


@pytest.mark.parametrize("fault", [*ASKED_FOR, *FURTHER], ids=lambda fault: fault.words)
def test_a_fault_is_found_by_its_own_check_and_by_no_other(fault: Fault) -> None:
    cluster = MemoryCluster()
    fault.plant(cluster)
    report = report_of(cluster)
    found = [(outcome.check, finding.problem) for outcome in report.outcomes for finding in outcome.findings]
    assert {check for check, _ in found} == {fault.check}, report.lines()
    assert any(fault.says in problem for _, problem in found), found


def test_the_faults_that_were_asked_for_are_fifteen_of_fifteen_checks() -> None:
    assert len(ASKED_FOR) == len({fault.check for fault in ASKED_FOR}) == 15


def test_what_nobody_may_look_at_is_never_called_well() -> None:
    cluster = MemoryCluster()
    cluster.forbidden = {"nodes", "clusterroles"}
    report = report_of(cluster)
    unseen = {outcome.check for outcome in report.unseen}
    assert {"nodes", "node-fit", "node-features", "clocks", "operator-rights", "mpi-operator-rights"} <= unseen
    assert "not looked at: nodes: needs the right to list nodes" in report.lines()
    assert not any("nodes" in line for line in report.lines() if line.startswith("nothing found"))
    assert report.exit_code == 1


def test_one_namespace_is_looked_at_where_all_may_not_be() -> None:
    report = report_of(MemoryCluster(), namespace="elsewhere")
    assert report.exit_code == 0
    cluster = MemoryCluster()
    cluster.forbidden = {"bertpretrainjobs"}
    lines = report_of(cluster).lines()
    needs = "needs the right to list bertpretrainjobs.bert-operator.dev in all namespaces, or --namespace NAME"
    assert f"not looked at: claims: {needs}" in lines


def test_before_the_operator_is_installed_only_what_is_in_the_way_is_said() -> None:
    cluster = MemoryCluster()
    kept = {path: item for path, item in cluster.objects.items() if "bert-operator" not in path}
    cluster.objects = {path: item for path, item in kept.items() if "bertpretrainjobs" not in path}
    report = report_of(cluster, pre=True)
    assert [finding.problem for outcome in report.outcomes for finding in outcome.findings] == []
    cluster.post = lambda path, body: {
        "status": {"allowed": "namespace" in body.get("spec", {}).get("resourceAttributes", {})}
    }
    (finding,) = [finding for outcome in report_of(cluster, pre=True).outcomes for finding in outcome.findings]
    assert finding.problem.startswith("you may not: create customresourcedefinitions.apiextensions.k8s.io, create name")
    assert "deployments" not in finding.problem


def test_the_report_is_also_a_document() -> None:
    cluster = MemoryCluster()
    cluster.remove("apps/v1/daemonsets", "calico-node", "kube-system")
    cluster.forbidden = {"namespaces"}
    document = report_of(cluster).document()
    (finding,) = document["findings"]
    assert (finding["check"], finding["level"]) == ("network-policies", "note")
    assert document["notLookedAt"] == [{"check": "pod-security", "needs": ["the right to list namespaces"]}]
    assert "\x1b[36mnote" in report_of(cluster).lines(colour=True)[0]


def test_what_a_tenant_has_named_controls_no_terminal_and_begins_no_line() -> None:
    finding = Finding(Level.ERROR, "image x\x1b[2J\x07\nnothing found: all " + "y" * 600, "because", "do it")
    report = Report([Outcome("images", (finding,))])
    assert all(line.isprintable() for line in report.lines()), report.lines()
    assert max(map(len, report.lines())) < 600


def test_a_check_that_cannot_read_an_object_is_not_called_well_and_ends_no_other() -> None:
    def break_down(_: Snapshot) -> Iterator[Finding]:
        raise TypeError("unhashable type: 'list'")

    broken, *others = examine(Snapshot({}), (Check("broken", break_down, ()), CHECKS[0]))
    assert "TypeError" in broken.missing[0]
    assert [outcome.check for outcome in others] == [CHECKS[0].name]
