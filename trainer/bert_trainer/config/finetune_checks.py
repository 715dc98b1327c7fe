"""Rules for finetune stages: their place in the run, the weights they start from, whether task and files fit.

Pure: files are never looked at. As in ``checks``, whose part this is, every problem is ``path: got; allowed``.
"""

from __future__ import annotations

from collections.abc import Iterator

from bert_trainer.config.finetuning import (
    NEEDED_COLUMNS,
    OPTIONAL_COLUMNS,
    OWN_TABLES,
    SPAN_TASKS,
    TASK_METRICS,
    FinetuneStage,
    Kind,
    TableColumns,
)
from bert_trainer.config.run_config import ModelFile, RunConfig
from bert_trainer.config.stages import EvaluateStage, ExportStage, PrepareStage, PretrainStage

_RESERVED_NAME = "start"
"""A folder beside those of the stages has it."""
_SPECIAL_TOKENS = 3
"""Of a row with a question and a context: [CLS] and two [SEP]."""
_OWN_FILES = ("train", "validation", "test", "labels")


def find_finetune_problems(config: RunConfig) -> Iterator[str]:
    """Yield every invalid combination."""
    yield from _order_problems(config)
    for number, stage in enumerate(config.stages):
        if isinstance(stage, FinetuneStage):
            path = f"stages.{number}"
            yield from _start_problems(path, stage, number, config)
            yield from _length_problems(path, stage, config)
            yield from _training_problems(path, stage, config.world.ranks)
            yield from _data_problems(f"{path}.data", stage)


def _order_problems(config: RunConfig) -> Iterator[str]:
    first = None
    for number, stage in enumerate(config.stages):
        path = f"stages.{number}"
        if first is not None and isinstance(stage, PrepareStage | PretrainStage | EvaluateStage):
            yield (
                f"{path}: got {stage.kind} after the finetune stage {first!r}; allowed: finetune and export stages "
                "alone, since its model has the head of its task"
            )
        if first is not None and isinstance(stage, ExportStage) and stage.format == "tensorflow":
            yield (
                f"{path}.format: got 'tensorflow' after the finetune stage {first!r}; allowed: 'huggingface' or "
                "'onnx', since TensorFlow 1 checkpoints have no names for heads of tasks"
            )
        if first is None and isinstance(stage, FinetuneStage):
            first = stage.name


def _start_problems(path: str, stage: FinetuneStage, number: int, config: RunConfig) -> Iterator[str]:
    if stage.name == _RESERVED_NAME:
        yield f"{path}.name: got {stage.name!r}; allowed: another name, since the weights to start from have this one"
    start = config.initial_checkpoint
    is_loaded = start is not None and start.load != "none"
    is_trained = any(isinstance(before, PretrainStage) for before in config.stages[:number])
    if stage.start_from == "pretrained" and not is_loaded and not is_trained:
        yield (
            f"{path}.start_from: got 'pretrained' with neither a pretrain stage before it nor an initial_checkpoint "
            "that is loaded; allowed: 'random', or with one of them"
        )


def _length_problems(path: str, stage: FinetuneStage, config: RunConfig) -> Iterator[str]:
    longest = None if isinstance(config.model, ModelFile) else config.model.max_position_embeddings
    if longest is not None and stage.sequence_length > longest:
        yield (
            f"{path}.sequence_length: got {stage.sequence_length}; "
            f"allowed: at most model.max_position_embeddings {longest}"
        )
    room = stage.sequence_length - _SPECIAL_TOKENS
    if stage.task in SPAN_TASKS and stage.max_query_length >= room:
        yield (
            f"{path}.max_query_length: got {stage.max_query_length}; allowed: less than sequence_length - "
            f"{_SPECIAL_TOKENS} = {room}, so that a row has room for a context"
        )


def _training_problems(path: str, stage: FinetuneStage, ranks: int) -> Iterator[str]:
    warmup = stage.schedule.warmup
    given = [choice for choice in ("steps", "proportion") if getattr(warmup, choice) is not None]
    if len(given) != 1:
        yield f"{path}.schedule.warmup: got {given}; allowed: exactly one of steps, proportion"
    if stage.synchronize_gradients and stage.global_batch_size < ranks:
        yield (
            f"{path}.global_batch_size: got {stage.global_batch_size}; allowed: at least one row for each of "
            f"{ranks} ranks"
        )
    if not stage.synchronize_gradients and stage.optimizer.partitioning != "none":
        yield (
            f"{path}.optimizer.partitioning: got {stage.optimizer.partitioning!r}; allowed without "
            "synchronize_gradients: 'none', since every rank has a model of its own"
        )
    if len(set(stage.seeds)) < len(stage.seeds):
        yield f"{path}.seeds: got {list(stage.seeds)}; allowed: every seed once, since it would give the same run again"
    elif not stage.synchronize_gradients:
        others = [seed + rank * len(stage.seeds) for rank in range(1, ranks) for seed in stage.seeds]
        if len({*stage.seeds, *others}) < len(stage.seeds) + len(others):
            yield (
                f"{path}.seeds: got {list(stage.seeds)} for {ranks} ranks, which train {', '.join(map(str, others))} "
                "as well; allowed without synchronize_gradients: seeds that are all different, such as consecutive ones"
            )
    known = TASK_METRICS[stage.task]
    if stage.metric is not None and stage.metric not in known:
        yield f"{path}.metric: got {stage.metric!r}; allowed for {stage.task}: {' or '.join(map(repr, known))}"


def _data_problems(path: str, stage: FinetuneStage) -> Iterator[str]:
    data, task = stage.data, stage.task
    if task in OWN_TABLES:
        if data.folder is not None:
            yield f"{path}.folder: got {data.folder!r}; allowed for {task}: train, validation and test, one file each"
        for name in ("train", "validation"):
            if not getattr(data, name):
                yield f"{path}.{name}: got none; allowed for {task}: a file"
        yield from _column_problems(path, task, stage)
        return
    if not data.folder:
        yield f"{path}.folder: got none; allowed for {task}: the folder with its official files"
    own = [name for name in _OWN_FILES if getattr(data, name)] + [f"columns.{name}" for name in _columns_of(stage)]
    if own:
        yield f"{path}: got {', '.join(own)}; allowed for {task}: folder alone, its files have official names"


def _column_problems(path: str, task: Kind, stage: FinetuneStage) -> Iterator[str]:
    columns, labels, needed = _columns_of(stage), stage.data.labels, NEEDED_COLUMNS[task]
    fitting = [name for name in TableColumns.model_fields if name in (*needed, *OPTIONAL_COLUMNS[task])]
    for name in needed:
        if not columns.get(name):
            yield f"{path}.columns.{name}: got none; allowed for {task}: the name of a column"
    for name in columns:
        if name not in fitting:
            yield f"{path}.columns.{name}: got {columns[name]!r}; allowed for {task}: {', '.join(fitting)}"
    if labels and task != "classification":
        yield f"{path}.labels: got {list(labels)}; allowed for {task}: none, it has no classes"
    if len(set(labels)) < len(labels):
        yield f"{path}.labels: got {list(labels)}; allowed: every class once"


def _columns_of(stage: FinetuneStage) -> dict[str, str]:
    """Return the columns that are named, by what they hold."""
    return stage.data.columns.model_dump(exclude_none=True)
