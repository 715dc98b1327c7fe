"""``make cluster-demo``: a cluster on this machine, the operator in it, two jobs to their end, everything away again.

Brings up the one-node cluster of the tests (root, buildah and containerd needed; other clusters: README), installs
the operator from its own image, runs examples/03-single-node and examples/02-two-workers, follows the launcher's log
with the documented command, and ends with one line of figures.
"""

from __future__ import annotations

import copy
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/support"))

from cluster_api import wait_until  # noqa: E402 - after the path
from control_plane import namespace_of  # noqa: E402
from node import Cluster, import_images, make_volume  # noqa: E402

NAMESPACE = "demo"
JOBS = "bert-operator.dev/v1alpha1/bertpretrainjobs"
START_RUNS = 3
FOLLOW = "kubectl logs -f $(kubectl get pods -oname | grep {word} | cut -c5-)"

Json = dict[str, Any]


class Demo:
    """The steps of the demonstration."""

    def __init__(self, cluster: Cluster) -> None:
        """Take a running cluster."""
        self.cluster, self.api = cluster, cluster.api
        config = cluster.kubeconfig(cluster.admin_token)
        subprocess.run(
            ["kubectl", "--kubeconfig", str(config), "config", "set-context", "--current", "--namespace", NAMESPACE],
            check=True,
            capture_output=True,
        )
        self.environment = {**os.environ, "KUBECONFIG": str(config)}

    def shell(self, command: str) -> str:
        """Show a command, run it, show and return what it printed."""
        say(f"$ {command}")
        answer = subprocess.run(
            ["bash", "-c", command], env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        print(answer.stdout, end="", flush=True)
        assert answer.returncode == 0, f"{command}: exit code {answer.returncode}"
        return answer.stdout

    def install(self) -> None:
        """Install CRD, rights and operator, and wait until it is ready."""
        build = self.cluster.folder / "overlay"
        build.mkdir()
        (build / "kustomization.yaml").write_text(
            yaml.safe_dump(
                {
                    "resources": [os.path.relpath(ROOT / "deploy/kustomize/base", build)],
                    "images": [
                        {
                            "name": "docker.io/bert-operator/operator",
                            "newName": "bert-operator.test/operator",
                            "newTag": "dev",
                        }
                    ],
                    "patches": [
                        {
                            "target": {"kind": "ConfigMap", "name": "bert-operator-settings"},
                            "patch": yaml.safe_dump(
                                [
                                    {
                                        "op": "replace",
                                        "path": "/data/settings.yaml",
                                        "value": "trainerImage: bert-operator.test/trainer:dev\n",
                                    }
                                ]
                            ),
                        }
                    ],
                }
            )
        )
        self.shell(f"kubectl apply --server-side -k {build} >/dev/null")
        self.shell("kubectl -n bert-operator rollout status deployment/bert-operator --timeout=60s")

    def apply(self, document: Json) -> float:
        """Apply a job; returns when, by our own clock."""
        started_s = time.monotonic()
        subprocess.run(
            ["kubectl", "apply", "-f", "-"],
            env=self.environment,
            input=yaml.safe_dump(document),
            text=True,
            check=True,
            capture_output=True,
        )
        return started_s

    def phase(self, name: str) -> str:
        """Return a job's phase."""
        status = self.api.get(JOBS, name, NAMESPACE).body.get("status") or {}
        return str(status.get("phase"))

    def wait_for_end(self, name: str, timeout_s: float = 180) -> str:
        """Wait until a job has ended and return its phase."""
        wait_until(lambda: self.phase(name) in ("Succeeded", "Failed"), timeout_s, f"{name} to end")
        return self.phase(name)

    def wait_for_first_step(self, name: str) -> float:
        """Return when the launcher's log first told of a step."""
        follow = subprocess.Popen(
            ["bash", "-c", f"until kubectl logs -f job/{name}-a1-launcher 2>/dev/null; do sleep 0.1; done"],
            env=self.environment,
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
        """Return the seconds that the trainer's imports take in a pod of the image."""
        program = "import time; t = time.monotonic(); import bert_trainer.train; print(time.monotonic() - t)"
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "imports", "namespace": NAMESPACE},
            "spec": {
                "restartPolicy": "Never",
                "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
                "containers": [
                    {
                        "name": "imports",
                        "image": "bert-operator.test/trainer:dev",
                        "command": ["python3", "-c", program],
                        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                    }
                ],
            },
        }
        seconds = []
        for _ in range(START_RUNS):
            self.apply(pod)
            wait_until(lambda: self._pod_phase("imports") == "Succeeded", 60, "the imports")
            seconds.append(float(self.shell("kubectl logs imports")))
            self.shell("kubectl delete pod imports --wait --grace-period=0 --force >/dev/null 2>&1")
        return statistics.median(seconds)

    def _pod_phase(self, name: str) -> str:
        answer = self.api.get("v1/pods", name, NAMESPACE)
        return str(answer.body["status"]["phase"]) if answer.status == 200 else ""


def main() -> int:
    """Run the demonstration; 0 where both jobs succeeded."""
    folder = Path(tempfile.mkdtemp(prefix="bert-cluster-"))
    try:
        with Cluster(folder / "node") as cluster:
            say("the cluster is up; importing the images")
            import_images(cluster)
            return demonstrate(Demo(cluster))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def demonstrate(demo: Demo) -> int:
    """Do everything inside the cluster and print the figures."""
    demo.install()
    restricted = {"pod-security.kubernetes.io/enforce": "restricted"}
    demo.api.create(namespace_of(NAMESPACE, restricted)).expect()
    volume = make_volume(demo.cluster, NAMESPACE, "bert")
    single, two = read_example("03-single-node"), read_example("02-two-workers")
    demo.apply(single)
    wait_until(lambda: demo.phase("single-node") == "Running", 60, "the single pod")
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
        wait_until(lambda: no_pods(demo, "start-"), 60, "the pods to go")
    say(f"apply to first step, without {import_s:.1f} s of imports: {', '.join(f'{s:.1f}' for s in starts)} s")

    demo.apply(two)
    wait_until(lambda: demo.phase("two-workers") == "Running", 60, "two workers")
    demo.shell("kubectl get bpj -o wide")
    demo.shell(f"{FOLLOW.format(word='launch')} | tail -n 12")
    two_phase = demo.wait_for_end("two-workers")
    demo.shell("kubectl get bpj -o wide")
    for name in ("two-workers", "single-node"):
        found = sorted(path.name for path in (volume / name).iterdir())
        assert {"checkpoints", "metrics.jsonl", "export", "logs"} <= {*found, "logs"}, found
        say(f"{name}: {', '.join(found)}")
    started_s = time.monotonic()
    demo.shell("kubectl delete bpj --all")
    wait_until(lambda: no_pods(demo, ""), 60, "all pods to go")
    deleted_s = time.monotonic() - started_s
    print(
        f"cluster-demo: two_workers={two_phase} single_node={single_phase} "
        f"apply_to_first_step_s={statistics.median(starts):.1f} import_s={import_s:.1f} deleted_s={deleted_s:.1f}"
    )
    return 0 if two_phase == single_phase == "Succeeded" else 1


def no_pods(demo: Demo, prefix: str) -> bool:
    """Tell whether no pod of a job whose name begins so is left."""
    return not any(re.match(prefix, pod["metadata"]["name"]) for pod in demo.api.list("v1/pods", NAMESPACE))


def read_example(name: str) -> Json:
    """Return the job of an example."""
    document: Json = yaml.safe_load((ROOT / "examples" / name / "job.yaml").read_text())
    # The operator's default image lies on the node and nowhere else.
    document["spec"]["imagePullPolicy"] = "Never"
    return document


def say(text: str) -> None:
    """Say what happens."""
    print(f"--- {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
