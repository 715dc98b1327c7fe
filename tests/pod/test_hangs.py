"""Ranks that make no progress: found by their watchers, named by the launcher, ended or only reported."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

import psutil
import pytest

import pods
from bert_trainer.errors import InputError
from bert_trainer.pod.exit_codes import Evidence, decide_exit_code
from bert_trainer.pod.hang_watch import Hang, find_culprits, find_leave_limit_s
from bert_trainer.pod.launcher_log import LauncherLog, RecordSource
from bert_trainer.pod.mpi import find_program
from bert_trainer.pod.processes import StopForwarder, find_ranks
from bert_trainer.pod.rendezvous import LaunchMonitor, Rendezvous
from bert_trainer.system import heartbeat as heartbeat_module
from bert_trainer.system.heartbeat import SIZE_BYTES, Beat, Heartbeat, Pace, read_limits
from bert_trainer.system.process_tree import find_descendants
from cluster_api import wait_until
from tiny_run import pretrain_stage, run_document, write_dataset

needs_mpi = pytest.mark.skipif(find_program("mpirun") is None, reason="requires mpirun; make setup installs it")

# Takes steps of 20 ms with a barrier in each, as ranks do; HANG is what one of them does after ten.
STEPS = """
import os, sys, threading, time
from bert_trainer.system import heartbeat
from bert_trainer.system.mpi_variables import read_rank, read_size
rank, size = read_rank(os.environ), read_size(os.environ)
if size > 1:
    from mpi4py import MPI
    barrier = MPI.COMM_WORLD.Barrier
else:
    barrier = lambda: None
heartbeat.begin()
beat = heartbeat.watched()
with beat.stage("phase1"):
    for step in range(1, 10**9):
        time.sleep(0.02)
        if step == 10 and rank == size - 1:
            print("here", flush=True)
            HANG
        with beat.waiting():
            barrier()
        beat.step()
        if step == 200:
            break
print("done", flush=True)
"""
LIMITS = {"BERT_HANG_LIMITS_S": "2,20", "BERT_ATTEMPT": "1"}


def command(tmp_path: Path, ranks: int, hang: str) -> list[str]:
    options = ["single", "--ranks", str(ranks), "--termination-log", str(tmp_path / "record.json")]
    return [*pods.POD, *options, "--", sys.executable, "-c", STEPS.replace("HANG", hang)]


def ended(tmp_path: Path, ranks: int, hang: str, **variables: str) -> tuple[int, str, dict[str, object]]:
    with pods.running(command(tmp_path, ranks, hang), tmp_path / "log", **(LIMITS | variables)) as pod:
        code = pod.end()
        return code, pod.output, json.loads((tmp_path / "record.json").read_text())


IN_A_CHECKPOINT = "held = beat.activity('a checkpoint'); held.__enter__(); "
STOPS = "os.kill(os.getpid(), 19)"
GO_ON = "'import os, time; time.sleep(1); os.kill(' + str(os.getpid()) + ', 18)'"
STOPS_FOR_A_MOMENT = f"import subprocess; subprocess.Popen([sys.executable, '-c', {GO_ON}]); {STOPS}"
WAITS_FOR_OTHERS = (
    "import signal; signal.signal(signal.SIGUSR1, lambda *_: None); held = beat.waiting(); held.__enter__(); "
)
# Works in a process of its own, and looks round meanwhile as the pool of a data build does.
BUILD = """
import os, subprocess, sys, time
from bert_trainer.system import heartbeat
from bert_trainer.system.busy_beats import beat_while_busy
heartbeat.begin()
with beat_while_busy("the data build"):
    worker = subprocess.Popen([sys.executable, "-c", WORK], stdin=subprocess.PIPE)
    while worker.poll() is None:
        time.sleep(0.2)
"""
# For longer than the limit, by a quarter of a processor.
WORKS = """
import time
for _ in range(90):
    time.sleep(0.075)
    end_s = time.thread_time() + 0.025
    while time.thread_time() < end_s:
        pass
"""
WAITS = "import sys; sys.stdin.read()"
NO_HEARTBEAT = "import time; print('up', flush=True); time.sleep(5)"


def steps(hang: str) -> tuple[str, ...]:
    return (sys.executable, "-c", STEPS.replace("HANG", hang))


def build(work: str) -> tuple[str, ...]:
    return (sys.executable, "-c", BUILD.replace("WORK", repr(work)))


def wrapped(program: tuple[str, ...]) -> tuple[str, ...]:
    return ("sh", "-c", f"{shlex.join(program)}; echo wrapped")


NOTIFY = {"BERT_ON_HANG": "Notify"}
BUILD_LIMITS = {"BERT_HANG_LIMITS_S": "1,6"}
SINGLES: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "waits": (steps("threading.Event().wait()"), {}),
    "stopped": (steps(STOPS), {}),
    "stopped in a checkpoint": (steps(IN_A_CHECKPOINT + STOPS), {}),
    "stopped for a moment": (steps(f"{IN_A_CHECKPOINT}time.sleep(4); {STOPS_FOR_A_MOMENT}"), {}),
    "only reported": (steps("time.sleep(6)"), NOTIFY),
    "wrapped": (wrapped(steps("time.sleep(6)")), NOTIFY),
    "works": (build(WORKS), BUILD_LIMITS),
    "build waits": (build(WAITS), BUILD_LIMITS),
    "no heartbeat": ((sys.executable, "-c", NO_HEARTBEAT), {}),
    "is left alone": (
        steps(f"{WAITS_FOR_OTHERS}threading.Event().wait()"),
        {"BERT_HANG_LIMITS_S": "300,600"},
    ),
}
"""Pods of one rank that hang, or seem to, by themselves: program and environment."""


@dataclass(frozen=True)
class Single:
    """One of SINGLES that runs."""

    pod: pods.Running
    folder: Path

    def end(self) -> tuple[int, str, dict[str, object]]:
        """Wait for its end; return its code, its output and its termination record."""
        code = self.pod.end()
        return code, self.pod.output, json.loads((self.folder / "record.json").read_text())


@pytest.fixture(scope="module")
def singles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Single]]:
    """All of SINGLES, started together: one after the other they wait for a minute and a half."""
    with contextlib.ExitStack() as stack:
        started = {}
        for name, (program, variables) in SINGLES.items():
            folder = tmp_path_factory.mktemp("single")
            words = [*pods.POD, "single", "--ranks", "1", "--termination-log", str(folder / "record.json")]
            pod = stack.enter_context(pods.running([*words, "--", *program], folder / "log", **(LIMITS | variables)))
            started[name] = Single(pod, folder)
        left_alone = started["is left alone"].pod
        left_alone.wait_for("here")
        left_alone.process.send_signal(signal.SIGTERM)
        yield started


@pytest.mark.parametrize("hang", ["waits", "stopped"])
def test_a_rank_without_progress_is_ended_as_infrastructure(singles: dict[str, Single], hang: str) -> None:
    code, output, record = singles[hang].end()
    assert (code, record["reason"]) == (4, "Hung"), output
    assert str(record["message"]).startswith("rank 0"), record
    assert ("process is stopped" in str(record["message"])) == (hang == "stopped")
    if hang == "waits":
        assert '  File "<string>", line' in output, "the stack of the main thread"
    assert "event=hung" in output


def test_a_stopped_rank_has_the_lower_limit_whatever_it_was_at(singles: dict[str, Single]) -> None:
    code, output, record = singles["stopped in a checkpoint"].end()
    assert (code, record["reason"]) == (4, "Hung"), output
    assert "no progress in a_checkpoint" in str(record["message"])
    assert "more than 2 s" in str(record["message"]), "the upper limit is 20 s"


def test_a_rank_that_is_stopped_for_a_moment_in_a_long_checkpoint_goes_on(singles: dict[str, Single]) -> None:
    code, output, _ = singles["stopped for a moment"].end()
    assert code == 0, output
    assert "event=hung" not in output


def test_a_hang_that_is_only_reported_goes_on(singles: dict[str, Single]) -> None:
    code, output, record = singles["only reported"].end()
    assert (code, record["reason"]) == (0, "Succeeded"), output
    assert output.count("event=hung") == 1


def test_a_wrapper_around_the_trainer_gets_no_signal_that_is_meant_for_it(singles: dict[str, Single]) -> None:
    pod = singles["wrapped"].pod
    assert pod.end() == 0, pod.output
    assert "event=hung" in pod.output
    assert "wrapped" in pod.lines


def test_a_program_without_heartbeat_is_never_ended(singles: dict[str, Single]) -> None:
    assert singles["no heartbeat"].pod.end() == 0


@pytest.mark.parametrize(("work", "code"), [("works", 0), ("build waits", 4)], ids=["works", "waits"])
def test_a_build_makes_progress_as_long_as_its_processes_use_the_processor(
    singles: dict[str, Single], work: str, code: int
) -> None:
    pod = singles[work].pod
    assert pod.end() == code, pod.output
    assert ("no progress in the_data_build" in pod.output) == (code == 4), pod.output


@pytest.mark.parametrize(
    ("is_waiting", "expected_s", "limit_s"),
    [(True, 3.0, 23.0), (False, 3.0, 120.0), (True, 1800.0, 1820.0)],
    ids=["for others that are gone", "it may be saving", "behind a checkpoint"],
)
def test_only_a_rank_that_waits_for_others_is_ended_early(is_waiting: bool, expected_s: float, limit_s: float) -> None:
    beat = Beat(12.5, max(120.0, expected_s), expected_s, 7, 4711, is_waiting=is_waiting, activity="phase1")
    assert find_leave_limit_s(beat) == limit_s


def test_what_is_expected_of_a_step_is_the_longest_and_behind_anything_else_nothing() -> None:
    pace = Pace((120.0, 1800.0))
    for _ in range(5):
        pace.add(50.0)
    assert pace.expected_s == 1800.0, "the first steps compile"
    pace.add(2.0)
    pace.add(3.0)
    assert pace.expected_s == 3.0


@needs_mpi
@pytest.mark.parametrize("hang", ["threading.Event().wait()", STOPS], ids=["waits", "stopped"])
def test_the_rank_that_holds_up_the_others_is_named(tmp_path: Path, hang: str) -> None:
    code, output, record = ended(tmp_path, 2, hang)
    assert (code, record["reason"]) == (4, "Hung"), output
    assert str(record["message"]).startswith("rank 1"), record
    failure = record["firstFailure"]
    assert isinstance(failure, dict)
    assert failure["rank"] == 1
    assert output.count("most recent call first") == (1 if "kill" in hang else 2), "stacks of all ranks that can"


@needs_mpi
@pytest.mark.timeout(240)
@pytest.mark.ranks
def test_the_trainer_is_ended_and_resumes_behind_a_stopped_rank(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data")
    stages, world = [pretrain_stage(length={"steps": 2000})], {"ranks": 2, "hosts": 1}
    # Rarely: the step behind a checkpoint has the upper limit.
    more = {"collectives": "torch", "checkpoint": {"every_steps": 50}}
    document = run_document(tmp_path / "out", dataset, stages=stages, world=world, **more)
    (tmp_path / "run.json").write_text(json.dumps(document))
    options = ["single", "--ranks", "2", "--termination-log", str(tmp_path / "record.json")]
    words = [*pods.POD, *options, "--", sys.executable, "-m", "bert_trainer", "--config", str(tmp_path / "run.json")]
    own = {"OMP_NUM_THREADS": "1", "BERT_HANG_LIMITS_S": "3,60"}
    with pods.running(words, tmp_path / "first.log", BERT_ATTEMPT="1", **own) as pod:
        wait_until(lambda: " step=60 " in pod.output, lambda: pod.output)
        (stopped,) = (rank for rank in trainers(pod.process.pid) if number_of(rank) == "1")
        os.kill(stopped, signal.SIGSTOP)
        assert pod.process.wait(60) == 4, pod.output
    record = json.loads((tmp_path / "record.json").read_text())
    assert (record["reason"], record["firstFailure"]["rank"]) == ("Hung", 1), record
    assert "its process is stopped" in record["message"]
    assert re.fullmatch(r"phase1-\d+", Path(record["checkpoint"]).name)
    # Killed with its parent; whoever inherits it takes a moment to see its end.
    wait_until(lambda: not psutil.pid_exists(stopped), "nothing to be left behind")
    with pods.running(words, tmp_path / "second.log", BERT_ATTEMPT="2", **own) as pod:
        wait_until(lambda: "event=resumed" in pod.output, lambda: pod.output)


def trainers(pod: int) -> list[int]:
    """Return the processes that train: children of ``bert-pod rank``."""
    tree = find_descendants(pod)
    return [child for rank in find_ranks(pod) for child in tree.get(rank, [])]


def number_of(process: int) -> str:
    return psutil.Process(process).environ()["OMPI_COMM_WORLD_RANK"]


def test_a_rank_that_waits_for_others_that_are_gone_does_not_keep_its_pod(singles: dict[str, Single]) -> None:
    # The longest of all, behind tests that take their time anyway.
    pod = singles["is left alone"].pod
    assert pod.end() == 4, pod.output
    assert re.search(r"rank 0 on \S+: no progress in phase1 for \d+ s, more than 20 s", pod.output), pod.output
    assert pod.output.count("most recent call first") == 1, "its stacks"


def test_a_stop_that_is_withdrawn_in_time_is_none(tmp_path: Path) -> None:
    with pods.running(command(tmp_path, 1, "pass"), tmp_path / "log", **LIMITS) as pod:
        pod.wait_for("here")
        rank = max(find_descendants(pod.process.pid))  # bert-pod, its bert-pod rank, and the program
        os.kill(rank, signal.SIGSTOP)
        time.sleep(1.0)  # what is tried: half the limit
        os.kill(rank, signal.SIGCONT)
        assert pod.end() == 0
        assert "event=hung" not in pod.output


def test_a_machine_that_was_paused_is_no_hang(tmp_path: Path) -> None:
    # Paused while it computes; that it waits for others next is no progress yet.
    goes_on = "time.sleep(0.8)\n            with beat.waiting():\n                time.sleep(2.5)"
    limits = LIMITS | {"BERT_HANG_LIMITS_S": "6,20"}
    with pods.running(command(tmp_path, 1, goes_on), tmp_path / "log", **limits) as pod:
        pod.wait_for("here")
        everything = sorted(find_descendants(pod.process.pid))
        for process in everything:
            os.kill(process, signal.SIGSTOP)
        time.sleep(12.0)  # what is tried: longer than the limit, and than a busy machine keeps a watcher waiting
        # The watcher first: it looks before the program can take another step.
        for process in everything[:-1]:
            os.kill(process, signal.SIGCONT)
        time.sleep(1.0)
        os.kill(everything[-1], signal.SIGCONT)
        assert pod.end() == 0, pod.output
        assert "event=hung" not in pod.output


def test_the_limit_is_five_times_the_longest_step_within_its_bounds() -> None:
    pace = Pace((120.0, 1800.0))
    limits = []
    for seconds in (500.0, 1.0, 1.0, 1.0, 1.0, 1.0, 30.0, 2.0, 400.0):
        pace.add(seconds)
        limits.append(pace.limit_s)
    # Five steps warm up, whatever they take; then 120 s at least, 5 x 30 s, and 1,800 s at most.
    assert limits == [1800.0] * 5 + [120.0, 150.0, 150.0, 1800.0]
    pace.start()
    assert pace.limit_s == 1800.0


@pytest.mark.parametrize("text", ["120", "a,b", "10,5", "0,5", "-1,5", "nan,5", "5,inf"])
def test_limits_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="BERT_HANG_LIMITS_S"):
        read_limits({"BERT_HANG_LIMITS_S": text})


def test_a_step_with_an_activity_in_it_has_the_upper_limit_and_teaches_nothing() -> None:
    memory = os.memfd_create("heartbeat")
    heartbeat = Heartbeat(memory, (120.0, 1800.0))

    def limit_s() -> float:
        beat = Beat.unpack(os.pread(memory, SIZE_BYTES, 0))
        assert beat is not None
        return beat.limit_s

    with heartbeat.stage("phase1"):
        for _ in range(6):
            heartbeat.step()
        assert limit_s() == 120.0
        with heartbeat.activity("a checkpoint"):
            assert limit_s() == 1800.0
        # Rank 0 may still be writing, while this one waits for it in the next step.
        assert limit_s() == 1800.0
        heartbeat.step()
        assert limit_s() == 120.0
    os.close(memory)


def test_what_is_expected_behind_an_activity_is_learnt_from_those_before(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = os.memfd_create("heartbeat")
    now_s = 100.0
    monkeypatch.setattr(heartbeat_module, "time", SimpleNamespace(monotonic=lambda: now_s))
    heartbeat = Heartbeat(memory, (120.0, 1800.0))

    def expected_s() -> float:
        beat = Beat.unpack(os.pread(memory, SIZE_BYTES, 0))
        assert beat is not None
        return beat.expected_s

    behind = []
    for took_s in (4.0, 6.0, 2.0, 900.0, 1.0):
        with heartbeat.activity("a checkpoint"):
            now_s += 50.0
            assert expected_s() == 1800.0
        behind.append(expected_s())
        now_s += took_s
        heartbeat.step()
    assert behind == [1800.0, 20.0, 30.0, 30.0, 1800.0], "unknown; 5 times the longest; never beyond the limit"
    with heartbeat.activity("the evaluation"):
        pass
    assert expected_s() == 1800.0, "another kind"
    os.close(memory)


def test_a_beat_survives_its_way() -> None:
    beat = Beat(at_s=12.5, limit_s=120.0, expected_s=3.5, steps=7, process=4711, is_waiting=True, activity="phase1")
    assert Beat.unpack(beat.pack()) == beat
    assert Beat.unpack(bytes(len(beat.pack()))) is None
    assert Beat.unpack(b"") is None


def hang(rank: int, *, state: str = "S", waiting: bool = True) -> Hang:
    return Hang(rank, steps=55, silent_s=130, limit_s=120, state=state, is_waiting=waiting, activity="phase 1")


def test_a_watcher_s_line_is_read_back() -> None:
    told = hang(3, state="T")
    assert Hang.parse(told.render()) == Hang(3, 55, 130, 120, "T", is_waiting=True, activity="phase_1")
    assert Hang.parse(told.render() + " more") is None


@pytest.mark.parametrize(
    ("told", "culprits"),
    [
        ([hang(0), hang(1, state="T"), hang(2, waiting=False)], [1]),
        ([hang(0), hang(1, waiting=False), hang(2)], [1]),
        ([hang(0), hang(2)], [1]),
        ([hang(0), hang(1), hang(2)], [0, 1, 2]),
    ],
    ids=["stopped", "busy", "silent", "all wait"],
)
def test_culprits_are_those_for_whom_the_others_wait(told: list[Hang], culprits: list[int]) -> None:
    assert find_culprits({one.rank: one for one in told}, 3) == culprits


def test_a_host_of_which_nothing_is_heard_is_named() -> None:
    rendezvous = Rendezvous(2, 2)
    for line in ("rank=0 size=2 host=w-0", "rank=1 size=2 host=w-1"):
        rendezvous.take(f"bert-pod/1 event=rank {line}")
    assert rendezvous.take(hang(0).render())
    assert rendezvous.hang is not None
    assert rendezvous.hang.message.startswith("rank 1 on w-1: nothing is heard of it")
    assert rendezvous.hang.failure.host == "w-1"


def test_a_host_that_tells_nothing_for_too_long_is_named_until_its_rank_ends() -> None:
    rendezvous = Rendezvous(2, 2, silent_limit_s=100.0)
    for line in ("rank=0 size=2 host=w-0", "rank=1 size=2 host=w-1"):
        rendezvous.take(f"bert-pod/1 event=rank {line}")
    assert rendezvous.silent_host(1e9) is None, "older images promise nothing"
    for rank in (0, 1, 7):
        rendezvous.take(f"bert-pod/1 event=rank_alive rank={rank}")
    heard_at_s = rendezvous.heard_at_s[1]
    assert set(rendezvous.heard_at_s) == {0, 1}
    rendezvous.heard_at_s[0] += 50
    assert rendezvous.silent_host(heard_at_s + 100) is None
    silent = rendezvous.silent_host(heard_at_s + 101)
    assert silent is not None
    assert (silent.reason, silent.failure.rank, silent.failure.host) == ("WorkerLost", 1, "w-1")
    rendezvous.take("bert-pod/1 event=rank_ended rank=1 code=0")
    assert rendezvous.silent_host(heard_at_s + 101) is None


def test_ranks_that_never_start_are_missed_in_the_end() -> None:
    rendezvous = Rendezvous(3, 1, start_limit_s=1800.0)
    rendezvous.take("bert-pod/1 event=rank rank=1 size=3 host=w-0")
    assert rendezvous.not_started(1800.0) is None
    missed = rendezvous.not_started(1801.0)
    assert missed is not None
    assert (missed.reason, missed.failure.to_json()) == ("Hung", {})
    assert missed.message == "the launcher has started 1 of 3 ranks in 1801 s; missing: 0, 2"
    for rank in (0, 2):
        rendezvous.take(f"bert-pod/1 event=rank rank={rank} size=3 host=w-0")
    assert rendezvous.not_started(1801.0) is None


@pytest.mark.parametrize("action", ["Restart", "Notify"])
def test_a_launcher_that_outlives_its_ranks_is_ended(
    action: Literal["Restart", "Notify"], capsys: pytest.CaptureFixture[str]
) -> None:
    """Open MPI's daemons may miss the end of a peer; the next attempt finds everything done."""
    rendezvous = Rendezvous(2, 1, silent_limit_s=0.2)
    ended = threading.Event()
    stop = StopForwarder()
    stop.end_child = lambda after_s=0.0: ended.set()  # type: ignore[method-assign]
    monitor = LaunchMonitor(LauncherLog(RecordSource("uid-1", "2")), rendezvous, stop, action=action)
    for line in ("rank=0 size=2 host=w-0", "rank=1 size=2 host=w-0"):
        rendezvous.take(f"bert-pod/1 event=rank {line}")
    rendezvous.take("bert-pod/1 event=rank_ended rank=0 code=0")
    assert rendezvous.outlived(1e12) is None
    rendezvous.take("bert-pod/1 event=rank_ended rank=1 code=0")
    with monitor.watching(lambda: False):
        assert wait_until(lambda: ended.is_set() or rendezvous.all_ended_at_s is None, "the launcher's end")
    assert ended.is_set() == (action == "Restart")
    assert (monitor.no_progress is not None) == (action == "Restart")
    assert "the launcher that started them did not" in capsys.readouterr().out


def test_where_all_wait_for_each_other_no_rank_is_blamed() -> None:
    rendezvous = Rendezvous(2, 2)
    for told in (hang(0), hang(1)):
        rendezvous.take(told.render())
    assert rendezvous.hang is not None
    assert rendezvous.hang.failure.to_json() == {}
    assert rendezvous.hang.message.startswith("rank 0, rank 1: no progress in phase_1")


def test_a_hang_outweighs_how_the_launcher_ended() -> None:
    assert decide_exit_code(137, Evidence(made_no_progress=True, failed_by_signal=9)) == 4
    assert decide_exit_code(0, Evidence(made_no_progress=True)) == 0
