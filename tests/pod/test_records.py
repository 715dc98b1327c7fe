"""What a run's output says about its end, and the exit code that follows; as values, nothing is started."""

from __future__ import annotations

import json
import signal

import pytest

from bert_trainer.errors import PEER_ENDED
from bert_trainer.pod.exit_codes import (
    MAX_RECORD_BYTES,
    Evidence,
    build_record,
    decide_exit_code,
    render_record,
    shell_exit_code,
)
from bert_trainer.pod.launcher_log import FirstFailure, LauncherLog, find_first_failure
from bert_trainer.pod.rank_output import Line

PROGRESS = "bert-trainer/1 event=progress stage=phase1 step=40 steps=100 loss=6.1 job=u attempt=1"
CHECKPOINT = 'bert-trainer/1 event=checkpoint stage=phase1 step=38 path="/out put/phase1-38"'
STOPPED = 'bert-trainer/1 event=stopped stage=phase1 step=41 message="phase1: stopped \\"here\\""'
TRACEBACK = ["Traceback (most recent call last):", '  File "x.py", line 1', "torch.cuda.OutOfMemoryError: too much"]
OPEN_MPI_5 = """prterun detected that one or more processes exited with non-zero status,
thus causing the job to be terminated. The first process to do so was:

   Process name: [prterun-vm-16262@1,3]
   Exit code:    1
"""
OPEN_MPI_4 = """mpirun detected that one or more processes exited with non-zero status, thus causing
the job to be terminated. The first process to do so was:

  Process name: [[12345,1],3]
  Exit code:    1
"""
OPEN_MPI_SIGNAL = """prterun noticed that process rank 3 with PID 16276 on node worker-1 exited on
signal 9 (Killed)."""
PEER_GONE = """An MPI communication peer process has unexpectedly disconnected.  This
usually indicates a failure in the peer process (e.g., a crash or
otherwise exiting without calling MPI_FINALIZE first).

  Local host: run-worker-0
  Local PID:  36
  Peer host:  run-worker-1.run.default.svc
[run-worker-0:00000] *** An error occurred in Socket closed
prterun has exited due to process rank 0 with PID 36 on node run-worker-0 calling
"abort"."""
INTEL = """=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   RANK 3 PID 17017 RUNNING AT worker-1
=   KILLED BY SIGNAL: 9 (Killed)"""
MPICH = """=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   PID 17007 RUNNING AT worker-1
=   EXIT CODE: 9
=   CLEANING UP REMAINING PROCESSES
YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)"""


def read_log(*lines: tuple[int | None, str]) -> LauncherLog:
    log = LauncherLog()
    for rank, text in lines:
        for line in text.splitlines():
            log.note(Line(rank, line))
    return log


def build(exit_code: int, *lines: tuple[int | None, str]) -> dict[str, object]:
    log = read_log(*lines)
    return build_record(exit_code, log, log.named_failure(("worker-0", "worker-1"), 2), None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (OPEN_MPI_5, FirstFailure(rank=3, host="worker-1", exit_code=1)),
        (OPEN_MPI_4, FirstFailure(rank=3, host="worker-1", exit_code=1)),
        (OPEN_MPI_SIGNAL, FirstFailure(rank=3, host="worker-1", signal=9)),
        (INTEL, FirstFailure(rank=3, host="worker-1", signal=9)),
        (MPICH, FirstFailure(host="worker-1", signal=9)),
        ("nothing of that kind", None),
    ],
)
def test_the_rank_that_failed_first_is_named(text: str, expected: FirstFailure | None) -> None:
    assert read_log((None, text)).named_failure(("worker-0", "worker-1"), 2) == expected


def test_rank_0_reports_a_stop() -> None:
    assert build(3, (0, PROGRESS), (0, CHECKPOINT), (0, STOPPED), (None, OPEN_MPI_5)) == {
        "reason": "Stopped",
        "exitCode": 3,
        "stage": "phase1",
        "step": 41,
        "checkpoint": "/out put/phase1-38",
        "message": 'phase1: stopped "here"',
    }


def test_rank_0_reports_a_failure() -> None:
    failed = 'bert-trainer/1 event=failed reason=TrainerError message="disk full"'
    record = build(1, (0, PROGRESS), (0, failed), (0, "bert-train: disk full"))
    assert (record["reason"], record["message"], record["step"]) == ("TrainerError", "disk full", 40)


def test_wrong_input_is_reported_by_its_message_and_hint() -> None:
    record = build(2, (1, "noise"), (1, "bert-train: vocab.txt: is empty\nhint: write it\nmore noise"))
    assert (record["reason"], record["message"]) == ("InputError", "vocab.txt: is empty\nhint: write it")


@pytest.mark.parametrize(("code", "reason"), [(2, "DataUnreadable"), (4, "StorageFailed")])
def test_rank_0_s_error_is_reported_where_another_rank_was_the_first_to_leave(code: int, reason: str) -> None:
    said = f"bert-train: shards: 1 of 8 is gone\nhint: restore it\nreason: {reason}"
    left = OPEN_MPI_5.replace("code:    1", f"code:    {code}")
    record = build(code, (3, GREETING), (0, "rank 0 on worker-0 begins"), (0, said), (3, "a warning"), (None, left))
    assert (record["reason"], record["message"]) == (reason, "shards: 1 of 8 is gone\nhint: restore it")


@pytest.mark.parametrize(
    "said",
    [
        [(0, "bert-pod: py-spy: no native stacks (timed out)")],
        [(0, "bert-train: shards: 1 of 8 is gone\nhint: restore it\nreason: DataUnreadable")],
        [(2, "bert-train: disk full\nreason: StorageFailed")],
    ],
    ids=["what ends no run", "of another exit code", "of a rank that is not 0"],
)
def test_what_did_not_end_the_run_is_not_told_in_place_of_the_failed_rank_s_lines(said: list[tuple[int, str]]) -> None:
    record = build(1, *said, (3, "libcudart.so: cannot open shared object file"), (None, OPEN_MPI_5))
    assert record["message"] == "libcudart.so: cannot open shared object file"


def test_an_exception_is_reported_by_the_rank_that_failed_first() -> None:
    other = [(2, "Traceback (most recent call last):"), (2, "HorovodInternalError: peer lost")]
    record = build(1, *[(3, line) for line in TRACEBACK], *other, (None, OPEN_MPI_5))
    assert (record["reason"], record["message"]) == ("OutOfMemoryError", "too much")
    assert record["firstFailure"] == {"rank": 3, "host": "worker-1", "exitCode": 1}
    own = [(3, line) for line in TRACEBACK]
    assert build(1, (0, "bert-train: disk full"), *own, (None, OPEN_MPI_5))["message"] == "too much"


GREETING = "rank 3 on worker-1: processors 1 (1 cores), 1 threads, allocator system, OpenMP libgomp.so.1"
KILLED = "rank 3 on worker-1 was killed by SIGKILL after step 40 of phase1; most often out of memory"


def test_a_killed_rank_is_reported_with_its_last_lines() -> None:
    lines = [(3, f"line {number}") for number in range(30)]
    record = build(137, (0, PROGRESS), (3, GREETING), *lines, (None, OPEN_MPI_SIGNAL))
    assert record["reason"] == "SIGKILL"
    assert record["message"] == "\n".join([KILLED, *(f"line {number}" for number in range(10, 30))])
    assert record["step"] == 40
    long = build(137, (0, PROGRESS), *[(3, "x" * 1000) for _ in range(20)], (None, OPEN_MPI_SIGNAL))
    assert str(long["message"]).startswith(KILLED)
    assert len(str(long["message"])) < 1024


def test_a_killed_rank_s_machine_settings_are_not_the_message() -> None:
    assert build(137, (0, PROGRESS), (3, GREETING), (None, OPEN_MPI_SIGNAL))["message"] == KILLED
    aborted = build_record(134, read_log((0, GREETING)), FirstFailure(rank=0, host="vm", signal=6), None)
    assert aborted["message"] == "rank 0 on vm was killed by SIGABRT"


def test_records_of_other_ranks_do_not_count() -> None:
    assert build(1, (1, PROGRESS))["step"] is None


def test_a_rank_s_own_record_is_used_if_it_agrees() -> None:
    left = {"reason": "InputError", "exitCode": 2, "stage": None, "step": None, "checkpoint": None, "message": "m"}
    assert build_record(2, LauncherLog(), None, left) == left
    well = {**left, "reason": "Succeeded", "exitCode": 0}
    assert build_record(137, LauncherLog(), None, well)["reason"] == "SIGKILL"


@pytest.mark.parametrize("text", ["x", "\u00e9\U0001f600", '\x01\\"', "\udcff"])
def test_a_record_fits_and_keeps_the_end_of_the_message(text: str) -> None:
    rendered = render_record({"reason": "Failed", "exitCode": 1, "message": text * 4000 + "END"})
    assert MAX_RECORD_BYTES - 60 < len(rendered.encode()) <= MAX_RECORD_BYTES
    assert json.loads(rendered)["message"].endswith("END")


def test_a_record_of_long_paths_is_still_json() -> None:
    record = json.loads(render_record({"reason": "Failed", "exitCode": 1, "checkpoint": "x" * 5000, "message": ""}))
    assert record == {"reason": "Failed", "exitCode": 1, "message": ""}


@pytest.mark.parametrize("code", [0, 1, 2, 3, 137])
def test_the_program_s_code_is_the_pod_s(code: int) -> None:
    assert decide_exit_code(code, Evidence()) == code
    assert shell_exit_code(code) == code
    assert shell_exit_code(-signal.SIGKILL) == 137


def test_a_stop_request_during_startup_counts_as_stopped() -> None:
    killed = 128 + signal.SIGUSR1
    assert decide_exit_code(killed, Evidence(stop_requested=True)) == 3
    assert decide_exit_code(killed, Evidence()) == killed
    # Of two ranks one by SIGUSR1, the other by SIGKILL.
    assert decide_exit_code(11, Evidence(combines_codes=True, failed_by_signal=11, stop_requested=True)) == 3
    assert decide_exit_code(9, Evidence(combines_codes=True, failed_by_signal=9, stop_requested=True)) == 137


@pytest.mark.parametrize("code", [0, 1, 137, 143])
def test_a_stop_request_before_all_ranks_have_started_counts_as_stopped(code: int) -> None:
    assert decide_exit_code(code, Evidence(stop_requested=True, never_started=True, lost_worker=True)) == 3
    assert decide_exit_code(code, Evidence(never_started=True)) == code
    assert decide_exit_code(2, Evidence(stop_requested=True, never_started=True)) == 2


def test_mpich_s_combined_codes_are_not_taken_for_a_stop() -> None:
    # 1 and 2 give 3 there, and a signal's number is a code.
    assert decide_exit_code(3, Evidence(combines_codes=True)) == 1
    assert decide_exit_code(3, Evidence(combines_codes=True, reported_stop=True)) == 3
    assert decide_exit_code(9, Evidence(combines_codes=True, failed_by_signal=9)) == 137


@pytest.mark.parametrize("code", [0, 1, 3, 137, 143])
def test_rank_0_s_report_of_a_stop_counts_however_the_others_leave(code: int) -> None:
    assert decide_exit_code(code, Evidence(reported_stop=True, lost_worker=True)) == 3


@pytest.mark.parametrize(("code", "expected"), [(0, 4), (1, 4), (137, 4), (255, 4), (2, 2), (3, 3)])
def test_a_lost_worker_is_no_failure_of_the_program_and_no_success(code: int, expected: int) -> None:
    assert decide_exit_code(code, Evidence(lost_worker=True)) == expected


def test_a_run_that_breaks_off_has_not_succeeded() -> None:
    assert decide_exit_code(0, Evidence(ended_midway=True)) == 1
    assert read_log((0, PROGRESS)).ended_midway
    assert not read_log((0, PROGRESS), (0, "bert-trainer/1 event=succeeded")).ended_midway
    assert not read_log((0, "any output")).ended_midway


NO_DAEMON = """A daemon failed to report back after being spawned. This could
be due to several factors, including inability to find the daemon executable:

  Local host:    run-launcher
  Remote host:   worker-1.run.default.svc
  Daemon exit status: 213
"""
LOST_OPEN_MPI = """PRTE has lost communication with a remote daemon.

  HNP daemon   : [prterun-run-launcher-1@0,0] on node run-launcher
  Remote daemon: [prterun-run-launcher-1@0,2] on node worker-1
"""


@pytest.mark.parametrize(
    ("text", "host"),
    [
        (LOST_OPEN_MPI, "worker-1"),
        (NO_DAEMON, "worker-1"),
        ("[mpiexec@l] Error: Downstream from host worker-1.run.ns.svc exited abnormally", "worker-1"),
        ("[mpiexec@l] control_cb (/src/pmiserv_cb.c:280): assert (!closed) failed", None),
        ("Connection to worker-1.run.ns.svc closed by remote host.", "worker-1"),
    ],
)
def test_a_lost_worker_is_named(text: str, host: str | None) -> None:
    record = build(4, (0, PROGRESS), (None, text))
    assert read_log((None, text)).has_lost_worker
    assert record["reason"] == "WorkerLost"
    assert record["message"] == f"lost the connection to {host or 'a worker'}"
    assert record.get("firstFailure") == ({"host": host} if host else None)
    # A rank may write such words about something else.
    assert not read_log((0, text)).has_lost_worker


def test_a_rank_that_its_peers_lost_was_killed() -> None:
    log = read_log((0, PROGRESS), (None, PEER_GONE))
    failure = log.named_failure(("run-worker-0", "run-worker-1"), 1)
    assert failure == FirstFailure(rank=1, host="run-worker-1")
    code = decide_exit_code(14, Evidence(lost_peer=log.has_lost_peer, ended_midway=log.ended_midway))
    assert code == 4
    record = build_record(code, log, failure, None)
    assert record["reason"] == "WorkerLost"
    assert "rank 1 on run-worker-1" in str(record["message"])


SOCKET_CLOSED = """\0[run-worker-0:00000] *** An error occurred in Socket closed
[run-worker-0:00000] *** on a NULL communicator
[run-worker-0:00000] *** Unknown error
[run-worker-0:00000] *** MPI_ERRORS_ARE_FATAL (processes in this communicator will now abort,
"""
MPICH_LOST = "Abort(1) on node 0 (rank 0 in comm 0): Fatal error in internal_Allreduce: Other MPI error, error stack:"
HOROVOD_LOST = "Traceback (most recent call last):\nhorovod.common.exceptions.HorovodInternalError: rank 1 has gone"
GLOO_LOST = (
    "Traceback (most recent call last):\nRuntimeError: [../gloo/transport/tcp/pair.cc:543] Connection closed by peer"
)
TORCH_LOST = f"WARNING {PEER_ENDED}"
TRUNCATED = SOCKET_CLOSED.replace("Socket closed", "MPI_Recv").replace("Unknown error", "MPI_ERR_TRUNCATE: truncated")


def end(rank: int, code: int) -> FirstFailure:
    return FirstFailure(rank=rank, signal=-code) if code < 0 else FirstFailure(rank=rank, exit_code=code)


def judge(
    code: int, reported: list[FirstFailure], *lines: tuple[int | None, str], banner_names_killed: bool = False
) -> int:
    log = read_log((0, PROGRESS), *lines)
    failure = find_first_failure(
        reported, log, hosts=("worker-0", "worker-1"), slots=2, banner_names_killed=banner_names_killed
    )
    evidence = Evidence(
        failed_by_signal=failure.signal if failure else None,
        rank_exit_code=failure.exit_code if failure in reported and failure else None,
        lost_peer=log.has_lost_peer,
        ended_midway=log.ended_midway,
    )
    return decide_exit_code(code, evidence)


@pytest.mark.parametrize("words", [SOCKET_CLOSED, PEER_GONE, MPICH_LOST])
@pytest.mark.parametrize("who", [0, None])
def test_a_rank_that_lost_a_peer_has_not_failed_by_itself(words: str, who: int | None) -> None:
    assert judge(14, [], (who, words)) == 4
    if who == 0:
        assert judge(14, [end(0, 14)], (0, words)) == 4
    assert judge(14, [end(0, 14), end(1, -9)], (0, words)) == 137
    assert judge(14, [end(0, -6), end(1, -9)], (0, words)) == 137
    # The peer that others lost reported a failure of its own, or left by itself.
    assert judge(14, [end(0, -6), end(1, 1)], (0, words)) == 1
    assert judge(14, [end(1, 2)], (0, words), (1, "bert-train: model.preset: got tini")) == 2


@pytest.mark.parametrize("words", [GLOO_LOST, TORCH_LOST])
def test_a_rank_that_lost_a_peer_by_torch_has_not_failed_by_itself(words: str) -> None:
    banner = (None, OPEN_MPI_5.replace("@1,3", "@1,0"))
    # The other one has gone with its pod: nobody reports its end.
    assert judge(1, [], (0, words)) == 4
    assert judge(1, [end(0, 1)], (0, words)) == 4
    assert judge(1, [end(0, 1)], (0, words), banner) == 4
    assert judge(1, [end(0, 1), end(1, -9)], (0, words), banner) == 137
    assert judge(1, [end(0, 1), end(1, 5)], (0, words), banner) == 5
    assert judge(1, [end(0, 1), end(1, 2)], (0, words), (1, "bert-train: model.preset: got tini")) == 2
    assert judge(1, [end(0, 1), end(1, 1)], (0, words), *((1, line) for line in TRACEBACK)) == 1


def test_a_named_signal_outweighs_an_exit_code_without_an_error() -> None:
    assert judge(1, [end(0, 1)], (0, HOROVOD_LOST), (None, OPEN_MPI_SIGNAL)) == 137
    assert judge(1, [end(0, 1)], (None, OPEN_MPI_SIGNAL)) == 137
    assert judge(255, [], (None, INTEL)) == 137
    assert judge(1, [end(0, 1)], (0, "\n".join(TRACEBACK)), (None, OPEN_MPI_SIGNAL)) == 1
    # This launcher also names those whom it has ended.
    assert judge(255, [end(0, 1)], (None, INTEL), banner_names_killed=True) == 1
    assert judge(255, [end(0, 1)], (0, HOROVOD_LOST), (None, INTEL), banner_names_killed=True) == 137


def test_wrong_use_of_mpi_is_the_program_s_own_failure() -> None:
    assert judge(15, [end(0, 15)], (0, TRUNCATED)) == 15
    assert judge(1, [end(0, 1)], (0, HOROVOD_LOST)) == 1


def test_a_rank_that_reported_its_error_was_not_killed() -> None:
    log = read_log((0, PROGRESS), *((1, line) for line in TRACEBACK), (None, PEER_GONE))
    assert not log.has_lost_peer
    assert decide_exit_code(14, Evidence(lost_peer=False, ended_midway=True)) == 14
