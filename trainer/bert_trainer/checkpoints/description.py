"""What lies beside weights of any format: the model's sizes and the vocabulary.

Reads no tensor and imports no torch: a command line that names the wrong folder fails at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

from bert_job.foreign_text import printable
from bert_job.run_config import ModelConfig, ModelFile
from bert_job.weights import InitialCheckpointSpec
from bert_trainer.checkpoints.foreign_formats import check_format, find_formats
from bert_trainer.config.checks import find_model_problems, load_run_config, resolve_model
from bert_trainer.config.model_file import read_model_file
from bert_trainer.dataset.tokens.byte_bpe import ByteBpe
from bert_trainer.dataset.tokens.tokenizer_config import read_tokenizer
from bert_trainer.dataset.tokens.wordpiece import Vocabulary, find_vocabulary_file, read_vocabulary, vocabulary_path
from bert_trainer.dataset.tokens.wordpiece_settings import WordPieceSettings
from bert_trainer.errors import InputError

MAX_PADDING_ROWS = 4096
"""Rows behind the vocabulary's entries: MLPerf's have 6, TPUs round up to 128. A file may claim any number."""
_FORMATS = get_args(InitialCheckpointSpec.model_fields["format"].annotation)
_MODEL_FILES = ("bert_config.json", "config.json")
_RUN_FILE = "run-config.json"


@dataclass(frozen=True, slots=True)
class Described:
    """Model sizes and vocabulary found beside weights."""

    model: ModelConfig
    model_file: Path
    vocabulary_file: Path


def find_description(path: Path, kind: str, vocabulary_file: Path | None, model_file: Path | None) -> Described:
    """Find what describes the weights at a path.

    Args:
        path: As ``initial_checkpoint.path``.
        kind: As ``initial_checkpoint.format``.
        vocabulary_file: None: ``vocab.txt`` beside the weights, or that of the run that wrote them.
        model_file: None: ``bert_config.json`` or ``config.json`` beside the weights, or the run's configuration.

    Raises:
        InputError: there are no weights of this format, or one of the two files is missing or wrong.
    """
    if not path.exists() and not find_formats(path):
        raise InputError(f"{printable(path)}: got no weights there; allowed: a folder or a file", hint="check the path")
    check_format(path, kind, _FORMATS)
    folder = path if path.is_dir() else path.parent
    if kind == "bert-trainer" and model_file is None:
        run_folder = _find_run(path)
        if run_folder is not None:
            run = resolve_model(load_run_config(run_folder / _RUN_FILE))
            return Described(run.sizes, run_folder / _RUN_FILE, vocabulary_file or vocabulary_path(run.dataset))
    return describe_model(folder, vocabulary_file, model_file)


def _find_run(path: Path) -> Path | None:
    """Return the folder of a run, of its checkpoints, or of one of them; None for none."""
    return next((place for place in (path, *path.parents[:2]) if (place / _RUN_FILE).exists()), None)


def describe_model(folder: Path, vocabulary_file: Path | None, model_file: Path | None) -> Described:
    """Read the two files of a folder, or those that are named in their place; raises as ``find_description`` does."""
    file = model_file or next((folder / name for name in _MODEL_FILES if (folder / name).exists()), None)
    if file is None:
        raise InputError(
            f"{printable(folder)}: got none of {', '.join(_MODEL_FILES)} beside the weights; allowed: one, or "
            "--model-config",
            hint="name the file that describes the model, as --model-config bert_config.json",
        )
    vocabulary = vocabulary_file or find_vocabulary_file(folder)
    if vocabulary is None or not vocabulary.exists():
        raise InputError(
            f"{printable(vocabulary or folder / 'vocab.txt')}: got no vocabulary there; allowed: the vocab.txt or "
            "tokenizer.json that the weights were trained with",
            hint="name it, as --vocabulary-file vocab.txt",
        )
    wanted = ModelFile(config_file=str(file), vocabulary_pad_multiple=8)
    return Described(read_model_file(wanted), file, vocabulary)


def read_vocabulary_of(described: Described, weights: Path | None) -> Vocabulary:
    """Read the vocabulary, with what its own files and those beside the weights say of how text is split.

    Raises:
        InputError: as ``read_vocabulary`` and ``with_settings_of``; or the description is of no model, or of one with
            another vocabulary.
    """
    vocabulary = read_vocabulary(described.vocabulary_file)
    if weights is not None:
        vocabulary = with_settings_of(weights, vocabulary)
    _check_description(described, vocabulary)
    return vocabulary


def read_settings(path: Path) -> WordPieceSettings | ByteBpe | None:
    """Return what the tokenizer's files beside weights say; None where there are none.

    Args:
        path: The folder of the weights, or a file or prefix of files in it; of a run also its checkpoints.

    Raises:
        InputError: they cannot be read, or say what is not carried out here.
    """
    folder = path if path.is_dir() else path.parent
    found = read_tokenizer(_find_run(folder) or folder)
    return None if found is None else found.settings


def with_settings_of(path: Path, vocabulary: Vocabulary) -> Vocabulary:
    """Return a vocabulary with the tokenizer settings found beside weights, if any.

    Raises:
        InputError: as ``read_settings``; or what lies beside the vocabulary says something else.
    """
    settings = read_settings(path)
    said = vocabulary.said
    if settings is None or said == settings:
        return vocabulary
    if said is not None and not said.agrees_with(settings):
        raise InputError(
            f"{path}: its tokenizer says {settings}, the files beside the vocabulary {said}; allowed: the same",
            hint="keep the tokenizer's files that the weights were trained with, and take the others away",
        )
    # Of two that agree, one may leave the case open.
    is_said = said is not None and (vocabulary.is_byte_level or said.lower_case is not None)
    return vocabulary if is_said else replace(vocabulary, said=settings)


def _check_description(described: Described, vocabulary: Vocabulary) -> None:
    """Refuse what describes no model, or one of another vocabulary; raises InputError."""
    problems = find_model_problems(described.model.model_copy(update={"config_file": None}))
    wanted, least = described.model.vocabulary_size, vocabulary.size
    # Some programs count the rows of padding as entries.
    if wanted is not None and not least <= wanted <= least + MAX_PADDING_ROWS:
        problems.append(
            f"model.vocabulary_size: got {wanted}; allowed: {least} to {least + MAX_PADDING_ROWS}, for the {least} "
            f"entries of {printable(described.vocabulary_file)} and padding"
        )
    if problems:
        raise InputError(
            f"{printable(described.model_file)}: {len(problems)} problem(s)\n"
            + "\n".join(f"  {line}" for line in problems),
            hint="name the description and the vocabulary of these weights: --model-config, --vocabulary-file",
        )
