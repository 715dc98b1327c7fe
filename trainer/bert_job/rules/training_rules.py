"""Rules for what a run trains and on what: the model, its arithmetic, the order of the stages, their data.

Pure: a rule looks at sections alone, never at files. Rules inside one stage are in ``stage_rules``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from pydantic.alias_generators import to_camel

from bert_job import model as presets
from bert_job.dataset_names import SamplesOf
from bert_job.evaluation import DataRangeSpec, EvaluateSpec, EvaluationSpec
from bert_job.model import ModelSpec
from bert_job.pretraining import PretrainSpec
from bert_job.problems import ABSENT, render_value
from bert_job.rules.cel import PREPARES, Cel, architecture, setting
from bert_job.rules.rule import Rule, Violation, rule
from bert_job.training import TrainingSpec

_IN_FILE = ("preset", "architecture", *presets.SIZE_FIELDS, *presets.ATTENTION_FIELDS)
"""Fields that a model's file stands for. They are empty by default, unlike those below."""
_DEFAULTS_IN_FILE: Mapping[str, str | float] = MappingProxyType(
    {
        "max_position_embeddings": 512,
        "hidden_dropout": 0.1,
        "attention_dropout": 0.1,
        **{name: ModelSpec.model_fields[name].default for name in ("hidden_activation", "initializer_range")},
    }
)
"""The others, with what the API server has written into a job: into every one the last two, and the first three as long
as they had defaults, so that they cannot be forbidden."""


def _resolved_size(field: str) -> str:
    """Return the expression for a size of ``model``: its own, else its preset's, else an error."""
    sizes = ", ".join(f"'{name}': {getattr(size, field)}" for name, size in presets.PRESETS.items())
    return f"(has(self.{to_camel(field)}) ? self.{to_camel(field)} : {{{sizes}}}[self.preset])"


_HAS_SIZES = (
    "has(self.preset) || (has(self.hiddenSize) && has(self.numHiddenLayers) && "
    "has(self.numAttentionHeads) && has(self.intermediateSize))"
)


def _is_default(name: str) -> str:
    """Return the expression that a field of ``model`` says nothing beside a file."""
    field = f"self.{to_camel(name)}"
    same = f"{field} == {_DEFAULTS_IN_FILE[name]!r}"
    return same if ModelSpec.model_fields[name].default is not None else f"(!has({field}) || {same})"


@rule(
    Cel(ModelSpec, f"has(self.configFile) || {_HAS_SIZES}"),
    allowed="a preset, or all of hiddenSize, numHiddenLayers, numAttentionHeads, intermediateSize, or configFile",
    next_step=f"add the missing sizes, or preset: {' | '.join(presets.PRESETS)}",
)
def model_has_sizes(spec: TrainingSpec) -> Iterator[Violation]:
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
                *map(_is_default, _DEFAULTS_IN_FILE),
            )
        )
        + ")",
        "configFile",
    ),
    allowed="this alone, or the model by preset and sizes: the file says these, its activation and its dropout",
    next_step="leave the others out, or configFile; what should differ is changed in a copy of the file",
)
def model_has_one_source(spec: TrainingSpec) -> Iterator[Violation]:
    """Refuse a model that is described both by a file and by fields."""
    if spec.model.config_file is None:
        return
    given = [name for name in _IN_FILE if getattr(spec.model, name) is not None]
    given += [name for name, same in _DEFAULTS_IN_FILE.items() if getattr(spec.model, name) not in (None, same)]
    if given:
        others = ", ".join(map(to_camel, given))
        yield Violation("model.configFile", f"{render_value(spec.model.config_file)}, and {others} as well")


@rule(
    Cel(
        ModelSpec,
        # Without sizes model_has_sizes speaks; here the map would have no such key, which is an error.
        f"has(self.configFile) || !({_HAS_SIZES}) || "
        f"{_resolved_size('hidden_size')} % ({_resolved_size('num_attention_heads')} * "
        f"({architecture('self')} == 'modernbert' ? 2 : 1)) == 0",
        "numAttentionHeads",
    ),
    allowed="a divisor of hiddenSize; of its half for modernbert, whose rotary positions turn features in pairs",
    next_step="published models have hiddenSize = 64 x numAttentionHeads",
)
def heads_divide_hidden_size(spec: TrainingSpec) -> Iterator[Violation]:
    """Refuse heads of unequal width."""
    if spec.model.config_file is not None or presets.missing_sizes(spec.model):
        return
    size = presets.resolve_size(spec.model)
    in_pairs = size.architecture == "modernbert"
    if size.hidden_size % (size.num_attention_heads * (2 if in_pairs else 1)):
        of_what = f"half of hiddenSize {size.hidden_size}" if in_pairs else f"hiddenSize {size.hidden_size}"
        yield Violation("model.numAttentionHeads", str(size.num_attention_heads), allowed=f"a divisor of {of_what}")


@rule(
    Cel(
        ModelSpec,
        f"!has(self.objective) || self.objective != 'mlm+nsp' || {architecture('self')} == 'bert'",
        "objective",
    ),
    allowed="mlm, since only architecture bert has a pooler to predict a next sentence from",
    next_step="leave the field out, or choose architecture: bert",
)
def objective_fits_architecture(spec: TrainingSpec) -> Iterator[Violation]:
    """Refuse next-sentence prediction without a pooler."""
    if presets.resolve_architecture(spec.model) != "bert" and spec.model.objective == "mlm+nsp":
        yield Violation("model.objective", '"mlm+nsp"')


@rule(
    Cel(
        ModelSpec,
        "!("
        + " || ".join(f"has(self.{to_camel(name)})" for name in presets.ATTENTION_FIELDS)
        + f") || {architecture('self')} == 'modernbert'",
    ),
    allowed=f"{', '.join(map(to_camel, presets.ATTENTION_FIELDS))} for architecture modernbert alone",
    next_step="leave them out, or choose architecture: modernbert",
)
def windows_are_of_modernbert(spec: TrainingSpec) -> Iterator[Violation]:
    """Refuse windows and rotary positions of models that have neither."""
    if presets.resolve_architecture(spec.model) == "modernbert":
        return
    for name in presets.ATTENTION_FIELDS:
        if (given := getattr(spec.model, name)) is not None:
            yield Violation(f"model.{to_camel(name)}", str(given))


@rule(
    Cel(
        TrainingSpec,
        "!self.stages.exists(stage, has(stage.export) && stage.export.format == 'tensorflow') || "
        f"({architecture('self.model')} == 'bert' && "
        f"{setting('self.model', 'layer_norm_epsilon', 'layerNormEpsilon')} == "
        f"{presets.TENSORFLOW_LAYER_NORM_EPSILON})",
        "stages",
    ),
    allowed="tensorflow for architecture: bert and layerNormEpsilon "
    f"{presets.TENSORFLOW_LAYER_NORM_EPSILON:g} alone, both built into the code that reads such checkpoints",
    next_step="export in another format, or leave the two fields of the model out",
)
def export_fits_model(spec: TrainingSpec) -> Iterator[Violation]:
    """Refuse formats that cannot express the model."""
    fits = presets.fits_tensorflow(spec.model)
    for number, stage in enumerate(spec.stages):
        if not fits and stage.export is not None and stage.export.format == "tensorflow":
            yield Violation(f"stages[{number}].export.format", '"tensorflow"')


@rule(
    # The server says it by the list's type: keys of x-kubernetes-list-map-keys are unique.
    allowed="a name that no other stage has",
    next_step="rename one of them",
)
def stage_names_differ(spec: TrainingSpec) -> Iterator[Violation]:
    """Refuse a stage name that is used twice: checkpoints and metrics are kept apart by it."""
    seen: dict[str, int] = {}
    for number, stage in enumerate(spec.stages):
        if stage.name in seen:
            taken = f"a name that no other stage has; spec.stages[{seen[stage.name]}] has this one"
            yield Violation(f"stages[{number}].name", render_value(stage.name), allowed=taken)
        seen.setdefault(stage.name, number)


@rule(
    Cel(
        TrainingSpec,
        # Positions are unknown inside a loop: count the prepare stages, and allow one if the first stage is one.
        "self.stages.filter(stage, has(stage.prepare)).size() <= "
        "(self.stages.size() > 0 && has(self.stages[0].prepare) ? 1 : 0)",
        "stages",
    ),
    allowed="one prepare stage at most, and only as the first stage",
    next_step="move it to the front; for two datasets write two jobs",
)
def prepare_comes_first(spec: TrainingSpec) -> Iterator[Violation]:
    """Refuse more than one prepare stage, or one after the start: a dataset is made once, before its use."""
    for number, stage in enumerate(spec.stages):
        if number and stage.prepare is not None:
            yield Violation(f"stages[{number}].prepare", f"a prepare stage at position {number + 1}")


@rule(
    Cel(
        TrainingSpec,
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
def results_come_after_training(spec: TrainingSpec) -> Iterator[Violation]:
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
        TrainingSpec,
        f"!{PREPARES} || self.stages.exists(stage, has(stage.pretrain) || has(stage.finetune) || "
        "(has(stage.prepare) && has(stage.prepare.sequenceLengths)))",
        "stages",
    ),
    allowed="a prepare stage together with pretrain stages, whose sequenceLength it makes data for, or with finetune "
    "stages, which take its vocabulary; or with sequenceLengths, for other jobs",
    next_step="add sequenceLengths: [128, 512] to the prepare stage, or the stages that the data is meant for",
)
def prepare_has_a_reader(spec: TrainingSpec) -> Iterator[Violation]:
    """Refuse a prepare stage alone that does not say for which lengths: a job that trains gives them."""
    prepares = [number for number, stage in enumerate(spec.stages) if stage.prepare is not None]
    if any(stage.prepare is not None and stage.prepare.sequence_lengths for stage in spec.stages):
        return
    if prepares and all(stage.pretrain is None and stage.finetune is None for stage in spec.stages):
        yield Violation(f"stages[{prepares[0]}].prepare", "no sequenceLengths and no stage in the job that trains")


def on_held_out_documents(measured: str) -> str:
    """Return whether what measures is there and measures on the dataset's held-out documents."""
    return f"(has({measured}) && !has({measured}.shards) && !has({measured}.dataRange))"


def is_on_held_out_documents(measured: EvaluationSpec | EvaluateSpec) -> bool:
    """Return the same of sections."""
    return measured.shards is None and measured.data_range is None


@rule(
    Cel(
        TrainingSpec,
        # masking has a default in the definition and needs no has().
        "!self.stages.exists(stage, has(stage.prepare) && stage.prepare.masking == 'dynamic') || "
        "self.stages.all(stage, !has(stage.pretrain) || stage.pretrain.masking == 'dynamic' || "
        "has(stage.pretrain.shards))",
        subject="stages[].pretrain.masking",
    ),
    allowed="dynamic, since the prepare stage writes no masks into the files",
    next_step="write masking: dynamic there, or masking: static in the prepare stage",
)
def masks_are_somewhere(spec: TrainingSpec) -> Iterator[Violation]:
    """Refuse static masking of a dataset that this job makes without masks."""
    if not any(stage.prepare is not None and stage.prepare.masking == "dynamic" for stage in spec.stages):
        return
    for number, stage in enumerate(spec.stages):
        if stage.pretrain is not None and stage.pretrain.masking == "static" and stage.pretrain.shards is None:
            yield Violation(f"stages[{number}].pretrain.masking", "static")


_MAKES_DOCUMENTS = (
    "self.stages.exists(stage, has(stage.prepare) && has(stage.prepare.samples) && "
    "stage.prepare.samples == 'documents')"
)


def _makes(spec: TrainingSpec, samples: SamplesOf) -> bool:
    """Tell whether the job prepares a dataset of these samples."""
    return any(stage.prepare is not None and (stage.prepare.samples or "pairs") == samples for stage in spec.stages)


@rule(
    Cel(
        TrainingSpec,
        f"!{_MAKES_DOCUMENTS} || (has(self.model.objective) ? self.model.objective == 'mlm' : "
        f"(has(self.model.configFile) || {architecture('self.model')} != 'bert')) || "
        "self.stages.all(stage, !has(stage.pretrain) || has(stage.pretrain.shards))",
        subject="model.objective",
    ),
    allowed="mlm, since the prepare stage's samples: documents have no next sentences",
    next_step="write objective: mlm, or samples: pairs in the prepare stage",
)
def next_sentences_are_somewhere(spec: TrainingSpec) -> Iterator[Violation]:
    """Refuse next-sentence prediction on a dataset that this job makes of documents."""
    model = spec.model
    # What a model's file says of it is known when the run starts.
    is_known = model.objective is not None or model.config_file is None
    reads = any(stage.pretrain is not None and stage.pretrain.shards is None for stage in spec.stages)
    if _makes(spec, "documents") and reads and is_known and presets.resolve_objective(model) == "mlm+nsp":
        yield Violation("model.objective", '"mlm+nsp"')


@rule(
    Cel(
        TrainingSpec,
        f"!self.stages.exists(stage, has(stage.prepare)) || {_MAKES_DOCUMENTS} || "
        "self.stages.all(stage, !has(stage.pretrain) || !has(stage.pretrain.crossDocumentAttention) || "
        "!stage.pretrain.crossDocumentAttention || has(stage.pretrain.shards))",
        subject="stages[].pretrain.crossDocumentAttention",
    ),
    allowed="only with shards of documents, and the prepare stage makes pairs",
    next_step="leave it out, or write samples: documents in the prepare stage",
)
def attention_has_documents(spec: TrainingSpec) -> Iterator[Violation]:
    """Refuse attention across documents on a dataset that this job makes of pairs."""
    for number, stage in enumerate(spec.stages if _makes(spec, "pairs") else ()):
        if stage.pretrain is not None and stage.pretrain.cross_document_attention and stage.pretrain.shards is None:
            yield Violation(f"stages[{number}].pretrain.crossDocumentAttention", "true")


@rule(
    Cel(
        TrainingSpec,
        "!self.stages.exists(stage, has(stage.prepare) && stage.prepare.heldOutFraction == 0.0) || "
        f"!self.stages.exists(stage, {on_held_out_documents('stage.evaluate')} || "
        f"(has(stage.pretrain) && {on_held_out_documents('stage.pretrain.evaluation')}))",
        subject="stages[].evaluate.shards",
    ),
    allowed="a folder of held-out shards, or a dataRange of the training samples, since the prepare stage's "
    "heldOutFraction: 0 holds out none",
    next_step="name the folder there, set dataRange, or raise heldOutFraction in the prepare stage",
)
def evaluation_has_data(spec: TrainingSpec) -> Iterator[Violation]:
    """Refuse to evaluate on a dataset that this job makes without held-out documents."""
    if not any(stage.prepare is not None and stage.prepare.held_out_fraction == 0 for stage in spec.stages):
        return
    for number, stage in enumerate(spec.stages):
        while_training = None if stage.pretrain is None else stage.pretrain.evaluation
        for path, evaluation in (("evaluate", stage.evaluate), ("pretrain.evaluation", while_training)):
            if evaluation is not None and is_on_held_out_documents(evaluation):
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


def _measured_parts(spec: TrainingSpec) -> Iterator[_MeasuredPart]:
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
        TrainingSpec,
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
def parts_are_not_trained_on(spec: TrainingSpec) -> Iterator[Violation]:
    """Refuse to measure on samples that an earlier stage has trained on; the stage itself is a rule of its section."""
    for measured in _measured_parts(spec):
        for stage in spec.stages[: measured.number]:
            if stage.pretrain is not None and measured.is_trained_on(stage.pretrain):
                part, trained = measured.part, stage.pretrain.data_range
                got = f"{part.start:g} to {part.end:g}, and {stage.name} trains on {trained.start:g} to {trained.end:g}"
                yield Violation(measured.path, got)
                break


_PRECISIONS_OF_ORT = ("fp32", "avx-fp32", "tf32", "bf16", "fp16")


@rule(
    # engine and precision belong to no profile and have defaults, which the server has filled in.
    Cel(TrainingSpec, f"self.engine != 'ort' || self.precision in {list(_PRECISIONS_OF_ORT)}", "precision"),
    allowed=f"{', '.join(_PRECISIONS_OF_ORT)} with engine ort",
    next_step="choose one of them (on processors: fp32), or write engine: eager",
)
def engine_computes_the_precision(spec: TrainingSpec) -> Iterator[Violation]:
    """Refuse precisions that ONNX Runtime has no kernels for. On processors it has those of fp32, as the rank says."""
    if spec.engine == "ort" and spec.precision not in _PRECISIONS_OF_ORT:
        yield Violation("precision", render_value(spec.precision))


@rule(
    Cel(TrainingSpec, f"self.engine != 'ort' || {architecture('self.model')} != 'modernbert'", "engine"),
    allowed="eager for architecture modernbert",
    next_step="leave the field out",
)
def engine_computes_the_model(spec: TrainingSpec) -> Iterator[Violation]:
    """Refuse models whose training is no graph of ONNX Runtime's."""
    if spec.engine == "ort" and presets.resolve_architecture(spec.model) == "modernbert":
        yield Violation("engine", '"ort"')


@rule(
    Cel(TrainingSpec, "self.engine != 'ort' || !self.activationCheckpointing", "activationCheckpointing"),
    allowed="false with engine ort, whose graph keeps what its backward pass needs",
    next_step="leave it out and lower microBatchSize, or write engine: eager",
)
def engine_keeps_activations(spec: TrainingSpec) -> Iterator[Violation]:
    """Refuse activation checkpointing with an engine that does not support it."""
    if spec.engine == "ort" and spec.activation_checkpointing:
        yield Violation("activationCheckpointing", "true")


@rule(
    Cel(
        TrainingSpec,
        "!has(self.profileSteps) || !has(self.profileSteps.stage) || self.stages.exists(stage, "
        "(has(stage.pretrain) || has(stage.finetune)) && stage.name == self.profileSteps.stage)",
        "profileSteps.stage",
    ),
    allowed="the name of a pretrain or finetune stage",
    next_step="correct it, or leave it out for every stage that trains",
)
def profiled_stage_trains(spec: TrainingSpec) -> Iterator[Violation]:
    """Refuse to profile a stage that does not exist or has no optimizer steps."""
    stage = None if spec.profile_steps is None else spec.profile_steps.stage
    trained = [entry.name for entry in spec.stages if entry.pretrain is not None or entry.finetune is not None]
    if stage is not None and stage not in trained:
        known = f"the name of a pretrain or finetune stage: {', '.join(trained) or 'there is none'}"
        yield Violation("profileSteps.stage", render_value(stage), allowed=known)


@rule(
    Cel(TrainingSpec, "self.precision != 'fp64' || self.reduction.compression == 'none'", "reduction"),
    allowed="none with precision fp64, which is for exact comparisons",
    next_step="leave it out, or choose another precision",
)
def exact_arithmetic_is_not_compressed(spec: TrainingSpec) -> Iterator[Violation]:
    """Refuse fp64, which is for exact comparisons, with sums in fp16."""
    if spec.precision == "fp64" and spec.reduction.compression != "none":
        yield Violation("reduction.compression", render_value(spec.reduction.compression))


MODEL_RULES: tuple[Rule[TrainingSpec], ...] = (
    model_has_sizes,
    model_has_one_source,
    heads_divide_hidden_size,
    objective_fits_architecture,
    windows_are_of_modernbert,
)
TRAINING_RULES: tuple[Rule[TrainingSpec], ...] = (
    *MODEL_RULES,
    export_fits_model,
    stage_names_differ,
    prepare_comes_first,
    results_come_after_training,
    prepare_has_a_reader,
    masks_are_somewhere,
    next_sentences_are_somewhere,
    attention_has_documents,
    evaluation_has_data,
    parts_are_not_trained_on,
    engine_computes_the_precision,
    engine_computes_the_model,
    engine_keeps_activations,
    profiled_stage_trains,
    exact_arithmetic_is_not_compressed,
)
