"""The stages of a run, in the order in which people write them, and the parts that they are made of.

Numbers that count rows are *global*, over all ranks, unless their name says otherwise.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from bert_trainer.config.dataset_names import LayoutName, RecipeName
from bert_trainer.config.finetuning import FinetuneStage
from bert_trainer.config.optimization import Schedule
from bert_trainer.config.section import (
    MAX_UNKNOWN_SHARE,
    Count,
    Fraction,
    Positive,
    PositiveFloat,
    Section,
    Seed,
    StageName,
    UnknownShare,
)


class Length(Section):
    """Length of a stage; exactly one field is set."""

    # The operator renders the one that is set.
    steps: Positive | None = None
    epochs: PositiveFloat | None = None
    samples: Positive | None = None


class DataRange(Section):
    """The part of the training samples that a stage uses, as shares of their number."""

    start: Annotated[float, Field(ge=0, lt=1)]
    end: Annotated[float, Field(gt=0, le=1)]


class CheckpointTimes(Section):
    """Intervals of periodic checkpoints."""

    every_steps: Positive | None
    every_seconds: Positive | None
    every_samples: Positive | None
    """After every step in which the sequences of the stage reach or pass a multiple of this."""
    min_samples_to_start: Count
    """Sequences, counted over all pretraining stages at their full length, before which no periodic checkpoint is
    written."""
    periodic: bool
    """False: only the end of a stage and a graceful stop write one."""


class Evaluation(Section):
    """Accuracy while a stage trains; exactly one of the three intervals is set, and at most the start of its unit."""

    # The operator renders the ones that are set.
    every_steps: Positive | None = None
    every_samples: Positive | None = None
    """After every step in which the sequences of the stage reach or pass the next number that is due."""
    every_epochs: PositiveFloat | None = None
    start_steps: Positive | None = None
    """Where the first evaluation is due, from which the next ones are counted; empty: after one interval."""
    start_samples: Positive | None = None
    start_epochs: PositiveFloat | None = None
    max_samples: Positive | None
    """Empty: all of them."""
    micro_batch_size: Positive
    """Sequences of one forward pass on one rank."""
    max_predictions_per_sequence: Positive
    shards: str | None
    """Folder of the shards to measure on; empty: the folder of the stage's length below the dataset."""
    data_range: DataRange | None
    """The part of training shards to measure on; empty: held-out shards, all of them."""


class Target(Section):
    """Target accuracy that ends a stage before its length."""

    masked_lm_accuracy: Annotated[float, Field(gt=0, le=1)]
    """Share of masked tokens predicted correctly in an evaluation."""


class CorpusConfig(Section):
    """Text of one origin, and how it is read."""

    # A new field changes the fingerprints of all datasets (dataset.corpus.corpora).
    # The operator renders these fields as well; the defaults are those of ``bert-data``, which runs without an
    # operator, and the same as the operator's (tests/contract). So are those of PrepareStage.
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
    """What separates documents of plain text besides the ends of files."""
    text_field: Annotated[str, Field(min_length=1)] = "text"
    """For JSON Lines: the field that holds the text."""
    checksums: str | None = None
    """Of ``mlperf``: the published list of MD5 sums; empty: looked for in the folder and beside it."""


class PreparedLength(Section):
    """A sequence length for which shards are built, though no stage of the run reads them."""

    sequence_length: Annotated[int, Field(ge=8)]
    """Tokens, [CLS] and both [SEP] included."""
    max_predictions_per_sequence: Positive


class PrepareStage(Section):
    """Text to a vocabulary and shards, by ``bert-data build``."""

    kind: Literal["prepare"] = "prepare"
    name: StageName = "prepare"
    text: str | None = None
    """One corpus by its path alone. Either this or ``corpora``."""
    corpora: tuple[CorpusConfig, ...] = ()
    """Corpora that are read one after the other."""
    vocabulary_size: Annotated[int, Field(ge=64)] = 30522
    """Entries at most of the WordPiece vocabulary that is trained where the dataset has none."""
    lower_case: bool = True
    """Text loses capitals and accents, vowel signs of Hindi and Thai among them."""
    held_out_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Share of the documents kept for evaluation; 0: none."""
    near_duplicate_similarity: Annotated[float, Field(gt=0, le=1)] = 0.8
    """Documents whose 5-word shingles overlap by at least this Jaccard similarity count as one; the later
    one is dropped before the split. 1 drops exact copies only."""
    dupe_factor: Positive = 5
    """Samples are drawn this many times from every document, each time with other masks and pairs."""
    masked_lm_probability: Fraction = 0.15
    short_sequence_probability: Annotated[float, Field(ge=0, le=1)] = 0.1
    seed: Seed = 12345
    recipe: RecipeName | None = None
    """Whose names folders and files get; empty: our own. It also says what ``layout``, ``num_shards`` and
    ``num_balanced_shards`` are where they are empty. What else belongs to it (duplicates, predictions) is written out
    by whoever writes this document."""
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
    # The operator renders it only where a job asks for it.
    max_unknown_share: UnknownShare = MAX_UNKNOWN_SHARE
    """Of the text's tokens, those that may be [UNK]; with more the build ends before it makes shards."""
    num_shards: Positive | None = None
    """Training files per sequence length. Empty: the recipe's (nvidia 256, mlperf 500); without one 8, and more where
    the text is large, so that the samples of a file, which are held in memory together, stay about 50 MB. A dataset
    that was begun without a number keeps what its text decided."""
    num_processes: Positive | None = None
    """Empty: one per core."""
    # The operator renders it only where a job asks for it.
    lengths: tuple[PreparedLength, ...] = ()
    """Lengths to make in addition to those that the run's stages read. Empty in a run without such stages: those of the
    recipe, or 128 and 512 tokens as published."""

    @property
    def all_corpora(self) -> tuple[CorpusConfig, ...]:
        """The corpora, given in either form."""
        return self.corpora if self.text is None else (CorpusConfig(path=self.text),)

    @property
    def source(self) -> str:
        """Description of the corpora for messages."""
        return ", ".join(corpus.path for corpus in self.all_corpora)


class PretrainStage(Section):
    """One phase of pretraining at one sequence length."""

    kind: Literal["pretrain"] = "pretrain"
    name: StageName
    sequence_length: Annotated[int, Field(ge=8)]
    """Tokens, [CLS] and both [SEP] included."""
    max_predictions_per_sequence: Positive
    global_batch_size: Positive
    """Sequences per optimizer step, over all ranks and accumulation passes."""
    micro_batch_size: Positive | Literal["auto"]
    """Sequences of one forward and backward pass on one rank, at most; ``auto``: measured at the start of the run."""
    length: Length
    schedule: Schedule
    optimizer_state: Literal["keep", "keepWithStepCount", "reset"]
    """``keep``: the moments of the stage before, as published; ``keepWithStepCount``: bias correction continues its
    step count as well; ``reset``: moments start at 0."""
    loss_normalization: Literal["global", "microBatchMean"]
    """``global``: divided by the step's masked tokens and sequences over all ranks; ``microBatchMean``: the
    mean of each micro-batch's mean, as in the original scripts."""
    masking: Literal["static", "dynamic"]
    """``static``: the masks of the files; ``dynamic``: drawn anew in every epoch while the samples are read, from the
    run's seed, the epoch and the sample's number alone."""
    masked_lm_probability: Fraction
    """For ``dynamic`` masking: share of a row's tokens to predict."""
    whole_word_masking: bool
    """For ``dynamic`` masking: mask all pieces of a word or none."""
    shards: str | None
    """Folder of ready shards; empty: the folder of this length below the dataset."""
    data_range: DataRange
    # The operator renders these three only where a job asks for them.
    evaluation: Evaluation | None = None
    """Accuracy while the stage trains; empty: none."""
    target: Target | None = None
    """Ends the stage when an evaluation reaches it; the last step is then evaluated as well."""
    checkpoint: CheckpointTimes | None = None
    """When checkpoints are written in this stage; empty: as in the run's ``checkpoint``."""


class EvaluateStage(Section):
    """Masked-LM and next-sentence accuracy on held-out documents, before and after training."""

    kind: Literal["evaluate"] = "evaluate"
    name: StageName
    sequence_length: Positive
    max_predictions_per_sequence: Positive
    micro_batch_size: Positive
    max_samples: Positive | None
    """Empty: all of them."""
    shards: str | None
    """Folder of held-out shards, or with ``data_range`` of training shards; empty: the folder of this length below the
    dataset."""
    # The operator renders it only where a job asks for it.
    data_range: DataRange | None = None
    """The part of training shards to measure on; empty: held-out shards, all of them."""


ExportFormat = Literal["huggingface", "onnx", "tensorflow"]


class ExportStage(Section):
    """The trained model in a format that other programs load."""

    kind: Literal["export"] = "export"
    name: StageName
    format: ExportFormat
    """``huggingface``: weights, settings and tokenizer for ``transformers``; ``onnx``: one graph on padded rows, fp32,
    with the same settings and tokenizer; ``tensorflow``: a checkpoint with the names of Google's TensorFlow 1 code.
    Written to ``export/<format>``, or to ``export/<format>-<name>`` where a later stage has the same format."""


Stage = Annotated[
    PrepareStage | PretrainStage | EvaluateStage | FinetuneStage | ExportStage, Field(discriminator="kind")
]
