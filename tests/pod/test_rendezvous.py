"""Ranks announce themselves and are counted against the ranks and hosts that the job asks for; as values."""

from __future__ import annotations

import pytest

from bert_job.progress import format_line
from bert_trainer.pod.launcher_log import LauncherLog, RecordSource
from bert_trainer.pod.processes import StopForwarder
from bert_trainer.pod.rank_output import Line
from bert_trainer.pod.rendezvous import LaunchMonitor, Rendezvous, render_announcement, render_rank_end


def rendezvous(ranks: int, hosts: int, *places: str, size: int | None = None) -> Rendezvous:
    found = Rendezvous(ranks, hosts)
    for rank, host in enumerate(places):
        environment = {"PMI_RANK": str(rank), "PMI_SIZE": str(size or ranks)}
        assert found.take(render_announcement(environment, host))
    return found


def test_ranks_as_asked_are_no_problem() -> None:
    found = rendezvous(8, 2, *["w0"] * 4, *["w1"] * 4)
    assert found.is_complete
    assert found.problem is None
    assert found.describe() == "8 ranks on 2 hosts: 0-3 on w0, 4-7 on w1"
    assert rendezvous(4, 2, "a", "b", "a", "b").describe() == "4 ranks on 2 hosts: 0, 2 on a, 1, 3 on b"


def test_missing_ranks_are_waited_for() -> None:
    found = rendezvous(4, 2, "w0", "w0")
    assert (found.is_complete, found.problem) == (False, None)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (rendezvous(2, 2, "launcher", "launcher"), "on 1 host (launcher), the job asks for 2 ranks on 2 hosts"),
        (rendezvous(4, 1, "a", "b"), "on 2 hosts (a, b), the job asks for 4 ranks on 1 host"),
        (rendezvous(4, 2, "a", size=1), "started 1 rank, the job asks for 4 ranks"),
        (rendezvous(2, 1, "a", size=8), "started 8 ranks, the job asks for 2 ranks"),
    ],
)
def test_other_ranks_or_hosts_are_a_problem_as_soon_as_it_is_known(found: Rendezvous, words: str) -> None:
    assert words in (found.problem or "")


def test_failures_are_kept_in_order_and_a_stop_is_none() -> None:
    found = rendezvous(3, 1, "a", "a", "a")
    for rank, code in ((0, 3), (1, -9), (2, 1)):
        assert found.take(render_rank_end({"OMPI_COMM_WORLD_RANK": str(rank)}, code))
    first, second = found.failures
    assert first.to_json() == {"rank": 1, "host": "a", "signal": 9}
    assert second.to_json() == {"rank": 2, "host": "a", "exitCode": 1}


def test_a_program_s_own_lines_are_ignored() -> None:
    found = Rendezvous(1, 1)
    for line in ("bert-pod/1 event=rank", "said bert-pod/1 event=rank rank=0 size=1 host=a", ""):
        assert not found.take(line)
    assert not found.is_complete


def monitor() -> LaunchMonitor:
    return LaunchMonitor(LauncherLog(RecordSource("uid-1", "2")), Rendezvous(2, 1), StopForwarder())


def test_a_run_that_reports_has_started_even_if_an_announcement_was_mangled() -> None:
    """Ended as one that never began, it would lose what it has learnt since its last checkpoint."""
    monitored = monitor()
    assert not monitored.take(Line(0, render_announcement({"PMI_RANK": "0", "PMI_SIZE": "2"}, "a")))
    monitored.take(Line(1, "bert-pod/1 event=rabert-pod/1 event=rank rank=1 size=2 host=a"))
    foreign = format_line({"event": "progress", "step": 7, "job": "uid-2", "attempt": 2})
    assert monitored.take(Line(0, foreign))
    assert not monitored.stop.has_started()
    monitored.take(Line(0, format_line({"event": "stage_started", "stage": "phase1", "job": "uid-1", "attempt": 2})))
    assert monitored.stop.has_started()


def test_a_run_whose_ranks_have_all_announced_themselves_has_started() -> None:
    monitored = monitor()
    for rank in ("0", "1"):
        assert not monitored.stop.has_started()
        monitored.take(Line(int(rank), render_announcement({"PMI_RANK": rank, "PMI_SIZE": "2"}, "a")))
    assert monitored.stop.has_started()
