"""kubelet's own CPU manager gives the pods that the operator renders the cores that their ranks are bound to.

On machines that are described to it (tools/control_plane/node/cpusets): 2 sockets of 28 and 56 cores with two hardware
threads each. What it gives is a literal in ``kubelet_cpusets``, with which tests/pod tests the binding everywhere.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bert_operator.api.parsing.validation import parse_job
from bert_operator.render.children import render_child
from bert_operator.render.frozen import freeze
from bert_operator.state.runs import list_runs
from child_cases import IMAGE, UID, child_of, claim, container, templates
from kubelet_cpusets import CASES, EVEN, LAUNCHER_OF_ITS_OWN, KubeletCase, Node
from sample_job import sample_document

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.cpumanager, pytest.mark.timeout(1800)]


def pods_of(case: KubeletCase) -> list[tuple[str, dict[str, Any]]]:
    """Return role and pod template of a case's pods, as the operator renders them, the launcher first."""
    document = sample_document()
    document["metadata"]["uid"] = UID
    document["spec"] |= {
        "workers": case.pods,
        "slotsPerWorker": case.slots,
        "cpu": {name: value for name, value in case.cpu.items() if value is not None},
        "resources": {"memory": "200Gi"},
        "output": {"path": "runs", "volume": claim("results")},
    }
    if case.launcher_cpu is not None:
        document["spec"]["launcher"] = {"resources": {"cpu": case.launcher_cpu, "memory": "2Gi"}}
    frozen = freeze(parse_job(document), default_image=IMAGE)
    child = render_child(frozen, child_of(frozen, list_runs(frozen.job)[-1].name, 1))
    found = []
    for role, template in templates(child):
        found += [(role, template)] * (1 if role == "launcher" else case.pods)
    return found


def ask(cases: list[KubeletCase]) -> list[list[dict[str, str]]]:
    """Return kubelet's answer for every pod of every case."""
    build = ROOT / "tools/control_plane/build.sh"
    folder = subprocess.run([build, "cpusets"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    nodes = [
        {
            "machine": {
                "sockets": 2,
                "coresPerSocket": case.node.cores,
                "threadsPerCore": 2,
                "numaNodesPerSocket": case.node.numa_nodes_per_socket,
            },
            "cpuManagerPolicy": "static",
            "cpuManagerPolicyOptions": dict.fromkeys(case.node.options, "true"),
            "topologyManagerPolicy": case.node.topology,
            "reservedSystemCPUs": case.node.reserved,
            "pods": [
                {"metadata": {"name": f"{role}-{number}"}, "spec": template["spec"]}
                for number, (role, template) in enumerate(pods_of(case))
            ],
        }
        for case in cases
    ]
    command = [f"{folder}/cpusets"]
    asked = subprocess.run(command, input=json.dumps(nodes), stdout=subprocess.PIPE, text=True, check=True)
    answers: list[list[dict[str, str]]] = json.loads(asked.stdout)
    return answers


@pytest.fixture(scope="module")
def answers() -> dict[str, list[dict[str, str]]]:
    return dict(zip(CASES, ask(list(CASES.values())), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_pods_get_the_cpus_that_their_ranks_are_tested_with(
    name: str, answers: dict[str, list[dict[str, str]]]
) -> None:
    case = CASES[name]
    workers = [answer for answer in answers[name] if not answer["pod"].startswith("launcher")]
    print(f"\n{name}: {case.node.machine}, asks for {case.asked}: {workers}")
    requests = [container(template)["resources"]["requests"] for role, template in pods_of(case) if role != "launcher"]
    assert {request["cpu"] for request in requests} == {case.asked}
    for answer, given in zip(workers, case.given, strict=True):
        assert answer["cpus"] == given or (answer["refused"] and answer["refused"].startswith(given))


def test_the_operator_s_launcher_shares_cpus(answers: dict[str, list[dict[str, str]]]) -> None:
    """A whole CPU would be one thread of a core; where kubelet gives whole cores alone, the pod would be refused."""
    assert (answers["a pod per socket"][0]["cpus"], answers["a pod per socket"][0]["refused"]) == ("", "")
    assert answers[LAUNCHER_OF_ITS_OWN][0]["cpus"] == "28"
    case = replace(CASES[LAUNCHER_OF_ITS_OWN], node=Node())
    assert ask([case])[0][0]["refused"].startswith("SMTAlignmentError: SMT Alignment Error: requested 1 cpus")


def test_the_page_shows_these_rows() -> None:
    page = (ROOT / "docs/concepts/cpus.md").read_text()
    missing = [row for row in map(render_row, CASES.values()) if row not in page]
    assert not missing, "docs/concepts/cpus.md lacks:\n" + "\n".join(missing)


def render_row(case: KubeletCase) -> str:
    """Return a case as a row of the page's table."""
    options = "both" if case.node.options == EVEN else ", ".join(f"`{option}`" for option in case.node.options)
    topology = "" if case.node.topology == "none" else f", `{case.node.topology}`"
    pods = f"{case.pods} pods, {case.asked} each" if case.pods > 1 else f"a pod, {case.asked}"
    given = "; ".join(text.split(":")[0] for text in case.given)
    ranks = "; ".join(case.ranks) if case.ranks else "`WrongTopology`" if case.error else "-"
    return f"| {case.node.machine} | {options or 'none'}{topology} | {pods} | {given} | {ranks} |"
