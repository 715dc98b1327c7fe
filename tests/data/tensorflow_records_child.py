"""Reads TFRecord files with real TensorFlow, for a test that starts this file with TensorFlow's own interpreter.

``python tensorflow_records_child.py T P FILE...`` prints one JSON line per file: its rows, every field of each, as
Google's ``run_pretraining.py`` parses them, and whether TensorFlow's deterministic serialization gives the same bytes.
"""

from __future__ import annotations

import json
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import tensorflow as tf


def main(tokens: int, predictions: int, paths: list[str]) -> None:
    """Print the rows of each file."""
    features = {
        "input_ids": tf.io.FixedLenFeature([tokens], tf.int64),
        "input_mask": tf.io.FixedLenFeature([tokens], tf.int64),
        "segment_ids": tf.io.FixedLenFeature([tokens], tf.int64),
        "masked_lm_positions": tf.io.FixedLenFeature([predictions], tf.int64),
        "masked_lm_ids": tf.io.FixedLenFeature([predictions], tf.int64),
        "masked_lm_weights": tf.io.FixedLenFeature([predictions], tf.float32),
        "next_sentence_labels": tf.io.FixedLenFeature([1], tf.int64),
    }
    for path in paths:
        rows, same = [], True
        for record in tf.data.TFRecordDataset(path):
            parsed = tf.io.parse_single_example(record, features)
            rows.append({name: value.numpy().tolist() for name, value in parsed.items()})
            example = tf.train.Example.FromString(record.numpy())
            same &= sorted(example.features.feature) == sorted(features)
            same &= example.SerializeToString(deterministic=True) == record.numpy()
        print(json.dumps({"rows": rows, "same_bytes": same}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
