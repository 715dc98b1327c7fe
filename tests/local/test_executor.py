"""The executor with real processes: small Python scripts stand for data preparation and training.

Inputs: a script per run, signals. Observed: exit codes, what is printed, which processes are left. The
scripts write what they saw into the folder that ``SEEN`` names. Real launchers are in test_launchers.

The command itself is a process of its own where that is what the test is about: once from start to end, and wherever
it gets a signal. Elsewhere it runs in the test's process, which saves the second that its imports take.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import yaml

from bert_job.console.display import PlainDisplay
from bert_operator.__main__ import main
from bert_operator.local import command
from bert_operator.local.executor import LocalExecutor
from bert_operator.local.launch import Launch
from bert_operator.local.programs import Programs
from bert_operator.state.runs import ChildSpec
from cluster_api import wait_until
from patience import PATIENCE_S
from sample_job import sample_document, sample_job

PREPARE = """
import os, pathlib, sys
seen = pathlib.Path(os.environ["SEEN"])
(seen / f"prepare-{os.environ['BERT_ATTEMPT']}").write_text(sys.argv[-1])
"""

COMMAND = """
import os, sys
from pathlib import Path
from bert_operator.local import command as local_command
from bert_operator.local import command
from bert_operator.__main__ import main
from bert_operator.local.programs import Programs
seen = Path(os.environ["SEEN"])
prepare, train = ((sys.executable, str(seen / f"{name}.py")) for name in ("prepare", "train"))
command.find_programs = lambda: Programs(prepare=prepare, train=train, cores=4)
sys.exit(main(sys.argv[1:]))
"""


class Bench:
    """A folder with the scripts and the job, and the command line started on them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.command = f"command.py local {folder / 'job.yaml'}"
        """As the closing remarks call it, for somebody in the folder."""
        self.environment = {**os.environ, "SEEN": str(folder), "PYTHONPATH": os.pathsep.join(sys.path)}

    def write(self, train: str, **policy: int) -> None:
        """Write the job and its two scripts."""

        def change(spec: dict[str, object]) -> None:
            spec.update(slotsPerWorker=1, runPolicy=policy, output={"path": str(self.folder / "out")})

        (self.folder / "job.yaml").write_text(yaml.safe_dump(sample_document(change)))
        (self.folder / "prepare.py").write_text(PREPARE)
        (self.folder / "train.py").write_text(train)

    def start(self, train: str, *, command: str = COMMAND) -> subprocess.Popen[str]:
        """Start the command in a process of its own."""
        self.write(train)
        (self.folder / "command.py").write_text(command)
        return subprocess.Popen(
            [sys.executable, self.folder / "command.py", "local", self.folder / "job.yaml"],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
        )

    def run(self, train: str, *, options: tuple[str, ...] = (), **policy: int) -> tuple[int, str, str]:
        """Run the command here; return its exit code, its output and its remarks."""
        self.write(train, **policy)
        prepare, trains = ((sys.executable, str(self.folder / f"{name}.py")) for name in ("prepare", "train"))
        words = ["local", str(self.folder / "job.yaml"), *options]
        output, remarks = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(command, "find_programs", lambda: Programs(prepare=prepare, train=trains, cores=4))
            patch.setattr(sys, "argv", [str(self.folder / "command.py"), *words])
            patch.setenv("SEEN", str(self.folder))
            patch.chdir(self.folder)
            with contextlib.redirect_stdout(output), contextlib.redirect_stderr(remarks):
                code = main(words)
        return code, output.getvalue(), remarks.getvalue()

    def wait_for(self, name: str) -> None:
        wait_until((self.folder / name).exists, f"{name} to be written")

    def leftovers(self) -> list[str]:
        """Return the processes that still carry this bench's mark."""
        found = []
        for process in psutil.process_iter():
            try:
                is_ours = process.environ().get("SEEN") == str(self.folder)
            except psutil.Error:
                continue
            if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline()))
        return found


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


DONE = """
import json, os, pathlib, sys
seen = pathlib.Path(os.environ["SEEN"])
config = json.loads(pathlib.Path(sys.argv[sys.argv.index("--config") + 1]).read_text())
names = ("BERT_ATTEMPT", "OMP_NUM_THREADS", "BERT_TERMINATION_LOG")
environment = {name: os.environ.get(name) for name in names}
(seen / "seen.json").write_text(json.dumps({"config": config, **environment}))
print("bert-trainer/1 event=progress stage=phase1 step=1 steps=2 attempt=2", flush=True)
print("a warning", file=sys.stderr)
out = pathlib.Path(config["output_folder"])
out.mkdir()
(out / "report.json").write_text(json.dumps({"ranks": 1, "seconds": 61, "stages": []}))
"""


def test_a_job_runs_to_its_end(bench: Bench) -> None:
    process = bench.start(DONE)
    output, remarks = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, remarks
    assert remarks.splitlines() == [
        "Started attempt 1: prepare in one process",
        "Started attempt 2: phase1, evaluate, export in one process",
    ]
    lines = output.splitlines()
    assert "phase1 1/2 (50%)" in lines
    assert "a warning" in lines
    assert "1:01 min with 1 rank" in output
    seen = json.loads((bench.folder / "seen.json").read_text())
    assert (seen["BERT_ATTEMPT"], seen["OMP_NUM_THREADS"]) == ("2", "4")
    assert seen["config"]["world"] == {"ranks": 1, "hosts": 1}
    # The configuration and the records lay in a folder of its own, which is gone.
    assert not Path(seen["BERT_TERMINATION_LOG"]).parent.exists()
    assert not Path((bench.folder / "prepare-1").read_text()).exists()


def test_only_results_of_the_job_s_own_stages_and_attempt_are_taken(tmp_path: Path) -> None:
    def launch(child: ChildSpec, record: Path) -> Launch:
        whose = ["job=ours attempt=2", "job=theirs attempt=2", "job=ours attempt=1", "attempt=2"]
        lines = [
            f"bert-trainer/1 event=evaluated stage={stage} step={step} mlm_accuracy=0.5 {words}"
            for step, words in enumerate(whose, start=1)
            for stage in ("phase1", *(f"s{number}" for number in range(40)))
        ]
        (tmp_path / "lines").write_text("\n".join(lines) + "\n")
        command = ("cat", str(tmp_path / "lines"))
        environment = {**os.environ, "BERT_TERMINATION_LOG": str(record)}
        return Launch(command=command, environment=environment, launcher="alone", program=command)

    with (tmp_path / "shown").open("w") as shown:
        display = PlainDisplay(shown, shown)
        outcome = LocalExecutor(sample_job(), launch, tmp_path, display, uid="ours").run()
    assert outcome.status.phase == "Succeeded"
    assert [(result.stage, result.step) for result in outcome.status.results] == [("phase1", 1)]


def test_the_output_folder_of_the_command_line_wins(bench: Bench) -> None:
    code, _, remarks = bench.run(DONE, options=("--output", "elsewhere"))
    assert code == 0, remarks
    assert (bench.folder / "elsewhere" / "report.json").exists()


def test_runs_that_lie_together_are_listed_at_the_end(bench: Bench) -> None:
    listing = """
import sys
from pathlib import Path
if "report" in sys.argv:
    Path("listed").write_text(sys.argv[-1])
    sys.exit()
"""
    for output, listed in (("elsewhere/one", False), ("runs/one", True)):
        (bench.folder / output).parent.mkdir()
        code, _, remarks = bench.run(listing + DONE, options=("--output", output))
        assert code == 0, remarks
        found = bench.folder / "listed"
        assert found.exists() == listed
    assert found.read_text() == str(bench.folder / "runs")


def test_bad_input_ends_the_job_with_what_the_child_said(bench: Bench) -> None:
    code, output, remarks = bench.run(
        """
import json, os, sys
record = {"reason": "NoVocabulary", "exitCode": 2, "message": "vocab.txt is empty"}
open(os.environ["BERT_TERMINATION_LOG"], "w").write(json.dumps(record))
print('bert-trainer/1 event=failed message="vocab.txt is empty"')
for rank in range(2):
    print("bert-train: vocab.txt is empty", file=sys.stderr)
sys.exit(2)
"""
    )
    assert code == 2
    assert remarks.splitlines()[2:] == [
        "Failed: training, attempt 2: vocab.txt is empty",
        f"With that corrected: {bench.command}",
    ]
    # It comes from every rank, and is told once.
    assert output == ""


def test_a_program_that_fails_twice_fails(bench: Bench) -> None:
    code, _, remarks = bench.run("raise ValueError('boom')")
    assert code == 1
    assert "Started attempt 3" in remarks
    assert "Started attempt 4" not in remarks
    assert "Failed: training, attempt 3: ValueError: boom" in remarks


def test_a_killed_child_is_tried_again(bench: Bench) -> None:
    code, _, remarks = bench.run(
        """
import os, pathlib, signal
mark = pathlib.Path(os.environ["SEEN"]) / "killed"
if not mark.exists():
    mark.touch()
    os.kill(os.getpid(), signal.SIGKILL)
""",
        applicationRetries=0,
    )
    assert code == 0, remarks
    assert "Attempt 2 (training) failed with signal 9" in remarks


def test_a_program_that_cannot_be_started_is_bad_input(bench: Bench) -> None:
    # In a process of its own: the child's temporary folder is left to the garbage collector, which warns.
    process = bench.start(DONE, command=COMMAND.replace("sys.executable", '"/no/such/python"', 1))
    _, remarks = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 2
    assert remarks.splitlines()[-1] == "Cannot start /no/such/python (No such file or directory)"


GRACEFUL = """
import os, pathlib, signal, sys
seen = pathlib.Path(os.environ["SEEN"])
signal.signal(signal.SIGINT, lambda *_: (seen / "interrupted").touch())
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
(seen / "ready").touch()
signal.sigwait({signal.SIGUSR1})
print("bert-trainer/1 event=checkpoint stage=phase1 step=7 path=p attempt=2", flush=True)
sys.exit(3)
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_with_a_checkpoint(bench: Bench, number: signal.Signals, code: int) -> None:
    process = bench.start(GRACEFUL)
    bench.wait_for("ready")
    process.send_signal(number)
    _, remarks = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == code
    assert "Stopping: waiting for a checkpoint" in remarks
    assert "Stopped with a checkpoint at phase1, step 7." in remarks
    job_file = bench.folder / "job.yaml"
    assert remarks.splitlines()[-1] == (
        f"To go on from phase1, step 7, set spec.output.ifExists: Resume in {job_file}, then: {bench.command}"
    )
    assert not (bench.folder / "interrupted").exists()
    assert bench.leftovers() == []


STUBBORN = """
import os, pathlib, signal, subprocess, sys, time
seen = pathlib.Path(os.environ["SEEN"])
for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda *_: None)
# A grandchild in a session of its own, as horovodrun makes them.
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
(seen / "ready").touch()
time.sleep(600)
"""


def test_whoever_kills_the_command_leaves_no_ranks(bench: Bench) -> None:
    process = bench.start(STUBBORN)
    bench.wait_for("ready")
    process.kill()
    process.communicate(timeout=PATIENCE_S)
    wait_until(lambda: not bench.leftovers(), lambda: f"processes to end: {bench.leftovers()}")


def test_a_third_signal_ends_everything_at_once(bench: Bench) -> None:
    process = bench.start(STUBBORN)
    bench.wait_for("ready")
    for _ in range(3):
        process.send_signal(signal.SIGINT)
        # Pending signals of one kind count once; each has to be taken before the next.
        wait_until(lambda: is_idle(process), "the command to come to rest")
    _, remarks = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert "Stopping without a checkpoint" in remarks
    assert bench.leftovers() == []


def is_idle(process: subprocess.Popen[str]) -> bool:
    """Tell whether no signal is pending for a process, or it is gone."""
    try:
        text = Path(f"/proc/{process.pid}/status").read_text()
    except OSError:
        return True
    pending = [line.split()[1] for line in text.splitlines() if line.startswith(("SigPnd", "ShdPnd"))]
    return process.poll() is not None or all(int(mask, 16) == 0 for mask in pending)


def test_a_grandchild_does_not_outlive_its_parent(bench: Bench) -> None:
    code, _, remarks = bench.run(
        """
import subprocess, sys
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
"""
    )
    assert code == 0, remarks
    assert bench.leftovers() == []


def test_a_deadline_stops_and_fails_the_job(bench: Bench) -> None:
    code, _, remarks = bench.run(GRACEFUL, activeDeadlineSeconds=2)
    assert code == 1
    assert "Failed: The job was not finished after 2 s" in remarks
    assert bench.leftovers() == []
