"""Machines that are described and not there, with their processors numbered as Linux does on x86."""

from __future__ import annotations

from bert_trainer.system.machine import Machine


def describe_machine(*, sockets: int, cores: int, threads: int, nodes_per_socket: int = 1) -> Machine:
    """Return a machine whose first threads come before all second ones.

    Args:
        sockets: How many.
        cores: Physical ones of a socket.
        threads: Of a core.
        nodes_per_socket: NUMA nodes of a socket, more than one in sub-NUMA clustering.
    """
    total = sockets * cores
    return Machine(
        sockets=sockets,
        numa_nodes=sockets * nodes_per_socket,
        core_of={number: divmod(number % total, cores) for number in range(total * threads)},
        node_of={number: number % total * nodes_per_socket // cores for number in range(total * threads)},
    )
