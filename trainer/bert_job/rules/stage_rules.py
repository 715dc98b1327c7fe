"""Rules inside one stage, and between it and the numbers that the whole job shares (ranks, longest sequence).

Pure: a rule looks at the job alone. In CEL a rule that needs fields of the job stands at the spec and loops over the
stages; the server can then name no entry of the list, so that the message begins with ``stages[]``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bert_job.evaluation import EvaluateSpec
from bert_job.model import resolve_positions
from bert_job.optimization import WarmupSpec
from bert_job.pretraining import LengthSpec, PretrainSpec
from bert_job.problems import ABSENT
from bert_job.rules.cel import POSITIONS, RANKS_PER_WORKER, Cel
from bert_job.rules.rule import Rule, Violation, rule
from bert_job.section import SPECIAL_TOKENS, Section
from bert_job.stages import STAGE_KINDS, Stage
from bert_job.training import TrainingSpec


@dataclass(frozen=True, slots=True)
class StageView:
    """A stage with the training that contains it."""

    stage: Stage
    spec: TrainingSpec
    trained: PretrainSpec | None
    """The last pretrain stage before this one, from which an evaluate stage takes its lengths."""
    ranks: int


@rule(
    Cel(Stage, f"[{', '.join(f'has(self.{kind})' for kind in STAGE_KINDS)}].exists_one(is, is)"),
    allowed=f"exactly one of {', '.join(STAGE_KINDS)} beside the name",
    next_step="write one stage for each",
)
def one_kind(view: StageView) -> Iterator[Violation]:
    """Refuse a stage with no kind or more than one."""
    kinds = view.stage.kinds
    if len(kinds) != 1:
        yield Violation("", " and ".join(kinds) or ABSENT, next_step="" if kinds else "add what the stage does")


@rule(
    Cel(
        TrainingSpec,
        # The positions of a model in a file are known when the run starts.
        f"has(self.model.configFile) || [{POSITIONS}].all(longest, self.stages.all(stage, (!has(stage.pretrain) || "
        "stage.pretrain.sequenceLength <= longest) && (!has(stage.evaluate) || "
        "!has(stage.evaluate.sequenceLength) || stage.evaluate.sequenceLength <= longest)))",
        subject="stages[].sequenceLength",
    ),
    allowed="at most model.maxPositionEmbeddings",
    next_step="shorten the sequences or raise model.maxPositionEmbeddings",
)
def sequence_fits_model(view: StageView) -> Iterator[Violation]:
    """Refuse sequences longer than the model has positions for."""
    if view.spec.model.config_file is not None:
        return
    longest = resolve_positions(view.spec.model)
    for kind, section in (("pretrain", view.stage.pretrain), ("evaluate", view.stage.evaluate)):
        length = None if section is None else section.sequence_length
        if length is not None and length > longest:
            at_most = f"at most model.maxPositionEmbeddings {longest}"
            yield Violation(f"{kind}.sequenceLength", str(length), allowed=at_most)


def _too_many_predictions(
    kind: str, section: PretrainSpec | EvaluateSpec | None, length: int | None
) -> Iterator[Violation]:
    predictions = None if section is None else section.max_predictions_per_sequence
    if predictions is not None and length is not None and predictions > length - SPECIAL_TOKENS:
        yield Violation(
            f"{kind}.maxPredictionsPerSequence",
            str(predictions),
            allowed=f"at most {length - SPECIAL_TOKENS}: sequenceLength {length} less [CLS] and two [SEP]",
        )


@rule(
    Cel(
        TrainingSpec,
        "self.stages.all(stage, !has(stage.evaluate) || !has(stage.evaluate.sequenceLength) || "
        "!has(stage.evaluate.maxPredictionsPerSequence) || "
        f"stage.evaluate.maxPredictionsPerSequence <= stage.evaluate.sequenceLength - {SPECIAL_TOKENS})",
        subject="stages[].evaluate.maxPredictionsPerSequence",
    ),
    allowed="at most sequenceLength less [CLS] and two [SEP]",
    next_step="leave the field out for 15 % of the length",
    # An evaluate stage that takes its length from an earlier stage is left to the operator: a loop in CEL knows neither
    # the position of its entry nor the entries before it.
)
def evaluated_predictions_fit_sequence(view: StageView) -> Iterator[Violation]:
    """Refuse more predictions than an evaluated sequence has tokens that can be masked."""
    evaluate = view.stage.evaluate
    inherited = view.trained.sequence_length if view.trained else None
    length = evaluate.sequence_length if evaluate else None
    yield from _too_many_predictions("evaluate", evaluate, length or inherited)


@rule(
    Cel(
        TrainingSpec,
        "self.stages.all(stage, !has(stage.pretrain) || "
        f"stage.pretrain.globalBatchSize >= self.workers * {RANKS_PER_WORKER})",
        subject="stages[].pretrain.globalBatchSize",
    ),
    allowed="at least one sequence for each of workers x slotsPerWorker ranks",
    next_step="it counts all ranks: multiply it by the number of ranks if it was meant for one GPU",
)
def batch_reaches_every_rank(view: StageView) -> Iterator[Violation]:
    """Refuse a batch that leaves ranks without a row."""
    pretrain, ranks = view.stage.pretrain, view.ranks
    if pretrain and pretrain.global_batch_size < ranks:
        yield Violation(
            "pretrain.globalBatchSize",
            str(pretrain.global_batch_size),
            allowed=f"at least {ranks}, one sequence for each of workers x slotsPerWorker = {ranks} ranks",
        )


@rule(
    Cel(
        PretrainSpec,
        # An int-or-string: comparing the text auto with a number would be an error.
        "!has(self.microBatchSize) || type(self.microBatchSize) == string || "
        "self.microBatchSize <= self.globalBatchSize",
        "microBatchSize",
    ),
    allowed="at most globalBatchSize",
    next_step="globalBatchSize counts all ranks and passes; microBatchSize is one pass on one rank",
)
def micro_batch_fits_batch(view: StageView) -> Iterator[Violation]:
    """Refuse a pass that is larger than the whole step: usually the two fields are mixed up."""
    pretrain = view.stage.pretrain
    size = pretrain.micro_batch_size if pretrain else None
    if pretrain and isinstance(size, int) and size > pretrain.global_batch_size:
        at_most = f"at most globalBatchSize {pretrain.global_batch_size}"
        yield Violation("pretrain.microBatchSize", str(size), allowed=at_most)


@rule(
    Cel(
        PretrainSpec,
        "!has(self.microBatchSize) || type(self.microBatchSize) == int || self.lossNormalization == 'global'",
        "microBatchSize",
    ),
    allowed="a number with lossNormalization: microBatchMean, whose result depends on it",
    next_step="write the number, or lossNormalization: global",
)
def found_size_changes_no_result(view: StageView) -> Iterator[Violation]:
    """Refuse microBatchSize: auto if the result depends on the size."""
    pretrain = view.stage.pretrain
    if pretrain and pretrain.micro_batch_size == "auto" and pretrain.loss_normalization != "global":
        yield Violation("pretrain.microBatchSize", '"auto"')


@rule(
    Cel(
        PretrainSpec,
        "!has(self.maxPredictionsPerSequence) || "
        f"self.maxPredictionsPerSequence <= self.sequenceLength - {SPECIAL_TOKENS}",
        "maxPredictionsPerSequence",
    ),
    allowed="at most sequenceLength less [CLS] and two [SEP]",
    next_step="leave the field out for 15 % of the length",
)
def trained_predictions_fit_sequence(view: StageView) -> Iterator[Violation]:
    """Refuse more predictions than a trained sequence has tokens that can be masked."""
    pretrain = view.stage.pretrain
    yield from _too_many_predictions("pretrain", pretrain, pretrain.sequence_length if pretrain else None)


def _unless_one(path: str, section: Section, choices: tuple[str, ...]) -> Iterator[Violation]:
    """Yield a violation unless exactly one of the fields is set."""
    given = [choice for choice in choices if getattr(section, choice) is not None]
    if len(given) != 1:
        advice = f"remove all but one, for example {given[-1]}" if given else f"add one, for example {choices[0]}"
        yield Violation(path, " and ".join(given) or ABSENT, next_step=advice)


@rule(
    Cel(LengthSpec, "[has(self.steps), has(self.epochs), has(self.samples)].exists_one(is, is)"),
    allowed="exactly one of steps, epochs, samples",
    next_step="remove all but one",
)
def length_is_one(view: StageView) -> Iterator[Violation]:
    """Refuse a length that is not given in exactly one unit."""
    if view.stage.pretrain:
        yield from _unless_one("pretrain.length", view.stage.pretrain.length, ("steps", "epochs", "samples"))


@rule(
    Cel(WarmupSpec, "has(self.steps) != has(self.proportion)"),
    allowed="exactly one of steps, proportion",
    next_step="remove all but one",
)
def warmup_is_one(view: StageView) -> Iterator[Violation]:
    """Refuse a warm-up that is not given in exactly one unit."""
    for kind, section in (("pretrain", view.stage.pretrain), ("finetune", view.stage.finetune)):
        if section:
            yield from _unless_one(f"{kind}.warmup", section.warmup, ("steps", "proportion"))


@rule(
    Cel(
        PretrainSpec,
        # Integers divide towards zero: batch - 1 more rounds up, as _known_steps does.
        "!has(self.warmup.steps) || (!has(self.length.steps) || self.warmup.steps < self.length.steps) && "
        "(!has(self.length.samples) || has(self.length.steps) || self.warmup.steps < "
        "(self.length.samples + self.globalBatchSize - 1) / self.globalBatchSize)",
        "warmup.steps",
    ),
    allowed="less than the stage's steps",
    next_step="shorten it, or write warmup: {proportion: 0.1}",
)
def warmup_ends_before_training(view: StageView) -> Iterator[Violation]:
    """Refuse a warm-up that never reaches its peak, where the number of steps is known without the data."""
    pretrain = view.stage.pretrain
    # A proportion is below 1 by its type. With epochs the steps are known to the trainer alone, which looks again.
    if pretrain is None or pretrain.warmup.steps is None:
        return
    steps = _known_steps(pretrain)
    if steps is not None and pretrain.warmup.steps >= steps:
        fewer = f"less than the stage's {steps} steps"
        yield Violation("pretrain.warmup.steps", str(pretrain.warmup.steps), allowed=fewer)


def _known_steps(pretrain: PretrainSpec) -> int | None:
    if pretrain.length.samples is not None:
        # A batch that is not full is a step as well: the trainer rounds up.
        return -(-pretrain.length.samples // pretrain.global_batch_size)
    return pretrain.length.steps


PRETRAIN_STAGE_RULES: tuple[Rule[StageView], ...] = (
    one_kind,
    sequence_fits_model,
    evaluated_predictions_fit_sequence,
    batch_reaches_every_rank,
    micro_batch_fits_batch,
    found_size_changes_no_result,
    trained_predictions_fit_sequence,
    length_is_one,
    warmup_is_one,
    warmup_ends_before_training,
)
