"""The text that a dataset is built from."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from bert_job.dataset_names import SamplesOf, WrittenLayout
from bert_job.section import FilePath, Section, Seed, Tokens

LANGUAGE_PATTERN = r"^[a-z]{2,3}(-[A-Za-z]+)*$"
BUILTIN_TEXTS = ("builtin:python-docs",)


class CorpusSpec(Section):
    """One corpus: where its text is and how it is read."""

    # A new field changes the fingerprints of all datasets (bert_trainer.dataset.corpus.corpora).
    path: FilePath
    """A folder with files of known formats at any depth, one file, or ``builtin:python-docs``. Compressed files
    (gzip, bzip2, xz, zstd) and zip archives are unpacked while they are read, never to disk."""
    format: Literal["auto", "text", "wikipedia", "jsonLines", "mlperf"] = "auto"
    """``auto``: detected from file names and content; ``text``: plain text in UTF-8; ``wikipedia``: an XML dump
    (pages-articles, multistream or not); ``jsonLines``: one object per line; ``mlperf``: the folder results4 of the
    MLPerf benchmark without its evaluation text, verified against the published MD5 sums before it is used."""
    weight: Annotated[float, Field(gt=0, le=1000)] = 1.0
    """Every document of this corpus is sampled dupeFactor x weight times. The fractional part is the fraction of the
    documents that are sampled once more; their text and the seed decide which. Held-out documents are sampled once
    whatever the weight. Default: 1."""
    language: Annotated[str, Field(max_length=16, pattern=LANGUAGE_PATTERN)] = "en"
    """ISO 639 code of the language, whose rules split sentences. Default: en."""
    lines: Literal["auto", "sentences", "paragraphs", "wrapped"] = "auto"
    """What a line of text holds. ``sentences``: one sentence, which is kept as it is; ``paragraphs``: whole sentences,
    which are split; ``wrapped``: hard-wrapped text, so that the lines of a paragraph are joined first. ``auto``:
    detected from the first lines of each file; paragraphs in JSON Lines."""
    documents: Literal["emptyLines", "files"] = "emptyLines"
    """What separates documents of plain text besides the ends of files. Default: emptyLines, as in the published
    scripts; ``files`` for books, whose paragraphs are separated by empty lines."""
    text_field: Annotated[str, Field(min_length=1, max_length=256)] = "text"
    """The field of a JSON Lines object with the text, or with a list of sentences. Default: text."""
    checksums: FilePath | None = None
    """For mlperf: path of the published list, bert_reference_results_text_md5.txt. Empty: searched in the folder and
    next to it."""


class PrepareSpec(Section):
    """Builds a vocabulary and shards from text, one set of shards per sequence length.

    The lengths are those of the pretrain and evaluate stages and sequenceLengths. A job may consist of this stage
    alone, and prepare data for others. In a job that only fine-tunes, the vocabulary alone is built.
    """

    text: FilePath | None = None
    """One corpus by its path alone, with the defaults of ``corpora``: a folder or a file of plain text (documents
    separated by empty lines and ends of files), JSON Lines or a Wikipedia dump, or ``builtin:python-docs``: the
    documentation that comes with Python's standard library. Exactly one of text and corpora is set."""
    corpora: Annotated[tuple[CorpusSpec, ...], Field(min_length=1, max_length=64)] | None = None
    """Several corpora, read one after another into one dataset."""
    vocabulary_size: Annotated[int, Field(ge=64, le=1_000_000)] | None = None
    """Maximum size of the vocabulary that is trained on the text. Empty: 30522, the published size; unused if
    ``dataset.vocabularyFile`` is set."""
    tokenizer: Literal["wordpiece", "byte-bpe"] | None = None
    """What kind of vocabulary is trained. ``wordpiece``, as of BERT: text in words, by spaces and punctuation, whose
    pieces are searched for; written as vocab.txt. ``byte-bpe``, as of ModernBERT: no character is unknown, capitals and
    accents stay, whatever lowerCase is; written as tokenizer.json. A vocabulary that ``dataset.vocabularyFile`` names
    says itself what it is. Empty: wordpiece."""
    lower_case: bool = True
    """Lower-case the text and strip accents, like the published ``uncased`` models: über becomes uber, and vowel signs
    of Hindi or Thai go as well. false keeps capitals and accents; better for most languages but English."""
    max_unknown_share: Annotated[float, Field(gt=0, le=1)] | None = None
    """Maximum fraction of the text's tokens that are [UNK], because the vocabulary lacks their characters; with more,
    as with the vocabulary of another language, the stage fails before it makes shards. 1: any. Empty: 0.1."""
    held_out_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Fraction of the documents that training never sees, for evaluate stages. 0: all text is trained on, and evaluate
    stages name other shards."""
    near_duplicate_similarity: Annotated[float, Field(gt=0, le=1)] = 0.8
    """Documents whose 5-word shingles have at least this Jaccard similarity are near-duplicates and count as one, so
    that no copy of a training document is held out. 1: only exact duplicates."""
    samples: SamplesOf | None = None
    """``pairs``: two spans of sentences, as BERT's next-sentence prediction needs them; ``documents``: pieces of
    documents that together fill the length, nothing thrown away, for models with ``objective: mlm``. Empty: pairs."""
    dupe_factor: Annotated[int, Field(ge=1, le=1000)] | None = None
    """Every document is sampled this many times, each time with other masks and pairs. Empty: that of the recipe, 5
    for nvidia and 10 for mlperf; 5 without one, as Google published it; 1 with ``samples: documents``."""
    sequence_lengths: Annotated[tuple[Tokens, ...], Field(min_length=1, max_length=16)] | None = None
    """Tokens per sequence of shards for other jobs, in addition to those that the stages of this job read. Published:
    128 and 512. Empty: those of the stages alone; a job without stages that train needs this field."""
    max_predictions_per_sequence: Annotated[int, Field(ge=1, le=4096)] | None = None
    """Maximum number of masked tokens per sequence in the shards of sequenceLengths, the same at each of them. Empty:
    that of the recipe, 76 for mlperf; else 15 % of the length, rounded up to a multiple of 4. A length that a stage of
    this job reads has that stage's number."""
    masked_lm_probability: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """Fraction of the tokens that are predicted. Default: 0.15, as published."""
    short_sequence_probability: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Fraction of the pairs that are made shorter than the sequence length. Default: 0.1, as published."""
    seed: Seed = 12345
    """Seed of masks, pairs and lengths. Default: 12345, as in the published scripts."""
    recipe: Literal["nvidia", "mlperf"] | None = None
    """A published way to build a dataset. It sets names of folders and files, so that the recipe's own loader finds
    them, and what the job leaves open of dupeFactor (nvidia 5, mlperf 10), numShards (256, 500), layout (nvidia,
    intel), numBalancedShards (mlperf 2048) and maxPredictionsPerSequence (nvidia 15 % of the length, mlperf 76 at
    every length), also of the stages that read these shards. ``bert-operator check`` lists what came from it. Empty:
    this project's own names, and the defaults of these fields."""
    masking: Literal["static", "dynamic"] = "static"
    """``static``: masks are in the files; ``dynamic``: training files hold none, for pretrain stages with
    ``masking: dynamic``. Held-out files hold masks either way, so that accuracies can be compared."""
    whole_word_masking: bool = False
    """Mask all pieces of a word or none, like Google's ``whole word masking`` models."""
    num_shards: Annotated[int, Field(ge=1, le=65536)] | None = None
    """Training files per sequence length; more files need less memory at a time. Empty: that of the
    recipe, 256 for nvidia and 500 for mlperf; without one 8, and more for large text: about one for every 4 MB."""
    layout: WrittenLayout | None = None
    """Layout of the HDF5 files. Empty: that of the recipe's own loader (gzip for nvidia, uncompressed for mlperf);
    compact without a recipe, and with dynamic masking, which has no other."""
    num_balanced_shards: Annotated[int, Field(ge=1, le=1_048_576)] | None = None
    """For recipe mlperf: number of files into which the training files of a sequence length are cut again, with sizes
    that differ by at most one sample. Empty: 2048, as published."""
    num_processes: Annotated[int, Field(ge=1, le=4096)] | None = None
    """Parallel processes per worker. Empty: one per core; with several workers one per physical core of their
    resources.cpu, of which cpu.threadsPerCore CPUs make one; 1 if neither is set."""
    workers: Annotated[int, Field(ge=1, le=256)] = 1
    """Pods or machines, as ranks of an MPI job; any number yields the same bytes. All of them write to the dataset's
    volume. Default: 1, a single pod without ssh."""
