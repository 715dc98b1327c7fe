"""Faults of what trains: ranks, pods, their network, their files, their data."""

from __future__ import annotations

import signal
from types import MappingProxyType

from fault import HEALED_S, Fault, NotInEffect, Scene
from node_processes import signal_pod

HANG_S = 15
FINDS_HANGS = MappingProxyType({"runPolicy": {"hangMinSeconds": HANG_S, "hangMaxSeconds": 120}})

_SIGNAL_A_RANK = """
import os
from bert_trainer.pod.processes import find_descendants, find_ranks
rank = find_ranks(1)[-1]
(program,) = find_descendants(rank)[rank]
os.kill(program, {number})
"""


def _signal_a_rank(scene: Scene, number: signal.Signals) -> None:
    """Send a signal to the program of one rank, of the same one again for a second signal."""
    pod = scene.kept.setdefault("pod", scene.job.pod("worker", scene.random.randrange(-2, 0)))
    try:
        scene.namespace.python(_SIGNAL_A_RANK.format(number=int(number)), pod=pod)
    except AssertionError as problem:
        if number == signal.SIGCONT:
            return  # the attempt has been ended meanwhile
        raise NotInEffect(f"no rank in {pod}: {problem}") from problem


def _kill_a_rank(scene: Scene) -> None:
    _signal_a_rank(scene, signal.SIGKILL)


def _stop_a_rank(scene: Scene) -> None:
    _signal_a_rank(scene, signal.SIGSTOP)


def _continue_the_rank(scene: Scene) -> None:
    _signal_a_rank(scene, signal.SIGCONT)


def _stop_a_pod(scene: Scene) -> None:
    workers = scene.job.pods("worker")[-2:]
    if not signal_pod(scene.random.choice(workers), signal.SIGSTOP):
        raise NotInEffect("the pod had no processes")


FAULTS = (
    Fault(name="SIGKILL of a rank", group="training", inject=_kill_a_rank),
    # With the limit that jobs have by default: 120 s.
    Fault(
        name="SIGSTOP of a rank for 60 s",
        group="training",
        inject=_stop_a_rank,
        heal=_continue_the_rank,
        hold_s=60.0,
        steps_interrupted=False,
    ),
    Fault(
        name="SIGSTOP of a rank for good",
        group="training",
        inject=_stop_a_rank,
        spec=FINDS_HANGS,
        step_again_s=HEALED_S + HANG_S,
    ),
    Fault(
        name="SIGSTOP of a pod",
        group="training",
        inject=_stop_a_pod,
        spec=FINDS_HANGS,
        step_again_s=HEALED_S + HANG_S,
    ),
)
