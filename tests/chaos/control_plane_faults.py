"""What may befall the operator, the API server and the node's own services while a job trains.

None of it concerns the ranks: no step may be interrupted, and the status says what is within 15 s after the return. The
one exception takes a worker with the operator. Ranks are slowed down while a fault holds for minutes, so that the run
does not end inside it.
"""

from __future__ import annotations

import contextlib
import signal
import weakref
from collections.abc import Callable
from typing import Any

from cluster_api import wait_until
from component import Component
from consistency import wait_consistent
from fault import Fault, NotInEffect, Scene, newest_ranks
from flaky_proxy import Fault as RequestFault
from node import NODE_NAME, Cluster, node_is_ready
from node_processes import signal_pod
from node_shares import slowed
from operator_places import StandIn, kill_operator, stand_in, wait_ready

SLOW_CALL_S = 30.0
HOUR_S = 3600
NOT_READY_S = 120.0
A_LITTLE, HARDLY = 0.45, 0.12
"""Of a core, for each worker, while a fault holds for half a minute or for minutes: some 40 steps of the job's 180."""
NOTICED_S = 90.0
"""Longest wait until the node controller calls a silent node NotReady; by default it waits 50 s."""

_STAND_INS: weakref.WeakKeyDictionary[contextlib.ExitStack, StandIn] = weakref.WeakKeyDictionary()


def node_of(scene: Scene) -> Cluster:
    """Return the node of this machine; on another cluster none of this can be done. Raises NotInEffect."""
    if scene.cluster.node is None:
        raise NotInEffect("this needs a cluster of this machine")
    return scene.cluster.node


def healing_of(scene: Scene) -> contextlib.ExitStack:
    """Return what takes the injection back: closed by ``end_healing``, and after the verdict whatever happened."""
    if "healing" not in scene.kept:
        scene.kept["healing"] = scene.after.enter_context(contextlib.ExitStack())
    stack: contextlib.ExitStack = scene.kept["healing"]
    return stack


def slow_ranks(scene: Scene, share: float) -> None:
    """Let the job's workers take few steps until the fault is over. Raises NotInEffect."""
    try:
        healing_of(scene).enter_context(slowed(newest_ranks(scene), share))
    except LookupError as ended:  # between the last look and now
        raise NotInEffect(str(ended)) from ended


def kill_the_operator(scene: Scene) -> None:
    slow_ranks(scene, A_LITTLE)
    kill_operator(scene.cluster)


def kill_operator_and_worker(scene: Scene) -> None:
    worker = scene.random.choice(newest_ranks(scene))
    kill_operator(scene.cluster)
    if not signal_pod(worker, signal.SIGKILL):
        raise NotInEffect("the worker had ended")
    scene.notes.append(str(worker["metadata"]["name"]))


def have_operator_again(scene: Scene) -> None:
    wait_ready(scene.cluster)
    end_healing(scene)


def stop_api_server(scene: Scene) -> None:
    slow_ranks(scene, A_LITTLE)
    node_of(scene).api_server.kill()


def start_api_server(scene: Scene) -> None:
    node_of(scene).api_server.start()
    end_healing(scene)


def kill_etcd(scene: Scene) -> None:
    slow_ranks(scene, A_LITTLE)
    node_of(scene).etcd.kill()


def start_etcd(scene: Scene) -> None:
    node = node_of(scene)
    node.etcd.start()
    wait_until(lambda: node.api.get("v1/namespaces", "default").status == 200, "the API server to see etcd again")
    end_healing(scene)


def part(scene: Scene, name: str) -> Component:
    """Return a service of the node."""
    return next(part for part in node_of(scene).node_parts if part.name == name)


def kill_part(name: str) -> Callable[[Scene], None]:
    def kill(scene: Scene) -> None:
        slow_ranks(scene, A_LITTLE)
        part(scene, name).kill()

    return kill


def start_part(name: str) -> Callable[[Scene], None]:
    def start(scene: Scene) -> None:
        part(scene, name).start()
        wait_until(lambda: node_is_ready(node_of(scene).api), "the node to be ready")
        end_healing(scene)

    return start


def lose_node(scene: Scene) -> None:
    """Stop kubelet, and return once the node is NotReady."""
    slow_ranks(scene, HARDLY)
    part(scene, "kubelet").kill()
    api = node_of(scene).api
    wait_until(lambda: not node_is_ready(api), f"{NODE_NAME} to be NotReady", timeout_s=NOTICED_S, every_s=0.5)


def stand_in_of(scene: Scene) -> StandIn:
    """Return the operator as a process of this machine, until the job has been judged: one for all its moments."""
    stack = scene.after
    if stack not in _STAND_INS:
        folder = node_of(scene).folder / f"stand-in-{scene.random.getrandbits(32):08x}"
        _STAND_INS[stack] = stack.enter_context(stand_in(scene.cluster, folder))
    return _STAND_INS[stack]


def slow_api_server(scene: Scene) -> None:
    slow_ranks(scene, HARDLY)
    proxy = stand_in_of(scene).proxy
    fault = proxy.add(RequestFault(lambda _: True, "delay", delay_s=SLOW_CALL_S))
    healing_of(scene).callback(proxy.clear)
    # Open watches would go on telling: what is slow is slow for them as well.
    proxy.cut_watches()
    if not fault.reached.wait(30):
        raise NotInEffect("the operator asked nothing for 30 s")


def set_clock(offset_s: int) -> Callable[[Scene], None]:
    def inject(scene: Scene) -> None:
        slow_ranks(scene, A_LITTLE)
        operator = stand_in_of(scene)
        healing_of(scene).callback(operator.clock_file.write_text, "+0")
        operator.set_clock(offset_s)

    return inject


def end_healing(scene: Scene) -> None:
    """Take back what the injection has put on the scene's stack."""
    healing_of(scene).close()


UNTOUCHED: dict[str, Any] = {"group": "control plane", "steps_interrupted": False, "settled": wait_consistent}
ONE_JOB: dict[str, Any] = {**UNTOUCHED, "one_job": True}

FAULTS = (
    Fault(name="operator killed", inject=kill_the_operator, heal=have_operator_again, **ONE_JOB),
    Fault(
        name="operator killed with a worker",
        group="control plane",
        inject=kill_operator_and_worker,
        heal=have_operator_again,
        settled=wait_consistent,
        one_job=True,
    ),
    Fault(name="API server down for 30 s", inject=stop_api_server, heal=start_api_server, hold_s=30.0, **ONE_JOB),
    Fault(
        name="API server slow: 30 s a call for 2 min",
        inject=slow_api_server,
        heal=end_healing,
        hold_s=120.0,
        alone=True,
        **UNTOUCHED,
    ),
    Fault(name="etcd restarted", inject=kill_etcd, heal=start_etcd, hold_s=5.0, **ONE_JOB),
    Fault(name="kubelet restarted", inject=kill_part("kubelet"), heal=start_part("kubelet"), hold_s=5.0, **ONE_JOB),
    Fault(
        name="containerd restarted",
        inject=kill_part("containerd"),
        heal=start_part("containerd"),
        hold_s=5.0,
        **ONE_JOB,
    ),
    Fault(
        name="node NotReady for 2 min",
        inject=lose_node,
        heal=start_part("kubelet"),
        hold_s=NOT_READY_S,
        alone=True,
        **UNTOUCHED,
    ),
    Fault(name="operator's clock an hour ahead", inject=set_clock(HOUR_S), heal=end_healing, hold_s=15.0, **ONE_JOB),
    Fault(name="operator's clock an hour behind", inject=set_clock(-HOUR_S), heal=end_healing, hold_s=15.0, **ONE_JOB),
)
