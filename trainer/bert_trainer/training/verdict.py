"""Whether a model has learnt more than how frequent tokens are: its accuracy against the unigram baseline. Pure.

It does not say how good a model is: whatever lies above the noise passes.
"""

from __future__ import annotations

import math

from bert_job.run_config import RunConfig
from bert_job.run_stages import PretrainStage
from bert_trainer.training.evaluation import Accuracy

STANDARD_ERRORS = 3.0
"""How far above the baseline an accuracy is still noise. 3 and not 2: tokens of one document are alike, and a document
occurs several times with other masks, so that the binomial error is too small."""
MAX_ADAMW_BATCH = 8192
"""Up to here the operator takes AdamW where a job names no optimizer; tests/contract compares the two."""
_FEW_STEPS = 1000
"""A tiny model on a small text leaves the plateau of token frequencies after 100 to 1,000 steps."""


def noise_limit(baseline: float, masked_tokens: int) -> float:
    """Return the highest accuracy that is within noise of a baseline, both in [0, 1].

    A guess is right with the baseline's probability p, so the share of right ones among n masked tokens has the
    binomial standard error sqrt(p (1 - p) / n).
    """
    return baseline + STANDARD_ERRORS * math.sqrt(baseline * (1 - baseline) / max(masked_tokens, 1))


def describe_verdict(found: Accuracy, baseline: float, config: RunConfig, *, steps: int) -> str | None:
    """Return a remark on a model no better than the unigram baseline, with what to try; else None.

    Args:
        found: Its accuracy.
        baseline: That of always predicting the most frequent token, on the same samples.
        config: What it was trained by.
        steps: Of all pretrain stages so far.
    """
    limit = noise_limit(baseline, found.masked_tokens)
    if found.masked_lm > limit:
        return None
    # As short as this, it is whole in the job's status.
    return (
        f"no better than the most frequent token: {found.masked_lm:.1%} of {found.masked_tokens} masked tokens, and "
        f"the noise of its {baseline:.1%} reaches {limit:.1%}; next: {', or '.join(_remedies(config, steps))}"
    )


def _remedies(config: RunConfig, steps: int) -> list[str]:
    """Return what to try, the likeliest first."""
    batches = [stage.global_batch_size for stage in config.stages if isinstance(stage, PretrainStage)]
    if not batches:
        return ["train before evaluating: this run has no pretrain stage"]
    found = []
    if config.optimizer.name == "lamb" and max(batches) <= MAX_ADAMW_BATCH:
        found.append("optimizer: {name: adamw}, since lamb is for large batches")
    if steps < _FEW_STEPS:
        found.append(f"more steps than {steps}")
    return [*found, "another learningRate (docs/guides/learning-rates.md)"]
