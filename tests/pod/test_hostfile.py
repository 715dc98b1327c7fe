"""Both forms of mpi-operator's host file."""

from __future__ import annotations

import pytest

from bert_trainer.errors import InputError
from bert_trainer.pod.mpi import Host, parse_hostfile, render_hostfile

ZERO, ONE = "run-worker-0.run.default.svc", "run-worker-1.run.default.svc"


@pytest.mark.parametrize(
    "text",
    [
        f"{ZERO} slots=4\n{ONE} slots=4\n",
        f"{ZERO}:4\n{ONE}:4\n",
        f"# workers\n\n{ZERO}   slots = 4\n{ONE}\n{ZERO} slots=4",
    ],
)
def test_hosts_are_read_in_their_order(text: str) -> None:
    assert parse_hostfile(text, source="hosts", slots=4) == (Host(ZERO, 4), Host(ONE, 4))


def test_a_host_is_shown_by_the_name_of_its_pod() -> None:
    assert [Host(name, 1).pod for name in (ZERO, "node7", "10.1.2.3")] == ["run-worker-0", "node7", "10.1.2.3"]


def test_an_empty_file_has_no_hosts_yet() -> None:
    assert parse_hostfile("", source="hosts", slots=1) == ()


@pytest.mark.parametrize("line", ["a b", "-x", "a;reboot", "a:", "a slots=", "user@a"])
def test_a_line_that_is_no_host_is_named(line: str) -> None:
    with pytest.raises(InputError, match=r"^hosts:2: got .*; allowed: NAME slots=S, or NAME:S\nhint: "):
        parse_hostfile(f"{ZERO}\n{line}\n", source="hosts", slots=1)


def test_other_slots_than_the_job_s_are_refused() -> None:
    with pytest.raises(InputError, match=r"^hosts:1: got 8 slots; allowed: 4, as --slots says\nhint: "):
        parse_hostfile(f"{ZERO} slots=8\n", source="hosts", slots=4)


@pytest.mark.parametrize("is_open_mpi", [True, False])
def test_every_mpi_gets_the_form_that_it_reads(is_open_mpi: bool) -> None:
    hosts = (Host(ZERO, 4), Host("10.1.2.3", 4))
    text = render_hostfile(hosts, is_open_mpi=is_open_mpi)
    assert text.startswith(f"{ZERO} slots=4\n" if is_open_mpi else f"{ZERO}:4\n")
    assert parse_hostfile(text, source="hosts", slots=4) == hosts
