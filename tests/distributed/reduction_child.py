"""One rank of a few reductions by a real library; what it saw goes to ``FOLDER/<rank>.json``.

Run under mpirun with a folder and ``horovod`` or ``torch``: every way of reducing against sums taken after the backward
pass, and then the last rank leaves before the others' last backward pass (``lost``).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bert_trainer.model.batch import Batch
from bert_trainer.optim.optimizer import Optimizer
from bert_trainer.parallel import zero1
from bert_trainer.parallel.connection import connect
from bert_trainer.parallel.flat_parameters import ROW, FlatParameters
from bert_trainer.parallel.reduction import GradientReduction
from bert_trainer.parallel.world import Pending, World, lost_peer
from bert_trainer.system.mpi_variables import read_size
from random_rows import model_config, random_batch, random_model
from whole_configs import optimizer_settings

VOCABULARY = 997
BUCKET_ROWS = 5


class Recorder:
    """Real ranks, with a note of what was started when."""

    def __init__(self, ranks: World) -> None:
        self.ranks = ranks
        self.started: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.ranks, name)

    def start_all_reduce_(self, tensor: Tensor, name: str) -> Pending:
        self.started.append(name)
        return self.ranks.start_all_reduce_(tensor, name)

    def start_reduce_scatter(self, rows: Tensor, name: str) -> Pending:
        self.started.append(name)
        return self.ranks.start_reduce_scatter(rows, name)


class Rank:
    """A model whose gradients are reduced in one of the ways."""

    def __init__(self, world: Recorder, *, compressed: bool, split: bool, scale: float = 1.0) -> None:
        self.world, self.scale = world, scale
        self.model = random_model(model_config(64), VOCABULARY, seed=1, dtype=torch.float32)
        self.parameters = FlatParameters(self.model)
        own = zero1.Zero1Partition(self.parameters.num_rows, world, split=split)
        self.optimizer = Optimizer(optimizer_settings(), self.parameters, own)
        self.reduction = GradientReduction(
            self.parameters, self.optimizer.gradients, self.optimizer.partition, world, compressed=compressed
        )

    def batches(self, count: int) -> list[Batch]:
        """Draw this rank's micro-batches of a step."""
        sizes = {"sequence_length": 32, "predictions": 5, "vocabulary_size": VOCABULARY}
        return [random_batch([9, 32, 17], seed=100 * self.world.rank + number, **sizes) for number in range(count)]

    def backward(self, batches: list[Batch], *, watch: bool) -> None:
        self.parameters.gradients.zero_()
        for number, batch in enumerate(batches, start=1):
            sums = self.model(batch)
            if watch and number == len(batches):
                self.reduction.watch()
            ((sums.masked_lm + sums.next_sentence) * self.scale).backward()

    def plain_sums(self, gradients: Tensor) -> Tensor:
        """Sum rows bucket by bucket, after the backward pass."""
        rows = gradients.view(-1, ROW)
        for bucket in range(0, len(rows), BUCKET_ROWS):
            self.world.start_all_reduce_(rows[bucket : bucket + BUCKET_ROWS], "plain").wait()
        return rows


def compare(world: Recorder, *, compressed: bool, split: bool, batches: int, scale: float) -> dict[str, Any]:
    rank = Rank(world, compressed=compressed, split=split, scale=scale)
    drawn = rank.batches(batches)
    rank.backward(drawn, watch=False)
    local = rank.parameters.gradients.clone()
    sums, magnitudes = rank.plain_sums(local.clone()), rank.plain_sums(local.abs())
    bounds = torch.stack([bucket.abs().amax() for bucket in local.view(-1, ROW).split(BUCKET_ROWS)])
    world.start_all_reduce_(bounds, "bounds").wait()

    world.started.clear()
    rank.backward(drawn, watch=True)
    early = len(world.started)
    times = rank.reduction.finish()
    own = rank.optimizer.partition.own_rows(local.device)
    found, expected = rank.optimizer.gradients, sums[own]
    # What compression.py promises, with a thousandth for the rounding of this very sum.
    tolerance = magnitudes[own] * 2.0**-11 + (bounds[own // BUCKET_ROWS] * 2.0**-38)[:, None]
    excess = (found - expected).abs() / (world.size * tolerance).clamp(min=1e-45)
    return {
        "equal": bool(torch.equal(found, expected)),
        "worst": float(excess.max()),
        "relative": float((found - expected).norm() / expected.norm()),
        "early": early,
        "started": list(world.started),
        "buckets": len(rank.reduction.buckets),
        "rows": len(own),
        "sent_bytes": times.sent_bytes,
        "exposed_within_total": 0 <= times.exposed_s <= times.total_s,
    }


def all_sums(world: Recorder) -> dict[str, Any]:
    uneven = 3 - world.rank % 2
    none_on_last = 0 if world.rank == world.size - 1 else 2
    ways = {
        "plain": {"compressed": False, "split": False},
        "split": {"compressed": False, "split": True},
        "fp16": {"compressed": True, "split": False},
        "fp16 split": {"compressed": True, "split": True},
    }
    found = {name: compare(world, batches=uneven, scale=1.0, **way) for name, way in ways.items()}
    found["none on the last rank"] = compare(world, batches=none_on_last, scale=1.0, **ways["plain"])
    found["fp16, none on the last rank"] = compare(world, batches=none_on_last, scale=1.0, **ways["fp16"])
    found["fp16, tiny"] = compare(world, batches=uneven, scale=1e-15, **ways["fp16"])
    found["fp16, huge"] = compare(world, batches=uneven, scale=1e15, **ways["fp16"])
    return found


def lose_a_rank(world: Recorder) -> dict[str, Any]:
    rank = Rank(world, compressed=False, split=False)
    rank.backward(rank.batches(2), watch=True)
    rank.reduction.finish()
    if world.rank == world.size - 1:
        return {"left": True}
    try:
        rank.backward(rank.batches(2), watch=True)
        rank.reduction.finish()
    except Exception as error:
        return {"lost_peer": lost_peer(error)}
    return {"lost_peer": False}


if __name__ == "__main__":
    torch.set_num_threads(1)
    zero1.BUCKET_ROWS = BUCKET_ROWS
    folder, library = sys.argv[1:]
    joined = Recorder(connect(read_size(os.environ), 1, "torch" if library == "torch" else "horovod"))
    seen = all_sums(joined)
    seen["lost"] = lose_a_rank(joined)
    Path(folder, f"{joined.rank}.json").write_text(json.dumps(seen))
    joined.close()
