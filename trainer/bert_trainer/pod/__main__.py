"""``bert-pod``: what runs in a job's pods. Parses arguments and turns errors into exit codes and records."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bert_trainer.errors import EXIT_FAILED, InputError, TrainerError
from bert_trainer.output.termination import render_error
from bert_trainer.pod import launcher, single
from bert_trainer.pod.binding import PLACES, Binding
from bert_trainer.pod.exit_codes import DEFAULT_TERMINATION_LOG, write_record
from bert_trainer.pod.mpi import MPIS
from bert_trainer.pod.processes import unblock_stop_signals
from bert_trainer.pod.rank import DeclaredTopology, run_rank
from bert_trainer.pod.worker import run_worker

logger = logging.getLogger(__name__)

_EPILOG = (
    "Exit codes: 0 done, 1 failed, 2 wrong input, 3 stopped on request, 4 a worker not reached or lost, "
    "128 + n killed by signal n. SIGTERM makes ranks save and exit (they get SIGUSR1); a second one kills them."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit code of the program, or of what kept it from being started."""
    arguments, program = parse_arguments(sys.argv[1:] if argv is None else argv)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s", stream=sys.stderr)
    try:
        return _run(arguments, program)
    except TrainerError as error:
        sys.stderr.write(render_error("bert-pod", error))
        silent = list(error.silent[:20]) if isinstance(error, launcher.WorkersUnreachable) else None
        _write_error_record(arguments, type(error).__name__, error.exit_code, str(error), silent)
        return error.exit_code
    except Exception as error:
        # A bug of ours: the traceback goes to the log, the message to the termination record.
        _write_error_record(arguments, type(error).__name__, EXIT_FAILED, str(error), None)
        logger.exception("Unexpected error")
        return EXIT_FAILED


def parse_arguments(words: Sequence[str]) -> tuple[argparse.Namespace, tuple[str, ...]]:
    """Return our own options, and the program, which stands after the first ``--``.

    Raises:
        SystemExit: They are wrong; argparse has printed why.
    """
    end = words.index("--") if "--" in words else len(words)
    return _parser().parse_args(words[:end]), tuple(words[end + 1 :])


def _run(arguments: argparse.Namespace, program: tuple[str, ...]) -> int:
    if arguments.role == "worker":
        if program:
            raise InputError(
                f"worker: got a program, {program[0]!r}; allowed: none", hint="mpirun starts programs in workers"
            )
        return run_worker(port=arguments.port, key_folder=arguments.key_folder)
    if not program:
        raise InputError(f"{arguments.role}: got no program", hint="put -- PROGRAM ARGUMENTS... at the end")
    if arguments.role == "rank":
        unblock_stop_signals()  # a signal mask survives exec: the program would never see a stop
        return run_rank(
            program,
            _declared_topology(arguments),
            _binding(arguments),
            reports_end=arguments.tell_end,
            is_quiet=arguments.quiet,
        )
    if arguments.role == "single":
        job = single.Job(
            mpi=arguments.mpi,
            ranks=arguments.ranks,
            binding=_binding(arguments),
            declared=_declared_topology(arguments),
            program=program,
            termination_log=arguments.termination_log,
        )
        return single.run_single(job)
    if arguments.ranks > arguments.workers * arguments.slots:
        raise InputError(
            f"--ranks: got {arguments.ranks}; allowed: up to {arguments.workers * arguments.slots}, "
            f"{arguments.workers} workers with {arguments.slots} slots each",
            hint="ask for more workers or slots, or for fewer ranks",
        )
    return launcher.run_launcher(
        launcher.Job(
            mpi=arguments.mpi,
            ranks=arguments.ranks,
            workers=arguments.workers,
            slots=arguments.slots,
            hostfile=arguments.hostfile,
            wait_s=arguments.wait_seconds,
            ssh_port=arguments.ssh_port or None,
            exports=arguments.export,
            binding=_binding(arguments),
            declared=_declared_topology(arguments),
            program=program,
            termination_log=arguments.termination_log,
        )
    )


def _binding(arguments: argparse.Namespace) -> Binding | None:
    if arguments.bind == "none":
        return None
    return Binding(
        place=arguments.bind, ranks_per_place=arguments.ranks_per_place, cores_per_rank=arguments.cores_per_rank
    )


def _declared_topology(arguments: argparse.Namespace) -> DeclaredTopology:
    return DeclaredTopology(
        sockets=arguments.sockets, numa_nodes=arguments.numa_nodes, threads_per_core=arguments.threads_per_core
    )


def _write_error_record(
    arguments: argparse.Namespace, reason: str, exit_code: int, message: str, silent: list[str] | None
) -> None:
    if arguments.role == "rank":
        return  # the pod's record is written by the launcher, which knows the other ranks as well
    record: dict[str, Any] = {"reason": reason, "exitCode": exit_code, "stage": None, "step": None, "checkpoint": None}
    if silent is not None:
        record["silentWorkers"] = silent
    write_record(arguments.termination_log, {**record, "message": message})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bert-pod", description="Run a program in the pods of a job.", epilog=_EPILOG, allow_abbrev=False
    )
    roles = parser.add_subparsers(dest="role", required=True, metavar="ROLE")
    single_parser = roles.add_parser(
        "single", help="run all ranks in this pod", epilog=_EPILOG, usage=_usage("single --ranks N")
    )
    launcher_parser = roles.add_parser(
        "launcher",
        help="start the ranks in the workers",
        epilog=_EPILOG,
        usage=_usage("launcher --ranks N --workers W"),
    )
    worker_parser = roles.add_parser("worker", help="serve ssh, by which mpirun starts ranks here", epilog=_EPILOG)
    rank_parser = roles.add_parser("rank", help="run one rank; launchers start this", usage=_usage("rank"))
    for role in (single_parser, launcher_parser):
        _add_mpirun_arguments(role)
    for role in (single_parser, launcher_parser, worker_parser):
        role.add_argument(
            "--termination-log", type=Path, default=DEFAULT_TERMINATION_LOG, metavar="FILE", help="default: %(default)s"
        )
    rank_parser.add_argument(
        "--tell-end", action="store_true", help="stay, and report to the launcher how the program ended"
    )
    rank_parser.add_argument(
        "--quiet", action="store_true", help="do not announce the rank: the launcher is not bert-pod's"
    )
    for role in (single_parser, launcher_parser, rank_parser):
        role.add_argument(
            "--sockets", type=_count, metavar="N", help="sockets that every machine must have; default: any"
        )
        role.add_argument("--numa-nodes", type=_count, metavar="N", help="NUMA nodes with processors, likewise")
        role.add_argument(
            "--threads-per-core",
            type=_count,
            metavar="N",
            help="hardware threads of a physical core, likewise; bound ranks need all of them",
        )
        _add_binding_arguments(role)
    _add_launcher_arguments(launcher_parser)
    worker_parser.add_argument("--port", type=_port, default=2222, help="default: %(default)s")
    worker_parser.add_argument(
        "--key-folder",
        type=Path,
        default=Path(os.environ.get("HOME") or "/") / ".ssh",
        help="with id_rsa and authorized_keys; default: .ssh in HOME",
    )
    return parser


def _usage(beginning: str) -> str:
    return f"bert-pod {beginning} [options] -- PROGRAM [ARGUMENTS...]"


def _add_mpirun_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", type=_count, required=True, metavar="N", help="processes of the program")
    parser.add_argument("--mpi", choices=MPIS, default="OpenMPI", help="default: %(default)s")


def _add_binding_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--bind", choices=("none", *PLACES), default="none", help="what ranks are bound to; default: %(default)s"
    )
    parser.add_argument(
        "--ranks-per-place", type=_count, default=1, metavar="K", help="ranks per socket or NUMA node; default: 1"
    )
    parser.add_argument(
        "--cores-per-rank",
        type=_count,
        metavar="N",
        help="default: those of the socket or NUMA node divided by its ranks; 1 with --bind core",
    )


def _add_launcher_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workers", type=_count, required=True, metavar="W", help="pods that run them")
    parser.add_argument("--slots", type=_count, required=True, metavar="S", help="ranks per worker")
    parser.add_argument("--hostfile", type=Path, default=Path("/etc/mpi/hostfile"), help="default: %(default)s")
    parser.add_argument(
        "--wait-seconds",
        type=_seconds,
        default=600.0,
        metavar="T",
        help="how long to wait for the workers; default: 600",
    )
    parser.add_argument(
        "--ssh-port",
        type=_port,
        default=2222,
        metavar="PORT",
        help="of the workers; 0: as ssh is configured; default: %(default)s",
    )
    parser.add_argument(
        "--export",
        type=_names,
        default=(),
        metavar="NAME,NAME",
        help="variables to forward to ranks, besides BERT_*",
    )


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 100_000:
        raise argparse.ArgumentTypeError(f"got {text!r}; allowed: 1 to 100,000")
    return int(text)


def _seconds(text: str) -> float:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"got {text!r}; allowed: whole seconds")
    return float(text)


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"got {text!r}; allowed: 1 to 65,535")
    return int(text)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


if __name__ == "__main__":
    sys.exit(main())
