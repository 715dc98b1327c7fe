"""``bert-train finetune``: a run configuration with one fine-tuning stage, made from a command line.

Sizes and vocabulary come from beside the weights, everything else from options: those of a job's finetune stage, with
its defaults and rules. Starts nothing and imports no torch: a mistake is told before anything has loaded.
"""

from __future__ import annotations

import argparse
import json
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from pydantic import ValidationError

from bert_job.as_written import as_written
from bert_job.finetuning import FinetuneSpec
from bert_job.foreign_text import printable
from bert_job.problems import Problem
from bert_job.resolve import resolve_run
from bert_job.rules.all_rules import find_problems
from bert_job.run_config import DatasetConfig, InitialCheckpoint, JobIdentity, OptimizerConfig, RunConfig, WorldConfig
from bert_job.run_stages import FinetuneStage
from bert_job.section import MAX_PATH_CHARACTERS, single_errors
from bert_job.training import TrainingSpec
from bert_job.weights import ExportFormat, InitialCheckpointSpec
from bert_trainer.checkpoints.description import Described, describe_model, find_description, read_vocabulary_of
from bert_trainer.checkpoints.foreign_formats import find_formats
from bert_trainer.config.options import Options
from bert_trainer.errors import InputError
from bert_trainer.system.launched_rank import LaunchedRank, read_launched
from bert_trainer.tasks.reading import read_examples

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_SHOWN_CHARACTERS = 120
_ALONE = LaunchedRank("MPI", rank=0, size=1, local_size=1)
_FILES = ("folder", "train", "validation", "test")
_PATHS = ("output", "model", "model_config", "vocabulary_file")
_STAGE = Options(
    FinetuneSpec,
    title="training",
    names={
        "data.folder": "data",
        "data.format": "data-format",
        "global_batch_size": "batch-size",
        "optimizer.name": "optimizer",
        "warmup.proportion": "warmup-proportion",
        "warmup.steps": "warmup-steps",
    },
)
_SETTINGS = Options(TrainingSpec, title="arithmetic", only=("seed", "precision", "collectives"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    for option, metavar, what in (
        ("--output", "FOLDER", "output folder of the run"),
        ("--model", "PATH", "weights to start from: a folder or a file"),
        ("--model-config", "FILE", "bert_config.json or config.json; default: the one beside the weights"),
        ("--vocabulary-file", "FILE", "one token per line, or a tokenizer.json; default: the one beside the weights"),
    ):
        parser.add_argument(option, required=option == "--output", type=Path, metavar=metavar, help=what)
    parser.add_argument(
        "--format",
        choices=_choices(InitialCheckpointSpec, "format"),
        help="of the weights; default: the one whose files lie there",
    )
    _STAGE.add_to(parser)
    _STAGE.add_switch(parser, "--cased", "lower_case", to=False)
    _SETTINGS.add_to(parser)
    run = parser.add_argument_group("run")
    run.add_argument("--device", default="auto", choices=_choices(RunConfig, "device"), help="default: %(default)s")
    run.add_argument(
        "--export",
        action="append",
        default=[],
        choices=[form for form in get_args(ExportFormat) if form != "tensorflow"],
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
        type=_count,
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
    world = _world(arguments, environment)
    spec = _read_options(arguments)
    task, start = spec.stages[0].name, spec.initial_checkpoint
    _refuse(task, [*map(_explain_rule, find_problems(spec, world.ranks)), *_bad_paths(arguments, spec)])
    kind, described = _find_model(arguments, has_weights=start is not None)
    read_vocabulary_of(described, None if kind is None else arguments.model)
    # Of the vocabulary alone: some programs count rows of padding as entries.
    found = {"vocabulary_size": None, "config_file": str(described.model_file)}
    output = Path(os.path.abspath(arguments.output))
    config = resolve_run(
        spec,
        lambda path: path,
        # Every rank draws one; that of rank 0, which claims the folder, counts.
        job=JobIdentity(name=_name_run(task, arguments.model), namespace="local", uid=str(uuid.uuid4())),
        output_folder=str(output),
        if_exists=arguments.if_exists,
        world=world,
        device=arguments.device,
        model=described.model.model_copy(update=found),
        dataset=DatasetConfig(folder=str(output / "data"), vocabulary_file=str(described.vocabulary_file)),
        # That of the stage, as earlier releases had it: nothing trains with it, and a run that has begun keeps it.
        optimizer=_optimizer_of(spec),
        initial_checkpoint=None
        if start is None
        else InitialCheckpoint(**{**dict(start), "path": str(arguments.model), "format": kind}),
    )
    # Once more, with the sizes of the weights.
    _refuse(task, map(_explain_rule, find_problems(as_written(config), world.ranks)))
    return config


def check_examples(config: RunConfig, environment: Mapping[str, str] = os.environ) -> None:
    """Read the task's files once before anything else: a mistake in them costs no output folder. On rank 0 alone.

    Raises:
        InputError: as ``tasks.reading.read_examples`` raises it.
    """
    if (read_launched(environment) or _ALONE).rank != 0:
        return
    for stage in config.stages:
        if isinstance(stage, FinetuneStage):
            read_examples(stage.task, stage.data)


def render_config(config: RunConfig) -> str:
    """Return the document as ``--show`` prints it."""
    return json.dumps(config.model_dump(mode="json"), indent=2)


def _name_run(task: str, model: Path | None) -> str:
    """Return what the run is called in its report: after its task, and the model that it starts from."""
    if model is None:
        return task
    # An export is called after its run, since all of them have the same name.
    of_run = model.parent.name == "export" and model.absolute().parents[1].name
    return f"{task}-{of_run or model.absolute().name}"


def _optimizer_of(spec: TrainingSpec) -> OptimizerConfig:
    (stage,) = (stage.finetune for stage in spec.stages if stage.finetune is not None)
    return OptimizerConfig(**dict(stage.optimizer), partitioning="none")


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text)):
        raise argparse.ArgumentTypeError(f"got {text!r:.40}; allowed: a whole number from 1 to 999999999")
    return int(text)


def _read_options(arguments: argparse.Namespace) -> TrainingSpec:
    """Return what the options say, as a job would; raises InputError for values that no job takes."""
    stage = {"data": {}, **_STAGE.given(arguments)}
    if stage["data"].get("format") == "auto":
        del stage["data"]["format"]  # as if it were left out, also where a task's files have a format of their own
    document = {
        **_SETTINGS.given(arguments),
        # Read from beside the weights, once the rest is as it should be.
        "model": {"config_file": "config.json"},
        "stages": (
            {"name": stage["task"], "finetune": stage},
            *({"name": f"export-{form}", "export": {"format": form}} for form in dict.fromkeys(arguments.export)),
        ),
    }
    if stage.get("start_from") != "random":
        document["initial_checkpoint"] = {
            "path": "weights",
            **({} if arguments.format is None else {"format": arguments.format}),
        }
    try:
        return TrainingSpec.model_validate(document, by_alias=False, by_name=True)
    except ValidationError as error:
        _refuse(stage["task"], map(_explain, single_errors(error)))
        raise


def _refuse(task: str, problems: Iterable[str]) -> None:
    if lines := list(problems):
        raise InputError(
            f"bert-train finetune --task {task}: {len(lines)} problem(s)\n" + "\n".join(f"  {line}" for line in lines)
        )


def _explain(error: ErrorDetails) -> str:
    """Return what is wrong with a value, by its option."""
    place = error["loc"]
    if place[0] == "stages":
        return _STAGE.explain({**error, "loc": place[3:]})
    return _SETTINGS.explain(error)


def _explain_rule(problem: Problem) -> str:
    """Return which rule is broken, by the option at whose field it stands."""
    return _STAGE.explain_rule(problem, problem.path.removeprefix("spec.stages[0].").removeprefix("finetune."))


def _bad_paths(arguments: argparse.Namespace, spec: TrainingSpec) -> Iterator[str]:
    """Yield the files that cannot be read, by their options."""
    stage = spec.stages[0].finetune
    data = {} if stage is None else {_STAGE.of(f"data.{name}"): getattr(stage.data, name) for name in _FILES}
    for option, path in ({f"--{name.replace('_', '-')}": getattr(arguments, name) for name in _PATHS} | data).items():
        if path is None:
            continue
        try:
            str(path).encode()
            exists = Path(path).exists()
        except UnicodeEncodeError:
            yield f"{option}: got {printable(path)}; allowed: a path in UTF-8"
            continue
        except OSError as error:
            got = str(path) if len(str(path)) <= _SHOWN_CHARACTERS else f"{str(path)[:_SHOWN_CHARACTERS]}..."
            yield f"{option}: got {printable(got)} ({error.strerror}); allowed: a path that can be read"
            continue
        if not exists and option in data:
            yield f"{option}: got {printable(path)}, which does not exist; allowed: a path that does"
        elif len(str(path)) > MAX_PATH_CHARACTERS:
            yield f"{option}: got {len(str(path))} characters; allowed: a path of at most {MAX_PATH_CHARACTERS}"


def _choices(section: type[Any], field: str) -> tuple[str, ...]:
    choices: tuple[str, ...] = get_args(section.model_fields[field].annotation)
    return choices


def _find_model(arguments: argparse.Namespace, *, has_weights: bool) -> tuple[str | None, Described]:
    """Return the format of the weights, None to start without any, and what is beside them."""
    model: Path | None = arguments.model
    files = (arguments.vocabulary_file, arguments.model_config)
    if not has_weights:
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
            f"--model: got {printable(model)}, where no weights were recognized; allowed: a folder of Hugging Face, a "
            "checkpoint of TensorFlow 1 or of NVIDIA, an output folder of this trainer",
            hint="check the path, or name the --format",
        )
    return kind, find_description(model, kind, *files)


def _world(arguments: argparse.Namespace, environment: Mapping[str, str]) -> WorldConfig:
    place = read_launched(environment) or _ALONE
    hosts = -(-place.size // max(place.local_size, 1)) if arguments.hosts is None else arguments.hosts
    return WorldConfig(ranks=place.size, hosts=hosts)
