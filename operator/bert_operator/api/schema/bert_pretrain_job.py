"""``BertPretrainJob`` as the user writes it: fields, units, defaults and the reason for each default.

The only source of the schema, the definition and the reference page: the docstring of a field is what users read in
docs/reference/job.md and in ``kubectl explain``. Rules between fields are in ``rules``; what an empty field becomes for
a run is in ``render.run_config``. Field names are camelCase in YAML and snake_case here.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field

from bert_operator import names
from bert_operator.api.schema.checkpoints import CheckpointSpec, StageCheckpointSpec
from bert_operator.api.schema.cluster import (
    CpuSpec,
    EnvironmentSource,
    EnvironmentVariable,
    ImagePullSecret,
    ImageReference,
    MpiSpec,
    NetworkSpec,
    ProxySpec,
    PullPolicy,
    ResourcesSpec,
    RoleSpec,
    SchedulingSpec,
    SecurityContextSpec,
    VolumeSource,
    VolumeSpec,
    WorkspaceSpec,
)
from bert_operator.api.schema.evaluation import DataRangeSpec, EvaluateSpec, EvaluationSpec, TargetSpec
from bert_operator.api.schema.finetuning import FinetuneSpec
from bert_operator.api.schema.health import HealthSpec
from bert_operator.api.schema.optimization import OptimizerSpec, ReductionSpec, WarmupSpec
from bert_operator.api.schema.preparation import PrepareSpec
from bert_operator.api.schema.scheduling import LabeledName
from bert_operator.api.schema.section import (
    NAME_PATTERN,
    Count,
    FilePath,
    Name,
    PositiveFloat,
    Rows,
    RowsOrAuto,
    Section,
    Seed,
    Share,
    Tokens,
)

StageKind = Literal["prepare", "pretrain", "evaluate", "finetune", "export"]
STAGE_KINDS: tuple[StageKind, ...] = ("prepare", "pretrain", "evaluate", "finetune", "export")


class Metadata(Section):
    """The part of Kubernetes' object metadata that the operator reads; the rest is ignored."""

    model_config = ConfigDict(extra="ignore")

    name: Annotated[str, Field(min_length=1, max_length=names.MAX_JOB_NAME, pattern=NAME_PATTERN)]
    """Name of the job. At most 45 characters, so that the host names made from it stay within 63."""
    namespace: Annotated[str, Field(min_length=1, max_length=63)] = "default"
    """Kubernetes namespace; outside a cluster only a label. Default: ``default``, like kubectl."""
    uid: Annotated[str, Field(max_length=64)] | None = None
    """Unique identity of this object; set by the API server, empty without a cluster."""
    generation: int | None = None
    """Counts changes of the spec; set by the API server, empty without a cluster."""


class ModelSpec(Section):
    """BERT's dimensions: a preset, all four sizes, or a file; any further field overrides the preset."""

    preset: Literal["tiny", "base", "large", "distilbert"] | None = None
    """Sizes by name: tiny 2 layers x 128, base 12 x 768, large 24 x 1024, distilbert 6 x 768 with masked LM
    only. Empty: the four sizes below are all required, or configFile."""
    config_file: FilePath | None = None
    """A bert_config.json (Google, NVIDIA, MLPerf) or config.json (Hugging Face) that describes the model, in place of
    preset, architecture, sizes, activation, dropout and initializerRange. A relative path is relative to the same
    folder as dataset.path. Read once when the run starts: later changes to the file do not affect it. Empty: this
    section defines the model."""
    architecture: Literal["bert", "distilbert"] | None = None
    """``distilbert`` has no segment embeddings and no pooler. Empty: the preset's, else ``bert``."""
    hidden_size: Annotated[int, Field(ge=8, le=16384)] | None = None
    """Size of the hidden states, a multiple of numAttentionHeads. Empty: the preset's."""
    num_hidden_layers: Annotated[int, Field(ge=1, le=256)] | None = None
    """Transformer layers. Empty: the preset's."""
    num_attention_heads: Annotated[int, Field(ge=1, le=256)] | None = None
    """Attention heads per layer. Empty: the preset's."""
    intermediate_size: Annotated[int, Field(ge=8, le=65536)] | None = None
    """Size of the feed-forward layer, usually 4 x hiddenSize. Empty: the preset's."""
    max_position_embeddings: Tokens = 512
    """Longest sequence that the position embeddings allow, in tokens. Default: 512, as published."""
    hidden_activation: Literal["gelu", "gelu_new"] = "gelu"
    """``gelu``: with the error function, as published; ``gelu_new``: its tanh approximation."""
    hidden_dropout: Share = 0.1
    """Dropout probability of the hidden states. Default: 0.1, as published."""
    attention_dropout: Share = 0.1
    """Dropout probability of the attention probabilities. Default: 0.1, as published."""
    initializer_range: Annotated[float, Field(gt=0, le=1)] = 0.02
    """Standard deviation of the initial weights. Default: 0.02, as published."""
    layer_norm_epsilon: Annotated[float, Field(gt=0, le=1e-2)] = 1e-12
    """Added to the variance in LayerNorm. Default: 1e-12, as published."""
    objective: Literal["mlm+nsp", "mlm"] | None = None
    """Masked LM with or without next-sentence prediction. Empty: ``mlm`` for distilbert, which has no pooler
    for the NSP head, ``mlm+nsp`` otherwise, as published."""
    vocabulary_pad_multiple: Annotated[int, Field(ge=1, le=1024)] = 8
    """The vocabulary is padded to a multiple of this for faster matrix products; padding entries are never predicted.
    Default: 8, as tensor cores ask for."""


class DatasetSpec(Section):
    """Location of the shards: a prepare stage writes them, training reads them."""

    path: FilePath | None = None
    """Root folder. A relative path is relative to the folder in which the command runs, in a cluster to the mount of
    this section's volume; ``.`` is that folder itself. Empty: ``data`` in the output folder, where a prepare stage
    writes it. Without a prepare stage it is required, unless every stage that reads data names shards. Set it to share
    one dataset between jobs."""
    vocabulary_file: FilePath | None = None
    """An existing WordPiece vocabulary, one token per line. Empty: ``vocab.txt`` in the dataset's folder; for a job
    that only fine-tunes an initialCheckpoint, without dataset.path, ``vocab.txt`` beside that."""
    volume: VolumeSource | None = None
    """In a cluster: the volume to mount, read-only while training; relative paths of this section, of text and of
    shards are relative to its mount. Empty: the output's volume."""
    on_unreadable_shard: Literal["Stop", "Skip"] | None = None
    """What to do about a shard that is damaged, missing or has changed since the run began. ``Stop``, the default: the
    job fails and names it. ``Skip``: training continues without it, reports that in log and metrics, and still leaves
    it out after a restart."""


class LengthSpec(Section):
    """How long a stage trains; exactly one field is set."""

    steps: Count | None = None
    """Optimizer steps."""
    epochs: PositiveFloat | None = None
    """Passes over the stage's samples; fractions are allowed."""
    samples: Annotated[int, Field(ge=1, le=2**53)] | None = None
    """Sequences over all ranks, rounded up to whole steps."""


class PretrainSpec(Section):
    """One phase of pretraining at one sequence length; the next phase continues from its weights."""

    sequence_length: Tokens
    """Tokens per sequence, [CLS] and both [SEP] included. Published: 128 first, then 512."""
    max_predictions_per_sequence: Annotated[int, Field(ge=1, le=4096)] | None = None
    """Maximum number of masked tokens per sequence. Empty: that of the recipe by which this job prepares the shards, 76
    for mlperf; else 15 % of sequenceLength, rounded up to a multiple of 4, which gives the published 20 at 128 and 80
    at 512."""
    global_batch_size: Rows
    """Sequences per optimizer step over all ranks and gradient accumulation. The ``train_batch_size`` of the
    original scripts is per GPU, before it is divided by the accumulation steps: multiply it by the number of GPUs."""
    micro_batch_size: RowsOrAuto | None = None
    """Maximum number of sequences in one forward and backward pass on one rank; the number of gradient accumulation
    steps follows from it. ``auto``: at the first start rank 0 tries sizes for some seconds and takes a fast one that
    fits. Empty: as many sequences as 4096 tokens hold (32 of 128, 8 of 512), which suits CPUs and small GPUs. It
    affects memory and speed; the result, up to rounding, only with lossNormalization: microBatchMean, which excludes
    auto."""
    learning_rate: Annotated[float, Field(gt=0, le=1)]
    """Peak learning rate, reached at the end of the warm-up."""
    warmup: WarmupSpec = WarmupSpec(proportion=0.1)
    """Learning rate warm-up. Default: the first tenth of the steps, since BERT diverges without warm-up."""
    decay: Literal["poly", "linear", "constant"] = "poly"
    """``poly``: proportional to the square root of the remaining steps (NVIDIA); ``linear``: proportional to the
    remaining steps (Google, MLPerf); ``constant``: no decay."""
    after_warmup: Literal["published", "continuous"] = "published"
    """``published``: decay counts from step 0, so the rate drops at the end of the warm-up, as in the original
    scripts; ``continuous``: decay counts from the end of the warm-up."""
    length: LengthSpec
    """How long this stage trains."""
    optimizer_state: Literal["keep", "keepWithStepCount", "reset"] | None = None
    """What to do with the previous stage's optimizer state. ``keep``: keep the moments, while bias correction counts
    steps from 0, as in NVIDIA's trainer; ``keepWithStepCount``: keep the moments and the step count; ``reset``:
    neither. The schedule starts at 0 either way. Empty: ``keepWithStepCount`` with AdamW, whose updates would otherwise
    be 0.15 of their size at step 10, a second warm-up; ``keep`` with LAMB, whose trust ratio makes up for most of
    that."""
    loss_normalization: Literal["global", "microBatchMean"] = "global"
    """``global``: over the step's masked tokens on all ranks, so that the result does not depend on the number of ranks
    or the micro-batch size; ``microBatchMean``: the mean of the micro-batches' means, as in the original scripts."""
    masking: Literal["static", "dynamic"] = "static"
    """``static``: the masks in the files, the same in every epoch; ``dynamic``: drawn anew in every epoch when samples
    are read (Liu et al. 2019), identical for any number of ranks and after a restart."""
    masked_lm_probability: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Fraction of the tokens that are predicted; for dynamic masking only. Empty: 0.15, as published."""
    whole_word_masking: bool | None = None
    """Mask all pieces of a word or none; for dynamic masking only. Empty: false."""
    shards: FilePath | None = None
    """Folder with existing shards. Empty: the folder of this sequence length in the dataset."""
    data_range: DataRangeSpec = DataRangeSpec()
    """The part of the samples to train on. Default: all."""
    evaluation: EvaluationSpec | None = None
    """Evaluate the model while this stage trains. Empty: only evaluate stages evaluate it."""
    target: TargetSpec | None = None
    """End the stage when an evaluation reaches this accuracy; only with evaluation. Empty: train for the stage's
    length."""
    checkpoint: StageCheckpointSpec | None = None
    """When checkpoints are written in this stage. Empty: spec.checkpoint applies."""


class ExportSpec(Section):
    """Export the newest model, of the last pretrain or finetune stage before, in a format that other programs load."""

    format: Literal["huggingface", "onnx", "tensorflow"] = "huggingface"
    """``huggingface``: a folder for ``AutoModel.from_pretrained``, with the tokenizer; ``onnx``: a graph for ONNX
    Runtime and others, fp32, on padded rows of any length, with settings and tokenizer; ``tensorflow``: a checkpoint
    with the names of Google's TensorFlow 1 code. Each is written with a model card to ``export/<format>`` in the output
    folder, or to ``export/<format>-<stage>`` where a later stage has the same format."""


class Stage(Section):
    """One step of the job; besides the name exactly one field is set."""

    name: Name
    """Unique in the job; progress, metrics and checkpoints are labelled with it. Lower-case letters, digits and
    dashes."""
    prepare: PrepareSpec | None = None
    """Build a dataset from text."""
    pretrain: PretrainSpec | None = None
    """Train one phase."""
    evaluate: EvaluateSpec | None = None
    """Evaluate on held-out documents."""
    finetune: FinetuneSpec | None = None
    """Train the model on one task of GLUE, on SQuAD or on one's own tables. Only finetune and export stages follow."""
    export: ExportSpec | None = None
    """Export the model for other programs."""

    @property
    def kinds(self) -> tuple[StageKind, ...]:
        """The kinds that are set; exactly one in a valid job."""
        return tuple(kind for kind in STAGE_KINDS if getattr(self, kind) is not None)


class InitialCheckpointSpec(Section):
    """Weights to start from, unless the job already has a checkpoint of its own.

    The first pretrain stage starts from them; without pretrain stages every finetune stage does.
    """

    path: FilePath
    """Folder or file. A relative path is relative to the same folder as dataset.path."""
    format: Literal["bert-trainer", "huggingface", "tensorflow", "nvidia"] = "bert-trainer"
    """``bert-trainer``: a checkpoint or the output folder of another job; ``huggingface``: a folder with
    config.json and the weights, whole or in parts; ``tensorflow``: a folder with bert_config.json and a checkpoint of
    TensorFlow 1, as Google and MLPerf publish it, or the checkpoint's prefix; ``nvidia``: a ckpt_<step>.pt of NVIDIA's
    trainers, or the folder with them, of which the one of the highest phase and number is loaded."""
    load: Literal["weights", "weightsAndOptimizer", "none"] = "weights"
    """``weights``: the model alone; ``weightsAndOptimizer``: the optimizer's moments too, for bert-trainer and nvidia;
    ``none``: only check that the path can be read, and start from random weights."""


class LoggingSpec(Section):
    """Progress reports, TensorBoard, metrics endpoint."""

    every_steps: Annotated[int, Field(ge=1, le=1_000_000)] = 10
    """Optimizer steps between progress reports."""
    tensorboard: bool = True
    """Write TensorBoard events into the output folder."""
    prometheus_port: Annotated[int, Field(ge=0, le=65535)] | None = None
    """TCP port on which rank 0 serves Prometheus metrics. 0: any free port. Empty: no metrics endpoint."""
    sample_ledger: bool = False
    """For debugging: write the sample numbers of every step."""


MAX_PROFILED_STEPS = 100
"""Of one trace: a step of BERT-large leaves some ten thousand events in it."""


class ProfileStepsSpec(Section):
    """A range of optimizer steps to profile, counted from 1 in each stage like the progress."""

    first: Count
    """First step to profile. The first few steps of a stage are slower than the others: memory is allocated, kernels
    are compiled."""
    last: Count
    """Last step to profile, inclusive; at most 99 after the first."""
    stage: Name | None = None
    """Name of a pretrain or finetune stage. Empty: every one of them."""
    all_ranks: bool = False
    """Whether every rank writes a trace, to compare ranks. Default: only rank 0, since traces are large."""


class OutputSpec(Section):
    """Output folder and volume."""

    path: FilePath
    """Folder for data, checkpoints, metrics, report and export. A relative path is relative to the folder in
    which the command runs, or to the volume's mount; ``.`` is that folder itself, which then holds nothing else. One
    folder belongs to one job."""
    volume: VolumeSource | None = None
    """In a cluster: the volume to mount, shared by all workers. Required there, unless a volume of spec.volumes
    holds the path."""
    if_exists: Literal["Fail", "Resume", "New"] = "Fail"
    """What to do if an earlier job of this name has left a run in the folder. ``Fail``, so that nothing is
    overwritten by accident; ``Resume`` from its latest valid checkpoint; ``New``: move its content into ``previous/``
    and start over. Retries of the same job always resume."""


DEFAULT_HANG_SECONDS = (120, 1800)
"""Lower and upper limit."""


class RunPolicy(Section):
    """Starting, retrying, stopping and cleaning up the job. May be changed while the job runs."""

    suspend: bool = False
    """true: write a checkpoint, stop and wait. Set it to false again to resume from there in a new attempt."""
    application_retries: Annotated[int, Field(ge=0, le=20)] = 1
    """Retries after the program itself failed (exit code 1). Default: 1, since a program that fails twice usually fails
    again. Data preparation and training have separate budgets."""
    infrastructure_retries: Annotated[int, Field(ge=0, le=100)] = 3
    """Retries in a row after a process was killed or hung, its machine was lost, or storage failed after the first
    step. A new checkpoint, or a finished part of a data build, resets the count, so that a job that dies once a day
    continues. A reported checkpoint counts for at most 2 x infrastructureRetries + 1 failures, until an attempt resumes
    from it. Bad input (exit code 2) is never retried."""
    active_deadline_seconds: Annotated[int, Field(ge=1, le=31_536_000)] | None = None
    """Seconds after which the job is stopped with a checkpoint and marked as failed. Empty: no limit."""
    start_deadline_seconds: Annotated[int, Field(ge=1, le=31_536_000)] | None = None
    """Seconds that the pods of an attempt may wait for nodes and images before the job is marked as failed; time in a
    queue does not count. Empty: no limit."""
    stop_grace_seconds: Annotated[int, Field(ge=1, le=86_400)] = 120
    """Grace period in seconds for a pod to write its checkpoint before it is killed."""
    on_hang: Literal["Restart", "Notify"] | None = None
    """What to do when a rank makes no progress for 5 times the longest step of its stage. ``Restart``, the default: end
    the attempt as an infrastructure failure and resume from the latest checkpoint. ``Notify``: let it continue. Either
    way the log gets the stack traces of all ranks, and log and status name the rank that blocks the others. Evaluation,
    export, the first steps of a stage and other work without a regular pace may take hangMaxSeconds."""
    hang_min_seconds: Annotated[int, Field(ge=10, le=86_400)] | None = None
    """Minimum seconds without progress before a rank counts as hung, however short its steps are. Default: 120."""
    hang_max_seconds: Annotated[int, Field(ge=10, le=604_800)] | None = None
    """Maximum seconds without progress before a rank counts as hung, however long its steps are. Default: 1800."""
    ttl_seconds_after_finished: Annotated[int, Field(ge=0, le=315_360_000)] | None = None
    """Seconds after which a finished job and its pods are deleted; files on volumes are kept. Empty: never."""
    checkpoints_after_success: Literal["Keep", "Delete"] = "Keep"
    """Whether to keep checkpoints once every stage is done; export and metrics are always kept."""

    @property
    def hang_limits(self) -> tuple[int, int]:
        """The lower and the upper limit for hangs in seconds, defaults filled in."""
        lower, upper = self.hang_min_seconds, self.hang_max_seconds
        defaults = DEFAULT_HANG_SECONDS
        return (defaults[0] if lower is None else lower, defaults[1] if upper is None else upper)


class JobSpec(Section):
    """Specification of the job."""

    profile: LabeledName | None = None
    """Name of a profile in the operator's settings, which fills in cluster-specific fields that this job leaves out:
    image, resources, volumes, users and the like. Empty: the default profile, if there is one. Ignored without a
    cluster."""
    image: ImageReference | None = None
    """Container image of the trainer. Empty: the default image of the operator's installation."""
    image_pull_policy: PullPolicy | None = None
    """When nodes pull the image. Empty: ``Always`` for the tag latest, else ``IfNotPresent``, as Kubernetes does."""
    image_pull_secrets: Annotated[tuple[ImagePullSecret, ...], Field(max_length=16)] = ()
    """Credentials of private registries."""
    workers: Annotated[int, Field(ge=1, le=4096)] = 1
    """Number of worker pods or machines. Default: 1, a single pod without ssh."""
    slots_per_worker: Annotated[int, Field(ge=1, le=256)] = 1
    """Ranks (training processes) per worker: one per GPU, or one per CPU socket. Default: 1. Leave it out with
    cpu.ranksPerNode: auto."""
    mpi: MpiSpec = MpiSpec()
    """The MPI that launches the ranks."""
    collectives: Literal["horovod", "torch"] | None = None
    """The library through which ranks sum gradients. ``horovod``, the default: over the job's MPI, with NCCL between
    GPUs. ``torch``: torch.distributed, with Gloo over TCP and NCCL between GPUs, for images and machines without
    Horovod. Ranks are started in the same way, and a job may resume with the other."""
    seed: Seed = 42
    """Seed of initial weights, sample order and dropout."""
    precision: Literal["fp32", "tf32", "bf32", "avx-fp32", "bf16", "fp16", "fp64"] = "fp32"
    """Numeric precision of training. Default: fp32, which every machine supports; bf16 is the choice on recent GPUs and
    Xeons; tf32 is for NVIDIA GPUs; bf32, for Xeons with AMX, keeps tensors in fp32 and lets oneDNN round the inputs
    of matrix products to bf16; avx-fp32 is fp32 that leaves DNNL_MAX_CPU_ISA alone; fp64 is for exact comparisons,
    not for training."""
    engine: Literal["eager", "ort"] = "eager"
    """What executes training passes. ``eager``: PyTorch, with kernels of this project on processors and compiled
    functions on GPUs. ``ort``: ONNX Runtime's ORTModule, on padded rows; it needs an image of its own
    (``images/README.md``)."""
    activation_checkpointing: bool = False
    """Recompute every layer in the backward pass instead of keeping its activations: about a third more time for a
    fraction of the memory. The result is bitwise identical."""
    model: ModelSpec
    """The model to train."""
    initial_checkpoint: InitialCheckpointSpec | None = None
    """Weights to start from. Empty: random initialization."""
    optimizer: OptimizerSpec = OptimizerSpec()
    """Optimizer and its hyperparameters."""
    reduction: ReductionSpec = ReductionSpec()
    """How gradients are summed over ranks."""
    dataset: DatasetSpec = DatasetSpec()
    """The data to train on."""
    stages: Annotated[tuple[Stage, ...], Field(min_length=1, max_length=32)]
    """Steps of the job, run in this order: prepare first, evaluate, finetune and export after training."""
    checkpoint: CheckpointSpec = CheckpointSpec()
    """When checkpoints are written and how many are kept."""
    health: HealthSpec | None = None
    """What to do when training becomes unstable. Empty: non-finite gradients stop the job, spikes are reported."""
    logging: LoggingSpec = LoggingSpec()
    """Progress reports, TensorBoard and Prometheus metrics."""
    profile_steps: ProfileStepsSpec | None = None
    """Steps to profile: a PyTorch profiler trace and a table of times are written. Empty: none, without overhead."""
    output: OutputSpec
    """Output folder, and what to do with earlier results in it."""
    resources: ResourcesSpec = ResourcesSpec()
    """Resources of one worker: cores, memory, GPUs, network devices."""
    cpu: CpuSpec = CpuSpec()
    """CPU layout on Xeon nodes: ranks, threads, pinning."""
    network: NetworkSpec = NetworkSpec()
    """Access to the node's network and locked memory, for InfiniBand and RoCE."""
    security_context: SecurityContextSpec = SecurityContextSpec()
    """User and groups of the pods."""
    scheduling: SchedulingSpec = SchedulingSpec()
    """Nodes that the pods may run on, their priority and scheduler."""
    queue_name: LabeledName | None = None
    """Kueue LocalQueue that admits the attempts. Empty: no queue, attempts start at once."""
    workload_priority_class: LabeledName | None = None
    """Kueue WorkloadPriorityClass of the attempts: their order in the queue, and who is preempted for whom. The pods'
    own priority stays scheduling.priorityClassName. Each new attempt queues behind others of its priority. Empty: Kueue
    uses scheduling.priorityClassName. Only with queueName."""
    launcher: RoleSpec = RoleSpec()
    """Overrides for the MPI launcher."""
    worker: RoleSpec = RoleSpec()
    """Overrides for the workers, and for the single pod of a job with one worker."""
    env: Annotated[tuple[EnvironmentVariable, ...], Field(max_length=128)] = ()
    """Environment variables of every rank."""
    env_from: Annotated[tuple[EnvironmentSource, ...], Field(max_length=16)] = ()
    """Secrets and ConfigMaps whose keys become environment variables of every rank."""
    volumes: Annotated[tuple[VolumeSpec, ...], Field(max_length=16)] = ()
    """Additional volumes, in every pod of the data preparation and of the training: launcher, workers, single pods."""
    workspace: WorkspaceSpec | None = None
    """Your own training program, run in place of the trainer. Empty: the trainer."""
    proxy: ProxySpec = ProxySpec()
    """HTTP proxies."""
    managed_by: Literal["bert-operator.dev/operator", "kueue.x-k8s.io/multikueue"] | None = None
    """Controller that runs the job, as in Kubernetes Jobs; immutable. ``bert-operator.dev/operator``, the default: the
    operator of this cluster. ``kueue.x-k8s.io/multikueue``, reserved for MultiKueue: the operator ignores the job,
    creates nothing and writes no status. Ignored without a cluster."""
    run_policy: RunPolicy = RunPolicy()
    """Starting, retrying, stopping and cleaning up the job."""

    @property
    def ranks_per_worker(self) -> int:
        """Training processes per worker: slotsPerWorker, or the number of places with cpu.ranksPerNode: auto.

        1 while their number is not known.
        """
        return self.slots_per_worker if self.cpu.ranks_per_node is None else self.cpu.places or 1

    @property
    def ranks(self) -> int:
        """Training processes over all workers."""
        return self.workers * self.ranks_per_worker

    @property
    def cpus_per_worker(self) -> int | None:
        """CPUs, as Kubernetes counts them, that the ranks of one worker need; None: cpu.coresPerRank is not given."""
        if self.cpu.cores_per_rank is None:
            return None
        return self.cpu.cores_per_rank * self.ranks_per_worker * (self.cpu.threads_per_core or 1)

    def resolve_ranks(self) -> Self:
        """Return the spec with the number of ranks per worker written to slotsPerWorker."""
        cpu = self.cpu.model_copy(update={"ranks_per_node": None})
        return self.model_copy(update={"slots_per_worker": self.ranks_per_worker, "cpu": cpu})


class BertPretrainJob(Section):
    """One job: from text to a pretrained BERT."""

    api_version: Literal["bert-operator.dev/v1alpha1"]
    """``bert-operator.dev/v1alpha1``."""
    kind: Literal["BertPretrainJob"]
    """``BertPretrainJob``."""
    metadata: Metadata
    """Name and namespace."""
    spec: JobSpec
    """Specification of the job."""

    @property
    def ref(self) -> names.JobRef:
        """Namespace and name of the job."""
        return names.JobRef(self.metadata.namespace, self.metadata.name)

    def with_world(self, *, workers: int, slots_per_worker: int) -> Self:
        """Return the job with another number of workers and slots. Check the rules about ranks again afterwards."""
        changes = {"workers": workers, "slots_per_worker": slots_per_worker}
        return self.model_copy(update={"spec": self.spec.resolve_ranks().model_copy(update=changes)})
