"""Tagged output is split into lines of single ranks, wherever a launcher cuts it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bert_trainer.pod.mpi import HYDRA_TAG, OPEN_MPI_4_TAG, OPEN_MPI_5_TAG
from bert_trainer.pod.rank_logs import RankLogFiles
from bert_trainer.pod.rank_output import Line, LineSplitter, OutputForwarder


def sort(tag: re.Pattern[str] | None, *pieces: str) -> list[Line]:
    splitter = LineSplitter(tag)
    return [line for piece in pieces for line in splitter.feed(piece)] + splitter.finish()


def test_without_a_launcher_every_line_is_rank_0_s() -> None:
    assert sort(None, "a\n", "b\r\n", "end") == [Line(0, "a"), Line(0, "b"), Line(0, "end")]


@pytest.mark.parametrize(
    ("tag", "zero", "one"),
    [
        (OPEN_MPI_5_TAG, "[1,0]<stdout>: ", "[1,1]<stderr>: "),
        (OPEN_MPI_4_TAG, "[1,0]<stdout>:", "[1,1]<stderr>:"),
        (HYDRA_TAG, "<rank 0>:", "<rank 1>:"),
    ],
)
def test_tags_are_taken_off_and_indents_stay(tag: re.Pattern[str], zero: str, one: str) -> None:
    assert sort(tag, f"{zero}bert-trainer/1 event=x\n", f'{one}  File "x"\n', "own words\n", f"{zero}\n", "\n") == [
        Line(0, "bert-trainer/1 event=x"),
        Line(1, '  File "x"'),
        Line(None, "own words"),
        Line(0, ""),
        Line(None, ""),
    ]


def test_unfinished_lines_of_several_ranks_are_put_together() -> None:
    pieces = ["<rank 0>:loss<rank 1>:a 1\n", "<rank 0>: 6.5<rank 1>:b\n", "<rank 0>:\n"]
    assert sort(HYDRA_TAG, *pieces) == [Line(1, "a 1"), Line(1, "b"), Line(0, "loss 6.5")]


def test_a_line_that_never_ends_does_not_fill_the_memory() -> None:
    lines = sort(None, *["x" * 60_000] * 4)
    assert [len(line.text) for line in lines] == [120_000, 120_000]


def test_ranks_but_0_are_named_and_have_files(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    handled: list[Line] = []
    files = RankLogFiles({"BERT_LOG_FOLDER": str(tmp_path), "BERT_ATTEMPT": "4"}, ranks=13)

    def handle_line(line: Line) -> bool:
        handled.append(line)
        return line.text != "hidden"

    forwarder = OutputForwarder(HYDRA_TAG, files, handle_line)
    forwarder.take("stdout", "<rank 1>:hidden\n")
    forwarder.take("stdout", "<rank 0>:bert-trainer/1 event=x\n")
    forwarder.take("stdout", "<rank 12>:caf\udcff\n")
    forwarder.take("stderr", "<rank 12>:no end")
    forwarder.finish()
    assert capfd.readouterr().err == "[12] no end\n"
    assert [line.rank for line in handled] == [1, 0, 12, 12]
    assert not (tmp_path / "attempt-4" / "rank-1.log").exists()
    folder = tmp_path / "attempt-4"
    assert (folder / "rank-0.log").read_text() == "bert-trainer/1 event=x\n"
    # Bytes that are no text go through as they are.
    assert (folder / "rank-12.log").read_bytes() == b"caf\xff\nno end\n"
