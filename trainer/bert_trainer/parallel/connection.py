"""How a run joins its ranks: by the library that the configuration names, as its launcher started them."""

from __future__ import annotations

import importlib.util
import os
from typing import Literal

from bert_trainer.errors import InputError, WrongWorld
from bert_trainer.parallel.watched_world import WatchedWorld
from bert_trainer.parallel.world import SingleRank, World
from bert_trainer.system.launched_rank import LaunchedRank, read_launched

Collectives = Literal["horovod", "torch"]


def connect(
    expected_ranks: int, expected_hosts: int, collectives: Collectives = "horovod", *, may_use_gpus: bool = True
) -> World:
    """Join the other ranks and check that all are there.

    Args:
        expected_ranks: over all hosts.
        expected_hosts: distinct machines or pods.
        collectives: the library.
        may_use_gpus: the run is not bound to processors; where there are GPUs, gradients travel between them.

    Raises:
        WrongWorld: the launcher started another number of ranks, on another number of hosts, or is not the library's.
        InputError: the library is not installed.
        TrainerError: the ranks did not find each other.
    """
    launched = read_launched(os.environ)
    world = _join(launched, expected_ranks, collectives, may_use_gpus=may_use_gpus)
    # A launcher that cannot reach its workers may silently start every rank on its own machine: Open MPI 5 does when
    # it is given only Open MPI 4's variables.
    if (world.size, world.num_hosts) != (expected_ranks, expected_hosts):
        size, hosts = world.size, world.num_hosts
        world.close()
        raise WrongWorld(
            f"world: the launcher started {size} rank(s) on {hosts} host(s), the run configuration asks for "
            f"{expected_ranks} on {expected_hosts}",
            hint="start it by mpirun with as many ranks, and give the host file explicitly (--hostfile)"
            + ("; or by torchrun with --nnodes and --nproc-per-node" if collectives == "torch" else ""),
        )
    return world if world.size == 1 else WatchedWorld(world)


def _join(launched: LaunchedRank | None, expected_ranks: int, collectives: Collectives, *, may_use_gpus: bool) -> World:
    size = 1 if launched is None else launched.size
    if launched is not None and launched.rank >= size > 1:
        # Set by hand, or left from elsewhere; the others would be waited for, and for this one nobody.
        raise WrongWorld(
            f"world: got rank {launched.rank} of {size} rank(s); allowed: 0 to {size - 1}",
            hint="set RANK and WORLD_SIZE to this process's place, or leave both to the launcher",
        )
    # A single process imports neither library: Horovod would start its threads, and MPI, for nothing.
    if collectives == "torch":
        # Here, not above: torch.distributed takes half a second, which a run by Horovod need not wait for.
        from bert_trainer.parallel.torch_world import TorchWorld

        return TorchWorld(launched, may_use_gpus=may_use_gpus) if launched is not None and size > 1 else SingleRank()
    if launched is not None and launched.launcher == "torchrun" and size > 1:
        raise WrongWorld(
            f"collectives: got 'horovod'; torchrun has started {size} ranks (WORLD_SIZE), which Horovod cannot join",
            hint="set collectives to 'torch', or start the run by mpirun",
        )
    if size == 1 and expected_ranks == 1:
        return SingleRank()
    if importlib.util.find_spec("horovod") is None:
        raise InputError(
            "collectives: got 'horovod', which is not installed",
            hint="set collectives to 'torch', which needs nothing but PyTorch, or install Horovod (make setup)",
        )
    # Also where no variable tells of a launcher: MPI itself may know of other ranks.
    from bert_trainer.parallel.horovod_world import Horovod

    return Horovod()
