"""Import of NVIDIA's checkpoints: ``ckpt_<step>.pt`` of DeepLearningExamples (2020, 2022), MLPerf's ``phase2_ckpt``.

One dictionary: ``model`` with Hugging Face's names but for three layers that are fused with their activation, and for
MLPerf's fused attention; ``optimizer``, the state dictionary of apex's FusedLAMB; ``master params``, the fp32 copies of
rounded weights in the optimizer's order. ``files``, ``epoch`` and ``grad_scaler`` are of no use here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bert_job.foreign_text import printable
from bert_trainer.checkpoints.foreign_formats import newest_nvidia_file
from bert_trainer.checkpoints.huggingface_export import huggingface_name
from bert_trainer.checkpoints.huggingface_import import current_name, is_foreign_head, translate, unwrap, without_copies
from bert_trainer.checkpoints.tensor_files import read_pickled, scalar, tensors_by_name
from bert_trainer.checkpoints.weight_matching import Source, is_of_size
from bert_trainer.dataset.tokens.wordpiece import find_vocabulary_file
from bert_trainer.errors import InputError
from bert_trainer.model.bert import Bert

_ROW_MULTIPLE = 8
"""NVIDIA's models round the rows of the token table up to this; they do not mask the rest, which is trained."""
# Theirs to Hugging Face's.
_RENAMED = (
    (re.compile(r"\.dense_act\."), ".dense."),
    (re.compile(r"\.multi_head_attention\.([qkv])_(weight|bias)$"), r".self.\1.\2"),
    (re.compile(r"\.self\.q\."), ".self.query."),
    (re.compile(r"\.self\.k\."), ".self.key."),
    (re.compile(r"\.self\.v\."), ".self.value."),
    (re.compile(r"\.multi_head_attention\.out_proj_(weight|bias)$"), r".output.dense.\1"),
    (re.compile(r"\.attention\.layer_norm\.(weight|bias)$"), r".attention.output.LayerNorm.\1"),
)
# Parameters that their optimizer keeps in a second group, without weight decay: by their names for them, which for
# fused attention's layer_norm.weight say something else than Hugging Face's.
_NOT_DECAYED = ("bias", "gamma", "beta", "LayerNorm")
_HALF = (torch.float16, torch.bfloat16)
_MOMENTS = {"first_moment": "exp_avg", "second_moment": "exp_avg_sq"}
_WEIGHTS_ALONE = "write load: weights, which starts with moments of 0"


def read_nvidia_checkpoint(path: Path, model: Bert, what: str = "weights") -> Source:
    """Read a checkpoint, or of a folder the one of the highest phase and number.

    Args:
        path: The file or the folder.
        model: Gives the names that are looked for.
        what: ``weightsAndOptimizer`` reads the moments as well.

    Raises:
        InputError: there is none, it holds an object that would run code, or what was asked for is not sound.
    """
    file, note = _choose_file(path)
    content = read_pickled(file)
    # MLPerf's converted start and bare state dictionaries have no other entries.
    bare = not (isinstance(content, Mapping) and isinstance(content.get("model"), Mapping))
    held = tensors_by_name(file, content if bare else content["model"], "" if bare else "model")
    held, _ = unwrap(file, held, "bert")
    renamed = {_rename(name): tensor for name, tensor in held.items()}
    plain = {current_name(_rename(name)) for name in held if any(word in name for word in _NOT_DECAYED)}
    if len(renamed) != len(held):
        raise InputError(f"{file}: model: got two tensors of one name; allowed: one", hint="save one model alone")
    # In the order of the optimizer: tied copies come after their originals and are no parameters of their own.
    weights = without_copies(file, renamed, model)
    optimizer = {} if bare else content.get("optimizer")
    # Those that fit no model of these sizes are refused by name, together; nothing is computed with them before.
    is_sound = is_of_size(translate(weights, model), model, is_foreign_head)
    if is_sound and not bare and content.get("master params") is not None:
        masters = _from_masters(file, weights, plain, content["master params"], _groups(optimizer))
        if any(not _is_same(masters[name], tensor) for name, tensor in weights.items()):
            note = f"{note}; " * bool(note) + "with the fp32 master weights"
        weights = masters
    moments: dict[str, dict[str, Tensor]] = {}
    steps = 0
    if is_sound and what == "weightsAndOptimizer":
        moments, steps = _read_moments(file, weights, plain, optimizer)
    architecture = model.config.architecture
    if architecture != "bert":
        raise InputError(f"{file}: is of model.architecture 'bert'; allowed: {architecture!r}, this run's")
    return Source(
        path=file,
        tensors=translate(weights, model),
        spell=lambda name: huggingface_name(name, architecture),
        is_foreign=is_foreign_head,
        moments={part: translate(named, model) for part, named in moments.items()},
        moment_steps=steps,
        vocabulary_file=find_vocabulary_file(file.parent),
        row_multiple=_ROW_MULTIPLE,
        ignored=() if bare else sorted(str(key) for key in content if key != "model"),
        note=note,
    )


def _choose_file(path: Path) -> tuple[Path, str]:
    if not path.is_dir():
        return path, ""
    names = [entry.name for entry in path.iterdir()]
    newest = newest_nvidia_file(names)
    if newest is None:
        raise InputError(
            f"{path}: got no checkpoint of NVIDIA's there; allowed: a folder with ckpt_<step>.pt or "
            "phase2_ckpt_<samples>.pt, or the path of such a file",
            hint="name the file itself where it is called otherwise",
        )
    others = sum(newest_nvidia_file([name]) is not None for name in names) - 1
    return path / newest, f"the newest of {others + 1} in its folder" if others else ""


def _rename(name: str) -> str:
    for pattern, replacement in _RENAMED:
        name = pattern.sub(replacement, name)
    return name


def _groups(optimizer: Any) -> list[list[Any]]:
    """Return the optimizer's parameters by group, as its state names them; empty where it says nothing sensible."""
    groups = optimizer.get("param_groups") if isinstance(optimizer, Mapping) else None
    if not isinstance(groups, Sequence) or not all(isinstance(group, Mapping) for group in groups):
        return []
    keys = [group.get("params") for group in groups]
    if not all(isinstance(group, list) and all(type(key) is int for key in group) for group in keys):
        return []
    return keys


def _in_order(names: Iterable[str], plain: Set[str], sizes: Sequence[int]) -> list[str] | None:
    """Return names in the order of an optimizer with groups of these sizes; None where they are grouped otherwise.

    plain: the names of what is not decayed.
    """
    listed = list(names)
    decayed = [name for name in listed if name not in plain]
    others = [name for name in listed if name in plain]
    if list(sizes) == [len(decayed), len(others)]:
        return [*decayed, *others]
    return listed if list(sizes) == [len(listed)] else None


def _from_masters(
    file: Path, weights: Mapping[str, Tensor], plain: Set[str], masters: Any, groups: list[list[Any]]
) -> dict[str, Tensor]:
    """Return the fp32 copies of weights.

    Raises:
        InputError: they are not copies of these weights: rounded, each has to be its weight bit by bit.
    """
    listed = list(masters) if isinstance(masters, Sequence) else []
    named = tensors_by_name(file, dict(enumerate(listed)), "master params") if listed else {}
    order = _in_order(weights, plain, [len(group) for group in groups])
    order = order or _in_order(weights, plain, _two_groups(weights, plain))
    copies = dict(zip(order or (), named.values(), strict=False))
    if len(listed) != len(weights) or any(not _rounds_to(copies[name], tensor) for name, tensor in weights.items()):
        raise InputError(
            f"{file}: master params: got {len(listed)} tensors that are not the fp32 copies of its {len(weights)} "
            "weights; allowed: one for each, which rounds to it, in the optimizer's order",
            hint="save it anew without 'master params' to start from the weights themselves",
        )
    return copies


def _is_same(copy: Tensor, tensor: Tensor) -> bool:
    return copy.dtype == tensor.dtype and torch.equal(copy, tensor)


def _rounds_to(copy: Tensor, tensor: Tensor) -> bool:
    if copy.dtype != torch.float32 or not tensor.is_floating_point():
        return False
    if tensor.dtype in _HALF:
        return torch.equal(copy.to(tensor.dtype), tensor)
    # apex's level O2 stores its half weights as float32.
    return torch.equal(copy.to(tensor.dtype), tensor) or any(
        torch.equal(copy.to(half).to(tensor.dtype), tensor) for half in _HALF
    )


def _two_groups(weights: Mapping[str, Tensor], plain: Set[str]) -> list[int]:
    decayed = len(weights.keys() - plain)
    return [decayed, len(weights) - decayed]


def _read_moments(
    file: Path, weights: Mapping[str, Tensor], plain: Set[str], optimizer: Any
) -> tuple[dict[str, dict[str, Tensor]], int]:
    """Return both moments by name, and the updates that they have accumulated.

    The state has no names, only the optimizer's order: it is taken where groups, number and every shape agree.

    Raises:
        InputError: they do not; the message says what.
    """
    groups = _groups(optimizer)
    order = _in_order(weights, plain, [len(group) for group in groups])
    if order is None:
        raise InputError(
            f"{file}: optimizer: got parameter groups of {[len(group) for group in groups]}; allowed: "
            f"{_two_groups(weights, plain)}, the weights with and without decay, so that moments can be told apart",
            hint=_WEIGHTS_ALONE,
        )
    state = optimizer.get("state")
    keys = [key for group in groups for key in group]
    if not isinstance(state, Mapping) or any(not isinstance(state.get(key), Mapping) for key in keys):
        raise InputError(
            f"{file}: optimizer.state: got no entry for some of its {len(keys)} parameters; allowed: one for each",
            hint=_WEIGHTS_ALONE,
        )
    moments: dict[str, dict[str, Tensor]] = {}
    for part, theirs in _MOMENTS.items():
        held = {name: state[key].get(theirs) for name, key in zip(order, keys, strict=True)}
        for name, moment in held.items():
            got = list(moment.shape) if isinstance(moment, Tensor) else type(moment).__name__
            if got != list(weights[name].shape):
                raise InputError(
                    f"{file}: optimizer.state: {theirs} of {printable(name)[:200]}: got {got}; allowed: "
                    f"{list(weights[name].shape)}, the weight's shape",
                    hint=_WEIGHTS_ALONE,
                )
        moments[part] = tensors_by_name(file, held, f"optimizer.state: {theirs}")
    for name, squares in moments["second_moment"].items():
        if squares.is_floating_point() and squares.numel() and (least := squares.float().min().item()) < 0:
            raise InputError(
                f"{file}: optimizer.state: exp_avg_sq of {printable(name)[:200]}: got {least:g}; allowed: 0 or more, "
                "as of squares",
                hint=_WEIGHTS_ALONE,
            )
    # apex counts by group, PyTorch's own optimizers by parameter.
    held_steps = [
        _num_steps(file, group.get("step", state[key].get("step", 0)))
        for group in optimizer["param_groups"]
        for key in group["params"]
    ]
    if len(set(held_steps)) > 1:
        got = " and ".join(str(steps) for steps in sorted(set(held_steps))[:2])
        raise InputError(
            f"{file}: optimizer: step: got {got}; allowed: the same for all of its parameters", hint=_WEIGHTS_ALONE
        )
    return moments, held_steps[0]


def _num_steps(file: Path, steps: Any) -> int:
    steps = scalar(f"{file}: optimizer: step", steps)
    if isinstance(steps, float) and steps.is_integer():
        steps = int(steps)
    if type(steps) is not int or not 0 <= steps < 2**53:
        raise InputError(f"{file}: optimizer: step: got {steps!r:.60}; allowed: a whole number", hint=_WEIGHTS_ALONE)
    return steps
