"""Run configurations, descriptions of models, vocabularies, ``dataset.json`` and the record of a run's shards."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bert_job.run_config import ModelFile
from bert_trainer.config.checks import find_problems, load_run_config
from bert_trainer.config.model_file import read_model_file
from bert_trainer.dataset.shards.dataset_info import read_dataset_info
from bert_trainer.dataset.tokens.byte_bpe import train_byte_bpe
from bert_trainer.dataset.tokens.wordpiece import SPECIAL_TOKENS, read_vocabulary
from bert_trainer.training.shard_record import SHARDS_FILE, read_record
from fuzz_reader import Reader
from mutations import each_changed, mutate_json

_ROOT = Path(__file__).parents[2]


def _run_configs(_: Path) -> Iterator[bytes]:
    for path in sorted((_ROOT / "tests/golden/run-config").glob("*.json")):
        yield path.read_bytes()

    whole = json.loads((_ROOT / "tests/golden/run-config/05-to-a-target.json").read_bytes())
    yield from each_changed(whole, _CHANGES)
    tuned = json.loads((_ROOT / "tests/golden/run-config/06-fine-tuning.json").read_bytes())
    at = next(number for number, stage in enumerate(tuned["stages"]) if stage["kind"] == "finetune")
    changes = {
        "name": tuned["stages"][0]["name"],
        "kind": "export",
        "task": "spans",
        "data": {"folder": "a", "train": "b"},
    }
    yield from each_changed(tuned, {f"stages/{at}/{key}": value for key, value in changes.items()})
    yield from (b"", b"[]", b"{", b'{"contract_version": 2}', b'{"contract_version": "1"}', b"[" * 5000)


_CHANGES: dict[str, Any] = {
    "contract_version": 0,
    "own": 1,
    "seed": "x",
    "model/num_attention_heads": 7,
    "model/own\x1b": 1,
    "model/architecture": "distilbert",
    "reduction/compression": "fp16",
    "precision": "fp64",
    "engine": "ort",
    "initial_checkpoint": {"format": "huggingface", "path": "a", "load": "weightsAndOptimizer"},
    "profile_steps": {"first": 9, "last": 3, "stage": "none"},
    "world/ranks": 100_000,
    "stages/0/text": None,
    "stages/0/masking": "dynamic",
    "stages/0/held_out_fraction": 0.0,
    "stages/1/name": "prepare",
    "stages/1/sequence_length": 4096,
    "stages/1/max_predictions_per_sequence": 127,
    "stages/1/length": {"steps": 5, "epochs": 1},
    "stages/1/warmup": {"steps": 10**9},
    "stages/1/micro_batch_size": "auto",
    "stages/1/loss_normalization": "microBatchMean",
    "stages/1/data_range": {"start": 0.5, "end": 0.5},
    "stages/1/evaluation": None,
    "stages/1/evaluation/every_samples": 5,
    "stages/1/evaluation/start_epochs": 1,
    "stages/1/evaluation/max_predictions_per_sequence": 127,
    "stages/1/evaluation/data_range": {"start": 0.0, "end": 0.9},
    "stages/2": {"kind": "export", "name": "e", "format": "tensorflow"},
}
"""Of a document with a target: each breaks one rule, or a field."""


def _model_files(_: Path) -> Iterator[bytes]:
    published = {
        "vocab_size": 30522,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "initializer_range": 0.02,
    }
    yield json.dumps(published).encode()
    yield json.dumps({**published, "model_type": "bert", "layer_norm_eps": 1e-12, "pad_token_id": 0}).encode()
    distil = {"dim": 768, "n_layers": 6, "n_heads": 12, "hidden_dim": 3072, "vocab_size": 30522, "dropout": 0.1}
    more = {"max_position_embeddings": 512, "activation": "gelu", "attention_dropout": 0.1, "initializer_range": 0.02}
    yield json.dumps({**distil, **more, "model_type": "distilbert"}).encode()
    modern = {name: published[name] for name in published if name not in ("type_vocab_size", "hidden_act")}
    modern |= {"model_type": "modernbert", "hidden_activation": "gelu", "local_attention": 128}
    kinds = ["full_attention", *["sliding_attention"] * 2] * 4
    thetas = {"full_attention": {"rope_type": "default", "rope_theta": 160000.0}, "sliding_attention": {"type": "yarn"}}
    yield json.dumps(
        {**modern, "layer_types": kinds, "rope_parameters": {"full_attention": thetas["full_attention"]}}
    ).encode()
    yield from each_changed(
        modern,
        {
            "layer_types": kinds[1:],
            "rope_parameters": thetas,
            "rope_scaling": {"factor": 2},
            "global_rope_theta": None,
            "global_attn_every_n_layers": 0,
            "norm_bias": True,
        },
    )
    changes = {"model_type": "gpt2", "hidden_size": 1.5, "vocab_size": ..., "hidden_act": "tanh", "layer_norm_eps": 2}
    yield from each_changed(published, {**changes, "position_embedding_type": "relative_key"})
    yield from (b"", b"[]", b"{", b"[" * 5000, b'{"model_type": "\\u001b"}')


def _vocabularies(_: Path) -> Iterator[bytes]:
    lines = [*SPECIAL_TOKENS, "a", "##b", "é"]
    yield ("\n".join(lines) + "\n").encode()
    for spoiled in ([], [*lines, "", "x"], [*lines, "a", "a", "##b"], lines[1:], [*lines, "\x1b", "\x1b"]):
        yield "\n".join(spoiled).encode()
    yield "\r\n".join(lines).encode("latin-1")


def _byte_bpes(_: Path) -> Iterator[bytes]:
    whole = json.loads(train_byte_bpe(["a bb ccc", "b cc"] * 3, size=264))
    old = [" ".join(pair) for pair in whole["model"]["merges"]]
    parts = [{"type": "Digits", "individual_digits": True}, whole["pre_tokenizer"]]
    space = {"id": 264, "content": "  ", "special": False, "single_word": False, "lstrip": False, "rstrip": True}
    yield json.dumps(whole).encode()
    changes = {
        "model/merges": old,
        "model/merges ": [["a"]],
        "model/type": "Unigram",
        "model/unk_token": "<unk>",
        "model/byte_fallback": True,
        "model/vocab/b": 0,
        "model/vocab/far": 1 << 40,
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Strip"}]},
        "normalizer/type": 3,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": parts},
        "pre_tokenizer/pretokenizers": 3,
        "post_processor": None,
        "post_processor/single": [],
        "added_tokens/3/special": False,
        "added_tokens/4/content": "[M]",
        "added_tokens": [*whole["added_tokens"], {**space, "normalized": True}],
        "truncation": {"direction": "Left"},
    }
    yield from each_changed(whole, changes)
    yield from (b"", b"[]", b"{", b"[" * 5000, b"\xff")


def _infos(_: Path) -> Iterator[bytes]:
    for path in sorted((_ROOT / "tests/fixtures").rglob("dataset.json")):
        yield path.read_bytes()
        yield from each_changed(json.loads(path.read_bytes()), {"format": 2, "own": "\x1b", "settings": None})
    yield from (b"", b"[]", b"{", b"[" * 5000, b"\xff")


def _shard_records(_: Path) -> Iterator[bytes]:
    file = {"rows": 40, "bytes": 4096, "content": "0a1b", "modified_ns": 1}
    old = {"rows": 30, "bytes": 2048, "content": None}  # as 0.2.0 wrote it
    files = {"training_0000.hdf5": file, "training_0001.hdf5": old}
    whole = {"format": 1, "stages": {"phase1": {"folder": "seq_len_128_max_pred_20", "files": files}}}
    yield json.dumps(whole).encode()
    entry = "stages/phase1/files/training_0000.hdf5"
    changes = {
        "stages": [],
        "stages/phase1": None,
        "stages/phase1/folder": 3,
        "stages/phase1/files": ...,
        entry: "x",
        f"{entry}/rows": "x",
        f"{entry}/rows ": -1,
        f"{entry}/bytes": float("inf"),
        f"{entry}/content": 3,
        f"{entry}/modified_ns": "x",
    }
    yield from each_changed(whole, changes)
    yield from (b"", b"[]", b"{", b"\xff")


def _model_of(path: Path) -> object:
    kind = ModelFile(config_file=str(path), layer_norm_epsilon=1e-12, vocabulary_pad_multiple=8, objective=None)
    return read_model_file(kind)


READERS = (
    Reader(
        name="run-configurations",
        read=lambda path: find_problems(load_run_config(path)),
        seeds=_run_configs,
        modules=("bert_trainer.config.checks", "bert_trainer.config.json_files"),
        leaves_out=("resolve_model", "parse_profile_steps"),
        mutate=mutate_json,
        file_name="run-config.json",
        advises=False,
        max_bytes=1 << 15,
    ),
    Reader(
        name="model-descriptions",
        read=_model_of,
        seeds=_model_files,
        modules=("bert_trainer.config.model_file", "bert_trainer.config.json_files"),
        mutate=mutate_json,
        file_name="config.json",
    ),
    Reader(
        name="vocabularies",
        read=read_vocabulary,
        seeds=_vocabularies,
        modules=("bert_trainer.dataset.tokens.wordpiece",),
        leaves_out=(
            *("train_vocabulary", "describe_unknown", "_normalizer", "_alphabet", "make_tokenizer", "__init__"),
            *("encode", "encode_words", "locate_words", "_encodings", "continuations", "size", "settings"),
            *("find_vocabulary_file", "vocabulary_path", "_as_lines", "_read_json", "read_tokens"),
            *("split", "file", "is_byte_level", "_trimmed"),
            "check_unknown",
            *("__iter__", "_shortened", "_short_words", "_has_long_run"),
        ),
        file_name="vocab.txt",
    ),
    Reader(
        name="byte-level-bpe",
        read=read_vocabulary,
        seeds=_byte_bpes,
        modules=("bert_trainer.dataset.tokens.tokenizer_json", "bert_trainer.config.json_files"),
        only=(
            *("read_tokenizer_json", "_read_byte_bpe", "_may_be_cut", "_check_special", "_tokens_of", "_parts"),
            *("check_added", "_check_post_processor", "_added"),
        ),
        mutate=mutate_json,
        file_name="tokenizer.json",
        max_bytes=1 << 15,
    ),
    Reader(
        name="dataset-info",
        read=lambda path: read_dataset_info(path.parent),
        seeds=_infos,
        modules=("bert_trainer.dataset.shards.dataset_info",),
        leaves_out=("check_complete", "refuse_half_built", "_not_complete", "find_dataset_info", "write", "files"),
        mutate=mutate_json,
        file_name="dataset.json",
    ),
    Reader(
        name="shard-records",
        read=lambda path: read_record(path.parent),
        seeds=_shard_records,
        modules=("bert_trainer.training.shard_record",),
        leaves_out=("of", "write_record"),
        mutate=mutate_json,
        file_name=SHARDS_FILE,
    ),
)
