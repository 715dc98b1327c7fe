"""``index.html`` of a folder of runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bert_trainer.__main__ import main
from bert_trainer.errors import InputError
from bert_trainer.output.report_page import write_page
from bert_trainer.output.runs_page import write_index
from told_run import records, write_run


def test_runs_are_listed_newest_first_with_their_reports(tmp_path: Path) -> None:
    for number, name in enumerate(("tiny", "old & <b>", "broken")):
        folder = write_run(tmp_path / name)
        os.utime(folder / "metrics.jsonl", (1e9 - number, 1e9 - number))
    write_page(tmp_path / "old & <b>")
    (tmp_path / "broken" / "metrics.jsonl").write_text('{"event": "progress"}\n')
    (tmp_path / "no run").mkdir()
    page = write_index(tmp_path).read_text()
    assert page.index("<td>broken</td>") < page.index("<td>tiny</td>") < page.index("old%20%26%20%3Cb%3E/report.html")
    assert "tiny</a><small> in old &amp; &lt;b&gt;</small>" in page
    assert "cannot be read" in page
    assert page.count("13.7%") == 2
    assert page.count('class="spark"') == 2
    assert "no run" not in page
    assert "<script" not in page


def test_a_figure_that_no_number_can_hold_leaves_the_others_listed(tmp_path: Path) -> None:
    told = [{**record, "mlm_accuracy": 10**400} if record["event"] == "evaluated" else record for record in records()]
    write_run(tmp_path / "odd", told)
    write_run(tmp_path / "usual")
    page = write_index(tmp_path).read_text()
    assert "2 below" in page
    assert page.count("13.7%") == 1


def test_a_page_of_somebody_else_stays_and_our_own_is_replaced(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    write_index(tmp_path)
    write_run(tmp_path / "other", records()[:3])
    assert "2 below" in write_index(tmp_path).read_text()
    (tmp_path / "index.html").write_text("<h1>Welcome</h1>")
    with pytest.raises(InputError, match="a page that this command has not written"):
        write_index(tmp_path)
    assert (tmp_path / "index.html").read_text() == "<h1>Welcome</h1>"


def test_a_folder_without_runs_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path)]) == 2
    assert "got a folder without runs; allowed:" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
