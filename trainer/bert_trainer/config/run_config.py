"""The run configuration: one JSON document that tells the trainer everything it has to do.

The operator renders it and freezes it before the first attempt; nothing else configures a run, and this is
the only module that reads it. It imports neither torch nor h5py, so that checking a document costs
milliseconds. Numbers that count rows are *global*, over all ranks, unless their name says otherwise.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, ValidationError

from bert_trainer.config.profile_steps import ProfileSteps
from bert_trainer.config.section import LayoutName, Positive, Probability, Section
from bert_trainer.errors import InputError

CONTRACT_VERSION: Final = 1
"""Raised whenever a document of the previous version would mean something else."""

Seed = Annotated[int, Field(ge=0, lt=2**63)]


class JobIdentity(Section):
    """Whose run this is; the output folder belongs to this uid alone."""

    name: str
    namespace: str = "default"
    uid: str


class World(Section):
    """What the launcher was asked to start; checked before the first step."""

    ranks: Positive = 1
    """Horovod processes over all hosts."""
    hosts: Positive = 1
    """Distinct machines (or pods) that the ranks must be spread over."""


class ModelConfig(Section):
    """BERT's dimensions, named as in ``bert_config.json`` (Devlin et al. 2019, section 3)."""

    architecture: Literal["bert", "distilbert"] = "bert"
    """``distilbert``: no segment embeddings, no pooler, masked LM only (Sanh et al. 2019)."""
    hidden_size: Positive
    num_hidden_layers: Positive
    num_attention_heads: Positive
    intermediate_size: Positive
    max_position_embeddings: Positive = 512
    """Longest sequence, in tokens."""
    type_vocab_size: Annotated[int, Field(ge=2)] = 2
    """Segments that the table has; pretraining uses two."""
    hidden_act: Literal["gelu", "gelu_new"] = "gelu"
    """``gelu``: by the error function, as published; ``gelu_new``: its tanh approximation."""
    hidden_dropout_prob: Probability = 0.1
    attention_probs_dropout_prob: Probability = 0.1
    initializer_range: Annotated[float, Field(gt=0)] = 0.02
    """Standard deviation of the normal distribution that weights start from; biases start at 0."""
    layer_norm_eps: Annotated[float, Field(gt=0)] = 1e-12
    vocab_size: Positive | None = None
    """Entries of the vocabulary; empty: the lines of the vocabulary file."""
    vocab_pad_multiple: Positive = 8
    """Embedding rows are rounded up to this multiple, which matrix products like; the extra rows are never
    predicted."""
    objective: Literal["mlm+nsp", "mlm"] = "mlm+nsp"


class OptimizerConfig(Section):
    """The update rule (LAMB: You et al. 2020, algorithm 2; AdamW: Loshchilov and Hutter 2019)."""

    name: Literal["lamb", "adamw"] = "lamb"
    beta1: Probability = 0.9
    beta2: Probability = 0.999
    epsilon: Annotated[float, Field(gt=0)] = 1e-6
    """Added outside the root."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    """Not applied to biases and LayerNorm parameters, whose trust ratio is 1."""
    bias_correction: bool = True
    max_gradient_norm: Annotated[float, Field(gt=0)] | None = 1.0
    """Global L2 norm above which gradients are scaled down, after the reduction; empty: never."""
    partitioning: Literal["none", "zero1"] = "none"
    """``zero1``: every rank holds the moments of a share of the parameters and updates those alone (Rajbhandari et
    al. 2020, stage 1)."""


class ReductionConfig(Section):
    """How gradients are summed over ranks."""

    compression: Literal["none", "fp16"] = "none"
    """``fp16``: half the bytes; chunks are scaled by powers of two so that nothing overflows."""
    overlap: bool = True
    """Reduce while the last backward pass still runs; the sums are the same without."""


class Warmup(Section):
    """Linear rise of the learning rate; exactly one of the two is set."""

    steps: Annotated[int, Field(ge=0)] | None = None
    proportion: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Share of the stage's steps."""


class Schedule(Section):
    """Learning rate over the steps of one stage."""

    learning_rate: Annotated[float, Field(gt=0)]
    """Peak that the warm-up aims at."""
    warmup: Warmup = Warmup(steps=0)
    decay: Literal["poly", "linear", "constant"] = "poly"
    """``poly``: (1 - progress) ** 0.5, NVIDIA's; ``linear``: 1 - progress, Google's and MLPerf's."""
    after_warmup: Literal["published", "continuous"] = "published"
    """``published``: decay counts from step 0, so the rate drops where the warm-up ends, as in the original
    scripts; ``continuous``: decay counts from the end of the warm-up."""


class Length(Section):
    """How long a stage trains; exactly one is set."""

    steps: Positive | None = None
    epochs: Annotated[float, Field(gt=0)] | None = None
    samples: Positive | None = None


class DataRange(Section):
    """The part of the training samples that a stage uses, as shares of their number."""

    start: Annotated[float, Field(ge=0, lt=1)] = 0.0
    end: Annotated[float, Field(gt=0, le=1)] = 1.0


RecipeName = Literal["nvidia", "mlperf"]


class CorpusConfig(Section):
    """Text of one origin, and how it is read."""

    path: str
    """A folder, a file, or ``builtin:python-docs``."""
    format: Literal["auto", "text", "wikipedia", "jsonLines", "mlperf"] = "auto"
    """``auto``: each file's, by its name or content. ``mlperf``: a folder of parts, compared with the published
    checksums first."""
    weight: Annotated[float, Field(gt=0, le=1000)] = 1.0
    """Samples are drawn ``dupe_factor`` x ``weight`` times from every document; where that is no whole number, the
    documents that are drawn once more are chosen by their text and the seed."""
    language: Annotated[str, Field(pattern=r"^[a-z]{2,3}(-[A-Za-z]+)*$")] = "en"
    """ISO 639 code that decides how sentences are split."""
    lines: Literal["auto", "sentences", "paragraphs", "wrapped"] = "auto"
    """What a line of text holds. ``auto``: told by each file's first lines; in JSON Lines, a paragraph."""
    documents: Literal["emptyLines", "files"] = "emptyLines"
    """What parts documents of plain text besides the ends of files."""
    text_field: Annotated[str, Field(min_length=1)] = "text"
    """Of JSON Lines: the field that holds the text."""
    checksums: str | None = None
    """Of ``mlperf``: the published list of MD5 sums; empty: looked for in the folder and beside it."""


class PrepareStage(Section):
    """Text to a vocabulary and shards, by ``bert-data build``."""

    kind: Literal["prepare"] = "prepare"
    name: str = "prepare"
    text: str | None = None
    """One corpus by its path alone. Either this or ``corpora``."""
    corpora: tuple[CorpusConfig, ...] = ()
    """Corpora that are read one after the other."""
    vocabulary_size: Annotated[int, Field(ge=64)] = 30522
    """Entries at most of the WordPiece vocabulary that is trained where the dataset has none."""
    lower_case: bool = True
    held_out_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Share of the documents kept for evaluation."""
    near_duplicate_similarity: Annotated[float, Field(gt=0, le=1)] = 0.8
    """Documents whose 5-word shingles overlap by at least this Jaccard similarity count as one; the later
    one is dropped before the split. 1 drops exact copies only."""
    dupe_factor: Positive = 5
    """Samples are drawn this many times from every document, each time with other masks and pairs."""
    masked_lm_probability: Annotated[float, Field(gt=0, lt=1)] = 0.15
    short_sequence_probability: Annotated[float, Field(ge=0, le=1)] = 0.1
    seed: Seed = 12345
    recipe: RecipeName | None = None
    """Whose names and layout folders and files get; empty: our own. Other settings are not changed by it."""
    layout: LayoutName | None = None
    """Of the files that a loader reads; empty: that of the recipe's loader, ``compact`` without one or without
    masks."""
    num_balanced_shards: Positive | None = None
    """Of ``mlperf``: files that the training parts of a length are cut into again; empty: 2,048."""
    masking: Literal["static", "dynamic"] = "static"
    """``static``: training files hold masks; ``dynamic``: they hold the tokens as they are, for pretrain stages that
    draw masks themselves. Held-out files hold masks either way."""
    whole_word_masking: bool = False
    """Mask all pieces of a word or none (Google's ``do_whole_word_mask``)."""
    num_shards: Positive | None = None
    """Training files per sequence length. Empty: 8, and more where the text is large, so that the samples of a
    file, which are held in memory together, stay about 50 MB."""
    num_processes: Positive | None = None
    """Empty: one per core."""

    @property
    def all_corpora(self) -> tuple[CorpusConfig, ...]:
        """What is read, however it was written."""
        return self.corpora if self.text is None else (CorpusConfig(path=self.text),)

    @property
    def source(self) -> str:
        """What is read, for messages."""
        return ", ".join(corpus.path for corpus in self.all_corpora)


class PretrainStage(Section):
    """One phase of pretraining at one sequence length."""

    kind: Literal["pretrain"] = "pretrain"
    name: str
    sequence_length: Annotated[int, Field(ge=8)]
    """Tokens, [CLS] and both [SEP] included."""
    max_predictions_per_sequence: Positive
    global_batch_size: Positive
    """Sequences per optimizer step, over all ranks and accumulation passes."""
    micro_batch_size: Positive | Literal["auto"]
    """Sequences of one forward and backward pass on one rank, at most; ``auto``: found at the start, by trying."""
    length: Length
    schedule: Schedule
    optimizer_state: Literal["keep", "keepWithStepCount", "reset"] = "keep"
    """``keep``: the moments of the stage before, as published; ``keepWithStepCount``: bias correction counts on."""
    loss_normalization: Literal["global", "microBatchMean"] = "global"
    """``global``: divided by the step's masked tokens and sequences over all ranks; ``microBatchMean``: the
    mean of each micro-batch's mean, as in the original scripts."""
    masking: Literal["static", "dynamic"] = "static"
    """``static``: the masks of the files; ``dynamic``: drawn anew in every epoch while the samples are read, from the
    run's seed, the epoch and the sample's number alone."""
    masked_lm_probability: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """Of ``dynamic``: share of a row's tokens to predict."""
    whole_word_masking: bool = False
    """Of ``dynamic``: mask all pieces of a word or none."""
    shards: str | None = None
    """Folder of ready shards; empty: the folder of this length below the dataset."""
    data_range: DataRange = DataRange()


class EvaluateStage(Section):
    """Masked-LM and next-sentence accuracy on held-out documents, before and after training."""

    kind: Literal["evaluate"] = "evaluate"
    name: str = "evaluate"
    sequence_length: Positive
    max_predictions_per_sequence: Positive
    micro_batch_size: Positive = 32
    max_samples: Positive | None = None
    """Empty: all of them."""
    shards: str | None = None
    """Folder of held-out shards; empty: the folder of this length below the dataset."""


class ExportStage(Section):
    """The trained model in a form that other programs load."""

    kind: Literal["export"] = "export"
    name: str = "export"
    format: Literal["huggingface"] = "huggingface"


Stage = Annotated[PrepareStage | PretrainStage | EvaluateStage | ExportStage, Field(discriminator="kind")]


class DatasetConfig(Section):
    """Where shards and vocabulary lie."""

    folder: str
    """Root that ``bert-data build`` writes and training reads."""
    vocabulary_file: str | None = None
    """One token per line; empty: ``vocab.txt`` in ``folder``."""


class InitialCheckpoint(Section):
    """Where the first pretraining stage starts if the run has no checkpoint of its own to go on from."""

    path: str
    """``bert-trainer``: a checkpoint, or a checkpoints folder or output folder, of which the newest whole one is
    taken. ``huggingface``: a folder with ``config.json`` and ``model.safetensors`` (or ``pytorch_model.bin``)."""
    format: Literal["bert-trainer", "huggingface"] = "bert-trainer"
    load: Literal["weights", "weights_and_optimizer", "none"] = "weights"
    """``weights``: moments start at 0; heads that the source lacks, at random. ``weights_and_optimizer``: the
    moments too, as between two stages (``optimizer_state``); of ``bert-trainer`` only. ``none``: the path is
    verified and nothing is loaded."""


class CheckpointConfig(Section):
    """When checkpoints are written and how many are kept. The end of a stage always writes one."""

    every_steps: Positive | None = None
    every_seconds: Positive | None = None
    every_samples: Positive | None = None
    """After every step in which the sequences of the stage reach or pass a multiple of this."""
    min_samples_to_start: Annotated[int, Field(ge=0)] = 0
    """Sequences, counted over all pretraining stages, before which no periodic checkpoint is written."""
    periodic: bool = True
    """False: only the end of a stage and a graceful stop write one."""
    delete_after_success: bool = False
    """Whether all of them are deleted once every stage is done."""
    keep: Positive = 3
    """Newest whole ones kept; the last one of every finished stage stays as well."""


class LoggingConfig(Section):
    """What is reported and how often."""

    every_steps: Positive = 10
    tensorboard: bool = True
    prometheus_port: Annotated[int, Field(ge=0, le=65535)] | None = None
    """Rank 0 serves its metrics here; 0 takes a free port, empty serves none."""
    sample_ledger: bool = False
    """Debugging: write the sample numbers of every step to ``ledger.jsonl``; otherwise only their hash is
    kept in the metrics."""


class RunConfig(Section):
    """The whole document."""

    contract_version: Literal[1] = CONTRACT_VERSION
    job: JobIdentity
    output_folder: str
    if_exists: Literal["Fail", "Resume", "New"] = "Fail"
    """What to do where the output folder already holds a run of this job."""
    world: World = World()
    seed: Seed = 42
    """Of initial weights, sample order and dropout."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Literal["fp32", "tf32", "bf32", "avx-fp32", "bf16", "fp16", "fp64"] = "fp32"
    """bf32: fp32 tensors whose matrix products oneDNN may round to bf16; avx-fp32: fp32 with no cap on oneDNN's
    instructions. Both are for processors. fp64 is for exact comparisons, not for training."""
    activation_checkpointing: bool = False
    """Compute every layer a second time in the backward pass instead of keeping its activations; the same result."""
    model: ModelConfig
    optimizer: OptimizerConfig = OptimizerConfig()
    reduction: ReductionConfig = ReductionConfig()
    dataset: DatasetConfig
    initial_checkpoint: InitialCheckpoint | None = None
    """Empty: weights are drawn at random. A run that goes on from its own checkpoint does not look at it."""
    gpu_memory_limit_gib: Annotated[float, Field(gt=0)] | None = None
    """Most memory, in GiB, that a rank's tensors take of its GPU, at most the GPU's own; empty: no limit. No effect
    on a CPU."""
    profile_steps: ProfileSteps | None = None
    """Steps that are traced and timed; empty: none, at no cost."""
    stages: Annotated[tuple[Stage, ...], Field(min_length=1)]
    checkpoint: CheckpointConfig = CheckpointConfig()
    logging: LoggingConfig = LoggingConfig()

    @property
    def vocabulary_path(self) -> Path:
        """Where the vocabulary is, given or built."""
        return Path(self.dataset.vocabulary_file or Path(self.dataset.folder) / "vocab.txt")

    def problems(self) -> list[str]:
        """Return every combination that cannot work, each as ``path: got; allowed; hint``."""
        return [
            *_model_problems(self.model),
            *_reduction_problems(self),
            *_start_problems(self.initial_checkpoint),
            *_stage_problems(self),
            *_profile_problems(self),
        ]


def load_run_config(path: Path) -> RunConfig:
    """Read and check a document.

    Raises:
        InputError: the file is missing, not JSON, of another contract version, or holds values or
            combinations that cannot work; the message lists all of them.
    """
    try:
        document = json.loads(path.read_text())
    except OSError as error:
        raise InputError(f"{path}: cannot read the run configuration ({error.strerror})") from error
    except ValueError as error:
        raise InputError(f"{path}: not a JSON document ({error})") from error
    return parse_run_config(document, source=str(path))


def parse_run_config(document: Any, *, source: str = "run configuration") -> RunConfig:
    """Check a document that is already in memory; raises InputError as ``load_run_config`` does."""
    version = document.get("contract_version") if isinstance(document, dict) else None
    if version != CONTRACT_VERSION:
        raise InputError(
            f"{source}: contract_version is {version!r}, this trainer reads {CONTRACT_VERSION}",
            hint="use an operator and a trainer image of the same release",
        )
    try:
        config = RunConfig.model_validate(document)
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, item['loc']))}: got {item['input']!r}; {item['msg']}" for item in error.errors()]
    else:
        lines = config.problems()
        if not lines:
            return config
    raise InputError(f"{source}: {len(lines)} problem(s)\n" + "\n".join(f"  {line}" for line in lines))


def _model_problems(model: ModelConfig) -> list[str]:
    problems = []
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


def _start_problems(start: InitialCheckpoint | None) -> list[str]:
    if start is None or start.load != "weights_and_optimizer" or start.format == "bert-trainer":
        return []
    return [
        f"initial_checkpoint.load: got {start.load!r} from {start.format}; allowed: 'weights' or 'none', since only "
        "this trainer's own checkpoints hold moments"
    ]


def _profile_problems(config: RunConfig) -> list[str]:
    if config.profile_steps is None:
        return []
    return config.profile_steps.problems([stage.name for stage in config.stages if isinstance(stage, PretrainStage)])


def _stage_problems(config: RunConfig) -> list[str]:
    problems = []
    names = [stage.name for stage in config.stages]
    problems += [f"stages: the name {name!r} is used twice" for name in sorted(set(names)) if names.count(name) > 1]
    bare = any(isinstance(stage, PrepareStage) and stage.masking == "dynamic" for stage in config.stages)
    for number, stage in enumerate(config.stages):
        path = f"stages.{number}"
        if isinstance(stage, PrepareStage) and (stage.text is None) == (not stage.corpora):
            got = "neither" if stage.text is None else "both"
            problems.append(f"{path}: got {got} of text and corpora; allowed: exactly one of them")
        if isinstance(stage, PrepareStage) and stage.masking == "dynamic" and stage.layout not in (None, "compact"):
            problems.append(f"{path}.layout: got {stage.layout!r}; allowed with dynamic masking: 'compact'")
        if isinstance(stage, PretrainStage | EvaluateStage):
            longest = config.model.max_position_embeddings
            if stage.sequence_length > longest:
                problems.append(
                    f"{path}.sequence_length: got {stage.sequence_length}; "
                    f"allowed: at most model.max_position_embeddings {longest}"
                )
            if stage.max_predictions_per_sequence > stage.sequence_length - 3:
                problems.append(
                    f"{path}.max_predictions_per_sequence: got {stage.max_predictions_per_sequence}; "
                    f"allowed: at most sequence_length - 3 = {stage.sequence_length - 3}"
                )
        if isinstance(stage, PretrainStage):
            problems += _pretrain_problems(path, stage, config.world.ranks)
            if bare and stage.masking == "static" and stage.shards is None:
                problems.append(
                    f"{path}.masking: got 'static'; allowed: 'dynamic', since the prepare stage writes no masks"
                )
    return problems


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
    if stage.data_range.start >= stage.data_range.end:
        problems.append(
            f"{path}.data_range: got {stage.data_range.start} to {stage.data_range.end}; allowed: a start below the end"
        )
    return problems
