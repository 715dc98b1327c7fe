"""Rules for what a job trains and on what: the model, the order of its stages, where its data comes from.

Pure: a rule looks at the job alone, never at files. Rules for the pods are in ``pod_rules``, rules inside one stage in
``stage_rules``.
"""

from __future__ import annotations

from collections.abc import Iterator

from bert_job.evaluation import EvaluateSpec
from bert_job.pretraining import PretrainSpec
from bert_job.problems import ABSENT, render_path, render_value
from bert_job.rules.cel import PREPARES, Cel
from bert_job.rules.rule import Rule, Violation, rule
from bert_job.rules.training_rules import is_on_held_out_documents, on_held_out_documents
from bert_operator.api.schema.bert_pretrain_job import JobSpec

_NAMES_DATA = (
    f"(has(self.dataset) && has(self.dataset.path)) || {PREPARES} || "
    "!self.stages.exists(stage, (has(stage.pretrain) && (!has(stage.pretrain.shards) || "
    f"{on_held_out_documents('stage.pretrain.evaluation')})) || "
    "(has(stage.evaluate) && !has(stage.evaluate.shards)))"
)


def _stages_without_data(spec: JobSpec) -> list[str]:
    """Return the sections whose data is neither made by this job nor named."""
    if spec.dataset.path is not None or any(stage.prepare is not None for stage in spec.stages):
        return []
    return [
        render_path(("spec", "stages", number, kind))
        for number, stage in enumerate(spec.stages)
        for kind, section in (("pretrain", stage.pretrain), ("evaluate", stage.evaluate))
        if section is not None and (section.shards is None or _needs_held_out_documents(section))
    ]


def _needs_held_out_documents(section: PretrainSpec | EvaluateSpec) -> bool:
    """Return whether a stage evaluates on the dataset although it trains on shards of its own."""
    evaluation = section.evaluation if isinstance(section, PretrainSpec) else None
    return evaluation is not None and is_on_held_out_documents(evaluation)


@rule(
    Cel(JobSpec, _NAMES_DATA, "dataset.path"),
    allowed="a folder",
    next_step="name the dataset's folder, add a prepare stage, or give shards in every stage that reads data",
)
def data_has_a_source(spec: JobSpec) -> Iterator[Violation]:
    """Refuse stages whose data is neither made by this job nor named."""
    if without := _stages_without_data(spec):
        yield Violation("dataset.path", ABSENT, allowed=f"a folder, for the data of {' and '.join(without)}")


@rule(
    Cel(
        JobSpec,
        f"!({_NAMES_DATA}) || {PREPARES} || "
        "(has(self.dataset) && (has(self.dataset.path) || has(self.dataset.vocabularyFile))) || "
        "(has(self.initialCheckpoint) && !self.stages.exists(stage, has(stage.pretrain)))",
        "dataset.vocabularyFile",
    ),
    allowed="the vocabulary that the shards were made with, or for fine-tuning alone that of the texts",
    next_step="name the file, or give dataset.path of a dataset that holds vocab.txt",
)
def shards_have_a_vocabulary(spec: JobSpec) -> Iterator[Violation]:
    """Refuse ready shards without the vocabulary that they were made with."""
    named = spec.dataset.path is not None or spec.dataset.vocabulary_file is not None
    # Beside published weights lies their vocabulary, of which shards of one's own may not have been made.
    named = named or (spec.initial_checkpoint is not None and all(stage.pretrain is None for stage in spec.stages))
    # Where there is no data at all, data_has_a_source speaks: one mistake is reported once.
    if not named and not any(stage.prepare is not None for stage in spec.stages) and not _stages_without_data(spec):
        yield Violation("dataset.vocabularyFile", ABSENT)


@rule(
    Cel(
        JobSpec,
        # vocabularySize has its default in code alone (render.run_config): has() tells whether the user wrote it.
        "!(has(self.dataset) && has(self.dataset.vocabularyFile)) || "
        "!self.stages.exists(stage, has(stage.prepare) && has(stage.prepare.vocabularySize))",
        subject="stages[].prepare.vocabularySize",
    ),
    allowed="this or dataset.vocabularyFile, whose vocabulary is used as it is",
    next_step="leave one of them out",
)
def vocabulary_has_one_source(spec: JobSpec) -> Iterator[Violation]:
    """Refuse a size for a vocabulary that is not trained."""
    for number, stage in enumerate(spec.stages):
        if stage.prepare is None or stage.prepare.vocabulary_size is None or spec.dataset.vocabulary_file is None:
            continue
        got = f"{stage.prepare.vocabulary_size}, and dataset.vocabularyFile as well"
        yield Violation(f"stages[{number}].prepare.vocabularySize", got)


_WITHOUT_SLASHES = "find('(?s)^.*[^/]')"
"""``rstrip("/")``, which CEL does not have. (?s): names of folders may hold line breaks."""


@rule(
    Cel(
        JobSpec,
        "!(has(self.dataset) && has(self.dataset.path)) || "
        f"self.dataset.path.{_WITHOUT_SLASHES} != self.output.path.{_WITHOUT_SLASHES}",
        "dataset.path",
    ),
    allowed="another folder than output.path, or one below it",
    next_step="leave the field out: the dataset then lies in data/ below output.path",
)
def folders_differ(spec: JobSpec) -> Iterator[Violation]:
    """Refuse a dataset in the very folder of the results, which ``ifExists: New`` clears."""
    # Texts alone: links and .. would take a file system, which the API server does not have, and both must agree.
    if spec.dataset.path is not None and spec.dataset.path.rstrip("/") == spec.output.path.rstrip("/"):
        yield Violation("dataset.path", f"{render_value(spec.dataset.path)}, which is output.path")


JOB_RULES: tuple[Rule[JobSpec], ...] = (
    data_has_a_source,
    shards_have_a_vocabulary,
    vocabulary_has_one_source,
    folders_differ,
)
