"""Faults of what trains: ranks, pods, their network, their memory, their numbers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from types import MappingProxyType
from typing import Any

from cluster_api import wait_until
from fault import HEALED_S, Fault, NotInEffect, Scene, newest_ranks
from job_cluster import SYSTEM, Json
from node import NODE_NAME
from node_processes import PROC, cut_network, host_device, memory_group, mend_network, processes_of, rank_of, signal_pod
from real_jobs import GROUP, pod_name

Act = Callable[[Scene], None]
HANG_S = 15
FINDS_HANGS = MappingProxyType({"runPolicy": {"hangMinSeconds": HANG_S, "hangMaxSeconds": 120}})
SILENCE_S = 100.0
"""Without a word from a host, after which the launcher gives it up (docs/concepts/hangs.md)."""
TROUBLE_DEADLINE_S = 20.0

# Every Python of the job imports it (site(7)); in rank 0 a thread waits for a file on the volume, and makes a part of
# the weights NaN: biases and normalization, which every step uses.
_NAN_FOLDER = "not-a-number"
_MAKE_NAN = f"""
import os, threading

def wait():
    import gc, time
    place = f"/mnt/output/{_NAN_FOLDER}/" + os.environ.get("BERT_CHAOS_JOB", "")
    while True:
        time.sleep(0.05)
        if os.path.exists(place):
            found = [each for each in gc.get_objects() if type(each).__name__ == "FlatParameters"]
            for parameters in found:
                parameters.values[parameters.num_decayed:] = float("nan")
            if found:  # not in the process that watches over rank 0, which is Python too
                os.unlink(place)

if os.environ.get("OMPI_COMM_WORLD_RANK") == "0" and "BERT_CHAOS_JOB" in os.environ:
    threading.Thread(target=wait, daemon=True).start()
"""
_NAN_JOB = "nan"

# Fills the memory that the container has left, inside its control group, until the kernel has ended somebody.
_FILL_MEMORY = """
import os, sys
group, rank = sys.argv[1], int(sys.argv[2])
with open(group + "/cgroup.procs", "w") as file:
    file.write(str(os.getpid()))
held = []
while os.path.exists(f"/proc/{rank}") and open(f"/proc/{rank}/stat").read().rpartition(")")[2].split()[0] != "Z":
    held.append(b"x" * (16 << 20))
"""


def _worker(scene: Scene) -> Json:
    """Return one of the two workers of the newest attempt, the same one for a second call. Raises NotInEffect."""
    worker: Json = scene.kept.setdefault("worker", scene.random.choice(newest_ranks(scene)))
    return worker


def _signal_a_rank(number: signal.Signals) -> Act:
    def send(scene: Scene) -> None:
        try:
            os.kill(scene.kept.setdefault("rank", rank_of(_worker(scene)["metadata"]["uid"])), number)
        except (LookupError, ProcessLookupError) as problem:
            raise NotInEffect(str(problem)) from problem

    return send


def _continue_the_rank(scene: Scene) -> None:
    with suppress(ProcessLookupError):  # the attempt has been ended meanwhile
        os.kill(scene.kept["rank"], signal.SIGCONT)


def _signal_a_worker(number: signal.Signals) -> Act:
    def send(scene: Scene) -> None:
        if not signal_pod(_worker(scene), number):
            raise NotInEffect("the pod had no processes")

    return send


def _kill_the_launcher(scene: Scene) -> None:
    launchers = scene.job.pods("launcher")
    if not launchers or not signal_pod(launchers[-1], signal.SIGKILL):
        raise NotInEffect("the pod had no processes")


def _evict(scene: Scene) -> None:
    """Evict a worker as a drain does, by the API; it may leave with a checkpoint."""
    assert scene.cluster.node is not None
    name = pod_name(_worker(scene))
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    path = f"/api/v1/namespaces/{scene.namespace.name}/pods/{name}/eviction"
    scene.cluster.node.api.request("POST", path, body).expect()


def _drain(scene: Scene) -> None:
    """Drain the node of the job and of the operator; other pods of the test stay, since nothing brings them back."""
    words = ["drain", NODE_NAME, "--force", "--delete-emptydir-data", "--ignore-daemonsets", "--timeout=60s"]
    scene.after.callback(scene.cluster.kubectl, "uncordon", NODE_NAME)
    scene.cluster.kubectl(*words, f"--pod-selector={GROUP}/job={scene.job.name}")
    scene.cluster.kubectl("-n", SYSTEM, "delete", "pod", "--all", "--wait=false")


def _uncordon(scene: Scene) -> None:
    scene.cluster.kubectl("uncordon", NODE_NAME)


def _cut_the_network(scene: Scene) -> None:
    """Cut a worker off from everybody: peers, launcher, API server, node."""
    device = host_device(processes_of(_worker(scene)["metadata"]["uid"])[0])
    scene.kept["device"] = device
    scene.after.callback(mend_network, device)
    cut_network(device)


def _mend_the_network(scene: Scene) -> None:
    mend_network(scene.kept["device"])


def _make_nan(scene: Scene) -> None:
    """Make weights NaN in the memory of rank 0."""
    place = scene.volume / _NAN_FOLDER / _NAN_JOB
    if not (place.parent / "sitecustomize.py").exists():
        raise NotInEffect("the job's ranks have not been prepared")
    place.touch()
    try:
        wait_until(lambda: not place.exists(), "rank 0 to have NaN weights", timeout_s=TROUBLE_DEADLINE_S)
    except TimeoutError as problem:
        place.unlink(missing_ok=True)
        raise NotInEffect(str(problem)) from problem


def _lay_out_nan(scene: Scene) -> None:
    folder = scene.volume / _NAN_FOLDER
    folder.mkdir(exist_ok=True)
    folder.chmod(0o777)
    (folder / "sitecustomize.py").write_text(_MAKE_NAN)


def _use_up_the_memory(scene: Scene) -> None:
    """Fill what the container has left of its memory limit; the kernel ends the rank, which has most."""
    uid = _worker(scene)["metadata"]["uid"]
    try:
        rank = rank_of(uid)
        (PROC / str(rank) / "oom_score_adj").write_text("1000")  # before what fills it
        command = [sys.executable, "-c", _FILL_MEMORY, str(memory_group(rank)), str(rank)]
        filler = subprocess.run(command, timeout=TROUBLE_DEADLINE_S, capture_output=True, text=True)
    except (LookupError, OSError, subprocess.TimeoutExpired) as problem:
        raise NotInEffect(f"the memory was not used up: {problem}") from problem
    if rank in processes_of(uid):
        raise NotInEffect(f"the kernel ended another process: {filler.returncode} {filler.stderr}")


def _training(name: str, inject: Act, **more: Any) -> Fault:
    return Fault(name=name, group="training", inject=inject, **more)


FAULTS = (
    _training("SIGKILL of a rank", _signal_a_rank(signal.SIGKILL)),
    # With the limit that jobs have by default: 120 s.
    _training(
        "SIGSTOP of a rank for 60 s",
        _signal_a_rank(signal.SIGSTOP),
        heal=_continue_the_rank,
        hold_s=60.0,
        steps_interrupted=False,
    ),
    _training(
        "SIGSTOP of a rank for good",
        _signal_a_rank(signal.SIGSTOP),
        spec=FINDS_HANGS,
        step_again_s=HEALED_S + HANG_S,
    ),
    _training(
        "SIGSTOP of a pod", _signal_a_worker(signal.SIGSTOP), spec=FINDS_HANGS, step_again_s=HEALED_S + SILENCE_S
    ),
    _training("launcher pod killed", _kill_the_launcher),
    _training("worker pod killed", _signal_a_worker(signal.SIGKILL)),
    _training("eviction of a worker", _evict),
    _training("drain and uncordon", _drain, heal=_uncordon, hold_s=5.0, alone=True),
    _training(
        "network of a pod cut for 30 s", _cut_the_network, heal=_mend_the_network, hold_s=30.0, steps_interrupted=False
    ),
    _training("network of a pod cut for good", _cut_the_network, step_again_s=HEALED_S + SILENCE_S),
    _training(
        "NaN in the weights",
        _make_nan,
        prepare=_lay_out_nan,
        # By default a NaN stops the attempt, and counts as a failure of the program, of which a job may have one.
        spec={
            "runPolicy": {"applicationRetries": 3},
            "env": [
                {"name": "OMP_NUM_THREADS", "value": "1"},
                {"name": "PYTHONPATH", "value": f"/mnt/output/{_NAN_FOLDER}:/opt/bert/src"},
                {"name": "BERT_CHAOS_JOB", "value": _NAN_JOB},
            ],
        },
    ),
    _training("memory limit hit", _use_up_the_memory),
)
