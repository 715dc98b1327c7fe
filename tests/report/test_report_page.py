"""``report.html``: what it says, that nothing in it can run or load, and what it refuses.

Inputs: files of an output folder, as literals. Observed: the page, parsed by the standard library.
"""

from __future__ import annotations

import json
import os
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from bert_trainer.__main__ import main
from bert_trainer.errors import InputError
from bert_trainer.output.pages import duration, form
from bert_trainer.output.report_page import write_page
from told_run import progress, records, write_run

VOID = {"meta", "br", "img"}


class Page(HTMLParser):
    """The text and the tags of a page, each closed where it must be."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(content)
        assert self._open == [], "tags that stay open"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1:] != ["style"]:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def read_page(folder: Path) -> Page:
    return Page(write_page(folder).read_text())


def test_a_finished_run_is_told_from_its_files(tmp_path: Path) -> None:
    page = read_page(write_run(tmp_path / "run"))
    for words in (
        "Succeeded tiny",
        "BERT of 2 layers x 32",
        "13.7% masked-LM accuracy, held out",
        "5.4% most frequent token alone",
        "phase1 pretrain 32 16 40 8.420 2.372 64.0 5,000 40 s",
        "masked-LM accuracy 0.1% 13.7% next-sentence accuracy 50.0% 61.9%",
        "On 1,234 held-out samples.",
        "The more frequent answer alone is right for 53.1% of the sentence pairs.",
        "The file is [MASK] again. open 50% , closed 25% ; the true word: closed",
        "2 phase1, step 2 phase1, step 20 30 s 55 s killed, or lost",
        "3 phase1, step 20 evaluate 1:30 min 2:50 min succeeded Resumed, bit-identical",
        "Attempts without a record prepared the data",
        "documents read 560 near-duplicates dropped 7",
        "processor A processor world size 2 precision fp32 torch 2.15.0",
        "phase1 12.5% 1.50 1 x 0.50 s at most",
    ):
        assert words in page.text, page.text
    for title in ("Loss", "Masked-LM accuracy", "Throughput", "Learning rate", "Gradient norm before clipping"):
        assert any(attributes.get("aria-label") == title for _, attributes in page.tags)


def test_curves_are_well_formed_and_stay_inside_their_picture(tmp_path: Path) -> None:
    page = write_page(write_run(tmp_path / "run")).read_text()
    pictures = [f"<svg{part.split('</svg>')[0]}</svg>" for part in page.split("<svg")[1:]]
    assert len(pictures) == 5
    for picture in pictures:
        root = ElementTree.fromstring(picture)
        _, _, width, height = map(float, root.attrib["viewBox"].split())
        for line in root.iter("polyline"):
            points = [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
            assert points == sorted(points)
            assert all(0 <= x <= width and 0 <= y <= height for x, y in points)


def test_nothing_in_the_page_runs_or_loads_anything(tmp_path: Path) -> None:
    page = read_page(write_run(tmp_path / "run"))
    assert not {"script", "link", "img", "iframe", "object", "embed", "form"} & {tag for tag, _ in page.tags}
    assert not any(name in ("src", "href") or name.startswith("on") for _, found in page.tags for name in found)
    (policy,) = [found["content"] for _, found in page.tags if found.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'")


HOSTILE = "\"><script>alert(1)</script><img src=x onerror=alert(1)>'&\x00\u202e\ud800"


def test_text_of_others_stays_text_wherever_it_comes_from(tmp_path: Path) -> None:
    told = records()
    told[10]["message"] = HOSTILE
    told[-1] = {**told[-1], "event": "failed", "reason": HOSTILE, "message": HOSTILE}
    folder = write_run(tmp_path / "run", told)
    document = json.loads((folder / "run-config.json").read_text())
    # No configuration with half a surrogate is ever read.
    document["job"] = dict.fromkeys(("name", "namespace", "uid"), HOSTILE.replace("\ud800", ""))
    (folder / "run-config.json").write_text(json.dumps(document))
    mask = {"before": HOSTILE, "after": HOSTILE, "truth": HOSTILE, "guesses": [[HOSTILE, 0.5]]}
    (folder / "filled-masks.json").write_text(json.dumps({"masks": [mask]}))
    (folder / "environment.json").write_text(json.dumps({HOSTILE: HOSTILE, "versions": {HOSTILE: HOSTILE}}))
    dataset = json.loads((folder / "data/dataset.json").read_text())
    (folder / "data/dataset.json").write_text(json.dumps({**dataset, "source": HOSTILE}))
    page = read_page(folder)
    assert not {"script", "img"} & {tag for tag, _ in page.tags}
    assert page.text.count("<script>alert(1)</script>") >= 10
    assert "Failed" in page.text


def test_a_run_that_was_killed_says_so_and_one_without_records_too(tmp_path: Path) -> None:
    page = read_page(write_run(tmp_path / "killed", records()[:10]))
    assert "Not finished tiny" in page.text
    assert "30 s 55 s running, or killed" in page.text
    empty = write_run(tmp_path / "empty", [])
    for name in ("filled-masks.json", "environment.json", "data/dataset.json", "shards.json"):
        (empty / name).unlink()
    page = read_page(empty)
    assert "No attempt has recorded it." in page.text
    assert "It does not cover vocabulary, shards." in page.text
    assert "svg" not in {tag for tag, _ in page.tags}


def test_a_loss_that_was_not_finite_leaves_a_gap(tmp_path: Path) -> None:
    told = [progress("phase1", step, attempt_uid="u", attempt=1) for step in range(2, 14, 2)]
    del told[2]["loss"]
    page = write_page(write_run(tmp_path / "run", told)).read_text()
    loss = page.split('aria-label="Loss"')[1].split("</svg>")[0]
    assert loss.count("<polyline") == 2


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("metrics.jsonl", '{"event": "progress"}', "got records that no trainer writes"),
        ("metrics.jsonl", '{"event": "progress", "attempt_uid": 1, "attempt": [], "stage": "phase1"}', "got records"),
        ("metrics.jsonl", json.dumps(progress("phase1", 1, loss=[], attempt_uid="u", attempt=1)), "got records"),
        ("metrics.jsonl", json.dumps(progress("phase1", 1, interval_s="x", attempt_uid="u", attempt=1)), "got records"),
        (
            "metrics.jsonl",
            json.dumps(progress("phase1", 1, attempt_uid="u", attempt=1) | {"step": 1e400}),
            "got records",
        ),
        ("run-config.json", "{}", "contract_version"),
        ("run-config.json", "[]", "got a folder without run-config.json"),
    ],
)
def test_what_no_trainer_writes_is_refused(tmp_path: Path, name: str, content: str, problem: str) -> None:
    folder = write_run(tmp_path / "run")
    (folder / name).write_text(content)
    with pytest.raises(InputError, match=problem):
        write_page(folder)
    assert not (folder / "report.html").exists()


@pytest.mark.usefixtures("no_collection")
def test_a_file_of_brackets_is_no_filled_mask(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    (folder / "filled-masks.json").write_text("[" * 100_000)
    assert "[MASK]" not in read_page(folder).text


@pytest.mark.timeout(20)
def test_a_pipe_in_place_of_the_records_does_not_keep_anybody_waiting(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    (folder / "metrics.jsonl").unlink()
    os.mkfifo(folder / "metrics.jsonl")
    with pytest.raises(InputError, match="no regular file"):
        write_page(folder)


def test_the_command_prints_where_the_page_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path / "run")
    assert main(["report", str(folder)]) == 0
    assert capsys.readouterr().out == f"{folder}/report.html\n"
    assert main(["report", str(tmp_path / "data")]) == 2


@pytest.mark.parametrize(
    ("value", "how", "text"),
    [(None, "d", ""), (float("nan"), ".3f", ""), (True, "d", ""), ("x", "d", ""), (1234.4, ",d", "1,234")],
)
def test_what_is_no_number_is_not_written_as_one(value: Any, how: str, text: str) -> None:
    assert form(value, how) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, ""), (0, "0 s"), (59.4, "59 s"), (187, "3:07 min"), (7500, "2:05 h")]
)
def test_durations_read_as_in_the_summary(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text
