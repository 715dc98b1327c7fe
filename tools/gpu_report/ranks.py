"""Ranks on one card: two that share it, one whose gradients go through NCCL, beside one without any library."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import socket
import statistics
import subprocess
from pathlib import Path

from gpu_report.dataset import make_dataset
from gpu_report.documents import Run, ended, read_records, start_trainer
from gpu_report.part import Cell, Part, Result, Table, Verdict

_NEAR = 2e-2
"""Of a step's loss in bf16; sums of other micro-batches round otherwise, and drop other attention weights."""
_PATIENCE_S = 80.0


def compare_ranks(part: Part) -> None:
    """Train the same steps on one rank alone, on one by a library, and on two."""
    result = Result()
    length = 64 if part.small else 512
    data = make_dataset(part.folder / "data", length=length, rows=1024, vocabulary=500 if part.small else 30522)
    layers, hidden, heads = (2, 64, 2) if part.small else (12, 768, 12)
    run = Run(
        data=data,
        layers=layers,
        hidden=hidden,
        heads=heads,
        steps=16 if part.small else 40,
        global_batch_size=16 if part.small else 128,
        micro_batch_size=8 if part.small else 64,
        device=part.device,
        precision="fp32" if part.device == "cpu" else "bf16",
        # On GPUs these bits depend on how rows are grouped into micro-batches.
        attention_dropout=0.0,
        report_steps=2 if part.small else 5,
    )
    _say_what_is_left_out(result)
    ways = {"one rank, alone": (1, None), "two ranks, gloo": (2, "gloo")}
    if part.device == "cuda":
        ways["one rank, nccl"] = (1, "nccl")
    else:
        result.left_out.append("NCCL: needs a card")
    losses: dict[str, list[float]] = {}
    rows: list[list[Cell]] = []
    for what, (ranks, library) in ways.items():
        folder = part.folder / f"ranks-{ranks}-{library}"
        # ``cuda`` asks for a GPU per rank; these two share one.
        device = "auto" if ranks > 1 and part.device == "cuda" else part.device
        codes = _run(run.with_(ranks=ranks, device=device), folder, library)
        records = read_records(folder)
        if any(codes) or len(records) < 2:
            result.left_out.append(f"{what}: ended with {codes}; output.log says why")
            part.publish(result)
            continue
        losses[what] = [float(record["loss"]) for record in records]
        rate = statistics.median(float(record["sequences_per_s"]) for record in records[1:])
        rows.append([what, round(rate, 1), records[-1].get("reduction_exposed_s"), losses[what][-1]])
        columns = ["ranks", "sequences/s", "reduction exposed, s per step", "last loss"]
        result.tables = [Table("The same steps", columns, rows)]
        alone = losses.get("one rank, alone")
        if library is not None and alone is not None:
            distance = max(abs(a / b - 1) for a, b in zip(losses[what], alone, strict=True))
            verdict = Verdict(
                f"{what}: losses beside one rank's", f"within {_NEAR:.0%}", f"{distance:.1e}", distance < _NEAR
            )
            result.verdicts.append(verdict)
        part.publish(result)
    result.done = len(losses) == len(ways)
    part.publish(result)


def _say_what_is_left_out(result: Result) -> None:
    lacks = [name for name in ("horovod",) if importlib.util.find_spec(name) is None]
    lacks += [name for name in ("mpirun",) if shutil.which(name) is None]
    said = f"missing: {' and '.join(lacks)}" if lacks else "its tests are tests/distributed"
    result.left_out.append(
        f"Horovod: not run here ({said}). Ranks are joined by torch.distributed (collectives: torch). "
        "NCCL refuses two ranks on one card; two go through Gloo, over the host's memory"
    )


def _run(run: Run, folder: Path, library: str | None) -> list[int]:
    arguments = ("--one-rank-by-nccl",) if library == "nccl" else ()
    port = _free_port()
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(
                ended(start_trainer(run, folder, *arguments, environment=_environment(run, rank, port)))
            )
            for rank in range(run.ranks)
        ]
        try:
            return [int(process.wait(timeout=_PATIENCE_S)) for process in processes]
        except subprocess.TimeoutExpired:
            return [-1]


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _environment(run: Run, rank: int, port: int) -> dict[str, str]:
    # The loopback device: ranks are on one machine, and a container may have no other.
    local = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return {**local, **meeting, "RANK": str(rank), "WORLD_SIZE": str(run.ranks)}
