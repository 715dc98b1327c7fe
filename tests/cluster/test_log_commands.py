"""The two documented commands find exactly one pod, whatever a job has been through.

Inputs: a job of two pods and one of a single pod, each with a preparation, several stages and a failed attempt. The
commands are taken from docs/concepts/cluster.md.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator

import pytest

from job_cluster import ROOT, Namespace
from real_jobs import DATA_JOB, RealJob, data_job, side_by_side, training_job

pytestmark = pytest.mark.timeout(400)


def documented(word: str) -> str:
    """Return the command of the documentation that has this word."""
    text = (ROOT / "docs/concepts/cluster.md").read_text()
    (command,) = re.findall(
        rf"^(kubectl logs -f \$\(kubectl get pods -oname \| grep {word} .*?\))(?: +#.*)?$", text, re.M
    )
    return str(command)


def found_by(namespace: Namespace, command: str) -> list[str]:
    """Return the pods that the inner command finds."""
    match = re.search(r"\$\((.*)\)", command)
    assert match is not None
    return namespace.shell(match[1]).split()


def kill_the_single_pod(namespace: Namespace) -> None:
    """A job of one pod that prepares, is killed while it trains, and succeeds."""
    one = RealJob(namespace, DATA_JOB)
    one.wait(lambda status: status.get("completedRuns") == ["prepare"], "the preparation")
    one.wait(lambda status: status.get("checkpoint"), "a checkpoint")
    namespace.cluster.kill_pod(one.pods("single")[-1])
    one.wait(lambda status: status.get("attempt") == 3, "the third attempt")
    one.wait(lambda status: status.get("phase") == "Running", "the third attempt's start")
    command = documented("training")
    assert found_by(namespace, command) == [one.pod("single")]
    assert "event=resumed" in namespace.shell(command)  # follows to the end
    one.wait_phase("Succeeded")
    assert found_by(namespace, command) == [one.pod("single")]


def kill_a_rank_of_several_pods(namespace: Namespace) -> None:
    """A job of two pods on what the other has prepared."""
    one = RealJob(namespace, DATA_JOB)
    one.wait(lambda status: "prepare" in (status.get("completedRuns") or ()), "the preparation")
    namespace.apply(training_job("several", dataset={"path": f"/mnt/output/{DATA_JOB}/data"}))
    several = RealJob(namespace, "several")
    several.wait_steps(12)
    several.kill_a_rank()
    several.wait(lambda status: status.get("attempt") == 2 and status.get("phase") == "Running", "another attempt")
    command = documented("launch")
    assert found_by(namespace, command) == [several.pod("launcher")]
    assert "event=succeeded" in namespace.shell(command)
    several.wait_phase("Succeeded")
    assert found_by(namespace, command) == [several.pod("launcher")]
    assert len(several.pods("launcher")) == 1
    assert several.status()["logs"] == f"kubectl logs -f -n {namespace.name} job/{several.name}-a2-launcher -c trainer"


STORIES = {"training": kill_the_single_pod, "launch": kill_a_rank_of_several_pods}


@pytest.fixture(scope="module")
def end_of(fresh: Callable[[str], Namespace]) -> Iterator[Callable[[str], None]]:
    """Waits for the end of a job whose pods are looked for."""
    namespace = fresh("log-commands")
    namespace.make_claim()
    single = data_job()
    single["spec"]["stages"][1]["pretrain"]["length"] = {"steps": 120}
    namespace.apply(single)
    with side_by_side({name: functools.partial(story, namespace) for name, story in STORIES.items()}) as end:
        yield end


@pytest.mark.parametrize("word", STORIES)
def test_the_command_finds_the_only_pod_at_work(end_of: Callable[[str], None], word: str) -> None:
    end_of(word)
