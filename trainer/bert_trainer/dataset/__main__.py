"""``bert-data``: build, look at and check sharded datasets.

Parses arguments, answers signals and turns errors into exit codes; what is done is elsewhere. ``build`` with
a run configuration is a child of a job and reports as ``progress`` says; by hand it draws a bar.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from pydantic import ValidationError

from bert_trainer.config.run_config import (
    DatasetConfig,
    EvaluateStage,
    PrepareStage,
    PretrainStage,
    RunConfig,
    load_run_config,
)
from bert_trainer.dataset.build.pipeline import OpenPool, build_dataset
from bert_trainer.dataset.build.resume import Length
from bert_trainer.dataset.commands.build_options import add_build_options, recipe_lengths, recipe_settings
from bert_trainer.dataset.commands.convert import add_commands as add_rewriting
from bert_trainer.dataset.commands.corpus_option import add_corpus_options
from bert_trainer.dataset.commands.fetch import add_fetch_command
from bert_trainer.dataset.commands.inspect_shards import add_commands as add_inspecting
from bert_trainer.dataset.commands.progress_bar import ProgressBar
from bert_trainer.dataset.commands.read import add_read_command
from bert_trainer.dataset.corpus.corpora import open_corpora
from bert_trainer.dataset.shards.dataset_info import DatasetRecord
from bert_trainer.dataset.workers.mpi_pool import MpiWorld, world_size
from bert_trainer.dataset.workers.pool import STOP_SIGNALS
from bert_trainer.errors import EXIT_FAILED, InputError, Stopped, TrainerError
from bert_trainer.output.progress import Reporter
from bert_trainer.output.run_folder import RunFolder
from bert_trainer.output.termination import write_termination

logger = logging.getLogger(__name__)

_FENCE_S = 1.0

_SETTINGS = {
    "text": "--text",
    "vocabulary_size": "--vocabulary-size",
    "held_out_fraction": "--held-out-fraction",
    "near_duplicate_similarity": "--near-duplicate-similarity",
    "dupe_factor": "--dupe-factor",
    "masked_lm_probability": "--masked-lm-probability",
    "short_sequence_probability": "--short-sequence-probability",
    "seed": "--seed",
    "num_shards": "--shards",
    "num_processes": "--processes",
}
"""Fields of ``PrepareStage`` and the option that sets each by hand."""


_EMPTY_SHOWN = {"num_shards": "8, more for large text", "num_processes": "one per core"}


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit code: 0 done, 1 failed or a bad shard, 2 wrong input, 3 stopped on request."""
    arguments = _parser().parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s", stream=sys.stderr)
    try:
        command: Callable[[argparse.Namespace], int] = arguments.command
        return command(arguments)
    except TrainerError as error:
        _say(sys.stderr, f"bert-data: {error}")
        return error.exit_code
    except BrokenPipeError:
        sys.stdout = None  # what is left in its buffer has no reader
        return EXIT_FAILED


def build(arguments: argparse.Namespace) -> int:
    """Build what a run configuration asks for, or what the options say."""
    if world_size() == 1:
        return _build(arguments, None)
    with MpiWorld() as world:
        if world.rank == 0:
            return _build(arguments, world.pool)
        world.serve()
        return 0


def _build(arguments: argparse.Namespace, open_pool: OpenPool | None) -> int:
    with _StopRequest() as stop:
        function = _build_by_hand if arguments.config is None else _build_as_child
        return function(arguments, stop, open_pool)


def _build_as_child(arguments: argparse.Namespace, stop: _StopRequest, open_pool: OpenPool | None) -> int:
    try:
        config = load_run_config(arguments.config)
        attempt = int(os.environ.get("BERT_ATTEMPT", "1"))
        folder = RunFolder.claim(config, attempt=attempt)
        _build_for_job(config, Reporter(config.job.uid, attempt), folder, stop, open_pool)
    except TrainerError as error:
        write_termination(type(error).__name__, error.exit_code, str(error), stage=stop.stage)
        raise
    except Exception as error:
        # A bug: the traceback goes to the log, its last line to the record.
        write_termination(type(error).__name__, EXIT_FAILED, str(error), stage=stop.stage)
        logger.exception("Unexpected error")
        return EXIT_FAILED
    write_termination("Succeeded", 0, "", stage=stop.stage)
    return 0


def _build_for_job(
    config: RunConfig, reporter: Reporter, folder: RunFolder, stop: _StopRequest, open_pool: OpenPool | None
) -> None:
    """Run every prepare stage, in order."""
    checked_at_s = 0.0

    def check() -> None:
        nonlocal checked_at_s
        stop.check()
        # It is a read from shared storage, and this is called hundreds of times a second.
        if time.monotonic() - checked_at_s >= _FENCE_S:
            folder.check_fence()
            checked_at_s = time.monotonic()

    try:
        for stage in config.stages:
            if isinstance(stage, PrepareStage):
                stop.stage = stage.name
                build_dataset(stage, config.dataset, wanted_lengths(config), reporter, check=check, open_pool=open_pool)
    except Stopped as stopped:
        reporter.report("stopped", stage=stop.stage, message=str(stopped))
        raise
    except TrainerError as error:
        reporter.report("failed", stage=stop.stage, message=str(error))
        raise


def wanted_lengths(config: RunConfig) -> list[Length]:
    """Return the lengths of all stages that read the dataset, each once; BERT's two where no stage does.

    A job with nothing but a prepare stage makes a dataset for others: at 128 and 512 tokens (Devlin et al.
    2019), with NVIDIA's numbers of predictions.
    """
    readers = [stage for stage in config.stages if isinstance(stage, PretrainStage | EvaluateStage)]
    lengths = [(stage.sequence_length, stage.max_predictions_per_sequence) for stage in readers if stage.shards is None]
    return list(dict.fromkeys(lengths)) or [(128, 20), (512, 80)]


def _build_by_hand(arguments: argparse.Namespace, stop: _StopRequest, open_pool: OpenPool | None) -> int:
    given = {field: getattr(arguments, field) for field in _SETTINGS if getattr(arguments, field) is not None}
    corpora = tuple(arguments.corpora or ())
    if ("text" in given) == bool(corpora) or arguments.output is None:
        raise InputError("build: needs either --config, or --output and one of --text and --corpus")
    try:
        settings = {**recipe_settings(arguments, os.environ), **given, "corpora": corpora}
        stage = PrepareStage(**settings, lower_case=not arguments.cased)
    except ValidationError as error:
        problems = [(_option_of(str(item["loc"][0])), item) for item in error.errors()]
        lines = [f"  {option}: got {item['input']!r}; {item['msg']}" for option, item in problems]
        raise InputError("build: wrong options\n" + "\n".join(lines)) from error
    dataset = DatasetConfig(folder=str(arguments.output), vocabulary_file=arguments.vocabulary)
    with ProgressBar(open_corpora(stage.all_corpora).text_bytes) as bar:
        record = build_dataset(
            stage,
            dataset,
            _lengths_by_hand(arguments),
            bar,
            check=stop.check,
            open_pool=open_pool,
            compared=bar.compared,
        )
    _say(sys.stdout, _summary(arguments.output, record))
    return 0


def _option_of(field: str) -> str:
    return _SETTINGS.get(field) or "--" + field.removeprefix("num_").replace("_", "-")


def _lengths_by_hand(arguments: argparse.Namespace) -> list[Length]:
    tokens, predictions = arguments.sequence_length or [], arguments.max_predictions or []
    if len(tokens) != len(predictions):
        raise InputError(
            f"build: got {len(tokens)} --sequence-length and {len(predictions)} --max-predictions; "
            "allowed: as many of one as of the other"
        )
    lengths = list(dict.fromkeys([*(arguments.length or []), *zip(tokens, predictions, strict=True)]))
    if not (lengths := lengths or recipe_lengths(arguments, os.environ)):
        raise InputError("build: needs at least one length", hint="add --length 128:20, for example")
    return lengths


def _summary(root: Path, record: DatasetRecord) -> str:
    counts = record.counts
    assert counts is not None, "a complete dataset has been counted"
    lines = [
        f"{root}: {counts.documents_training} documents to train on, {counts.documents_held_out} held out, "
        f"{counts.duplicates_dropped} near-duplicates dropped; vocabulary of {record.vocabulary_entries}, "
        f"{record.unknown_share or 0:.3%} of the tokens are [UNK]",
        *(
            f"  {length.folder}: {length.samples_training} samples in {len(length.training)} shard(s), "
            f"{length.samples_held_out} held out"
            + (f"; cut into {len(cut.training)} in {cut.folder}" if (cut := length.balanced) else "")
            for length in record.lengths
        ),
        f"  {record.seconds:.1f} s, {record.cpu_seconds:.1f} s of processor time",
    ]
    return "\n".join(lines)


class _StopRequest:
    """Remembers that a signal asked for a stop; from then on ``check`` raises."""

    def __init__(self, kept: str = "finished shards are kept, the next build goes on from there") -> None:
        self._kept = kept
        self._signal: str | None = None
        self.stage: str | None = None
        """Name of the stage that is being worked on."""

    def __enter__(self) -> _StopRequest:
        self._before = {number: signal.signal(number, self._note) for number in STOP_SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._signal = signal.Signals(number).name

    def check(self) -> None:
        """Raise Stopped where a stop was asked for."""
        if self._signal is not None:
            raise Stopped(f"stopped by {self._signal}; {self._kept}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bert-data",
        description="Text to sharded pretraining data, and back to something readable.",
        epilog="Exit codes: 0 done, 1 failed or a bad shard, 2 wrong input, 3 stopped on request.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_build(commands.add_parser("build", help="make a vocabulary and shards from text"))
    add_read_command(commands.add_parser("read", help="show, count or write the text that a build would read"))
    add_fetch_command(commands.add_parser("fetch", help="get published texts, vocabularies, weights and tasks"))
    add_rewriting(commands, _StopRequest, _length)
    add_inspecting(commands, lambda: _StopRequest("nothing was changed"))
    return parser


def _add_build(command: argparse.ArgumentParser) -> None:
    command.set_defaults(command=build)
    command.description = "Make a vocabulary and shards from text; what an earlier build finished is kept."
    command.add_argument("--config", type=Path, help="run configuration of a job; nothing else is needed with it")
    command.add_argument("--text", help="folder or file of text, or builtin:python-docs")
    add_corpus_options(command)
    command.add_argument("--output", type=Path, help="folder of the dataset")
    command.add_argument(
        "--length",
        type=_length,
        action="append",
        metavar="T:P",
        help="tokens and predictions, as 128:20; repeatable",
    )
    command.add_argument("--sequence-length", type=int, action="append", metavar="T", help="as in --length")
    command.add_argument("--max-predictions", type=int, action="append", metavar="P", help="as in --length")
    command.add_argument("--vocabulary", help="ready vocabulary, one token per line; default: one is learnt")
    command.add_argument("--cased", action="store_true", help="keep upper case and accents")
    add_build_options(command)
    defaults = PrepareStage(text="")
    for field, option in _SETTINGS.items():
        if field != "text":
            default = getattr(defaults, field)
            kind = type(default) if default is not None else int
            shown = _EMPTY_SHOWN[field] if default is None else default
            command.add_argument(option, dest=field, type=kind, help=f"default: {shown}")


def _length(text: str) -> Length:
    tokens, _, predictions = text.partition(":")
    if not (tokens.isdecimal() and predictions.isdecimal()):
        raise argparse.ArgumentTypeError(f"got {text!r}; allowed: tokens and predictions, as 128:20")
    return int(tokens), int(predictions)


def _say(stream: object, text: str) -> None:
    print(text, file=stream, flush=True)  # type: ignore[call-overload]  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
