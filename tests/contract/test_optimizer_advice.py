"""Operator and trainer agree up to which batch AdamW is the default: one chooses it, the other advises it."""

from __future__ import annotations

from bert_job.optimizers import MAX_ADAMW_BATCH
from bert_trainer.training import verdict


def test_both_have_the_same_largest_batch_for_adamw() -> None:
    assert verdict.MAX_ADAMW_BATCH == MAX_ADAMW_BATCH
