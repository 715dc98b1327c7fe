"""Rules inside the prepare stage and its corpora; the form of ``section_rules``, which takes them in.

Pure. What a prepare stage needs of the stages beside it is in ``job_rules``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from bert_job.preparation import BUILTIN_TEXTS, CorpusSpec, PrepareSpec
from bert_job.problems import render_value
from bert_job.rules.section_rule import SectionRule, exactly_one
from bert_job.section import SPECIAL_TOKENS, Section

_BYTES = 261


def _known_builtin(field: str) -> SectionRule:
    """Refuse a builtin text that does not exist."""

    def holds(section: Any) -> bool:
        text = getattr(section, field)
        return text is None or not text.startswith("builtin:") or text in BUILTIN_TEXTS

    known = ", ".join(repr(text) for text in BUILTIN_TEXTS)
    return SectionRule(
        holds=holds,
        cel=f"!has(self.{field}) || !self.{field}.startsWith('builtin:') || self.{field} in [{known}]",
        field=field,
        allowed=f"a folder, a file, or {' | '.join(BUILTIN_TEXTS)}",
        next_step=f"did you mean {BUILTIN_TEXTS[0]}?",
        got=lambda section: str(getattr(section, field)),
    )


def _pairs_only(field: str, other: str | None, *, allowed: str) -> SectionRule:
    """Refuse a field with documents, unless it has one other value."""
    return SectionRule(
        holds=lambda stage: stage.samples != "documents" or getattr(stage, field) in (None, other),
        cel=f"!has(self.samples) || self.samples != 'documents' || !has(self.{field})"
        + (f" || self.{field} == '{other}'" if other else ""),
        field=field,
        allowed=allowed,
        next_step="leave it out, or write samples: pairs",
        got=lambda stage: f"{getattr(stage, field)} with samples documents",
    )


PREPARATION_RULES: Mapping[type[Section], tuple[SectionRule, ...]] = MappingProxyType(
    {
        PrepareSpec: (
            exactly_one("text", "corpora", next_step="name one corpus by its path as text, several as corpora"),
            _known_builtin("text"),
            SectionRule(
                holds=lambda stage: stage.num_balanced_shards is None or stage.recipe == "mlperf",
                cel="!has(self.numBalancedShards) || (has(self.recipe) && self.recipe == 'mlperf')",
                field="numBalancedShards",
                allowed="only with recipe: mlperf, which cuts its parts again",
                next_step="leave it out and set numShards, or write recipe: mlperf",
                got=lambda stage: f"{stage.num_balanced_shards} with recipe {render_value(stage.recipe)}",
            ),
            SectionRule(
                holds=lambda stage: stage.max_predictions_per_sequence is None or bool(stage.sequence_lengths),
                cel="!has(self.maxPredictionsPerSequence) || has(self.sequenceLengths)",
                field="maxPredictionsPerSequence",
                allowed="only with sequenceLengths; shards that a stage of the job reads have that stage's number",
                next_step="give it to the stage that trains on them, or add sequenceLengths",
                got=lambda stage: f"{stage.max_predictions_per_sequence} without sequenceLengths",
            ),
            SectionRule(
                holds=lambda stage: all(
                    (stage.max_predictions_per_sequence or 0) <= length - SPECIAL_TOKENS
                    for length in stage.sequence_lengths or ()
                ),
                cel="!has(self.maxPredictionsPerSequence) || !has(self.sequenceLengths) || self.sequenceLengths.all("
                f"length, self.maxPredictionsPerSequence <= length - {SPECIAL_TOKENS})",
                field="maxPredictionsPerSequence",
                allowed="at most the shortest of sequenceLengths less [CLS] and two [SEP]",
                next_step="leave the field out for that of the recipe, or 15 % of each length",
                got=lambda stage: (
                    f"{stage.max_predictions_per_sequence} with {min(stage.sequence_lengths or (0,))} tokens"
                ),
            ),
            SectionRule(
                holds=lambda stage: stage.masking == "static" or stage.layout in (None, "compact"),
                cel="self.masking == 'static' || !has(self.layout) || self.layout == 'compact'",
                field="layout",
                allowed="compact with masking: dynamic; the others have no room for samples without masks",
                next_step="leave it out, or write masking: static",
                got=lambda stage: f"{stage.layout} with masking {stage.masking}",
            ),
            SectionRule(
                holds=lambda stage: stage.tokenizer != "byte-bpe" or (stage.vocabulary_size or _BYTES) >= _BYTES,
                cel="!has(self.tokenizer) || self.tokenizer != 'byte-bpe' || !has(self.vocabularySize) || "
                f"self.vocabularySize >= {_BYTES}",
                field="vocabularySize",
                allowed=f"at least {_BYTES} with tokenizer: byte-bpe: every byte and five special tokens",
                next_step="raise it; some thousands are usual",
                got=lambda stage: str(stage.vocabulary_size),
            ),
            _pairs_only("layout", "compact", allowed="compact with samples: documents, which no other layout tells"),
            _pairs_only("recipe", None, allowed="only with samples: pairs, which are what its loader reads"),
        ),
        CorpusSpec: (
            _known_builtin("path"),
            SectionRule(
                holds=lambda corpus: corpus.checksums is None or corpus.format == "mlperf",
                cel="!has(self.checksums) || self.format == 'mlperf'",
                field="checksums",
                allowed="only with format: mlperf, whose list of MD5 sums is published",
                next_step="write format: mlperf, or leave it out",
                got=lambda corpus: f"{corpus.checksums} with format {corpus.format}",
            ),
        ),
    }
)
