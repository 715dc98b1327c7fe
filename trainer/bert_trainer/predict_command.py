"""``bert-train predict``: what a fine-tuned model says of every row of a file, in the file's order.

Rows are read, computed and written a block at a time, so that memory does not grow with the file.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, get_args

from bert_job.finetuning import DEFAULT_SPAN_LENGTH, FinetuneSpec, TableColumnsSpec
from bert_job.foreign_text import one_line, printable
from bert_job.run_config import RunConfig
from bert_job.run_stages import FinetuneOptimizer, FinetuneStage, TaskData
from bert_job.section import MAX_TOKENS
from bert_job.tasks import ANSWER_COLUMNS, NEEDED_COLUMNS
from bert_job.training import TrainingSpec
from bert_trainer.errors import InputError
from bert_trainer.output.run_folder import CONFIG_FILE
from bert_trainer.system.atomic_files import PARTIAL_SUFFIX, disk_errors, open_no_link
from bert_trainer.tasks.catalog import Task
from bert_trainer.tasks.delimited import require_file
from bert_trainer.tasks.examples import Example, Split, TextExample
from bert_trainer.tasks.tables import read_lines_as_texts, read_unlabelled

if TYPE_CHECKING:
    from bert_trainer.checkpoints.fine_tuned_import import FineTuned
    from bert_trainer.tasks.scoring import Predictions

_EXAMPLES_AT_A_TIME = 4096
_CHARACTERS_AT_A_TIME = 1 << 22
"""Of a block: what is in memory together."""
_ROWS_PER_PASS, _TOKENS_PER_PASS = 256, 8192
_DIGITS = 7
"""Significant ones of numbers: as many as float32 has."""
_REPORTED_EVERY_S = 10.0
_COLUMNS = tuple(name for name in TableColumnsSpec.model_fields if name not in ANSWER_COLUMNS)
_LENGTHS = ("sequence_length", "doc_stride", "max_query_length", "max_answer_length")
_STANDARD_OUTPUT = 1
_ALLOWED_MODEL = "allowed: a folder with config.json, weights and a tokenizer"
_NAME_MODEL = "name the folder that an export stage wrote, such as runs/mrpc/export/huggingface"
_TEXT = "text"
"""The format of files whose lines are the texts."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument(
        "--model",
        required=True,
        type=Path,
        metavar="FOLDER",
        help="fine-tuned model, as an export or transformers wrote it, or a run that has exported one",
    )
    parser.add_argument(
        "--data", required=True, type=Path, metavar="FILE",
        help=".txt: a text on every line; .tsv, .csv or .jsonl, also compressed: rows with the columns named below",
    )  # fmt: skip
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="a line for every row, in the same order; default: standard output"
    )
    parser.add_argument(
        "--json", action="store_true",
        help="a JSON object on every line, with probabilities of classes and places of answers, in place of the label, "
        "number or answer alone",
    )  # fmt: skip
    parser.add_argument(
        "--data-format", default="auto", choices=("auto", _TEXT, "tsv", "csv", "jsonLines"),
        help="default: by the suffix of the file",
    )  # fmt: skip
    columns = parser.add_argument_group("columns of a table")
    for name in _COLUMNS:
        said = (TableColumnsSpec.model_fields[name].description or "").replace("Empty:", "Left out:")
        columns.add_argument(f"--{name.replace('_', '-')}", metavar="COLUMN", help=said)
    rows = parser.add_argument_group("rows of tokens")
    for name in _LENGTHS:
        field = FinetuneSpec.model_fields[name]
        said = (field.description or "").replace("`", "")
        if name == "sequence_length":
            said = "Most tokens of a row, [CLS] and [SEP] included; the rest of a text is cut off, a context is split "
            said += f"into windows. Default: what the model has positions for, of contexts {DEFAULT_SPAN_LENGTH}."
        rows.add_argument(f"--{name.replace('_', '-')}", type=int, metavar="N", help=" ".join(said.split()))
    how = parser.add_argument_group("arithmetic")
    how.add_argument("--device", default="auto", choices=get_args(RunConfig.model_fields["device"].annotation))
    how.add_argument("--precision", default="fp32", choices=get_args(TrainingSpec.model_fields["precision"].annotation))


@dataclass(frozen=True, slots=True)
class _Arithmetic:
    device: str
    precision: str
    engine: str = "eager"
    gpu_memory_limit_gib: float | None = None


def predict_file(arguments: argparse.Namespace) -> None:
    """Predict what a command line asks for.

    Raises:
        InputError: there is no such model or file, or a row is not of its form; what was predicted before that row is
            kept beside the output.
        TrainerError: the output cannot be written.
    """
    # They load torch; a command line that names the wrong file should fail before.
    _require_files(arguments)
    from bert_trainer.checkpoints.fine_tuned_import import read_fine_tuned
    from bert_trainer.checkpoints.tokenizer_files import is_lower_case
    from bert_trainer.parallel.world import SingleRank
    from bert_trainer.tasks.rows import make_rows
    from bert_trainer.tasks.scoring import predict
    from bert_trainer.training.device import Compute
    from bert_trainer.training.finetuning.outputs import head_outputs

    world = SingleRank()
    compute = Compute.open(_Arithmetic(arguments.device, arguments.precision), world)
    found = read_fine_tuned(_find_export(arguments.model))
    stage = _make_stage(arguments, found)
    notes: list[str] = []
    examples = _read(arguments, found.task, stage.data, notes)
    compute.place(found.model)
    lower_case = is_lower_case(found.vocabulary)

    def lines_of(block: Sequence[Example]) -> list[str]:
        split = Split("predict", tuple(block))
        rows = make_rows(split, found.task, stage, found.vocabulary, lower_case=lower_case)
        outputs = head_outputs(
            compute,
            found.model,
            rows.samples,
            sequence_length=stage.sequence_length,
            micro_batch_size=_ROWS_PER_PASS,
            max_tokens=_TOKENS_PER_PASS,
            world=world,
        )
        predictions = predict(rows, split, found.task, outputs.numpy(), stage)
        if not arguments.json:
            return _plain_lines(predictions, found.task)
        ids = [example.id for example in block] if stage.data.columns.id else None
        return [json.dumps(entry, ensure_ascii=False) for entry in _objects(predictions, found.task, ids)]

    _write(arguments.output, _blocks(examples), lines_of)
    for note in notes:
        print(f"bert-train: {note}", file=sys.stderr)  # noqa: T201 - standard output may hold the predictions


def _require_files(arguments: argparse.Namespace) -> None:
    require_file(arguments.data)
    if not arguments.model.is_dir():
        raise InputError(f"--model: got {printable(arguments.model)}; {_ALLOWED_MODEL}", hint=_NAME_MODEL)
    if arguments.output is not None:
        _require_output(arguments.output, arguments.data)
    for name in _LENGTHS:
        value = getattr(arguments, name)
        # As a finetune stage; a row also has at most the model's positions.
        if value is not None and not 1 <= value <= MAX_TOKENS:
            raise InputError(f"--{name.replace('_', '-')}: got {value}; allowed: 1 to {MAX_TOKENS}")


def _find_export(folder: Path) -> Path:
    """Return the export of a run's output folder, or the folder itself; raises InputError where no model is."""
    export = folder
    if (folder / CONFIG_FILE).is_file():
        export = folder / "export" / "huggingface"
        if not export.is_dir():
            raise InputError(
                f"--model: got {printable(folder)}, a run without export/huggingface; allowed: a run that has exported "
                "a model in this format",
                hint="train it with --export huggingface, or with an export stage",
            )
    if not (export / "config.json").is_file():
        raise InputError(f"--model: got {printable(export)}, without config.json; {_ALLOWED_MODEL}", hint=_NAME_MODEL)
    return export


def _require_output(output: Path, data: Path) -> None:
    """Refuse a place that no file can be put into, or that something else than a file is at; raises InputError."""
    got = f"--output: got {printable(output)}"
    for place in (output, _partial_of(output)):
        # A device or a pipe would become a file, and a link would lose what it leads to.
        if place.is_symlink() or (place.exists() and not place.is_file()):
            raise InputError(
                f"{got}, and {printable(place)} is a folder, a link, a pipe or a device; allowed: a file",
                hint="leave --output out for standard output",
            )
        if place.exists() and place.samefile(data):
            raise InputError(f"{got}, and {printable(place)} is --data; allowed: another file")
    if not output.absolute().parent.is_dir():
        raise InputError(f"{got}; allowed: a file in a folder that exists", hint="make the folder first: mkdir -p")


def _partial_of(output: Path) -> Path:
    """Return where predictions are written until there are all of them."""
    return output.with_name(output.name + PARTIAL_SUFFIX)


def _make_stage(arguments: argparse.Namespace, found: FineTuned) -> FinetuneStage:
    """Return what rows are made by; raises InputError for lengths that the model does not have."""
    positions = min(found.model.config.max_position_embeddings, MAX_TOKENS)
    default = min(DEFAULT_SPAN_LENGTH, positions) if found.task.kind == "spans" else positions
    length = arguments.sequence_length or default
    if not 8 <= length <= positions:
        raise InputError(f"--sequence-length: got {length}; allowed: 8 to {positions}, the model's positions")
    named = {name: getattr(arguments, name) for name in _COLUMNS}
    given = {name: getattr(arguments, name) for name in _LENGTHS[1:] if getattr(arguments, name) is not None}
    table = "auto" if arguments.data_format == _TEXT else arguments.data_format
    return FinetuneStage(
        name="predict",
        task=found.task.name,
        data=TaskData.model_validate({"format": table, "columns": named}, by_name=True),
        sequence_length=length,
        micro_batch_size=_ROWS_PER_PASS,
        optimizer=FinetuneOptimizer(partitioning="none"),
        run_seeds=(0,),
        **given,
    )


def _read(arguments: argparse.Namespace, task: Task, data: TaskData, notes: list[str]) -> Iterator[Example]:
    path: Path = arguments.data
    is_text = arguments.data_format == _TEXT or (arguments.data_format == "auto" and ".txt" in path.suffixes[-2:])
    if not is_text:
        needed = [name for name in NEEDED_COLUMNS[task.kind] if name in _COLUMNS and not getattr(data.columns, name)]
        if needed:
            raise InputError(
                f"{' and '.join(f'--{name}' for name in needed)}: required with a table; allowed: the name of a column",
                hint=f"the first line of {printable(path)} names them, or the keys of its JSON objects",
            )
        return read_unlabelled(path, task, data, notes)
    if task.kind == "spans":
        raise InputError(
            f"--data: got {printable(path)}, lines of text; allowed: a table with --question and --context, which this "
            "model answers",
            hint="write TSV, CSV or JSON Lines",
        )
    return read_lines_as_texts(path)


def _blocks(examples: Iterator[Example]) -> Iterator[list[Example]]:
    """Yield examples that are in memory together."""
    while block := list(islice(_within(examples, _CHARACTERS_AT_A_TIME), _EXAMPLES_AT_A_TIME)):
        yield block


def _within(examples: Iterator[Example], characters: int) -> Iterator[Example]:
    for example in examples:
        yield example
        characters -= _num_characters(example)
        if characters <= 0:
            return


def _num_characters(example: Example) -> int:
    if isinstance(example, TextExample):
        return len(example.first) + len(example.second or "")
    return len(example.question) + len(example.context)


def _plain_lines(predictions: Predictions, task: Task) -> list[str]:
    if task.kind == "spans":
        return [one_line(text) for text in predictions.texts]
    if task.kind == "regression":
        return [f"{value:.{_DIGITS}g}" for value in predictions.values.tolist()]
    return [one_line(task.labels[number]) for number in predictions.values.tolist()]


def _objects(predictions: Predictions, task: Task, ids: Sequence[str] | None) -> Iterator[dict[str, Any]]:
    for at, value in enumerate(predictions.values.tolist()):
        entry: dict[str, Any] = {} if ids is None else {"id": ids[at]}
        if task.kind == "spans":
            yield entry | {"answer": predictions.texts[at], "start": value[0], "end": value[1]}
        elif task.kind == "regression":
            yield entry | {"value": _rounded(value)}
        else:
            shares = map(_rounded, predictions.probabilities[at].tolist())
            yield entry | {"label": task.labels[value], "probabilities": dict(zip(task.labels, shares, strict=True))}


def _rounded(value: float) -> float | None:
    """Return a number as it is written; None, which JSON has, for one that is not finite."""
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None


def _write(
    output: Path | None, blocks: Iterator[list[Example]], lines_of: Callable[[Sequence[Example]], list[str]]
) -> None:
    """Write the lines of all blocks, and say on standard error how many there are, and where."""
    count, began_at_s = 0, time.monotonic()
    reported_at_s = began_at_s

    def say(what: str) -> None:
        seconds = time.monotonic() - began_at_s
        rate = f" ({count / seconds:,.0f} per second)" if seconds > 0 else ""
        print(f"bert-train: {count:,} predictions{rate}{what}", file=sys.stderr)  # noqa: T201

    partial = None if output is None else _partial_of(output)
    try:
        with disk_errors(partial or Path("standard output")), _opened(partial) as file:
            for block in blocks:
                file.write("".join(f"{line}\n" for line in lines_of(block)))
                file.flush()
                count += len(block)
                if time.monotonic() - reported_at_s >= _REPORTED_EVERY_S:
                    reported_at_s = time.monotonic()
                    say("")
        if output is not None and partial is not None:
            with disk_errors(output):
                partial.replace(output)
    except BaseException as error:
        if partial is None and isinstance(error.__cause__, BrokenPipeError):
            # Whoever read has enough. Nothing may be flushed into the pipe at the end of the process.
            os.dup2(os.open(os.devnull, os.O_WRONLY), _STANDARD_OUTPUT)
            raise SystemExit(128 + signal.SIGPIPE) from None
        if partial is not None and count:
            say(f" are kept in {printable(partial)}")
        elif partial is not None:
            partial.unlink(missing_ok=True)
        if isinstance(error, KeyboardInterrupt):
            raise SystemExit(128 + signal.SIGINT) from None
        raise
    say("" if output is None else f": {printable(output)}")


@contextmanager
def _opened(path: Path | None) -> Iterator[TextIO]:
    """Open what is written: UTF-8 whatever the machine's locale. None: standard output, which stays open."""
    binary = os.fdopen(os.dup(_STANDARD_OUTPUT), "wb") if path is None else open_no_link(path, "wb")
    with io.TextIOWrapper(binary, encoding="utf-8", errors="replace", newline="\n") as file:
        yield file
