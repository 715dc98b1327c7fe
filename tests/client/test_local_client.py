"""Jobs of this machine from Python, by the real ``bert-operator local``: a function counts in place of the trainer.

Observed: jobs as the client returns them, files, processes that are left. What the real trainer makes of it is in
test_local_training.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from bert_operator.client import LocalClient, NeverReached, NoSuchObject, TimeIsUp, make_function_manifest
from bert_operator.client.job_folder import JobFolder
from bert_operator.errors import InputError
from cluster_api import wait_until
from patience import PATIENCE_S

WAIT_S = PATIENCE_S


def count(steps: int, pause_s: float = 0.02, code: int = 0) -> None:
    import json
    import os
    import signal
    import sys
    import time
    from pathlib import Path

    stop: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, frame: stop.append(number))
    job = json.loads(Path(os.environ["BERT_RUN_CONFIG"]).read_text())["job"]["uid"]
    saved = Path("saved")
    first = int(saved.read_text()) if saved.exists() else 0
    ids = f"job={job} attempt={os.environ['BERT_ATTEMPT']}"
    for step in range(first + 1, steps + 1):
        time.sleep(pause_s)
        print(f"bert-trainer/1 event=progress stage=train step={step} steps={steps} loss=1.5 {ids}", flush=True)
        if stop:
            saved.write_text(str(step))
            print(f"bert-trainer/1 event=checkpoint stage=train step={step} {ids}", flush=True)
            sys.exit(3)
    print("counted", file=sys.stderr)
    sys.exit(code)


def counting(steps: int = 1_000_000, **arguments: Any) -> dict[str, Any]:
    """Return a job that counts, by default without end, and is not tried again."""
    manifest = make_function_manifest(count, {"steps": steps, **arguments})
    manifest["spec"]["runPolicy"] = {"applicationRetries": 0}
    return manifest


def processes_of(folder: Path) -> list[str]:
    """Return the processes of this project that run in a folder, but for this one."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and process.cwd() == str(folder) and process.pid != os.getpid():
                found.append(process.cmdline())
        except psutil.Error:
            continue
    # The names of programs and modules: the clone's own folder may have any name.
    return [" ".join(words) for words in found if any(Path(word).name.startswith("bert") for word in words)]


def test_a_job_is_followed_to_its_end(client: LocalClient) -> None:
    file = Path("job.yaml")
    file.write_text("# YAML\n" + json.dumps(counting(3), indent=2))
    job = client.submit(file)
    assert (job.name, job.namespace) == ("count", "default")
    lines = list(client.follow("count"))
    assert "counted" in lines
    ended = client.wait("count", timeout_s=WAIT_S)
    assert ended is not None
    assert (ended.phase, ended.progress["step"], ended.progress["totalSteps"]) == ("Succeeded", 3, 3)
    assert [(stage.name, stage.state) for stage in ended.stages()] == [("train", "done")]
    assert client.logs("count") == lines
    assert client.logs("count", tail=2) == lines[-2:]
    rows = client.metrics("count")
    assert [(row["stage"], row["step"], row["loss"]) for row in rows] == [("train", step, 1.5) for step in (1, 2, 3)]
    for change in (client.suspend, client.resume, client.retry):
        with pytest.raises(InputError, match="Succeeded"):
            change("count")
    with pytest.raises(NeverReached, match=r"^count is Succeeded \(AllStagesDone: .*\); condition=Blocked was waited"):
        client.wait("count", "condition=Blocked")


def test_a_job_stops_with_a_checkpoint_and_goes_on(client: LocalClient) -> None:
    manifest = counting()
    client.submit(manifest)
    seen: list[str] = []
    running = client.wait("count", "step=2", timeout_s=WAIT_S, tell=lambda job: seen.append(job.phase))
    assert running is not None
    assert (running.phase, running.status["stage"], seen[-1]) == ("Running", "train", "Running")
    # A cell that is run again.
    assert client.submit(manifest).uid == running.uid
    with pytest.raises(InputError, match=r"^count: got another job of this name while it runs"):
        client.submit(counting(5))
    assert client.suspend("count").is_suspended
    stopped = client.wait("count", "stopped", timeout_s=WAIT_S)
    assert stopped is not None
    saved = stopped.status["checkpoint"]["step"]
    assert saved >= 2
    with pytest.raises(NeverReached, match=r'(?s)^count is Stopped .*; ended was waited for\nhint: resume\("count"\)'):
        client.wait("count")
    # A client of another interpreter finds the same.
    other = LocalClient(client._folder)
    assert other.resume("count").uid != running.uid
    resumed = other.wait("count", f"step={saved + 1}", timeout_s=WAIT_S)
    assert resumed is not None
    assert not resumed.is_suspended
    assert client.submit(manifest).uid == resumed.uid
    with pytest.raises(TimeIsUp, match=r"^count: not ended after 0.1 s; it is Running"):
        client.wait("count", timeout_s=0.1)
    client.delete("count")
    assert client.jobs() == []
    assert processes_of(Path.cwd()) == []
    assert Path("saved").exists()
    assert client.wait("count", "deleted") is None
    with pytest.raises(NoSuchObject, match="got count for the name of a job; there are: none yet"):
        client.get("count")


def test_a_failed_job_is_started_again(client: LocalClient) -> None:
    client.submit(counting(1, code=1))
    with pytest.raises(NeverReached, match=r'(?s)^count is Failed .*counted.*\nhint: retry\("count"\)'):
        client.wait("count", "succeeded", timeout_s=WAIT_S)
    failed = client.get("count")
    assert [failure["exitCode"] for failure in failed.failures] == [1]
    with pytest.raises(InputError, match=r'(?s)ended as Failed.*\nhint: retry\("count"\)'):
        client.resume("count")
    assert client.retry("count").uid != failed.uid
    again = client.wait("count", timeout_s=WAIT_S)
    assert again is not None
    assert again.phase == "Failed"
    assert client.logs("count").count("counted") > 1


def test_what_cannot_run_is_refused_at_once(client: LocalClient, tmp_path: Path) -> None:
    wrong = counting()
    wrong["spec"]["workers"] = 0
    with pytest.raises(InputError, match=r"^The job has 1 problem:\n  spec.workers: got 0"):
        client.submit(wrong)
    file = tmp_path / "two.yaml"
    file.write_text("---\n".join([json.dumps(counting()) + "\n"] * 2))
    with pytest.raises(InputError, match="holds 2 objects of kind BertPretrainJob"):
        client.submit(file)
    with pytest.raises(InputError, match=r"^metadata.name: got \"../x\""):
        client.submit({**wrong, "metadata": {"name": "../x"}})
    assert client.jobs() == []


NOTEBOOK = """
import json, sys, time
from bert_operator.client import LocalClient
client = LocalClient("jobs")
client.submit(json.loads(sys.stdin.read()))
del client  # a cell that is run again
client = LocalClient("jobs")
client.wait("count", "step=1")
print("seen", flush=True)
time.sleep(600)
"""


def test_a_job_stops_with_the_interpreter_that_has_started_it(client: LocalClient) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", NOTEBOOK],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        text=True,
    ) as notebook:
        assert notebook.stdin is not None
        assert notebook.stdout is not None
        notebook.stdin.write(json.dumps(counting()))
        notebook.stdin.close()
        assert notebook.stdout.readline() == "seen\n"
        notebook.kill()
    stopped = client.wait("count", "stopped", timeout_s=WAIT_S)
    assert stopped is not None
    assert stopped.status["checkpoint"]["stage"] == "train"
    wait_until(lambda: processes_of(Path.cwd()) == [], WAIT_S, "everything to end")


def test_a_job_whose_process_is_killed_has_failed(client: LocalClient, tmp_path: Path) -> None:
    client.submit(counting())
    client.wait("count", "step=1", timeout_s=WAIT_S)
    folder = JobFolder(tmp_path / "jobs" / "count")
    os.kill(folder.run["pid"], signal.SIGKILL)
    ended = client.wait("count", timeout_s=WAIT_S)
    assert ended is not None
    assert (ended.phase, ended.reason) == ("Failed", "ProcessGone")
    assert ended.message.startswith("bert-operator ended before the job did. bert-trainer/1 event=progress")
    # The guard of the local executor.
    wait_until(lambda: processes_of(tmp_path) == [], WAIT_S, "everything to end")


def deaf() -> None:
    import signal
    import time

    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    print("deaf", flush=True)
    time.sleep(600)


def test_a_job_that_does_not_stop_is_ended_after_its_grace(client: LocalClient, tmp_path: Path) -> None:
    manifest = make_function_manifest(deaf)
    manifest["spec"]["runPolicy"] = {"stopGraceSeconds": 1}
    client.submit(manifest)
    assert "deaf" in client.follow("deaf")
    client.delete("deaf")
    assert processes_of(tmp_path) == []


def test_a_program_without_signal_handlers_stops_too(client: LocalClient) -> None:
    def sleep() -> None:
        import time

        print("asleep", flush=True)
        time.sleep(600)

    client.submit(make_function_manifest(sleep))
    assert "asleep" in client.follow("sleep")
    client.suspend("sleep")
    stopped = client.wait("sleep", "stopped", timeout_s=WAIT_S)
    assert stopped is not None
