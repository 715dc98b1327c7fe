"""``bert-data build``: text to shards, by hand with a progress bar, or as the child of a job.

Under mpirun rank 0 builds and the other ranks work for it. A job's child reports as ``output.progress`` describes and
leaves a termination record.
"""

from __future__ import annotations

import argparse
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bert_job.recipes import PUBLISHED_LENGTHS, predictions_of_recipe
from bert_job.run_config import DatasetConfig, RunConfig
from bert_job.run_stages import EvaluateStage, FinetuneStage, PrepareStage, PretrainStage
from bert_trainer.config.checks import load_run_config
from bert_trainer.dataset.build.pipeline import OpenPool, build_dataset
from bert_trainer.dataset.build.resume import Length
from bert_trainer.dataset.commands.build_options import add_options, parse_lengths, parse_stage
from bert_trainer.dataset.commands.stop_signals import StopSignals
from bert_trainer.dataset.commands.terminal import ProgressBar, print_line
from bert_trainer.dataset.corpus.corpora import open_corpora
from bert_trainer.dataset.shards.dataset_info import DatasetInfo, LengthInfo
from bert_trainer.dataset.workers.mpi_pool import MpiWorld, world_size
from bert_trainer.errors import EXIT_FAILED, InputError, Stopped, TrainerError
from bert_trainer.output.progress import Reporter
from bert_trainer.output.run_folder import RunFolder, release_unused_claim
from bert_trainer.output.termination import write_termination
from bert_trainer.system import heartbeat
from bert_trainer.system.busy_beats import beat_while_busy

logger = logging.getLogger(__name__)

_FENCE_S = 1.0
"""Seconds between two looks at the run folder's fence: a read from shared storage, while a build checks whether to stop
hundreds of times a second."""


def add_command(commands: Any) -> None:
    """Add the verb and its arguments."""
    command = commands.add_parser("build", help="make a vocabulary and shards from text")
    command.set_defaults(command=build)
    command.description = (
        "Make a vocabulary and shards from text; what an earlier build finished is kept. With --recipe mlperf the "
        "variables SEQ_LEN and SHARD_NUM of the published scripts stand for --length and --balanced-shards where these "
        "are not given."
    )
    add_options(command)


def build(arguments: argparse.Namespace) -> int:
    """Build what a run configuration asks for, or what the options say."""
    # Asked of the environment: importing mpi4py starts MPI.
    if world_size() == 1:
        # Where several pods build, ranks without a task wait as healthy ones do: nobody watches them.
        heartbeat.begin(os.environ)
        with beat_while_busy("the data build"):
            return _build(arguments, None)
    with MpiWorld() as world:
        # Only rank 0 parses, locks, logs and reports: what the other ranks print would come once for each of them.
        if world.rank == 0:
            return _build(arguments, world.pool)
        world.serve()
        return 0


def _build(arguments: argparse.Namespace, open_pool: OpenPool | None) -> int:
    with StopSignals("finished shards are kept, the next build resumes from them") as stop:
        function = _build_by_hand if arguments.config is None else _build_for_job
        return function(arguments, stop, open_pool)


def _build_by_hand(arguments: argparse.Namespace, stop: StopSignals, open_pool: OpenPool | None) -> int:
    stage = parse_stage(arguments, os.environ)
    dataset = DatasetConfig(folder=str(arguments.output), vocabulary_file=arguments.vocabulary)
    # Opened for its size alone, which takes a listing; the build opens it again with its own processes.
    with ProgressBar(open_corpora(stage.all_corpora).text_bytes) as bar:
        record = build_dataset(
            stage,
            dataset,
            parse_lengths(arguments, os.environ),
            bar,
            check=stop.check,
            open_pool=open_pool,
            compared=bar.compared,
        )
    print_line(_summary(arguments.output, record))
    return 0


def _summary(root: Path, record: DatasetInfo) -> str:
    counts = record.counts
    assert counts is not None, "a complete dataset has been counted"
    lines = [
        f"{root}: {counts.documents_training} documents to train on, {counts.documents_held_out} held out, "
        f"{counts.duplicates_dropped} near-duplicates dropped; vocabulary of {record.vocabulary_entries}, "
        f"{record.unknown_share or 0:.3%} of the tokens are [UNK]",
        *(
            f"  {length.folder}: {length.samples_training} samples in {len(length.training)} shard(s), "
            f"{length.samples_held_out} held out"
            + ("" if (tokens := length.row_tokens_training) is None else _fullness(length, tokens))
            + (f"; cut into {len(cut.training)} in {cut.folder}" if (cut := length.balanced) else "")
            for length in record.lengths
        ),
        f"  {record.seconds:.1f} s, {record.cpu_seconds:.1f} s of processor time",
    ]
    return "\n".join(lines)


def _fullness(length: LengthInfo, num_tokens: int) -> str:
    share = num_tokens / max(1, length.samples_training * length.sequence_length)
    return f"; rows are {share:.1%} full"


def _build_for_job(arguments: argparse.Namespace, stop: StopSignals, open_pool: OpenPool | None) -> int:
    """Run every prepare stage of a job, in order, and leave a termination record."""
    name: str | None = None
    config, attempt = None, 1
    try:
        config = load_run_config(arguments.config)
        attempt = int(os.environ.get("BERT_ATTEMPT", "1"))
        # Before anything is written: a builder of an earlier attempt that still runs fails at its next look at the
        # fence.
        folder = RunFolder.claim(config, attempt=attempt)
        reporter = Reporter(config.job.uid, attempt, attempt_run=folder.attempt_run)
        check = _check_with_fence(stop, folder)
        for stage in config.stages:
            if isinstance(stage, PrepareStage):
                name = stage.name
                _run_stage(stage, config, reporter, check, open_pool)
    except TrainerError as error:
        if config is not None and isinstance(error, InputError):
            release_unused_claim(config, attempt=attempt)
        write_termination(type(error).__name__, error.exit_code, str(error), stage=name)
        raise
    except Exception as error:
        # A bug: the traceback goes to the log, its last line to the record.
        write_termination(type(error).__name__, EXIT_FAILED, str(error), stage=name)
        logger.exception("Unexpected error")
        return EXIT_FAILED
    write_termination("Succeeded", 0, "", stage=name)
    return 0


def _check_with_fence(stop: StopSignals, folder: RunFolder) -> Callable[[], None]:
    """Return what stops a build on a signal, or because a later attempt has taken over the run folder."""
    checked_at_s = 0.0

    def check() -> None:
        nonlocal checked_at_s
        stop.check()
        if time.monotonic() - checked_at_s >= _FENCE_S:
            folder.check_fence()
            checked_at_s = time.monotonic()

    return check


def _run_stage(
    stage: PrepareStage,
    config: RunConfig,
    reporter: Reporter,
    check: Callable[[], None],
    open_pool: OpenPool | None,
) -> None:
    try:
        build_dataset(stage, config.dataset, wanted_lengths(config), reporter, check=check, open_pool=open_pool)
    except Stopped as stopped:
        # A record in the log as well: with several pods a launcher in another one sees nothing else of rank 0.
        reporter.report("stopped", stage=stage.name, message=str(stopped))
        raise
    except TrainerError as error:
        reporter.report("failed", stage=stage.name, message=str(error))
        raise


def wanted_lengths(config: RunConfig) -> list[Length]:
    """Return the lengths of all stages that read the dataset, and those that the prepare stage adds, each once.

    None where the others only fine-tune, which takes the vocabulary alone. A job with nothing but a prepare stage makes
    a dataset for others: without lengths of its own at the published ones.
    """
    readers = [stage for stage in config.stages if isinstance(stage, PretrainStage | EvaluateStage)]
    prepares = [stage for stage in config.stages if isinstance(stage, PrepareStage)]
    added = [length for stage in prepares for length in stage.lengths]
    lengths = [
        (reader.sequence_length, reader.max_predictions_per_sequence)
        for reader in (*(stage for stage in readers if stage.shards is None), *added)
    ]
    if not lengths and not any(isinstance(stage, FinetuneStage) for stage in config.stages):
        lengths = [(it, predictions_of_recipe(stage.recipe, it)) for stage in prepares for it in PUBLISHED_LENGTHS]
    return list(dict.fromkeys(lengths))
