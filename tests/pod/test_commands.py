"""Command lines and environments of three MPIs, as values; nothing is started."""

from __future__ import annotations

import re
import shlex

import pytest

from bert_trainer.pod.mpi import (
    OPEN_MPI_4_TAG,
    OPEN_MPI_5_TAG,
    InstalledMpi,
    Launcher,
    Mpi,
    choose_exports,
    launcher_environment,
    read_version,
    render_local_command,
    render_remote_command,
    ssh_options,
)

ANY = re.compile("x(1)")
OPEN_MPI = Launcher("OpenMPI", "/bin/mpirun", ("--output", "tag"), ANY)
MPICH = Launcher("MPICH", "/bin/mpiexec", ("-prepend-pattern", "<%r>"), ANY)
INTEL = Launcher("Intel", "/bin/mpiexec.hydra", ("-prepend-pattern", "<%r>"), ANY)


def spread(launcher: Launcher, *exports: str, is_root: bool = False) -> str:
    command = render_remote_command(
        launcher, ranks=8, slots=4, hostfile="/h", exports=exports, is_root=is_root, program=("train", "--now")
    )
    return " ".join(command)


def test_ranks_of_one_pod_run_unbound() -> None:
    local = render_local_command(OPEN_MPI, ranks=2, is_root=True, program=("train",))
    assert " ".join(local) == (
        "/bin/mpirun --allow-run-as-root -np 2 --bind-to none --map-by :OVERSUBSCRIBE --output tag train"
    )
    assert render_local_command(MPICH, ranks=2, is_root=True, program=("t",))[:3] == ("/bin/mpiexec", "-n", "2")


def test_open_mpi_gets_an_explicit_host_file_and_every_name() -> None:
    assert spread(OPEN_MPI, "A", "BERT_ATTEMPT") == (
        "/bin/mpirun --hostfile /h -np 8 --map-by slot --bind-to none -x A -x BERT_ATTEMPT --output tag train --now"
    )
    assert "--allow-run-as-root" in spread(OPEN_MPI, is_root=True)


@pytest.mark.parametrize(("launcher", "unbound"), [(MPICH, ""), (INTEL, " -genv I_MPI_PIN off")])
def test_hydra_gets_a_list_of_names_instead_of_everything(launcher: Launcher, unbound: str) -> None:
    beginning = f"{launcher.program} -f /h -n 8 -ppn 4{unbound}"
    assert spread(launcher, "A", "B") == f"{beginning} -genvlist A,B -prepend-pattern <%r> train --now"
    assert spread(launcher) == f"{beginning} -genvnone -prepend-pattern <%r> train --now"


def test_nothing_that_hides_gpus_is_forwarded() -> None:
    environment = {
        "NVIDIA_VISIBLE_DEVICES": "",
        "NVIDIA_DRIVER_CAPABILITIES": "",
        "BERT_ATTEMPT": "2",
        "BERT_TERMINATION_LOG": "/t",
        "NCCL_DEBUG": "INFO",
        "AWS_KEY": "x",
    }
    wanted = ("NCCL_DEBUG", "NVIDIA_VISIBLE_DEVICES", "NOT_SET")
    assert choose_exports(environment, wanted) == ("BERT_ATTEMPT", "NCCL_DEBUG")
    kept = launcher_environment("MPICH", environment, "-p 1")
    assert not {"NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "BERT_TERMINATION_LOG"} & set(kept)
    assert kept["AWS_KEY"] == "x"


@pytest.mark.parametrize(
    ("mpi", "names"),
    [
        ("OpenMPI", ("OMPI_MCA_plm_rsh_args", "PRTE_MCA_plm_ssh_args")),
        ("Intel", ("I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS",)),
        ("MPICH", ("HYDRA_LAUNCHER_EXTRA_ARGS", "HYDRA_LAUNCH_EXTRA_ARGS")),
    ],
)
def test_ssh_gets_its_options_whatever_the_version_reads(mpi: Mpi, names: tuple[str, ...]) -> None:
    environment = launcher_environment(mpi, {}, ssh_options(mpi, {}, 2222))
    for name in names:
        words = shlex.split(environment[name])
        assert "BatchMode=yes" in words
        assert "ConnectionAttempts=10" in words
        assert words[-2:] == ["-p", "2222"]


def test_a_user_s_ssh_options_come_first_and_take_precedence() -> None:
    own = {"OMPI_MCA_plm_rsh_args": "-i /key -p 22"}
    assert shlex.split(ssh_options("OpenMPI", own, 2222))[:4] == ["-i", "/key", "-p", "22"]
    # mpi-operator's own value is one of ours anyway.
    standard = {"OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10"}
    assert ssh_options("OpenMPI", standard, None) == ssh_options("OpenMPI", {}, None)
    assert "-p" not in shlex.split(ssh_options("OpenMPI", {}, None))


def test_open_mpi_keeps_full_host_names_and_starts_every_worker_itself() -> None:
    environment = launcher_environment("OpenMPI", {}, "")
    assert environment["OMPI_MCA_orte_keep_fqdn_hostnames"] == "true"
    assert environment["PRTE_MCA_prte_keep_fqdn_hostnames"] == "true"
    assert environment["PRTE_MCA_plm_ssh_no_tree_spawn"] == environment["OMPI_MCA_plm_rsh_no_tree_spawn"] == "1"


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ("mpirun (Open MPI) 5.0.11\n\nReport bugs to ...", InstalledMpi("/m", "OpenMPI", "Open MPI 5.0.11", 5)),
        ("mpirun.openmpi (OpenRTE) 4.1.4\n", InstalledMpi("/m", "OpenMPI", "Open MPI 4.1.4", 4)),
        ("HYDRA build details:\n    Version:     5.0.2\n", InstalledMpi("/m", "MPICH", "MPICH 5.0.2", 5)),
        (
            "Intel(R) MPI Library for Linux* OS, Version 2021.17 Build 20251215 (id: 2ac2f63)\n",
            InstalledMpi("/m", "Intel", "Intel MPI 2021.17", 2021),
        ),
        ("mpirun: command not found", None),
        ("", None),
    ],
)
def test_an_mpirun_is_recognized_by_its_version(answer: str, found: InstalledMpi | None) -> None:
    assert read_version("/m", answer) == found


@pytest.mark.parametrize("tag", [OPEN_MPI_4_TAG, OPEN_MPI_5_TAG])
def test_the_launcher_s_own_lines_are_no_rank_s(tag: re.Pattern[str]) -> None:
    assert tag.search("[0,0]<stderr>:Sorry! You were supposed to get help") is None
    found = tag.search("[1,12]<stdout>:said")
    assert found is not None
    assert found[1] == "12"
