"""Reads run configurations: loading, parsing, and the rules between fields that types cannot express.

All mistakes of a document are reported together, each with its path, what was found and what is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from bert_trainer.config.finetune_checks import find_finetune_problems
from bert_trainer.config.finetuning import FinetuneStage
from bert_trainer.config.json_files import read_json_file
from bert_trainer.config.model_file import read_model_file
from bert_trainer.config.run_config import (
    CONTRACT_VERSION,
    MODEL_KINDS,
    InitialCheckpoint,
    ModelConfig,
    ModelFile,
    ProfileSteps,
    RunConfig,
)
from bert_trainer.config.stages import (
    DataRange,
    EvaluateStage,
    Evaluation,
    ExportStage,
    PrepareStage,
    PretrainStage,
    Stage,
)
from bert_trainer.errors import InputError

FORMATS_WITH_MOMENTS = ("bert-trainer", "nvidia")
"""Of initial checkpoints."""
PRECISIONS_OF_ORT = ("fp32", "avx-fp32", "tf32", "bf16", "fp16")
"""Precisions of the engine ``ort``; on processors it has kernels for those of fp32 alone."""
MAX_PROFILED_STEPS = 100
"""Of one trace: a step of BERT-large leaves some ten thousand events in it."""
TENSORFLOW_LAYER_NORM_EPS = 1e-12
"""No setting of Google's TensorFlow code."""


def load_run_config(path: Path) -> RunConfig:
    """Read and check a document.

    Raises:
        InputError: the file is missing, not JSON, of another contract version, or holds values or
            combinations that cannot work; the message lists all of them.
    """
    return parse_run_config(read_json_file(path), source=str(path))


def parse_run_config(document: Any, *, source: str = "run configuration") -> RunConfig:
    """Check a document that is already in memory; raises InputError as ``load_run_config`` does."""
    version = document.get("contract_version") if isinstance(document, dict) else None
    # First and alone: in a document of another version every other message could be wrong.
    if version != CONTRACT_VERSION:
        raise InputError(
            f"{source}: contract_version is {version!r}, this trainer reads {CONTRACT_VERSION}",
            hint=_other_release(version),
        )
    try:
        config = RunConfig.model_validate(document)
    except ValidationError as error:
        items = error.errors()
        # A list is also called too short where what is wrong with its entries is said already.
        within = {item["loc"][:length] for item in items for length in range(len(item["loc"]))}
        items = [item for item in items if item["loc"] not in within]
        hint = None
        lines = [f"{_field(item['loc'])}: got {item['input']!r:.200}; {_printable(item['msg'])}" for item in items]
        if any(item["type"] == "extra_forbidden" for item in items):
            # Of the same version: a field that is new, and that this job sets.
            hint = f"fields that this trainer does not know: {_NEWER_OPERATOR}"
        raise _problems(source, lines, hint=hint) from error
    else:
        lines = find_problems(config)
        if not lines:
            return config
    raise _problems(source, lines)


def resolve_model(config: RunConfig) -> RunConfig:
    """Return the configuration with the model's sizes, read from its file if it has one.

    Raises:
        InputError: the file cannot be read, describes no model, or one that the stages do not fit.
    """
    if isinstance(config.model, ModelConfig):
        return config
    try:
        resolved = config.model_copy(update={"model": read_model_file(config.model)})
    except InputError as error:
        raise InputError(f"model.config_file: {error.message}", hint=error.hint) from error.__cause__ or error
    lines = find_problems(resolved)
    if lines:
        raise _problems(config.model.config_file, lines)
    return resolved


def _problems(source: str, lines: list[str], *, hint: str | None = None) -> InputError:
    return InputError(f"{source}: {len(lines)} problem(s)\n" + "\n".join(f"  {line}" for line in lines), hint=hint)


_NEWER_OPERATOR = "the operator is of a newer release; name the trainer image of that release in spec.image"


def _other_release(version: object) -> str:
    """Return what to do about a document of another contract version."""
    if not isinstance(version, int) or isinstance(version, bool):
        return "a run configuration is what the operator renders: 'bert-operator render JOB'"
    if version > CONTRACT_VERSION:
        return _NEWER_OPERATOR
    return "the operator is of an older release than this image: upgrade it, or name the image of its release"


def _printable(text: str) -> str:
    """Return a text for a log: line breaks, and what moves a terminal's cursor, escaped."""
    return text if text.isprintable() else ascii(text)


def _field(location: tuple[int | str, ...]) -> str:
    """Return the path of a field as it stands in the document."""
    parts = [_printable(str(part)) for part in location]
    if parts[0] == "model" and len(parts) > 1 and parts[1] in MODEL_KINDS:
        del parts[1]
    return ".".join(parts)


def parse_profile_steps(text: str) -> ProfileSteps:
    """Read ``FIRST-LAST`` or ``STEP``, the command-line form of ``profile_steps``.

    Raises:
        InputError: it is neither.
    """
    match = re.fullmatch(r"([1-9]\d{0,8})(?:-([1-9]\d{0,8}))?", text)
    if match is None:
        raise InputError(f"--profile: got {text!r}; allowed: steps as FIRST-LAST, such as 10-12, counted from 1")
    return ProfileSteps(first=int(match[1]), last=int(match[2] or match[1]), stage=None, all_ranks=False)


def find_problems(config: RunConfig) -> list[str]:
    """Return every invalid combination as ``path: got; allowed; hint``."""
    return [
        # The operator's api/rules refuse the same before anything runs. These are for documents that people write, and
        # for those that another release has frozen.
        *find_model_problems(config.model),
        *_reduction_problems(config),
        *_engine_problems(config),
        *_start_problems(config.initial_checkpoint),
        *_stage_problems(config),
        *_trained_on_problems(config.stages),
        *_profile_problems(config),
        *find_finetune_problems(config),
    ]


def find_model_problems(model: ModelConfig | ModelFile) -> list[str]:
    """Return invalid combinations of a model's sizes."""
    problems: list[str] = []
    if isinstance(model, ModelFile):
        return problems  # its sizes are not known yet
    if model.hidden_size % model.num_attention_heads:
        problems.append(
            f"model.num_attention_heads: got {model.num_attention_heads}; "
            f"allowed: a divisor of hidden_size {model.hidden_size}"
        )
    if model.architecture == "distilbert" and model.objective != "mlm":
        problems.append(f"model.objective: got {model.objective!r}; allowed with distilbert: 'mlm', it has no pooler")
    return problems


def _reduction_problems(config: RunConfig) -> list[str]:
    if config.precision == "fp64" and config.reduction.compression != "none":
        return [
            f"reduction.compression: got {config.reduction.compression!r}; allowed with precision fp64: 'none', which "
            "is for exact comparisons"
        ]
    return []


def _engine_problems(config: RunConfig) -> list[str]:
    problems: list[str] = []
    if config.engine != "ort":
        return problems
    if config.precision not in PRECISIONS_OF_ORT:
        problems.append(
            f"precision: got {config.precision!r}; allowed with engine 'ort': {', '.join(PRECISIONS_OF_ORT)}, "
            "or any with engine 'eager'"
        )
    if config.activation_checkpointing:
        problems.append(
            "activation_checkpointing: got true; allowed with engine 'ort': false, since its graph keeps what its "
            "backward pass needs; lower micro_batch_size instead, or choose engine 'eager'"
        )
    return problems


def _start_problems(start: InitialCheckpoint | None) -> list[str]:
    if start is None or start.load != "weights_and_optimizer" or start.format in FORMATS_WITH_MOMENTS:
        return []
    return [
        f"initial_checkpoint.load: got {start.load!r} from {start.format}; allowed: 'weights' or 'none', since only "
        f"{' and '.join(FORMATS_WITH_MOMENTS)} hold moments that can be used"
    ]


def _profile_problems(config: RunConfig) -> list[str]:
    steps = config.profile_steps
    if steps is None:
        return []
    problems = []
    if not steps.first <= steps.last < steps.first + MAX_PROFILED_STEPS:
        problems.append(
            f"profile_steps: got {steps.first} to {steps.last}; allowed: a first step that is not after the last, "
            f"and at most {MAX_PROFILED_STEPS} steps"
        )
    stages = [stage.name for stage in config.stages if isinstance(stage, PretrainStage | FinetuneStage)]
    if steps.stage is not None and steps.stage not in stages:
        problems.append(f"profile_steps.stage: got {steps.stage!r}; allowed: {', '.join(stages)}, or empty for all")
    return problems


def _stage_problems(config: RunConfig) -> list[str]:
    problems = []
    names = [stage.name for stage in config.stages]
    problems += [f"stages: the name {name!r} is used twice" for name in sorted(set(names)) if names.count(name) > 1]
    # One dataset serves all stages: where it has no masks, every stage without shards of its own has to draw them.
    bare = any(isinstance(stage, PrepareStage) and stage.masking == "dynamic" for stage in config.stages)
    nothing_held_out = any(isinstance(stage, PrepareStage) and not stage.held_out_fraction for stage in config.stages)
    for number, stage in enumerate(config.stages):
        path = f"stages.{number}"
        if nothing_held_out:
            problems += _held_out_problems(path, stage)
        if isinstance(stage, PrepareStage) and (stage.text is None) == (not stage.corpora):
            got = "neither" if stage.text is None else "both"
            problems.append(f"{path}: got {got} of text and corpora; allowed: exactly one of them")
        if isinstance(stage, PrepareStage) and stage.masking == "dynamic" and stage.layout not in (None, "compact"):
            problems.append(f"{path}.layout: got {stage.layout!r}; allowed with dynamic masking: 'compact'")
        if isinstance(stage, PretrainStage | EvaluateStage):
            longest = None if isinstance(config.model, ModelFile) else config.model.max_position_embeddings
            if longest is not None and stage.sequence_length > longest:
                problems.append(
                    f"{path}.sequence_length: got {stage.sequence_length}; "
                    f"allowed: at most model.max_position_embeddings {longest}"
                )
            # [CLS] and both [SEP] are never predicted.
            if stage.max_predictions_per_sequence > stage.sequence_length - 3:
                problems.append(
                    f"{path}.max_predictions_per_sequence: got {stage.max_predictions_per_sequence}; "
                    f"allowed: at most sequence_length - 3 = {stage.sequence_length - 3}"
                )
        if isinstance(stage, EvaluateStage):
            problems += _range_problems(f"{path}.data_range", stage.data_range)
        if isinstance(stage, ExportStage) and stage.format == "tensorflow" and not fits_tensorflow(config.model):
            problems.append(
                f"{path}.format: got 'tensorflow'; allowed: with model.architecture 'bert' and model.layer_norm_eps "
                f"{TENSORFLOW_LAYER_NORM_EPS:g}, which are built into code that reads such checkpoints"
            )
        if isinstance(stage, PretrainStage):
            problems += _pretrain_problems(path, stage, config.world.ranks)
            if bare and stage.masking == "static" and stage.shards is None:
                problems.append(
                    f"{path}.masking: got 'static'; allowed: 'dynamic', since the prepare stage writes no masks"
                )
    return problems


def _held_out_problems(path: str, stage: Stage) -> list[str]:
    """Return what needs held-out documents, of a data set that is prepared without any."""
    return [
        f"{where}.shards: got none; allowed: a folder of held-out shards, or a data_range of the training samples, "
        "since the prepare stage's held_out_fraction is 0"
        for where, measured in _measurements(path, stage)
        if measured.shards is None and measured.data_range is None
    ]


def _trained_on_problems(stages: Sequence[Stage]) -> list[str]:
    """Return which parts of training shards are measured on although that stage, or one before it, trains on them."""
    return [
        f"{path}.data_range: got {part.start} to {part.end}; allowed: a range that shares no sample with "
        f"{trained.data_range.start} to {trained.data_range.end}, on which {trained.name} trains"
        for number, stage in enumerate(stages)
        for path, measured in _measurements(f"stages.{number}", stage)
        if (part := measured.data_range) is not None
        for trained in [it for it in stages[: number + 1] if isinstance(it, PretrainStage)]
        if _reads_same_shards(trained, stage, measured)
        and part.start < trained.data_range.end
        and trained.data_range.start < part.end
    ]


def _reads_same_shards(trained: PretrainStage, stage: Stage, measured: Evaluation | EvaluateStage) -> bool:
    """Tell whether a stage trains on the shards that another one measures on. Folders are compared as texts."""
    if trained.shards != measured.shards:
        return False
    # Without a folder, both read the data set's of their length.
    length = stage.sequence_length if isinstance(stage, PretrainStage | EvaluateStage) else None
    return trained.shards is not None or trained.sequence_length == length


def _measurements(path: str, stage: Stage) -> Iterator[tuple[str, Evaluation | EvaluateStage]]:
    """Yield what a stage measures, with its path."""
    if isinstance(stage, EvaluateStage):
        yield path, stage
    if isinstance(stage, PretrainStage) and stage.evaluation is not None:
        yield f"{path}.evaluation", stage.evaluation


def fits_tensorflow(model: ModelConfig | ModelFile) -> bool:
    """Return whether TensorFlow 1 BERT code computes this model."""
    if isinstance(model, ModelFile):
        return True  # looked at again once the file is read: resolve_model
    return model.architecture == "bert" and model.layer_norm_eps == TENSORFLOW_LAYER_NORM_EPS


def _pretrain_problems(path: str, stage: PretrainStage, ranks: int) -> list[str]:
    problems = []
    for name, section, choices in (
        ("length", stage.length, ("steps", "epochs", "samples")),
        ("schedule.warmup", stage.schedule.warmup, ("steps", "proportion")),
    ):
        given = [choice for choice in choices if getattr(section, choice) is not None]
        if len(given) != 1:
            problems.append(f"{path}.{name}: got {given}; allowed: exactly one of {', '.join(choices)}")
    if stage.global_batch_size < ranks:
        problems.append(
            f"{path}.global_batch_size: got {stage.global_batch_size}; allowed: at least one row for each of "
            f"{ranks} ranks"
        )
    if stage.micro_batch_size == "auto" and stage.loss_normalization != "global":
        problems.append(
            f"{path}.micro_batch_size: got 'auto'; allowed: a number with loss_normalization 'microBatchMean', whose "
            "result depends on it"
        )
    warmup_steps, steps = stage.schedule.warmup.steps, stage.length.steps
    if warmup_steps is not None and steps is not None and warmup_steps >= steps:
        problems.append(
            f"{path}.schedule.warmup.steps: got {warmup_steps}; allowed: less than the stage's {steps} steps"
        )
    return [*problems, *_range_problems(f"{path}.data_range", stage.data_range), *_evaluation_problems(path, stage)]


def _range_problems(path: str, part: DataRange | None) -> list[str]:
    if part is None or part.start < part.end:
        return []
    return [f"{path}: got {part.start} to {part.end}; allowed: a start below the end"]


def _evaluation_problems(path: str, stage: PretrainStage) -> list[str]:
    evaluation = stage.evaluation
    if evaluation is None:
        if stage.target is None:
            return []
        return [f"{path}.target: got one without evaluation; allowed: only with evaluation, which measures it"]
    path += ".evaluation"
    problems = _range_problems(f"{path}.data_range", evaluation.data_range)
    units = ("steps", "samples", "epochs")
    every, start = ([unit for unit in units if getattr(evaluation, f"{kind}_{unit}")] for kind in ("every", "start"))
    if len(every) != 1:
        got = [f"every_{unit}" for unit in every]
        problems.append(f"{path}: got {got}; allowed: exactly one of every_steps, every_samples, every_epochs")
    elif start not in ([], every):
        got = [f"start_{unit}" for unit in start]
        problems.append(f"{path}: got {got} with every_{every[0]}; allowed: start_{every[0]} or none")
    most = stage.sequence_length - 3
    if evaluation.max_predictions_per_sequence > most:
        problems.append(
            f"{path}.max_predictions_per_sequence: got {evaluation.max_predictions_per_sequence}; "
            f"allowed: at most sequence_length - 3 = {most}"
        )
    return problems
