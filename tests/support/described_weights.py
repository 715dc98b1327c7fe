"""A folder as Hugging Face's with everything but tensors: for what looks at names, sizes and the vocabulary alone."""

from __future__ import annotations

import json
from pathlib import Path

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat"]
SIZES = {
    "model_type": "bert",
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "initializer_range": 0.02,
    "vocab_size": len(WORDS),
}


def describe_weights(folder: Path) -> Path:
    """Write the files of the folder, and return it."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(SIZES))
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    (folder / "model.safetensors").touch()
    return folder
