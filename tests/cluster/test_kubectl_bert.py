"""``kubectl bert`` through a day of one job: a rank is killed, the job is paused, its second stage comes, it ends.

Input: a job of two pods on the shared dataset. Observed: what ``logs -f`` prints from the first attempt to the end, in
one process, and the screens of ``status`` at five moments. ``make recording`` (BERT_RECORD_TO=FILE) writes them to the
page that documents them, with the namespace's name made up.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from job_cluster import Namespace
from real_jobs import RealJob, training_job

pytestmark = pytest.mark.timeout(400)

NAME, TEAM = "corpus", "team"
STEPS = {"phase1": 120, "phase2": 300}
"""The second is long enough to be seen while it runs, also where a step takes 20 ms."""
_REPORT = re.compile(r"event=(progress|checkpoint|evaluated) ")
TITLES = {
    "running": "While it trains",
    "killed": "A rank was killed: after its restart",
    "paused": "Paused",
    "second stage": "In the second stage",
    "ended": "At the end",
}


@dataclass
class Story:
    """What was seen of the job."""

    screens: dict[str, str] = field(default_factory=dict)
    log: str = ""
    exit_status: int = -1


@dataclass(frozen=True)
class Bert:
    """The plugin, in processes of its own, with the kubectl of the cluster."""

    namespace: Namespace

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "bert_operator", *words, "--namespace", self.namespace.name]

    @property
    def environment(self) -> dict[str, str]:
        cluster = self.namespace.cluster
        folder = str(Path(cluster.program).parent)
        path = os.pathsep.join([folder, os.environ["PATH"]]) if folder != "." else os.environ["PATH"]
        return {**os.environ, "PATH": path, "KUBECONFIG": str(cluster.kubeconfig)}

    def run(self, *words: str) -> str:
        answer = subprocess.run(self.command(*words), env=self.environment, capture_output=True, text=True, timeout=120)
        assert answer.returncode == 0, answer.stdout + answer.stderr
        return answer.stdout

    @contextmanager
    def following(self, folder: Path, story: Story) -> Iterator[None]:
        """Have ``logs -f`` run, until it ends by itself; lines and remarks together, as on a terminal."""
        with (folder / "log").open("w") as output:
            command = self.command("logs", "-f", NAME)
            process = subprocess.Popen(command, env=self.environment, stdout=output, stderr=subprocess.STDOUT)
            try:
                yield
                story.exit_status = process.wait(60)
            finally:
                process.kill()
                process.wait()
        story.log = (folder / "log").read_text()


@pytest.fixture(scope="module")
def story(data: Namespace, tmp_path_factory: pytest.TempPathFactory) -> Story:
    """The whole day."""
    folder, bert, job, story = tmp_path_factory.mktemp("day"), Bert(data), RealJob(data, NAME), Story()
    document = training_job(NAME)
    for stage in document["spec"]["stages"][:2]:
        stage["pretrain"]["length"] = {"steps": STEPS[stage["name"]]}
    manifest = folder / "corpus.yaml"
    manifest.write_text(yaml.safe_dump(document))

    def look(moment: str) -> None:
        story.screens[moment] = bert.run("status", NAME)

    bert.run("submit", str(manifest))
    with bert.following(folder, story):
        job.wait_steps(12)
        look("running")
        job.kill_a_rank()
        job.wait(
            lambda status: (status.get("attempt"), status.get("phase")) == (2, "Running") and status.get("progress"),
            "the second attempt to train",
        )
        look("killed")
        bert.run("suspend", NAME, "--wait")
        look("paused")
        bert.run("resume", NAME, "--wait")
        job.wait(lambda status: status.get("stage") == "phase2" and status.get("progress", {}).get("step"), "phase2")
        look("second stage")
        job.wait_phase("Succeeded")
    look("ended")
    if place := os.environ.get("BERT_RECORD_TO"):
        Path(place).write_text(page(story, data.name))
    data.kubectl("delete", "bpj", NAME, "--wait=false")
    return story


def page(story: Story, namespace: str) -> str:
    """Return the page of the documentation."""

    def block(command: str, output: str) -> str:
        text = output.replace(namespace, TEAM).rstrip("\n")
        return f"```text\n$ {command}\n{text}\n```\n"

    parts = [
        "# A job's day, as kubectl bert shows it\n",
        "A job of two pods on the project's test cluster: a rank is killed by SIGKILL, the job is paused and resumed,\n"
        "its second stage comes, it ends. `make recording` runs it and writes this page; times and speeds are those\n"
        "of that machine, and only the namespace's name is made up.\n",
    ]
    for moment, title in TITLES.items():
        parts += [f"## {title}\n", block(f"kubectl bert status {NAME}", story.screens[moment])]
    parts += ["## The log from the first attempt to the end\n", "One process, which nobody has restarted:\n"]
    parts.append(block(f"kubectl bert logs -f {NAME}", shorten(story.log)))
    return "\n".join(parts)


def shorten(log: str) -> str:
    """Leave out all but the first two and the last of reports that follow one another."""
    shown: list[str] = []
    for is_report, lines in itertools.groupby(log.splitlines(), lambda line: bool(_REPORT.search(line))):
        run = list(lines)
        if is_report and len(run) > 5:
            run = [*run[:2], f"[{len(run) - 3} reports are left out here]", run[-1]]
        shown += run
    return "\n".join(shown)


def events(log: str) -> list[dict[str, str]]:
    """Return the fields of the trainer's own lines."""
    found = [dict(re.findall(r"(\w+)=(\S+)", line)) for line in log.splitlines() if "event=" in line]
    return [fields for fields in found if fields.get("job")]


def test_the_log_is_followed_through_all_attempts_and_ends_with_the_job(story: Story) -> None:
    assert story.exit_status == 0, story.log
    assert events(story.log)[0]["attempt"] == "1"
    assert {fields["attempt"] for fields in events(story.log)} == {"1", "2", "3"}
    assert events(story.log)[-1]["event"] == "succeeded"


def test_each_line_is_printed_once(story: Story) -> None:
    reports = Counter(
        (fields["attempt"], fields["stage"], fields["step"])
        for fields in events(story.log)
        if fields["event"] == "progress"
    )
    assert [report for report, times in reports.items() if times > 1] == []
    lines = Counter(line for line in story.log.splitlines() if "event=" in line)
    assert [line for line, times in lines.items() if times > 1] == []
    for stage, steps in STEPS.items():
        reported = {int(step) for _, of_stage, step in reports if of_stage == stage}
        assert reported >= set(range(10, steps + 1, 5)), f"{stage}: lines are missing"


def test_the_screens_say_what_happened(story: Story) -> None:
    assert re.search(r"Running +attempt 1", story.screens["running"])
    killed = story.screens["killed"]
    assert re.search(r"Running +attempt 2", killed)
    assert re.search("SIGKILL|WorkerLost", killed)
    assert "PAUSED" in story.screens["paused"]
    second = story.screens["second stage"]
    assert re.search(r"✓ phase1 +pretrain +done", second)
    assert re.search(r"▶ phase2 +pretrain", second)
    assert re.search(r"Succeeded", story.screens["ended"])
