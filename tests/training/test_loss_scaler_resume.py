"""The loss scaler of fp16 goes on where a checkpoint left it."""

from __future__ import annotations

import json
from pathlib import Path

from bert_trainer.config.checks import parse_run_config
from bert_trainer.output.metrics import read_metrics
from bert_trainer.training.run import train
from signed_manifest import read_manifest, write_manifest
from tiny_run import pretrain_stage, run_document, write_dataset


def test_scale_and_skipped_steps_survive_a_resume(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data")
    document = run_document(
        tmp_path / "out",
        dataset,
        precision="fp16",
        stages=[pretrain_stage(length={"steps": 8})],
        checkpoint={"every_steps": 1, "keep": 100},
    )
    train(parse_run_config(document), attempt=1)
    checkpoint = tmp_path / "out" / "checkpoints" / "phase1-00000004"
    content = read_manifest(checkpoint)
    assert content["position"]["loss_scale"] == 2.0**16
    # As if one of the four steps had overflowed: half the scale, one update less, and the schedule with it.
    content["position"].update({"loss_scale": 2.0**15, "finite_steps": 3, "num_applied": 3})
    write_manifest(checkpoint, content)
    for step in range(5, 9):
        (tmp_path / "out" / "checkpoints" / f"phase1-{step:08d}" / "manifest.json").unlink()
    train(parse_run_config(document), attempt=2)

    records = [r for r in read_metrics(tmp_path / "out") if r["event"] == "progress" and r["attempt"] == 2]
    first_attempt = [r for r in read_metrics(tmp_path / "out") if r["event"] == "progress" and r["attempt"] == 1]
    assert [record["step"] for record in records] == [5, 6, 7, 8]
    assert {record["loss_scale"] for record in records} == {2.0**15}
    by_step = {record["step"]: record["learning_rate"] for record in first_attempt}
    assert [record["learning_rate"] for record in records] == [by_step[step] for step in (4, 5, 6, 7)]
    last = json.loads((tmp_path / "out" / "checkpoints" / "phase1-00000008" / "manifest.json").read_text())
    assert last["position"]["num_applied"] == 7
