"""``make cluster-demo``: a cluster on this machine, the operator in it, two jobs to their end, everything away again.

Brings up the one-node cluster of the tests (root, buildah and containerd needed), or takes the one that KUBECONFIG
names (CONTRIBUTING.md, Tests on a cluster), installs the operator from its own image, runs examples/03-single-node and
examples/02-two-workers, follows the launcher's log with the documented command, and ends with one line of figures.
"""

from __future__ import annotations

import copy
import math
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools/local_cluster"))

from job_cluster import Namespace, poll, running_cluster  # noqa: E402 - after the path
from node import missing_tools  # noqa: E402

NAMESPACE = "demo"
START_RUNS = 3
FIRST_STEP_S = 180
"""Seconds after which a job that has not begun is given up."""
IMPORT_S = 180
"""Seconds after which the trainer's imports are no longer measured."""
LIMITS_S = {"apply_to_first_step_s": 20.0, "deleted_s": 30.0}
"""What the figures of the last line have to stay below, on a machine that does nothing else."""
FOLLOW = "kubectl logs -f $(kubectl get pods -oname | grep {word} | cut -c5-)"

Json = dict[str, Any]


class Demo:
    """The steps of the demonstration."""

    def __init__(self, namespace: Namespace) -> None:
        """Take the namespace in which everything happens."""
        self.namespace = namespace

    def shell(self, command: str) -> str:
        """Show a command, run it, show and return what it printed."""
        say(f"$ {command}")
        text = self.namespace.shell(command)
        print(text, end="", flush=True)
        return text

    def apply(self, document: Json) -> float:
        """Apply an object; returns when, by our own clock."""
        started_s = time.monotonic()
        self.namespace.apply(document)
        return started_s

    def wait_for_end(self, name: str, timeout_s: float = 240) -> str:
        """Wait until a job has ended and return its phase."""
        return self.wait_for_phase(name, "Succeeded", "Failed", timeout_s=timeout_s)

    def wait_for_phase(self, name: str, *phases: str, timeout_s: float = 120) -> str:
        """Wait until a job is in one of some phases and return it."""

        def phase() -> str | None:
            found = ((self.namespace.find("bpj", name) or {}).get("status") or {}).get("phase")
            return found if found in phases else None

        return str(poll(phase, f"{name} to be {' or '.join(phases)}", timeout_s=timeout_s))

    def wait_for_first_step(self, name: str) -> float:
        """Return when the launcher's log first told of a step."""
        cluster = self.namespace.cluster
        here = f"{cluster.program} --kubeconfig {cluster.kubeconfig} --namespace {self.namespace.name}"
        logs = f"{here} logs -f job/{name}-a1-launcher"
        follow = subprocess.Popen(
            ["timeout", str(FIRST_STEP_S), "bash", "-c", f"until {logs} 2>/dev/null; do sleep 0.1; done"],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            assert follow.stdout is not None
            for line in follow.stdout:
                if "event=progress" in line and "step=1 " in line:
                    return time.monotonic()
        finally:
            os.killpg(follow.pid, 9)
            follow.wait()
        raise AssertionError(f"{name}: its launcher never told of a step")

    def measure_import(self) -> float:
        """Return the seconds that the trainer's imports take in a pod of the image; not a number where it is slow."""
        program = "import time; t = time.monotonic(); import bert_trainer.training.run; print(time.monotonic() - t)"
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "imports"},
            "spec": {
                "restartPolicy": "Never",
                "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
                "containers": [
                    {
                        "name": "imports",
                        "image": self.namespace.cluster.trainer_image,
                        "command": ["python3", "-c", program],
                        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                    }
                ],
            },
        }
        seconds = []
        for _ in range(START_RUNS):
            self.apply(pod)
            try:
                self.namespace.wait_pod("imports", "Succeeded", IMPORT_S)
            except TimeoutError:
                say(f"the trainer's imports take more than {IMPORT_S} s on this machine; going on without their figure")
                self.shell("kubectl delete pod imports --wait --grace-period=0 --force >/dev/null 2>&1")
                return math.nan
            seconds.append(float(self.shell("kubectl logs imports")))
            self.shell("kubectl delete pod imports --wait --grace-period=0 --force >/dev/null 2>&1")
        return statistics.median(seconds)


def main() -> int:
    """Run the demonstration; 0 where both jobs succeeded, fast enough."""
    if not os.environ.get("KUBECONFIG") and (missing := missing_tools()):
        print(f"cluster-demo: {missing}. Or name a cluster by KUBECONFIG (CONTRIBUTING.md)", file=sys.stderr)
        return 2
    # By default SIGTERM ends Python at once, and a whole cluster would be left behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = Path(tempfile.mkdtemp(prefix="bert-cluster-"))
    try:
        if not os.environ.get("KUBECONFIG"):
            say("starting a cluster of one node; with warm caches about 5 minutes in all, with cold ones 20 more:")
            say("Kubernetes 10 minutes, images 5, and what is built says how long that usually takes")
        with running_cluster(folder / "node") as cluster:
            say("the cluster is up and has the images; installing the operator")
            cluster.install_operator(folder / "overlay")
            namespace = cluster.make_namespace(NAMESPACE, "restricted")
            namespace.make_claim()
            return demonstrate(Demo(namespace))
    except (AssertionError, TimeoutError, subprocess.SubprocessError) as error:
        print(f"cluster-demo: {error}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def demonstrate(demo: Demo) -> int:
    """Do everything inside the cluster and print the figures."""
    namespace = demo.namespace
    single, two = read_example("03-single-node"), read_example("02-two-workers")
    demo.apply(single)
    demo.wait_for_phase("single-node", "Running")
    single_phase = demo.wait_for_end("single-node")
    demo.shell("kubectl get bpj -o wide")
    demo.shell(f"{FOLLOW.format(word='training')} | tail -n 3")

    import_s = demo.measure_import()
    starts = []
    for number in range(START_RUNS):
        timed = copy.deepcopy(two)
        timed["metadata"]["name"] = f"start-{number}"
        timed["spec"]["output"]["path"] = f"start-{number}"
        timed["spec"]["logging"] = {"everySteps": 1}
        started_s = demo.apply(timed)
        starts.append(demo.wait_for_first_step(timed["metadata"]["name"]) - started_s - import_s)
        demo.wait_for_end(timed["metadata"]["name"])
        demo.shell(f"kubectl delete bpj {timed['metadata']['name']}")
        poll(lambda: no_pods(namespace, "start-"), "the pods to go")
    say(f"apply to first step, without {import_s:.1f} s of imports: {', '.join(f'{s:.1f}' for s in starts)} s")

    demo.apply(two)
    demo.wait_for_phase("two-workers", "Running")
    demo.shell("kubectl get bpj -o wide")
    demo.shell(f"{FOLLOW.format(word='launch')} | tail -n 12")
    two_phase = demo.wait_for_end("two-workers")
    demo.shell("kubectl get bpj -o wide")
    for name in ("two-workers", "single-node"):
        found = namespace.python(f"import os; print(*sorted(os.listdir('/volume/{name}')))").split()
        assert {"checkpoints", "metrics.jsonl", "export", "logs"} <= {*found}, found
        say(f"{name}: {', '.join(found)}")
    started_s = time.monotonic()
    demo.shell("kubectl delete bpj --all")
    poll(lambda: no_pods(namespace, ""), "all pods to go")
    deleted_s = time.monotonic() - started_s
    namespace.cluster.delete_namespace(namespace.name)
    figures = {"apply_to_first_step_s": statistics.median(starts), "deleted_s": deleted_s}
    too_slow = [f"{name} is over {LIMITS_S[name]:g}" for name, value in figures.items() if value >= LIMITS_S[name]]
    if too_slow:
        say(f"too slow: {', '.join(too_slow)}")
    print(
        f"cluster-demo: two_workers={two_phase} single_node={single_phase} "
        f"apply_to_first_step_s={figures['apply_to_first_step_s']:.1f} import_s={import_s:.1f} "
        f"deleted_s={deleted_s:.1f}"
    )
    return 0 if two_phase == single_phase == "Succeeded" and not too_slow else 1


def no_pods(namespace: Namespace, prefix: str) -> bool:
    """Tell whether no pod of a job whose name begins so is left."""
    pods = namespace.list("pods", "bert-operator.dev/job")
    return not any(pod["metadata"]["name"].startswith(prefix) for pod in pods)


def read_example(name: str) -> Json:
    """Return the job of an example."""
    document: Json = yaml.safe_load((ROOT / "examples" / name / "job.yaml").read_text())
    # On the node made for the purpose the image is there already, and nowhere else.
    document["spec"]["imagePullPolicy"] = "IfNotPresent"
    return document


def say(text: str) -> None:
    """Say what happens."""
    print(f"--- {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
