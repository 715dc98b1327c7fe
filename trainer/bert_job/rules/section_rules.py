"""Rules inside one section of a run, and how they are found wherever such a section stands.

A rule stands at its section's class, and holds for classes that inherit from it. Rules between sections are in
``training_rules`` and ``stage_rules``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from bert_job.evaluation import DataRangeSpec, EvaluationSpec
from bert_job.pretraining import PretrainSpec
from bert_job.problems import Path, Problem, render_path
from bert_job.reporting import MAX_PROFILED_STEPS, ProfileStepsSpec
from bert_job.rules.preparation_rules import PREPARATION_RULES
from bert_job.rules.pretrain_rules import EVALUATION_RULES, PRETRAIN_RULES
from bert_job.rules.section_rule import SectionRule
from bert_job.section import Section, keys_of, sections_in
from bert_job.weights import InitialCheckpointSpec

RulesOfSections = Mapping[type[Section], tuple[SectionRule, ...]]

TRAINING_SECTION_RULES: RulesOfSections = MappingProxyType(
    {
        **PREPARATION_RULES,
        PretrainSpec: PRETRAIN_RULES,
        EvaluationSpec: EVALUATION_RULES,
        DataRangeSpec: (
            SectionRule(
                holds=lambda part: part.start < part.end,
                cel="self.start < self.end",
                allowed="a start below the end, both as shares from 0 to 1",
                next_step="leave the field out for all samples",
                got=lambda part: f"{part.start:g} to {part.end:g}",
            ),
        ),
        ProfileStepsSpec: (
            SectionRule(
                holds=lambda steps: steps.first <= steps.last < steps.first + MAX_PROFILED_STEPS,
                cel=f"self.first <= self.last && self.last < self.first + {MAX_PROFILED_STEPS}",
                field="last",
                allowed=f"a step from first on, {MAX_PROFILED_STEPS} steps in all at most",
                next_step="profile fewer steps; a few show as much",
                got=lambda steps: f"{steps.last} with first {steps.first}",
            ),
        ),
        InitialCheckpointSpec: (
            SectionRule(
                holds=lambda start: start.load != "weightsAndOptimizer" or start.format in ("bert-trainer", "nvidia"),
                cel="self.load != 'weightsAndOptimizer' || self.format in ['bert-trainer', 'nvidia']",
                field="load",
                allowed="weights or none: only checkpoints of bert-trainer and nvidia hold the optimizer's moments",
                next_step="write load: weights",
                got=lambda start: f"{start.load} from {start.format}",
            ),
        ),
    }
)


class SectionRules:
    """Rules by section, and what they find below a section."""

    def __init__(self, rules: RulesOfSections) -> None:
        """Take the rules; which fields lead to any is found out once for each class."""
        self._rules = rules
        self._of_kind: dict[type[Section], tuple[SectionRule, ...]] = {}
        self._fields: dict[type[Section], tuple[tuple[str, str], ...]] = {}

    def problems(self, section: Section, path: Path) -> Iterator[Problem]:
        """Yield violations in a section and in those below it."""
        fields = vars(section)
        for name, key in self.ruled_fields(type(section)):
            value = fields[name]
            if isinstance(value, Section):
                yield from self.problems(value, (*path, key))
            elif isinstance(value, tuple):
                for number, item in enumerate(value):
                    if isinstance(item, Section):
                        yield from self.problems(item, (*path, key, number))
        for rule in self._of(type(section)):
            if not rule.holds(section):
                yield Problem(
                    path=render_path(path) + (f".{rule.field}" if rule.field else ""),
                    got=rule.got(section),
                    allowed=rule.allowed,
                    next_step=rule.next_step,
                )

    def ruled_fields(self, kind: type[Section]) -> tuple[tuple[str, str], ...]:
        """Return the fields below which a section with a rule may stand, alone or in a list, with what YAML calls them.

        Most settings stand in sections that lead to none.
        """
        if kind not in self._fields:
            inner = ((name, sections_in(field.annotation)) for name, field in kind.model_fields.items())
            keys = keys_of(kind)
            self._fields[kind] = tuple(
                (name, keys[name])
                for name, kinds in inner
                if any(self._of(it) or self.ruled_fields(it) for it in kinds)
            )
        return self._fields[kind]

    def _of(self, kind: type[Section]) -> tuple[SectionRule, ...]:
        if kind not in self._of_kind:
            own = (self._rules[it] for it in kind.__mro__ if it in self._rules)
            self._of_kind[kind] = next(own, ())
        return self._of_kind[kind]
