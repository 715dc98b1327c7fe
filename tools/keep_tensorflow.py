"""Keep three small checkpoints that TensorFlow writes, and what two compute, for tests that run without TensorFlow.

    BERT_TEST_TENSORFLOW=$(tools/tensorflow.sh) .venv/bin/python tools/keep_tensorflow.py

Writes ``tests/fixtures/tensorflow/`` (350 kB): ``google``, ``mlperf``, and ``expected.json`` with hidden states and
logits, which NumPy has computed in double precision from variables that TensorFlow has read; ``trained``, a model that
this trainer has trained on Python's documentation (2 minutes), its variables read and written anew by TensorFlow.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/support"))

from bert_trainer.dataset.__main__ import main as make_data  # noqa: E402
from in_process import train  # noqa: E402
from tensorflow_cases import (  # noqa: E402
    EXPECTED,
    GOOGLE,
    KEPT,
    MLPERF,
    SMALL,
    TRAINED,
    rows_of,
    run_tensorflow,
    write_inputs,
)
from tiny_run import pretrain_stage, run_config  # noqa: E402

TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(SMALL["vocab_size"] - 5))]

TRAINED_IN = Path("/tmp/kept-tensorflow")
"""What the state file names, and whoever reads the checkpoints does not have."""


SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 128,
    "max_position_embeddings": 128,
    "hidden_dropout": 0.1,
    "attention_dropout": 0.1,
}
VOCABULARY_SIZE, LENGTH, PREDICTIONS, STEPS = 1024, 64, 10, 1500


def keep_trained(scratch: Path) -> None:
    """Train a model, export it, and have TensorFlow write what it reads of that."""
    data = scratch / "data"
    build = ["build", "--text", "builtin:python-docs", "--output", str(data), "--length", f"{LENGTH}:{PREDICTIONS}"]
    ended = make_data([*build, "--vocabulary-size", str(VOCABULARY_SIZE), "--dupe-factor", "1"])
    assert ended == 0, "no dataset was made"
    phase = pretrain_stage(
        sequence_length=LENGTH,
        max_predictions_per_sequence=PREDICTIONS,
        global_batch_size=64,
        micro_batch_size=64,
        length={"steps": STEPS},
        learning_rate=5e-3,
        warmup={"steps": STEPS // 10},
        decay="linear",
    )
    export = {"kind": "export", "format": "tensorflow"}
    quiet = {"every_steps": 100, "tensorboard": False}
    last = {"every_steps": STEPS}
    train(run_config(scratch / "run", data, model=SIZES, stages=[phase, export], logging=quiet, checkpoint=last))
    exported = scratch / "run/export/tensorflow"
    (prefix,) = (path.with_suffix("") for path in exported.glob("*.index"))
    TRAINED.mkdir(parents=True)
    for name in ("bert_config.json", "vocab.txt"):
        shutil.copy(exported / name, TRAINED)
    run_tensorflow("rewrite", exported / "bert_config.json", prefix, TRAINED / "bert_model.ckpt")
    (TRAINED / "checkpoint").unlink()


def main() -> None:
    """Write all of it anew."""
    shutil.rmtree(KEPT, ignore_errors=True)
    with tempfile.TemporaryDirectory() as scratch:
        keep_trained(Path(scratch))
    for kept, name, options in (
        (GOOGLE, "bert_model.ckpt", []),
        (MLPERF, "model.ckpt-28252", ["--slots", "--shards", "2"]),
    ):
        folder = TRAINED_IN / kept.name
        folder.mkdir(parents=True)
        config = folder / "bert_config.json"
        config.write_text(json.dumps(SMALL, indent=2) + "\n")
        (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in TOKENS))
        run_tensorflow("write", config, folder / name, *options)
        shutil.copytree(folder, kept)
    shutil.rmtree(TRAINED_IN)
    (GOOGLE / "checkpoint").unlink()  # the published ones have none
    with tempfile.TemporaryDirectory() as scratch:
        inputs, outputs = Path(scratch) / "inputs.npz", Path(scratch) / "outputs.npz"
        write_inputs(rows_of(SMALL), inputs)
        run_tensorflow("compute", GOOGLE / "bert_config.json", GOOGLE / "bert_model.ckpt", inputs, outputs)
        expected = {name: np.round(values, 8).tolist() for name, values in np.load(outputs).items()}
    EXPECTED.write_text(json.dumps(expected) + "\n")


if __name__ == "__main__":
    main()
