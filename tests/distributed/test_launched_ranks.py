"""How a rank learns which launcher started it, and under which address other machines reach its own.

Inputs: environments as launchers set them, and this machine's interfaces.
"""

from __future__ import annotations

import pytest

from bert_trainer.system import network_interfaces
from bert_trainer.system.launched_rank import LaunchedRank, read_launched
from bert_trainer.system.network_interfaces import own_address, read_interfaces

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "none"}
BY_HAND = {"RANK": "3", "WORLD_SIZE": "8"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "6", "MPI_LOCALNRANKS": "3"}
HOROVODRUN = {"HOROVOD_RANK": "0", "HOROVOD_SIZE": "2", "HOROVOD_LOCAL_SIZE": "2"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        (TORCHRUN, LaunchedRank("torchrun", 3, 8, 4)),
        (BY_HAND, LaunchedRank("torchrun", 3, 8, 1)),
        (OPEN_MPI, LaunchedRank("MPI", 1, 2, 2)),
        (HYDRA, LaunchedRank("MPI", 1, 6, 3)),
        (HOROVODRUN, LaunchedRank("horovodrun", 0, 2, 2)),
        (HYDRA | TORCHRUN, LaunchedRank("torchrun", 3, 8, 4)),
        (OPEN_MPI | BY_HAND, LaunchedRank("MPI", 1, 2, 2)),
        ({"RANK": "gold", "WORLD_SIZE": "8"}, None),
        ({"WORLD_SIZE": "8"}, None),
    ],
)
def test_the_innermost_launcher_says_which_rank_a_process_is(
    environment: dict[str, str], expected: LaunchedRank | None
) -> None:
    assert read_launched(environment) == expected


def test_an_address_for_other_machines_is_that_of_an_interface_and_no_loopback_unless_there_is_nothing_else() -> None:
    addresses = {one for found in read_interfaces().values() for one in found} - {"127.0.0.1"}
    assert own_address() in (addresses or {"127.0.0.1"})


def test_an_address_towards_this_very_machine_is_one_that_others_reach() -> None:
    assert own_address("127.0.0.1") == own_address("127.0.1.1") == own_address()


def test_without_any_network_it_is_the_loopback_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_interfaces, "_SOMEWHERE_ELSE", ())
    monkeypatch.setattr(network_interfaces, "read_interfaces", lambda: {"lo": ("127.0.0.1",), "tunl0": ()})
    assert own_address("127.0.0.1") == "127.0.0.1"
    monkeypatch.setattr(network_interfaces, "read_interfaces", lambda: {"lo": ("127.0.0.1",), "net1": ("10.9.8.7",)})
    assert own_address("127.0.0.1") == "10.9.8.7"
