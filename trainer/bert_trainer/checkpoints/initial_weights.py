"""Initial weights of a run: another run's checkpoint, or weights that another program has written.

Only for the start of a run; a run that resumes has a checkpoint of its own. Which reader is used is the user's word
alone; ``foreign_formats`` tells where it is the wrong one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from safetensors import SafetensorError, safe_open
from torch import Tensor

from bert_job.weights import InitialCheckpointSpec
from bert_trainer.checkpoints.checkpoint import (
    MODEL_FILE,
    OPTIMIZER_FILE,
    Checkpoint,
    find_latest_valid,
    read_checkpoint,
)
from bert_trainer.checkpoints.foreign_formats import check_format
from bert_trainer.checkpoints.huggingface_import import is_foreign_head, read_model_folder
from bert_trainer.checkpoints.nvidia_import import read_nvidia_checkpoint
from bert_trainer.checkpoints.tensor_files import check_header, tensors_by_name
from bert_trainer.checkpoints.tensorflow_import import list_optimizer_state, read_tensorflow_checkpoint
from bert_trainer.checkpoints.tensorflow_names import is_foreign_variable
from bert_trainer.checkpoints.tensorflow_prefix import describe_choice
from bert_trainer.checkpoints.weight_matching import (
    MatchedWeights,
    Source,
    copy_tensors,
    list_names,
    match_tensors,
    match_weights,
)
from bert_trainer.config.json_files import read_json_file
from bert_trainer.dataset.tokens.wordpiece import Vocabulary, find_vocabulary_file
from bert_trainer.errors import InputError, TrainerError
from bert_trainer.model.bert import Bert
from bert_trainer.model.task_model import HEAD_PREFIX
from bert_trainer.parallel.flat_parameters import FlatParameters

# Settings that change what the same tensors compute.
# Not the rotary bases, which are raised on purpose where rows become longer.
_SETTINGS = (
    *("architecture", "num_attention_heads", "hidden_activation"),
    *("attention_window", "global_attention_every"),
)

Reader = Callable[[Path, Bert, str], Source]
"""Reads what lies at a path for a model: ``weights``, ``weightsAndOptimizer``, or ``none`` to verify alone."""


def load(
    start: InitialCheckpointSpec,
    model: Bert,
    vocabulary: Vocabulary,
    parameters: FlatParameters,
    moments: Mapping[str, Tensor],
) -> tuple[str, int]:
    """Load what ``start`` names into the flat buffers.

    Returns:
        A sentence for the log, and how many updates the loaded moments have accumulated.

    Raises:
        InputError: there is nothing to load there, or it is another model's.
    """
    path = Path(start.path)
    try:
        source = read_source(path, start.format, model, start.load)
        if start.load == "none":
            return f"{source.path} can be read; nothing was loaded from it", 0
        fitted = match_weights(source, model, vocabulary)
        copy_tensors(fitted, parameters.named(parameters.values))
        if start.load == "weights":
            return _describe("weights", source, fitted), 0
        for part, flat in moments.items():
            copy_tensors(match_tensors(source, source.moments[part], model), parameters.named(flat))
    except InputError as error:
        raise InputError(f"initial_checkpoint.path: {error.message}", hint=error.hint) from error.__cause__ or error
    except OSError as error:
        raise InputError(
            f"initial_checkpoint.path: {path}: cannot be read ({error.strerror})",
            hint="check that rank 0's machine sees it and may read it",
        ) from error
    # Heads that the source lacks start with zero moments, which need bias correction from step 1.
    return _describe("weights and moments", source, fitted), 0 if fitted.fresh else source.moment_steps


def read_source(path: Path, kind: str, model: Bert, what: str = "weights") -> Source:
    """Read what lies at a path as one of ``READERS``; raises InputError where it is not that, and says what it is."""
    check_format(path, kind, READERS)
    return READERS[kind](path, model, what)


def _read_huggingface(path: Path, model: Bert, _: str) -> Source:
    tensors, spell = read_model_folder(path, model)
    return Source(
        path=path,
        tensors=tensors,
        spell=spell,
        is_foreign=is_foreign_head,
        vocabulary_file=find_vocabulary_file(path),
    )


def _read_own(path: Path, model: Bert, what: str) -> Source:
    checkpoint = _find_checkpoint(path)
    if what == "none":
        return Source(path=checkpoint.path, tensors={})
    _check_settings(checkpoint.path, model)
    for name in (MODEL_FILE, OPTIMIZER_FILE):
        # Its checksums are right, but whoever wrote the file wrote them as well.
        check_header(checkpoint.path / name)
    loaded = checkpoint.load()
    tensors = tensors_by_name(checkpoint.path / MODEL_FILE, loaded.pop("model"))
    return Source(
        path=checkpoint.path,
        tensors=tensors,
        moments={part: tensors_by_name(checkpoint.path / OPTIMIZER_FILE, held, part) for part, held in loaded.items()},
        moment_steps=checkpoint.position.moment_steps or checkpoint.position.num_applied,
    )


def _read_tensorflow(path: Path, model: Bert, _: str) -> Source:
    tensors, spell = read_tensorflow_checkpoint(path, model)
    folder = path if path.is_dir() else path.parent
    return Source(
        path=path,
        tensors=tensors,
        spell=spell,
        is_foreign=is_foreign_variable,
        note=describe_choice(path),
        vocabulary_file=find_vocabulary_file(folder),
        ignored=list_optimizer_state(path, model),
    )


READERS: Mapping[str, Reader] = MappingProxyType(
    {
        "bert-trainer": _read_own,
        "huggingface": _read_huggingface,
        "tensorflow": _read_tensorflow,
        "nvidia": read_nvidia_checkpoint,
    }
)
"""By the name of the format."""


def _find_checkpoint(path: Path) -> Checkpoint:
    """Return the checkpoint at a path, or the latest valid one of a run or of its checkpoints folder."""
    if (path / "manifest.json").exists():
        try:
            return read_checkpoint(path, is_own=False)
        except TrainerError as error:
            raise InputError(str(error), hint="name another checkpoint, or the output folder of its run") from error
    for root in (path / "checkpoints", path):
        if not root.is_dir():
            continue
        # A run that went on to fine-tune has newer ones with a task's head. Without others, they are refused by name.
        if (found := find_latest_valid(root, _is_pretraining) or find_latest_valid(root)) is not None:
            return found
    raise InputError(
        f"{path}: got no valid checkpoint there; allowed: a folder that holds manifest.json, a checkpoints folder, or "
        "the output folder of a run",
        hint="check the path; weights of other programs need their own initial_checkpoint.format",
    )


def _is_pretraining(path: Path) -> bool:
    """Return whether a checkpoint holds no task's head; true where its file cannot be read, which is told later."""
    try:
        check_header(path / MODEL_FILE)
        with safe_open(path / MODEL_FILE, framework="pt") as file:
            return not any(name.startswith((HEAD_PREFIX, f"rank0.{HEAD_PREFIX}")) for name in file.keys())  # noqa: SIM118
    except (OSError, InputError, SafetensorError):
        return True


def _check_settings(path: Path, model: Bert) -> None:
    """Refuse a run whose frozen configuration says that the same tensors compute something else.

    A checkpoint that was copied out of its run has no such file beside it, and is taken at its sizes.
    """
    try:
        theirs = read_json_file(path.parent.parent / "run-config.json")["model"]
        found = {name: theirs[name] for name in _SETTINGS}
    except (InputError, KeyError, TypeError):
        return
    for name, got in found.items():
        wanted = getattr(model.config, name)
        if got != wanted:
            raise InputError(
                f"{path}: its run has model.{name} {got!r}; allowed: {wanted!r}, this run's",
                hint=f"set model.{name} to {got!r}, or start from another checkpoint",
            )


def _describe(what: str, source: Source, fitted: MatchedWeights) -> str:
    left = f"; left as drawn: {', '.join(fitted.fresh)}" if fitted.fresh else ""
    unused = f"; not used: {list_names(fitted.unused)}" if fitted.unused else ""
    note = f"; {source.note}" if source.note else ""
    beyond = f"; {fitted.num_trained_beyond} rows behind the vocabulary left out" if fitted.num_trained_beyond else ""
    return f"Started from the {what} of {source.path}{note}{left}{unused}{beyond}"
