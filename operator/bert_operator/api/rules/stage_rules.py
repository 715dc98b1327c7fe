"""Rules inside one stage, and between it and the numbers that the whole job shares (ranks, longest sequence).

Pure: a rule looks at the job alone. Rules between stages are in ``job_rules``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bert_operator.api.rules.soundness import Soundness
from bert_operator.api.schema.bert_pretrain_job import (
    STAGE_KINDS,
    BertPretrainJob,
    EvaluateSpec,
    JobSpec,
    PretrainSpec,
    Stage,
)
from bert_operator.api.schema.section import Section
from bert_operator.errors import ABSENT, Path, Problem


@dataclass(frozen=True, slots=True)
class StageView:
    """A stage, where it stands, and the job around it."""

    path: str
    stage: Stage
    spec: JobSpec
    trained: PretrainSpec | None
    """The last pretrain stage before this one, from which an evaluate stage takes its lengths."""


@dataclass(frozen=True, slots=True)
class StageRule:
    """A check, and the fields that have to be sound: of the stage, and (paths below ``spec``) of the job."""

    reads: tuple[Path, ...]
    check: Callable[[StageView], Iterator[Problem]]
    reads_job: tuple[Path, ...] = ()
    reads_kind: bool = False
    """Whether the stage's kind has to be known."""


def one_kind(view: StageView) -> Iterator[Problem]:
    """Refuse a stage that does nothing, or several things."""
    if len(view.stage.kinds) != 1:
        yield Problem(
            path=view.path,
            got=" and ".join(view.stage.kinds) or ABSENT,
            allowed=f"exactly one of {', '.join(STAGE_KINDS)} beside the name",
            next_step="write one stage for each" if view.stage.kinds else "add what the stage does",
        )


def sequence_fits_model(view: StageView) -> Iterator[Problem]:
    """Refuse sequences longer than the model has positions for."""
    longest = view.spec.model.max_position_embeddings
    for kind, section in _sections(view.stage):
        if section.sequence_length is not None and section.sequence_length > longest:
            yield Problem(
                path=f"{view.path}.{kind}.sequenceLength",
                got=str(section.sequence_length),
                allowed=f"at most model.maxPositionEmbeddings {longest}",
                next_step="shorten the sequences or raise model.maxPositionEmbeddings",
            )


def predictions_fit_sequence(view: StageView) -> Iterator[Problem]:
    """Refuse more predictions than a sequence has tokens that can be masked."""
    for kind, section in _sections(view.stage):
        predictions = section.max_predictions_per_sequence
        length = section.sequence_length or (view.trained.sequence_length if view.trained else None)
        if predictions is not None and length is not None and predictions > length - 3:
            yield Problem(
                path=f"{view.path}.{kind}.maxPredictionsPerSequence",
                got=str(predictions),
                allowed=f"at most {length - 3}: sequenceLength {length} less [CLS] and two [SEP]",
                next_step="leave the field out for 15 % of the length",
            )


def batch_reaches_every_rank(view: StageView) -> Iterator[Problem]:
    """Refuse a batch that leaves ranks without a row."""
    pretrain, ranks = view.stage.pretrain, view.spec.ranks
    if pretrain and pretrain.global_batch_size < ranks:
        yield Problem(
            path=f"{view.path}.pretrain.globalBatchSize",
            got=str(pretrain.global_batch_size),
            allowed=f"at least {ranks}, one sequence for each of workers x slotsPerWorker = {ranks} ranks",
            next_step="it counts all ranks: multiply it by the number of ranks if it was meant for one GPU",
        )


def micro_batch_fits_batch(view: StageView) -> Iterator[Problem]:
    """Refuse a pass that is larger than the whole step."""
    pretrain = view.stage.pretrain
    size = pretrain.micro_batch_size if pretrain else None
    if pretrain and isinstance(size, int) and size > pretrain.global_batch_size:
        yield Problem(
            path=f"{view.path}.pretrain.microBatchSize",
            got=str(pretrain.micro_batch_size),
            allowed=f"at most globalBatchSize {pretrain.global_batch_size}",
            next_step="globalBatchSize counts all ranks and passes; microBatchSize is one pass on one rank",
        )


def found_size_changes_no_result(view: StageView) -> Iterator[Problem]:
    """Refuse to let the hardware decide a size on which the result depends."""
    pretrain = view.stage.pretrain
    if pretrain and pretrain.micro_batch_size == "auto" and pretrain.loss_normalization != "global":
        yield Problem(
            path=f"{view.path}.pretrain.microBatchSize",
            got='"auto"',
            allowed="a number with lossNormalization: microBatchMean, whose result depends on it",
            next_step="write the number, or lossNormalization: global",
        )


def length_is_one(view: StageView) -> Iterator[Problem]:
    """Refuse a length in no unit or in several."""
    if view.stage.pretrain:
        path = f"{view.path}.pretrain.length"
        yield from _exactly_one(path, view.stage.pretrain.length, ("steps", "epochs", "samples"))


def warmup_is_one(view: StageView) -> Iterator[Problem]:
    """Refuse a warm-up in no unit or in several."""
    if view.stage.pretrain:
        path = f"{view.path}.pretrain.warmup"
        yield from _exactly_one(path, view.stage.pretrain.warmup, ("steps", "proportion"))


def warmup_ends_before_training(view: StageView) -> Iterator[Problem]:
    """Refuse a warm-up that never ends, where the number of steps is known without the data."""
    if view.stage.pretrain is None or view.stage.pretrain.warmup.steps is None:
        return
    warmup, steps = view.stage.pretrain.warmup.steps, _known_steps(view.stage.pretrain)
    if steps is not None and warmup >= steps:
        yield Problem(
            path=f"{view.path}.pretrain.warmup.steps",
            got=str(warmup),
            allowed=f"less than the stage's {steps} steps",
            next_step="shorten it, or write warmup: {proportion: 0.1}",
        )


def range_is_not_empty(view: StageView) -> Iterator[Problem]:
    """Refuse a range without samples."""
    if view.stage.pretrain is None:
        return
    data_range = view.stage.pretrain.data_range
    if data_range.start >= data_range.end:
        yield Problem(
            path=f"{view.path}.pretrain.dataRange",
            got=f"{data_range.start:g} to {data_range.end:g}",
            allowed="a start below the end, both as shares from 0 to 1",
            next_step="leave the field out for all samples",
        )


def _sections(stage: Stage) -> Iterator[tuple[str, PretrainSpec | EvaluateSpec]]:
    if stage.pretrain is not None:
        yield "pretrain", stage.pretrain
    if stage.evaluate is not None:
        yield "evaluate", stage.evaluate


def _known_steps(pretrain: PretrainSpec) -> int | None:
    if pretrain.length.samples is not None:
        return -(-pretrain.length.samples // pretrain.global_batch_size)
    return pretrain.length.steps


def _exactly_one(path: str, section: Section, choices: tuple[str, ...]) -> Iterator[Problem]:
    given = [choice for choice in choices if getattr(section, choice) is not None]
    if len(given) != 1:
        yield Problem(
            path=path,
            got=" and ".join(given) or ABSENT,
            allowed=f"exactly one of {', '.join(choices)}",
            next_step=f"remove all but one, for example {given[-1]}" if given else f"add one, for example {choices[0]}",
        )


_LENGTHS: tuple[Path, ...] = tuple(
    (kind, field) for kind in ("pretrain", "evaluate") for field in ("sequenceLength", "maxPredictionsPerSequence")
)
_BATCH: Path = ("pretrain", "globalBatchSize")

_RANKS: tuple[Path, ...] = (("workers",), ("slotsPerWorker",))

STAGE_RULES: tuple[StageRule, ...] = (
    StageRule((), one_kind, reads_kind=True),  # makes sure that a stage does one thing
    StageRule(_LENGTHS, sequence_fits_model, (("model", "maxPositionEmbeddings"),)),  # makes sure of positions
    StageRule(_LENGTHS, predictions_fit_sequence),  # makes sure that every prediction has a token
    StageRule((_BATCH,), batch_reaches_every_rank, _RANKS),  # makes sure of work for all
    StageRule((_BATCH, ("pretrain", "microBatchSize")), micro_batch_fits_batch),  # makes sure of the units meant
    # makes sure that the hardware decides no result
    StageRule((("pretrain", "microBatchSize"), ("pretrain", "lossNormalization")), found_size_changes_no_result),
    StageRule((("pretrain", "length"),), length_is_one),  # makes sure that training ends
    StageRule((("pretrain", "warmup"),), warmup_is_one),  # makes sure that the schedule is defined
    # makes sure that the peak is reached
    StageRule((("pretrain", "warmup"), ("pretrain", "length"), _BATCH), warmup_ends_before_training),
    StageRule((("pretrain", "dataRange"),), range_is_not_empty),  # makes sure there are samples
)


def stage_problems(job: BertPretrainJob, soundness: Soundness) -> Iterator[Problem]:
    """Yield what is wrong inside stages, as far as their fields are the user's own."""
    trained = None
    for number, stage in enumerate(job.spec.stages):
        here: Path = ("stages", number)
        view = StageView(f"spec.stages[{number}]", stage, job.spec, trained)
        for rule in STAGE_RULES:
            reads = [*((*here, *path) for path in rule.reads), *rule.reads_job]
            knows_kind = soundness.has_its_fields(here) if rule.reads_kind else soundness.is_there(here)
            if knows_kind and all(soundness.is_whole(path) for path in reads):
                yield from rule.check(view)
        trained = stage.pretrain or trained
