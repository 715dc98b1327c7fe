"""``bert-train``: run, or only check, one run configuration; fine-tune; predict; read weights of other programs."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import get_args

from bert_job.progress import ATTEMPT_VARIABLE
from bert_job.run_config import RunConfig
from bert_job.weights import ExportFormat, InitialCheckpointSpec
from bert_trainer import finetune_command, predict_command
from bert_trainer.config.checks import load_run_config, parse_profile_steps, parse_run_config, resolve_model
from bert_trainer.errors import EXIT_FAILED, PEER_ENDED, InputError, TrainerError
from bert_trainer.output.runs_page import write_report_of
from bert_trainer.output.termination import report_error, write_termination
from bert_trainer.system import heartbeat

logger = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit code: 0 done, 1 failed, 2 bad input, 3 stopped on request with a checkpoint, 4 storage failed."""
    arguments = parse_arguments(argv)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s", stream=sys.stderr)
    # Rows are not padded, so nearly every step brings matrix shapes that oneDNN has not seen: its default of
    # 1,024 compiled kernels is hardly ever hit and cost 1 GB after a few hundred steps of a tiny model.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "16")
    # The profiler's library writes lines about its own stages into the log.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    try:
        heartbeat.begin(os.environ)
        if arguments.verb == "import":
            from bert_trainer.checkpoints.conversion import import_weights

            account = import_weights(
                arguments.path,
                arguments.format,
                arguments.output,
                form=arguments.to,
                vocabulary_file=arguments.vocabulary_file,
                model_file=arguments.model_config,
            )
            print(account)  # noqa: T201 - the result
            return 0
        if arguments.verb == "autotune":
            from bert_trainer.training.autotune import show_sizes

            print("\n".join(show_sizes(load_run_config(arguments.run_config))))  # noqa: T201 - the result
            return 0
        if arguments.verb == "finetune":
            return _finetune(arguments)
        if arguments.verb == "predict":
            predict_command.predict_file(arguments)
            return 0
        if arguments.verb == "report":
            print(write_report_of(arguments.folder))  # noqa: T201 - the result
            return 0
        if arguments.config is None:
            raise InputError("--config is required: the path of a run configuration")
        config = load_run_config(arguments.config)
        if arguments.profile is not None:
            steps = parse_profile_steps(arguments.profile)
            document = {**config.model_dump(mode="json"), "profile_steps": steps.model_dump()}
            # Through the parser again, for its rules between fields.
            config = parse_run_config(document, source="--profile")
        if arguments.check:
            resolve_model(config)
            return 0
        _train(config, plain=arguments.plain)
    except TrainerError as error:
        report_error("bert-train", error)
        return error.exit_code
    except Exception as error:
        # A bug, or a library's error: the traceback goes to the log, its last line to the record.
        if _lost_peer(error):
            logger.warning(PEER_ENDED)
            return EXIT_FAILED
        write_termination(type(error).__name__, EXIT_FAILED, str(error))
        logger.exception("Unexpected error")
        return EXIT_FAILED
    return 0


def _finetune(arguments: argparse.Namespace) -> int:
    config = finetune_command.make_run_config(arguments)
    if arguments.show:
        print(finetune_command.render_config(config))  # noqa: T201 - the result
        return 0
    finetune_command.check_examples(config)
    _stop_on_interrupt()
    _train(config, plain=arguments.plain)
    return 0


def _train(config: RunConfig, *, plain: bool) -> None:
    # Imported here: a wrong configuration is refused before they have loaded.
    from bert_trainer.output.console import displayed
    from bert_trainer.training.run import train

    with displayed(Path(config.output_folder), os.environ, plain=plain):
        train(config, attempt=int(os.environ.get(ATTEMPT_VARIABLE, "1")))


def _stop_on_interrupt() -> None:
    """Make Ctrl-C a request to stop with a checkpoint, as SIGTERM is; a second one ends the process at once."""

    def request_stop(number: int, _frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(signal.SIGINT, request_stop)


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return what a command line says; ends the process with 2, or after its help, as argparse does."""
    return _parser().parse_args(argv)


def _lost_peer(error: Exception) -> bool:
    from bert_trainer.parallel.world import lost_peer

    return lost_peer(error)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bert-train",
        description="Pretrain and fine-tune BERT as a run configuration says; under mpirun or torchrun on more "
        "than one rank.",
        epilog="Exit codes: 0 done, 1 failed, 2 wrong input, 3 stopped on request with a checkpoint, 4 files could "
        "not be read or written after the first step.",
    )
    parser.add_argument("--config", type=Path, help="run configuration, a JSON document")
    parser.add_argument("--check", action="store_true", help="check the configuration and do nothing")
    _add_plain(parser)
    parser.add_argument(
        "--profile",
        metavar="FIRST-LAST",
        help="trace these steps of every stage, counted from 1, into profile/ of the output folder, and print where "
        "their time went; in place of the configuration's profile_steps",
    )
    verbs = parser.add_subparsers(dest="verb", title="instead of a run")
    autotune = verbs.add_parser(
        "autotune",
        help="try micro-batch sizes and print speed and memory",
        description="Try micro-batch sizes for every pretrain stage, as one rank of the run would, for some 20 seconds "
        "each; print sequences per second, peak memory and the size that microBatchSize: auto would take.",
    )
    autotune.add_argument("run_config", type=Path, metavar="CONFIG", help="run configuration, a JSON document")
    finetune = verbs.add_parser(
        "finetune",
        help="fine-tune weights on a task of GLUE, on SQuAD or on tables of one's own",
        description="Fine-tune weights on a task of GLUE, on SQuAD or on tables of one's own, on one rank or, "
        "under mpirun or torchrun, on several. A run is evaluated while it trains, and the best evaluation's "
        "weights are kept.",
    )
    finetune_command.add_arguments(finetune)
    _add_plain(finetune)
    predict_command.add_arguments(
        verbs.add_parser(
            "predict",
            help="classes, numbers or answers of a fine-tuned model for every row of a file",
            description="Classes, numbers or answers of a fine-tuned model for every row of a file: a line each, in "
            "the file's order, in memory that does not grow with the file. The model is what an export of a finetune "
            "stage wrote, or save_pretrained of transformers.",
        )
    )
    report = verbs.add_parser(
        "report",
        help="write report.html of a run, or index.html of a folder of runs",
        description="Write a run's report.html from what lies in its output folder, whether it has ended or not; of a "
        "folder whose folders are runs, an index.html that lists them. Needs no network; prints the path.",
    )
    report.add_argument("folder", type=Path, metavar="FOLDER", help="output folder of a run, or a folder of such ones")
    _add_import(
        verbs.add_parser(
            "import",
            help="read weights of another program and write them for others",
            description="Read weights of another program, or of a run, account for every tensor, and write what an "
            "export stage writes: a Hugging Face folder, which initialCheckpoint.format: huggingface and transformers "
            "read, an ONNX graph, or a checkpoint of TensorFlow 1. Nothing in the files is run.",
        )
    )
    return parser


def _add_plain(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--plain", action="store_true", help="print every record as it is, for programs, in place of bars or "
        "a line now and then",
    )  # fmt: skip


def _add_import(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", type=Path, metavar="PATH", help="as initialCheckpoint.path: a folder or a file")
    formats = get_args(InitialCheckpointSpec.model_fields["format"].annotation)
    parser.add_argument("--format", required=True, choices=formats, help="as initialCheckpoint.format")
    parser.add_argument("--output", required=True, type=Path, metavar="FOLDER", help="written; must not exist")
    parser.add_argument(
        "--to", choices=get_args(ExportFormat), default="huggingface", help="as export.format (huggingface)"
    )
    parser.add_argument(
        "--vocabulary-file",
        type=Path,
        metavar="FILE",
        help="one token per line, or a tokenizer.json; default: the one beside the weights",
    )
    parser.add_argument(
        "--model-config",
        type=Path,
        metavar="FILE",
        help="bert_config.json or config.json of the model; default: the one beside the weights",
    )


if __name__ == "__main__":
    sys.exit(main())
