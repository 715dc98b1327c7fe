"""Samples of a build have the published rates, and rates that are off by little are told from right ones.

``benchmarks/data/sample_statistics.py`` compares a million samples of English by the same functions.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bert_job.run_config import DatasetConfig
from bert_job.run_stages import PrepareStage
from bert_trainer.dataset.build.pipeline import build_dataset
from bert_trainer.dataset.quality.inspection import CountTask, Groups, count_files
from bert_trainer.dataset.quality.published_rates import Rate, describe_rates, published_rates
from bert_trainer.dataset.quality.sample_statistics import SampleStatistics
from bert_trainer.dataset.tokens.wordpiece import read_vocabulary
from bert_trainer.output.progress import Reporter

WORDS = ["river", "stone", "cloud", "winter", "garden", "letter", "paper", "signal", "engine", "window", "market"]


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> tuple[SampleStatistics, int]:
    """Count 20,000 samples of documents of random sentences, and return the entries of their vocabulary, too."""
    folder = tmp_path_factory.mktemp("rates")
    rng = np.random.default_rng(1)
    documents = [
        "\n".join(
            " ".join(rng.choice(WORDS, size)) + f" {number}" for size in rng.integers(3, 20, rng.integers(30, 120))
        )
        for number in range(250)
    ]
    (folder / "text.txt").write_text("\n\n".join(documents))
    stage = PrepareStage(text=str(folder / "text.txt"), num_shards=2, vocabulary_size=120, num_processes=1)
    root = folder / "data"
    build_dataset(stage, DatasetConfig(folder=str(root)), [(64, 20)], Reporter("uid", 1, None))
    vocabulary = read_vocabulary(root / "vocab.txt")
    files = sorted(root.glob("*/training_*"))
    groups = Groups()
    for file in count_files([CountTask(path, vocabulary.size, vocabulary.mask_id) for path in files], num_processes=1):
        groups.add(file)
    (group,) = groups.all()
    assert group.statistics is not None
    return group.statistics, vocabulary.size


def by_name(rates: list[Rate]) -> dict[str, Rate]:
    return {rate.what: rate for rate in rates}


def test_a_build_s_rates_are_the_published_ones(counted: tuple[SampleStatistics, int]) -> None:
    statistics, entries = counted
    rates = published_rates(statistics, entries)
    assert statistics.rows > 10_000
    assert [rate.what for rate in rates if rate.is_wrong] == []
    found = by_name(rates)
    assert sum(not rate.depends_on_corpus for rate in rates) == 4
    assert found["predictions shown as [MASK]"].error < 0.002
    assert found["tokens predicted"].ours == pytest.approx(0.15, abs=0.007)
    assert 0.5 < found["random next sentence"].ours < 0.6


@pytest.mark.parametrize("field", ["masked", "unchanged"])
def test_one_point_too_many_is_wrong(counted: tuple[SampleStatistics, int], field: str) -> None:
    statistics, entries = counted
    more = getattr(statistics, field) + round(0.01 * statistics.num_predictions)
    off = [rate.what for rate in published_rates(replace(statistics, **{field: more}), entries) if rate.is_wrong]
    assert len(off) == 2


def test_one_row_with_another_count_is_wrong(counted: tuple[SampleStatistics, int]) -> None:
    statistics, entries = counted
    predictions = statistics.predictions.copy()
    predictions[np.flatnonzero(predictions)[0]] -= 1
    predictions[-1] += 1
    rate = by_name(published_rates(replace(statistics, predictions=predictions), entries))["rows with another count"]
    assert (rate.ours, rate.is_wrong) == (1, True)


def test_standard_errors_are_those_of_repeated_samples(counted: tuple[SampleStatistics, int]) -> None:
    # Means of bootstrapped histograms vary as much as is claimed.
    statistics, entries = counted
    rng = np.random.default_rng(2)
    shares = statistics.lengths / statistics.rows
    values = np.arange(len(shares))
    means = [float((rng.multinomial(statistics.rows, shares) * values).sum() / statistics.rows) for _ in range(400)]
    claimed = by_name(published_rates(statistics, entries))["mean tokens"].error
    assert np.std(means) == pytest.approx(claimed, rel=5 / (2 * 400) ** 0.5)


def test_the_table_names_what_depends_on_the_corpus(counted: tuple[SampleStatistics, int]) -> None:
    lines = describe_rates(published_rates(*counted))
    assert next(line for line in lines if "random next" in line).endswith("yes")
    assert next(line for line in lines if "[MASK]" in line).endswith("no")
