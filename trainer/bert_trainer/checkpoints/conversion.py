"""``bert-train import``: weights of any format that runs start from, checked and written in one that is exported.

Every tensor is accounted for as at the start of a run. A fine-tuned model of Hugging Face's keeps its head. A source
without a masked-LM head becomes an encoder alone in Hugging Face's format, and is refused by the others, which would
hold random numbers in its place. A source without a next-sentence head becomes a model without that objective.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import torch

from bert_job.foreign_text import printable
from bert_job.model import TENSORFLOW_LAYER_NORM_EPSILON, fits_tensorflow
from bert_job.run_config import ModelConfig
from bert_job.weights import ExportFormat
from bert_trainer.checkpoints.description import (
    Described,
    find_description,
    read_vocabulary_of,
)
from bert_trainer.checkpoints.fine_tuned_import import is_fine_tuned, read_fine_tuned
from bert_trainer.checkpoints.initial_weights import read_source
from bert_trainer.checkpoints.model_export import export_model
from bert_trainer.checkpoints.tokenizer_files import is_lower_case
from bert_trainer.checkpoints.weight_matching import (
    NEXT_SENTENCE,
    MatchedWeights,
    Source,
    copy_tensors,
    list_names,
    match_weights,
)
from bert_trainer.dataset.tokens.wordpiece import Vocabulary
from bert_trainer.errors import InputError
from bert_trainer.model.bert import Bert
from bert_trainer.model.task_model import TaskModel
from bert_trainer.system.atomic_files import disk_errors
from bert_trainer.system.files import unreadable

_FORMS = MappingProxyType({"gelu": "gelu, with the error function", "gelu_new": "gelu_new, by tanh"})
_OF_OTHERS = (
    "Of `gelu` in a bert_config.json TensorFlow code has computed the form by tanh since 2019, code of 2018 and "
    "transformers the other"
)
_USES: Mapping[ExportFormat, str] = MappingProxyType(
    {
        "huggingface": "for initialCheckpoint.format: huggingface",
        "onnx": "for ONNX Runtime and others that run its model.onnx",
        "tensorflow": "for initialCheckpoint.format: tensorflow",
    }
)


def import_weights(
    path: Path,
    kind: str,
    output: Path,
    *,
    form: ExportFormat = "huggingface",
    vocabulary_file: Path | None = None,
    model_file: Path | None = None,
) -> str:
    """Read weights of another program and write them as a folder that others read, as an export stage would.

    Args:
        path: As ``initial_checkpoint.path``.
        kind: As ``initial_checkpoint.format``.
        output: The folder to write; must not exist.
        form: As ``format`` of an export stage.
        vocabulary_file: The weights' vocabulary; None: ``vocab.txt`` beside them.
        model_file: What describes the model; None: ``bert_config.json`` or ``config.json`` beside the weights, or the
            configuration of the run that wrote them.

    Returns:
        An account for people: what was read, what was left over, what was written.

    Raises:
        InputError: there are no such weights, tensors are missing, left over or of another shape, or the format cannot
            express the model.
        TrainerError: the folder cannot be written.
    """
    try:
        return _import(path, kind, output, form, vocabulary_file, model_file)
    except OSError as error:
        raise unreadable(error.filename or path, error) from error


def _import(
    path: Path,
    kind: str,
    output: Path,
    form: ExportFormat,
    vocabulary_file: Path | None,
    model_file: Path | None,
) -> str:
    # Resolved first: "new/.." does not exist while "new" does not, and is the folder that it stands in once it does.
    output = Path(os.path.abspath(output))
    if os.path.lexists(output):
        raise InputError(f"--output: {output}: exists already; allowed: a folder that does not", hint="choose another")
    is_task = kind == "huggingface" and is_fine_tuned(path)
    read = (
        _read_fine_tuned(path, vocabulary_file, model_file)
        if is_task
        else _read_pretrained(path, kind, form, vocabulary_file, model_file)
    )
    with disk_errors(output):
        output.parent.mkdir(parents=True, exist_ok=True)
    vocabulary, lower_case = read.vocabulary, is_lower_case(read.vocabulary)
    export_model(
        form,
        read.model,
        vocabulary,
        output,
        lower_case=lower_case,
        labels=read.labels,
        left_out=read.fitted.fresh,
        replace=False,
    )
    lines = _render_account(kind, read)
    if read.fitted.fresh:
        lines.append("  heads: no masked-LM head, so the folder holds the encoder alone")
    if vocabulary.said is not None:
        lines.append(f"  text: {vocabulary.settings.describe(lower_case)}, as the tokenizer's files say")
    if "tensorflow" in (kind, form):
        lines.append(f"  activation: {_FORMS[read.model.config.hidden_activation]}. {_OF_OTHERS}")
    use = "for bert-train predict, and for transformers" if is_task and form == "huggingface" else _USES[form]
    lines.append(f"Wrote {output}, {use}")
    # Names of files may hold what cannot be printed as well.
    return "\n".join(map(printable, lines))


@dataclass(frozen=True, slots=True)
class _Read:
    """A model with what is to be said of it."""

    model: Bert | TaskModel
    vocabulary: Vocabulary
    described: Described
    source: Source
    fitted: MatchedWeights
    purpose: str
    """What it was trained for."""
    labels: Sequence[str] = ()


def _read_fine_tuned(path: Path, vocabulary_file: Path | None, model_file: Path | None) -> _Read:
    found = read_fine_tuned(path, vocabulary_file, model_file)
    labels = found.task.labels
    purpose = f"{found.task.kind}{f' with {len(labels)} labels' if labels else ''}"
    return _Read(found.model, found.vocabulary, found.described, found.source, found.fitted, purpose, labels)


def _read_pretrained(
    path: Path, kind: str, form: ExportFormat, vocabulary_file: Path | None, model_file: Path | None
) -> _Read:
    described = find_description(path, kind, vocabulary_file, model_file)
    vocabulary = read_vocabulary_of(described, path)
    config = described.model
    if form == "tensorflow" and not fits_tensorflow(config):
        raise InputError(
            f"--to: got tensorflow; allowed: with an architecture of bert and a layer_norm_eps of "
            f"{TENSORFLOW_LAYER_NORM_EPSILON:g}, which are built into code that reads such checkpoints; got "
            f"{config.architecture} and {config.layer_norm_epsilon:g} in {described.model_file}",
            hint="write huggingface or onnx",
        )
    source, fitted = _read(path, kind, config, vocabulary)
    if fitted.fresh and set(fitted.fresh) <= set(NEXT_SENTENCE):
        config = config.model_copy(update={"objective": "mlm"})
        source, fitted = _read(path, kind, config, vocabulary)
    if fitted.fresh and form != "huggingface":
        raise InputError(
            f"{source.path}: got no {', '.join(fitted.fresh)}; allowed with {form}: a model with its masked-LM head",
            hint="write huggingface, which takes an encoder alone, or start a run from these weights as they are",
        )
    model = Bert(config, vocabulary.size)
    with torch.no_grad():
        copy_tensors(fitted, dict(model.named_parameters()))
    return _Read(model, vocabulary, described, source, fitted, config.objective)


def _read(path: Path, kind: str, config: ModelConfig, vocabulary: Vocabulary) -> tuple[Source, MatchedWeights]:
    # Names and shapes are all that reading needs of the model; its memory is taken once the weights are known to fit.
    with torch.device("meta"):
        shapes = Bert(config, vocabulary.size)
    source = read_source(path, kind, shapes)
    return source, match_weights(source, shapes, vocabulary)


def _render_account(kind: str, read: _Read) -> list[str]:
    source, fitted, vocabulary, config = read.source, read.fitted, read.vocabulary, read.model.config
    table = source.tensors["embeddings.tokens.weight"]
    padding = len(table) - vocabulary.size
    types = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in fitted.tensors.values()})
    parameters = sum(tensor.numel() for tensor in fitted.tensors.values())
    lines = [
        f"Read {source.path} as {kind}" + (f" ({source.note})" if source.note else ""),
        f"  tensors: {len(fitted.tensors)}, with {parameters:,} parameters ({', '.join(types)})",
        f"  model: {config.architecture}, {config.num_hidden_layers} layers x {config.hidden_size}, "
        f"{config.num_attention_heads} heads, feed-forward {config.intermediate_size}, "
        f"{config.max_position_embeddings} positions, {config.hidden_activation}, {read.purpose}; "
        f"{read.described.model_file}",
        f"  vocabulary: {vocabulary.size:,} entries; {read.described.vocabulary_file}"
        + (f"; {padding} rows of padding left out" if padding else ""),
    ]
    for what, names in (("not used", fitted.unused), ("ignored", source.ignored)):
        if names:
            lines.append(f"  {what}: {list_names(names)}")
    return lines
