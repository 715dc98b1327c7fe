"""Rules for fine-tuning: its place in the job, the weights that it starts from, and whether a task and its files fit.

Pure: files are never looked at. Rules of the whole job come first, then those inside one stage.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic.alias_generators import to_camel

from bert_job.finetuning import (
    DEFAULT_SPAN_LENGTH,
    FinetuneSpec,
    TaskDataSpec,
    resolve_length,
)
from bert_job.model import resolve_positions
from bert_job.problems import ABSENT, render_value
from bert_job.rules.cel import POSITIONS, RANKS_PER_WORKER, Cel
from bert_job.rules.rule import Rule, Violation, rule
from bert_job.rules.stage_rules import StageView
from bert_job.section import SPECIAL_TOKENS, Section
from bert_job.stages import Stage
from bert_job.tasks import NEEDED_COLUMNS, OWN_TABLES, SPAN_TASKS, TASK_METRICS
from bert_job.training import TrainingSpec

_TAKEN_NAME = "start"
_FILES_OF_ONE_S_OWN = ("train", "validation", "test", "format", "columns", "labels")
_TEXT_COLUMNS = ("text", "text_pair", "label")
_SPAN_COLUMNS = ("question", "context", "answer", "answer_start")
_NEEDED_TEXT_COLUMNS, _NEEDED_SPAN_COLUMNS = NEEDED_COLUMNS["classification"], NEEDED_COLUMNS["spans"]


def _words(words: tuple[str, ...]) -> str:
    return "[" + ", ".join(f"'{word}'" for word in words) + "]"


def _all_set(section: str, names: tuple[str, ...]) -> str:
    return " && ".join(f"has({section}.{to_camel(name)})" for name in names)


def _none_set(section: str, names: tuple[str, ...]) -> str:
    return " && ".join(f"!has({section}.{to_camel(name)})" for name in names)


def _not_as_the_task_reads(
    path: str, section: Section | None, needed: tuple[str, ...], unread: tuple[str, ...], task: str
) -> Iterator[Violation]:
    """Yield the needed fields that are not set, and the set ones that the task does not read."""
    if section is None:
        yield Violation(path, ABSENT)
        return
    given = section.model_dump(by_alias=True, exclude_none=True)
    for key in map(to_camel, needed):
        if key not in given:
            yield Violation(f"{path}.{key}", ABSENT)
    for key in map(to_camel, unread):
        if key in given:
            value = given[key]
            # An empty section is one all the same, as in CEL.
            inner = value if isinstance(value, dict) and value else {}
            for at, item in {f"{key}.{name}": it for name, it in inner.items()}.items() or [(key, value)]:
                yield Violation(f"{path}.{at}", f"{render_value(item)} with task {task}")


_IS_OWN_TABLE = f"self.task in {_words(OWN_TABLES)}"
_IS_SPANS = f"self.task in {_words(SPAN_TASKS)}"


def _come_before_tasks(stages: str) -> str:
    """Return the expression for all of these stages standing before every finetune stage."""
    # A loop does not know the position of its entry: of those that matter each becomes a number. A word of letters
    # would cost more than a definition has, since the server does not know how long it can be.
    both = f"self.stages.filter(stage, has(stage.finetune) || {stages})"
    return f"{both}.map(stage, has(stage.finetune) ? 1 : 0).isSorted()"


@rule(
    Cel(TrainingSpec, _come_before_tasks("!has(stage.export)"), "stages"),
    allowed="finetune and export stages alone after a finetune stage, whose model has the head of its task",
    next_step="move the stage before the first finetune stage",
)
def tasks_come_last(spec: TrainingSpec) -> Iterator[Violation]:
    """Refuse to pretrain a model that was fine-tuned, or to evaluate it as one that predicts masked tokens."""
    first = None
    for number, stage in enumerate(spec.stages):
        others = [kind for kind in stage.kinds if kind not in ("finetune", "export")]
        if first is not None and others:
            yield Violation(f"stages[{number}].{others[0]}", f"{others[0]} after the finetune stage {first}")
        if first is None and stage.finetune is not None:
            first = stage.name


@rule(
    Cel(TrainingSpec, _come_before_tasks("(has(stage.export) && stage.export.format == 'tensorflow')"), "stages"),
    allowed="huggingface or onnx after a finetune stage: TensorFlow 1 checkpoints have no names for heads of tasks",
    next_step="export in another format, or move the export before the finetune stages for the pretrained model",
)
def export_fits_task(spec: TrainingSpec) -> Iterator[Violation]:
    """Refuse formats that cannot express a fine-tuned model."""
    finetuned = False
    for number, stage in enumerate(spec.stages):
        finetuned = finetuned or stage.finetune is not None
        if finetuned and stage.export is not None and stage.export.format == "tensorflow":
            yield Violation(f"stages[{number}].export.format", '"tensorflow", after a finetune stage')


@rule(
    Cel(
        TrainingSpec,
        "(has(self.initialCheckpoint) && self.initialCheckpoint.load != 'none') || "
        "self.stages.exists(stage, has(stage.pretrain)) || "
        "self.stages.all(stage, !has(stage.finetune) || stage.finetune.startFrom == 'random')",
        subject="stages[].finetune.startFrom",
    ),
    allowed="pretrained where the job has a pretrain stage, or an initialCheckpoint whose weights are loaded",
    next_step="write spec.initialCheckpoint: {path: ...}, or startFrom: random if that is meant",
)
def finetuning_has_weights(spec: TrainingSpec) -> Iterator[Violation]:
    """Refuse to fine-tune random weights unless the job says so: the result would be poor without a word."""
    start = spec.initial_checkpoint
    if (start is not None and start.load != "none") or any(stage.pretrain is not None for stage in spec.stages):
        return
    for number, stage in enumerate(spec.stages):
        if stage.finetune is not None and stage.finetune.start_from == "pretrained":
            without = "no initialCheckpoint" if start is None else "initialCheckpoint.load none"
            yield Violation(
                f"stages[{number}].finetune.startFrom", f'"pretrained", with no pretrain stage and {without}'
            )


@rule(
    Cel(Stage, f"!has(self.finetune) || self.name != '{_TAKEN_NAME}'", "name"),
    allowed=f"another name than {_TAKEN_NAME}: finetune/{_TAKEN_NAME} holds the weights that all finetune stages start "
    "from",
    next_step="name the stage after its task",
)
def name_is_free(view: StageView) -> Iterator[Violation]:
    """Refuse a stage name whose output folder is used for something else."""
    if view.stage.finetune is not None and view.stage.name == _TAKEN_NAME:
        yield Violation("name", render_value(_TAKEN_NAME))


@rule(
    Cel(
        TrainingSpec,
        # The positions of a model in a file are known when the run starts.
        f"has(self.model.configFile) || [{POSITIONS}].all(longest, self.stages.all(stage, !has(stage.finetune) || "
        "!has(stage.finetune.sequenceLength) || stage.finetune.sequenceLength <= longest))",
        subject="stages[].finetune.sequenceLength",
    ),
    allowed="at most model.maxPositionEmbeddings",
    next_step="shorten the rows, or raise model.maxPositionEmbeddings",
)
def rows_fit_model(view: StageView) -> Iterator[Violation]:
    """Refuse rows longer than the model has positions for."""
    stage, model = view.stage.finetune, view.spec.model
    if stage is None or model.config_file is not None:
        return
    length, longest = stage.sequence_length, resolve_positions(model)
    if length is not None and length > longest:
        at_most = f"at most model.maxPositionEmbeddings {longest}"
        yield Violation("finetune.sequenceLength", str(length), allowed=at_most)


@rule(
    Cel(
        TrainingSpec,
        "self.stages.all(stage, !has(stage.finetune) || !stage.finetune.synchronizeGradients || "
        f"stage.finetune.globalBatchSize >= self.workers * {RANKS_PER_WORKER})",
        subject="stages[].finetune.globalBatchSize",
    ),
    allowed="at least one row for each of workers x slotsPerWorker ranks that train one model",
    next_step="raise it, take fewer ranks, or write synchronizeGradients: false for a model on every rank",
)
def rows_reach_every_rank(view: StageView) -> Iterator[Violation]:
    """Refuse a batch that leaves ranks without a row."""
    stage, ranks = view.stage.finetune, view.ranks
    if stage is not None and stage.synchronize_gradients and stage.global_batch_size < ranks:
        each = f"at least {ranks}, one row for each of workers x slotsPerWorker = {ranks} ranks"
        yield Violation("finetune.globalBatchSize", str(stage.global_batch_size), allowed=each)


@rule(
    Cel(FinetuneSpec, "!has(self.microBatchSize) || self.microBatchSize <= self.globalBatchSize", "microBatchSize"),
    allowed="at most globalBatchSize",
    next_step="globalBatchSize counts all ranks and passes; microBatchSize is one pass on one rank",
)
def pass_fits_batch(view: StageView) -> Iterator[Violation]:
    """Refuse a pass that is larger than the whole step: usually the two fields are mixed up."""
    stage = view.stage.finetune
    if stage is not None and (stage.micro_batch_size or 0) > stage.global_batch_size:
        at_most = f"at most globalBatchSize {stage.global_batch_size}"
        yield Violation("finetune.microBatchSize", str(stage.micro_batch_size), allowed=at_most)


_METRICS = ", ".join(f"'{task}': {_words(metrics)}" for task, metrics in TASK_METRICS.items())


@rule(
    Cel(FinetuneSpec, f"!has(self.metric) || self.metric in {{{_METRICS}}}[self.task]", "metric"),
    allowed="a metric of the task, as the reference lists them",
    next_step="leave the field out for the first of them",
)
def metric_is_of_task(view: StageView) -> Iterator[Violation]:
    """Refuse a metric that the task does not measure."""
    stage = view.stage.finetune
    if stage is not None and stage.metric is not None and stage.metric not in TASK_METRICS[stage.task]:
        known = f"for {stage.task} {' or '.join(TASK_METRICS[stage.task])}"
        yield Violation("finetune.metric", render_value(stage.metric), allowed=known)


@rule(
    Cel(
        TrainingSpec,
        f"[{POSITIONS}].all(longest, self.stages.all(stage, !has(stage.finetune) || "
        f"!(stage.finetune.task in {_words(SPAN_TASKS)}) || "
        "stage.finetune.maxQueryLength < (has(stage.finetune.sequenceLength) ? stage.finetune.sequenceLength : "
        f"longest < {DEFAULT_SPAN_LENGTH} ? longest : {DEFAULT_SPAN_LENGTH}) - {SPECIAL_TOKENS}))",
        subject="stages[].finetune.maxQueryLength",
    ),
    allowed="less than sequenceLength without [CLS] and two [SEP], so that a row has room for a context",
    next_step="lower it, or raise sequenceLength",
)
def questions_leave_room(view: StageView) -> Iterator[Violation]:
    """Refuse a question length that may fill a whole row."""
    stage = view.stage.finetune
    if stage is None or stage.task not in SPAN_TASKS:
        return
    room = resolve_length(stage, resolve_positions(view.spec.model)) - SPECIAL_TOKENS
    if stage.max_query_length >= room:
        less = f"less than {room}: sequenceLength {room + SPECIAL_TOKENS} without [CLS] and two [SEP]"
        yield Violation("finetune.maxQueryLength", str(stage.max_query_length), allowed=less)


@rule(
    Cel(
        FinetuneSpec,
        f"{_IS_OWN_TABLE} || (has(self.data.folder) && {_none_set('self.data', _FILES_OF_ONE_S_OWN)})",
        "data",
    ),
    allowed="a folder with the official files, and nothing else",
    next_step="write data: {folder: ...}, or task: classification, regression or spans for files of your own",
)
def official_files_are_in_a_folder(view: StageView) -> Iterator[Violation]:
    """Refuse tasks of GLUE and SQuAD without their files, or with others."""
    stage = view.stage.finetune
    if stage is not None and stage.task not in OWN_TABLES:
        yield from _not_as_the_task_reads("finetune.data", stage.data, ("folder",), _FILES_OF_ONE_S_OWN, stage.task)


@rule(
    Cel(
        FinetuneSpec,
        f"!({_IS_OWN_TABLE}) || (has(self.data.train) && !has(self.data.folder))",
        "data",
    ),
    allowed="train, the file to train on, and no folder",
    next_step="name the file, and with validation another one to evaluate on",
)
def own_table_has_files(view: StageView) -> Iterator[Violation]:
    """Refuse tables of one's own without a file to train on."""
    stage = view.stage.finetune
    if stage is not None and stage.task in OWN_TABLES:
        yield from _not_as_the_task_reads("finetune.data", stage.data, ("train",), ("folder",), stage.task)


@rule(
    Cel(
        FinetuneSpec,
        f"!({_IS_OWN_TABLE}) || (has(self.data.columns) && (self.task == 'spans' ? "
        f"{_all_set('self.data.columns', _NEEDED_SPAN_COLUMNS)} && {_none_set('self.data.columns', _TEXT_COLUMNS)} : "
        f"{_all_set('self.data.columns', _NEEDED_TEXT_COLUMNS)} && {_none_set('self.data.columns', _SPAN_COLUMNS)}))",
        "data.columns",
    ),
    allowed="text and label for classification and regression, with textPair for pairs; question, context and answer "
    "for spans; id for all",
    next_step="name the columns as the first line of the files does",
)
def columns_fit_task(view: StageView) -> Iterator[Violation]:
    """Refuse tables without the columns that a task reads, or with those of another."""
    stage = view.stage.finetune
    if stage is None or stage.task not in OWN_TABLES:
        return
    spans = stage.task == "spans"
    needed, unread = (_NEEDED_SPAN_COLUMNS, _TEXT_COLUMNS) if spans else (_NEEDED_TEXT_COLUMNS, _SPAN_COLUMNS)
    yield from _not_as_the_task_reads("finetune.data.columns", stage.data.columns, needed, unread, stage.task)


@rule(
    Cel(FinetuneSpec, "!has(self.data.labels) || !(self.task in ['regression', 'spans'])", "data.labels"),
    allowed="only with task: classification",
    next_step="leave the field out",
)
def labels_are_classes(view: StageView) -> Iterator[Violation]:
    """Refuse labels for a task without classes."""
    stage = view.stage.finetune
    # The tasks with official files have classes of their own: official_files_are_in_a_folder speaks.
    if stage is not None and stage.task in ("regression", "spans") and stage.data.labels is not None:
        yield Violation("finetune.data.labels", f"{len(stage.data.labels)} labels with task {stage.task}")


@rule(
    # The operator's alone: in CEL, comparing every pair of as many labels as there may be costs more than a definition
    # has.
    allowed="labels that differ",
    next_step="remove the second one",
)
def labels_differ(view: StageView) -> Iterator[Violation]:
    """Refuse duplicate class labels."""
    labels: tuple[str, ...] = ()
    data: TaskDataSpec | None = None if view.stage.finetune is None else view.stage.finetune.data
    if data is not None:
        labels = data.labels or ()
    for number, label in enumerate(labels):
        if label in labels[:number]:
            yield Violation(f"finetune.data.labels[{number}]", f"{render_value(label)} again")


FINETUNE_RULES: tuple[Rule[TrainingSpec], ...] = (tasks_come_last, export_fits_task, finetuning_has_weights)
FINETUNE_STAGE_RULES: tuple[Rule[StageView], ...] = (
    name_is_free,
    rows_fit_model,
    rows_reach_every_rank,
    pass_fits_batch,
    metric_is_of_task,
    questions_leave_room,
    official_files_are_in_a_folder,
    own_table_has_files,
    columns_fit_task,
    labels_are_classes,
    labels_differ,
)
