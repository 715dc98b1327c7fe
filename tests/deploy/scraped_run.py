"""A real Prometheus that scrapes the operator, a process of its own, and rank 0 of a small run on this machine.

The operator reads the run's standard output as the log of a pod, from an API server in memory. Of two jobs beside it
one waits for pods that nobody makes, and one names a profile that nobody has.
"""

from __future__ import annotations

import io
import json
import shutil
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from api_stand_in import ApiStandIn
from bert_operator.cluster.paths import path_of
from bert_operator.render import names
from bert_trainer.output.progress import Reporter
from bert_trainer.training import run_writer
from child_documents import pod_document
from cluster_api import wait_until
from cluster_jobs import job_document
from component import Component, free_ports
from in_process import train
from operator_process import OperatorProcess
from tiny_run import pretrain_stage, run_config, write_dataset

NAMESPACE, JOB, STAGE = "demo", "corpus", "phase1"
SCRAPE_S = 0.5
VARIABLES = {"$__rate_interval": "10s", "$job_namespace": NAMESPACE, "$job_name": JOB}
Json = dict[str, Any]


@dataclass(frozen=True)
class Scraped:
    """What Prometheus has of a run that is over."""

    url: str
    began_s: float
    ended_s: float

    def ask(self, query: str) -> list[Json]:
        """Return the series of a query over the run, each with its labels and values. Raises AssertionError."""
        for name, value in VARIABLES.items():
            query = query.replace(name, value)
        fields = {"query": query, "start": self.began_s, "end": self.ended_s, "step": SCRAPE_S}
        found = fetch(f"{self.url}/api/v1/query_range?{urllib.parse.urlencode(fields)}")
        assert found["status"] == "success", f"{query}: {found}"
        assert not found.get("warnings"), f"{query}: {found['warnings']}"
        return list(found["data"]["result"])


def fetch(url: str) -> Json:
    """Return the document at an address, whatever its status says."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return dict(json.load(answer))
    except urllib.error.HTTPError as error:
        return dict(json.load(error))


class Log(io.StringIO):
    """Standard output of the run: the log of its pod. A report is held until Prometheus has it from the operator."""

    def __init__(self, server: ApiStandIn, pod: str, wait: Any) -> None:
        super().__init__()
        self._server, self._pod, self._wait = server, pod, wait

    def flush(self) -> None:
        """Show a whole line."""
        self._server.logs[self._pod] = self.getvalue()
        if "event=progress" in self.getvalue().splitlines()[-1]:
            self._wait()


@contextmanager
def scraped_run(folder: Path, *, steps: int) -> Iterator[Scraped]:
    """Train, scrape, and hand out what there is to ask; each step is a report that takes up to five seconds."""
    port, trainer_port = free_ports(2)
    with ApiStandIn() as server:
        server.tells = True
        server.put(path_of("BertPretrainJob", NAMESPACE), job_document(JOB))
        server.put(path_of("BertPretrainJob", NAMESPACE), job_document("waits"))
        server.put(path_of("BertPretrainJob", NAMESPACE), job_document("invalid", profile="nobodys"))
        with OperatorProcess(folder, server.kubeconfig(folder)) as operator:
            pod, uid = start_pod(server)
            prometheus = Component(
                "prometheus",
                prometheus_command(folder, port, {"operator": operator.port, "trainer": trainer_port}),
                folder / "prometheus.log",
                lambda: is_up(f"http://127.0.0.1:{port}/-/ready"),
            )
            prometheus.start()
            try:
                scraped = Scraped(f"http://127.0.0.1:{port}", time.time(), time.time() + 3600)
                reports = iter(range(1, steps + 1))

                def wait() -> None:
                    step = next(reports)
                    for name in ("bert_operator_job_step", "bert_trainer_step")[: 1 if step == 1 else 2]:
                        at_least = step if name.startswith("bert_operator") else step - 1
                        reached = lambda: newest(scraped.ask(name)) >= at_least  # noqa: E731, B023
                        wait_until(reached, f"{name} of step {step} to be scraped")

                config = run_config(
                    folder / "run",
                    write_dataset(folder / "data"),
                    job={"name": JOB, "uid": uid},
                    stages=[pretrain_stage(name=STAGE, length={"steps": steps})],
                    logging={"every_steps": 1, "tensorboard": False, "prometheus_port": trainer_port},
                )
                # Its stream is standard output as it was when the module was imported.
                with mock.patch.object(run_writer, "Reporter", partial(Reporter, stream=Log(server, pod, wait))):
                    train(config)
                # A moment more: answers are at fixed times, and the last may lie before the last scrape.
                yield Scraped(scraped.url, scraped.began_s, time.time() + SCRAPE_S)
            finally:
                prometheus.kill()


def start_pod(server: ApiStandIn) -> tuple[str, str]:
    """Have the job's first pod run; return its name and the job's uid."""
    child = names.child_name(JOB, "training", 1, is_mpi=False)
    path = f"{path_of('Job', NAMESPACE)}/{child}"
    wait_until(lambda: path in server.objects, "the child of the job")
    document = server.objects[path]
    pod = pod_document(names.SINGLE, job=JOB, owner=document["metadata"]["uid"])
    pod["metadata"]["creationTimestamp"] = document["metadata"]["creationTimestamp"]
    server.logs[pod["metadata"]["name"]] = ""
    server.put(path_of("Pod", NAMESPACE), pod)
    server.update(path, {"status": {"active": 1, "ready": 1}})
    job = f"{path_of('BertPretrainJob', NAMESPACE)}/{JOB}"
    wait_until(lambda: server.objects[job].get("status", {}).get("phase") == "Running", "the job to run")
    return pod["metadata"]["name"], str(server.objects[job]["metadata"]["uid"])


def prometheus_command(folder: Path, port: int, targets: dict[str, int]) -> list[str]:
    """Return the command that scrapes these ports of this machine; writes its configuration."""
    scrapes = [{"job_name": name, "static_configs": [{"targets": [f"127.0.0.1:{at}"]}]} for name, at in targets.items()]
    timing = {"scrape_interval": f"{int(SCRAPE_S * 1000)}ms", "scrape_timeout": f"{int(SCRAPE_S * 1000)}ms"}
    configuration = folder / "prometheus.yaml"
    configuration.write_text(json.dumps({"global": timing, "scrape_configs": scrapes}))
    return [
        str(shutil.which("prometheus")),
        f"--config.file={configuration}",
        f"--storage.tsdb.path={folder / 'prometheus'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=error",
    ]


def is_up(url: str) -> bool:
    """Return whether an address answers with 200."""
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def newest(series: list[Json]) -> float:
    """Return the newest value of the first series; -1 if there is none."""
    return float(series[0]["values"][-1][1]) if series else -1.0
