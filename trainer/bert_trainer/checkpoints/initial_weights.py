"""Initial weights of a run: another run's checkpoint, or a Hugging Face model folder.

Only for the start of a run; a run that resumes has a checkpoint of its own. Heads that the source lacks stay as
initialized and are named. A shape that differs is an error, never truncated, with one exception: the token table's
padding rows, which round its size up, and whose number differs from run to run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from bert_trainer.checkpoints.checkpoint import Checkpoint, find_latest_valid, read_checkpoint
from bert_trainer.checkpoints.huggingface_import import read_model_folder
from bert_trainer.config.run_config import InitialCheckpoint
from bert_trainer.dataset.tokens.wordpiece import Vocabulary, read_vocabulary
from bert_trainer.errors import InputError, TrainerError
from bert_trainer.model.bert import Bert
from bert_trainer.parallel.flat_parameters import FlatParameters

# The source may lack these: the encoder is what is expensive to train.
_HEADS = ("pooler.", "mlm_transform.", "mlm_norm.", "mlm_bias", "nsp.")
_TOKEN_TABLE = "embeddings.tokens.weight"
# Their rows are vocabulary entries, and padding behind them.
_BY_ENTRY = (_TOKEN_TABLE, "mlm_bias")
# Settings that change what the same tensors compute.
_SETTINGS = ("architecture", "num_attention_heads", "hidden_act")


@dataclass(frozen=True, slots=True)
class _Source:
    """The source's tensors, by our names; a tensor without a counterpart here keeps its own name."""

    path: Path
    tensors: Mapping[str, Tensor]
    spell: Callable[[str], str]
    """Translates our name into the source's, for messages."""


@dataclass(frozen=True, slots=True)
class _Fitted:
    """Tensors that fit the model, without padding rows."""

    tensors: Mapping[str, Tensor]
    fresh: list[str]
    """Parameters that the source does not hold, by our names."""
    unused: list[str]
    """Tensors of heads that this model does not have, by our names."""


def load(
    start: InitialCheckpoint,
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
        if start.format == "huggingface":
            return _load_huggingface(path, start.load, model, vocabulary, parameters), 0
        return _load_checkpoint(path, start.load, model, parameters, moments)
    except OSError as error:
        raise InputError(
            f"initial_checkpoint.path: {path}: cannot be read ({error.strerror})",
            hint="check that rank 0's machine sees it and may read it",
        ) from error


def _load_huggingface(path: Path, what: str, model: Bert, vocabulary: Vocabulary, parameters: FlatParameters) -> str:
    tensors, spell = read_model_folder(path, model)
    if what == "none":
        return f"{path} can be read; nothing was loaded from it"
    source = _Source(path, tensors, spell)
    beyond_is_padding = _check_vocabulary_file(path / "vocab.txt", vocabulary)
    if not beyond_is_padding:
        _check_entries(source, model)
    fitted = _fit(source, model)
    _copy(fitted, parameters.named(parameters.values))
    return _describe("weights", path, fitted)


def _load_checkpoint(
    path: Path, what: str, model: Bert, parameters: FlatParameters, moments: Mapping[str, Tensor]
) -> tuple[str, int]:
    checkpoint = _find_checkpoint(path)
    if what == "none":
        return f"{checkpoint.path} is valid; nothing was loaded from it", 0
    _check_settings(checkpoint.path, model)
    loaded = checkpoint.load()
    source = _Source(checkpoint.path, loaded["model"], str)
    _check_entries(source, model)
    fitted = _fit(source, model)
    _copy(fitted, parameters.named(parameters.values))
    if what == "weights":
        return _describe("weights", checkpoint.path, fitted), 0
    for part, flat in moments.items():
        _copy(_fit(_Source(checkpoint.path, loaded[part], str), model), parameters.named(flat))
    # Heads that the source lacks start with zero moments, which need bias correction from step 1.
    steps = 0 if fitted.fresh else checkpoint.position.moment_steps or checkpoint.position.num_applied
    return _describe("weights and moments", checkpoint.path, fitted), steps


def _find_checkpoint(path: Path) -> Checkpoint:
    """Return the checkpoint at a path, or the latest valid one of a run or of its checkpoints folder."""
    if (path / "manifest.json").exists():
        try:
            return read_checkpoint(path)
        except TrainerError as error:
            raise InputError(
                f"initial_checkpoint.path: {error}", hint="name another checkpoint, or the output folder of its run"
            ) from error
    for root in (path / "checkpoints", path):
        if root.is_dir() and (found := find_latest_valid(root)) is not None:
            return found
    raise InputError(
        f"initial_checkpoint.path: {path}: got no valid checkpoint there; allowed: a folder that holds manifest.json, "
        "a checkpoints folder, or the output folder of a run",
        hint="check the path; a model folder of Hugging Face needs initial_checkpoint.format 'huggingface'",
    )


def _check_settings(path: Path, model: Bert) -> None:
    """Refuse a run whose frozen configuration says that the same tensors compute something else.

    A checkpoint that was copied out of its run has no such file beside it, and is taken at its sizes.
    """
    try:
        theirs = json.loads((path.parent.parent / "run-config.json").read_text())["model"]
        found = {name: theirs[name] for name in _SETTINGS}
    except (OSError, ValueError, KeyError, TypeError):
        return
    for name, got in found.items():
        wanted = getattr(model.config, name)
        if got != wanted:
            raise InputError(
                f"{path}: its run has model.{name} {got!r}; allowed: {wanted!r}, this run's",
                hint=f"set model.{name} to {got!r}, or start from another checkpoint",
            )


def _check_vocabulary_file(path: Path, vocabulary: Vocabulary) -> bool:
    """Compare a model folder's own vocabulary with the run's; False where it has none.

    Raises:
        InputError: they differ, so the rows of the token table belong to other tokens.
    """
    if not path.exists():
        return False
    tokens = read_vocabulary(path).tokens
    if tokens == vocabulary.tokens:
        return True
    hint = "set dataset.vocabulary_file to that file and build the shards with it"
    if len(tokens) != vocabulary.size:
        raise InputError(
            f"{path}: got {len(tokens)} entries for embeddings.tokens.weight; allowed: {vocabulary.size}, as in this "
            "run's vocabulary",
            hint=hint,
        )
    number = next(n for n, (theirs, ours) in enumerate(zip(tokens, vocabulary.tokens, strict=True)) if theirs != ours)
    raise InputError(
        f"{path}: entry {number}: got {tokens[number]!r}; allowed: {vocabulary.tokens[number]!r}, as in this run's "
        "vocabulary",
        hint=hint,
    )


def _check_entries(source: _Source, model: Bert) -> None:
    """Refuse a token table of another vocabulary size; padding rows are recognized by their zeros.

    Padding starts at zero and gets no gradient, so it stays zero; of the entries, only [PAD]'s row may be all zeros.

    Raises:
        InputError: the numbers of entries differ.
    """
    table_VD = source.tensors.get(_TOKEN_TABLE)
    if table_VD is None or table_VD.ndim != 2:
        return  # refused below, by name
    used = table_VD.any(dim=1).nonzero()
    entries = int(used[-1]) + 1 if len(used) else 0
    if entries != model.vocabulary_size:
        raise InputError(
            f"{source.path}: {source.spell(_TOKEN_TABLE)}: got {entries} vocabulary entries in {len(table_VD)} rows; "
            f"allowed: {model.vocabulary_size}, as in this run's vocabulary",
            hint="use the vocabulary that it was trained with; rows of zeros behind the last entry do not count, nor "
            "does anything behind the entries of a model folder's own vocab.txt",
        )


def _fit(source: _Source, model: Bert) -> _Fitted:
    """Match a source with the model's parameters.

    Raises:
        InputError: a tensor is missing, of another size, not finite, or nothing that the model has.
    """
    fitted, fresh = {}, []
    for name, parameter in model.named_parameters():
        tensor, allowed = source.tensors.get(name), list(parameter.shape)
        if tensor is None:
            if not name.startswith(_HEADS):
                raise InputError(
                    f"{source.path}: {source.spell(name)}: got no such tensor; allowed: shape {allowed}",
                    hint="use the model section (architecture, num_hidden_layers) that it was trained with",
                )
            fresh.append(name)
            continue
        if name in _BY_ENTRY:
            allowed[0] = model.vocabulary_size
            tensor = tensor[: allowed[0]] if tensor.ndim else tensor
        if list(tensor.shape) != allowed:
            raise InputError(
                f"{source.path}: {source.spell(name)}: got shape {list(tensor.shape)}; allowed: {allowed}, this run's",
                hint="use the model section and the vocabulary that it was trained with",
            )
        if not tensor.isfinite().all():
            raise InputError(
                f"{source.path}: {source.spell(name)}: got values that are not finite; allowed: numbers",
                hint="that training has diverged; start from an earlier checkpoint of it",
            )
        fitted[name] = tensor
    beyond = sorted(source.tensors.keys() - dict(model.named_parameters()).keys())
    unused = [name for name in beyond if name.startswith(_HEADS)]
    unknown = [name for name in beyond if name not in unused]
    if unknown:
        raise InputError(
            f"{source.path}: {', '.join(unknown[:5])}: got {len(unknown)} tensor(s) that this model has no place for; "
            "allowed: the encoder's and the pretraining heads'",
            hint="use the model section (architecture, num_hidden_layers) that it was trained with, and take heads of "
            "other tasks off",
        )
    return _Fitted(fitted, fresh, unused)


def _copy(fitted: _Fitted, views: Mapping[str, Tensor]) -> None:
    for name, tensor in fitted.tensors.items():
        # The model's own padding rows, behind the last entry, stay zero.
        views[name][: len(tensor)].copy_(tensor)


def _describe(what: str, path: Path, fitted: _Fitted) -> str:
    left = f"; left as drawn: {', '.join(fitted.fresh)}" if fitted.fresh else ""
    unused = f"; not used: {', '.join(fitted.unused)}" if fitted.unused else ""
    return f"Started from the {what} of {path}{left}{unused}"
