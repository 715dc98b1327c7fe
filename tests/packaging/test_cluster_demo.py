"""``make cluster-demo`` says what it lacks and what it does, and leaves nothing behind."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from cluster_api import wait_until
from job_cluster import JobCluster, Namespace
from node import NETWORK_NAME, is_running, remove_traces

ROOT = Path(__file__).parents[2]


def test_what_is_not_installed_is_named_without_a_traceback(tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "KUBECONFIG"}
    answer = subprocess.run(
        [sys.executable, str(ROOT / "tools/cluster_demo.py")],
        env={**environment, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert answer.returncode == 2
    assert len(answer.stderr.splitlines()) == 1
    # On a machine that has a node already, that is what it lacks first.
    lacks = r"cluster-demo: (not installed: containerd, .*node_packages.sh|a node needs root|kubelet runs here)"
    assert re.match(lacks, answer.stderr)


def test_traces_outside_the_folder_are_removed_and_those_of_others_stay(tmp_path: Path) -> None:
    folder, logs, results, sockets = (tmp_path / name for name in ("node", "containers", "results", "s"))
    for place in (folder, logs, results, sockets):
        place.mkdir()
    (logs / "ours.log").symlink_to(folder / "pod-logs/a/0.log")
    (logs / "theirs.log").symlink_to("/var/log/pods/b/0.log")
    for name in (f"{NETWORK_NAME}-1-eth0", "cni-loopback-1-lo", "cni-loopback-2-lo", "other-2-eth0"):
        (results / name).write_text("{}")
    with socket.socket(socket.AF_UNIX) as served:
        served.bind(str(sockets / "served"))
        for name in ("before", "deserted"):
            (sockets / name).write_text("")
        remove_traces(folder, {"before"}, logs, results, sockets)
        assert {path.name for path in (*logs.iterdir(), *results.iterdir(), *sockets.iterdir())} == {
            "theirs.log",
            "other-2-eth0",
            "cni-loopback-2-lo",
            "before",
            "served",
        }
    for place in (logs, results, sockets):
        for path in place.iterdir():
            path.unlink()
    (logs / "ours.log").symlink_to(folder / "pod-logs/a/0.log")
    remove_traces(folder, (), logs, results, sockets)
    assert not logs.exists()


def test_imports_that_take_too_long_only_leave_their_figure_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kubectl = tmp_path / "kubectl"
    kubectl.write_text('#!/bin/sh\necho \'{"status": {"phase": "Running"}}\'\n')
    kubectl.chmod(0o755)
    cluster = JobCluster(tmp_path / "config", "operator", "trainer", None, None, str(kubectl))
    spec = importlib.util.spec_from_file_location("cluster_demo", ROOT / "tools/cluster_demo.py")
    assert spec is not None
    assert spec.loader is not None
    cluster_demo = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(cluster_demo)
    monkeypatch.setattr(cluster_demo, "IMPORT_S", 0)
    measured = cluster_demo.Demo(Namespace(cluster, "demo")).measure_import()
    assert measured != measured
    assert "imports take more than 0 s on this machine" in capsys.readouterr().out


GO = """#!/bin/sh
[ "$1" != version ] || { echo go version go1.26.0; exit; }
echo "go: downloading example.com/a v1.0.0" >&2
[ -z "$BROKEN" ] || { echo "main.go:1: broken" >&2; exit 1; }
while [ "$1" != -o ]; do shift; done
echo >"$2" && chmod +x "$2"
"""


@pytest.mark.parametrize("broken", ["", "yes"])
def test_a_build_says_how_long_it_takes_and_not_what_it_downloads(tmp_path: Path, broken: str) -> None:
    (tmp_path / "go").write_text(GO)
    (tmp_path / "go").chmod(0o755)
    variables = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "XDG_CACHE_HOME": str(tmp_path), "BROKEN": broken}
    answer = subprocess.run(
        [str(ROOT / "tools/control_plane/build.sh"), "etcd"],
        env={**{key: value for key, value in os.environ.items() if key != "KUBEBUILDER_ASSETS"}, **variables},
        capture_output=True,
        text=True,
    )
    said = answer.stderr.splitlines()
    assert said[0] == "control plane: building etcd, usually 2 minutes"
    assert "downloading" not in answer.stderr
    assert ("main.go:1: broken" in said) == bool(broken)
    assert (answer.returncode == 0) == (not broken)


def test_a_kubelet_that_has_ended_is_none_that_runs(tmp_path: Path) -> None:
    """Whoever was killed with a cluster leaves processes that nobody waits for, until the machine is started anew."""
    program = tmp_path / "no kubelet)"  # a name may hold what /proc puts around it
    shutil.copy(str(shutil.which("sleep")), program)
    with subprocess.Popen([str(program), "60"]) as process:
        wait_until(lambda: is_running(program.name), "the program to be found")
        process.kill()
        status = Path(f"/proc/{process.pid}/stat")
        wait_until(lambda: status.read_text().rpartition(") ")[2].startswith("Z"), "the program to end")
        assert not is_running(program.name)
