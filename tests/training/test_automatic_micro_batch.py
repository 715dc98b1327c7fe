"""microBatchSize: auto finds a size once, and every attempt at the run keeps to it.

Inputs: the toy data set and model, real runs on the CPU. Only limits are replaced where memory has to run out: no
test should fill a machine.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from bert_job.run_stages import PretrainStage
from bert_trainer.__main__ import main
from bert_trainer.config.checks import parse_run_config
from bert_trainer.errors import InputError, OutOfDeviceMemory
from bert_trainer.model.bert import Bert
from bert_trainer.output.metrics import read_metrics
from bert_trainer.parallel.world import SingleRank
from bert_trainer.system.available_memory import available_bytes, container_bytes, total_bytes
from bert_trainer.training import micro_batch_size
from bert_trainer.training.device import Compute
from bert_trainer.training.micro_batch_size import candidate_sizes
from bert_trainer.training.run import run_stages, train
from bert_trainer.training.session import Session
from threaded_world import ThreadedWorld, run_threads
from tiny_run import pretrain_stage, run_document, write_dataset

STEPS = 4


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("dataset"))


@pytest.fixture(autouse=True)
def short_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take two passes at every size and no more: which size is best is not asserted here."""
    monkeypatch.setattr("bert_trainer.training.micro_batch_size._ENOUGH_S", 0.02)


def document(folder: Path, dataset: Path, **changes: Any) -> dict[str, Any]:
    stage = pretrain_stage(micro_batch_size="auto", length={"steps": STEPS})
    return run_document(folder, dataset, **{"stages": [stage], **changes})


def found(folder: Path) -> list[dict[str, Any]]:
    return [dict(record) for record in read_metrics(folder) if record["event"] == "micro_batch_size"]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "checkpoints" / f"phase1-{STEPS:08d}" / "model.safetensors")


def test_a_size_is_measured_shown_and_recorded(
    tmp_path: Path, dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(parse_run_config(document(tmp_path, dataset)), attempt=1)
    [event] = found(tmp_path)
    size = event["micro_batch_size"]
    assert size in candidate_sizes(16)
    assert event["source"] == "measured"
    assert {line["micro_batch_size"] for line in read_metrics(tmp_path) if line["event"] == "progress"} == {size}
    table = capsys.readouterr().err
    assert "phase1: 16 sequences of 32 tokens per rank and step, fp32 on cpu" in table
    assert " chosen" in table
    [tried] = json.loads((tmp_path / micro_batch_size.MEASURED_FILE).read_text()).values()
    assert (tried["size"], tried["stages"]) == (size, ["phase1"])
    assert tried["circumstances"]["environment"]["world_size"] == 1
    assert all(entry["sequences_per_s"] > 0 for entry in tried["tried"] if not entry["note"])


def test_trying_changes_nothing_that_is_learnt(tmp_path: Path, dataset: Path) -> None:
    train(parse_run_config(document(tmp_path / "auto", dataset)), attempt=1)
    size = found(tmp_path / "auto")[0]["micro_batch_size"]
    stage = pretrain_stage(micro_batch_size=size, length={"steps": STEPS})
    train(parse_run_config(document(tmp_path / "given", dataset, stages=[stage])), attempt=1)
    one, other = weights(tmp_path / "auto"), weights(tmp_path / "given")
    assert all(torch.equal(one[name], other[name]) for name in one)


def choose_sizes(session: Session) -> dict[int, int]:
    """Choose as a run that has resumed a checkpoint."""
    session.writer.has_trained = True
    trials = micro_batch_size.Trials(session.config, session.learner, session.compute, ranks=1, hosts=1)
    return micro_batch_size.choose_micro_batch_sizes(session.config.stages, trials, session.world, session.writer)


def test_a_resumed_run_keeps_the_size_whatever_would_be_measured_now(tmp_path: Path, dataset: Path) -> None:
    config = parse_run_config(document(tmp_path, dataset))
    train(config, attempt=1)
    record = tmp_path / micro_batch_size.MEASURED_FILE
    measured = json.loads(record.read_text())
    [entry] = measured.values()
    odd = next(size for size in (2, 4, 8) if size != entry["size"])
    entry["size"] = odd
    record.write_text(json.dumps(measured))
    session = Session.open(config, SingleRank(), attempt=2)
    sizes = choose_sizes(session)
    session.close()
    assert sizes == {0: odd}
    assert [event["source"] for event in found(tmp_path)] == ["measured", "recorded"]


def test_a_new_run_in_the_folder_takes_what_was_measured_there(tmp_path: Path, dataset: Path) -> None:
    train(parse_run_config(document(tmp_path, dataset)), attempt=1)
    job = {"name": "tiny", "namespace": "default", "uid": "uid-2"}
    train(parse_run_config(document(tmp_path, dataset, job=job, if_exists="New")), attempt=1)
    [event] = found(tmp_path)
    assert event["source"] == "cached"
    other_length = pretrain_stage(micro_batch_size="auto", global_batch_size=8, length={"steps": STEPS})
    job = {"name": "tiny", "namespace": "default", "uid": "uid-3"}
    changed = document(tmp_path, dataset, job=job, if_exists="New", stages=[other_length])
    train(parse_run_config(changed), attempt=1)
    assert [event["source"] for event in found(tmp_path)] == ["measured"]


def test_other_circumstances_are_measured_again_and_said(tmp_path: Path, dataset: Path) -> None:
    train(parse_run_config(document(tmp_path, dataset)), attempt=1)
    record = tmp_path / micro_batch_size.MEASURED_FILE
    [entry] = json.loads(record.read_text()).values()
    record.write_text(json.dumps({"other hardware": {**entry, "size": 3}}))
    job = {"name": "tiny", "namespace": "default", "uid": "uid-2"}  # started anew by hand
    config = parse_run_config(document(tmp_path, dataset, job=job, if_exists="Resume"))
    session = Session.open(config, SingleRank(), attempt=2)
    choose_sizes(session)
    session.close()
    last = found(tmp_path)[-1]
    assert last["source"] == "measured"
    assert "it was 3 on other hardware or settings, from here on not bit-identical" in last["message"]
    stages = {key: entry["stages"] for key, entry in json.loads(record.read_text()).items()}
    assert stages.pop("other hardware") == []
    assert list(stages.values()) == [["phase1"]]


def test_circumstances_that_another_run_had_are_not_measured_again_and_said(tmp_path: Path, dataset: Path) -> None:
    config = parse_run_config(document(tmp_path, dataset))
    train(config, attempt=1)
    record = tmp_path / micro_batch_size.MEASURED_FILE
    [(key, entry)] = json.loads(record.read_text()).items()
    record.write_text(json.dumps({"other hardware": {**entry, "size": 3}, key: {**entry, "stages": []}}))
    session = Session.open(config, SingleRank(), attempt=2)
    choose_sizes(session)
    session.close()
    last = found(tmp_path)[-1]
    assert last["source"] == "cached"
    assert "it was 3 on other hardware" in last["message"]


@pytest.mark.parametrize(
    "damaged", ["{ broken", "[]", '{"key": 1}', '{"key": {}}', '{"key": {"size": 1, "stages": null}}']
)
def test_a_damaged_record_is_written_again(tmp_path: Path, dataset: Path, damaged: str) -> None:
    train(parse_run_config(document(tmp_path, dataset)), attempt=1)
    record = tmp_path / micro_batch_size.MEASURED_FILE
    record.write_text(damaged)
    session = Session.open(parse_run_config(document(tmp_path, dataset)), SingleRank(), attempt=2)
    choose_sizes(session)
    session.close()
    assert [event["source"] for event in found(tmp_path)] == ["measured", "measured"]
    assert len(json.loads(record.read_text())) == 1


def test_every_rank_takes_the_size_of_the_first(tmp_path: Path, dataset: Path) -> None:
    config = parse_run_config(document(tmp_path, dataset, world={"ranks": 3, "hosts": 1}))

    def rank(world: ThreadedWorld) -> int:
        session = Session.open(config, world, attempt=1)
        run_stages(session, SimpleNamespace(received=False, listen=lambda: None))  # type: ignore[arg-type]
        return session.micro_batch_sizes[0]

    sizes = run_threads(3, rank)
    assert len(set(sizes)) == 1
    assert sizes[0] in candidate_sizes(6)  # 16 rows on 3 ranks: 6, 5 and 5
    assert len(found(tmp_path)) == 1


def open_session(folder: Path, dataset: Path, **changes: Any) -> Session:
    return Session.open(parse_run_config(document(folder, dataset, **changes)), SingleRank(), attempt=1)


def try_sizes(session: Session, **settings: Any) -> micro_batch_size.Trial:
    stage = session.config.stages[0]
    assert isinstance(stage, PretrainStage)
    try:
        trials = micro_batch_size.Trials(session.config, session.learner, session.compute, ranks=1, hosts=1)
        return trials.try_sizes(stage, **settings)
    finally:
        session.close()


def test_a_size_that_would_not_fit_is_not_tried(tmp_path: Path, dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base_bytes, row_bytes, limit_bytes = 10**9, 12 * 10**7, 2 * 10**9
    monkeypatch.setattr(micro_batch_size, "_used_bytes", lambda _: base_bytes)
    monkeypatch.setattr(micro_batch_size, "_run_pass", lambda _, __, batch: base_bytes + batch.num_rows * row_bytes)
    monkeypatch.setattr(micro_batch_size, "find_limit", lambda *_, **__: limit_bytes)
    trial = try_sizes(open_session(tmp_path, dataset))
    assert [entry.size for entry in trial.measurements] == [1, 2, 4, 8]
    assert trial.measurements[-1].sequences_per_s is None
    assert trial.measurements[-1].note == "expected to need 1.83 of 1.86 GiB"
    assert trial.chosen <= 4


def test_out_of_memory_ends_the_search_and_is_no_end_of_the_run(
    tmp_path: Path, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_pass = micro_batch_size._run_pass

    def limited(model: Bert, compute: Compute, batch: Any) -> int:
        if batch.num_rows > 4:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB.")
        return run_pass(model, compute, batch)

    monkeypatch.setattr(micro_batch_size, "_run_pass", limited)
    trial = try_sizes(open_session(tmp_path, dataset))
    assert [(entry.size, entry.note) for entry in trial.measurements][-1] == (8, "out of memory")
    assert trial.chosen <= 4


def test_not_even_one_sequence(tmp_path: Path, dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> int:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(micro_batch_size, "_run_pass", never)
    with pytest.raises(OutOfDeviceMemory, match="phase1: not even one sequence of 32 tokens fits"):
        try_sizes(open_session(tmp_path, dataset))


def test_the_search_ends_in_time(tmp_path: Path, dataset: Path) -> None:
    trial = try_sizes(open_session(tmp_path, dataset), budget_s=0.0)
    assert [entry.note for entry in trial.measurements] == ["", "not tried: it would take too long"]
    assert trial.chosen == 1


def test_the_command_shows_the_sizes_and_leaves_the_output_folder_alone(
    tmp_path: Path, dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "run.json"
    stage = pretrain_stage(global_batch_size=8, length={"steps": STEPS})
    world = {"ranks": 2, "hosts": 1}
    config.write_text(json.dumps(document(tmp_path / "out", dataset, stages=[stage], world=world)))
    assert main(["autotune", str(config)]) == 0
    printed = capsys.readouterr().out
    assert "phase1: 4 sequences of 32 tokens per rank and step, fp32 on cpu" in printed
    assert "microBatchSize: " in printed
    assert not (tmp_path / "out").exists()


def test_a_run_needs_a_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "--config is required" in capsys.readouterr().err


def test_it_does_not_go_with_means_of_micro_batches(tmp_path: Path) -> None:
    stage = pretrain_stage(micro_batch_size="auto", loss_normalization="microBatchMean")
    with pytest.raises(InputError, match="stages.0.micro_batch_size: got .auto.; allowed: a number"):
        parse_run_config(run_document(tmp_path, tmp_path, stages=[stage]))
    with pytest.raises(InputError, match="micro_batch_size"):
        parse_run_config(run_document(tmp_path, tmp_path, stages=[pretrain_stage(micro_batch_size="automatic")]))


def test_a_container_s_limit_counts_with_its_file_cache(tmp_path: Path) -> None:
    assert container_bytes(tmp_path) is None
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("700\n")
    (tmp_path / "memory.stat").write_text("anon 400\ninactive_file 250\n")
    assert container_bytes(tmp_path) == 550
    assert available_bytes(tmp_path) == 550
    assert total_bytes(tmp_path) == int((tmp_path / "memory.max").read_text())
    (tmp_path / "memory.max").write_text("max\n")
    assert container_bytes(tmp_path) is None
    assert available_bytes(tmp_path) > 1000
