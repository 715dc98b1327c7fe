"""What a step needs in operations, by hand and in the records of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from bert_trainer.training.flop import count_flop
from in_process import progress_records, train
from tiny_run import run_config, write_dataset


def test_base_at_512_needs_what_the_sum_of_its_products_says(tmp_path: Path) -> None:
    config = run_config(tmp_path, tmp_path).model.model_copy(
        update={"hidden_size": 768, "num_hidden_layers": 12, "intermediate_size": 3072}
    )
    # One row of 512 tokens, 80 predictions. A product of (n, k) and (k, m) takes 2nkm, the backward pass twice that.
    projections = 4 * 2 * 512 * 768 * 768
    feed_forward = 2 * 2 * 512 * 768 * 3072
    attention = 2 * 2 * 512 * 512 * 768
    head = 2 * 80 * 768 * 768 + 2 * 80 * 768 * 30522
    expected = 3 * (12 * (projections + feed_forward + attention) + head)
    found = count_flop(config, 30522, tokens=512, pairs=512**2, masked=80)
    assert found == pytest.approx(expected, rel=1e-12)
    # benchmarks/gpu_step.py counts the same.
    assert found == pytest.approx(6 * 12 * 768**2 * 12 * 512 + 12 * 12 * 768 * 512**2 + 6 * (768**2 + 768 * 30522) * 80)


def test_every_interval_says_where_its_time_went(tmp_path: Path) -> None:
    config = run_config(tmp_path / "run", write_dataset(tmp_path / "data"))
    train(config)
    records = progress_records(tmp_path / "run")
    assert records
    for record in records:
        steps = record["interval_sequences"] / config.stages[0].global_batch_size
        assert record["step_s"] * steps == pytest.approx(record["interval_s"])
        assert 0 < record["work_s"] <= record["step_s"]
        flop, tokens = record["model_flop_per_s"] * record["interval_s"], record["interval_tokens"]
        model = config.model
        per_token = (
            6 * model.num_hidden_layers * model.hidden_size * (4 * model.hidden_size + 2 * model.intermediate_size)
        )
        assert flop > per_token * tokens, "attention and head come on top"
        assert flop < 10 * per_token * tokens
        assert record["checkpoint_age_s"] >= 0
    assert records[-1]["checkpoint_age_s"] <= records[-1]["elapsed_s"]
