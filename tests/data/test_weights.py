"""A document of a weighted corpus is drawn as often as its weight says, and the same ones whatever is beside it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_job.run_config import DatasetConfig
from bert_job.run_stages import Corpus, PrepareStage
from bert_trainer.dataset.build.pipeline import build_dataset
from bert_trainer.dataset.commands.terminal import ProgressBar
from bert_trainer.dataset.corpus.weights import count_draws, draw_chance, repeats_in_pass
from bert_trainer.dataset.shards import list_shards, read_shard
from bert_trainer.dataset.shards.dataset_info import DatasetInfo
from bert_trainer.errors import InputError
from confidence import FIVE_SIGMA, share_z

NUM_DOCUMENTS = 60
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@pytest.fixture
def vocabulary(tmp_path: Path) -> Path:
    words = [f"{origin}{number:03d}{place}" for origin in "ab" for number in range(NUM_DOCUMENTS) for place in "xyz"]
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join([*SPECIAL, *words]) + "\n")
    return path


def write_corpus(path: Path, origin: str) -> Path:
    """Write documents of two sentences whose words no other document has."""
    documents = (
        f"{origin}{number:03d}x {origin}{number:03d}y\n{origin}{number:03d}z {origin}{number:03d}y"
        for number in range(NUM_DOCUMENTS)
    )
    path.write_text("\n\n".join(documents) + "\n")
    return path


def build(root: Path, vocabulary: Path, corpora: list[Corpus], **settings: object) -> DatasetInfo:
    chosen = {"corpora": tuple(corpora), "lower_case": True, "num_processes": 1, "num_shards": 3, "seed": 7, **settings}
    stage = PrepareStage.model_validate(chosen)
    dataset = DatasetConfig(folder=str(root), vocabulary_file=str(vocabulary))
    return build_dataset(stage, dataset, [(32, 5)], ProgressBar())


def walks(root: Path, vocabulary: Path, split: str = "training") -> Counter[str]:
    """Count the samples that begin with a document's first word: every walk over it makes exactly one."""
    tokens = vocabulary.read_text().split()
    found: Counter[str] = Counter()
    for path in sorted((root / "seq_len_32_max_pred_5").glob(f"{split}*.hdf5")):
        samples = read_shard(path)
        ids = samples.input_ids.astype(np.int64)
        rows = np.arange(len(ids))[:, None]
        masked = samples.masked_lm_positions > 0
        ids[np.broadcast_to(rows, masked.shape)[masked], samples.masked_lm_positions[masked]] = samples.masked_lm_ids[
            masked
        ]
        found.update(tokens[number][:4] for number in ids[:, 1].tolist() if tokens[number].endswith("x"))
    return found


def corpora_of(tmp_path: Path, *weights: float) -> list[Corpus]:
    return [
        Corpus(path=str(write_corpus(tmp_path / f"{origin}.txt", origin)), weight=weight, lines="sentences")
        for origin, weight in zip("ab", weights, strict=False)
    ]


def test_documents_are_drawn_dupe_factor_times_weight(tmp_path: Path, vocabulary: Path) -> None:
    info = build(tmp_path / "data", vocabulary, corpora_of(tmp_path, 2.0, 0.5), dupe_factor=4)
    found = walks(tmp_path / "data", vocabulary)
    assert {found[name] for name in found if name.startswith("a")} == {8}
    assert {found[name] for name in found if name.startswith("b")} == {2}
    held_out = walks(tmp_path / "data", vocabulary, "held_out")
    assert set(held_out.values()) == {1}
    assert {name[0] for name in held_out} == {"a", "b"}
    assert len(found) + len(held_out) == 2 * NUM_DOCUMENTS
    assert info.settings.weights == (2.0, 0.5)


def test_a_fraction_is_the_share_of_documents_drawn_once_more(tmp_path: Path, vocabulary: Path) -> None:
    info = build(tmp_path / "data", vocabulary, corpora_of(tmp_path, 1.0, 0.1), dupe_factor=4)
    found = walks(tmp_path / "data", vocabulary)
    assert {found[name] for name in found if name.startswith("a")} == {4}
    drawn = [count for name, count in found.items() if name.startswith("b")]
    assert set(drawn) == {1}
    assert info.counts is not None
    assert info.counts.documents_not_drawn > 0
    of_b = info.counts.documents_not_drawn + len(drawn)
    assert info.counts.documents_training == len(found)
    assert abs(share_z(len(drawn), of_b, 0.4)) < FIVE_SIGMA


def test_weights_of_one_change_no_byte(tmp_path: Path, vocabulary: Path) -> None:
    corpora = corpora_of(tmp_path, 1.0, 1.0)
    folder = tmp_path / "together"
    folder.mkdir()
    for origin in "ab":
        write_corpus(folder / f"{origin}.txt", origin)
    build(tmp_path / "apart", vocabulary, corpora)
    build(tmp_path / "data", vocabulary, [Corpus(path=str(folder), lines="sentences")])
    name = "seq_len_32_max_pred_5"
    shards = list_shards(tmp_path / "apart" / name)
    assert [path.read_bytes() for path in shards] == [
        path.read_bytes() for path in list_shards(tmp_path / "data" / name)
    ]


def test_other_weights_are_another_dataset(tmp_path: Path, vocabulary: Path) -> None:
    build(tmp_path / "data", vocabulary, corpora_of(tmp_path, 1.0, 1.0))
    with pytest.raises(InputError, match=r"weights: was \(\), is \(1\.0, 2\.0\)"):
        build(tmp_path / "data", vocabulary, corpora_of(tmp_path, 1.0, 2.0))


def test_weights_that_draw_nothing_are_refused(tmp_path: Path, vocabulary: Path) -> None:
    with pytest.raises(InputError, match=r"a\.txt: dupeFactor 1 x weight draws none of \d+ training documents"):
        build(tmp_path / "data", vocabulary, corpora_of(tmp_path, 1e-6), dupe_factor=1)


def test_a_heavy_corpus_is_spread_over_the_shards(tmp_path: Path, vocabulary: Path) -> None:
    info = build(tmp_path / "data", vocabulary, corpora_of(tmp_path, 9.0, 1.0), dupe_factor=2)
    counts = list(info.lengths[0].training.values())
    assert max(counts) < 1.3 * min(counts)
    assert {count for name, count in walks(tmp_path / "data", vocabulary).items() if name.startswith("a")} == {18}


def test_rounding_errors_draw_nothing() -> None:
    weights = np.array([0.3, 0.7, 1.1, 0.1])
    assert count_draws(weights, np.zeros(4), 10).tolist() == [3, 7, 11, 1]


@given(st.lists(st.integers(1, 60), min_size=1, max_size=20), st.integers(1, 12))
def test_passes_make_up_the_draws_and_differ_by_one_at_most(draws: list[int], passes: int) -> None:
    table = np.stack([repeats_in_pass(np.array(draws, dtype=np.int32), number, passes) for number in range(passes)])
    assert table.sum(axis=0).tolist() == draws
    assert (table.max(axis=0) - table.min(axis=0)).max() <= 1


def test_documents_without_a_count_are_walked_over_once_in_every_pass() -> None:
    assert repeats_in_pass(np.zeros(2, dtype=np.int32), 3, 5).tolist() == [1, 1]


def test_the_chance_is_uniform_and_another_one_for_another_seed() -> None:
    chances = [draw_chance(str(number).encode(), 1) for number in range(4000)]
    assert abs(share_z(sum(chance < 0.25 for chance in chances), 4000, 0.25)) < FIVE_SIGMA
    assert chances != [draw_chance(str(number).encode(), 2) for number in range(4000)]
