"""What a task's files hold, before it becomes tokens."""

from __future__ import annotations

from dataclasses import dataclass

from bert_trainer.tasks.catalog import Task


@dataclass(frozen=True, slots=True)
class TextExample:
    """One text or a pair, to classify or to rate."""

    id: str
    first: str
    second: str | None
    """None: a single text."""
    label: int | float | None
    """Number of the class, or the rating; None: not known, as in a test set."""


@dataclass(frozen=True, slots=True)
class SpanExample:
    """A question, and the context that its answer is a part of."""

    id: str
    question: str
    context: str
    answers: tuple[tuple[str, int], ...]
    """Text and offset of its first character in the context; any of them is right, the first is trained on. Empty: not
    known."""


Example = TextExample | SpanExample

MISMATCHED_SPLIT = "-mismatched"
"""Ends the names of MNLI's second validation and test splits."""


@dataclass(frozen=True, slots=True)
class Split:
    """The examples of one file."""

    name: str
    """``train``, ``validation``, ``test``; of MNLI also ``validation-mismatched`` and ``test-mismatched``."""
    examples: tuple[Example, ...]


@dataclass(frozen=True, slots=True)
class TaskExamples:
    """A task with everything that was read for it."""

    task: Task
    """With its classes."""
    train: Split
    validations: tuple[Split, ...]
    """At least one. The metrics of the first have no suffix, and decide; those of MNLI's second end in
    ``_mismatched``."""
    tests: tuple[Split, ...]
    """Perhaps none; without labels."""
    notes: tuple[str, ...] = ()
    """Warnings for the log, such as lines that were skipped."""


def text_examples(split: Split) -> list[TextExample]:
    """Return the examples of a split of texts."""
    examples = [example for example in split.examples if isinstance(example, TextExample)]
    assert len(examples) == len(split.examples), f"the split {split.name} has spans among its texts"
    return examples


def span_examples(split: Split) -> list[SpanExample]:
    """Return the examples of a split of spans."""
    examples = [example for example in split.examples if isinstance(example, SpanExample)]
    assert len(examples) == len(split.examples), f"the split {split.name} has texts among its spans"
    return examples
