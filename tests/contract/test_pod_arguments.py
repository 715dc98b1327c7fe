"""The arguments that the operator renders for ``bert-pod`` are arguments that it takes, and mean the same to it."""

from __future__ import annotations

import argparse
import typing

import pytest

from bert_operator.api.schema.cluster import CpuSpec, MpiSpec
from bert_operator.names import PREPARE_RUN
from bert_operator.render.children import render_child
from bert_operator.render.frozen import freeze
from bert_operator.state.runs import list_runs, run_placement
from bert_trainer.pod.__main__ import parse_arguments
from bert_trainer.pod.binding import PLACES
from bert_trainer.pod.launcher import WATCHED_VARIABLE
from bert_trainer.pod.mpi import MPIS
from child_cases import IMAGE, case_child, child_of, container, every_job, templates


def parsed(case: str, role: str) -> tuple[argparse.Namespace, tuple[str, ...]]:
    return parse_arguments(container(dict(templates(case_child(case)))[role])["args"])


def test_every_rendered_list_of_arguments_is_taken() -> None:
    for job in every_job():
        frozen = freeze(job.model_copy(update={"metadata": job.metadata}), default_image=IMAGE)
        for run in list_runs(job):
            child = render_child(frozen, child_of(frozen, run.name, 1))
            for role, template in templates(child):
                arguments, program = parse_arguments(container(template)["args"])
                assert arguments.role == role
                if role == "worker":
                    assert program == ()
                    continue
                assert arguments.ranks == run.ranks
                assert program
                if run.name != PREPARE_RUN and arguments.ranks > 1:
                    assert arguments.mpi == job.spec.mpi.implementation
                    assert arguments.bind == job.spec.cpu.pinning
                if role == "launcher":
                    world = run_placement(job.spec, run.name)
                    assert (arguments.workers, arguments.slots) == (world.workers, world.slots)
                    assert arguments.wait_seconds == job.spec.mpi.worker_wait_seconds


def test_ranks_are_bound_as_the_job_says() -> None:
    by_sockets, _ = parsed("xeon-by-sockets", "launcher")
    assert (by_sockets.bind, by_sockets.ranks_per_place, by_sockets.cores_per_rank) == ("socket", 2, 24)
    by_cores, _ = parsed("xeon-by-cores", "single")
    assert (by_cores.bind, by_cores.ranks_per_place, by_cores.cores_per_rank) == ("core", 1, 14)
    free, _ = parsed("two-workers-open-mpi", "launcher")
    assert (free.bind, free.cores_per_rank) == ("none", None)


def test_ranks_are_counted_and_nodes_compared() -> None:
    counted, _ = parsed("xeon-counted", "launcher")
    assert (counted.ranks, counted.slots, counted.ranks_per_place) == (8, 4, 1)
    assert (counted.sockets, counted.numa_nodes) == (2, 4)
    assert counted.threads_per_core is None
    silent, _ = parsed("two-workers-open-mpi", "launcher")
    assert (silent.sockets, silent.numa_nodes, silent.threads_per_core) == (None, None, None)
    threads, _ = parsed("xeon-hyper-threads", "launcher")
    assert (threads.threads_per_core, threads.cores_per_rank) == (2, 26)
    alone, _ = parsed("xeon-hyper-threads-alone", "single")
    assert (alone.bind, alone.cores_per_rank, alone.threads_per_core) == ("core", 26, 2)


def test_programs_arrive_whole() -> None:
    assert parsed("single-pod", "single")[1] == ("bert-train", "--config", "/etc/bert/run-config.json")
    assert parsed("prepare-in-three-workers", "launcher")[1] == parsed("prepare", "single")[1]
    assert parsed("prepare", "single")[1] == ("bert-data", "build", "--config", "/etc/bert/run-config.json")
    # A program's own -- is no end of ours.
    assert parsed("workspace", "launcher")[1][-2:] == ("--", "--price=$5")


def test_the_launcher_knows_that_the_operator_watches_its_workers() -> None:
    for role, template in templates(case_child("two-workers-open-mpi")):
        variables = {item["name"]: item.get("value") for item in container(template)["env"]}
        assert variables.get(WATCHED_VARIABLE) == ("true" if role == "launcher" else None)


def test_launcher_and_workers_meet_at_one_port() -> None:
    launcher, _ = parsed("two-workers-mpich", "launcher")
    worker, _ = parsed("two-workers-mpich", "worker")
    assert launcher.ssh_port == worker.port == 2222
    assert launcher.hostfile.as_posix() == "/etc/mpi/hostfile"
    assert "NCCL_DEBUG" in parsed("environment", "launcher")[0].export


@pytest.mark.parametrize(
    ("section", "field", "theirs"),
    [(MpiSpec, "implementation", MPIS), (CpuSpec, "pinning", ("none", *PLACES))],
)
def test_both_sides_offer_the_same_choices(section: type, field: str, theirs: tuple[str, ...]) -> None:
    assert set(typing.get_args(section.model_fields[field].annotation)) == set(theirs)  # type: ignore[attr-defined]
