"""A run can start from another run's weights, or from a Hugging Face model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertForPreTraining, BertModel

from bert_trainer.distributed import Alone
from bert_trainer.errors import InputError
from bert_trainer.session import Session
from in_process import losses, train
from tiny_run import pretrain_stage, run_config, write_dataset

STEPS = 4


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return write_dataset(tmp_path / "data")


@pytest.fixture
def first_run(tmp_path: Path, dataset: Path) -> Session:
    return train(run_config(tmp_path / "first", dataset))


def start_from(path: Path, **rest: object) -> dict[str, Any]:
    return {"initial_checkpoint": {"path": str(path), **rest}, "stages": [pretrain_stage(length={"steps": STEPS})]}


def test_weights_of_a_run_are_taken_bit_by_bit(tmp_path: Path, dataset: Path, first_run: Session) -> None:
    second = open_session(tmp_path / "second", dataset, start_from(tmp_path / "first"))
    assert torch.equal(second.parameters.values, first_run.parameters.values)
    assert not second.optimizer.second_moment.any()


def test_moments_come_along_if_asked_for(tmp_path: Path, dataset: Path, first_run: Session) -> None:
    checkpoint = max((tmp_path / "first/checkpoints").iterdir())
    second = open_session(tmp_path / "second", dataset, start_from(checkpoint, load="weights_and_optimizer"))
    assert torch.equal(second.optimizer.second_moment, first_run.optimizer.second_moment)
    assert torch.equal(second.optimizer.first_moment, first_run.optimizer.first_moment)
    assert second.optimizer.num_applied == 0


def test_none_reads_and_loads_nothing(tmp_path: Path, dataset: Path, first_run: Session) -> None:
    fresh = open_session(tmp_path / "fresh", dataset, {})
    second = open_session(tmp_path / "second", dataset, start_from(tmp_path / "first", load="none"))
    assert torch.equal(second.parameters.values, fresh.parameters.values)


def test_a_resumed_run_keeps_its_own_weights(tmp_path: Path, dataset: Path, first_run: Session) -> None:
    options = start_from(tmp_path / "first")
    second = train(run_config(tmp_path / "second", dataset, **options))
    again = open_session(tmp_path / "second", dataset, {**options, "if_exists": "Resume"})
    assert torch.equal(again.parameters.values, second.parameters.values)
    assert not torch.equal(again.parameters.values, first_run.parameters.values)


def test_our_own_export_is_taken_back(tmp_path: Path, dataset: Path) -> None:
    stages = [pretrain_stage(length={"steps": STEPS}), {"kind": "export", "name": "export"}]
    first = train(run_config(tmp_path / "first", dataset, stages=stages))
    options = start_from(tmp_path / "first/export/huggingface", format="huggingface")
    second = open_session(tmp_path / "second", dataset, options)
    size = first.model.vocabulary_size
    for (name, ours), (_, theirs) in zip(second.model.named_parameters(), first.model.named_parameters(), strict=True):
        rows = slice(size) if name in ("embeddings.tokens.weight", "mlm_bias") else slice(None)
        assert torch.equal(ours[rows], theirs[rows]), name


@pytest.mark.parametrize("kind", [BertForPreTraining, BertModel])
@pytest.mark.parametrize("safe", [True, False])
def test_a_hugging_face_model_is_taken(tmp_path: Path, dataset: Path, kind: Any, safe: bool) -> None:
    model = save_huggingface(tmp_path / "model", dataset, kind, safe=safe)
    session = open_session(tmp_path / "run", dataset, start_from(tmp_path / "model", format="huggingface"))
    encoder = getattr(model, "bert", model)
    wanted = encoder.encoder.layer[1].intermediate.dense.weight
    ours = dict(session.model.named_parameters())
    assert torch.equal(ours["layers.1.ffn_in.weight"], wanted)
    assert torch.equal(ours["pooler.weight"], encoder.pooler.dense.weight)
    (told,) = [record for record in records(tmp_path / "run") if record["event"] == "initialized"]
    assert ("mlm_transform.weight" in told["message"]) == (kind is BertModel)


def test_what_does_not_fit_is_named(tmp_path: Path, dataset: Path, first_run: Session) -> None:
    save_huggingface(tmp_path / "wide", dataset, BertForPreTraining, safe=True, intermediate_size=48)
    save_huggingface(tmp_path / "deep", dataset, BertForPreTraining, safe=True, num_hidden_layers=3)
    save_huggingface(tmp_path / "words", dataset, BertForPreTraining, safe=True, vocab_size=60)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty/config.json").write_text("{}")
    cases = [
        ("wide", "huggingface", r"intermediate.dense.*got shape \[48, \d+\]; allowed: \["),
        ("deep", "huggingface", "no place for bert.encoder.layer.2"),
        ("words", "huggingface", r"got shape \[60"),
        ("empty", "huggingface", "no model.safetensors"),
        ("nowhere", "huggingface", "cannot be read"),
        ("empty", "bert-trainer", "no whole checkpoint"),
    ]
    for number, (name, kind, words) in enumerate(cases):
        with pytest.raises(InputError, match=words):
            open_session(tmp_path / f"run-{number}", dataset, start_from(tmp_path / name, format=kind))


def test_another_models_checkpoint_is_refused(tmp_path: Path, dataset: Path, first_run: Session) -> None:
    options = start_from(tmp_path / "first")
    narrow = {**run_config(tmp_path / "x", dataset).model.model_dump(), "intermediate_size": 24}
    with pytest.raises(InputError, match="got shape"):
        open_session(tmp_path / "second", dataset, {**options, "model": narrow})


def test_moments_of_another_trainer_cannot_be_asked_for(tmp_path: Path, dataset: Path) -> None:
    options = start_from(tmp_path, format="huggingface", load="weights_and_optimizer")
    with pytest.raises(InputError, match=r"initial_checkpoint.load: got 'weights_and_optimizer'"):
        run_config(tmp_path / "run", dataset, **options)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ({"every_samples": 40}, [3, 5, 8, 10]),  # batches of 16: 48, 80, 128 and 160 samples
        ({"every_steps": 2, "min_samples_to_start": 90}, [6, 8, 10]),
        ({"every_steps": 2, "periodic": False}, [10]),
    ],
)
def test_checkpoints_come_when_they_are_asked_for(
    tmp_path: Path, dataset: Path, policy: dict[str, object], expected: list[int]
) -> None:
    stage = pretrain_stage(global_batch_size=16, micro_batch_size=16, length={"steps": 10})
    train(run_config(tmp_path / "run", dataset, stages=[stage], checkpoint={**policy, "keep": 100}))
    assert saved_steps(tmp_path / "run") == [("phase1", step) for step in expected]


def test_samples_are_counted_over_all_stages(tmp_path: Path, dataset: Path) -> None:
    stages = [
        pretrain_stage(name, global_batch_size=16, micro_batch_size=16, length={"steps": 4})
        for name in ("phase1", "phase2")
    ]
    policy = {"every_steps": 1, "min_samples_to_start": 16 * 6, "keep": 100}
    train(run_config(tmp_path / "run", dataset, stages=stages, checkpoint=policy))
    assert saved_steps(tmp_path / "run") == [("phase1", 4), ("phase2", 2), ("phase2", 3), ("phase2", 4)]


def test_checkpoints_are_deleted_after_success_if_asked_for(tmp_path: Path, dataset: Path) -> None:
    train(run_config(tmp_path / "run", dataset, checkpoint={"delete_after_success": True}))
    assert not (tmp_path / "run/checkpoints").exists()
    assert losses(tmp_path / "run")


def open_session(folder: Path, dataset: Path, options: dict[str, Any]) -> Session:
    """Set a run up without training it."""
    session = Session.open(run_config(folder, dataset, **options), Alone(), attempt=1)
    session.close()
    return session


def save_huggingface(folder: Path, dataset: Path, kind: Any, *, safe: bool, **changes: Any) -> Any:
    """Save a model of the tiny run's sizes as transformers does."""
    sizes = run_config(folder / "sizes", dataset).model
    config = BertConfig(
        **{
            "vocab_size": len((dataset / "vocab.txt").read_text().split()),
            "hidden_size": sizes.hidden_size,
            "num_hidden_layers": sizes.num_hidden_layers,
            "num_attention_heads": sizes.num_attention_heads,
            "intermediate_size": sizes.intermediate_size,
            "max_position_embeddings": sizes.max_position_embeddings,
            **changes,
        }
    )
    torch.manual_seed(3)
    model = kind(config)
    model.save_pretrained(folder)
    if not safe:
        (folder / "model.safetensors").unlink()
        torch.save(model.state_dict(), folder / "pytorch_model.bin")
    return model


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def saved_steps(folder: Path) -> list[tuple[str, int]]:
    return [(record["stage"], int(record["step"])) for record in records(folder) if record["event"] == "checkpoint"]
