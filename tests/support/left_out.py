"""The last lines of a test run: what was left out, how many tests, and the command that brings them in.

A plugin of pytest, loaded by tests/conftest.py. It reads the reasons that tests were skipped for, so a reason names
what is missing by the word that stands in ``REMEDIES`` ("requires sshd"); a reason without one is shown as it is.
Tests that the run's ``-m`` leaves out are counted by marker. Tests that only some processors can run are counted where
they did run: nobody would know otherwise.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Generator, Iterable, Sequence
from typing import Any

import pytest

APT = "apt-get install "
NODE = "tools/node_packages.sh"
OTHER_MPI = "tests/pod/flavours.py says which folder it names"
# What a reason names -> how to get it.
REMEDIES = {
    "git": APT + "git",
    "history": "git fetch --unshallow",
    "ip": APT + "iproute2",
    "ssh": APT + "openssh-client",
    "ssh-keygen": APT + "openssh-client",
    "sshd": APT + "openssh-server",
    "setpriv": APT + "util-linux",
    "unshare": APT + "util-linux",
    "chromium": APT + "chromium",
    **dict.fromkeys(("prometheus", "promtool"), APT + "--no-install-recommends prometheus"),
    "g++": APT + "g++, then make setup",
    "horovod": "make setup",
    "horovodrun": "make setup",
    "mpi4py": "make setup",
    "mpirun": "make setup",
    "kubectl": "tools/control_plane/build.sh kubectl, and its folder in PATH",
    **dict.fromkeys(("buildah", "conntrack", "containerd", "ctr", "debootstrap", "gcc", "iptables"), NODE),
    **dict.fromkeys(("nft", "openssl", "runc", "skopeo", "/usr/lib/cni/bridge"), NODE),
    **dict.fromkeys(("BERT_TEST_INTEL_MPI", "BERT_TEST_MPICH", "BERT_TEST_OPEN_MPI_4"), OTHER_MPI),
    "BERT_TEST_ORT": "make test-ort",
    "BERT_TEST_TENSORFLOW": "make test-tensorflow",
    "root": "run the tests as root",
    "amx_bf16": "a Xeon from the 4th generation on (Sapphire Rapids)",
    "amx_fp16": "a Xeon 6 with P-cores (Granite Rapids)",
    "avx512_bf16": "a Xeon from the 4th generation on, or an EPYC from Zen 4 on",
    "avx512_fp16": "a Xeon from the 4th generation on (Sapphire Rapids)",
}
# Markers that `make test` deselects -> the target that runs them.
TARGETS = {
    "api_server": "make test-api",
    "cluster": "make test-cluster",
    "cpumanager": "make test-cpumanager",
    "long": "make test-long",
    "manifests": "make test-manifests",
    "ort": "make test-ort",
    "tensorflow": "make test-tensorflow",
}

INSTRUCTIONS = "instructions"
"""Property of a test that only some processors can run: what it needs of them."""
DESELECTED = pytest.StashKey[Counter[str]]()


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    """Count by marker what ``-m`` rules out; whoever names tests with ``-k`` knows what is left."""
    if not items or items[0].config.option.keyword:
        return
    ruled_out = re.findall(r"\bnot (\w+)", items[0].config.option.markexpr)
    markers = [next((name for name in ruled_out if item.get_closest_marker(name)), None) for item in items]
    items[0].config.stash.setdefault(DESELECTED, Counter()).update(name for name in markers if name in TARGETS)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In a worker of pytest-xdist: hand the counts to the process that prints."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["deselected"] = dict(session.config.stash.get(DESELECTED, {}))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take them there; every worker deselects the same tests."""
    counts = getattr(node, "workeroutput", {}).get("deselected", {})
    node.config.stash[DESELECTED] = Counter(counts) | node.config.stash.get(DESELECTED, Counter())


# Around pytest's own summary, which lists every skip by line: the last words are these.
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Generator[None, None, None]:
    """Write the section, if anything was left out."""
    yield
    ran = Counter(
        str(value)
        for report in terminalreporter.getreports("passed")
        for name, value in report.user_properties
        if name == INSTRUCTIONS
    )
    if ran:
        told = ", ".join(f"{name} ({count})" for name, count in sorted(ran.items()))
        terminalreporter.write_line(f"tests of this processor's instructions that ran: {told}")
    # longrepr: path, line, "Skipped: reason".
    skipped = [report.longrepr[2].removeprefix("Skipped: ") for report in terminalreporter.getreports("skipped")]
    lines = describe(skipped, terminalreporter.config.stash.get(DESELECTED, Counter()))
    if lines:
        terminalreporter.section("left out")
        for line in lines:
            terminalreporter.write_line(line)


def describe(reasons: Iterable[str], deselected: Counter[str]) -> list[str]:
    """Return a line for everything that is missing, the most tests first, then one for every marker."""
    missing: Counter[tuple[str, ...]] = Counter()
    others: Counter[str] = Counter()
    for reason in reasons:
        named = tuple(name for name in REMEDIES if re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", reason))
        if named:
            missing[named] += 1
        else:
            others[reason] += 1
    rows = [(count, f"skipped without {', '.join(names)}: {remedy(names)}") for names, count in missing.most_common()]
    rows += [(count, f"skipped: {reason}") for reason, count in others.most_common()]
    rows += [(count, f"marked {name}: {TARGETS[name]}") for name, count in sorted(deselected.items())]
    return [f"{count:5} {text}" for count, text in rows]


def remedy(names: Iterable[str]) -> str:
    """Return how to get all of them: one command for all packages, then the others."""
    commands = list(dict.fromkeys(REMEDIES[name] for name in names))
    packages = [command.removeprefix(APT) for command in commands if command.startswith(APT)]
    rest = [command for command in commands if not command.startswith(APT)]
    return "; ".join([APT + " ".join(packages), *rest] if packages else rest)
