"""The part of the job that says which text a dataset is made from, and how that becomes shards."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from bert_operator.api.schema.section import FilePath, Section, Seed

LANGUAGE_PATTERN = r"^[a-z]{2,3}(-[A-Za-z]+)*$"
BUILTIN_TEXTS = ("builtin:python-docs",)


class CorpusSpec(Section):
    """Text of one origin: where it is and how it is read."""

    path: FilePath
    """A folder with files of known formats at any depth, one file, or ``builtin:python-docs``. Compressed files
    (gzip, bzip2, xz) are read as they are."""
    format: Literal["auto", "text", "wikipedia", "jsonLines", "mlperf"] = "auto"
    """``auto``: told by names and content. ``text``: plain text in UTF-8; ``wikipedia``: an XML dump
    (pages-articles, multistream or not); ``jsonLines``: one object per line; ``mlperf``: the folder results4 of the
    MLPerf benchmark, compared with its published MD5 sums before it is used, without its evaluation text."""
    weight: Annotated[float, Field(gt=0, le=1000)] = 1.0
    """Every document of this corpus is drawn dupeFactor x weight times. Of a number that is not whole, the fraction is
    the share of the documents that are drawn once more; their text and the seed decide which. Held-out documents are
    drawn once whatever the weight. Default: 1."""
    language: Annotated[str, Field(max_length=16, pattern=LANGUAGE_PATTERN)] = "en"
    """ISO 639 code: the rules by which sentences are split. Default: en."""
    lines: Literal["auto", "sentences", "paragraphs", "wrapped"] = "auto"
    """What a line of text holds: one sentence, which is kept as it is; whole sentences, which are split; or as much as
    its width allowed, so that lines of a paragraph are joined first. ``auto``: told by the first lines of each file; in
    JSON Lines, paragraphs."""
    documents: Literal["emptyLines", "files"] = "emptyLines"
    """What parts documents of plain text besides the ends of files. Default: emptyLines, as the published scripts have
    it; files for books, whose paragraphs are parted by empty lines."""
    text_field: Annotated[str, Field(min_length=1, max_length=256)] = "text"
    """The field of JSON Lines that holds the text, or a list of sentences. Default: text."""
    checksums: FilePath | None = None
    """For mlperf: the published list, bert_reference_results_text_md5.txt. Empty: looked for in the folder and beside
    it."""


class PrepareSpec(Section):
    """Text becomes a vocabulary and shards, one set per sequence length of the stages that follow."""

    text: FilePath | None = None
    """One corpus by its path alone, with the defaults of ``corpora``: a folder or a file of plain text (documents
    parted by empty lines and ends of files), JSON Lines or a Wikipedia dump, or ``builtin:python-docs``: the
    documentation that comes with Python's standard library. Exactly one of text and corpora is set."""
    corpora: Annotated[tuple[CorpusSpec, ...], Field(min_length=1, max_length=64)] | None = None
    """Several corpora, read one after the other into one dataset."""
    vocabulary_size: Annotated[int, Field(ge=64, le=1_000_000)] | None = None
    """Entries at most of the vocabulary that is trained on the text. Empty: 30522, the published size; not
    used where ``dataset.vocabularyFile`` is set."""
    lower_case: bool = True
    """Lower-case the text and strip accents, as the published ``uncased`` models do."""
    held_out_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Share of the documents that training never sees; evaluate stages use them."""
    near_duplicate_similarity: Annotated[float, Field(gt=0, le=1)] = 0.8
    """Documents whose 5-word shingles overlap by at least this Jaccard similarity count as one, so that no
    copy of a training document is held out. 1 drops exact copies only."""
    dupe_factor: Annotated[int, Field(ge=1, le=1000)] = 5
    """Every document is drawn this many times, each time with other masks and pairs. Default: 5, as
    published."""
    masked_lm_probability: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """Share of the tokens that are predicted. Default: 0.15, as published."""
    short_sequence_probability: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Share of the sequences that are made shorter than the length allows. Default: 0.1, as published."""
    seed: Seed = 12345
    """Of masks, pairs and lengths. Default: 12345, that of the published scripts."""
    recipe: Literal["nvidia", "mlperf"] | None = None
    """Whose names and layout folders and files of shards get, for loaders that look for them; with mlperf the files are
    also cut again into equal ones. Empty: our own. Other settings stay as they are given."""
    masking: Literal["static", "dynamic"] = "static"
    """``static``: masks are in the files; ``dynamic``: training files hold none, for pretrain stages with
    ``masking: dynamic``. Held-out files hold masks either way, so that accuracies can be compared."""
    whole_word_masking: bool = False
    """Mask all pieces of a word or none, as Google's ``whole word masking`` models."""
    num_shards: Annotated[int, Field(ge=1, le=65536)] | None = None
    """Training files per sequence length; memory needed at a time shrinks with their number. Empty: 8, and more
    where the text is large: about one for every 4 MB of text."""
    layout: Literal["compact", "nvidia", "intel", "mlperf", "mlperf-variable", "mlperf-packed"] | None = None
    """Layout of the files that a loader reads. Empty: that of the recipe's own loader (gzip for nvidia, uncompressed
    for mlperf); compact without a recipe, and with dynamic masking, for which it is the only one."""
    num_balanced_shards: Annotated[int, Field(ge=1, le=1_048_576)] | None = None
    """For recipe mlperf: files that the training files of a length are cut into again, with sizes that differ by one
    sample at most. Empty: 2048, as published."""
    num_processes: Annotated[int, Field(ge=1, le=4096)] | None = None
    """Processes that work side by side in every worker. Empty: one per core; with several workers one per whole core of
    the cpu that their resources state, 1 where they state none."""
    workers: Annotated[int, Field(ge=1, le=256)] = 1
    """Pods or machines, as ranks of an MPI job; any number makes the same bytes. All of them write to the dataset's
    volume. Default: 1, which is a single pod without ssh."""
