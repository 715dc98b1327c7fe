"""What lies beside weights of any format: the model's sizes and the vocabulary.

Reads no tensor and imports no torch: a command line that names the wrong folder fails at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from bert_trainer.checkpoints.foreign_formats import check_format, find_formats
from bert_trainer.config.checks import find_model_problems, load_run_config, resolve_model
from bert_trainer.config.model_file import find_size_problems, read_model_file
from bert_trainer.config.run_config import InitialCheckpoint, ModelConfig, ModelFile
from bert_trainer.dataset.tokens.wordpiece import Vocabulary
from bert_trainer.errors import InputError
from bert_trainer.system.files import shown

MAX_PADDING_ROWS = 4096
"""Rows behind the vocabulary's entries: MLPerf's have 6, TPUs round up to 128. A file may claim any number."""
_FORMATS = get_args(InitialCheckpoint.model_fields["format"].annotation)
_MODEL_FILES = ("bert_config.json", "config.json")
_RUN_FILE = "run-config.json"
_PUBLISHED_EPSILON = 1e-12


@dataclass(frozen=True, slots=True)
class Described:
    """What is beside the weights: the model's sizes and the vocabulary."""

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
        raise InputError(f"{shown(path)}: got no weights there; allowed: a folder or a file", hint="check the path")
    check_format(path, kind, _FORMATS)
    folder = path if path.is_dir() else path.parent
    if kind == "bert-trainer" and model_file is None:
        # A run, its checkpoints, or one of them.
        found = next((place / _RUN_FILE for place in (path, *path.parents[:2]) if (place / _RUN_FILE).exists()), None)
        if found is not None:
            run = resolve_model(load_run_config(found))
            return Described(run.sizes, found, vocabulary_file or run.vocabulary_path)
    return describe_model(folder, vocabulary_file, model_file)


def describe_model(folder: Path, vocabulary_file: Path | None, model_file: Path | None) -> Described:
    """Read the two files of a folder, or those that are named in their place; raises as ``find_description`` does."""
    file = model_file or next((folder / name for name in _MODEL_FILES if (folder / name).exists()), None)
    if file is None:
        raise InputError(
            f"{shown(folder)}: got none of {', '.join(_MODEL_FILES)} beside the weights; allowed: one, or "
            "--model-config",
            hint="name the file that describes the model, as --model-config bert_config.json",
        )
    vocabulary = vocabulary_file or folder / "vocab.txt"
    if not vocabulary.exists():
        raise InputError(
            f"{shown(vocabulary)}: got no vocabulary there; allowed: the vocab.txt that the weights were trained with",
            hint="name it, as --vocabulary-file vocab.txt",
        )
    wanted = ModelFile(config_file=str(file), layer_norm_eps=_PUBLISHED_EPSILON, vocab_pad_multiple=8, objective=None)
    return Described(read_model_file(wanted), file, vocabulary)


def check_description(described: Described, vocabulary: Vocabulary) -> None:
    """Refuse what describes no model, or one of another vocabulary; raises InputError."""
    problems = [*find_size_problems(described.model), *find_model_problems(described.model)]
    wanted, least = described.model.vocab_size, vocabulary.size
    # Some programs count the rows of padding as entries.
    if wanted is not None and not least <= wanted <= least + MAX_PADDING_ROWS:
        problems.append(
            f"model.vocab_size: got {wanted}; allowed: {least} to {least + MAX_PADDING_ROWS}, for the {least} "
            f"entries of {shown(described.vocabulary_file)} and padding"
        )
    if problems:
        raise InputError(
            f"{shown(described.model_file)}: {len(problems)} problem(s)\n"
            + "\n".join(f"  {line}" for line in problems),
            hint="name the description and the vocabulary of these weights: --model-config, --vocabulary-file",
        )
