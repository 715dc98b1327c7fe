"""Export of the trained model for other programs: a folder per format, written whole or not at all.

What a format's folder holds is a line in ``_WRITERS``; a model that was trained here also gets its card. Where folders
go is the caller's business. A fine-tuned model has no form in TensorFlow's names, which are those of pretraining.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bert_trainer.checkpoints.huggingface_export import write_config, write_weights
from bert_trainer.checkpoints.onnx_export import write_onnx_model
from bert_trainer.checkpoints.tensorflow_export import write_tensorflow_checkpoint
from bert_trainer.checkpoints.tokenizer_files import write_tokenizer
from bert_trainer.checkpoints.weights_folder import remove_aside
from bert_trainer.dataset.tokens.wordpiece import Vocabulary
from bert_trainer.errors import InputError
from bert_trainer.model.bert import Bert
from bert_trainer.model.task_model import TaskModel
from bert_trainer.output.run_folder import remove_folder
from bert_trainer.system.atomic_files import disk_errors, random_suffix

CARD_FILE = "README.md"
_FINE_TUNED_FORMATS = ("huggingface", "onnx")
"""What a fine-tuned model can be written as."""


def export_model(
    form: str,
    model: Bert | TaskModel,
    vocabulary: Vocabulary,
    target: Path,
    *,
    lower_case: bool,
    labels: Sequence[str] = (),
    left_out: Collection[str] = (),
    card: str | None = None,
    replace: bool = True,
    before_commit: Callable[[], None] = lambda: None,
) -> None:
    """Write the model's folder atomically.

    Args:
        form: The format, one of ``_WRITERS``; of a fine-tuned model not ``tensorflow``.
        model: The trained model.
        vocabulary: Of the model.
        target: The folder to write.
        lower_case: Whether text has to be lower-cased before it is looked up in the vocabulary.
        labels: Names of a fine-tuned model's classes by number.
        left_out: Parameters of heads that were never trained, by our names; with ``huggingface`` alone.
        card: Content of the model card; None for none, where nothing is known of a training.
        replace: Whether the target is the caller's own and is replaced. Otherwise nothing that exists is removed: no
            folder of that name may be there, and one that appears in the meantime stays.
        before_commit: Called when everything is written and nothing is replaced yet; may raise.

    Raises:
        TrainerError: the disk is full or failing, or what ``before_commit`` raises.
        InputError: the format has no form for a fine-tuned model.
    """
    if isinstance(model, TaskModel) and form not in _FINE_TUNED_FORMATS:
        raise InputError(
            f"format: got {form!r} for a fine-tuned model; allowed: {' or '.join(_FINE_TUNED_FORMATS)}",
            hint="export the pretrained model in that format, before it is fine-tuned",
        )
    # What a killed attempt has left is removed in a run's folder alone; elsewhere it may be another process's.
    staging = target.with_name(f".{target.name}.{random_suffix()}.aside")
    if replace:
        remove_aside(target)
    try:
        with disk_errors(target, needed_bytes=sum(weights.nbytes for weights in model.parameters())):
            staging.mkdir(parents=True)
            _WRITERS[form](_Exported(model, vocabulary, lower_case, labels, left_out), staging)
            if card is not None:
                (staging / CARD_FILE).write_text(card)
            _sync(staging)
            before_commit()
            if replace:
                remove_folder(target)
            staging.rename(target)
    except BaseException:
        remove_folder(staging)
        raise


@dataclass(frozen=True, slots=True)
class _Exported:
    model: Bert | TaskModel
    vocabulary: Vocabulary
    lower_case: bool
    labels: Sequence[str]
    left_out: Collection[str]

    def write_settings(self, folder: Path) -> None:
        """Write configuration and tokenizer as Hugging Face has them."""
        write_config(self.model, self.vocabulary, folder, self.labels, self.left_out)
        write_tokenizer(self.model.config, self.vocabulary, folder, lower_case=self.lower_case)


def _write_huggingface(exported: _Exported, folder: Path) -> None:
    write_weights(exported.model, folder, exported.left_out)
    exported.write_settings(folder)


def _write_onnx(exported: _Exported, folder: Path) -> None:
    write_onnx_model(exported.model, folder)
    # The settings and the tokenizer are those of Hugging Face: whoever runs the graph has to split text the same way.
    exported.write_settings(folder)


def _write_tensorflow(exported: _Exported, folder: Path) -> None:
    # Its readers are told the case on their command lines (--do_lower_case); the card states it.
    assert isinstance(exported.model, Bert), "refused above"
    write_tensorflow_checkpoint(exported.model, exported.vocabulary, folder)


_WRITERS: Mapping[str, Callable[[_Exported, Path], None]] = {
    "huggingface": _write_huggingface,
    "onnx": _write_onnx,
    "tensorflow": _write_tensorflow,
}


def _sync(folder: Path) -> None:
    """Wait until a folder's files have reached the disk: a rename may overtake them otherwise."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
