"""``kubectl bert logs``: each line once, through lost connections, attempts and runs."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from bert_job.foreign_text import sanitize
from bert_operator.plugin.following import Stream
from bert_operator.plugin.kubectl import Kubectl
from kubectl_stand_in import KubectlStandIn, items, refuses, says
from seen_jobs import job, pod, running

GET = "get bertpretrainjobs.bert-operator.dev corpus"
PODS = "get pods --selector bert-operator.dev/job=corpus"
PHASE = "jsonpath={.status.phase} "
LAUNCHER = "corpus-a3-launcher-x"
DONE = job(phase="Succeeded", attempt=3)
Bert = Callable[..., int]


def lines(*texts: str, begin_ms: int = 0) -> str:
    """Return lines of a log with timestamps 400 ms apart from noon on, as a node two hours east writes them."""
    return "".join(
        f"2026-01-01T14:00:{ms // 1000:02d}.{ms % 1000:03d}000001+02:00 {text}\n"
        for ms, text in zip(itertools.count(begin_ms, 400), texts, strict=False)
    )


def test_a_log_is_printed_as_it_is(bert: Bert, kubectl: KubectlStandIn, capsys: pytest.CaptureFixture[str]) -> None:
    kubectl.answer(GET, says(running()))
    kubectl.answer(PODS, items(pod("corpus-a3-worker-0", role="worker"), pod(LAUNCHER)))
    kubectl.answer(f"logs {LAUNCHER}", says(lines("one", "", "  three\r 50%\r100%")))
    assert bert("logs", "corpus", "--tail", "3") == 0
    assert capsys.readouterr() == ("one\n\n  three\r 50%\r100%\n", f"--- attempt 3, pod {LAUNCHER}\n")
    assert kubectl.calls()[-1] == f"--namespace team logs {LAUNCHER} --container trainer --timestamps --tail=3"


def test_a_lost_connection_costs_no_line_and_repeats_none(
    bert: Bert, kubectl: KubectlStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    kubectl.answer(GET, says(running()), says(DONE))
    kubectl.answer(PODS, items(pod(LAUNCHER)))
    kubectl.answer(PHASE, says("Running"), says("Running"), says("Running"), says("Succeeded"))
    # 0, 400, 800, 1200, 1600 ms: the second in which the first connection ends has two lines, one of them twice.
    whole = ["a", "b", "c", "same", "same", "d", "e", "f"]
    kubectl.answer(
        f"logs {LAUNCHER}",
        says(lines(*whole[:5]), errors="error: unexpected EOF\n", code=1),
        says("", errors="Error from server: Get https://10.0.0.2:10250: dial tcp: connection refused\n", code=1),
        says(lines(*whole[3:7], begin_ms=1200)),
        says(lines(*whole[5:], begin_ms=2000)),
    )
    assert bert("logs", "-f", "corpus") == 0
    output, remarks = capsys.readouterr()
    assert output.split() == whole
    assert "connection refused" in remarks
    begin = f"--namespace team logs {LAUNCHER} --container trainer --timestamps"
    assert [call for call in kubectl.calls() if begin in call] == [
        f"{begin} --follow",
        f"{begin} --follow --since-time=2026-01-01T12:00:01Z",
        f"{begin} --follow --since-time=2026-01-01T12:00:01Z",
        f"{begin} --since-time=2026-01-01T12:00:02Z",
    ]


def test_equal_lines_at_one_time_are_as_many_as_there_are() -> None:
    stream, same = Stream(), "2026-01-01T12:00:00.5Z same"
    stream.connect()
    assert [stream.is_new(same), stream.is_new(same)] == [True, True]
    stream.connect()
    assert [stream.is_new(same) for _ in range(3)] == [False, False, True]


def test_lines_of_two_outputs_may_cross() -> None:
    stream = Stream()
    stream.connect()
    assert stream.is_new("2026-01-01T12:00:00.500002Z out")
    assert stream.is_new("2026-01-01T12:00:00.500001Z err")
    stream.connect()
    again = ["2026-01-01T12:00:00.500001Z err", "2026-01-01T12:00:00.500002Z out", "2026-01-01T12:00:00.500001Z new"]
    assert [stream.is_new(line) for line in again] == [False, False, True]


def test_it_follows_from_preparation_to_every_attempt_and_waits_between(
    bert: Bert, kubectl: KubectlStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    waits = job(phase="Pending", reason="BackingOff", message="The next attempt starts in 10 s.", attempt=2)
    unseen, queued = job(), job(phase="Queued", reason="Queued", message="A queue holds the child back.", attempt=1)
    kubectl.answer(
        GET, *map(says, (unseen, queued, job(phase="Running", attempt=1), waits, waits, running(), running(), DONE))
    )
    prepare = pod("corpus-a1-prepare-x", attempt=1, role="single")
    starting = pod("corpus-a2-launcher-x", attempt=2, phase="Pending")
    failed, newest = pod("corpus-a2-launcher-x", attempt=2, phase="Failed"), pod(LAUNCHER)
    kubectl.answer(
        PODS,
        *(items(*pods) for pods in ((), (), (prepare,), (prepare, starting), (prepare,), (failed, newest), (newest,))),
    )
    kubectl.answer(PHASE, says("Succeeded"))
    kubectl.answer("logs corpus-a1", says(lines("prepared")))
    kubectl.answer("logs corpus-a2", says(lines("failed")))
    kubectl.answer(f"logs {LAUNCHER}", says(lines("trained")))
    assert bert("logs", "-f", "corpus", "--tail", "5") == 0
    output, remarks = capsys.readouterr()
    assert output.split() == ["prepared", "failed", "trained"]
    assert remarks.splitlines() == [
        "waiting: corpus is Unseen (no operator has looked at it yet)",
        "waiting: corpus is Queued, attempt 1 (Queued: A queue holds the child back.)",
        "--- attempt 1, pod corpus-a1-prepare-x",
        "waiting: corpus is Pending, attempt 2 (BackingOff: The next attempt starts in 10 s.)",
        "--- attempt 2, pod corpus-a2-launcher-x",
        f"--- attempt 3, pod {LAUNCHER}",
    ]
    tails = [call for call in kubectl.calls() if "--tail" in call]
    assert len(tails) == 1, "what comes after the first pod is new as a whole"


def test_one_rank_is_told_by_its_tag(bert: Bert, kubectl: KubectlStandIn, capsys: pytest.CaptureFixture[str]) -> None:
    document = running()
    document["spec"]["slotsPerWorker"] = 2
    kubectl.answer(GET, says(document))
    kubectl.answer(PODS, items(pod(LAUNCHER)))
    kubectl.answer("logs", says(lines("Starting 4 ranks", "[1] one", "zero", "[11] eleven", "[1]  indented")))
    assert bert("logs", "corpus", "--rank", "1") == 0
    assert capsys.readouterr().out == "one\n indented\n"
    assert bert("logs", "corpus", "--rank", "0") == 0
    assert capsys.readouterr().out == "Starting 4 ranks\nzero\n"
    assert bert("logs", "corpus", "--rank", "4") == 2
    assert capsys.readouterr().err == "--rank: got 4; allowed: 0 to 3 (2 x 2 ranks)\n"


def test_an_attempt_whose_pod_is_gone_says_where_its_lines_are(
    bert: Bert, kubectl: KubectlStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    kubectl.answer(GET, says(running()))
    kubectl.answer(PODS, items(pod(LAUNCHER)))
    assert bert("logs", "-f", "corpus", "--attempt", "2") == 3
    remarks = capsys.readouterr().err
    assert "attempt 2 of corpus: no pod is left of it (the newest attempt is 3)" in remarks
    assert "logs/attempt-2/rank-N.log" in remarks


def test_an_attempt_that_is_followed_ends_with_its_pod(
    bert: Bert, kubectl: KubectlStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    kubectl.answer(GET, says(running()))
    kubectl.answer(PODS, items(pod(LAUNCHER)))
    kubectl.answer(PHASE, says("Failed"))
    kubectl.answer("logs", says(lines("only")))
    assert bert("logs", "-f", "corpus", "--attempt", "3", "--timestamps") == 0
    assert capsys.readouterr().out == lines("only")


def test_an_attempt_that_its_queue_lets_go_on_is_followed_into_its_next_pod(
    bert: Bert, kubectl: KubectlStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    queued = job(phase="Queued", reason="Queued", message="A queue holds the child back.", attempt=3)
    kubectl.answer(GET, *map(says, (running(), queued, running(), DONE)))
    first, second = (
        pod(f"corpus-a3-launcher-{name}", metadata={"creationTimestamp": at, "uid": name})
        for name, at in (("x", "2026-01-01T11:00:00Z"), ("y", "2026-01-01T11:30:00Z"))
    )
    kubectl.answer(PODS, *(items(*pods) for pods in ((first,), (), (first, second), (second,), (second,))))
    kubectl.answer(PHASE, says("Succeeded"))
    kubectl.answer("logs corpus-a3-launcher-x", says(lines("suspended")))
    kubectl.answer("logs corpus-a3-launcher-y", says(lines("trained")))
    assert bert("logs", "-f", "corpus") == 0
    output, remarks = capsys.readouterr()
    assert output.split() == ["suspended", "trained"]
    assert remarks.splitlines() == [
        "--- attempt 3, pod corpus-a3-launcher-x",
        "waiting: corpus is Queued, attempt 3 (Queued: A queue holds the child back.)",
        "--- attempt 3, pod corpus-a3-launcher-y",
    ]


def test_a_pod_that_disappears_ends_its_part_and_not_the_verb(
    bert: Bert, kubectl: KubectlStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    kubectl.answer(GET, says(running()), says(DONE))
    kubectl.answer(PODS, items(pod(LAUNCHER)), items())
    kubectl.answer(PHASE, refuses("NotFound", 'pods "corpus-a3-launcher-x" not found'))
    kubectl.answer("logs", refuses("NotFound", 'pods "corpus-a3-launcher-x" not found'))
    assert bert("logs", "-f", "corpus") == 0
    assert "is gone; its last lines are on the volume, in logs/attempt-3/" in capsys.readouterr().err


@pytest.mark.parametrize("follow", [(), ("-f",)])
def test_a_right_that_is_missing_ends_it(
    bert: Bert, kubectl: KubectlStandIn, capsys: pytest.CaptureFixture[str], follow: tuple[str, ...]
) -> None:
    kubectl.answer(GET, says(running()))
    kubectl.answer(PODS, items(pod(LAUNCHER)))
    kubectl.answer(PHASE, says("Running"))
    kubectl.answer("logs", refuses("Forbidden", "pods/log is forbidden"))
    assert bert("logs", *follow, "corpus") == 1
    assert "Forbidden: pods/log is forbidden" in capsys.readouterr().err


def test_without_a_pod_there_is_no_log_yet(
    bert: Bert, kubectl: KubectlStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    kubectl.answer(GET, says(job(phase="Pending", reason="WaitingToStart", message="It waits.", attempt=1)))
    kubectl.answer(PODS, items(pod("corpus-a1-x", attempt=1, phase="Pending")))
    assert bert("logs", "corpus") == 3
    assert capsys.readouterr().err == (
        "corpus: no pod has started, so there is no log (corpus is Pending, attempt 1 (WaitingToStart: It waits.))\n"
        "hint: -f waits for it\n"
    )


def test_a_namesake_is_not_taken_for_the_job(
    bert: Bert, kubectl: KubectlStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    other = job(phase="Pending")
    other["metadata"]["uid"] = "another"
    kubectl.answer(GET, says(job(phase="Pending")), says(other))
    kubectl.answer(PODS, items())
    assert bert("logs", "-f", "corpus") == 0
    assert capsys.readouterr().err.endswith("corpus was deleted, and another job has its name now\n")


def test_kubectl_waits_for_a_reader_that_is_slow(kubectl: KubectlStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bert_operator.plugin.kubectl._MAX_LINES_AHEAD", 10)
    kubectl.answer("logs", says("line\n" * 200_000, hangs=True))
    with Kubectl().lines("logs") as stream:
        lines = stream.read()
        assert [next(lines) for _ in range(20)] == ["line"] * 20
        assert stream._lines.maxsize == 10
    # It was closed while most of its output had no reader.
    assert stream._process.poll() is not None


def test_a_line_without_an_end_comes_in_pieces(kubectl: KubectlStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bert_operator.plugin.kubectl._MAX_LINE", 1000)
    kubectl.answer("logs", says("x" * 2500 + "\nnext\n"))
    with Kubectl().lines("logs") as stream:
        assert [len(line) for line in stream.read()] == [1000, 1000, 500, 4]


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("\x1b[32mgreen\x1b[0m\tand\x1b[1;31mred", "\x1b[32mgreen\x1b[0m\tand\x1b[1;31mred\x1b[0m"),
        ("\x1b[8mhidden\x1b[m, not hidden\x1b[m", "\x1b[8mhidden\x1b[m, not hidden\x1b[m"),
        (
            "perte\u00a0: 0,5 \u26a0\ufe0f \u5b8c\u4e86\u3000\u6b21",
            "perte\u00a0: 0,5 \u26a0\ufe0f \u5b8c\u4e86\u3000\u6b21",
        ),
        ("a\x1b]52;c;aGk=\x07b\x1b[2Jc\x1b[1Ad", "a?]52;c;aGk=?b?[2Jc?[1Ad"),
        ("gnp.\u202eexe\u200b\u2066\ufeff\x9b2J", "gnp.?exe????2J"),
        (" 10%\r 50%\r100%\r", "100%"),
    ],
)
def test_a_terminal_gets_colours_and_nothing_else_that_controls_it(line: str, shown: str) -> None:
    assert sanitize(line) == shown
