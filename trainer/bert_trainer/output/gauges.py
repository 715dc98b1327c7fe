"""All figures that rank 0 exports to Prometheus as ``bert_trainer_NAME``, and those on the progress line.

``metrics`` makes the gauges of it, tools/generate.py the page docs/reference/metrics.md. Names are public: alerts,
dashboards and queries of users have them. What is on the progress line reaches a job's status, and by that the operator
and its own metrics, without any port of the job.
"""

from __future__ import annotations

from typing import NamedTuple

from bert_job.tasks import MISMATCHED

PREFIX = "bert_trainer_"
EVALUATION = "evaluation_"
"""Prefix of an evaluation's figures; the evaluation's own record has the names without it."""


class Described(NamedTuple):
    """Unit and help text of one figure."""

    unit: str
    """Unit in the reference; empty for a count or a number without one."""
    text: str
    """Help text."""


GAUGES = {
    "step": Described("", "Optimizer steps taken in the current stage."),
    "epoch": Described("", "Epochs of the current run of a finetune stage, as a fraction."),
    "loss": Described(
        "nats",
        "Loss of the last logging interval: masked-LM plus next-sentence, or the task's (regression: squared error).",
    ),
    "mlm_accuracy": Described("share", "Masked tokens predicted correctly in the last logging interval."),
    "nsp_accuracy": Described("share", "Sentence pairs classified correctly in the last logging interval."),
    "learning_rate": Described("", "Learning rate of the last step."),
    "gradient_norm": Described("", "Global gradient norm of the last step, before clipping."),
    "sequences_per_s": Described("1/s", "Sequences trained per second, over all ranks."),
    "real_tokens_per_s": Described("1/s", "Tokens without padding trained per second, over all ranks."),
    "step_s": Described("seconds", "Time per optimizer step, over the last logging interval."),
    "work_s": Described("seconds", "Compute time per step of the slowest rank, without waiting for others."),
    "model_flop_per_s": Described(
        "FLOP/s",
        "Model FLOP per second over all ranks in pretraining: matrix products on real tokens and masked positions. "
        "Divided by the hardware's peak it is the MFU.",
    ),
    "reduction_s": Described(
        "seconds",
        "Gradient reduction time per step (all-reduce, or reduce-scatter with ZeRO-1), of the slowest rank; with two "
        "or more ranks.",
    ),
    "reduction_exposed_s": Described(
        "seconds",
        "Gradient reduction time per step after the backward pass, not hidden by overlap, of the slowest rank.",
    ),
    "reduction_bytes": Described("bytes", "Gradient bytes that each rank reduced per step."),
    "token_imbalance": Described("", "Real tokens of the busiest rank divided by the mean over ranks; 1 is balanced."),
    "memory_bytes": Described("bytes", "Memory of the largest rank: resident set, or peak tensor memory on a GPU."),
    "unhealthy_findings": Described(
        "", "Training health findings in the current stage: non-finite gradients, spikes, a low loss scale."
    ),
    "skipped_steps": Described("", "Steps of the current stage whose update was skipped, fp16 overflows included."),
    "data_wait_share": Described("share", "Share of the last logging interval that ranks waited for input batches."),
    "checkpoint_seconds": Described("seconds", "Time that writing the latest checkpoint took."),
    "volume_free_share": Described("share", "Free share of the output folder's file system."),
    "shards_left_out": Described("", "Unreadable shards that the current stage continues without."),
    "remaining_s": Described("seconds", "Estimated time until the current stage ends."),
    "evaluation_step": Described("", "Optimizer step of the latest evaluation in the current stage."),
    "evaluation_mlm_accuracy": Described("share", "Masked tokens predicted correctly in the latest evaluation."),
    "evaluation_nsp_accuracy": Described("share", "Sentence pairs classified correctly in the latest evaluation."),
    "evaluation_mlm_loss": Described("nats", "Masked-LM loss of the latest evaluation."),
    "evaluation_seconds": Described("seconds", "Duration of the latest evaluation."),
    "evaluation_accuracy": Described("share", "Accuracy of a fine-tuned model in the latest evaluation."),
    "evaluation_f1": Described("share", "F1 of a fine-tuned model in the latest evaluation."),
    "evaluation_matthews_correlation": Described(
        "", "Matthews correlation of a fine-tuned model in the latest evaluation."
    ),
    "evaluation_spearman": Described("", "Spearman correlation of a fine-tuned model in the latest evaluation."),
    "evaluation_pearson": Described("", "Pearson correlation of a fine-tuned model in the latest evaluation."),
    "evaluation_exact_match": Described("share", "Exact match of a fine-tuned model in the latest evaluation."),
    f"evaluation_accuracy{MISMATCHED}": Described(
        "share", "Accuracy on MNLI's mismatched validation set in the latest evaluation."
    ),
}
"""Gauges with the label stage."""

RUN_GAUGES = {
    "checkpoint_timestamp_seconds": Described(
        "Unix time", "When the latest checkpoint was complete; before the first one, when the attempt began."
    ),
    "volume_bytes": Described("bytes", "Size of the file system of the output folder."),
    "volume_free_bytes": Described("bytes", "Free space of that file system for users other than root."),
}
"""Gauges of the whole run, without labels."""

RANK_GAUGES = {
    "rank_score": Described("", "Compute time of a rank per step, relative to the median of the other ranks."),
    "rank_own_score": Described("", "Compute time of a rank per step, relative to its best interval of the stage."),
}
"""Gauges with the labels stage and rank."""

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
)


def find_line(name: str) -> str:
    """Return the event and field that carry a figure on standard output; empty if none does."""
    if name.startswith(EVALUATION):
        return f"evaluated {name.removeprefix(EVALUATION)}"
    return f"progress {name}" if name in (*ON_THE_LINE, *ON_THE_LINE_UNLESS_ZERO) else ""
