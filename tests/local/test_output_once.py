"""Every error of a local run is shown once: what ranks, launchers and records repeat is held back and left out."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pytest

from bert_job.console.display import LineDisplay
from bert_job.console.output_once import OutputOnce, find_last_message
from bert_job.progress import parse_progress_line

EDGE = "-" * 74
OPEN_MPI_5 = [EDGE, "prterun noticed that process rank 1 with PID 7 on node vm exited on", "signal 10 (User).", EDGE]
NON_ZERO = [EDGE, "prterun detected that one or more processes exited with non-zero status,", "thus causing", "", EDGE]
OPEN_MPI_4 = [
    *(EDGE, "Primary job  terminated normally, but 1 process returned", "a non-zero exit code.", EDGE),
    *(EDGE, "mpirun has exited due to process rank 0 with PID 0 on", "node vm exiting improperly.", EDGE),
]
ABORTED = [EDGE, "MPI_ABORT was invoked on rank 0 in communicator MPI_COMM_WORLD", "with errorcode 1.", EDGE]
NO_SLOTS = [EDGE, "There are not enough slots available in the system to satisfy the 4", "slots requested.", EDGE]
SAYS = "/data/texts: no such folder or file; expected: .txt files"
HINTED = "/runs/a: already holds a run of default/a\nhint: choose another output folder"


def shown(lines: Sequence[str], told: str = "", *, from_rank: bool = True) -> tuple[list[str], list[str]]:
    """Return what is shown while the child runs, and what at its end."""
    once = OutputOnce()
    now = [text for line in lines for text in once.take(line, from_rank=from_rank)]
    return now, once.end(told)


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([f"bert-data: {SAYS}"], id="one process"),
        pytest.param([f"bert-train: {SAYS}"] * 4, id="every rank"),
        pytest.param([f"bert-train: {SAYS}", "reason: DataUnreadable", *NON_ZERO], id="with its name and a frame"),
        pytest.param([*ABORTED, f"bert-train: {SAYS}", *OPEN_MPI_4], id="between frames"),
        pytest.param([f"bert-train: {SAYS}", "WARNING Another rank has ended; its own message says why"], id="a peer"),
        pytest.param([f"bert-train: {SAYS}", *NON_ZERO[:3]], id="a frame that is cut off"),
    ],
)
def test_what_the_executor_tells_is_not_shown_as_well(lines: list[str]) -> None:
    assert shown(lines, SAYS) == ([], [])


def test_a_message_of_several_lines_is_known_line_by_line() -> None:
    said = ["bert-train: /runs/a: already holds a run of default/a", "hint: choose another output folder"]
    assert shown([*said, *said], HINTED) == ([], [])


def test_another_rank_s_own_error_is_shown_once_at_the_end() -> None:
    other = "bert-train: rank 1: /data/b.hdf5: damaged"
    assert shown(["a warning", f"bert-train: {SAYS}", other, other], SAYS) == (["a warning"], [other])


def test_without_anything_told_the_reason_is_shown() -> None:
    assert shown([f"bert-train: {SAYS}"] * 2) == ([], [f"bert-train: {SAYS}"])


@pytest.mark.parametrize("frame", [OPEN_MPI_5, NON_ZERO, OPEN_MPI_4, ABORTED], ids=lambda frame: frame[1][:12])
def test_a_frame_that_only_says_that_a_process_ended_is_not_shown(frame: list[str]) -> None:
    assert shown(["before", *frame, "behind"]) == (["before", "behind"], [])


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(NO_SLOTS, id="what is wrong"),
        pytest.param([EDGE, "a table of the program's own", "1  2  3", EDGE], id="a table"),
        pytest.param([EDGE, *(f"row {number}" for number in range(60))], id="a line and no frame"),
        pytest.param(["Traceback (most recent call last):", '  File "a.py"', "ValueError: boom"], id="a bug"),
    ],
)
def test_everything_else_is_shown_as_it_is(lines: list[str]) -> None:
    now, at_the_end = shown(lines)
    assert [*now, *at_the_end] == lines


def test_a_launcher_is_heard_only_where_no_rank_has_spoken() -> None:
    lines = ["Process 1 exit with status code 2.", "RuntimeError: Horovod detected that one or more processes exited"]
    assert shown(lines, from_rank=False) == ([], lines)
    once = OutputOnce()
    for line in lines:
        once.take(line, from_rank=False)
    once.take(f"bert-train: {SAYS}")
    assert once.end(SAYS) == []


def test_the_last_words_are_no_frame_and_no_greeting() -> None:
    greeting = "rank 1 on vm: processors 1 (1 cores), 1 threads"
    assert find_last_message(["ValueError: no", *NON_ZERO, "", greeting]) == "ValueError: no"
    assert find_last_message([greeting, *OPEN_MPI_5]) == ""


def test_a_person_reads_the_reason_in_the_remark_alone() -> None:
    output, remarks = io.StringIO(), io.StringIO()
    display = LineDisplay(output, remarks)
    display.show("", parse_progress_line(f'bert-trainer/1 event=failed message="{SAYS}"'))
    display.show(f"bert-data: {SAYS}", None)
    display.end_attempt(SAYS)
    # The next attempt is another child.
    display.show("a line", None)
    assert (output.getvalue(), remarks.getvalue()) == ("a line\n", "")
