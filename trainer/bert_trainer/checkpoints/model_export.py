"""Export of the trained model for other programs: a folder per format, written whole or not at all.

What a format's folder holds is a line in ``_WRITERS``; a model that was trained here also gets its card. Where folders
go is the caller's business.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path

from bert_trainer.checkpoints.huggingface_export import write_config, write_weights
from bert_trainer.checkpoints.onnx_export import write_onnx_model
from bert_trainer.checkpoints.tensorflow_export import write_tensorflow_checkpoint
from bert_trainer.checkpoints.tokenizer_files import write_tokenizer
from bert_trainer.dataset.tokens.wordpiece import Vocabulary
from bert_trainer.errors import TrainerError
from bert_trainer.model.bert import Bert
from bert_trainer.output.run_folder import remove_folder
from bert_trainer.system.atomic_files import disk_errors

CARD_FILE = "README.md"


def export_model(
    form: str,
    model: Bert,
    vocabulary: Vocabulary,
    target: Path,
    *,
    lower_case: bool,
    card: str | None = None,
    replace: bool = True,
    before_commit: Callable[[], None] = lambda: None,
) -> None:
    """Write the model's folder atomically.

    Args:
        form: The format, one of ``_WRITERS``.
        model: The trained model.
        vocabulary: Of the model.
        target: The folder to write.
        lower_case: Whether text has to be lower-cased before it is looked up in the vocabulary.
        card: Content of the model card; None for none, where nothing is known of a training.
        replace: Whether the target is the caller's own and is replaced. Otherwise nothing that exists is removed: no
            folder of that name may be there, and one that appears in the meantime stays.
        before_commit: Called when everything is written and nothing is replaced yet; may raise.

    Raises:
        TrainerError: the disk is full or failing, or what ``before_commit`` raises.
    """
    # Of an own name in a run's folder, where what a killed attempt has left is removed; elsewhere it is another's.
    staging = target.with_name(f".{target.name}.{'' if replace else secrets.token_hex(4) + '.'}aside")
    if replace:
        remove_folder(staging)
    try:
        with disk_errors(target):
            staging.mkdir(parents=True)
            _WRITERS[form](model, vocabulary, staging, lower_case)
            if card is not None:
                (staging / CARD_FILE).write_text(card)
            _sync(staging)
            before_commit()
            if replace:
                remove_folder(target)
            staging.rename(target)
    except TrainerError:
        remove_folder(staging)
        raise


def _write_huggingface(model: Bert, vocabulary: Vocabulary, folder: Path, lower_case: bool) -> None:
    write_weights(model, folder)
    write_config(model, vocabulary, folder)
    write_tokenizer(model.config, vocabulary, folder, lower_case=lower_case)


def _write_onnx(model: Bert, vocabulary: Vocabulary, folder: Path, lower_case: bool) -> None:
    write_onnx_model(model, folder)
    # The settings and the tokenizer are those of Hugging Face: whoever runs the graph has to split text the same way.
    write_config(model, vocabulary, folder)
    write_tokenizer(model.config, vocabulary, folder, lower_case=lower_case)


def _write_tensorflow(model: Bert, vocabulary: Vocabulary, folder: Path, _lower_case: bool) -> None:
    # Its readers are told the case on their command lines (--do_lower_case); the card states it.
    write_tensorflow_checkpoint(model, vocabulary, folder)


_Writer = Callable[[Bert, Vocabulary, Path, bool], None]
_WRITERS: Mapping[str, _Writer] = {
    "huggingface": _write_huggingface,
    "onnx": _write_onnx,
    "tensorflow": _write_tensorflow,
}


def _sync(folder: Path) -> None:
    """Wait until a folder's files have reached the disk: a rename may overtake them otherwise."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
