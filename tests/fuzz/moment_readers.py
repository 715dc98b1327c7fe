"""NVIDIA's checkpoints with the state of their optimizer, which has no names: only its order says what is whose."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from bert_trainer.checkpoints.initial_weights import read_source
from fuzz_reader import Reader
from mutations import mutate_zip
from weight_sources import nvidia_tensors, small_model

_MODEL = small_model()
_TIED = "cls.predictions.decoder.weight"


def _content() -> dict[str, Any]:
    """Return a checkpoint as FusedLAMB's trainer writes it, in half precision with its master weights."""
    tensors = {name: tensor.detach() for name, tensor in nvidia_tensors(_MODEL).items()}
    names = [name for name in tensors if name != _TIED]
    plain = [name for name in names if any(word in name for word in ("bias", "gamma", "beta", "LayerNorm"))]
    decayed = [name for name in names if name not in plain]
    order = [*decayed, *plain]
    state = {key: {"exp_avg": tensors[name], "exp_avg_sq": tensors[name].abs()} for key, name in enumerate(order)}
    keys = list(range(len(order)))
    groups = [{"params": keys[: len(decayed)], "step": 7}, {"params": keys[len(decayed) :], "step": 7}]
    return {
        "model": {name: tensor.half() for name, tensor in tensors.items()},
        "master params": [tensors[name] for name in order],
        "optimizer": {"state": state, "param_groups": groups},
    }


def _set(content: Any, path: str, value: Any) -> None:
    *names, last = [int(name) if name.isdigit() else name for name in path.strip().split("/")]
    for name in names:
        content = content[name]
    content[last] = value


def _checkpoints(_: Path) -> Iterator[bytes]:
    changes: dict[str, Any] = {
        "epoch": 3,
        "optimizer": None,
        "optimizer/param_groups": [{"params": [0]}],
        "optimizer/param_groups/0/params": ["x"],
        "optimizer/param_groups/0/step": 8,
        "optimizer/param_groups/1/step": 1.5,
        "optimizer/param_groups/1/step ": torch.tensor([7]),
        "optimizer/state/0": None,
        "optimizer/state": [],
        "optimizer/state/0/exp_avg": torch.zeros(1),
        "optimizer/state/1/exp_avg": None,
        "optimizer/state/2/exp_avg_sq": -torch.ones_like(_content()["optimizer"]["state"][2]["exp_avg_sq"]),
        "master params": None,
        "master params/0": torch.zeros(1),
        "model/bert.embeddings.word_embeddings.weight": torch.zeros(2, 2),
        "model/module.bert.pooler.dense_act.bias": torch.zeros(8),
    }
    for path, value in changes.items():
        content = _content()
        _set(content, path, value)
        yield _saved(content)
    content = _content()
    content["optimizer"]["param_groups"] = [
        {"params": group["params"], "step": torch.tensor(7.0)} for group in content["optimizer"]["param_groups"]
    ]
    yield _saved(content)
    for step in (-1, 2**60, "7", torch.zeros(2), torch.zeros(1, dtype=torch.complex64)):
        content = _content()
        for group in content["optimizer"]["param_groups"]:
            group["step"] = step
        yield _saved(content)


def _saved(content: Any) -> bytes:
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


READERS = (
    Reader(
        name="checkpoints-nvidia-moments",
        read=lambda path: read_source(path, "nvidia", _MODEL, "weightsAndOptimizer"),
        seeds=_checkpoints,
        modules=("bert_trainer.checkpoints.nvidia_import",),
        mutate=mutate_zip,
        file_name="ckpt_1.pt",
        max_bytes=1 << 17,
    ),
)
