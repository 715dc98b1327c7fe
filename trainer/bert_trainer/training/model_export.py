"""Export stages: what is exported, where it goes, what its model card says, and the writing on rank 0.

An export stage writes what the training stage before it has left: the pretrained model, or the best weights of a
finetune stage. The card states what the output folder and the data set know: nothing is measured or counted here
again. Machines and paths stay out of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePath

from bert_job.foreign_text import printable
from bert_job.run_config import DatasetConfig, RunConfig
from bert_job.run_stages import (
    EvaluateStage,
    Evaluation,
    ExportStage,
    FinetuneStage,
    PrepareStage,
    PretrainStage,
    Stage,
)
from bert_trainer.checkpoints.checkpoint import (
    MODEL_FILE,
    Checkpoint,
    Environment,
    list_checkpoints,
    read_checkpoint,
    sha256_of,
)
from bert_trainer.checkpoints.fine_tuned_card import render_fine_tuned_card
from bert_trainer.checkpoints.model_card import Measurement, ModelFacts, Row, TrainedStage, render_card
from bert_trainer.checkpoints.model_export import export_model
from bert_trainer.checkpoints.store import CHECKPOINTS_FOLDER
from bert_trainer.dataset.shards.dataset_info import DatasetInfo
from bert_trainer.dataset.tokens.wordpiece import Vocabulary
from bert_trainer.model.bert import Bert
from bert_trainer.model.task_model import TaskModel
from bert_trainer.output.metrics import Record, read_metrics
from bert_trainer.output.run_folder import CONFIG_FILE
from bert_trainer.training.fine_tuned_facts import started_pretrained, task_facts
from bert_trainer.training.finetuning.best import best_folder, load_finetuned
from bert_trainer.training.letter_case import dataset_of, lower_case_of
from bert_trainer.training.run_data import RunData, StageData
from bert_trainer.training.session import Session

_EXPORT_FOLDER = "export"
_BUILTIN = "builtin:"


def export_and_report(session: Session, index: int, stage: ExportStage) -> None:
    """Write the model for other programs: rank 0 writes, the other ranks wait for its outcome. Collective.

    Args:
        session: Of the attempt.
        index: Of the stage.
        stage: What is exported.
    """
    config, data, writer = session.config, session.data, session.writer

    def write() -> None:
        # The card names the checkpoint that these weights are in.
        writer.wait()
        writer.folder.check_fence()
        target = writer.folder.path / _EXPORT_FOLDER / export_name(config.stages, index)
        exported = _trained_model(session, index, stage)
        export_model(
            stage.format,
            exported.model,
            data.vocabulary,
            target,
            lower_case=exported.lower_case,
            labels=exported.labels,
            card=exported.card,
            before_commit=writer.folder.check_fence,
        )
        writer.event("exported", stage=stage.name, format=stage.format, path=str(target))

    writer.on_rank_0(write)


@dataclass(frozen=True, slots=True)
class _Exported:
    model: Bert | TaskModel
    lower_case: bool
    labels: Sequence[str]
    """Classes by number, of a fine-tuned model."""
    card: str


def _trained_model(session: Session, index: int, stage: ExportStage) -> _Exported:
    """Return what the last training stage before an export stage has left. Rank 0 only.

    Raises:
        InputError: a finetune stage's weights are missing or damaged.
    """
    config, data, pretrained, writer = session.config, session.data, session.learner.model, session.writer
    stages, output, environment = config.stages, writer.folder.path, writer.environment
    before = [other for other in stages[:index] if isinstance(other, PretrainStage | FinetuneStage)]
    trained = before[-1] if before else None
    records = list(read_metrics(output))
    start = list(_start(config, output))
    if not isinstance(trained, FinetuneStage):
        lower_case = lower_case_of(stages, config.initial_checkpoint, data)
        run = [*start, *_run(config, output), *_environment(environment)]
        facts = _facts(index, stage, config, data, pretrained, lower_case, run, records)
        return _Exported(pretrained, lower_case, (), render_card(facts))
    model, best = load_finetuned(output, trained, pretrained)
    run = [*start, *_fine_tuned_run(config, output, trained), *_environment(environment)]
    facts = replace(_facts(index, stage, config, data, model, best.lower_case, run, records), measurements=[])
    if not started_pretrained(stages, trained):
        facts = replace(facts, stages=[])
    task = task_facts(
        stages, trained, config.initial_checkpoint, model.head_config, best, records, environment.world_size
    )
    return _Exported(model, best.lower_case, task.labels, render_fine_tuned_card(facts, task))


def export_name(stages: Sequence[Stage], index: int) -> str:
    """Return the folder of an export stage below ``export``.

    The format's name for the last stage of that format, which exports the finished model; earlier ones, after an
    earlier phase, add their own name.
    """
    stage = stages[index]
    assert isinstance(stage, ExportStage), "asked for export stages only"
    later = (other for other in stages[index + 1 :] if isinstance(other, ExportStage))
    return f"{stage.format}-{stage.name}" if any(other.format == stage.format for other in later) else stage.format


def _facts(
    index: int,
    stage: ExportStage,
    config: RunConfig,
    data: RunData,
    model: Bert | TaskModel,
    lower_case: bool,
    run: list[Row],
    records: list[Record],
) -> ModelFacts:
    dataset = dataset_of(data)
    prepare = next((it for it in config.stages if isinstance(it, PrepareStage)), None)
    return ModelFacts(
        name=config.job.name,
        form=stage.format,
        architecture=model.config.architecture,
        objective=model.config.objective,
        lower_case=lower_case,
        sizes=list(_sizes(model, data.vocabulary)),
        data_name=_data_name(config.dataset, prepare, dataset),
        languages=[corpus.language for corpus in prepare.all_corpora] if prepare else [],
        data=list(_data(config.stages, index, data, dataset)),
        stages=list(_trained(config.stages[:index], data.training, records)),
        measurements=list(_measured(config.stages[:index], records)),
        run=run,
        tokenizer=data.vocabulary.settings,
    )


def _sizes(model: Bert | TaskModel, vocabulary: Vocabulary) -> Iterator[Row]:
    config = model.config
    yield "parameters", f"{sum(tensor.numel() for tensor in model.unpadded_weights().values()):,}"
    yield "layers", str(config.num_hidden_layers)
    yield "hidden size", str(config.hidden_size)
    yield "attention heads", str(config.num_attention_heads)
    yield "feed-forward size", str(config.intermediate_size)
    yield "longest sequence", f"{config.max_position_embeddings} tokens"
    yield "activation", config.hidden_activation
    if config.architecture == "modernbert":
        yield (
            "attention",
            (
                f"every {config.global_attention_every} layers to the whole sequence, else to "
                f"{config.attention_window} tokens around each"
            ),
        )
        yield "RoPE theta", f"{config.global_rope_theta:g}, with a window {config.local_rope_theta:g}"
    yield "vocabulary", f"{vocabulary.size:,} entries"


def _data_name(config: DatasetConfig, prepare: PrepareStage | None, dataset: DatasetInfo | None) -> str:
    """Return what the text is called: last parts of paths alone, since the rest is about somebody's volume."""
    if prepare is not None:
        paths = [corpus.path.removeprefix(_BUILTIN) for corpus in prepare.all_corpora]
    elif dataset is not None:
        paths = [dataset.settings.corpus_name or "", *dataset.source.removeprefix(_BUILTIN).split(", ")]
        paths = paths[:1] if paths[0] else paths[1:]
    else:
        paths = [config.folder]
    return ", ".join(dict.fromkeys(PurePath(path).name for path in paths)) or "unnamed text"


def _data(stages: Sequence[Stage], index: int, data: RunData, dataset: DatasetInfo | None) -> Iterator[Row]:
    counts = None if dataset is None else dataset.counts
    if dataset is not None:
        yield "text, SHA-256", dataset.corpus_sha256 or "unknown"
    if counts is not None:
        yield "documents to train on", f"{counts.documents_training:,}"
        yield "documents held out", f"{counts.documents_held_out:,}"
        yield "near-duplicates dropped", f"{counts.duplicates_dropped:,}"
        yield "tokens to train on", f"{counts.tokens_training:,}, each counted once"
    for number, measured in data.evaluation.items():
        if number > index:
            break
        stage, folder = stages[number], measured.folder
        evaluation = stage.evaluation if isinstance(stage, PretrainStage) else stage
        is_part = isinstance(evaluation, Evaluation | EvaluateStage) and evaluation.data_range is not None
        name = f"{'part of training shards' if is_part else 'held out'} for {stage.name}"
        yield name, _count(measured.last - measured.first, len(folder.paths))
    yield "vocabulary, SHA-256", data.vocabulary.sha256


def _count(samples: int, shards: int) -> str:
    return f"{samples:,} samples in {shards:,} shard{'' if shards == 1 else 's'}"


def _trained(
    earlier: Sequence[Stage], training: Mapping[int, StageData], records: list[Record]
) -> Iterator[TrainedStage]:
    for number, stage in enumerate(earlier):
        if not isinstance(stage, PretrainStage):
            continue
        data = training[number]
        # A step that was trained again after a kill is reported again: the last report counts.
        reports = [record for record in records if record["event"] == "progress" and record["stage"] == stage.name]
        last = reports[-1] if reports else {}
        loss, steps = last.get("loss"), last.get("step")
        yield TrainedStage(
            name=stage.name,
            sequence_length=stage.sequence_length,
            global_batch_size=stage.global_batch_size,
            steps=data.total_steps if steps is None else int(steps),
            learning_rate=stage.learning_rate,
            loss=None if loss is None else float(loss),
            shards=_count(data.order.num_samples, len(data.folder.paths)),
        )


def _measured(earlier: Sequence[Stage], records: list[Record]) -> Iterator[Measurement]:
    """Yield what was measured on these weights: after the last step of the last pretrain stage before the export."""
    trained = max((number for number, stage in enumerate(earlier) if isinstance(stage, PretrainStage)), default=0)
    for stage in earlier[trained:]:
        of_stage = [record for record in records if record.get("stage") == stage.name]
        found = [record for record in of_stage if record["event"] == "evaluated"]
        if isinstance(stage, PretrainStage) and stage.evaluation is not None:
            steps = [record["step"] for record in of_stage if record["event"] == "progress"]
            # Earlier evaluations were of other weights.
            found = [it for it in found if it.get("when") == "during" and [it.get("step")] == steps[-1:]]
            measured: Evaluation | EvaluateStage = stage.evaluation
            own_shards = stage.shards
        elif isinstance(stage, EvaluateStage):
            found = [it for it in found if it.get("when") == "after"]
            measured, own_shards = stage, None
        else:
            continue
        if found:
            yield _measurement(stage, measured, own_shards, found[-1])


def _measurement(
    stage: PretrainStage | EvaluateStage, measured: Evaluation | EvaluateStage, own_shards: str | None, found: Record
) -> Measurement:
    figures = {
        field: None if found.get(field) is None else float(found[field] or 0)
        for field in ("mlm_accuracy", "mlm_loss", "nsp_accuracy", "nsp_baseline", "unigram_baseline")
    }
    # The operator names a stage's own shards where a part of them is measured on.
    other = None if measured.shards in (None, own_shards) else measured.shards
    part = measured.data_range
    return Measurement(
        stage=stage.name,
        sequence_length=stage.sequence_length,
        samples=int(found.get("samples") or 0),
        masked_lm_accuracy=figures["mlm_accuracy"],
        masked_lm_loss=figures["mlm_loss"],
        next_sentence_accuracy=figures["nsp_accuracy"],
        next_sentence_baseline=figures["nsp_baseline"],
        unigram_baseline=figures["unigram_baseline"],
        folder=None if other is None else PurePath(other).name,
        part=None if part is None else (part.start, part.end),
    )


def _start(config: RunConfig, output: Path) -> Iterator[Row]:
    yield "run configuration, SHA-256", sha256_of(output / CONFIG_FILE)
    start = config.initial_checkpoint
    if start is not None and start.load != "none":
        yield "started from", f"{printable(PurePath(start.path).name) or 'unnamed'}, format {start.format}"


def _run(config: RunConfig, output: Path) -> Iterator[Row]:
    checkpoint = _newest_checkpoint(output / CHECKPOINTS_FOLDER)
    if checkpoint is not None:
        yield "checkpoint", checkpoint.path.name
        yield "checkpoint's weights, SHA-256", checkpoint.model_sha256
    yield "precision", config.precision
    yield "optimizer", config.optimizer.name
    yield "seed", str(config.seed)


def _fine_tuned_run(config: RunConfig, output: Path, stage: FinetuneStage) -> Iterator[Row]:
    yield "best weights, SHA-256", sha256_of(best_folder(output, stage) / MODEL_FILE)
    yield "precision", config.precision


def _environment(environment: Environment) -> Iterator[Row]:
    yield "ranks", f"{environment.world_size:,}"
    for name, found in (("bert-pretrain-operator", _own_version()), *environment.versions.items()):
        if found not in (None, "not installed"):
            yield name, str(found)


def _newest_checkpoint(root: Path) -> Checkpoint | None:
    listed, _ = list_checkpoints(root)
    return next((read_checkpoint(path, with_sums=False) for path in listed), None)


def _own_version() -> str | None:
    try:
        return version("bert-pretrain-operator")
    except PackageNotFoundError:
        return None  # images hold the sources alone
