"""The cases of ``rule_cases`` that are about text, shards and masks."""

from __future__ import annotations

from job_changes import Change, both, drop, pretrain, put
from rule_case import RuleCase
from sample_job import EVALUATE, PHASE1, PREPARE

P1 = "spec.stages[1].pretrain"


def corpora(*entries: dict[str, object]) -> Change:
    """Let the prepare stage read several corpora in place of its text."""
    drop_text = drop("stages", PREPARE, "prepare", "text")
    return both(drop_text, put("stages", PREPARE, "prepare", "corpora", value=list(entries)))


PREPARATION_CASES: dict[str, RuleCase] = {
    "builtin text": RuleCase(
        put("stages", PREPARE, "prepare", "text", value="texts/builtin:wikipedia"),
        put("stages", PREPARE, "prepare", "text", value="builtin:wikipedia"),
        "spec.stages[0].prepare.text",
        ("builtin:python-docs",),
    ),
    "shards to evaluate on": RuleCase(
        both(
            put("stages", PREPARE, "prepare", "heldOutFraction", value=0),
            put("stages", EVALUATE, "evaluate", "shards", value="eval-set"),
        ),
        put("stages", PREPARE, "prepare", "heldOutFraction", value=0),
        "spec.stages[2].evaluate.shards",
        ("a folder of held-out shards", "heldOutFraction: 0"),
    ),
    "text in one way": RuleCase(
        corpora({"path": "a"}),
        put("stages", PREPARE, "prepare", "corpora", value=[{"path": "a"}]),
        "spec.stages[0].prepare",
        ("got text and corpora", "exactly one of text, corpora"),
    ),
    "some text": RuleCase(
        corpora({"path": "a"}, {"path": "b", "weight": 0.5}),
        drop("stages", PREPARE, "prepare", "text"),
        "spec.stages[0].prepare",
        ("got nothing",),
    ),
    "builtin text of a corpus": RuleCase(
        corpora({"path": "builtin:python-docs"}),
        corpora({"path": "a"}, {"path": "builtin:books"}),
        "spec.stages[0].prepare.corpora[1].path",
        ("got builtin:books", "builtin:python-docs"),
    ),
    "checksums of the benchmark only": RuleCase(
        corpora({"path": "results4", "format": "mlperf", "checksums": "md5.txt"}),
        corpora({"path": "results4", "checksums": "md5.txt"}),
        "spec.stages[0].prepare.corpora[0].checksums",
        ("only with format: mlperf",),
    ),
    "parts cut again": RuleCase(
        both(
            put("stages", PREPARE, "prepare", "recipe", value="mlperf"),
            put("stages", PREPARE, "prepare", "numBalancedShards", value=64),
        ),
        put("stages", PREPARE, "prepare", "numBalancedShards", value=64),
        "spec.stages[0].prepare.numBalancedShards",
        ("got 64 with recipe null", "only with recipe: mlperf"),
    ),
    "predictions of lengths for others": RuleCase(
        both(
            put("stages", PREPARE, "prepare", "sequenceLengths", value=[512]),
            put("stages", PREPARE, "prepare", "maxPredictionsPerSequence", value=76),
        ),
        put("stages", PREPARE, "prepare", "maxPredictionsPerSequence", value=76),
        "spec.stages[0].prepare.maxPredictionsPerSequence",
        ("got 76 without sequenceLengths", "only with sequenceLengths"),
    ),
    "predictions that every length for others has room for": RuleCase(
        both(
            put("stages", PREPARE, "prepare", "sequenceLengths", value=[512, 79]),
            put("stages", PREPARE, "prepare", "maxPredictionsPerSequence", value=76),
        ),
        both(
            put("stages", PREPARE, "prepare", "sequenceLengths", value=[512, 64]),
            put("stages", PREPARE, "prepare", "maxPredictionsPerSequence", value=76),
        ),
        "spec.stages[0].prepare.maxPredictionsPerSequence",
        ("got 76 with 64 tokens",),
    ),
    "a layout with room for rows without masks": RuleCase(
        put("stages", PREPARE, "prepare", "layout", value="intel"),
        both(
            put("stages", PREPARE, "prepare", "layout", value="intel"),
            put("stages", PREPARE, "prepare", "masking", value="dynamic"),
            pretrain(masking="dynamic"),
        ),
        "spec.stages[0].prepare.layout",
        ("got intel with masking dynamic",),
    ),
    "probability of dynamic masks": RuleCase(
        pretrain(masking="dynamic", maskedLmProbability=0.3),
        put("stages", PHASE1, "pretrain", "maskedLmProbability", value=0.3),
        f"{P1}.maskedLmProbability",
        ("got 0.3 with masking static", "only with masking: dynamic"),
    ),
    "words of dynamic masks": RuleCase(
        pretrain(masking="dynamic", wholeWordMasking=True),
        put("stages", PHASE1, "pretrain", "wholeWordMasking", value=False),
        f"{P1}.wholeWordMasking",
        ("got false with masking static",),
    ),
    "masks in files or drawn": RuleCase(
        both(put("stages", PREPARE, "prepare", "masking", value="dynamic"), pretrain(masking="dynamic")),
        put("stages", PREPARE, "prepare", "masking", value="dynamic"),
        f"{P1}.masking",
        ("got static", "the prepare stage writes no masks"),
    ),
}
