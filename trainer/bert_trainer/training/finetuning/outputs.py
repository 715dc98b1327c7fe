"""The head's numbers for every row of a split, without dropout.

A split is cut into the same micro-batches for any number of ranks, which take turns.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from bert_trainer.dataset.shards.ragged import RaggedSamples
from bert_trainer.model.batch import make_batch
from bert_trainer.model.task_model import TaskModel
from bert_trainer.parallel.world import World
from bert_trainer.system.heartbeat import watched
from bert_trainer.training.device import Compute


@torch.no_grad()
def head_outputs(
    compute: Compute,
    model: TaskModel,
    samples: RaggedSamples,
    *,
    sequence_length: int,
    micro_batch_size: int,
    world: World,
    max_tokens: int | None = None,
) -> Tensor:
    """Return the outputs of all rows on every rank of ``world``, fp32 on the CPU. Collective in it.

    Args:
        compute: Device and precision.
        model: The model.
        samples: R rows of S tokens together.
        sequence_length: Tokens; no row is longer.
        micro_batch_size: Most rows of a pass.
        world: The ranks that have the same weights.
        max_tokens: Most tokens of a pass with more than one row; None: any.

    Returns:
        (R, L); of spans (S, 2).
    """
    by_token = model.head_config.kind == "spans"
    num_outputs = model.head_config.num_outputs
    outputs = torch.zeros(len(samples.tokens) if by_token else len(samples), num_outputs)
    model.eval()
    backend = model.backend
    with compute.autocast(), backend.step_context():
        for number, rows in enumerate(_passes(samples, micro_batch_size, max_tokens)):
            if number % world.size != world.rank:
                continue
            taken = samples.take(rows)
            batch = make_batch(taken, np.arange(rows.start, rows.stop))
            batch = backend.stage_batch(batch, sequence_length=sequence_length, micro_batch_size=micro_batch_size)
            first, count = rows.start, len(taken)
            if by_token:
                first, count = int(samples.token_starts[first]), len(taken.tokens)
            # Rows and tokens of padding are behind the real ones.
            outputs[first : first + count] = model.logits(batch.to(compute.device))[:count].float().cpu()
            watched().alive()
    model.train()
    # Each element has one rank's number and zeros from all others: exact in any order of summation.
    world.all_reduce_(outputs.view(-1))
    return outputs


def _passes(samples: RaggedSamples, max_rows: int, max_tokens: int | None) -> Iterator[slice]:
    """Yield the rows of each pass, in their order."""
    ends, start = np.cumsum(samples.token_counts), 0
    while start < len(samples):
        stop = start + max_rows
        if max_tokens is not None:
            room = max_tokens + int(samples.token_starts[start])
            stop = min(stop, max(start + 1, int(np.searchsorted(ends, room, side="right"))))
        yield slice(start, min(stop, len(samples)))
        start = stop
