"""A data set and a run configuration small enough to train in a second, and ways to run it.

Inputs are literals and a seed; nothing of the trainer is replaced. The text is a toy language: in a row, every
token is followed by its successor, so that a masked token can be learnt from its neighbours.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_job.run_config import RunConfig
from bert_trainer.config.checks import parse_run_config
from bert_trainer.dataset.shards import write_shard
from bert_trainer.dataset.shards.samples import Samples
from bert_trainer.dataset.tokens.wordpiece import SPECIAL_TOKENS, read_vocabulary
from whole_configs import whole_document, whole_stage

VOCABULARY_SIZE = 61
SEQUENCE_LENGTH = 32
PREDICTIONS = 5
FIRST_WORD = len(SPECIAL_TOKENS)

MODEL: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "hidden_dropout": 0.1,
    "attention_dropout": 0.1,
}
TWO_LAYERS = {**MODEL, "num_hidden_layers": 2}
"""For tests of what a layer's number decides: names of weights, losses compared with others'."""

ROOT = Path(__file__).resolve().parents[2]


def make_samples(rows: int, rng: np.random.Generator, *, sequence_length: int, predictions: int) -> Samples:
    """Toy rows: two ascending runs of tokens between [CLS] and [SEP]; label 1 where the second does not follow."""
    shape = (rows, sequence_length)
    ids, mask, segments = np.zeros(shape, np.int32), np.zeros(shape, np.int8), np.zeros(shape, np.int8)
    positions, labels = np.zeros((rows, predictions), np.int32), np.zeros((rows, predictions), np.int32)
    random_next = rng.integers(0, 2, rows).astype(np.int8)
    words = VOCABULARY_SIZE - FIRST_WORD
    for row in range(rows):
        first, second = rng.integers(2, (sequence_length - 3) // 2 + 1, 2)
        start = rng.integers(words)
        other = rng.integers(words) if random_next[row] else start + first
        tokens = [2, *(FIRST_WORD + (start + np.arange(first)) % words), 3]
        tokens += [*(FIRST_WORD + (other + np.arange(second)) % words), 3]
        length = len(tokens)
        ids[row, :length], mask[row, :length], segments[row, first + 2 : length] = tokens, 1, 1
        candidates = [place for place in range(length) if tokens[place] >= FIRST_WORD]
        chosen = np.sort(rng.permutation(candidates)[: rng.integers(1, predictions + 1)])
        positions[row, : len(chosen)], labels[row, : len(chosen)] = chosen, ids[row, chosen]
        ids[row, chosen] = 4
    return Samples(ids, mask, segments, positions, labels, random_next)


def write_vocabulary(folder: Path) -> Path:
    """Write ``vocab.txt`` and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    words = [f"w{number}" for number in range(VOCABULARY_SIZE - FIRST_WORD)]
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, *words]) + "\n")
    return folder


def write_dataset(
    folder: Path,
    *,
    rows: tuple[int, ...] = (40, 40, 30),
    held_out_rows: int = 24,
    sequence_length: int = SEQUENCE_LENGTH,
    predictions: int = PREDICTIONS,
    seed: int = 1,
) -> Path:
    """Write ``vocab.txt`` and shards of one length as ``bert-data build`` names them; return the folder."""
    rng = np.random.default_rng(seed)
    shards = folder / f"seq_len_{sequence_length}_max_pred_{predictions}"
    shards.mkdir(parents=True, exist_ok=True)
    vocabulary = read_vocabulary(write_vocabulary(folder) / "vocab.txt")
    parts = [("training", number, count) for number, count in enumerate(rows)] + [("held_out", 0, held_out_rows)]
    for split, number, count in parts:
        samples = make_samples(count, rng, sequence_length=sequence_length, predictions=predictions)
        path = shards / f"{split}_{number:04d}.hdf5"
        write_shard(path, samples, vocabulary_sha256=vocabulary.sha256, generator_version=1)
    return folder


def pretrain_stage(name: str = "phase1", **changes: Any) -> dict[str, Any]:
    """Return a pretraining stage of a run configuration."""
    stage = {
        "kind": "pretrain",
        "name": name,
        "sequence_length": SEQUENCE_LENGTH,
        "max_predictions_per_sequence": PREDICTIONS,
        "global_batch_size": 16,
        "micro_batch_size": 8,
        "length": {"steps": 6},
        "learning_rate": 1e-3,
        "warmup": {"steps": 2},
        "decay": "linear",
    }
    return whole_stage({**stage, **changes})


def run_document(folder: Path, dataset: Path, **changes: Any) -> dict[str, Any]:
    """Return a whole run configuration that writes to ``folder``; top-level entries can be replaced."""
    document = {
        "job": {"name": "tiny", "uid": "uid-1"},
        "output_folder": str(folder),
        "seed": 7,
        "device": "cpu",
        "model": {**MODEL},
        "dataset": {"folder": str(dataset)},
        "stages": [pretrain_stage()],
        "checkpoint": {"every_steps": 2},
        "logging": {"every_steps": 1, "tensorboard": False},
    }
    return whole_document({**document, **copy.deepcopy(changes)})


def run_config(folder: Path, dataset: Path, **changes: Any) -> RunConfig:
    """Return the same, parsed."""
    return parse_run_config(run_document(folder, dataset, **changes))


COLLECTIVES = [
    pytest.param("horovod", marks=pytest.mark.horovod),
    pytest.param("torch", marks=pytest.mark.ranks),
]
"""The libraries that join ranks, for tests that run with each."""


def trainer_command(document: dict[str, Any], config_file: Path, *, by_torchrun: bool = False) -> list[str]:
    """Write the document and return the command that runs it, under mpirun or torchrun for more than one rank.

    It prints records.
    """
    config_file.write_text(json.dumps(document))
    trainer = [sys.executable, "-m", "bert_trainer", "--plain", "--config", str(config_file)]
    ranks = document["world"]["ranks"]
    if ranks == 1:
        return trainer
    mpirun = Path(sys.executable).with_name("mpirun")
    if by_torchrun or document.get("collectives") == "torch" and not mpirun.exists():
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        return [*torchrun, *trainer[1:]]
    return [*_mpirun(ranks, config_file.parent), *trainer]


def _mpirun(ranks: int, folder: Path) -> list[str]:
    """Return what starts a program on so many ranks of this machine. folder: where it may leave its own files."""
    options = ["--bind-to", "none", "--map-by", ":OVERSUBSCRIBE"]
    if os.getuid() == 0:
        options.append("--allow-run-as-root")
    # Open MPI calls a folder after its process id and fails where one that was killed has left the same.
    temporary = tempfile.mkdtemp(prefix="mpirun-", dir=folder)
    return ["env", f"TMPDIR={temporary}", str(Path(sys.executable).with_name("mpirun")), *options, "-np", str(ranks)]


def run_child(child: Path, folder: Path, ranks: int, library: str) -> subprocess.CompletedProcess[str]:
    """Run a program of tests on real ranks under mpirun, to its end; it is given the folder and the library."""
    return subprocess.run(
        [*_mpirun(ranks, folder), sys.executable, str(child), str(folder), library],
        env=environment(PYTHONPATH=f"{ROOT}/trainer:{ROOT}/tests/support"),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def environment(**variables: str) -> dict[str, str]:
    """Return the environment for a trainer process: one thread, no attempt but what is given."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("BERT_")}
    return {**inherited, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}/trainer", **variables}


def run_trainer(
    document: dict[str, Any],
    config_file: Path,
    timeout_s: float = 150,
    *,
    by_torchrun: bool = False,
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    """Run the trainer to its end in a process (or processes) of its own."""
    command = trainer_command(document, config_file, by_torchrun=by_torchrun)
    return subprocess.run(
        command, env=environment(**variables), capture_output=True, text=True, timeout=timeout_s, check=False
    )
