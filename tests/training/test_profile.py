"""Chosen steps are traced and timed; the others know nothing of it.

Inputs: the toy data set, real runs. Observed: the trace as the plugin and Perfetto read it, the records, the printed
table.
"""

from __future__ import annotations

import gzip
import json
import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from bert_job.reporting import ProfileStepsSpec
from bert_trainer.config.checks import parse_profile_steps, parse_run_config
from bert_trainer.errors import InputError
from bert_trainer.output.metrics import read_metrics
from bert_trainer.training import profiling
from bert_trainer.training.profiling import PARTS, NoProfiler, StepProfiler, StepTimes, open_profiler, render_step_times
from bert_trainer.training.run import train
from tiny_run import pretrain_stage, run_document, run_trainer, write_dataset

# As torch-tb-profiler 0.4 has it: worker, time in milliseconds, ending.
PLUGIN_NAME = re.compile(r"^(.*?)(\.\d+)?\.pt\.trace\.json(?:\.gz)?$")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("dataset"))


def traces(folder: Path) -> list[Path]:
    return sorted((folder / "profile").rglob("*"), key=str) if (folder / "profile").exists() else []


def events(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt") as file:
        content: list[dict[str, Any]] = json.load(file)["traceEvents"]
    return content


def profiled(folder: Path) -> list[dict[str, Any]]:
    return [dict(record) for record in read_metrics(folder) if record["event"] == "profiled"]


def test_a_trace_holds_the_chosen_steps_and_their_parts(
    tmp_path: Path, dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = run_document(tmp_path, dataset, profile_steps={"first": 3, "last": 4})
    train(parse_run_config(document), attempt=1)
    folder, file = traces(tmp_path)
    assert folder.name == "phase1-steps-3-4"
    match = PLUGIN_NAME.match(file.name)
    assert match is not None
    assert match[1] == "rank0000"
    names = [event["name"] for event in events(file) if event.get("ph") == "X"]
    assert [name for name in names if name.startswith("ProfilerStep#")] == ["ProfilerStep#3", "ProfilerStep#4"]
    # Two micro-batches a step; step 4 ends with a checkpoint, step 3 does not.
    assert {part: names.count(part) for part in PARTS} == {
        "data": 2, "forward": 4, "backward": 4, "reduction": 4, "optimizer": 2, "checkpoint": 1,
    }  # fmt: skip
    assert any(name.startswith("aten::") for name in names)
    assert "phase1, steps 3 to 4: where a step's time went" in capsys.readouterr().err


def test_the_parts_are_recorded_and_add_up_to_the_step(tmp_path: Path, dataset: Path) -> None:
    train(parse_run_config(run_document(tmp_path, dataset, profile_steps={"first": 2, "last": 5})), attempt=1)
    [record] = profiled(tmp_path)
    assert (record["stage"], record["first_step"], record["last_step"]) == ("phase1", 2, 5)
    parts = [record[f"{part}_s"] for part in (*PARTS, "other")]
    assert all(part >= 0 for part in parts)
    assert all(record[f"{part}_s"] > 0 for part in PARTS)
    assert sum(parts) == pytest.approx(record["step_s"])
    assert Path(record["path"]).is_relative_to(tmp_path)


def test_it_changes_nothing_that_is_learnt_and_may_be_asked_of_a_run_that_is_there(
    tmp_path: Path, dataset: Path
) -> None:
    train(parse_run_config(run_document(tmp_path / "plain", dataset)), attempt=1)
    train(
        parse_run_config(run_document(tmp_path / "traced", dataset, profile_steps={"first": 1, "last": 6})), attempt=1
    )
    one, other = (
        load_file(tmp_path / name / "checkpoints" / "phase1-00000006" / "model.safetensors")
        for name in ("plain", "traced")
    )
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert traces(tmp_path / "plain") == []
    assert profiled(tmp_path / "plain") == []
    again = run_document(tmp_path / "plain", dataset, profile_steps={"first": 1, "last": 2})
    train(parse_run_config(again), attempt=2)


def test_every_stage_or_one(tmp_path: Path, dataset: Path) -> None:
    stages = [pretrain_stage("one", length={"steps": 3}), pretrain_stage("two", length={"steps": 3})]
    for name, expected in (("both", ["one", "two"]), ("second", ["two"])):
        steps = {"first": 2, "last": 2, "stage": None if name == "both" else "two"}
        document = run_document(tmp_path / name, dataset, stages=stages, profile_steps=steps)
        train(parse_run_config(document), attempt=1)
        assert [record["stage"] for record in profiled(tmp_path / name)] == expected


def test_a_stage_that_ends_early_leaves_what_there_is(tmp_path: Path, dataset: Path) -> None:
    train(parse_run_config(run_document(tmp_path, dataset, profile_steps={"first": 5, "last": 50})), attempt=1)
    [record] = profiled(tmp_path)
    assert (record["first_step"], record["last_step"]) == (5, 6)
    train(parse_run_config(run_document(tmp_path / "b", dataset, profile_steps={"first": 7, "last": 8})), attempt=1)
    assert traces(tmp_path / "b") == []


@pytest.mark.horovod
@pytest.mark.slow
@pytest.mark.parametrize("finished", [0, 2])
def test_a_step_that_is_cut_off_counts_for_nothing(tmp_path: Path, finished: int) -> None:
    told: list[StepTimes] = []
    profiler = StepProfiler(
        ProfileStepsSpec(first=1, last=9, stage=None, all_ranks=False),
        tmp_path,
        rank=0,
        device=torch.device("cpu"),
        on_profile=lambda times, _: told.append(times),
    )
    for step in range(1, finished + 2):
        profiler.start_step("phase1", step)
        with profiler.part("forward"):
            torch.ones(3).sum()
        if step <= finished:
            profiler.end_step()
    profiler.close()
    if finished:
        (times,) = told
        assert (times.first, times.last) == (1, finished)
        assert 0 < times.part_s["forward"] <= times.total_s
    else:
        assert not told
        assert traces(tmp_path) == []


def test_the_time_of_an_evaluation_belongs_to_no_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[StepTimes] = []
    steps = ProfileStepsSpec(first=1, last=1, stage=None, all_ranks=False)
    profiler = StepProfiler(
        steps, tmp_path, rank=0, device=torch.device("cpu"), on_profile=lambda times, _: found.append(times)
    )
    now_s = [100.0]
    monkeypatch.setattr(profiling, "time", SimpleNamespace(perf_counter=lambda: now_s[0], time=time.time))
    profiler.start_step("phase1", 1)
    with profiler.part("forward"):
        now_s[0] += 2.0
    with profiler.paused():
        now_s[0] += 60.0
    now_s[0] += 1.0
    profiler.end_step()
    (times,) = found
    assert (times.total_s, times.part_s, times.other_s) == (3.0, {"forward": 2.0}, 1.0)
    (_, file) = traces(tmp_path)
    assert "evaluation" in {event["name"] for event in events(file)}


@pytest.mark.horovod
@pytest.mark.long
def test_all_ranks_or_the_first(tmp_path: Path, dataset: Path) -> None:
    steps = {"first": 2, "last": 3, "all_ranks": True}
    document = run_document(tmp_path / "out", dataset, world={"ranks": 2, "hosts": 1}, profile_steps=steps)
    finished = run_trainer(document, tmp_path / "run.json")
    assert finished.returncode == 0, finished.stderr
    workers = [match[1] for path in traces(tmp_path / "out") if (match := PLUGIN_NAME.match(path.name))]
    assert workers == ["rank0000", "rank0001"]
    assert len(profiled(tmp_path / "out")) == 1


def test_the_command_line_replaces_what_the_configuration_says(tmp_path: Path, dataset: Path) -> None:
    from bert_trainer.__main__ import main

    config = tmp_path / "run.json"
    config.write_text(json.dumps(run_document(tmp_path / "out", dataset, profile_steps={"first": 1, "last": 1})))
    assert main(["--config", str(config), "--profile", "4-5"]) == 0
    assert [(line["first_step"], line["last_step"]) for line in profiled(tmp_path / "out")] == [(4, 5)]
    assert main(["--config", str(config), "--profile", "5-4"]) == 2


@pytest.mark.parametrize("text", ["", "0-3", "3-", "-3", "a", "1-2-3", "1.5"])
def test_steps_that_cannot_be_read_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="--profile: got"):
        parse_profile_steps(text)


def test_steps_are_read() -> None:
    assert parse_profile_steps("10-12") == ProfileStepsSpec(first=10, last=12, stage=None, all_ranks=False)
    assert parse_profile_steps("7") == ProfileStepsSpec(first=7, last=7, stage=None, all_ranks=False)


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ({"first": 3, "last": 2}, "profile_steps.last: got 2 with first 3"),
        ({"first": 1, "last": 101}, "100 steps in all at most"),
        (
            {"first": 1, "last": 1, "stage": "phase9"},
            'profile_steps.stage: got "phase9"; allowed: the name of a pretrain or finetune stage: phase1',
        ),
        ({"first": 0, "last": 1}, "profile_steps.first"),
    ],
)
def test_ranges_that_make_no_sense_are_refused(tmp_path: Path, steps: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        parse_run_config(run_document(tmp_path, tmp_path, profile_steps=steps))


def test_off_there_is_nothing_to_pay_for(tmp_path: Path) -> None:
    cpu = torch.device("cpu")
    off = open_profiler(None, tmp_path, rank=0, device=cpu, on_profile=None)
    assert isinstance(off, NoProfiler)
    assert off.part("forward") is off.part("backward")
    steps = ProfileStepsSpec(first=1, last=2, stage=None, all_ranks=False)
    assert isinstance(open_profiler(steps, tmp_path, rank=1, device=cpu, on_profile=None), NoProfiler)
    on = open_profiler(steps, tmp_path, rank=0, device=cpu, on_profile=None)
    assert isinstance(on, StepProfiler)
    on.start_step("phase1", 3)
    assert on.part("forward") is off.part("forward")  # outside the range it is off as well


def test_the_table_says_milliseconds_and_shares() -> None:
    times = StepTimes(stage="phase1", first=10, last=13, total_s=4.0, part_s={"forward": 1.0, "backward": 2.0})
    assert render_step_times(times).splitlines() == [
        "phase1, steps 10 to 13: where a step's time went",
        "  data             0.00 ms    0.0%",
        "  forward        250.00 ms   25.0%",
        "  backward       500.00 ms   50.0%",
        "  reduction        0.00 ms    0.0%",
        "  optimizer        0.00 ms    0.0%",
        "  checkpoint       0.00 ms    0.0%",
        "  other          250.00 ms   25.0%",
        "  step          1000.00 ms",
    ]
