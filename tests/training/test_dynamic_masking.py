"""Masks that the trainer draws: the same for any number of ranks and after a restart, new in every epoch.

Inputs: the toy data set, with masks and without, in every layout. Observed: batches, final weights, messages.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from any_layout import write_shard
from bert_trainer.config.checks import parse_run_config
from bert_trainer.dataset.shards import LayoutName, read_shard
from bert_trainer.dataset.shards.ragged import RaggedSamples
from bert_trainer.errors import InputError
from bert_trainer.output.metrics import read_metrics
from bert_trainer.training import session
from bert_trainer.training.data_loader import StageReader
from bert_trainer.training.run import run_stages, train
from bert_trainer.training.run_data import StageData
from bert_trainer.training.session import Session
from threaded_world import ThreadedWorld, run_threads
from tiny_run import FIRST_WORD, PREDICTIONS, SEQUENCE_LENGTH, pretrain_stage, run_document, write_dataset
from whole_configs import whole_stage

SAMPLES = 110
STEPS = 25
BATCH = 11  # an epoch ends with step 10 and with step 20
MASK = 4
SHARDS = f"seq_len_{SEQUENCE_LENGTH}_max_pred_{PREDICTIONS}"


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("dataset"))


def document(folder: Path, dataset: Path, *, ranks: int = 1, **stage: Any) -> dict[str, Any]:
    settings = {"masking": "dynamic", "global_batch_size": BATCH, "micro_batch_size": 4, "length": {"steps": STEPS}}
    return run_document(
        folder,
        dataset,
        world={"ranks": ranks, "hosts": 1},
        precision="fp64",
        stages=[pretrain_stage(**{**settings, **stage})],
        checkpoint={"every_steps": 1, "keep": 100},
    )


def relayout(dataset: Path, target: Path, layout: LayoutName, *, masked: bool = True) -> Path:
    """Write the data set's training shards once more; without masks, as they were before."""
    shutil.copytree(dataset, target)
    for path in (target / SHARDS).glob("training_*"):
        rows = RaggedSamples.from_padded(read_shard(path))
        write_shard(
            path,
            rows if masked else rows.unmasked(),
            vocabulary_sha256=None,
            generator_version=1,
            layout=layout,
            shape=(SEQUENCE_LENGTH, PREDICTIONS),
            masked=masked,
        )
    return target


def open_stage(folder: Path, dataset: Path, **stage: Any) -> StageData:
    config = parse_run_config(document(folder, dataset, **stage))
    found: list[Session] = []
    run_threads(1, lambda world: found.append(Session.open(config, world, attempt=1)))
    found[0].close()
    return found[0].data.training[0]


def step_of(data: StageData, step: int, *, ranks: int = 1) -> list[tuple[list[int], ...]]:
    """Return every row of a step as its tokens, the places of its predictions and what stood there."""
    rows = []
    for rank in range(ranks):
        reader = StageReader(
            data.folder, data.order, global_batch_size=BATCH, micro_batch_size=3, rank=rank, world_size=ranks,
            first_step=0, last_step=STEPS, masking=data.masking,
        )  # fmt: skip
        samples, numbers, _ = reader.read_rows(step * reader.global_batch_size)
        for row, number in enumerate(numbers.tolist()):
            one = samples.take(slice(row, row + 1))
            rows.append(([number], one.tokens.tolist(), one.masked_lm_positions.tolist(), one.masked_lm_ids.tolist()))
    return rows


@pytest.mark.parametrize("ranks", [2, 3, 11])
def test_any_number_of_ranks_sees_the_same_masks(tmp_path: Path, dataset: Path, ranks: int) -> None:
    data = open_stage(tmp_path / "out", dataset)
    for step in (0, 9, 10, 24):
        assert sorted(step_of(data, step)) == sorted(step_of(data, step, ranks=ranks))


def test_every_epoch_has_other_masks_over_the_same_text(tmp_path: Path, dataset: Path) -> None:
    data = open_stage(tmp_path / "out", dataset)
    epochs = []
    for first in (0, 10):
        rows = [row for step in range(first, first + 10) for row in step_of(data, step)]
        epochs.append({number: (tokens, places, labels) for (number,), tokens, places, labels in rows})
    one, other = epochs
    assert one.keys() == other.keys() == set(range(SAMPLES))
    assert sum(one[number][1] != other[number][1] for number in one) > SAMPLES // 2
    for number in one:
        restored = []
        for tokens, places, labels in (one[number], other[number]):
            bare = np.array(tokens)
            bare[places] = labels
            restored.append(bare.tolist())
        assert restored[0] == restored[1]


def test_the_share_of_predictions_is_the_stage_s(tmp_path: Path, dataset: Path) -> None:
    for share in (0.05, 0.15):
        data = open_stage(tmp_path / str(share), dataset, masked_lm_probability=share)
        for _, tokens, places, _ in step_of(data, 3):
            assert len(places) == min(PREDICTIONS, max(1, round(share * len(tokens))))


def assert_bit_identical(one: Path, other: Path) -> None:
    for name in ("model.safetensors", "optimizer.safetensors"):
        first, second = load_file(one / name), load_file(other / name)
        assert first.keys() == second.keys()
        assert all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.parametrize("step", [7, 10, 21])
def test_a_resumed_run_ends_with_the_same_bits(tmp_path: Path, dataset: Path, step: int) -> None:
    torch.set_num_threads(1)
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    train(parse_run_config(document(whole, dataset)), attempt=1)
    shutil.copytree(whole, resumed)
    (resumed / "run.json").unlink()
    for checkpoint in (resumed / "checkpoints").iterdir():
        if checkpoint.name > f"phase1-{step:08d}":
            shutil.rmtree(checkpoint)
    train(parse_run_config(document(resumed, dataset)), attempt=2)
    assert [record["step"] for record in read_metrics(resumed) if record["event"] == "resumed"] == [step]
    final = f"checkpoints/phase1-{STEPS:08d}"
    assert_bit_identical(whole / final, resumed / final)


@pytest.mark.parametrize("whole_words", [False, True])
def test_a_resumed_run_says_when_its_words_were_masked_by_another_release(
    tmp_path: Path, dataset: Path, monkeypatch: pytest.MonkeyPatch, whole_words: bool
) -> None:
    torch.set_num_threads(1)
    run = document(tmp_path, dataset, whole_word_masking=whole_words, length={"steps": 4})
    with monkeypatch.context() as patched:
        patched.setattr(session, "WORD_MASKS_VERSION", 1)
        train(parse_run_config(run), attempt=1)
    (tmp_path / "run.json").unlink()
    shutil.rmtree(tmp_path / "checkpoints/phase1-00000004")
    train(parse_run_config(run), attempt=2)
    [message] = [record["message"] for record in read_metrics(tmp_path) if record["event"] == "resumed"]
    assert ("'masks of whole words': '1'" in message) == whole_words
    assert ("Resumed, not bit-identical" in message) == whole_words


def test_two_ranks_train_the_weights_of_one(tmp_path: Path, dataset: Path) -> None:
    found = []
    for ranks in (1, 2):
        config = parse_run_config(document(tmp_path / str(ranks), dataset, ranks=ranks))

        def rank(world: ThreadedWorld, config: Any = config) -> None:
            run_stages(Session.open(config, world, attempt=1), SimpleNamespace(received=False, listen=lambda: None))  # type: ignore[arg-type]

        run_threads(ranks, rank)
        found.append(load_file(tmp_path / str(ranks) / f"checkpoints/phase1-{STEPS:08d}/model.safetensors"))
    # Sums of fp64 in another order.
    assert max(float((found[0][name] - found[1][name]).abs().max()) for name in found[0]) < 1e-10


@pytest.mark.parametrize("layout", ["compact", "nvidia", "intel", "mlperf", "mlperf-variable"])
def test_masks_do_not_depend_on_the_layout(tmp_path: Path, dataset: Path, layout: LayoutName) -> None:
    wanted = step_of(open_stage(tmp_path / "out", dataset), 3)
    other = relayout(dataset, tmp_path / "data", layout)
    assert step_of(open_stage(tmp_path / "other", other), 3) == wanted


def test_packed_rows_can_be_masked_anew(tmp_path: Path, dataset: Path) -> None:
    packed = relayout(dataset, tmp_path / "data", "mlperf-packed")  # which changes the order of samples
    rows = step_of(open_stage(tmp_path / "out", packed), 3)
    static = step_of(open_stage(tmp_path / "static", packed, masking="static"), 3)
    assert [row[0] for row in rows] == [row[0] for row in static]
    assert rows != static


def test_files_without_masks_give_the_same_batches(tmp_path: Path, dataset: Path) -> None:
    wanted = step_of(open_stage(tmp_path / "out", dataset), 3)
    bare = relayout(dataset, tmp_path / "data", "compact", masked=False)
    assert step_of(open_stage(tmp_path / "other", bare), 3) == wanted
    with pytest.raises(InputError, match=r"(?s)training_0000\.hdf5: its samples hold no masks.*masking to dynamic"):
        open_stage(tmp_path / "static", bare, masking="static")


def test_a_run_on_files_without_masks_is_evaluated_beside_a_baseline(tmp_path: Path) -> None:
    bare = relayout(write_dataset(tmp_path / "masked", held_out_rows=200), tmp_path / "data", "compact", masked=False)
    run = document(tmp_path / "out", bare, length={"steps": 3}, learning_rate=1e-3)
    evaluate = {"kind": "evaluate", "sequence_length": SEQUENCE_LENGTH, "max_predictions_per_sequence": PREDICTIONS}
    run["stages"].append(whole_stage(evaluate))
    train(parse_run_config(run), attempt=1)
    evaluated = [record for record in read_metrics(tmp_path / "out") if record["event"] == "evaluated"]
    assert len(evaluated) == 2
    seen = np.concatenate([read_shard(path).input_ids.ravel() for path in (bare / SHARDS).glob("training_*")])
    words = np.bincount(seen[seen >= FIRST_WORD])  # [CLS] and [SEP] are never predicted
    labels = read_shard(bare / SHARDS / "held_out_0000.hdf5").masked_lm_ids
    wanted = (labels == words.argmax()).sum() / (labels > 0).sum()
    assert evaluated[0]["unigram_baseline"] == pytest.approx(wanted, rel=1e-5)
    assert wanted > 0


def test_masks_whose_originals_are_lost_are_refused_before_training(tmp_path: Path, dataset: Path) -> None:
    lost = tmp_path / "lost"
    shutil.copytree(dataset, lost)
    path = lost / SHARDS / "training_0000.hdf5"
    samples = read_shard(path)
    for positions, labels in zip(samples.masked_lm_positions, samples.masked_lm_ids, strict=True):
        # As a program does that masks more than it has room to note.
        positions[1:], labels[1:] = 0, 0
    write_shard(path, samples, vocabulary_sha256=None, generator_version=1)
    with pytest.raises(InputError, match=r"(?s)training_0000\.hdf5: \d+ of \d+ tokens are \[MASK\].*masking to static"):
        open_stage(tmp_path / "out", lost)
    assert (read_shard(path).input_ids == MASK).any()
