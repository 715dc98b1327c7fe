"""What a pod's ranks may talk over, and what is refused because the environment asks for it and it is not there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from bert_trainer.errors import TransportUnusable
from bert_trainer.pod.transport_check import check_transports, open_mpi_has_ucx
from bert_trainer.pod.transports import VERBS_LIBRARIES, Card, Transports, describe_transports, read_transports

OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "0"}
MPICH = {"PMI_RANK": "0"}
INTEL = {"PMI_RANK": "0", "I_MPI_HYDRA_UUID": "0d54"}

BARE = Transports(
    device_trouble="/dev/infiniband holds no device (uverbs*)",
    interfaces={"eth0": ("10.88.0.7", "fd00:88::7"), "eth1": (), "lo": ("127.0.0.1",)},
    shared_bytes=2**30,
    locked_bytes=65_536,
)
TWO_CARDS = Transports(
    cards=(
        Card(name="mlx5_0"),
        Card(name="mlx5_1", active_ports=()),
        Card(name="mlx5_2", trouble="the device file of mlx5_2 is not in the pod"),
    ),
    interfaces={"eth0": ("10.88.0.7",), "ib0": ("10.1.0.7",), "lo": ("127.0.0.1",)},
    shared_bytes=64 * 2**30,
    has_gpu=True,
)
"""One of them can be used."""
UNPRIVILEGED = Transports(cards=TWO_CARDS.cards, interfaces=TWO_CARDS.interfaces, locked_bytes=8 * 2**20)
NO_LIBRARIES = Transports(
    cards=TWO_CARDS.cards,
    interfaces=TWO_CARDS.interfaces,
    missing_libraries={"libmlx5.so.1": "libmlx5.so.1: cannot open shared object file: No such file or directory"},
)
OVER_INFINIBAND = {
    **OPEN_MPI,
    "OMPI_MCA_pml": "ucx",
    "UCX_TLS": "rc,sm,self",
    "UCX_NET_DEVICES": "mlx5_0:1",
    "NCCL_IB_HCA": "mlx5",
    "NCCL_SOCKET_IFNAME": "eth0",
}


def refuse(found: Transports, environment: Mapping[str, str], *, has_ucx: bool = True) -> tuple[str, str]:
    """Return message and hint of the refusal."""
    with pytest.raises(TransportUnusable) as caught:
        check_transports(found, environment, "bert-0", has_ucx=lambda: has_ucx)
    assert caught.value.hint is not None
    return caught.value.message, caught.value.hint


@pytest.mark.parametrize("found", [BARE, TWO_CARDS, UNPRIVILEGED, NO_LIBRARIES])
@pytest.mark.parametrize("environment", [{}, OPEN_MPI, MPICH, INTEL])
def test_nothing_is_refused_that_nobody_asked_for(found: Transports, environment: Mapping[str, str]) -> None:
    check_transports(found, environment, "bert-0")


def test_a_node_with_infiniband_takes_what_the_overlay_for_infiniband_sets() -> None:
    check_transports(TWO_CARDS, OVER_INFINIBAND, "bert-0", has_ucx=lambda: True)


@pytest.mark.parametrize(
    ("found", "message", "hint"),
    [
        (BARE, "bert-0 has none: /dev/infiniband holds no device", "spec.resources.rdma"),
        (NO_LIBRARIES, "bert-0 has none: libmlx5.so.1: cannot open shared object file", "ibverbs-providers"),
        (UNPRIVILEGED, "a rank on bert-0 may lock 8 MiB, and InfiniBand needs 64 MiB or more", "LimitMEMLOCK"),
    ],
)
def test_ucx_without_infiniband_is_refused_with_what_is_missing(found: Transports, message: str, hint: str) -> None:
    got, next_step = refuse(found, OVER_INFINIBAND)
    assert got.startswith("OMPI_MCA_pml: got 'ucx', which needs InfiniBand; ")
    assert message in got
    assert hint in next_step


def test_ucx_is_refused_where_open_mpi_was_built_without_it() -> None:
    message, _ = refuse(TWO_CARDS, OVER_INFINIBAND, has_ucx=False)
    assert message == (
        "OMPI_MCA_pml: got 'ucx'; allowed: ob1 or nothing, since this image's Open MPI was built without UCX"
    )


@pytest.mark.horovod
def test_the_open_mpi_of_set_up_has_ucx() -> None:
    assert open_mpi_has_ucx()


@pytest.mark.parametrize(
    ("mpi", "variable", "value"),
    [
        (OPEN_MPI | {"OMPI_MCA_pml": "ucx"}, "UCX_NET_DEVICES", "mlx5_0:2"),
        (OPEN_MPI | {"OMPI_MCA_pml": "ucx"}, "UCX_NET_DEVICES", "mlx5_1:1"),
        (MPICH, "UCX_NET_DEVICES", "mlx5_9:1"),
        ({}, "NCCL_IB_HCA", "mlx5_1"),
        ({}, "NCCL_IB_HCA", "=mlx5"),
        ({}, "NCCL_IB_HCA", "mlx5_0:2"),
    ],
)
def test_a_card_that_is_not_there_is_refused_with_those_that_are(
    mpi: Mapping[str, str], variable: str, value: str
) -> None:
    message, _ = refuse(TWO_CARDS, {**mpi, variable: value})
    assert message == (
        f"{variable}: got {value!r}; allowed: mlx5_0:1, the active ports of InfiniBand that bert-0 may use "
        "(port 1 of mlx5_1 is not active; the device file of mlx5_2 is not in the pod)"
    )


@pytest.mark.parametrize(
    ("environment", "value"),
    [
        (OPEN_MPI | {"OMPI_MCA_btl_tcp_if_include": "ib1"}, "ib1"),
        (OPEN_MPI | {"OMPI_MCA_btl_tcp_if_include": "ib1,10.99.0.0/16"}, "ib1,10.99.0.0/16"),
        (INTEL | {"FI_PROVIDER": "tcp", "FI_TCP_IFACE": "ib1"}, "ib1"),
        ({"NCCL_SOCKET_IFNAME": "ens"}, "ens"),
        ({"NCCL_SOCKET_IFNAME": "=eth"}, "=eth"),
        ({"NCCL_SOCKET_IFNAME": "^eth,ib,lo"}, "^eth,ib,lo"),
    ],
)
def test_an_interface_that_is_not_there_is_refused_with_those_that_are(
    environment: Mapping[str, str], value: str
) -> None:
    message, hint = refuse(TWO_CARDS, environment)
    assert message.endswith(f": got {value!r}; allowed: eth0, ib0, lo, the network interfaces of bert-0")
    assert "eth0" in hint


@pytest.mark.parametrize(
    "environment",
    [
        OPEN_MPI | {"OMPI_MCA_btl_tcp_if_include": "eth0, 10.1.0.0/24"},
        OPEN_MPI | {"OMPI_MCA_pml": "^ucx", "UCX_TLS": "rc", "UCX_NET_DEVICES": "mlx5_7:1"},
        OPEN_MPI | {"OMPI_MCA_pml": "ob1", "UCX_NET_DEVICES": "mlx5_7:1"},
        OPEN_MPI | {"OMPI_MCA_pml": "ucx", "UCX_NET_DEVICES": "all"},
        OPEN_MPI | {"OMPI_MCA_pml": "ucx", "UCX_NET_DEVICES": "mlx5_*:1"},
        OPEN_MPI | {"OMPI_MCA_pml": "ucx", "UCX_TLS": "^rc"},
        OPEN_MPI | {"OMPI_MCA_pml": "ucx", "UCX_NET_DEVICES": "mlx5_0"},
        MPICH | {"MPIR_CVAR_CH4_NETMOD": "ofi", "UCX_TLS": "dc", "UCX_NET_DEVICES": "mlx5_7:1"},
        INTEL | {"FI_PROVIDER": "tcp", "FI_TCP_IFACE": "ib0"},
        INTEL | {"I_MPI_OFI_PROVIDER": "verbs;ofi_rxm"},
        {"NCCL_IB_HCA": "^mlx5_2"},
        {"NCCL_IB_HCA": "mlx5_7", "NCCL_IB_DISABLE": "1"},
        {"NCCL_IB_HCA": "=mlx5_0:1,mlx5_7:1"},
        {"NCCL_SOCKET_IFNAME": "eth"},
        {"NCCL_SOCKET_IFNAME": "^lo"},
    ],
)
def test_what_is_there_or_has_no_effect_is_not_refused(environment: Mapping[str, str]) -> None:
    check_transports(TWO_CARDS, environment, "bert-0", has_ucx=lambda: True)


@pytest.mark.parametrize(
    ("environment", "begins"),
    [
        (INTEL | {"FI_PROVIDER": "verbs"}, "FI_PROVIDER: got 'verbs', which needs InfiniBand; bert-0 has none"),
        (INTEL | {"I_MPI_OFI_PROVIDER": "mlx"}, "I_MPI_OFI_PROVIDER: got 'mlx', which needs InfiniBand"),
        (MPICH | {"UCX_TLS": "sm,dc_mlx5"}, "UCX_TLS: got 'dc_mlx5', which needs InfiniBand"),
    ],
)
def test_other_mpis_are_judged_by_their_own_variables(environment: Mapping[str, str], begins: str) -> None:
    message, _ = refuse(BARE, environment)
    assert message.startswith(begins)
    check_transports(BARE, {**environment, "I_MPI_FABRICS": "shm", "MPIR_CVAR_CH4_NETMOD": "ofi", "UCX_TLS": ""}, "w")


def test_open_mpi_s_ucx_over_tcp_needs_no_card() -> None:
    asked = OPEN_MPI | {"OMPI_MCA_pml": "ucx", "UCX_TLS": "tcp,sm,self", "UCX_NET_DEVICES": "eth0"}
    message, _ = refuse(BARE, asked)
    assert "which needs InfiniBand" in message
    any_device = {"OMPI_MCA_opal_common_ucx_devices": "any", "OMPI_MCA_opal_common_ucx_tls": "any"}
    check_transports(BARE, asked | any_device, "bert-0", has_ucx=lambda: True)


@pytest.mark.parametrize(
    "environment",
    [
        MPICH | {"UCX_TLS": "rc,ud,tcp,sm,self"},
        MPICH | {"UCX_NET_DEVICES": "mlx5_0:1,eth0"},
        OPEN_MPI | {"OMPI_MCA_btl_tcp_if_include": "eth0,ib0"},
        OPEN_MPI | {"OMPI_MCA_btl_tcp_if_include": "10.99.0.0/16,10.88.0.0/16"},
        OPEN_MPI | {"OMPI_MCA_btl_tcp_if_include": "10.99/16"},
        OPEN_MPI | {"OMPI_MCA_btl_tcp_if_include": "fd00::/8"},
        OPEN_MPI | {"OMPI_MCA_btl_tcp_if_include": "ib0", "OMPI_MCA_btl": "self,sm"},
        OPEN_MPI | {"OMPI_MCA_btl_tcp_if_include": "ib0", "OMPI_MCA_btl": "^tcp,ofi"},
        {"NCCL_NET": "Socket", "NCCL_IB_HCA": "mlx5"},
    ],
)
def test_a_list_of_alternatives_is_taken_where_one_of_them_is_there(environment: Mapping[str, str]) -> None:
    bare = replace(BARE, has_gpu=True)
    check_transports(bare, environment, "bert-0")
    check_transports(replace(bare, interfaces={}), environment, "bert-0")


def test_the_network_does_not_matter_to_ranks_of_one_pod() -> None:
    asked = {
        "NCCL_IB_HCA": "mlx5",
        "UCX_TLS": "rc,sm,self",
        "UCX_NET_DEVICES": "mlx5_0:1",
        **MPICH,
        "PMI_SIZE": "8",
        "MPI_LOCALNRANKS": "8",
    }
    bare = replace(BARE, has_gpu=True)
    check_transports(bare, asked, "bert-0")
    one_pod = {"OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_SIZE": "8", "OMPI_MCA_btl_tcp_if_include": "ib0"}
    check_transports(bare, OPEN_MPI | one_pod, "bert-0")
    message, _ = refuse(bare, asked | {"PMI_SIZE": "16"})
    assert message.startswith("UCX_TLS: got 'rc', which needs InfiniBand")
    # No other transport is left.
    refuse(bare, asked | {"UCX_TLS": "rc"})


def test_nccl_s_variables_count_only_where_there_is_a_gpu() -> None:
    check_transports(BARE, {"NCCL_IB_HCA": "mlx5", "NCCL_SOCKET_IFNAME": "ens3", "NCCL_NET": "IB"}, "bert-0")


@pytest.mark.parametrize(
    ("found", "line"),
    [
        (
            BARE,
            "bert-0: ranks can use shared memory (1 GiB in /dev/shm); TCP over eth0; no InfiniBand: /dev/infiniband "
            "holds no device (uverbs*)",
        ),
        (
            TWO_CARDS,
            "bert-0: ranks can use shared memory (64 GiB in /dev/shm); TCP over eth0, ib0; InfiniBand over mlx5_0, "
            "locking any memory",
        ),
        (
            UNPRIVILEGED,
            "bert-0: ranks can use shared memory (0 bytes in /dev/shm); TCP over eth0, ib0; InfiniBand over mlx5_0, "
            "locking 8 MiB, of which InfiniBand needs 64 MiB or more",
        ),
    ],
)
def test_one_line_says_what_ranks_can_use(found: Transports, line: str) -> None:
    assert describe_transports(found, "bert-0") == line


def make_card(root: Path, name: str, number: int, state: str, *, has_file: bool) -> None:
    """Write what sysfs shows of a card, and its device file."""
    port = root / "sys/class/infiniband" / name / "ports/1"
    port.mkdir(parents=True)
    (port / "state").write_text(f"{state}\n")
    verbs = root / f"sys/class/infiniband_verbs/uverbs{number}"
    verbs.mkdir(parents=True)
    (verbs / "ibdev").write_text(f"{name}\n")
    if has_file:
        (root / "dev/infiniband").mkdir(parents=True, exist_ok=True)
        (root / f"dev/infiniband/uverbs{number}").touch()


def test_a_card_counts_if_its_device_file_is_in_the_pod_and_opens(tmp_path: Path) -> None:
    make_card(tmp_path, "mlx5_0", 0, "4: ACTIVE", has_file=True)
    make_card(tmp_path, "mlx5_1", 1, "1: DOWN", has_file=True)
    make_card(tmp_path, "mlx5_2", 2, "4: ACTIVE", has_file=False)
    make_card(tmp_path, "mlx5_3", 3, "4: ACTIVE", has_file=False)
    (tmp_path / "dev/infiniband/uverbs3").symlink_to("gone")
    found = read_transports(tmp_path)
    assert found.cards == (
        Card(name="mlx5_0"),
        Card(name="mlx5_1", active_ports=()),
        Card(name="mlx5_2", trouble="the device file of mlx5_2 is not in the pod"),
        Card(name="mlx5_3", trouble="/dev/infiniband/uverbs3 cannot be opened (No such file or directory)"),
    )
    assert found.device_trouble is None
    assert not found.has_gpu
    assert found.shared_bytes == os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize  # noqa: S108


def test_a_pod_without_device_files_has_no_infiniband_whatever_sysfs_shows(tmp_path: Path) -> None:
    make_card(tmp_path, "mlx5_0", 0, "4: ACTIVE", has_file=False)
    found = read_transports(tmp_path)
    assert found.usable_cards == ()
    assert found.verbs_trouble == "/dev/infiniband holds no device (uverbs*)"


def test_this_machine_s_interfaces_have_their_addresses() -> None:
    found = read_transports()
    assert found.interfaces["lo"] == ("127.0.0.1",)
    assert set(found.missing_libraries) <= set(VERBS_LIBRARIES)


@pytest.mark.parametrize("words", [("--tell-end",), ()])
def test_a_rank_ends_with_the_name_before_its_program_starts(words: tuple[str, ...]) -> None:
    if Path("/dev/infiniband").exists():
        pytest.skip("requires a machine without InfiniBand")
    environment = {
        **os.environ,
        "OMPI_COMM_WORLD_RANK": "0",
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_LOCAL_RANK": "0",
        "OMPI_MCA_pml": "ucx",
        "UCX_NET_DEVICES": "mlx5_0:1",
    }
    command = [sys.executable, "-m", "bert_trainer.pod", "rank", *words, "--", "echo", "started"]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert answer.returncode == 2
    assert re.search(r"^\S+: ranks can use shared memory \(.*\); .*; no InfiniBand: ", answer.stdout, re.MULTILINE)
    assert "started" not in answer.stdout
    assert "reason: TransportUnusable" in answer.stderr
    assert "hint: give spec.resources.rdma" in answer.stderr
