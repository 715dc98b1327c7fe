"""A job at laptop size: every stage is kept and takes seconds, so that a job can be tried before it costs anything.

The user's document is changed, not the parsed job: what it leaves out still comes from defaults and from the cluster's
profile. Every change is recorded. Pure: what this machine has is asked of ``SmallJobTarget``.
"""

from __future__ import annotations

import copy
import posixpath
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from pydantic.alias_generators import to_camel

from bert_job import model as presets
from bert_job import optimizers
from bert_job.evaluation import DataRangeSpec, EvaluateSpec, EvaluationSpec
from bert_job.finetuning import FinetuneSpec, resolve_length
from bert_job.preparation import BUILTIN_TEXTS, PrepareSpec
from bert_job.pretraining import PretrainSpec
from bert_job.problems import ABSENT, Path, render_path, render_value
from bert_job.stages import Stage
from bert_job.tasks import OWN_TABLES
from bert_operator import names
from bert_operator.api.schema.bert_pretrain_job import BertPretrainJob, JobSpec

Document = dict[str, Any]

SUFFIX = "-small"
_STEPS = 4
"""Of a pretrain stage: enough for a warm-up, an evaluation and a checkpoint before the last step."""
_INTERVAL_STEPS = 2
_BATCH, _MICRO_BATCH, _EVALUATED_ROWS, _MAX_RANKS = 8, 2, 32, 2
_OFFICIAL_EPOCHS = 0.02
"""Of the official tasks: one step of the smallest, some hundred of the largest. Tables of one's own are read once."""
_VOCABULARY_SIZE = 2048
_SHARDS = 4
_HELD_OUT_FRACTION = 0.1
_MILLICORES, _MEMORY = 500, "3Gi"
"""Processors of a rank and memory of a pod: two workers and their launcher fit on a node with two cores and 8 GiB."""
_LAUNCHER = MappingProxyType({"cpu": "100m", "memory": "1Gi"})
_FABRICS = ("CUDA_", "FI_", "I_MPI_", "NCCL_", "OMPI_MCA_", "UCX_")
"""How variables begin that name devices and networks of a cluster's nodes."""
_PLACES = ("affinity", "nodeSelector", "runtimeClassName", "tolerations", "topologySpreadConstraints")
_EVERYWHERE = frozenset({"fp32", "avx-fp32", "fp64"})
"""Precisions that every processor has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallJobTarget:
    """Where the small job will run."""

    has_path: Callable[[str], bool]
    """Whether data of this path, as it stands in the job, may be read as it is."""
    in_cluster: bool
    """Whether a profile may fill in what the job leaves out."""
    precisions: frozenset[str] = frozenset()
    """What its processors have besides those that all have."""


@dataclass(frozen=True, slots=True)
class SmallJob:
    """The document of the small job, valid if the one that it was made from was, and one line for each change."""

    document: Document
    changes: tuple[str, ...]


def shrink(document: Document, job: BertPretrainJob, here: SmallJobTarget) -> SmallJob:
    """Return a job at laptop size.

    Args:
        document: As the user wrote it.
        job: The same, read; it may be completed by a profile.
        here: Where it is to run.
    """
    edit = _Edit({key: value for key, value in copy.deepcopy(document).items() if key != "status"})
    ranks = _shrink_world(edit, job.spec, here)
    _keep_optimizer(edit, job.spec)
    _shrink_model(edit, job.spec, here)
    builtin = not _has_data(edit, job.spec, here)
    has_weights = any(stage.pretrain for stage in job.spec.stages) or _loads_weights(edit)
    for number, stage in enumerate(job.spec.stages):
        part = _Part(edit, ("spec", "stages", number))
        if stage.prepare is not None:
            _shrink_preparation(_Part(edit, (*part.path, "prepare")), stage.prepare, here)
        elif stage.pretrain is not None:
            _shrink_pretraining(_Part(edit, (*part.path, "pretrain")), stage.pretrain, ranks)
        elif stage.evaluate is not None:
            _shrink_measured(_Part(edit, (*part.path, "evaluate")), stage.evaluate)
        elif stage.finetune is not None:
            section = _Part(edit, (*part.path, "finetune"))
            _shrink_finetuning(section, stage.finetune, ranks, has_weights=has_weights)
    _shrink_intervals(edit, job.spec)
    if job.spec.workspace is not None:
        edit.changes.append("spec.workspace: unchanged; how much of this your program follows is its own decision")
    _rename(edit, job)
    # Last: a stage that is put in front moves the others.
    if builtin:
        _read_builtin_text(edit, job.spec, here)
    return SmallJob(edit.document, tuple(edit.changes))


def missing_task_files(job: BertPretrainJob, has_path: Callable[[str], bool]) -> Iterator[tuple[str, str, str]]:
    """Yield path in the spec, file and task of fine-tuning files that do not exist; there is no substitute for them."""
    for number, stage in enumerate(job.spec.stages):
        if stage.finetune is None:
            continue
        for name in ("folder", "train", "validation", "test"):
            path = getattr(stage.finetune.data, name)
            if path is not None and not has_path(path):
                yield f"spec.stages[{number}].finetune.data.{name}", path, stage.finetune.task


def fetch_command(path: str, task: str) -> str:
    """Return the command that downloads an official task's files to where a job reads them.

    Args:
        path: The job's folder of the task, such as ``glue/CoLA``, or the folder above it.
        task: Its name.
    """
    collection, name = ("squad", "squad-v1.1") if task == "squad" else ("glue", f"glue-{task}")
    parts = posixpath.normpath(path).split("/")
    depth = next((at for at in (len(parts) - 1, len(parts) - 2) if at >= 0 and parts[at] == collection), None)
    # Into another folder the command alone cannot bring them.
    output = None if depth is None else "/".join(parts[:depth]) or ("/" if path.startswith("/") else ".")
    return f"bert-data fetch {name}" + (f" --output {output}" if output else f" and its folder as {path}")


@dataclass(slots=True)
class _Edit:
    """A document in change."""

    document: Document
    changes: list[str] = field(default_factory=list)

    def get(self, path: Path) -> Any:
        """Return the value at a path, None where nothing is."""
        value: Any = self.document
        for key in path:
            if isinstance(value, dict):
                value = value.get(key)
            elif isinstance(value, list) and isinstance(key, int) and key < len(value):
                value = value[key]
            else:
                return None
        return value

    def put(self, path: Path, value: Any, why: str = "") -> None:
        """Write a value, with the sections around it; None takes the field out."""
        before = self.get(path)
        if before == value:
            return
        holder: Any = self.document
        for key in path[:-1]:
            if isinstance(holder, dict) and holder.get(key) is None:
                holder[key] = {}
            holder = holder[key]
        if value is None:
            del holder[path[-1]]
        else:
            holder[path[-1]] = value
        shown = [ABSENT if item is None else render_value(item) for item in (before, value)]
        self.changes.append(f"{render_path(path)}: {' -> '.join(shown)}{f' ({why})' if why else ''}")

    def insert_stage(self, stage: Document, why: str) -> None:
        """Put a stage before all others."""
        self.document["spec"]["stages"].insert(0, stage)
        self.changes.append(f"spec.stages: {stage['name']} added in front, {render_value(stage['prepare'])} ({why})")


@dataclass(frozen=True, slots=True)
class _Part:
    """A section of a document in change."""

    edit: _Edit
    path: Path

    def get(self, *keys: str) -> Any:
        return self.edit.get((*self.path, *keys))

    def put(self, *keys: str, value: Any, why: str = "") -> None:
        self.edit.put((*self.path, *keys), value, why)

    def drop(self, *names: str, why: str = "") -> None:
        for name in names:
            self.put(name, value=None, why=why)

    def lower(self, *keys: str, to: int) -> None:
        """Lower a number that is there."""
        if isinstance(value := self.get(*keys), int):
            self.put(*keys, value=min(value, to))


def _loads_weights(edit: _Edit) -> bool:
    start = edit.get(("spec", "initialCheckpoint"))
    return start is not None and start.get("load") != "none"


def _shrink_world(edit: _Edit, spec: JobSpec, here: SmallJobTarget) -> int:
    """Leave two ranks at most, on processors alone and anywhere, and return their number."""
    part = _Part(edit, ("spec",))
    workers = min(spec.workers, _MAX_RANKS)
    # Left to a profile, slotsPerWorker is hardly 1.
    is_given = part.get("slotsPerWorker") is not None or part.get("cpu", "ranksPerNode") is not None
    slots = spec.ranks_per_worker if is_given or not (here.in_cluster and spec.profile) else _MAX_RANKS
    if is_given and spec.cpu.ranks_per_node is not None:
        slots = _MAX_RANKS
    slots = min(slots, _MAX_RANKS // workers)
    if part.get("workers") != workers and (part.get("workers") is not None or workers > 1):
        part.put("workers", value=workers)
    if here.in_cluster or part.get("slotsPerWorker") is not None or slots > 1:
        part.put("slotsPerWorker", value=slots)
    if spec.precision not in _EVERYWHERE | here.precisions:
        part.put("precision", value="fp32", why="the processors here have no more" if not here.in_cluster else "")
    part.drop("resources", "network")
    for name in _PLACES:
        part.put("scheduling", name, value=None)
        part.put("launcher", name, value=None)
        part.put("worker", name, value=None)
    if not here.in_cluster or workers == 1:
        part.put("launcher", "resources", value=None)
    if env := part.get("env"):
        part.put("env", value=[item for item in env if not str(item.get("name")).startswith(_FABRICS)])
    if not here.in_cluster:
        part.drop("cpu")
        part.put("worker", "resources", value=None)
        return workers * slots
    # Written even where the job says nothing, or a profile would fill in those of the job's real size. Sections of
    # profiles are merged field by field: devices of its worker.resources stay.
    part.put("cpu", value={"pinning": "none", "coresPerRank": 1})
    resources = {"cpu": f"{slots * _MILLICORES}m", "memory": _MEMORY}
    part.put("worker", "resources", value=resources, why="no devices, but for those of a profile's worker.resources")
    if workers > 1:
        part.put("launcher", "resources", value=dict(_LAUNCHER))
    if spec.mpi.implementation == "OpenMPI":
        others = [item for item in part.get("env") or [] if item.get("name") != "OMPI_MCA_pml"]
        why = "a profile may name network devices that these pods do not get"
        part.put("env", value=[*others, {"name": "OMPI_MCA_pml", "value": "ob1"}], why=why)
    return workers * slots


def _keep_optimizer(edit: _Edit, spec: JobSpec) -> None:
    """Name the optimizer where the small batches would have another one chosen."""
    batch, name = optimizers.largest_batch(spec), optimizers.optimizer_of(spec)
    if name != optimizers.choose_optimizer(min(batch, _BATCH)):
        edit.put(("spec", "optimizer", "name"), name, f"as with {batch} sequences per step")


def _shrink_model(edit: _Edit, spec: JobSpec, here: SmallJobTarget) -> None:
    model, part = spec.model, _Part(edit, ("spec", "model"))
    tiny = presets.PRESETS["tiny"]
    if model.config_file is None:
        size = presets.resolve_size(model)
        if size.hidden_size <= tiny.hidden_size and size.num_hidden_layers <= tiny.num_hidden_layers:
            _drop_weights(edit, spec, here, is_as_small=True)
            return
    architecture = presets.resolve_architecture(model)
    part.put("preset", value="tiny", why=f"{tiny.num_hidden_layers} layers x {tiny.hidden_size}")
    part.drop("configFile", *map(to_camel, presets.SIZE_FIELDS))
    part.put("architecture", value=None if architecture == "bert" else architecture)
    lengths = [stage.pretrain.sequence_length for stage in spec.stages if stage.pretrain is not None]
    lengths += [stage.evaluate.sequence_length or 0 for stage in spec.stages if stage.evaluate is not None]
    lengths += [
        resolve_length(stage.finetune, presets.resolve_positions(model))
        for stage in spec.stages
        if stage.finetune is not None
    ]
    of_architecture = presets.SETTINGS[architecture]["max_position_embeddings"]
    if max(lengths, default=0) > (model.max_position_embeddings or of_architecture):
        part.put("maxPositionEmbeddings", value=max(lengths))
    if model.config_file is not None and any(it.prepare and it.prepare.samples == "documents" for it in spec.stages):
        part.put("objective", value="mlm", why="documents have no next sentences")
    _drop_weights(edit, spec, here, is_as_small=False)


def _drop_weights(edit: _Edit, spec: JobSpec, here: SmallJobTarget, *, is_as_small: bool) -> None:
    """Start from random weights: those of the job have another size."""
    start = spec.initial_checkpoint
    if start is None:
        return
    if not here.has_path(start.path):
        edit.put(("spec", "initialCheckpoint"), None, "it is not here; training starts from random weights")
    elif not is_as_small and start.load != "none":
        why = "weights of another size; only read to see that it can be, training starts from random ones"
        edit.put(("spec", "initialCheckpoint", "load"), "none", why)


def _shrink_preparation(part: _Part, prepare: PrepareSpec, here: SmallJobTarget) -> None:
    part.put("text", value=BUILTIN_TEXTS[0], why="a small text; the job's own may take hours")
    part.drop("corpora")
    part.put("dupeFactor", value=1)
    if prepare.recipe == "mlperf":
        part.put("numBalancedShards", value=_SHARDS)
    if prepare.recipe is not None and prepare.num_shards is None:
        part.put("numShards", value=_SHARDS, why="not the hundreds of the recipe")
    part.lower("numShards", to=_SHARDS)
    part.lower("numProcesses", to=_MAX_RANKS)
    if here.in_cluster:
        part.put("numProcesses", value=_MAX_RANKS, why="not one for each core of a node")
    part.lower("workers", to=_MAX_RANKS)
    if 0 < prepare.held_out_fraction < _HELD_OUT_FRACTION:
        part.put("heldOutFraction", value=_HELD_OUT_FRACTION, why="less of a small text would be nothing")


def _shrink_pretraining(part: _Part, stage: PretrainSpec, ranks: int) -> None:
    batch = max(ranks, min(stage.global_batch_size, _BATCH))
    part.put("globalBatchSize", value=batch)
    part.lower("microBatchSize", to=min(batch, _MICRO_BATCH))
    if (stage.length.steps or _STEPS + 1) > _STEPS:
        part.put("length", value={"steps": _STEPS})
    part.lower("warmup", "steps", to=min(1, (stage.length.steps or _STEPS) - 1))
    _lower_checkpoint(_Part(part.edit, (*part.path, "checkpoint")))
    if stage.evaluation is not None:
        own = _Part(part.edit, (*part.path, "evaluation"))
        own.drop("everySamples", "everyEpochs", "startSteps", "startSamples", "startEpochs")
        own.put("everySteps", value=min(stage.evaluation.every_steps or _INTERVAL_STEPS, _INTERVAL_STEPS))
        _shrink_measured(own, stage.evaluation)


def _shrink_measured(part: _Part, measured: EvaluationSpec | EvaluateSpec) -> None:
    part.put("maxSamples", value=min(measured.max_samples or _EVALUATED_ROWS, _EVALUATED_ROWS))
    part.lower("microBatchSize", to=_BATCH)


def _shrink_finetuning(part: _Part, stage: FinetuneSpec, ranks: int, *, has_weights: bool) -> None:
    batch = max(ranks, min(stage.global_batch_size, _BATCH))
    part.put("globalBatchSize", value=batch)
    part.lower("microBatchSize", to=batch)
    epochs = min(stage.epochs, 1.0 if stage.task in OWN_TABLES else _OFFICIAL_EPOCHS)
    part.put("epochs", value=epochs)
    if stage.evaluate_every_epochs > epochs:
        part.put("evaluateEveryEpochs", value=epochs)
    part.lower("seeds", to=_MAX_RANKS)
    if stage.warmup.steps:
        part.put("warmup", value={"proportion": 0.1}, why="there may be fewer steps")
    if not has_weights and stage.start_from == "pretrained":
        part.put("startFrom", value="random", why="there are no weights of this size")


def _shrink_intervals(edit: _Edit, spec: JobSpec) -> None:
    part = _Part(edit, ("spec",))
    _lower_checkpoint(_Part(edit, ("spec", "checkpoint")))
    part.put("logging", "everySteps", value=1)
    if spec.profile_steps is not None:
        part.put("profileSteps", "first", value=min(spec.profile_steps.first, 2))
        part.put("profileSteps", "last", value=min(spec.profile_steps.last, 3))


def _lower_checkpoint(part: _Part) -> None:
    """Write checkpoints every few steps where they are written by steps or by sequences."""
    part.drop("minSamplesToStart")
    if part.get("everySamples") is not None or part.get("everySteps") is not None:
        part.drop("everySamples")
        part.put("everySteps", value=min(part.get("everySteps") or _INTERVAL_STEPS, _INTERVAL_STEPS))


def _has_data(edit: _Edit, spec: JobSpec, here: SmallJobTarget) -> bool:
    """Return whether everything is there that the stages read of a data set; a job that prepares its own has none."""
    if any(stage.prepare is not None for stage in spec.stages):
        return False
    read = [spec.dataset.vocabulary_file]
    for stage in spec.stages:
        measured = stage.evaluate if stage.pretrain is None else stage.pretrain.evaluation
        own = None if stage.pretrain is None else stage.pretrain.shards
        if stage.pretrain is not None:
            read.append(own or spec.dataset.path)
        if measured is not None:
            read.append(measured.shards or (own if measured.data_range is not None else None) or spec.dataset.path)
    if spec.dataset.vocabulary_file is None:
        start = edit.get(("spec", "initialCheckpoint", "path"))
        if spec.dataset.path is None and start is None:
            return False
        names = [f"{spec.dataset.path}/{name}" for name in ("tokenizer.json", "vocab.txt")]
        read.append(start if spec.dataset.path is None else next(filter(here.has_path, names), names[-1]))
    return all(here.has_path(path) for path in read if path is not None)


def _read_builtin_text(edit: _Edit, spec: JobSpec, here: SmallJobTarget) -> None:
    """Have the builtin text prepared in the lengths that the stages read, and let them read that."""
    text = "a small text"
    why = f"the data of this job is replaced by {text}"
    dataset = _Part(edit, ("spec", "dataset"))
    dataset.drop("path", why=why)
    has_vocabulary = spec.dataset.vocabulary_file is not None and here.has_path(spec.dataset.vocabulary_file)
    if not has_vocabulary:
        dataset.drop("vocabularyFile", why="it is not here; the text gets one of its own")
        dataset.drop("volume", why=why)
    trained = [stage.pretrain for stage in spec.stages if stage.pretrain is not None]
    lengths = {stage.sequence_length for stage in trained}
    is_measured = False
    for number, stage in enumerate(spec.stages):
        part = _Part(edit, ("spec", "stages", number))
        part.put("pretrain", "shards", value=None, why=why)
        if presets.resolve_objective(spec.model) != "mlm":
            part.put("pretrain", "crossDocumentAttention", value=None, why="the text is made into pairs")
        keys = ("evaluate",) if stage.pretrain is None else ("pretrain", "evaluation")
        measured = stage.evaluate if stage.pretrain is None else stage.pretrain.evaluation
        if measured is None:
            continue
        own = _Part(edit, (*part.path, *keys))
        own.drop("shards", why=why)
        own.drop("maxPredictionsPerSequence", why=f"that of the stage, for which there is {text}")
        if isinstance(measured, EvaluateSpec) and measured.sequence_length not in lengths:
            own.drop("sequenceLength", why=f"that of a pretrain stage, for which there is {text}")
        if measured.data_range is not None and any(_overlap(measured.data_range, it.data_range) for it in trained):
            own.drop("dataRange", why="the stages read one text, and train on this part of it")
        is_measured = is_measured or own.get("dataRange") is None
    if all(stage.prepare is None for stage in spec.stages):
        prepare = _prepared_text(spec, here, has_vocabulary=has_vocabulary)
        edit.insert_stage({"name": _free_name(spec.stages), "prepare": prepare}, why)
        return
    first = _Part(edit, ("spec", "stages", 0, "prepare"))
    if is_measured and first.get("heldOutFraction") == 0:
        first.put("heldOutFraction", value=_HELD_OUT_FRACTION, why="stages measure on held-out documents")
    if not has_vocabulary:
        first.put("vocabularySize", value=min(first.get("vocabularySize") or _VOCABULARY_SIZE, _VOCABULARY_SIZE))


def _prepared_text(spec: JobSpec, here: SmallJobTarget, *, has_vocabulary: bool) -> Document:
    """Return a prepare stage of the builtin text for a job whose data lies elsewhere."""
    prepare: Document = {"text": BUILTIN_TEXTS[0], "dupeFactor": 1}
    if here.in_cluster:
        prepare["numProcesses"] = _MAX_RANKS
    if not has_vocabulary:
        prepare["vocabularySize"] = _VOCABULARY_SIZE
        if (spec.dataset.vocabulary_file or "").endswith(".json"):
            prepare["tokenizer"] = "byte-bpe"
    trained = [stage.pretrain for stage in spec.stages if stage.pretrain is not None]
    if trained and all(stage.masking == "dynamic" for stage in trained):
        prepare["masking"] = "dynamic"
    if presets.resolve_objective(spec.model) == "mlm" and _reads_documents(spec):
        prepare["samples"] = "documents"
    return prepare


def _reads_documents(spec: JobSpec) -> bool:
    """Guess what shards elsewhere hold: no job says it but by attending across them."""
    stages = [stage.pretrain for stage in spec.stages if stage.pretrain is not None]
    return presets.resolve_architecture(spec.model) == "modernbert" or any(it.cross_document_attention for it in stages)


def _overlap(one: DataRangeSpec, other: DataRangeSpec) -> bool:
    return one.start < other.end and other.start < one.end


def _free_name(stages: tuple[Stage, ...]) -> str:
    taken = {stage.name for stage in stages}
    return next(name for name in ("prepare", *(f"prepare-{number}" for number in range(99))) if name not in taken)


def _rename(edit: _Edit, job: BertPretrainJob) -> None:
    """Give the job a name and a folder of its own, so that it never meets the real one's results."""
    name = job.metadata.name[: names.MAX_JOB_NAME - len(SUFFIX)].rstrip("-")
    edit.put(("metadata", "name"), f"{name}{SUFFIX}")
    path = job.spec.output.path.rstrip("/")
    # Of "." and ".." the parent is not meant: a folder in it is.
    is_special = posixpath.basename(path) in ("", ".", "..")
    edit.put(("spec", "output", "path"), f"{path}/{SUFFIX[1:]}" if is_special else f"{path}{SUFFIX}")
    edit.put(("spec", "output", "ifExists"), "New", "tried again, it starts over")
