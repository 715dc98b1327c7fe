"""The rules of ``job_rules`` and ``stage_rules`` in CEL, so that ``kubectl apply`` refuses what they refuse.

CEL sees one object and no loop variable, so a few rules stay with the controller: they are listed in
``CONTROLLER_ONLY``. tests/api_server holds this page and the Python rules together on generated documents.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from bert_operator.api.rules import mounts
from bert_operator.api.schema import presets
from bert_operator.api.schema.bert_pretrain_job import (
    DataRangeSpec,
    JobSpec,
    LengthSpec,
    ModelSpec,
    PretrainSpec,
    Stage,
    WarmupSpec,
)
from bert_operator.api.schema.section import Section


@dataclass(frozen=True, slots=True)
class CelRule:
    """One expression over ``self`` that must be true, and the sentence for where it is not."""

    expression: str
    message: str
    field: str = ""
    """Path below ``self`` of the field to blame, which the server puts before the message; empty: ``self``."""
    reason: Literal["", "FieldValueForbidden"] = ""
    """The server's word for the kind of mistake; empty: that the value is invalid."""


CONTROLLER_ONLY = (
    "predictions_fit_sequence, for an evaluate stage that takes its length from an earlier stage",
    "slots_fill_what_they_are_pinned_to, for a job without slotsPerWorker, which its profile may fill in",
    "what pinning and huge pages need beside them, which the profile may have",
)
"""Rules that CEL cannot say at a bearable cost, or cannot judge; breaking them ends in the condition Invalid."""

MUTABLE = ("runPolicy",)
"""Fields of the spec that may change once the job has started."""


def _table(field: str) -> str:
    sizes = ", ".join(f"'{name}': {getattr(size, field)}" for name, size in presets.PRESETS.items())
    return f"{{{sizes}}}"


def _size(name: str, field: str) -> str:
    return f"(has(self.{name}) ? self.{name} : {_table(field)}[self.preset])"


_DISTILBERT = (
    "(has(self.architecture) ? self.architecture == 'distilbert' : (has(self.preset) && self.preset == 'distilbert'))"
)
_ALL_SIZES = (
    "has(self.preset) || (has(self.hiddenSize) && has(self.numHiddenLayers) && "
    "has(self.numAttentionHeads) && has(self.intermediateSize))"
)
_WITHOUT_SLASHES = "find('(?s)^.*[^/]')"  # closing ones; file names may hold line breaks


_PREPARED = "self.stages.exists(stage, has(stage.prepare))"
_DATA_IS_NAMED = (
    f"(has(self.dataset) && has(self.dataset.path)) || {_PREPARED} || "
    "!self.stages.exists(stage, (has(stage.pretrain) && !has(stage.pretrain.shards)) || "
    "(has(stage.evaluate) && !has(stage.evaluate.shards)))"
)
_DATASET_MOUNT = (
    "(has(self.dataset) && has(self.dataset.volume) ? "
    f"(has(self.dataset.volume.mountPath) ? self.dataset.volume.mountPath : '{mounts.DATASET_MOUNT}') : 'no dataset')"
)
_OUTPUT_MOUNT = (
    "(has(self.output.volume) ? "
    f"(has(self.output.volume.mountPath) ? self.output.volume.mountPath : '{mounts.OUTPUT_MOUNT}') : 'no output')"
)
_WORKSPACE_MOUNT = (
    "(has(self.workspace) ? (has(self.workspace.volume.mountPath) ? "
    f"self.workspace.volume.mountPath : '{mounts.WORKSPACE_MOUNT}') : 'no workspace')"
)


def _cpu(field: str) -> str:
    return f"(has(self.cpu) && has(self.cpu.{field}))"


def _pinned(place: str) -> str:
    return f"({_cpu('pinning')} && self.cpu.pinning == '{place}')"


# Fields that a profile may fill in have no defaults in the API server (profiles).
_SLOTS = (
    f"({_cpu('ranksPerNode')} ? ({_pinned('numa')} ? ({_cpu('numaNodes')} ? self.cpu.numaNodes : 1) : "
    f"({_cpu('sockets')} ? self.cpu.sockets : 1)) : (has(self.slotsPerWorker) ? self.slotsPerWorker : 1))"
)


def _slots_fill(places: str, place: str) -> str:
    """Return the rule for ranks pinned to a place, where the job itself says how many there are of both."""
    slots_are_known = f"({_cpu('ranksPerNode')} || has(self.slotsPerWorker))"
    return f"!({_pinned(place)} && {_cpu(places)} && {slots_are_known}) || {_SLOTS} % self.cpu.{places} == 0"


_HAS_DEVICES = (
    "has(self.worker) && has(self.worker.resources) ? has(self.worker.resources.accelerator) : "
    "has(self.resources) && has(self.resources.accelerator)"
)


def _device_for_every_rank(*resources: str) -> CelRule:
    sections = (*resources, "accelerator", "perWorker")
    given = [f"has({'.'.join(sections[:end])})" for end in range(2, len(sections) + 1)]
    devices = ".".join(sections)
    return CelRule(
        f"!({' && '.join(given)}) || {devices} >= {_SLOTS}",
        "allowed: at least slotsPerWorker, since every rank drives a device of its own; "
        "next: leave the field out for one device per slot",
        devices.removeprefix("self."),
    )


_OWN_FOLDER = "allowed: a folder of its own for every volume; next: choose another folder"

CEL_RULES: Mapping[type[Section], tuple[CelRule, ...]] = MappingProxyType(
    {
        ModelSpec: (
            CelRule(
                _ALL_SIZES,
                "allowed: a preset, or all of hiddenSize, numHiddenLayers, numAttentionHeads, intermediateSize; "
                "next: add the missing sizes, or preset: tiny | base | large | distilbert",
            ),
            CelRule(
                f"!({_ALL_SIZES}) || {_size('hiddenSize', 'hidden_size')} % "
                f"{_size('numAttentionHeads', 'num_attention_heads')} == 0",
                "allowed: a divisor of hiddenSize; next: published models have hiddenSize = 64 x numAttentionHeads",
                "numAttentionHeads",
            ),
            CelRule(
                f"!({_DISTILBERT} && has(self.objective) && self.objective == 'mlm+nsp')",
                "allowed: mlm, since distilbert has no pooler to predict a next sentence from; "
                "next: leave the field out, or choose architecture: bert",
                "objective",
            ),
        ),
        Stage: (
            CelRule(
                "[has(self.prepare), has(self.pretrain), has(self.evaluate), has(self.export)].exists_one(is, is)",
                "allowed: exactly one of prepare, pretrain, evaluate, export beside the name; "
                "next: write one stage for each",
            ),
        ),
        PretrainSpec: (
            CelRule(
                "!has(self.microBatchSize) || type(self.microBatchSize) == string || "
                "self.microBatchSize <= self.globalBatchSize",
                "allowed: at most globalBatchSize; next: globalBatchSize counts all ranks and passes; "
                "microBatchSize is one pass on one rank",
                "microBatchSize",
            ),
            CelRule(
                "!has(self.microBatchSize) || type(self.microBatchSize) == int || self.lossNormalization == 'global'",
                "allowed: a number with lossNormalization: microBatchMean, whose result depends on it; "
                "next: write the number, or lossNormalization: global",
                "microBatchSize",
            ),
            CelRule(
                "!has(self.maxPredictionsPerSequence) || self.maxPredictionsPerSequence <= self.sequenceLength - 3",
                "allowed: at most sequenceLength less [CLS] and two [SEP]; "
                "next: leave the field out for 15 % of the length",
                "maxPredictionsPerSequence",
            ),
            CelRule(
                "!has(self.warmup.steps) || (!has(self.length.steps) || self.warmup.steps < self.length.steps) && "
                "(!has(self.length.samples) || has(self.length.steps) || self.warmup.steps < "
                "(self.length.samples + self.globalBatchSize - 1) / self.globalBatchSize)",
                "allowed: less than the stage's steps; next: shorten it, or write warmup: {proportion: 0.1}",
                "warmup.steps",
            ),
        ),
        LengthSpec: (
            CelRule(
                "[has(self.steps), has(self.epochs), has(self.samples)].exists_one(is, is)",
                "allowed: exactly one of steps, epochs, samples; next: remove all but one",
            ),
        ),
        WarmupSpec: (
            CelRule(
                "has(self.steps) != has(self.proportion)",
                "allowed: exactly one of steps, proportion; next: remove all but one",
            ),
        ),
        DataRangeSpec: (
            CelRule(
                "self.start < self.end",
                "allowed: a start below the end, both as shares from 0 to 1; next: leave the field out for all samples",
            ),
        ),
        JobSpec: (
            CelRule(
                "self.stages.filter(stage, has(stage.prepare)).size() <= "
                "(self.stages.size() > 0 && has(self.stages[0].prepare) ? 1 : 0)",
                "allowed: one prepare stage at most, and only as the first stage; "
                "next: move it to the front; for two datasets write two jobs",
                "stages",
            ),
            CelRule(
                "self.stages.filter(stage, !has(stage.prepare)).size() == 0 || "
                "!self.stages.exists(stage, has(stage.evaluate) || has(stage.export)) || "
                "has(self.stages.filter(stage, !has(stage.prepare))[0].pretrain)",
                "allowed: evaluate and export only after a pretrain stage; next: move them behind it",
                "stages",
            ),
            CelRule(
                f"!{_PREPARED} || self.stages.exists(stage, has(stage.pretrain))",
                "allowed: a prepare stage together with pretrain stages, whose sequenceLength it makes data "
                "for; next: add the pretrain stages that the data is meant for",
                "stages",
            ),
            CelRule(
                _DATA_IS_NAMED,
                "allowed: a folder; next: name the dataset's folder, add a prepare stage, or give shards "
                "in every stage that reads data",
                "dataset.path",
            ),
            CelRule(
                f"!({_DATA_IS_NAMED}) || {_PREPARED} || "
                "(has(self.dataset) && (has(self.dataset.path) || has(self.dataset.vocabularyFile)))",
                "allowed: the vocabulary that the shards were made with; "
                "next: name the file, or give dataset.path of a dataset that holds vocab.txt",
                "dataset.vocabularyFile",
            ),
            CelRule(
                "!self.stages.exists(stage, has(stage.prepare) && stage.prepare.masking == 'dynamic') || "
                "self.stages.all(stage, !has(stage.pretrain) || stage.pretrain.masking == 'dynamic' || "
                "has(stage.pretrain.shards))",
                "stages[].pretrain.masking: allowed: dynamic, since the prepare stage writes no masks into the files; "
                "next: write masking: dynamic there, or masking: static in the prepare stage",
            ),
            CelRule(
                "!(has(self.dataset) && has(self.dataset.vocabularyFile)) || "
                "!self.stages.exists(stage, has(stage.prepare) && has(stage.prepare.vocabularySize))",
                "stages[].prepare.vocabularySize: allowed: this or dataset.vocabularyFile, whose vocabulary is used as "
                "it is; next: leave one of them out",
            ),
            CelRule(
                "!(has(self.dataset) && has(self.dataset.path)) || "
                f"self.dataset.path.{_WITHOUT_SLASHES} != self.output.path.{_WITHOUT_SLASHES}",
                "allowed: another folder than output.path, or one below it; next: leave the field out: "
                "the dataset then lies in data/ below output.path",
                "dataset.path",
            ),
            CelRule(
                "self.stages.all(stage, (!has(stage.pretrain) || "
                "stage.pretrain.sequenceLength <= self.model.maxPositionEmbeddings) && (!has(stage.evaluate) || "
                "!has(stage.evaluate.sequenceLength) || "
                "stage.evaluate.sequenceLength <= self.model.maxPositionEmbeddings))",
                "stages[].sequenceLength: allowed: at most model.maxPositionEmbeddings; "
                "next: shorten the sequences or raise model.maxPositionEmbeddings",
            ),
            CelRule(
                "self.stages.all(stage, !has(stage.evaluate) || !has(stage.evaluate.sequenceLength) || "
                "!has(stage.evaluate.maxPredictionsPerSequence) || "
                "stage.evaluate.maxPredictionsPerSequence <= stage.evaluate.sequenceLength - 3)",
                "stages[].evaluate.maxPredictionsPerSequence: allowed: at most sequenceLength less [CLS] and two "
                "[SEP]; next: leave the field out for 15 % of the length",
            ),
            CelRule(
                "self.stages.all(stage, !has(stage.pretrain) || "
                f"stage.pretrain.globalBatchSize >= self.workers * {_SLOTS})",
                "stages[].pretrain.globalBatchSize: allowed: at least one sequence for each of workers x "
                "slotsPerWorker ranks; next: it counts all ranks: multiply it by their number if it was meant for one",
            ),
            CelRule(
                _slots_fill("sockets", "socket"),
                "allowed: a multiple of cpu.sockets with pinning: socket; "
                "next: write slotsPerWorker as the number of sockets, or choose another pinning",
                "slotsPerWorker",
            ),
            CelRule(
                _slots_fill("numaNodes", "numa"),
                "allowed: a multiple of cpu.numaNodes with pinning: numa; "
                "next: write slotsPerWorker as the number of NUMA nodes, or choose another pinning",
                "slotsPerWorker",
            ),
            CelRule(
                f"!{_cpu('ranksPerNode')} || !has(self.slotsPerWorker) || self.slotsPerWorker == 1",
                "allowed: none with cpu.ranksPerNode: auto, which counts sockets or NUMA nodes; "
                "next: leave one of the two out",
                "slotsPerWorker",
            ),
            CelRule(
                f"!(self.precision in ['bf32', 'avx-fp32']) || !({_HAS_DEVICES})",
                "allowed: tf32, bf16, fp16 or fp32 where the workers have GPUs; "
                "next: write tf32, which does on GPUs what bf32 does on Xeons, or leave the accelerator out",
                "precision",
            ),
            CelRule(
                "!has(self.profileSteps) || !has(self.profileSteps.stage) || self.stages.exists(stage, "
                "has(stage.pretrain) && stage.name == self.profileSteps.stage)",
                "allowed: the name of a pretrain stage; next: correct it, or leave it out for every pretrain stage",
                "profileSteps.stage",
            ),
            CelRule(
                "self.precision != 'fp64' || self.reduction.compression == 'none'",
                "allowed: none with precision fp64, which is for exact comparisons; "
                "next: leave it out, or choose another precision",
                "reduction",
            ),
            _device_for_every_rank("self", "resources"),
            _device_for_every_rank("self", "worker", "resources"),
            CelRule(
                f"{_DATASET_MOUNT} != {_OUTPUT_MOUNT} && {_DATASET_MOUNT} != {_WORKSPACE_MOUNT} && "
                f"{_OUTPUT_MOUNT} != {_WORKSPACE_MOUNT}",
                f"mountPath of dataset, output and workspace: {_OWN_FOLDER}",
            ),
            CelRule(
                "!has(self.volumes) || !self.volumes.exists(entry, has(entry.source.mountPath) && "
                f"entry.source.mountPath in [{_DATASET_MOUNT}, {_OUTPUT_MOUNT}, {_WORKSPACE_MOUNT}])",
                f"volumes[].source.mountPath: {_OWN_FOLDER}",
            ),
            CelRule(
                "!has(self.volumes) || self.volumes.all(entry, !has(entry.source.mountPath) || "
                "self.volumes.exists_one(other, has(other.source.mountPath) && "
                "other.source.mountPath == entry.source.mountPath))",
                f"volumes[].source.mountPath: {_OWN_FOLDER}",
            ),
        ),
    }
)


def immutability_rules() -> tuple[CelRule, ...]:
    """Return one rule per field of the spec that must not change once the job has started; at the root."""
    fields = [field.alias or name for name, field in JobSpec.model_fields.items()]
    started = "has(oldSelf.status) && has(oldSelf.status.attempt) && oldSelf.status.attempt > 0"
    # Lists whose entries have names are equal in any order, but stages are done in theirs.
    same_order = "self.spec.stages.map(stage, stage.name) == oldSelf.spec.stages.map(stage, stage.name)"
    return tuple(
        CelRule(
            f"!({started}) || (has(self.spec.{name}) == has(oldSelf.spec.{name}) && "
            f"(!has(self.spec.{name}) || self.spec.{name} == oldSelf.spec.{name}))"
            + (f" && {same_order}" if name == "stages" else ""),
            "allowed: the value that the job was started with; next: change runPolicy only, or delete the job and "
            "create another one",
            f"spec.{name}",
            "FieldValueForbidden",
        )
        for name in fields
        if name not in MUTABLE
    )
