"""Every figure that rank 0 serves to Prometheus, as ``bert_trainer_NAME``, and those that the progress line has.

``metrics`` makes the gauges of it, tools/generate.py the page docs/reference/metrics.md. Names are public: alerts,
dashboards and queries of users have them. What is on the progress line reaches a job's status, and by that the operator
and its own metrics, without any port of the job.
"""

from __future__ import annotations

from typing import NamedTuple

from bert_trainer.config.finetuning import MISMATCHED

PREFIX = "bert_trainer_"
EVALUATION = "evaluation_"
"""Before the name of a figure of an evaluation: the record of the evaluation has it without."""


class Described(NamedTuple):
    """One figure."""

    unit: str
    """As a page shows it; empty for a count or a number without one."""
    text: str
    """A sentence."""


GAUGES = {
    "step": Described("", "Optimizer steps taken in the current stage."),
    "epoch": Described("", "Passes over the training rows in the current run of a finetune stage."),
    "loss": Described(
        "nats", "Loss of the last logging interval: masked-LM plus next-sentence, or the task's (also squared error)."
    ),
    "mlm_accuracy": Described("share", "Masked tokens predicted correctly in the last logging interval."),
    "nsp_accuracy": Described("share", "Sentence pairs classified correctly in the last logging interval."),
    "learning_rate": Described("", "Learning rate of the last step."),
    "gradient_norm": Described("", "Global gradient norm of the last step, before clipping."),
    "sequences_per_s": Described("1/s", "Sequences trained per second, over all ranks."),
    "real_tokens_per_s": Described("1/s", "Tokens without padding trained per second, over all ranks."),
    "step_s": Described("seconds", "Seconds per step, over the last logging interval."),
    "work_s": Described("seconds", "Seconds per step that the slowest rank worked itself, without waiting for others."),
    "model_flop_per_s": Described(
        "FLOP/s",
        "Operations per second, over all ranks, that the steps of pretraining need at least: matrix products on real "
        "tokens and masked positions. Divided by what the hardware can do it is the MFU.",
    ),
    "reduction_s": Described(
        "seconds", "Seconds that summing gradients over ranks took per step, the slowest rank's; from two ranks on."
    ),
    "reduction_exposed_s": Described(
        "seconds", "Seconds per step that gradient reduction took after the backward pass, the slowest rank's."
    ),
    "reduction_bytes": Described("bytes", "Gradient bytes that each rank passed to the reduction per step."),
    "token_imbalance": Described(
        "", "Real tokens of the busiest rank over the mean of all ranks, 1 if they are equal."
    ),
    "memory_bytes": Described(
        "bytes", "Memory of the largest rank: resident set, or the most that tensors took on a GPU."
    ),
    "unhealthy_findings": Described(
        "", "Findings of training health in the current stage: not finite, spikes, a low loss scale."
    ),
    "skipped_steps": Described(
        "", "Steps of the current stage whose update was not applied, overflows of fp16 included."
    ),
    "left_out_steps": Described("", "Steps of the current stage whose samples were left out by a rollback."),
    "rollbacks": Described("", "Times that the run has gone back to a checkpoint."),
    "data_wait_share": Described("share", "Part of the last logging interval that ranks waited for their batches."),
    "checkpoint_seconds": Described("seconds", "Seconds that the latest checkpoint took to reach the disk."),
    "volume_free_share": Described("share", "Part of the output folder's file system that is free."),
    "shards_left_out": Described("", "Shards that the current stage goes on without, since they could not be used."),
    "remaining_s": Described("seconds", "Expected seconds until the current stage ends."),
    "evaluation_step": Described("", "Optimizer steps of the stage at its latest evaluation."),
    "evaluation_mlm_accuracy": Described("share", "Masked tokens predicted correctly in the latest evaluation."),
    "evaluation_nsp_accuracy": Described("share", "Sentence pairs classified correctly in the latest evaluation."),
    "evaluation_mlm_loss": Described("nats", "Masked-LM loss of the latest evaluation."),
    "evaluation_seconds": Described("seconds", "Seconds that the latest evaluation took."),
    "evaluation_accuracy": Described("share", "Accuracy of a fine-tuned model in the latest evaluation."),
    "evaluation_f1": Described("share", "F1 of a fine-tuned model in the latest evaluation."),
    "evaluation_matthews_correlation": Described(
        "", "Matthews correlation of a fine-tuned model in the latest evaluation."
    ),
    "evaluation_spearman": Described("", "Spearman correlation of a fine-tuned model in the latest evaluation."),
    "evaluation_pearson": Described("", "Pearson correlation of a fine-tuned model in the latest evaluation."),
    "evaluation_exact_match": Described("share", "Exact answers of a fine-tuned model in the latest evaluation."),
    f"evaluation_accuracy{MISMATCHED}": Described("share", "Accuracy on a second validation set, likewise."),
}
"""Labelled by stage."""

RUN_GAUGES = {
    "checkpoint_timestamp_seconds": Described(
        "Unix time", "When the latest checkpoint was in place; before the first one, when the attempt began."
    ),
    "volume_bytes": Described("bytes", "Size of the file system of the output folder."),
    "volume_free_bytes": Described("bytes", "What is free on it for users other than root."),
}
"""Of the whole run, without labels."""

RANK_GAUGES = {
    "rank_score": Described(
        "", "How many times as long as the median of the others a rank works in a step, without its waits."
    ),
    "rank_own_score": Described(
        "", "How many times as long as in its best interval of the stage a rank works in a step."
    ),
}
"""Labelled by stage and rank."""

# The progress line stays short enough to read; everything else is in metrics.jsonl.
ON_THE_LINE = (
    "stage",
    "step",
    "steps",
    "seed",
    "epoch",
    "loss",
    "mlm_accuracy",
    "nsp_accuracy",
    "learning_rate",
    "micro_batch_size",
    "sequences_per_s",
    "real_tokens_per_s",
    "shards_left_out",
    "elapsed_s",
    "data_wait_s",
    "remaining_s",
    # Where the time goes, and what a crash would lose: people without access to a port or the volume have nothing else.
    "step_s",
    "model_flop_per_s",
    "gradient_norm",
    "data_wait_share",
    "reduction_exposed_s",
    "reduction_bytes",
    "memory_bytes",
    "checkpoint_seconds",
    "checkpoint_age_s",
    "volume_free_share",
    # Only while a rank is slow.
    "slow_rank",
    "slow_rank_host",
    "slow_rank_score",
    "slow_rank_intervals",
    "slow_rank_s",
)
ON_THE_LINE_UNLESS_ZERO = (
    "evaluation_s",
    "checkpoint_s",
    "unhealthy_findings",
    "skipped_steps",
    "left_out_steps",
    "rollbacks",
)


def find_line(name: str) -> str:
    """Return how a figure is told on standard output: event and field of its line; empty for one that is not."""
    if name.startswith(EVALUATION):
        return f"evaluated {name.removeprefix(EVALUATION)}"
    return f"progress {name}" if name in (*ON_THE_LINE, *ON_THE_LINE_UNLESS_ZERO) else ""
