"""``bert-train finetune``: a run configuration with one fine-tuning stage, made from a command line.

Sizes and vocabulary come from beside the weights, everything else from options; defaults are those of a job's finetune
stage (tests/contract). Starts nothing and imports no torch: a mistake is told before anything has loaded.
"""

from __future__ import annotations

import argparse
import json
import os
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from bert_trainer.checkpoints.description import Described, describe_model, find_description, read_vocabulary_of
from bert_trainer.checkpoints.foreign_formats import find_formats
from bert_trainer.config.checks import parse_run_config
from bert_trainer.config.finetuning import (
    NEEDED_COLUMNS,
    OPTIONAL_COLUMNS,
    OWN_TABLES,
    FinetuneStage,
    TableColumns,
    TaskData,
    TaskName,
)
from bert_trainer.config.optimization import OptimizerConfig, Schedule
from bert_trainer.config.run_config import CONTRACT_VERSION, InitialCheckpoint, RunConfig
from bert_trainer.config.section import MAX_UNKNOWN_SHARE
from bert_trainer.config.stages import ExportStage
from bert_trainer.errors import InputError
from bert_trainer.finetune_options import files_as_options, settings_as_options
from bert_trainer.system.files import shown
from bert_trainer.system.launched_rank import LaunchedRank, read_launched
from bert_trainer.tasks.catalog import TASKS
from bert_trainer.tasks.reading import read_examples

Document = dict[str, Any]

_SPAN_LENGTH, _LENGTH = 384, 128
_TOKENS_PER_PASS = 4096
_WARMUP_PROPORTION = 0.1
_MAX_SEEDS = 100
_SHOWN_CHARACTERS = 120
_FILES = ("train", "validation", "test")
_ALONE = LaunchedRank("MPI", rank=0, size=1, local_size=1)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command; in their order, what people decide first comes first."""
    # The names of GLUE's folders are taken as well.
    parser.add_argument(
        "--task", required=True, type=str.lower, choices=get_args(TaskName), metavar="TASK", help=", ".join(TASKS)
    )
    parser.add_argument("--output", required=True, type=Path, metavar="FOLDER", help="output folder of the run")
    _add_data(parser.add_argument_group("data"))
    _add_weights(parser.add_argument_group("weights"))
    _add_training(parser.add_argument_group("training"))
    run = parser.add_argument_group("run")
    run.add_argument(
        "--precision", default="fp32", choices=_choices(RunConfig, "precision"), help="default: %(default)s"
    )
    run.add_argument("--device", default="auto", choices=_choices(RunConfig, "device"), help="default: %(default)s")
    run.add_argument(
        "--collectives",
        default="horovod",
        choices=_choices(RunConfig, "collectives"),
        help="library through which several ranks share gradients; default: %(default)s",
    )
    run.add_argument(
        "--export",
        action="append",
        default=[],
        choices=[form for form in _choices(ExportStage, "format") if form != "tensorflow"],
        help="format in which the best model is exported; repeatable; default: none",
    )
    run.add_argument(
        "--if-exists",
        default="Fail",
        choices=_choices(RunConfig, "if_exists"),
        help="where the output folder holds a run already: Resume continues it, New keeps it below previous/; "
        "default: %(default)s",
    )
    run.add_argument(
        "--hosts",
        type=int,
        metavar="N",
        help="machines that the ranks are on; default: as the launcher's variables say",
    )
    run.add_argument(
        "--show", action="store_true", help="print the run configuration, which bert-train --config takes, and end"
    )


def make_run_config(arguments: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> RunConfig:
    """Return the run that a command line asks for.

    Args:
        arguments: As parsed by ``add_arguments``.
        environment: The launcher's variables are read from it.

    Raises:
        InputError: options do not fit together, or there are no such weights or files; the message names the options.
    """
    problems = [*_data_problems(arguments), *_missing_files(arguments)]
    if not 1 <= arguments.seeds <= _MAX_SEEDS:
        problems.append(f"--seeds: got {arguments.seeds}; allowed: 1 to {_MAX_SEEDS}")
    if None not in (arguments.warmup_steps, arguments.warmup_proportion):
        problems.append("--warmup-steps: got a value beside --warmup-proportion; allowed: one of them")
    if problems:
        raise InputError(
            f"bert-train finetune --task {arguments.task}: {len(problems)} problem(s)\n"
            + "\n".join(f"  {line}" for line in problems)
        )
    kind, described = _find_model(arguments)
    read_vocabulary_of(described, None if kind is None else arguments.model)
    # Of the vocabulary alone: some programs count rows of padding as entries.
    model = {**described.model.model_dump(), "vocab_size": None, "config_file": str(described.model_file)}
    output = Path(os.path.abspath(arguments.output))
    start = None if kind is None else {"path": str(arguments.model), "format": kind, "load": "weights"}
    optimizer = _optimizer(arguments)
    document = {
        "contract_version": CONTRACT_VERSION,
        # Every rank draws one; that of rank 0, which claims the folder, counts.
        "job": {"name": f"finetune-{arguments.task}", "namespace": "local", "uid": str(uuid.uuid4())},
        "output_folder": str(output),
        "if_exists": arguments.if_exists,
        "world": _world(arguments, environment),
        "seed": arguments.seed,
        "device": arguments.device,
        "collectives": arguments.collectives,
        "precision": arguments.precision,
        "activation_checkpointing": False,
        "model": model,
        "optimizer": optimizer,
        "reduction": {"compression": "none", "overlap": True},
        "dataset": {"folder": str(output / "data"), "vocabulary_file": str(described.vocabulary_file)},
        "initial_checkpoint": start,
        "gpu_memory_limit_gib": None,
        "profile_steps": None,
        "stages": [_stage(arguments, optimizer), *_exports(arguments)],
        "checkpoint": {
            "every_steps": None,
            "every_seconds": 600,
            "every_samples": None,
            "min_samples_to_start": 0,
            "periodic": True,
            "keep": 3,
            "delete_after_success": False,
        },
        "logging": {"every_steps": 10, "tensorboard": True, "prometheus_port": None, "sample_ledger": False},
    }
    try:
        return parse_run_config(document, source="bert-train finetune")
    except InputError as error:
        raise settings_as_options(error) from error


def check_examples(config: RunConfig, environment: Mapping[str, str] = os.environ) -> None:
    """Read the task's files once before anything else: a mistake in them costs no output folder. On rank 0 alone.

    Raises:
        InputError: as ``tasks.reading.read_examples`` raises it; names options.
    """
    if (read_launched(environment) or _ALONE).rank != 0:
        return
    for stage in config.stages:
        if isinstance(stage, FinetuneStage):
            try:
                read_examples(stage.task, stage.data)
            except InputError as error:
                raise files_as_options(error) from error


def render_config(config: RunConfig) -> str:
    """Return the document as ``--show`` prints it."""
    return json.dumps(config.model_dump(mode="json"), indent=2)


def describe_results(config: RunConfig, environment: Mapping[str, str] = os.environ) -> str:
    """Return what a finished run has found and where things are; empty on every rank but 0."""
    if (read_launched(environment) or _ALONE).rank != 0:
        return ""
    # They load torch, which the run has done by now.
    from bert_trainer.checkpoints.checkpoint import MODEL_FILE
    from bert_trainer.output.metrics import find_evaluations, read_metrics
    from bert_trainer.output.report import REPORT_FILE
    from bert_trainer.training.finetuning.best import BEST_FOLDER
    from bert_trainer.training.finetuning.stage_end import PREDICTIONS_FOLDER, RESULTS_FILE
    from bert_trainer.training.start_weights import FINETUNE_FOLDER

    folder = Path(config.output_folder)
    (stage,) = (stage for stage in config.stages if isinstance(stage, FinetuneStage))
    results = folder / FINETUNE_FOLDER / stage.name
    records = [*read_metrics(folder)]
    said = [str(it["message"]) for it in find_evaluations(records, stage.name, "after") if it.get("message")]
    exported = [str(record["path"]) for record in records if record.get("event") == "exported" and record.get("path")]
    places = [
        ("results", results / RESULTS_FILE),
        ("best weights", results / BEST_FOLDER / MODEL_FILE),
        ("predictions", results / PREDICTIONS_FOLDER),
        ("report", folder / REPORT_FILE),
        *(("model", folder / path) for path in dict.fromkeys(exported)),
    ]
    return "\n".join([*said[-1:], *(f"{what:<13}{path}" for what, path in places if path.exists())])


def _choices(section: type[Any], field: str) -> tuple[str, ...]:
    choices: tuple[str, ...] = get_args(section.model_fields[field].annotation)
    return choices


def _add_data(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--data", type=Path, metavar="FOLDER", help="GLUE and SQuAD: folder with the official files, unpacked"
    )
    for name, of in (
        ("train", "to train on"),
        ("validation", "to evaluate on"),
        ("test", "without labels, to predict"),
    ):
        group.add_argument(f"--{name}", type=Path, metavar="FILE", help=f"own tables: file {of}")
    group.add_argument(
        "--data-format",
        default="auto",
        choices=_choices(TaskData, "format"),
        help="own tables: format of the files; default: by each file's suffix",
    )
    for name, what in (
        ("text", "the text, or the first of a pair"),
        ("text-pair", "the second text of a pair"),
        ("label", "the class, or for regression the number"),
        ("question", "spans: the question"),
        ("context", "spans: the text that holds the answer"),
        ("answer", "spans: the answer as it stands in the context"),
        ("answer-start", "spans: offset of the answer's first character; default: its first occurrence"),
        ("id", "what predictions are labelled with; default: the row's number"),
    ):
        group.add_argument(f"--{name}", metavar="COLUMN", help=what)
    group.add_argument(
        "--labels",
        nargs="+",
        default=[],
        metavar="LABEL",
        help="classes in the order of their numbers; default: those of the file to train on, sorted",
    )


def _add_weights(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--model", type=Path, metavar="PATH", help="weights to start from: a folder or a file")
    group.add_argument(
        "--format",
        choices=_choices(InitialCheckpoint, "format"),
        help="of the weights; default: the one whose files lie there",
    )
    group.add_argument(
        "--model-config",
        type=Path,
        metavar="FILE",
        help="bert_config.json or config.json; default: the one beside the weights",
    )
    group.add_argument(
        "--vocabulary-file",
        type=Path,
        metavar="FILE",
        help="one token per line, or a tokenizer.json; default: the one beside the weights",
    )
    group.add_argument(
        "--start-from",
        default="pretrained",
        choices=_choices(FinetuneStage, "start_from"),
        help="random: no weights are read, --model gives sizes and vocabulary alone; default: %(default)s",
    )
    case = group.add_mutually_exclusive_group()
    for option, value in (("--lower-case", True), ("--cased", False)):
        case.add_argument(
            option,
            dest="lower_case",
            action="store_const",
            const=value,
            help="text "
            + ("loses capitals, and accents unless a tokenizer's files keep them" if value else "keeps its capitals")
            + "; default: as the weights' tokenizer says",
        )


# Option, type, default and what it says. The defaults are a finetune stage's.
_NUMBERS: tuple[tuple[str, type[int] | type[float], int | float | None, str], ...] = (
    ("epochs", float, 3.0, "passes over the rows to train on"),
    ("max-unknown-share", float, MAX_UNKNOWN_SHARE, "of the tokens to train on, those that may be [UNK]; at most 1"),
    ("learning-rate", float, 2e-5, "peak learning rate, at the end of the warm-up"),
    ("warmup-proportion", float, None, f"share of a run's steps; default: {_WARMUP_PROPORTION:g}"),
    ("warmup-steps", int, None, "steps of each run, in place of --warmup-proportion"),
    ("batch-size", int, 32, "rows per optimizer step over all ranks; without synchronized gradients, on each"),
    ("micro-batch-size", int, None, "rows of one pass on one rank; default: as many as 4096 tokens hold"),
    ("sequence-length", int, None, f"tokens of a row, at most; default: {_LENGTH}, for squad and spans {_SPAN_LENGTH}"),
    ("doc-stride", int, 128, "spans: tokens between the starts of two windows"),
    ("max-query-length", int, 64, "spans: tokens of a question, at most"),
    ("max-answer-length", int, 30, "spans: tokens of a predicted answer, at most"),
    ("seeds", int, 1, "runs, with --seed and the numbers after it; the best one is kept"),
    ("seed", int, 42, "of the first run"),
    ("beta1", float, 0.9, "decay rate of the first moment"),
    ("beta2", float, 0.999, "decay rate of the second moment"),
    ("epsilon", float, 1e-8, "added to the root of the second moment"),
    ("weight-decay", float, 0.01, "not of biases and LayerNorm"),
    ("max-gradient-norm", float, 1.0, "gradients are clipped to this L2 norm; 0: never"),
    ("head-dropout", float, None, "dropout before the task head; default: as the architecture's authors have it"),
    ("evaluate-every-epochs", float, 1.0, "epochs between evaluations; the last step is evaluated as well"),
    ("patience", int, None, "evaluations without improvement that end a run early; default: it takes all its epochs"),
    ("min-improvement", float, 0.0, "with --patience: the least that counts as an improvement of the metric"),
)


def _add_training(group: argparse._ArgumentGroup) -> None:
    for name, kind, default, what in _NUMBERS:
        said = "" if default is None else f"; default: {default:g}"
        group.add_argument(f"--{name}", type=kind, default=default, metavar="N", help=what + said)
    group.add_argument(
        "--decay", default="linear", choices=_choices(Schedule, "decay"), help="of the learning rate; default: linear"
    )
    group.add_argument(
        "--after-warmup",
        default="continuous",
        choices=_choices(Schedule, "after_warmup"),
        help="published: decay counts from step 0, as in Google's scripts; continuous: from the end of the "
        "warm-up; default: %(default)s",
    )
    group.add_argument(
        "--optimizer", default="adamw", choices=_choices(OptimizerConfig, "name"), help="default: %(default)s"
    )
    group.add_argument(
        "--no-bias-correction",
        dest="bias_correction",
        action="store_false",
        help="moments as they are, as in Google's scripts",
    )
    group.add_argument(
        "--learning-rate-scaling",
        default="none",
        choices=_choices(FinetuneStage, "learning_rate_scaling"),
        help="sqrtRanks: times the square root of the number of ranks; default: %(default)s",
    )
    group.add_argument(
        "--no-synchronize-gradients",
        dest="synchronize_gradients",
        action="store_false",
        help="every rank trains a model of its own, and the best one is kept",
    )
    group.add_argument("--metric", help="metric by which the best evaluation is chosen; default: the task's main one")


def _data_problems(arguments: argparse.Namespace) -> Iterator[str]:
    """Yield what a task lacks, and what it has no use for, by options."""
    kind = TASKS[arguments.task].kind
    named = [*_FILES, *TableColumns.model_fields, "labels"]
    given = [name for name in named if getattr(arguments, name)]
    if arguments.task not in OWN_TABLES:
        if arguments.data is None:
            yield "--data is required: the folder with the official files"
        yield from (f"{_option(name)}: got a value; allowed: with your own tables" for name in given)
        return
    if arguments.data is not None:
        yield f"--data: got {shown(arguments.data)}; allowed: with GLUE and SQuAD; name --train and --validation"
    needed = ("train", "validation", *NEEDED_COLUMNS[kind])
    yield from (f"{_option(name)} is required: {_needed(name)}" for name in needed if name not in given)
    useful = {*_FILES, *needed, *OPTIONAL_COLUMNS[kind], *(["labels"] if kind == "classification" else [])}
    yield from (f"{_option(name)}: got a value; allowed: not with {kind}" for name in given if name not in useful)


def _missing_files(arguments: argparse.Namespace) -> Iterator[str]:
    for name, path in vars(arguments).items():
        if not isinstance(path, Path):
            continue
        try:
            exists = path.exists()
        except OSError as error:
            got = str(path) if len(str(path)) <= _SHOWN_CHARACTERS else f"{str(path)[:_SHOWN_CHARACTERS]}..."
            yield f"{_option(name)}: got {shown(got)} ({error.strerror}); allowed: a path that can be read"
            continue
        if not exists and name in ("data", *_FILES):
            yield f"--{name}: got {shown(path)}, which does not exist; allowed: {_needed(name)}"


def _needed(name: str) -> str:
    return {"data": "a folder"}.get(name, "a file" if name in _FILES else "the name of a column")


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _find_model(arguments: argparse.Namespace) -> tuple[str | None, Described]:
    """Return the format of the weights, None to start without any, and what is beside them."""
    model: Path | None = arguments.model
    files = (arguments.vocabulary_file, arguments.model_config)
    if arguments.start_from == "random":
        if model is None and None in files:
            raise InputError(
                "--model is required: a folder with config.json and vocab.txt, or --model-config and --vocabulary-file",
                hint="name what describes the model that is to be trained from random weights",
            )
        if model is not None and "bert-trainer" in find_formats(model):
            return None, find_description(model, "bert-trainer", *files)
        return None, describe_model(model or Path(), *files)
    if model is None:
        raise InputError(
            "--model is required: weights to start from",
            hint="name a folder of weights, such as bert-data fetch bert-base-uncased brings; without any, write "
            "--start-from random",
        )
    kind = arguments.format or next(iter(find_formats(model)), None)
    if kind is None:
        raise InputError(
            f"--model: got {shown(model)}, where no weights were recognized; allowed: a folder of Hugging Face, a "
            "checkpoint of TensorFlow 1 or of NVIDIA, an output folder of this trainer",
            hint="check the path, or name the --format",
        )
    return kind, find_description(model, kind, *files)


def _world(arguments: argparse.Namespace, environment: Mapping[str, str]) -> Document:
    place = read_launched(environment) or _ALONE
    return {"ranks": place.size, "hosts": _given(arguments.hosts, -(-place.size // max(place.local_size, 1)))}


def _optimizer(arguments: argparse.Namespace) -> Document:
    return {
        "name": arguments.optimizer,
        **{name: getattr(arguments, name) for name in ("beta1", "beta2", "epsilon", "weight_decay")},
        "bias_correction": arguments.bias_correction,
        "max_gradient_norm": arguments.max_gradient_norm or None,
        "partitioning": "none",
    }


def _stage(arguments: argparse.Namespace, optimizer: Document) -> Document:
    is_spans = TASKS[arguments.task].kind == "spans"
    length = _given(arguments.sequence_length, _SPAN_LENGTH if is_spans else _LENGTH)
    fitting = max(1, _TOKENS_PER_PASS // max(1, length))
    stopping = None
    if arguments.patience is not None:
        stopping = {"patience": arguments.patience, "min_improvement": arguments.min_improvement}
    same = (
        *("task", "start_from", "lower_case", "doc_stride", "max_query_length", "max_answer_length", "epochs"),
        *("learning_rate_scaling", "head_dropout", "synchronize_gradients", "evaluate_every_epochs", "metric"),
        "max_unknown_share",
    )
    return {
        "kind": "finetune",
        "name": arguments.task,
        **{name: getattr(arguments, name) for name in same},
        "data": _data(arguments),
        "sequence_length": length,
        "global_batch_size": arguments.batch_size,
        "micro_batch_size": _given(arguments.micro_batch_size, max(1, min(fitting, arguments.batch_size))),
        "schedule": {
            "learning_rate": arguments.learning_rate,
            "warmup": _warmup(arguments),
            "decay": arguments.decay,
            "after_warmup": arguments.after_warmup,
        },
        "optimizer": optimizer,
        "seeds": [arguments.seed + number for number in range(arguments.seeds)],
        "early_stopping": stopping,
    }


def _warmup(arguments: argparse.Namespace) -> Document:
    if arguments.warmup_steps is not None:
        return {"steps": arguments.warmup_steps}
    proportion = arguments.warmup_proportion
    return {"proportion": _WARMUP_PROPORTION if proportion is None else proportion}


def _given(value: int | None, default: int) -> int:
    return default if value is None else value


def _data(arguments: argparse.Namespace) -> Document:
    if arguments.data is not None:
        return {"folder": str(arguments.data)}
    return {
        **{name: str(path) for name in _FILES if (path := getattr(arguments, name)) is not None},
        "format": arguments.data_format,
        "columns": {
            name: value for name in TableColumns.model_fields if (value := getattr(arguments, name)) is not None
        },
        "labels": arguments.labels,
    }


def _exports(arguments: argparse.Namespace) -> list[Document]:
    formats = dict.fromkeys(arguments.export)
    return [{"kind": "export", "name": f"export-{form}", "format": form} for form in formats]
