"""Ranks joined by torch.distributed: NCCL between GPUs, Gloo for everything on the host. The only module that uses it.

Ranks find each other through a store of rank 0, or of torchrun's agent, in which all of them first write where they
are. Sums are in a fixed order: Gloo's and NCCL's all-reduce is a ring, or a tree, over the ranks, whose order depends
on their number and on the size of the tensor, never on time; a reduce-scatter over Gloo adds in the order of ranks.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from bert_trainer.errors import InputError, TrainerError
from bert_trainer.output.termination import report_error
from bert_trainer.parallel.mpi_rendezvous import MpiRendezvous
from bert_trainer.parallel.row_balancing import rank_slice
from bert_trainer.parallel.world import LostPeer, Pending, all_reduce_buckets_, broadcast_pickled
from bert_trainer.system.launched_rank import LaunchedRank
from bert_trainer.system.network_interfaces import own_address, read_interfaces

T = TypeVar("T")

_ADDRESS, _PORT = "MASTER_ADDR", "MASTER_PORT"
_INTERFACE = "GLOO_SOCKET_IFNAME"
_MEETING_S = 600.0
"""How long ranks wait for one another to start. Machines of one job start within minutes, or not at all."""
# How long a rank waits for another one that neither answers nor closes its connection. A rank that ends closes it and
# is noticed at once, so this only limits how long others may be busy: rank 0 alone verifies checkpoints, exports and
# reads whole data sets while the others wait for it. Horovod has no limit; torch's own of half an hour is too short.
_PATIENCE = timedelta(hours=24)
# Between GPUs nobody waits for rank 0's files, but for the slowest to compile its kernels.
_GPU_PATIENCE = timedelta(minutes=30)
_POLL_S = 5e-5
_LETTING_GO_S = 0.1
# What broken connections are called: Gloo's errors name its own source file, but so do failed assertions in it
# ("enforce fail"), which mean that ranks have called different things. NCCL's are named in its documentation.
_BROKEN = re.compile(r"(?!.*enforce fail)(?:.*gloo/transport/|.*ncclRemoteError|.*NCCL communicator was aborted)", re.S)


@dataclass(frozen=True, slots=True)
class _Work:
    """An operation in flight, and its result once it has ended."""

    work: Any
    result: Tensor

    def done(self) -> bool:
        return bool(self.work.is_completed())

    def wait(self) -> Tensor:
        with broken_connections():
            if self.result.is_cuda:
                # NCCL's wait only makes the stream wait. Here the rank does, as Horovod's does: times are then those
                # of the operation, and an error is raised where it belongs.
                while not self.work.is_completed():
                    time.sleep(_POLL_S)
            self.work.wait()
        return self.result


@dataclass(frozen=True, slots=True)
class _Works:
    """Several operations that make one result."""

    works: Sequence[_Work]
    result: Tensor

    def done(self) -> bool:
        return all(work.done() for work in self.works)

    def wait(self) -> Tensor:
        for work in self.works:
            work.wait()
        return self.result


@dataclass(frozen=True, slots=True)
class _SumOfParts:
    """Every rank's part of the same rows, on its way here, to be added in the order of ranks."""

    work: _Work

    def done(self) -> bool:
        return self.work.done()

    def wait(self) -> Tensor:
        first, *others = torch.unbind(self.work.wait())
        for part in others:
            first.add_(part)
        return first


@contextlib.contextmanager
def broken_connections() -> Iterator[None]:
    """Raise a broken connection as LostPeer, and every other error as it is."""
    try:
        yield
    except RuntimeError as error:
        if _BROKEN.match(str(error)):
            raise LostPeer(str(error)) from error
        raise


def _cannot_connect(rank: int, hosts: Sequence[str]) -> TrainerError:
    return TrainerError(
        f"world: rank {rank} on {hosts[rank]} has met the others, but no connections to all of them within "
        f"{_MEETING_S:.0f} s; ranks are on {', '.join(sorted(set(hosts)))}",
        hint="let these machines reach each other on any TCP port (firewalls, NetworkPolicy), and look at what the "
        "other ranks print",
    )


@contextlib.contextmanager
def _ended_after(seconds: float, error: TrainerError) -> Iterator[None]:
    """Report an error and end this process if what is inside takes longer.

    Gloo hands the time that a sum may take to its attempts to connect as well, and does not keep to it either where
    packets are dropped: no error would be raised.
    """

    def end() -> None:
        report_error("bert-train", error)
        os._exit(error.exit_code)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class TorchWorld:
    """Ranks started by torchrun, by mpirun of any MPI, or by hand."""

    def __init__(self, launched: LaunchedRank, *, may_use_gpus: bool) -> None:
        """Join the group; blocks until every rank has.

        Args:
            launched: this process's place.
            may_use_gpus: tensors may be on GPUs; NCCL sums those where every rank has a GPU to itself, Gloo elsewhere.

        Raises:
            InputError: the environment does not say where rank 0 is, or says what cannot be.
            TrainerError: ranks are missing, or rank 0 cannot be reached.
        """
        self.rank, self.size = launched.rank, launched.size
        self._mpi: MpiRendezvous | None = None
        # What the latest operations on the host used, so that no thread of Gloo is the last to hold it (``close``).
        self._latest: deque[Tensor] = deque(maxlen=4)
        _check_interfaces(os.environ.get(_INTERFACE, ""))
        store = self._meet(launched)
        devices = torch.cuda.device_count() if may_use_gpus else 0
        everyone = self._introduce(store, f"{devices} {socket.gethostname()}")
        hosts = [text.partition(" ")[2] for text in everyone]
        self.local_rank = hosts[: self.rank].count(hosts[self.rank])
        # By pod or machine name, as with Horovod.
        self.num_hosts = len(set(hosts))
        with _ended_after(_MEETING_S, _cannot_connect(self.rank, hosts)):
            dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.size, timeout=_PATIENCE)
        # NCCL refuses two ranks on one GPU. All ranks decide alike: they have all been told the same.
        one_gpu_each = all(
            int(text.split(" ")[0]) >= hosts.count(host) for text, host in zip(everyone, hosts, strict=True)
        )
        self._gpu_group: Any = dist.new_group(backend="nccl", timeout=_GPU_PATIENCE) if one_gpu_each else None

    def _meet(self, launched: LaunchedRank) -> Any:
        """Return the store that all ranks share."""
        try:
            if os.environ.get(_ADDRESS) and os.environ.get(_PORT):
                _check_port(os.environ[_PORT])
                bind_gloo(os.environ, towards=os.environ[_ADDRESS])
                patience = timedelta(seconds=_MEETING_S)
                return next(rendezvous("env://", rank=self.rank, world_size=self.size, timeout=patience))[0]
            if launched.launcher != "MPI":
                raise InputError(
                    f"collectives: got 'torch'; {launched.launcher} has started the ranks without "
                    f"{_ADDRESS} and {_PORT}",
                    hint=f"set {_ADDRESS} and {_PORT} to an address and a free port of rank 0's machine, the same for "
                    "all ranks; torchrun does so itself",
                )
            self._mpi = MpiRendezvous()
            return self._open_store(self._mpi)
        except dist.DistError as error:
            address, port = os.environ.get(_ADDRESS), os.environ.get(_PORT)
            raise TrainerError(
                f"world: rank {self.rank} cannot meet the others at rank 0's address"
                f"{f' {address}:{port}' if address else ''}: {str(error).splitlines()[0]}",
                hint="rank 0 has to be reachable there from all machines, and the port free on its own",
            ) from error

    def _open_store(self, mpi: MpiRendezvous) -> Any:
        """Open a store on a free port of rank 0's machine."""
        # Through ``vars``: torch's own list of what it exports lacks it.
        patience, tcp_store = timedelta(seconds=_MEETING_S), vars(dist)["TCPStore"]
        if self.rank == 0:
            address = own_address()
            mine = tcp_store(address, 0, is_master=True, wait_for_workers=False, timeout=patience)
            mpi.share((address, mine.port))
            bind_gloo(os.environ, towards=None)
            return mine
        address, port = mpi.share(None)
        bind_gloo(os.environ, towards=address)
        return tcp_store(address, port, is_master=False, wait_for_workers=False, timeout=patience)

    def _introduce(self, store: Any, introduction: str) -> list[str]:
        """Write what the others have to know of this rank; return what all have written, by rank."""
        keys = [f"bert_trainer/rank/{rank}" for rank in range(self.size)]
        try:
            store.set(keys[self.rank], introduction)
            store.wait(keys, timedelta(seconds=_MEETING_S))
            return [store.get(key).decode() for key in keys]
        except RuntimeError as error:
            missing = [rank for rank, key in enumerate(keys) if not _is_there(store, key)]
            raise TrainerError(
                f"world: rank {self.rank} has waited {_MEETING_S:.0f} s; of {self.size} ranks these are missing: "
                f"{', '.join(map(str, missing)) or 'rank 0, which has ended'}",
                hint="start as many ranks as the launcher's variables say, look at what the missing ones print, and "
                f"set {_ADDRESS} and {_PORT} for all ranks (mpirun -x) or for none",
            ) from error

    def _group_of(self, tensor: Tensor) -> Any:
        return self._gpu_group if tensor.is_cuda else None

    def _goes_through_gloo(self, tensor: Tensor) -> bool:
        return self._group_of(tensor) is None

    def all_reduce_(self, flat: Tensor) -> None:
        """Sum in buckets."""
        all_reduce_buckets_(self, flat)

    def start_all_reduce_(self, tensor: Tensor, name: str) -> Pending:
        """Start an all-reduce."""
        with broken_connections():
            return _Work(dist.all_reduce(tensor, group=self._group_of(tensor), async_op=True), tensor)

    def start_reduce_scatter(self, rows: Tensor, name: str) -> Pending:
        """Start a reduce-scatter, which splits rows as ``rank_slice`` does."""
        sizes = self._shares(len(rows))
        own = sizes[self.rank]
        group = self._group_of(rows)
        with broken_connections():
            if self._goes_through_gloo(rows):
                # Gloo's own is an all-reduce of which every rank keeps its part (torch 2.15 sends 200 MB of two ranks'
                # 100 MB), and takes shares of one size only. Here every rank is sent its part by all others.
                parts = rows.new_empty(self.size, own, *rows.shape[1:])
                into, given = parts.view(self.size * own, *rows.shape[1:]), [own] * self.size
                work = dist.all_to_all_single(into, rows, given, sizes, group=group, async_op=True)
                return _SumOfParts(_Work(work, parts))
            summed = rows.new_empty(own, *rows.shape[1:])
            if min(sizes) == max(sizes):
                work = dist.reduce_scatter_tensor(summed, rows, group=group, async_op=True)
            else:
                work = dist.reduce_scatter(summed, list(torch.split(rows, sizes)), group=group, async_op=True)
            return _Work(work, summed)

    def start_all_gather(self, rows: Tensor, num_rows: int, name: str) -> Pending:
        """Start an all-gather."""
        sizes = self._shares(num_rows)
        assert len(rows) == sizes[self.rank], f"{name}: got {len(rows)} rows, this rank's share is {sizes[self.rank]}"
        gathered = rows.new_empty(num_rows, *rows.shape[1:])
        parts = list(torch.split(gathered, sizes))
        group = self._group_of(rows)
        with broken_connections():
            if self._goes_through_gloo(rows):
                # Gloo's own takes shares of one size only, and copies: of two ranks' 100 MB it took 220 to 280 ms, and
                # these broadcasts 99 to 108 ms.
                parts[self.rank].copy_(rows)
                works = [dist.broadcast(part, rank, async_op=True) for rank, part in enumerate(parts) if len(part)]
                return _Works([_Work(work, gathered) for work in works], gathered)
            if min(sizes) == max(sizes):
                return _Work(dist.all_gather_into_tensor(gathered, rows, group=group, async_op=True), gathered)
            return _Work(dist.all_gather(parts, rows.contiguous(), group=group, async_op=True), gathered)

    def _shares(self, num_rows: int) -> list[int]:
        slices = (rank_slice(num_rows, rank, self.size) for rank in range(self.size))
        return [stop - start for start, stop in slices]

    def sum_numbers(self, numbers: Sequence[float]) -> list[float]:
        """Sum in fp64, on the host."""
        values = torch.tensor(numbers, dtype=torch.float64)
        self._latest.append(values)
        with broken_connections():
            dist.all_reduce(values)
        summed: list[float] = values.tolist()
        return summed

    def broadcast_(self, flat: Tensor, *, root: int = 0) -> None:
        """Copy that rank's tensor."""
        self._latest.append(flat)
        with broken_connections():
            dist.broadcast(flat, root, group=self._group_of(flat))

    def broadcast_object(self, value: T) -> T:
        """Pickle on rank 0."""
        return broadcast_pickled(self, value)

    def close(self) -> None:
        """Leave the group: connections are closed, by which ranks that still need this one notice that it has ended."""
        # torch 2.7 joins Gloo's threads while it holds the interpreter's lock, which a thread needs if it is the last
        # to let go of a tensor: in one of some dozen ends they waited for each other for ever. They let go before it.
        time.sleep(_LETTING_GO_S)
        dist.destroy_process_group()
        if self._mpi is not None:
            self._mpi.leave()


def bind_gloo(environment: MutableMapping[str, str], towards: str | None) -> None:
    """Have Gloo listen where other machines can reach this one, unless the environment names an interface.

    Gloo itself takes the address that the machine's own name stands for.

    Args:
        environment: which Gloo reads as it starts.
        towards: name or address of rank 0's machine; None on that machine itself.
    """
    address = own_address(towards)
    name = next((name for name, found in read_interfaces().items() if address in found), None)
    if name is not None:
        environment.setdefault(_INTERFACE, name)


def _check_port(port: str) -> None:
    # torch would end with a ValueError, by which a run is tried again as it is.
    if not (port.isdecimal() and 0 < int(port) < 2**16):
        raise InputError(f"{_PORT}: got {port!r}; allowed: a port number, 1 to 65535, that is free on rank 0's machine")


def _check_interfaces(names: str) -> None:
    # Gloo would end with an assertion of its own, by which a run is tried again as it is.
    found = read_interfaces()
    if unknown := [name for name in names.split(",") if name and name not in found]:
        raise InputError(f"{_INTERFACE}: got {', '.join(unknown)}; allowed on this machine: {', '.join(found)}")


def _is_there(store: Any, key: str) -> bool:
    try:
        return bool(store.check([key]))
    except RuntimeError:
        return False
