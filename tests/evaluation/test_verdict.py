"""A model that does no better than the most frequent token is told so: in records, report and page, with what to try.

Inputs: accuracies as literals, and a run on the toy data set. Observed: the words.
That a run which learns is told nothing: tests/docs/test_printed_jobs.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bert_trainer.output.metrics import read_metrics
from bert_trainer.training.evaluation import Accuracy
from bert_trainer.training.verdict import describe_verdict, noise_limit
from in_process import train
from tiny_run import PREDICTIONS, SEQUENCE_LENGTH, pretrain_stage, run_config, write_dataset
from whole_configs import optimizer_settings

EVALUATE = {"kind": "evaluate", "sequence_length": SEQUENCE_LENGTH, "max_predictions_per_sequence": PREDICTIONS}
WHILE_TRAINING = {
    "every_steps": 2,
    "max_samples": None,
    "micro_batch_size": 8,
    "max_predictions_per_sequence": PREDICTIONS,
    "shards": None,
    "data_range": None,
}


def accuracy(share: float, masked_tokens: int) -> Accuracy:
    return Accuracy(share, None, None, 6.0, samples=100, masked_tokens=masked_tokens)


@pytest.mark.parametrize(
    ("baseline", "masked_tokens", "limit"),
    [
        # 0.083 + 3 sqrt(0.083 x 0.917 / 2,500)
        (0.083, 2500, 0.0995),
        (0.087, 2000, 0.1059),
        (0.059, 1_000_000, 0.0597),
        (0.0, 100, 0.0),
        (1.0, 100, 1.0),
        (0.5, 0, 2.0),
    ],
)
def test_noise_is_three_binomial_standard_errors(baseline: float, masked_tokens: int, limit: float) -> None:
    assert noise_limit(baseline, masked_tokens) == pytest.approx(limit, abs=1e-4)


def said(
    share: float, masked_tokens: int = 2500, *, baseline: float = 0.083, steps: int = 400, **optimizer: Any
) -> str | None:
    config = run_config(Path("out"), Path("data"), stages=[pretrain_stage(global_batch_size=256), EVALUATE])
    config = config.model_copy(update={"optimizer": optimizer_settings(**optimizer)})
    return describe_verdict(accuracy(share, masked_tokens), baseline, config, steps=steps)


def test_above_the_noise_nothing_is_said() -> None:
    assert said(0.0996) is None
    assert said(0.0994) is not None
    # The same share of more tokens is no chance any more.
    assert said(0.0994, 10_000) is None


def test_below_it_the_figures_are_said_and_what_to_try() -> None:
    found = said(0.089, name="lamb")
    assert found == (
        "no better than the most frequent token: 8.9% of 2500 masked tokens, and the noise of its 8.3% reaches 10.0%; "
        "next: optimizer: {name: adamw}, since lamb is for large batches, or more steps than 400, or another "
        "learningRate (docs/guides/learning-rates.md)"
    )
    # As much as a result in the status holds.
    assert len(found) <= 256


def test_what_to_try_fits_the_run() -> None:
    assert (said(0.089, name="adamw") or "").endswith(
        "next: more steps than 400, or another learningRate (docs/guides/learning-rates.md)"
    )
    assert (said(0.089, name="adamw", steps=9000) or "").endswith(
        "next: another learningRate (docs/guides/learning-rates.md)"
    )


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("dataset"))


def run(folder: Path, dataset: Path) -> list[dict[str, Any]]:
    """Train four steps, evaluated after two and four, then evaluate; return the evaluations' records."""
    schedule = {"learning_rate": 1e-9, "warmup": {"steps": 1}, "decay": "constant"}
    phase = pretrain_stage(length={"steps": 4}, **schedule, evaluation=WHILE_TRAINING)
    train(run_config(folder, dataset, stages=[phase, EVALUATE]))
    return [record for record in read_metrics(folder) if record["event"] == "evaluated"]


def test_a_run_that_hardly_learns_says_so_where_it_ends(tmp_path: Path, dataset: Path) -> None:
    before, first, last, after = run(tmp_path, dataset)
    # Untrained, and on its way, a model may be no better.
    assert [before.get("verdict"), first.get("verdict")] == [None, None]
    assert before["unigram_baseline"] == last["unigram_baseline"] == after["unigram_baseline"]
    for record in (last, after):
        assert "no better than the most frequent token: " in record["verdict"]
        assert f"of {record['masked_tokens']} masked tokens" in record["verdict"]
        assert "more steps than 4, or" in record["verdict"]
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["heldOut"]["verdict"] == after["verdict"]
    assert report["heldOut"]["maskedTokens"] == after["masked_tokens"]
    assert report["stages"][0]["verdict"] == last["verdict"]
    assert (tmp_path / "report.html").read_text().count("no better than the most frequent token") == 2
