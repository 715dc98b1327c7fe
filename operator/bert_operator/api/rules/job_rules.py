"""Rules for what a job trains and on what: the model, the order of its stages, where its data comes from.

Pure: a rule looks at the job alone, never at files. Rules for the pods are in ``pod_rules``, rules inside one stage in
``stage_rules``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from pydantic.alias_generators import to_camel

from bert_operator.api.rules.cel import PREPARES, Cel
from bert_operator.api.rules.rule import Rule, Violation, rule
from bert_operator.api.schema import presets
from bert_operator.api.schema.bert_pretrain_job import JobSpec, ModelSpec, PretrainSpec
from bert_operator.api.schema.evaluation import DataRangeSpec, EvaluateSpec, EvaluationSpec
from bert_operator.errors import ABSENT, Path, render_path, render_value

_SIZES: tuple[Path, ...] = tuple(("model", to_camel(name)) for name in ("preset", "config_file", *presets.SIZE_FIELDS))
_IN_FILE = ("preset", "architecture", *presets.SIZE_FIELDS)
"""Fields that a model's file stands for. They are empty by default, unlike those below."""
_DEFAULTS_IN_FILE: Mapping[str, str | float] = MappingProxyType(
    {
        name: ModelSpec.model_fields[name].default
        for name in (
            *("max_position_embeddings", "hidden_activation", "hidden_dropout", "attention_dropout"),
            "initializer_range",
        )
    }
)
"""The others, with their defaults: the API server has written them into the job, so that they cannot be forbidden."""


def _resolved_size(field: str) -> str:
    """Return the expression for a size of ``model``: its own, else its preset's, else an error."""
    sizes = ", ".join(f"'{name}': {getattr(size, field)}" for name, size in presets.PRESETS.items())
    return f"(has(self.{to_camel(field)}) ? self.{to_camel(field)} : {{{sizes}}}[self.preset])"


_HAS_SIZES = (
    "has(self.preset) || (has(self.hiddenSize) && has(self.numHiddenLayers) && "
    "has(self.numAttentionHeads) && has(self.intermediateSize))"
)
_TENSORFLOW_EPSILON = 1e-12
"""Of LayerNorm: no setting of Google's TensorFlow code."""
_IS_DISTILBERT = (
    "(has(self.architecture) ? self.architecture == 'distilbert' : (has(self.preset) && self.preset == 'distilbert'))"
)


@rule(
    Cel(ModelSpec, f"has(self.configFile) || {_HAS_SIZES}"),
    allowed="a preset, or all of hiddenSize, numHiddenLayers, numAttentionHeads, intermediateSize, or configFile",
    next_step="add the missing sizes, or preset: tiny | base | large | distilbert",
)
def model_has_sizes(spec: JobSpec) -> Iterator[Violation]:
    """Refuse a model with a size that neither a preset nor the job sets."""
    for name in presets.missing_sizes(spec.model):
        yield Violation(f"model.{to_camel(name)}", ABSENT)


@rule(
    Cel(
        ModelSpec,
        "!has(self.configFile) || ("
        + " && ".join(
            (
                *(f"!has(self.{to_camel(name)})" for name in _IN_FILE),
                *(f"self.{to_camel(name)} == {default!r}" for name, default in _DEFAULTS_IN_FILE.items()),
            )
        )
        + ")",
        "configFile",
    ),
    allowed="this alone, or the model by preset and sizes: the file says these, its activation and its dropout",
    next_step="leave the others out, or configFile; what should differ is changed in a copy of the file",
)
def model_has_one_source(spec: JobSpec) -> Iterator[Violation]:
    """Refuse a model that is described both by a file and by fields."""
    if spec.model.config_file is None:
        return
    given = [name for name in _IN_FILE if getattr(spec.model, name) is not None]
    given += [name for name, default in _DEFAULTS_IN_FILE.items() if getattr(spec.model, name) != default]
    if given:
        others = ", ".join(map(to_camel, given))
        yield Violation("model.configFile", f"{render_value(spec.model.config_file)}, and {others} as well")


@rule(
    Cel(
        ModelSpec,
        # Without sizes model_has_sizes speaks; here the map would have no such key, which is an error.
        f"has(self.configFile) || !({_HAS_SIZES}) || "
        f"{_resolved_size('hidden_size')} % {_resolved_size('num_attention_heads')} == 0",
        "numAttentionHeads",
    ),
    allowed="a divisor of hiddenSize",
    next_step="published models have hiddenSize = 64 x numAttentionHeads",
)
def heads_divide_hidden_size(spec: JobSpec) -> Iterator[Violation]:
    """Refuse heads of unequal width."""
    if spec.model.config_file is not None or presets.missing_sizes(spec.model):
        return
    size = presets.resolve_size(spec.model)
    if size.hidden_size % size.num_attention_heads:
        yield Violation(
            "model.numAttentionHeads",
            str(size.num_attention_heads),
            allowed=f"a divisor of hiddenSize {size.hidden_size}",
        )


@rule(
    Cel(ModelSpec, f"!({_IS_DISTILBERT} && has(self.objective) && self.objective == 'mlm+nsp')", "objective"),
    allowed="mlm, since distilbert has no pooler to predict a next sentence from",
    next_step="leave the field out, or choose architecture: bert",
)
def objective_fits_architecture(spec: JobSpec) -> Iterator[Violation]:
    """Refuse next-sentence prediction without a pooler."""
    if presets.resolve_architecture(spec.model) == "distilbert" and spec.model.objective == "mlm+nsp":
        yield Violation("model.objective", '"mlm+nsp"')


@rule(
    Cel(
        JobSpec,
        "!self.stages.exists(stage, has(stage.export) && stage.export.format == 'tensorflow') || "
        f"(!{_IS_DISTILBERT.replace('self.', 'self.model.')} && self.model.layerNormEpsilon == {_TENSORFLOW_EPSILON})",
        "stages",
    ),
    allowed=f"tensorflow for architecture: bert and layerNormEpsilon {_TENSORFLOW_EPSILON:g} alone, both built into "
    "the code that reads such checkpoints",
    next_step="export in another format, or leave the two fields of the model out",
)
def export_fits_model(spec: JobSpec) -> Iterator[Violation]:
    """Refuse formats that cannot express the model."""
    fits = presets.resolve_architecture(spec.model) == "bert" and spec.model.layer_norm_epsilon == _TENSORFLOW_EPSILON
    for number, stage in enumerate(spec.stages):
        if not fits and stage.export is not None and stage.export.format == "tensorflow":
            yield Violation(f"stages[{number}].export.format", '"tensorflow"')


@rule(
    # The server says it by the list's type: keys of x-kubernetes-list-map-keys are unique.
    allowed="a name that no other stage has",
    next_step="rename one of them",
)
def stage_names_differ(spec: JobSpec) -> Iterator[Violation]:
    """Refuse a stage name that is used twice: checkpoints and metrics are kept apart by it."""
    seen: dict[str, int] = {}
    for number, stage in enumerate(spec.stages):
        if stage.name in seen:
            taken = f"a name that no other stage has; spec.stages[{seen[stage.name]}] has this one"
            yield Violation(f"stages[{number}].name", render_value(stage.name), allowed=taken)
        seen.setdefault(stage.name, number)


@rule(
    Cel(
        JobSpec,
        # Positions are unknown inside a loop: count the prepare stages, and allow one if the first stage is one.
        "self.stages.filter(stage, has(stage.prepare)).size() <= "
        "(self.stages.size() > 0 && has(self.stages[0].prepare) ? 1 : 0)",
        "stages",
    ),
    allowed="one prepare stage at most, and only as the first stage",
    next_step="move it to the front; for two datasets write two jobs",
)
def prepare_comes_first(spec: JobSpec) -> Iterator[Violation]:
    """Refuse more than one prepare stage, or one after the start: a dataset is made once, before its use."""
    for number, stage in enumerate(spec.stages):
        if number and stage.prepare is not None:
            yield Violation(f"stages[{number}].prepare", f"a prepare stage at position {number + 1}")


@rule(
    Cel(
        JobSpec,
        # A loop does not know the position of its entry. Where prepare_comes_first holds, the first of the other
        # stages decides: if it trains, whatever follows comes after training.
        "self.stages.filter(stage, !has(stage.prepare)).size() == 0 || "
        "!self.stages.exists(stage, has(stage.evaluate) || has(stage.export)) || "
        "[self.stages.filter(stage, !has(stage.prepare))[0]].exists(it, has(it.pretrain) || has(it.finetune))",
        "stages",
    ),
    allowed="evaluate only after a pretrain stage, export only after a pretrain or finetune stage",
    next_step="move them behind it",
)
def results_come_after_training(spec: JobSpec) -> Iterator[Violation]:
    """Refuse to evaluate or export before anything is trained."""
    trained = False
    for number, stage in enumerate(spec.stages):
        # To evaluate what was fine-tuned alone is refused by finetune_rules.tasks_come_last.
        trained = trained or stage.pretrain is not None or stage.finetune is not None
        for kind in ("evaluate", "export"):
            if not trained and kind in stage.kinds:
                yield Violation(
                    f"stages[{number}].{kind}",
                    f"{kind} before any stage that trains",
                    next_step="move it behind the stages that train, or add one",
                )


@rule(
    Cel(
        JobSpec,
        f"!{PREPARES} || self.stages.exists(stage, has(stage.pretrain) || has(stage.finetune) || "
        "(has(stage.prepare) && has(stage.prepare.sequenceLengths)))",
        "stages",
    ),
    allowed="a prepare stage together with pretrain stages, whose sequenceLength it makes data for, or with finetune "
    "stages, which take its vocabulary; or with sequenceLengths, for other jobs",
    next_step="add sequenceLengths: [128, 512] to the prepare stage, or the stages that the data is meant for",
)
def prepare_has_a_reader(spec: JobSpec) -> Iterator[Violation]:
    """Refuse a prepare stage alone that does not say for which lengths: a job that trains gives them."""
    prepares = [number for number, stage in enumerate(spec.stages) if stage.prepare is not None]
    if any(stage.prepare is not None and stage.prepare.sequence_lengths for stage in spec.stages):
        return
    if prepares and all(stage.pretrain is None and stage.finetune is None for stage in spec.stages):
        yield Violation(f"stages[{prepares[0]}].prepare", "no sequenceLengths and no stage in the job that trains")


def _on_held_out_documents(measured: str) -> str:
    """Return whether what measures is there and measures on the dataset's held-out documents."""
    return f"(has({measured}) && !has({measured}.shards) && !has({measured}.dataRange))"


_NAMES_DATA = (
    f"(has(self.dataset) && has(self.dataset.path)) || {PREPARES} || "
    "!self.stages.exists(stage, (has(stage.pretrain) && (!has(stage.pretrain.shards) || "
    f"{_on_held_out_documents('stage.pretrain.evaluation')})) || "
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
    return evaluation is not None and _is_on_held_out_documents(evaluation)


def _is_on_held_out_documents(measured: EvaluationSpec | EvaluateSpec) -> bool:
    return measured.shards is None and measured.data_range is None


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
        # masking has a default in the definition and needs no has().
        "!self.stages.exists(stage, has(stage.prepare) && stage.prepare.masking == 'dynamic') || "
        "self.stages.all(stage, !has(stage.pretrain) || stage.pretrain.masking == 'dynamic' || "
        "has(stage.pretrain.shards))",
        subject="stages[].pretrain.masking",
    ),
    allowed="dynamic, since the prepare stage writes no masks into the files",
    next_step="write masking: dynamic there, or masking: static in the prepare stage",
)
def masks_are_somewhere(spec: JobSpec) -> Iterator[Violation]:
    """Refuse static masking of a dataset that this job makes without masks."""
    if not any(stage.prepare is not None and stage.prepare.masking == "dynamic" for stage in spec.stages):
        return
    for number, stage in enumerate(spec.stages):
        if stage.pretrain is not None and stage.pretrain.masking == "static" and stage.pretrain.shards is None:
            yield Violation(f"stages[{number}].pretrain.masking", "static")


@rule(
    Cel(
        JobSpec,
        "!self.stages.exists(stage, has(stage.prepare) && stage.prepare.heldOutFraction == 0.0) || "
        f"!self.stages.exists(stage, {_on_held_out_documents('stage.evaluate')} || "
        f"(has(stage.pretrain) && {_on_held_out_documents('stage.pretrain.evaluation')}))",
        subject="stages[].evaluate.shards",
    ),
    allowed="a folder of held-out shards, or a dataRange of the training samples, since the prepare stage's "
    "heldOutFraction: 0 holds out none",
    next_step="name the folder there, set dataRange, or raise heldOutFraction in the prepare stage",
)
def evaluation_has_data(spec: JobSpec) -> Iterator[Violation]:
    """Refuse to evaluate on a dataset that this job makes without held-out documents."""
    if not any(stage.prepare is not None and stage.prepare.held_out_fraction == 0 for stage in spec.stages):
        return
    for number, stage in enumerate(spec.stages):
        while_training = None if stage.pretrain is None else stage.pretrain.evaluation
        for path, evaluation in (("evaluate", stage.evaluate), ("pretrain.evaluation", while_training)):
            if evaluation is not None and _is_on_held_out_documents(evaluation):
                yield Violation(f"stages[{number}].{path}.shards", f"{ABSENT}, with heldOutFraction 0")


@dataclass(frozen=True, slots=True)
class _MeasuredPart:
    """A part of training shards that a stage measures on."""

    number: int
    """Of the stage."""
    path: str
    shards: str | None
    """None: the data set's of the length."""
    sequence_length: int | None
    part: DataRangeSpec

    def is_trained_on(self, trained: PretrainSpec) -> bool:
        """Tell whether a stage that reads the same shards trains on any of it. Folders are compared as texts."""
        if trained.shards != self.shards or (self.shards is None and trained.sequence_length != self.sequence_length):
            return False
        return self.part.start < trained.data_range.end and trained.data_range.start < self.part.end


def _measured_parts(spec: JobSpec) -> Iterator[_MeasuredPart]:
    length = None
    for number, stage in enumerate(spec.stages):
        own, pretrain = stage.evaluate, stage.pretrain
        if own is not None and own.data_range is not None:
            path = f"stages[{number}].evaluate.dataRange"
            yield _MeasuredPart(number, path, own.shards, own.sequence_length or length, own.data_range)
        if pretrain is None:
            continue
        length, evaluation = pretrain.sequence_length, pretrain.evaluation
        if evaluation is not None and evaluation.data_range is not None:
            path = f"stages[{number}].pretrain.evaluation.dataRange"
            shards = evaluation.shards or pretrain.shards
            yield _MeasuredPart(number, path, shards, length, evaluation.data_range)


@rule(
    Cel(
        JobSpec,
        # For the first pretrain stage alone: results_come_after_training puts it before every evaluate stage, and a
        # loop does not know which of the others are. Where stages differ in length, nor does it know what an evaluate
        # stage without sequenceLength takes over. What is left, evaluations while a later stage trains included, is
        # the operator's.
        "[self.stages.filter(stage, has(stage.pretrain))].all(trained, trained.size() == 0 || "
        "self.stages.all(stage, !has(stage.evaluate) || !has(stage.evaluate.dataRange) || "
        "(has(stage.evaluate.shards) ? (!has(trained[0].pretrain.shards) || "
        "stage.evaluate.shards != trained[0].pretrain.shards) : (has(trained[0].pretrain.shards) || "
        "(has(stage.evaluate.sequenceLength) ? stage.evaluate.sequenceLength != trained[0].pretrain.sequenceLength : "
        "self.stages.exists(other, has(other.pretrain) && "
        "other.pretrain.sequenceLength != trained[0].pretrain.sequenceLength)))) || "
        "stage.evaluate.dataRange.end <= trained[0].pretrain.dataRange.start || "
        "stage.evaluate.dataRange.start >= trained[0].pretrain.dataRange.end))",
        subject="stages[].evaluate.dataRange",
    ),
    allowed="a range that shares no sample with the dataRange of an earlier stage that trains on the same shards",
    next_step="train on dataRange: {end: 0.9} in all of these stages and measure on {start: 0.9}",
)
def parts_are_not_trained_on(spec: JobSpec) -> Iterator[Violation]:
    """Refuse to measure on samples that an earlier stage has trained on; the stage itself is a rule of its section."""
    for measured in _measured_parts(spec):
        for stage in spec.stages[: measured.number]:
            if stage.pretrain is not None and measured.is_trained_on(stage.pretrain):
                part, trained = measured.part, stage.pretrain.data_range
                got = f"{part.start:g} to {part.end:g}, and {stage.name} trains on {trained.start:g} to {trained.end:g}"
                yield Violation(measured.path, got)
                break


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
    model_has_sizes,
    model_has_one_source,
    heads_divide_hidden_size,
    objective_fits_architecture,
    export_fits_model,
    stage_names_differ,
    prepare_comes_first,
    results_come_after_training,
    prepare_has_a_reader,
    data_has_a_source,
    shards_have_a_vocabulary,
    masks_are_somewhere,
    evaluation_has_data,
    parts_are_not_trained_on,
    vocabulary_has_one_source,
    folders_differ,
)
