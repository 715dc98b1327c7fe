"""Run configurations, descriptions of models, vocabularies and ``dataset.json``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from fuzz_reader import Reader
from mutations import mutate_json

from bert_trainer.config.checks import find_problems, load_run_config
from bert_trainer.config.model_file import read_model_file
from bert_trainer.config.run_config import ModelFile
from bert_trainer.dataset.shards.dataset_info import read_dataset_info
from bert_trainer.dataset.tokens.wordpiece import SPECIAL_TOKENS, read_vocabulary

_ROOT = Path(__file__).parents[2]


def _run_configs(_: Path) -> Iterator[bytes]:
    for path in sorted((_ROOT / "tests/golden/run-config").glob("*.json")):
        yield path.read_bytes()


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


def _model_of(path: Path) -> object:
    kind = ModelFile(config_file=str(path), layer_norm_eps=1e-12, vocab_pad_multiple=8, objective=None)
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
        most_bytes=1 << 15,
    ),
    Reader(
        name="model-descriptions",
        read=_model_of,
        seeds=_model_files,
        modules=("bert_trainer.config.model_file", "bert_trainer.config.json_files"),
        leaves_out=("find_size_problems",),
        mutate=mutate_json,
        file_name="config.json",
    ),
    Reader(
        name="vocabularies",
        read=read_vocabulary,
        seeds=lambda _: iter([("\n".join([*SPECIAL_TOKENS, "a", "##b", "é"]) + "\n").encode()]),
        modules=("bert_trainer.dataset.tokens.wordpiece",),
        leaves_out=(
            *("train_vocabulary", "describe_unknown", "_normalizer", "_alphabet", "make_tokenizer", "__init__"),
            *("encode", "encode_words", "locate_words", "_encodings", "continuations", "size"),
        ),
        file_name="vocab.txt",
    ),
    Reader(
        name="dataset-info",
        read=lambda path: read_dataset_info(path.parent),
        seeds=lambda _: (path.read_bytes() for path in sorted((_ROOT / "tests/fixtures").rglob("dataset.json"))),
        modules=("bert_trainer.dataset.shards.dataset_info",),
        leaves_out=("check_complete", "find_dataset_info", "write", "files"),
        mutate=mutate_json,
        file_name="dataset.json",
    ),
)
