"""Keep two small checkpoints that TensorFlow writes, and what they compute, for tests that run without TensorFlow.

    BERT_TEST_TENSORFLOW=$(tools/tensorflow.sh) .venv/bin/python tools/keep_tensorflow.py

Writes ``tests/fixtures/tensorflow/`` (60 kB): ``google``, ``mlperf``, and ``expected.json`` with hidden states and
logits, which NumPy has computed in double precision from variables that TensorFlow has read.
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

from tensorflow_cases import EXPECTED, GOOGLE, KEPT, MLPERF, SMALL, rows_of, run_tensorflow, write_inputs  # noqa: E402

TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(SMALL["vocab_size"] - 5))]

TRAINED_IN = Path("/tmp/kept-tensorflow")
"""What the state file names, and whoever reads the checkpoints does not have."""


def main() -> None:
    """Write all of it anew."""
    shutil.rmtree(KEPT, ignore_errors=True)
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
