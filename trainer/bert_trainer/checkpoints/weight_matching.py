"""Accounts for every tensor of a source of weights: it fits a parameter of the model, or is named in one error.

Heads that the source lacks as a whole stay as initialized and are named. A shape that differs is an error, never
truncated, with one exception: the token table's padding rows, which round its size up, and whose number differs from
program to program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor

from bert_job.foreign_text import printable
from bert_trainer.checkpoints.description import MAX_PADDING_ROWS
from bert_trainer.dataset.tokens.wordpiece import Vocabulary, read_tokens
from bert_trainer.errors import InputError
from bert_trainer.model.layers import BY_ENTRY, EncoderParameters
from bert_trainer.model.task_model import HEAD_PREFIX

NEXT_SENTENCE = ("pooler.weight", "pooler.bias", "nsp.weight", "nsp.bias")
"""Of heads that a model of ours may lack: their names are translated all the same."""
_MASKED_LM = ("mlm_transform.weight", "mlm_transform.bias", "mlm_norm.weight", "mlm_norm.bias", "mlm_bias")
_POOLER, _CLASSES = NEXT_SENTENCE[:2], NEXT_SENTENCE[2:]
_HEADS: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        **dict.fromkeys(_MASKED_LM, _MASKED_LM),
        # A pooler may stand alone; without one a next-sentence head is nothing.
        **dict.fromkeys(_POOLER, NEXT_SENTENCE),
        **dict.fromkeys(_CLASSES, _CLASSES),
    }
)
"""What the source may lack, and with it what else it may not have: the encoder is what is expensive to train, but
numbers that were drawn at random inside a head that was trained make nonsense of the rest."""
_TOKEN_TABLE = "embeddings.tokens.weight"
_ROWS_AT_ONCE = 8192
_MAX_NAMED, _MAX_LISTED = 5, 8
"""Tensors of one kind that an error names, and a log line; the rest are counted."""
_MAX_NAME = 200
"""Characters of a name that a message shows: whoever wrote the file chose it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Tensors of a weights file by our names; a tensor without a counterpart keeps its own name."""

    path: Path
    tensors: Mapping[str, Tensor]
    spell: Callable[[str], str] = str
    """Translates our name into the source's, for messages."""
    is_foreign: Callable[[str], bool] = lambda _: False
    """Whether a tensor without a counterpart here is of another task's head: it is named, and left out."""
    moments: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)
    """``first_moment`` and ``second_moment``, each by our names, where they were asked for."""
    moment_steps: int = 0
    """Updates that the moments have accumulated."""
    vocabulary_file: Path | None = None
    """The source's own, if it may have one."""
    row_multiple: int | None = None
    """Multiple that the source's program rounds the rows of the token table up to, if it does."""
    ignored: Sequence[str] = ()
    """What else it holds, and what no run needs: the optimizer's state where it was not asked for, and the like."""
    note: str = ""
    """What else the log should say, such as which of several files was read."""


@dataclass(frozen=True, slots=True)
class MatchedWeights:
    """Tensors that match the model's parameters, without padding rows."""

    tensors: Mapping[str, Tensor]
    fresh: Sequence[str]
    """Parameters that the source does not hold, by our names."""
    unused: Sequence[str]
    """Tensors of heads that this model does not have, by our names, and of other tasks' heads by theirs."""
    num_trained_beyond: int = 0
    """Rows of the source's token table behind the vocabulary that are not zeros, and are left out."""


def match_weights(source: Source, model: EncoderParameters, vocabulary: Vocabulary) -> MatchedWeights:
    """Match a source's weights with the model's parameters, and its vocabulary with the run's.

    Raises:
        InputError: they are of other vocabularies, or tensors do not fit; the message lists those.
    """
    table_VD = source.tensors.get(_TOKEN_TABLE)
    most = model.vocabulary_size + MAX_PADDING_ROWS
    if table_VD is not None and table_VD.ndim == 2 and len(table_VD) > most:
        raise InputError(
            f"{source.path}: {source.spell(_TOKEN_TABLE)}: got {len(table_VD)} rows; allowed: "
            f"{model.vocabulary_size}, as in this run's vocabulary, and at most {MAX_PADDING_ROWS} of padding",
            hint="use the vocabulary that these weights were trained with",
        )
    if not _has_same_vocabulary(source.vocabulary_file, vocabulary):
        _check_entries(source, model)
    fitted = match_tensors(source, source.tensors, model)
    beyond = source.tensors[_TOKEN_TABLE][model.vocabulary_size :]
    return replace(fitted, num_trained_beyond=int(_used_rows(beyond).sum()))


def match_tensors(source: Source, tensors: Mapping[str, Tensor], model: EncoderParameters) -> MatchedWeights:
    """Match tensors of a source, its weights or moments, with the model's parameters.

    Raises:
        InputError: tensors are missing, left over, of another shape, or not finite numbers.
    """
    fitted, fresh, missing, misshapen, broken = {}, [], [], [], []
    for name, parameter in model.named_parameters():
        tensor, allowed = tensors.get(name), list(parameter.shape)
        if tensor is None:
            if name in _HEADS and tensors.keys().isdisjoint(_whole_head(name, model)):
                fresh.append(name)
            else:
                missing.append(f"{source.spell(name)} {allowed}")
            continue
        if name in BY_ENTRY:
            allowed[0] = model.vocabulary_size
            if _num_rows(tensor) == _num_rows(tensors.get(_TOKEN_TABLE)):
                tensor = tensor[: allowed[0]] if tensor.ndim else tensor
            else:  # of another table than this one: its rows cannot be told
                allowed[0] = _num_rows(tensors.get(_TOKEN_TABLE)) or allowed[0]
        if list(tensor.shape) != allowed:
            misshapen.append(f"{source.spell(name)}: got {list(tensor.shape)}; allowed: {allowed}")
        # In the model's type: a double of 1e300 is finite, and infinite as a float.
        elif not tensor.is_floating_point() or not tensor.to(parameter.dtype).isfinite().all():
            broken.append(source.spell(name))
        else:
            fitted[name] = tensor
    beyond = sorted(tensors.keys() - dict(model.named_parameters()).keys())
    unused = [name for name in beyond if name in NEXT_SENTENCE]
    misshapen += [
        f"{source.spell(name)}: got {list(tensors[name].shape)}; allowed: {_next_sentence_shape(name, model)}"
        for name in unused
        if list(tensors[name].shape) != _next_sentence_shape(name, model)
    ]
    left_over = [name for name in beyond if name not in NEXT_SENTENCE]
    if not (missing or misshapen or broken) and all(map(source.is_foreign, left_over)):
        # Where anything else does not fit, they help to tell which model it is.
        unused, left_over = [*unused, *left_over], []
    _refuse_misfits(
        source,
        {"missing": missing, "of another shape": misshapen, "not finite numbers": broken, "left over": left_over},
    )
    return MatchedWeights(fitted, fresh, unused)


def _whole_head(name: str, model: EncoderParameters) -> Sequence[str]:
    """Return what a source has none of where it may lack a parameter of a head."""
    # Fine-tuned ModernBERTs keep the head but for the decoder, whose bias begins at 0.
    return (name,) if name == "mlm_bias" and model.config.architecture == "modernbert" else _HEADS[name]


def list_names(names: Sequence[str]) -> str:
    """Return the first names of tensors, for people, and how many more there are."""
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return ", ".join(printable(name)[:_MAX_NAME] for name in names[:_MAX_LISTED]) + more


def max_elements(model: EncoderParameters) -> int:
    """Return how many elements a tensor of the model's has at most, with as many rows of padding as are taken."""
    largest = max(parameter.numel() for parameter in model.parameters())
    return max(largest, (model.vocabulary_size + MAX_PADDING_ROWS) * model.config.hidden_size)


def is_of_size(tensors: Mapping[str, Tensor], model: EncoderParameters, is_foreign: Callable[[str], bool]) -> bool:
    """Return whether every tensor is a parameter of the model, by our names, and not larger than it.

    Of others' heads no more than the largest of the model's.

    False for weights that will be refused: nothing that is done with them before may depend on what they claim.
    """
    shapes = {name: _next_sentence_shape(name, model) for name in NEXT_SENTENCE}
    shapes |= {name: list(parameter.shape) for name, parameter in model.named_parameters()}
    for name in shapes.keys() & BY_ENTRY:
        shapes[name][0] = model.vocabulary_size + MAX_PADDING_ROWS
    most = {name: prod(shape) for name, shape in shapes.items()}
    most |= {name: max_elements(model) for name in tensors if name not in most and is_foreign(name)}
    return all(tensor.numel() <= most.get(name, -1) for name, tensor in tensors.items())


def _next_sentence_shape(name: str, model: EncoderParameters) -> list[int]:
    """Return the shape of one of ``NEXT_SENTENCE``."""
    outputs = model.config.hidden_size if name in _POOLER else 2
    return [outputs, model.config.hidden_size] if name.endswith(".weight") else [outputs]


def _num_rows(tensor: Tensor | None) -> int:
    return 0 if tensor is None or not tensor.ndim else len(tensor)


def by_our_names(theirs: Iterable[str], ours: Mapping[str, str]) -> dict[str, str]:
    """Map each of a source's tensor names to ours, or to itself without a counterpart.

    One that has none but is spelled like one of ours stands in quotes: whoever chose it must not choose a parameter.

    Args:
        theirs: The source's names.
        ours: Ours by theirs.
    """
    taken = {*ours.values(), *_HEADS}
    return {name: ours.get(name) or (repr(name) if name in taken else name) for name in theirs}


def copy_tensors(fitted: MatchedWeights, views: Mapping[str, Tensor]) -> None:
    """Copy matched tensors into tensors of the model's shapes."""
    for name, tensor in fitted.tensors.items():
        # The model's own padding rows, behind the last entry, stay zero.
        views[name][: len(tensor)].copy_(tensor)


def _refuse_misfits(source: Source, misfits: Mapping[str, Sequence[str]]) -> None:
    given = {kind: names for kind, names in misfits.items() if names}
    if not given:
        return
    counts = ", ".join(f"{len(names)} {kind}" for kind, names in given.items())
    lines = [
        f"  {kind}: {', '.join(printable(name)[:_MAX_NAME] for name in names[:_MAX_NAMED])}"
        + (f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else "")
        for kind, names in given.items()
    ]
    hint = "use the model section (sizes, architecture) and the vocabulary that it was trained with"
    if set(given) == {"not finite numbers"}:
        hint = "that training has diverged; start from an earlier checkpoint of it"
    elif set(given) == {"left over"} and all(name.startswith(HEAD_PREFIX) for name in given["left over"]):
        hint = "that run was fine-tuned; name its export, such as runs/mrpc/export/huggingface (format huggingface)"
    raise InputError(
        f"{source.path}: its tensors are not this model's: {counts}\n" + "\n".join(lines),
        hint=hint,
    )


def _has_same_vocabulary(path: Path | None, vocabulary: Vocabulary) -> bool:
    """Compare a source's own vocabulary with the run's; False where it has none.

    Raises:
        InputError: they differ, so the rows of the token table belong to other tokens; or it is no vocabulary.
    """
    if path is None or not path.exists():
        return False
    tokens = read_tokens(path)
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


def _used_rows(table_VD: Tensor) -> Tensor:
    """Return (V,), whether a row holds anything but zeros; block by block, so that memory is that of one."""
    starts = range(0, max(len(table_VD), 1), _ROWS_AT_ONCE)
    return torch.cat([table_VD[at : at + _ROWS_AT_ONCE].any(dim=1) for at in starts])


def _check_entries(source: Source, model: EncoderParameters) -> None:
    """Refuse a token table of another vocabulary size; padding rows are recognized by their zeros, or by their number.

    Our padding starts at zero and gets no gradient, so it stays zero; of the entries, only [PAD]'s row may be all
    zeros. A program that does not mask its padding trains those rows: for it the number of rows has to do.

    Raises:
        InputError: the numbers of entries differ.
    """
    table_VD = source.tensors.get(_TOKEN_TABLE)
    if table_VD is None or list(table_VD.shape[1:]) != [model.config.hidden_size]:
        return  # refused below, by name
    multiple = source.row_multiple
    if multiple is not None and len(table_VD) == -(-model.vocabulary_size // multiple) * multiple:
        return
    used = _used_rows(table_VD).nonzero()
    entries = int(used[-1]) + 1 if len(used) else 0
    if entries != model.vocabulary_size:
        raise InputError(
            f"{source.path}: {source.spell(_TOKEN_TABLE)}: got {entries} vocabulary entries in {len(table_VD)} rows; "
            f"allowed: {model.vocabulary_size}, as in this run's vocabulary",
            hint="use the vocabulary that it was trained with; rows of zeros behind the last entry do not count, nor "
            "does anything behind the entries of the vocab.txt beside it",
        )
