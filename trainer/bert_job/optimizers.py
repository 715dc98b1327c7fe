"""Which optimizer a job gets that names none, and pairs of optimizer, batch and learning rate that are unusual.

The published pairs are in docs/guides/learning-rates.md, with their sources. Nothing here refuses a job.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

from bert_job.model import PRESETS, resolve_size
from bert_job.optimization import OptimizerName
from bert_job.pretraining import PretrainSpec
from bert_job.training import TrainingSpec

AnySpec = TypeVar("AnySpec", bound=TrainingSpec)

MAX_ADAMW_BATCH = 8192
"""Largest sequences per step for which AdamW is the default: the largest that BERT was published with AdamW for (Liu et
al. 2019, table 9). MosaicBERT, and Izsak et al. 2021, take AdamW at 4,096. What was measured here with
small models is in docs/guides/learning-rates.md."""

_GUIDE = "docs/guides/learning-rates.md"
_PUBLISHED_WIDTH = PRESETS["base"].hidden_size
"""Hidden size of the smallest model with published rates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The batches, in sequences per step, and peak rates that BERT was published with for one optimizer."""

    smallest_batch: int
    largest_batch: int
    rate_batch: int
    """The batch of the rates below, which go with the square root of the batch."""
    lowest_rate: float
    highest_rate: float
    narrow_takes_more: bool
    """Whether the rate goes with 1 / hidden size, as Adam's does (Yang et al. 2022, arXiv 2203.03466); LAMB's trust
    ratio makes a step a share of the weights' norm."""


PUBLISHED: Mapping[OptimizerName, Published] = MappingProxyType(
    {
        # Devlin et al. 2019: 1e-4 at 256; Liu et al. 2019: 7e-4 at 2,048 is the highest for its batch, 4e-4 at 8,192
        # the lowest. Nobody publishes batches below 256, but small texts take them.
        "adamw": Published(
            smallest_batch=1,
            largest_batch=MAX_ADAMW_BATCH,
            rate_batch=256,
            lowest_rate=7e-5,
            highest_rate=2.5e-4,
            narrow_takes_more=True,
        ),
        # MLPerf: 3.5e-4 at 448 is the lowest for its batch, Intel's 2e-3 at 2,048 the highest. NVIDIA's v2 settings
        # have 261,120 sequences on 16 GPUs.
        "lamb": Published(
            smallest_batch=448,
            largest_batch=261_120,
            rate_batch=32_768,
            lowest_rate=3e-3,
            highest_rate=8e-3,
            narrow_takes_more=False,
        ),
    }
)
_ABOVE, _BELOW = 2.0, 10.0
"""How far from the published rates a rate is still usual: twice the highest, a tenth of the lowest. Continued training
takes a fifth, and too high a rate costs more than too low a one."""


def largest_batch(spec: TrainingSpec) -> int:
    """Return the largest globalBatchSize of a job's pretrain stages; 0 without any."""
    return max((stage.pretrain.global_batch_size for stage in spec.stages if stage.pretrain is not None), default=0)


def optimizer_of(spec: TrainingSpec) -> OptimizerName:
    """Return the optimizer of all pretrain stages of a job: the one that it names, else by its largest batch."""
    return spec.optimizer.name or choose_optimizer(largest_batch(spec))


def choose_optimizer(batch: int) -> OptimizerName:
    """Return the default for a largest batch, in sequences per step.

    0, where no stage pretrains: LAMB, which nothing then uses.
    """
    return "adamw" if 0 < batch <= MAX_ADAMW_BATCH else "lamb"


def name_optimizer(spec: AnySpec) -> AnySpec:
    """Return the job with its default optimizer filled in."""
    return with_optimizer(spec, optimizer_of(spec))


def with_optimizer(spec: AnySpec, name: OptimizerName) -> AnySpec:
    """Return the job with this optimizer."""
    return spec.model_copy(update={"optimizer": spec.optimizer.model_copy(update={"name": name})})


def describe_unusual(spec: TrainingSpec) -> Iterator[str]:
    """Yield a remark on each pretrain stage whose batch or rate is far from what was published for the optimizer."""
    name = optimizer_of(spec)
    for number, stage in enumerate(spec.stages):
        if stage.pretrain is not None:
            yield from _describe_stage(f"spec.stages[{number}].pretrain", stage.pretrain, name, spec)


def _describe_stage(path: str, stage: PretrainSpec, name: OptimizerName, spec: TrainingSpec) -> Iterator[str]:
    known, batch, rate = PUBLISHED[name], stage.global_batch_size, stage.learning_rate
    if batch < known.smallest_batch:
        yield (
            f"{path}.globalBatchSize: {batch} with lamb, which is for batches of thousands of sequences and hardly "
            f"learns with few; next: optimizer: {{name: adamw}} ({_GUIDE})"
        )
        return
    if batch > known.largest_batch:
        other = "; next: optimizer: {name: lamb}" if name == "adamw" else ""
        yield f"{path}.globalBatchSize: {batch} with {name}, published up to {known.largest_batch}{other} ({_GUIDE})"
        return
    scale = math.sqrt(max(batch, known.rate_batch if name == "adamw" else 1) / known.rate_batch)
    lowest, highest = known.lowest_rate * scale, known.highest_rate * scale * _width_factor(spec, known)
    if not lowest / _BELOW <= rate <= highest * _ABOVE * (1 + 1e-9):
        yield (
            f"{path}.learningRate: {rate:g} with {name} and {batch} sequences per step, where {lowest:.1g} to "
            f"{highest:.1g} are usual for a model of this width ({_GUIDE})"
        )


def _width_factor(spec: TrainingSpec, known: Published) -> float:
    """Return by what a narrower model than the published ones may raise the rate."""
    if not known.narrow_takes_more or spec.model.config_file is not None:
        return 1.0
    return max(1.0, _PUBLISHED_WIDTH / resolve_size(spec.model).hidden_size)
