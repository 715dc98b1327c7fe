"""Fine-tuning starts from the weights that pretraining has left, or from the initial checkpoint, in every attempt.

Inputs: the toy data set of pretraining and the toy task over the same vocabulary. Observed: the kept weights, the
messages, what a stopped run goes on with. Nothing is mocked.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from bert_trainer.config.checks import parse_run_config
from bert_trainer.errors import InputError, Stopped
from bert_trainer.output.metrics import read_metrics
from bert_trainer.parallel.world import SingleRank
from bert_trainer.training.session import Session
from finetune_runs import Document, assert_same_run, evaluated, run
from tiny_finetune import finetune_stage, write_task
from tiny_run import pretrain_stage, run_document, write_dataset


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_task(folder)  # the same vocabulary
    return write_dataset(folder)


def document(folder: Path, data: Path, **changes: object) -> Document:
    """Six steps of pretraining, then two tasks of one epoch, the second from random weights."""
    first = finetune_stage(data, epochs=1, run_seeds=[1, 2], start_from="pretrained")
    second = finetune_stage(data, "other", epochs=1)
    settings: Document = {"stages": [pretrain_stage(), first, second], "checkpoint": {"every_steps": 2, "keep": 2}}
    return run_document(folder, data, **{**settings, **changes})


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "out"
    run(document(folder, data))
    return folder


def test_what_pretraining_has_left_is_kept_beside_the_checkpoints(whole: Path) -> None:
    kept = load_file(whole / "finetune/start/model.safetensors")
    pretrained = load_file(whole / "checkpoints/phase1-00000006/model.safetensors")
    assert kept.keys() == pretrained.keys()
    assert all(torch.equal(kept[name], tensor) for name, tensor in pretrained.items())
    assert json.loads((whole / "finetune/start/start.json").read_text())["source"] == "phase1"


def test_every_seed_starts_from_them_with_a_head_of_its_own(data: Path, tmp_path: Path) -> None:
    """At a learning rate at which nothing moves by more than a hair, the encoder stays that of pretraining."""
    still = finetune_stage(data, epochs=1, run_seeds=[1, 2], start_from="pretrained")
    still["learning_rate"] = 1e-9
    run(document(tmp_path / "out", data, stages=[pretrain_stage(), still], checkpoint={"keep": 9}))
    kept = load_file(tmp_path / "out/finetune/start/model.safetensors")
    ends = [load_file(tmp_path / f"out/checkpoints/rule-{step:08d}/model.safetensors") for step in (5, 10)]
    for end in ends:
        for name in ("embeddings.tokens.weight", "layers.0.ffn_out.weight", "pooler.weight"):
            torch.testing.assert_close(end[name], kept[name], rtol=0, atol=1e-6)
    assert not torch.allclose(ends[0]["head.weight"], ends[1]["head.weight"], atol=1e-3)


@pytest.mark.parametrize("steps", [6, 8, 13, 18])
def test_stopped_in_any_stage_it_goes_on_bit_identically(whole: Path, data: Path, tmp_path: Path, steps: int) -> None:
    with pytest.raises(Stopped):
        run(document(tmp_path / "out", data), stop_after=steps)
    # Of pretraining nothing is left but the weights that were kept.
    for path in (tmp_path / "out/checkpoints").glob("phase1-*"):
        if steps > 6:
            shutil.rmtree(path)
    run(document(tmp_path / "out", data), attempt=2)
    assert_same_run(whole, tmp_path / "out")


def test_an_initial_checkpoint_is_read_once(whole: Path, data: Path, tmp_path: Path) -> None:
    shutil.copytree(whole / "checkpoints/phase1-00000006", tmp_path / "start")
    stage = finetune_stage(data, epochs=1, run_seeds=[1, 2], start_from="pretrained")
    changes: Document = {"stages": [stage], "initial_checkpoint": {"path": str(tmp_path / "start")}}
    run(document(tmp_path / "whole", data, **changes))
    with pytest.raises(Stopped):
        run(document(tmp_path / "out", data, **changes), stop_after=3)
    shutil.rmtree(tmp_path / "start")
    run(document(tmp_path / "out", data, **changes), attempt=2)
    assert_same_run(tmp_path / "whole", tmp_path / "out")


def test_damaged_start_weights_are_refused(data: Path, tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        run(document(tmp_path / "out", data), stop_after=8)
    path = tmp_path / "out/finetune/start/model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match=r"start/model.safetensors: its SHA-256 is not the one in start.json"):
        run(document(tmp_path / "out", data), attempt=2)


def test_start_weights_that_are_gone_are_missed_only_where_a_stage_still_starts_from_them(
    data: Path, tmp_path: Path
) -> None:
    stages = [pretrain_stage(), finetune_stage(data, epochs=1, start_from="pretrained")]
    with pytest.raises(Stopped):
        run(document(tmp_path / "out", data, stages=stages), stop_after=8)
    (tmp_path / "out/finetune/start").rename(tmp_path / "start")
    with pytest.raises(InputError, match=r"start/start.json: is missing\nhint: restore the folder from a copy"):
        run(document(tmp_path / "out", data, stages=stages), attempt=2)
    (tmp_path / "start").rename(tmp_path / "out/finetune/start")
    run(document(tmp_path / "out", data, stages=stages), attempt=3)
    # As a kill leaves it behind the last step, before the results.
    shutil.rmtree(tmp_path / "out/finetune/start")
    records = (tmp_path / "out/metrics.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "out/metrics.jsonl").write_text("".join(it for it in records if json.loads(it).get("when") != "after"))
    run(document(tmp_path / "out", data, stages=stages), attempt=4)
    assert len(evaluated(tmp_path / "out", "after")) == 1


def test_a_wrong_label_is_found_before_pretraining(data: Path, tmp_path: Path) -> None:
    task = write_task(tmp_path / "task")
    with (task / "validation.tsv").open("a") as file:
        file.write("w1 w2\tperhaps\n")
    with pytest.raises(InputError, match=r"validation.tsv.*perhaps"):
        run(document(tmp_path / "out", data, stages=[pretrain_stage(), finetune_stage(task)]))
    assert not [record for record in read_metrics(tmp_path / "out") if record["event"] == "progress"]


def test_without_a_data_set_the_vocabulary_is_the_one_beside_the_weights(
    whole: Path, data: Path, tmp_path: Path
) -> None:
    shutil.copytree(whole / "checkpoints/phase1-00000006", tmp_path / "start")
    shutil.copy(data / "vocab.txt", tmp_path / "start")
    stage = finetune_stage(data, start_from="pretrained")
    start = {"path": str(tmp_path / "start")}
    alone = run_document(tmp_path / "out", tmp_path / "none", stages=[stage], initial_checkpoint=start)
    session = Session.open(parse_run_config(alone), SingleRank(), attempt=1)
    session.close()
    assert session.data.vocabulary.size == 61
    (tmp_path / "start/vocab.txt").unlink()
    with pytest.raises(InputError, match=r"neither .*none/vocab.txt nor .*start/vocab.txt is there"):
        Session.open(parse_run_config({**alone, "output_folder": str(tmp_path / "again")}), SingleRank(), attempt=1)


def test_pretraining_lets_go_of_its_moments_and_gradients(data: Path, tmp_path: Path) -> None:
    session = Session.open(parse_run_config(document(tmp_path / "out", data)), SingleRank(), attempt=1)
    session.learner.free_training_buffers()
    session.learner.free_training_buffers()  # again by a second stage
    session.close()
    learner = session.learner
    held = (learner.parameters.gradients, learner.optimizer.first_moment, learner.optimizer.second_moment)
    assert [tensor.untyped_storage().nbytes() for tensor in held] == [0, 0, 0]
    assert session.learner.parameters.values.abs().sum() > 0


def test_the_folder_of_a_run_that_has_fine_tuned_stands_for_its_pretraining(
    whole: Path, data: Path, tmp_path: Path
) -> None:
    stage, start = finetune_stage(data, start_from="pretrained"), {"path": str(whole)}
    alone = run_document(tmp_path / "out", data, stages=[stage], initial_checkpoint=start)
    session = Session.open(parse_run_config(alone), SingleRank(), attempt=1)
    session.close()
    pretrained = load_file(whole / "checkpoints/phase1-00000006/model.safetensors")
    named = session.learner.parameters.named(session.learner.parameters.values)
    assert all(torch.equal(named[name], tensor) for name, tensor in pretrained.items())
    told = [it["message"] for it in read_metrics(tmp_path / "out") if it["event"] == "initialized"]
    assert told == [f"Started from the weights of {whole}/checkpoints/phase1-00000006"]


def test_heads_of_a_run_without_pretraining_are_refused_by_name(data: Path, tmp_path: Path) -> None:
    run(run_document(tmp_path / "first", data, stages=[finetune_stage(data, epochs=0.2)]))
    alone = run_document(
        tmp_path / "out", data, stages=[pretrain_stage()], initial_checkpoint={"path": str(tmp_path / "first")}
    )
    with pytest.raises(InputError, match=r"rule-00000001: its tensors are not this model's(.|\n)*head\.weight") as told:
        Session.open(parse_run_config(alone), SingleRank(), attempt=1)
    assert "name its export, such as runs/mrpc/export/huggingface" in str(told.value.hint)
