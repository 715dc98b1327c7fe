"""What tests have real TensorFlow do. Run by its own interpreter; imports nothing of this project but its neighbour.

    tensorflow_child.py write CONFIG PREFIX [--slots] [--shards N]    a checkpoint with Google's names, by a Saver
    tensorflow_child.py rewrite CONFIG PREFIX OTHER                   the same variables, by a Saver of its own
    tensorflow_child.py compute CONFIG PREFIX INPUTS OUTPUTS          hidden states and logits of a checkpoint, .npz
    tensorflow_child.py compare PREFIX OTHER                          bit by bit, without optimizer state

CONFIG is a ``bert_config.json``; weights follow from a fixed seed.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import tensorflow as tf
from numpy_bert import NumpyBert

v1 = tf.compat.v1
SLOTS = ("adam_m", "adam_v")


def shapes_of(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return Google's variables, in the order in which its graph creates them."""
    size, inner = config["hidden_size"], config["intermediate_size"]
    shapes: dict[str, tuple[int, ...]] = {}

    def dense(scope: str, inputs: int, outputs: int) -> None:
        shapes.update({f"{scope}/kernel": (inputs, outputs), f"{scope}/bias": (outputs,)})

    def norm(scope: str) -> None:
        shapes.update({f"{scope}/LayerNorm/beta": (size,), f"{scope}/LayerNorm/gamma": (size,)})

    for table, rows in (
        ("word", "vocab_size"),
        ("token_type", "type_vocab_size"),
        ("position", "max_position_embeddings"),
    ):
        shapes[f"bert/embeddings/{table}_embeddings"] = (config[rows], size)
    norm("bert/embeddings")
    for number in range(config["num_hidden_layers"]):
        scope = f"bert/encoder/layer_{number}"
        for name in ("query", "key", "value"):
            dense(f"{scope}/attention/self/{name}", size, size)
        dense(f"{scope}/attention/output/dense", size, size)
        norm(f"{scope}/attention/output")
        dense(f"{scope}/intermediate/dense", size, inner)
        dense(f"{scope}/output/dense", inner, size)
        norm(f"{scope}/output")
    dense("bert/pooler/dense", size, size)
    dense("cls/predictions/transform/dense", size, size)
    norm("cls/predictions/transform")
    shapes["cls/predictions/output_bias"] = (config["vocab_size"],)
    shapes["cls/seq_relationship/output_weights"] = (2, size)
    shapes["cls/seq_relationship/output_bias"] = (2,)
    return shapes


def draw(name: str, shape: tuple[int, ...], rng: np.random.Generator, deviation: float) -> Any:
    """Draw values that all count: no bias is 0, and weights are large enough to bend activations."""
    values = rng.standard_normal(shape, np.float32)
    if len(shape) == 1:
        return np.float32(0.1) * values + np.float32(name.endswith("/gamma"))
    return np.float32(deviation) * values


def write(config: dict[str, Any], prefix: str, *, slots: bool, shards: int) -> None:
    """Have a Saver write the checkpoint; optimizer state is 0 but for the step."""
    rng = np.random.default_rng(20181011)
    deviation = 1.0 / config["hidden_size"] ** 0.5
    # A variable's device decides its data file.
    devices = v1.ConfigProto(device_count={"CPU": shards}, intra_op_parallelism_threads=1)
    weights, states = [], []
    with tf.Graph().as_default(), v1.Session(config=devices) as session:
        for number, (name, shape) in enumerate(shapes_of(config).items()):
            with tf.device(f"/cpu:{number % shards}"):
                weights.append(v1.get_variable(name, shape, initializer=tf.zeros_initializer()))
                names = [f"{name}/{slot}" for slot in SLOTS] if slots else []
                states += [v1.get_variable(slot, shape, initializer=tf.zeros_initializer()) for slot in names]
        step = v1.train.get_or_create_global_step() if slots else None
        # Only now: every run of a session looks at the whole graph again where that has grown.
        session.run([state.initializer for state in states])
        for variable in weights:
            shape = tuple(variable.shape.as_list())
            variable.load(draw(variable.op.name, shape, rng, deviation), session)
        if step is not None:
            step.load(28252, session)
        v1.train.Saver(sharded=shards > 1).save(session, prefix, write_meta_graph=False)


def rewrite(config: dict[str, Any], prefix: str, other: str) -> None:
    """Have a Saver write the variables that a checkpoint holds."""
    reader = tf.train.load_checkpoint(prefix)
    with tf.Graph().as_default(), v1.Session() as session:
        for name, shape in shapes_of(config).items():
            variable = v1.get_variable(name, shape, initializer=tf.zeros_initializer())
            variable.load(reader.get_tensor(name), session)
        v1.train.Saver().save(session, other, write_meta_graph=False)


def compute(config: dict[str, Any], prefix: str, inputs: str, outputs: str) -> None:
    """Read the variables with TensorFlow and compute with them in NumPy."""
    given = np.load(inputs)
    reader = tf.train.load_checkpoint(prefix)
    bert = NumpyBert(reader.get_tensor, num_layers=config["num_hidden_layers"], num_heads=config["num_attention_heads"])
    hidden_BTD = bert.encode(given["ids"], given["segments"], given["mask"])
    np.savez(
        outputs,
        hidden=hidden_BTD[given["mask"] > 0],
        masked_lm=bert.masked_lm_logits(hidden_BTD[given["masked_row"], given["masked_column"]]),
        next_sentence=bert.next_sentence_logits(hidden_BTD),
    )


def compare(prefix: str, other: str) -> None:
    """Fail unless both checkpoints hold the same weights."""
    first, second = tf.train.load_checkpoint(prefix), tf.train.load_checkpoint(other)
    names = {name for name in first.get_variable_to_shape_map() if not name.endswith(SLOTS) and name != "global_step"}
    assert names == set(second.get_variable_to_shape_map()), "they hold other variables"
    for name in sorted(names):
        ours, theirs = first.get_tensor(name), second.get_tensor(name)
        assert ours.dtype == theirs.dtype == np.float32, name
        assert ours.shape == theirs.shape, name
        assert ours.tobytes() == theirs.tobytes(), name
    print(len(names))


def main() -> None:
    """Do what the first argument says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["write", "rewrite", "compute", "compare"])
    parser.add_argument("arguments", nargs="+")
    parser.add_argument("--slots", action="store_true")
    parser.add_argument("--shards", type=int, default=1)
    given = parser.parse_args()
    if given.what == "compare":
        compare(*given.arguments)
        return
    config = json.loads(Path(given.arguments[0]).read_text())
    if given.what == "write":
        write(config, given.arguments[1], slots=given.slots, shards=given.shards)
    elif given.what == "rewrite":
        rewrite(config, *given.arguments[1:])
    else:
        compute(config, *given.arguments[1:])


if __name__ == "__main__":
    main()
