"""What is checked between set-up and the first step: room, the same shards everywhere, the network."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import threading
from collections import namedtuple
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import get_args, get_type_hints
from unittest.mock import MagicMock

import pytest
import torch

from bert_trainer.errors import EXIT_INFRASTRUCTURE, DataUnreadable, InputError, StorageFailed, TrainerError
from bert_trainer.parallel.world import SingleRank
from bert_trainer.training import preflight
from threaded_world import ThreadedWorld, run_threads
from tiny_run import pretrain_stage, run_document, run_trainer, write_dataset

Usage = namedtuple("Usage", "total used free")


def test_two_checkpoints_have_to_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**9, 0, 100))
    preflight.check_room(tmp_path, 50, keep=3)
    with pytest.raises(StorageFailed, match="the next checkpoints take") as full:
        preflight.check_room(tmp_path, 51, keep=3)
    assert full.value.exit_code == EXIT_INFRASTRUCTURE


@pytest.mark.parametrize(
    ("there", "keep", "needed"),
    [
        ("", 1, 100),
        ("1", 1, 50),  # deleted once the next is complete
        ("F", 1, 100),  # the last of a finished stage stays
        ("1", 3, 100),
        ("11", 3, 50),  # the second may take the place of the oldest
        ("1F", 3, 100),
        ("111", 3, 0),  # so may the first
        ("11F", 3, 50),
        ("111", 2, 0),
    ],
)
def test_checkpoints_that_will_be_replaced_are_room(
    there: str, keep: int, needed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = {tmp_path / str(number): SimpleNamespace(stage_finished=kind == "F") for number, kind in enumerate(there)}
    for folder in listed:
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(bytes(50))
    monkeypatch.setattr(preflight, "list_checkpoints", lambda root: (listed, []))
    for free in (needed, needed - 1):
        monkeypatch.setattr(shutil, "disk_usage", lambda path, free=free: Usage(10**9, 0, free))
        if free == needed:
            preflight.check_room(tmp_path, 50, keep)
        elif needed:
            with pytest.raises(StorageFailed):
                preflight.check_room(tmp_path, 50, keep)


def test_a_file_system_that_tells_no_size_is_not_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, 0))
    assert preflight.check_room(tmp_path, 10**12, keep=3) is None


def test_ranks_whose_processors_lack_what_the_others_have_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = threading.local()
    monkeypatch.setattr(preflight, "processor_flags", lambda: flags.own)

    def look(world: ThreadedWorld, slow: set[int], precision: str) -> list[preflight.Finding]:
        flags.own = frozenset({"avx2"} if world.rank in slow else {"avx2", "amx_bf16"})
        return list(preflight.compare_hosts(world, precision).findings(0))

    for slow, precision, named in (({1, 2}, "bf16", "ranks 1, 2 lack"), ({0, 1, 2}, "bf16", None), ({1}, "fp32", None)):
        found = run_threads(3, partial(look, slow=slow, precision=precision))
        assert all((named is None and not lines) or (named is not None and named in lines[0].text) for lines in found)


def test_memory_that_a_checkpoint_s_copy_needs_is_named() -> None:
    hosts = preflight.Hosts([64e9, 64e9], [3e9, 40e9], [], "fp32")
    assert list(hosts.findings(3 * 10**9)) == []
    assert "rank 0 has 3.0 GB of memory left, and copies 4.0 GB" in next(hosts.findings(4 * 10**9)).text


def test_every_finding_has_a_name_that_is_documented() -> None:
    hosts = preflight.Hosts([64e9, 64e9], [3e9, 40e9], [1], "bf16")
    assert [finding.name for finding in hosts.findings(4 * 10**9)] == ["SlowProcessors", "LittleMemory"]
    page = (Path(__file__).parents[2] / "docs/concepts/hangs.md").read_text()
    names = get_args(get_type_hints(preflight.Finding)["name"])
    assert re.findall(r"^\| `([A-Z]\w+)` \| the run goes on \|", page, re.MULTILINE) == sorted(names)


def test_findings_stand_in_the_event_by_name_and_in_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told: dict[str, object] = {}
    writer = MagicMock()
    writer.on_rank_0.return_value = None
    writer.event.side_effect = lambda event, **fields: told.update(fields)
    hosts = preflight.Hosts([64e9], [3e9], [], "fp32")
    monkeypatch.setattr(preflight, "checkpoint_bytes", lambda learner: 4 * 10**9)
    monkeypatch.setattr(preflight, "compare_hosts", lambda world, precision: hosts)
    monkeypatch.setattr(preflight, "measure", lambda world, device: preflight.Preflight(1e-3, 1e9, 60.0))
    data = MagicMock(training={}, evaluation={})
    preflight.check_before_training(
        MagicMock(), data, MagicMock(), torch.device("cpu"), SingleRank(), writer, first_stage=0
    )
    assert told["findings"] == "LittleMemory,ClockSkew"
    assert "rank 0 has 3.0 GB of memory left" in str(told["message"])
    assert "; the clocks of these hosts differ" in str(told["message"])


def spoil(folder: Path, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change what ranks see: each has two files, a and b, in a folder of its own."""
    wrong = folder / "1" / "b"
    match change:
        case "shorter":
            wrong.write_bytes(bytes(9))
        case "absent":
            wrong.unlink()
        case "absent everywhere":
            for rank in range(3):
                (folder / str(rank) / "b").unlink()
        case "no folder":
            shutil.rmtree(folder / "1")
        case "no folder on rank 0":
            shutil.rmtree(folder / "0")
        case "stale":
            stat = Path.stat

            def fail(path: Path, **options: bool) -> os.stat_result:
                if path == wrong:
                    raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
                return stat(path, **options)

            monkeypatch.setattr(Path, "stat", fail)


@pytest.mark.parametrize(
    ("change", "has_begun", "wanted"),
    [
        ("none", False, None),
        ("shorter", False, (InputError, "/b: rank 1 sees another file than rank 0")),
        ("absent", True, (InputError, "/b: rank 1 sees another file than rank 0")),
        ("absent everywhere", False, (DataUnreadable, "/b: is gone")),
        ("no folder", False, (InputError, "/a: rank 1 sees another file than rank 0, or none")),
        ("no folder", True, (StorageFailed, "/a: rank 1 cannot reach it")),
        ("no folder on rank 0", False, (StorageFailed, "/a: rank 0 cannot reach it")),
        ("stale", False, (StorageFailed, "/b: rank 1 cannot reach it")),
    ],
)
def test_a_rank_that_sees_other_shards_is_named_on_all(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: str,
    wanted: tuple[type[TrainerError], str] | None,
    *,
    has_begun: bool,
) -> None:
    for rank in range(3):
        (tmp_path / str(rank)).mkdir()
        for name in ("a", "b"):
            (tmp_path / str(rank) / name).write_bytes(bytes(10))
    spoil(tmp_path, change, monkeypatch)

    def check(world: ThreadedWorld) -> TrainerError | None:
        own = tmp_path / str(world.rank)
        world.local_rank = 0  # each on a host of its own: of one host one rank looks
        try:
            preflight.check_same_shards(world, [own / "a", own / "b"], has_begun=has_begun)
        except TrainerError as error:
            return error
        return None

    found = run_threads(3, check)
    if wanted is None:
        assert found == [None] * 3
        return
    kind, message = wanted
    paths = [error.message.partition(":")[0] for error in found if error is not None]
    # Each names the path where it lies on its own host.
    assert [Path(path).parent.name for path in paths] == ["0", "1", "2"]
    assert all(type(error) is kind and message in error.message for error in found)
    assert all(error.exit_code == (4 if kind is StorageFailed else 2) for error in found if error is not None)


def test_a_single_rank_measures_no_network() -> None:
    assert preflight.measure(SingleRank(), torch.device("cpu")) is None


@pytest.mark.horovod
def test_a_run_of_two_ranks_reports_its_network(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data")
    stages = [pretrain_stage(length={"steps": 4})]
    document = run_document(tmp_path / "out", dataset, stages=stages, world={"ranks": 2, "hosts": 1})
    ended = run_trainer(document, tmp_path / "run.json")
    assert ended.returncode == 0, ended.stderr
    records = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    (found,) = (record for record in records if record["event"] == "preflight")
    assert 0 < found["latency_us"] < 1e7
    assert found["bandwidth_mb_per_s"] > 1
    assert 0 <= found["clock_skew_s"] < 5
    assert "message" not in found
    report = json.loads((tmp_path / "out" / "report.json").read_text())["preflight"]
    assert (report["latencyMicroseconds"], report["findings"]) == (found["latency_us"], None)
    assert report["memoryGigabytes"] >= report["memoryAvailableGigabytes"] > 0
    assert report["outputFreeGigabytes"] > 0
