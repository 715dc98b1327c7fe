"""Rules between the stages of a job and its other sections: model, order of stages, where data comes from.

Pure: a rule looks at the job alone, never at files. Rules inside one stage are in ``stage_rules``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pydantic.alias_generators import to_camel

from bert_operator.api.rules import mounts
from bert_operator.api.rules.soundness import Soundness
from bert_operator.api.schema import presets
from bert_operator.api.schema.bert_pretrain_job import BertPretrainJob, JobSpec
from bert_operator.errors import ABSENT, Path, Problem, render_path, render_value


@dataclass(frozen=True, slots=True)
class JobRule:
    """A check, and the fields (paths below ``spec``) that have to be sound for it to make sense."""

    reads: tuple[Path, ...]
    check: Callable[[JobSpec], Iterator[Problem]]
    reads_kinds: bool = False
    """Whether every stage's kind has to be known."""


def model_has_sizes(spec: JobSpec) -> Iterator[Problem]:
    """Refuse a model of which a size is given neither by a preset nor by itself."""
    for name in presets.missing_sizes(spec.model):
        yield Problem(
            path=f"spec.model.{to_camel(name)}",
            got=ABSENT,
            allowed="a preset, or all of hiddenSize, numHiddenLayers, numAttentionHeads, intermediateSize",
            next_step="add the field, or preset: tiny | base | large | distilbert",
        )


def heads_divide_hidden_size(spec: JobSpec) -> Iterator[Problem]:
    """Refuse heads of unequal width."""
    if presets.missing_sizes(spec.model):
        return
    size = presets.resolve_size(spec.model)
    if size.hidden_size % size.num_attention_heads:
        yield Problem(
            path="spec.model.numAttentionHeads",
            got=str(size.num_attention_heads),
            allowed=f"a divisor of hiddenSize {size.hidden_size}",
            next_step="published models have hiddenSize = 64 x numAttentionHeads",
        )


def objective_fits_architecture(spec: JobSpec) -> Iterator[Problem]:
    """Refuse next-sentence prediction without a pooler."""
    if presets.resolve_architecture(spec.model) == "distilbert" and spec.model.objective == "mlm+nsp":
        yield Problem(
            path="spec.model.objective",
            got='"mlm+nsp"',
            allowed="mlm, since distilbert has no pooler to predict a next sentence from",
            next_step="leave the field out, or choose architecture: bert",
        )


def stage_names_differ(spec: JobSpec) -> Iterator[Problem]:
    """Refuse a name that stands twice; checkpoints and metrics are told apart by it."""
    seen: dict[str, int] = {}
    for number, stage in enumerate(spec.stages):
        if stage.name in seen:
            yield Problem(
                path=f"spec.stages[{number}].name",
                got=render_value(stage.name),
                allowed=f"a name that no other stage has; spec.stages[{seen[stage.name]}] has this one",
                next_step="rename one of them",
            )
        seen.setdefault(stage.name, number)


def prepare_comes_first(spec: JobSpec) -> Iterator[Problem]:
    """Refuse more than one prepare stage, or one after the start: a dataset is made once, before its use."""
    for number, stage in enumerate(spec.stages):
        if number and stage.prepare is not None:
            yield Problem(
                path=f"spec.stages[{number}].prepare",
                got=f"a prepare stage at position {number + 1}",
                allowed="one prepare stage at most, and only as the first stage",
                next_step="move it to the front; for two datasets write two jobs",
            )


def results_come_after_training(spec: JobSpec) -> Iterator[Problem]:
    """Refuse to evaluate or export before anything is trained."""
    trained = False
    for number, stage in enumerate(spec.stages):
        trained = trained or stage.pretrain is not None
        for kind in ("evaluate", "export"):
            if not trained and kind in stage.kinds:
                yield Problem(
                    path=f"spec.stages[{number}].{kind}",
                    got=f"{kind} before any pretrain stage",
                    allowed="only after a pretrain stage",
                    next_step="move it behind the pretrain stages, or add one",
                )


def prepare_has_a_reader(spec: JobSpec) -> Iterator[Problem]:
    """Refuse a prepare stage alone: the sequence lengths to make come from the stages that train."""
    prepares = [number for number, stage in enumerate(spec.stages) if stage.prepare is not None]
    if prepares and not any(stage.pretrain is not None for stage in spec.stages):
        yield Problem(
            path=f"spec.stages[{prepares[0]}].prepare",
            got="no pretrain stage in the job",
            allowed="a prepare stage together with pretrain stages, whose sequenceLength it makes data for",
            next_step="add the pretrain stages that the data is meant for",
        )


def data_has_a_source(spec: JobSpec) -> Iterator[Problem]:
    """Refuse stages whose data is neither made by this job nor named."""
    if spec.dataset.path is not None or any(stage.prepare is not None for stage in spec.stages):
        return
    without = [
        render_path(("spec", "stages", number, kind))
        for number, stage in enumerate(spec.stages)
        for kind, section in (("pretrain", stage.pretrain), ("evaluate", stage.evaluate))
        if section is not None and section.shards is None
    ]
    if without:
        yield Problem(
            path="spec.dataset.path",
            got=ABSENT,
            allowed=f"a folder, for the data of {' and '.join(without)}",
            next_step="name the dataset's folder, add a prepare stage, or give shards in every such stage",
        )
    elif spec.dataset.vocabulary_file is None:
        yield Problem(
            path="spec.dataset.vocabularyFile",
            got=ABSENT,
            allowed="the vocabulary that the shards were made with",
            next_step="name the file, or give dataset.path of a dataset that holds vocab.txt",
        )


def masks_are_somewhere(spec: JobSpec) -> Iterator[Problem]:
    """Refuse static masking of a dataset that this job makes without masks."""
    if not any(stage.prepare is not None and stage.prepare.masking == "dynamic" for stage in spec.stages):
        return
    for number, stage in enumerate(spec.stages):
        if stage.pretrain is not None and stage.pretrain.masking == "static" and stage.pretrain.shards is None:
            yield Problem(
                path=f"spec.stages[{number}].pretrain.masking",
                got="static",
                allowed="dynamic, since the prepare stage writes no masks into the files",
                next_step="write masking: dynamic here, or masking: static in the prepare stage",
            )


def vocabulary_has_one_source(spec: JobSpec) -> Iterator[Problem]:
    """Refuse a size for a vocabulary that is not trained."""
    for number, stage in enumerate(spec.stages):
        if stage.prepare is None or stage.prepare.vocabulary_size is None or spec.dataset.vocabulary_file is None:
            continue
        yield Problem(
            path=f"spec.stages[{number}].prepare.vocabularySize",
            got=f"{stage.prepare.vocabulary_size}, and dataset.vocabularyFile as well",
            allowed="one of the two: the file's vocabulary is used as it is",
            next_step="leave one of them out",
        )


def folders_differ(spec: JobSpec) -> Iterator[Problem]:
    """Refuse a dataset in the very folder of the results, which ``ifExists: New`` clears."""
    if spec.dataset.path is not None and spec.dataset.path.rstrip("/") == spec.output.path.rstrip("/"):
        yield Problem(
            path="spec.dataset.path",
            got=f"{render_value(spec.dataset.path)}, which is output.path",
            allowed="another folder, or one below output.path",
            next_step="leave the field out: the dataset then lies in data/ below output.path",
        )


def slots_fill_what_they_are_pinned_to(spec: JobSpec) -> Iterator[Problem]:
    """Refuse ranks that cannot be spread evenly over sockets or NUMA nodes."""
    name, places = {"socket": ("sockets", spec.cpu.sockets), "numa": ("numaNodes", spec.cpu.numa_nodes)}.get(
        spec.cpu.pinning, ("", None)
    )
    if places is not None and spec.ranks_per_worker % places:
        yield Problem(
            path="spec.slotsPerWorker",
            got=str(spec.slots_per_worker),
            allowed=f"a multiple of cpu.{name} {places}, since pinning: {spec.cpu.pinning} spreads ranks evenly",
            next_step=f"write slotsPerWorker: {places}, or choose another pinning",
        )


def ranks_are_counted_once(spec: JobSpec) -> Iterator[Problem]:
    """Refuse a number of ranks beside the wish to have them counted."""
    if spec.cpu.ranks_per_node is not None and spec.slots_per_worker != 1:
        yield Problem(
            path="spec.slotsPerWorker",
            got=str(spec.slots_per_worker),
            allowed="none with cpu.ranksPerNode: auto, which counts sockets or NUMA nodes",
            next_step="leave one of the two out",
        )


def precision_fits_the_device(spec: JobSpec) -> Iterator[Problem]:
    """Refuse what only processors have on GPUs; the reverse is seen at the start, on the machine."""
    resources = spec.worker.resources or spec.resources
    if spec.precision in ("bf32", "avx-fp32") and resources.accelerator is not None:
        yield Problem(
            path="spec.precision",
            got=render_value(spec.precision),
            allowed="tf32, bf16, fp16 or fp32 where the workers have GPUs",
            next_step="write tf32, which does on GPUs what bf32 does on Xeons, or leave the accelerator out",
        )


def exact_arithmetic_is_not_compressed(spec: JobSpec) -> Iterator[Problem]:
    """Refuse fp64, which is for exact comparisons, with sums in fp16."""
    if spec.precision == "fp64" and spec.reduction.compression != "none":
        yield Problem(
            path="spec.reduction.compression",
            got=render_value(spec.reduction.compression),
            allowed="none with precision fp64, which is for exact comparisons",
            next_step="leave it out, or choose another precision",
        )


def every_rank_has_a_device(spec: JobSpec) -> Iterator[Problem]:
    """Refuse ranks that would share a GPU."""
    for path, resources in (("resources", spec.resources), ("worker.resources", spec.worker.resources)):
        accelerator = None if resources is None else resources.accelerator
        if accelerator is not None and (accelerator.per_worker or spec.ranks_per_worker) < spec.ranks_per_worker:
            yield Problem(
                path=f"spec.{path}.accelerator.perWorker",
                got=str(accelerator.per_worker),
                allowed=f"at least slotsPerWorker {spec.ranks_per_worker}: every rank drives a device of its own",
                next_step="leave the field out for one device per slot",
            )


def profiled_stage_trains(spec: JobSpec) -> Iterator[Problem]:
    """Refuse to trace a stage that is not there or has no steps."""
    stage = None if spec.profile_steps is None else spec.profile_steps.stage
    trained = [entry.name for entry in spec.stages if entry.pretrain is not None]
    if stage is not None and stage not in trained:
        yield Problem(
            path="spec.profileSteps.stage",
            got=render_value(stage),
            allowed=f"the name of a pretrain stage: {', '.join(trained) or 'there is none'}",
            next_step="correct the name, or leave it out for every pretrain stage",
        )


def names_differ(spec: JobSpec) -> Iterator[Problem]:
    """Refuse variables and volumes that are named twice; of two values one would be lost."""
    named = {"env": [entry.name for entry in spec.env], "volumes": [entry.name for entry in spec.volumes]}
    for field, entries in named.items():
        seen: set[str] = set()
        for number, name in enumerate(entries):
            if name in seen:
                yield Problem(
                    path=f"spec.{field}[{number}].name",
                    got=render_value(name),
                    allowed="a name that no other entry has",
                    next_step="remove one of them",
                )
            seen.add(name)


def mounts_differ(spec: JobSpec) -> Iterator[Problem]:
    """Refuse two volumes in one place."""
    seen: dict[str, str] = {}
    for path, mount in mounts.list_mounts(spec):
        if mount in seen:
            yield Problem(
                path=f"spec.{path}.mountPath",
                got=render_value(mount),
                allowed=f"a folder of its own; spec.{seen[mount]} is mounted there",
                next_step="choose another folder",
            )
        seen.setdefault(mount, path)


_SIZES: tuple[Path, ...] = tuple(("model", to_camel(name)) for name in ("preset", *presets.SIZE_FIELDS))
_OBJECTIVE: tuple[Path, ...] = tuple(("model", name) for name in ("preset", "architecture", "objective"))
_FOLDERS: tuple[Path, ...] = (("dataset", "path"), ("output", "path"))

_VOLUMES: tuple[Path, ...] = (("dataset",), ("output",), ("workspace",), ("volumes",))

JOB_RULES: tuple[JobRule, ...] = (
    JobRule(_SIZES, model_has_sizes),  # makes sure there is a model at all
    JobRule(_SIZES, heads_divide_hidden_size),  # makes sure that heads have equal width
    JobRule(_OBJECTIVE, objective_fits_architecture),  # makes sure that every loss has a head
    JobRule((), stage_names_differ),  # makes sure that names tell stages apart
    JobRule((), prepare_comes_first),  # makes sure that data is there before its use
    JobRule((), results_come_after_training, reads_kinds=True),  # makes sure there is something to measure
    JobRule((), prepare_has_a_reader, reads_kinds=True),  # makes sure that lengths are known
    JobRule((("dataset",),), data_has_a_source, reads_kinds=True),  # makes sure there is data
    JobRule((("stages",),), masks_are_somewhere),  # makes sure that there is something to predict
    JobRule((("dataset",),), vocabulary_has_one_source),  # makes sure that one vocabulary is meant
    JobRule(_FOLDERS, folders_differ),  # makes sure that data outlives results
    JobRule((("cpu",), ("slotsPerWorker",)), slots_fill_what_they_are_pinned_to),  # makes sure of equal cores
    JobRule((("cpu",), ("slotsPerWorker",)), ranks_are_counted_once),  # makes sure that one number is meant
    JobRule((("precision",), ("reduction",)), exact_arithmetic_is_not_compressed),
    JobRule((("resources",), ("worker",), ("precision",)), precision_fits_the_device),  # makes sure it can compute
    JobRule((("resources",), ("worker",), ("slotsPerWorker",)), every_rank_has_a_device),  # makes sure no rank waits
    JobRule((("profileSteps",),), profiled_stage_trains, reads_kinds=True),  # makes sure that a trace is made
    JobRule((("env",), ("volumes",)), names_differ),  # makes sure that no value is lost
    JobRule(_VOLUMES, mounts_differ),  # makes sure that no volume hides another
)


def job_problems(job: BertPretrainJob, soundness: Soundness) -> Iterator[Problem]:
    """Yield what is wrong between sections, as far as they are the user's own."""
    kinds_are_known = soundness.is_there(("stages",)) and all(
        soundness.has_its_fields(("stages", number)) for number in range(len(job.spec.stages))
    )
    for rule in JOB_RULES:
        if all(soundness.is_whole(path) for path in rule.reads) and (kinds_are_known or not rule.reads_kinds):
            yield from rule.check(job.spec)
