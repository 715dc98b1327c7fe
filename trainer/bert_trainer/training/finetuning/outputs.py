"""The head's numbers for every row of a split, without dropout.

A split is cut into the same micro-batches for any number of ranks, which take turns.
"""

from __future__ import annotations

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
) -> Tensor:
    """Return the outputs of all rows on every rank of ``world``, fp32 on the CPU. Collective in it.

    Args:
        compute: Device and precision.
        model: The model.
        samples: R rows of S tokens together.
        sequence_length: Tokens; no row is longer.
        micro_batch_size: Rows of a pass.
        world: The ranks that have the same weights.

    Returns:
        (R, L); of spans (S, 2).
    """
    by_token = model.head_config.kind == "spans"
    num_outputs = model.head_config.num_outputs
    outputs = torch.zeros(len(samples.tokens) if by_token else len(samples), num_outputs)
    model.eval()
    backend = model.backend
    with compute.autocast(), backend.step_context():
        for number, start in enumerate(range(0, len(samples), micro_batch_size)):
            if number % world.size != world.rank:
                continue
            rows = slice(start, min(start + micro_batch_size, len(samples)))
            taken = samples.take(rows)
            batch = make_batch(taken, np.arange(rows.start, rows.stop))
            batch = backend.stage_batch(batch, sequence_length=sequence_length, micro_batch_size=micro_batch_size)
            first, count = (int(samples.token_starts[start]), len(taken.tokens)) if by_token else (start, len(taken))
            # Rows and tokens of padding are behind the real ones.
            outputs[first : first + count] = model.logits(batch.to(compute.device))[:count].float().cpu()
            watched().alive()
    model.train()
    # Each element has one rank's number and zeros from all others: exact in any order of summation.
    world.all_reduce_(outputs.view(-1))
    return outputs
