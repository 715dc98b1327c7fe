"""Whether a build may use a folder: it is new, holds this dataset in part or complete, or holds another one.

Compares the settings of a build with those in ``dataset.json``. Writes nothing.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from bert_job.run_config import DatasetConfig
from bert_job.run_stages import PrepareStage
from bert_trainer.dataset.build.recipes import (
    corpus_name,
    folder_name,
    loader_layout,
    needs_corpus_name,
    published_settings,
    resharding,
)
from bert_trainer.dataset.corpus.corpora import AnyCorpus, digest_corpus
from bert_trainer.dataset.sampling.shard_samples import GENERATOR_VERSION
from bert_trainer.dataset.shards import list_shards
from bert_trainer.dataset.shards.dataset_info import BuildSettings, DatasetInfo, read_dataset_info
from bert_trainer.dataset.tokens.byte_bpe import MIN_ENTRIES, ByteBpe
from bert_trainer.dataset.tokens.tokenizer_json import TOKENIZER_FILE
from bert_trainer.dataset.tokens.wordpiece import Vocabulary, read_vocabulary, vocabulary_path
from bert_trainer.errors import InputError

_TRAINED = "trained"
_BYTE_BPE = "byte-level BPE"
_FIELDS = {"dupe_factor": "dupeFactor"}
"""What a job calls the settings of recipes that differ from the defaults."""
_CHOOSE_ANOTHER = "choose another folder, or delete this one to build the dataset again"

Length = tuple[int, int]
"""Sequence length and predictions per sequence at most."""


def open_dataset_info(
    stage: PrepareStage, dataset: DatasetConfig, corpus: AnyCorpus, root: Path, lengths: list[Length]
) -> DatasetInfo:
    """Return the content of the folder's ``dataset.json``, or a new one; it is not written.

    Reads the whole corpus only if its fingerprint (names, sizes and times of its files) has changed; not for a complete
    dataset whose files are the same and only the extraction from dumps has changed since.

    Raises:
        InputError: the folder holds a dataset of other settings or text (the message lists what differs),
            shards of unknown origin, or another vocabulary than it was built with; or two lengths would share a folder.
    """
    info = read_dataset_info(root)
    if info is None or info.settings.recipe != stage.recipe:
        shared = _shared_folders(stage, lengths, [])
    else:
        shared = _shared_folders(stage, lengths, [(it.sequence_length, it.max_predictions) for it in info.lengths])
    vocabulary = _given_vocabulary(stage, dataset, info)
    given = None if vocabulary is None else vocabulary.sha256
    settings = _settings(stage, vocabulary)
    if info is None:
        _refuse_shared_folders(stage, root, shared)
        _refuse_foreign_shards(stage, root, lengths, settings.corpus_name)
        return DatasetInfo(settings=settings, source=corpus.source, fingerprint=corpus.fingerprint)
    # A text that was moved or renamed is the same text: file names keep the name that it had at first.
    settings = settings.model_copy(update={"corpus_name": info.settings.corpus_name})
    if given is not None and given == info.vocabulary_sha256:
        # The vocabulary that this dataset trained is given back to it by name: not another setting.
        known = info.settings
        settings = settings.model_copy(
            update={"vocabulary": known.vocabulary, "vocabulary_size": known.vocabulary_size}
        )
    is_known_text = info.fingerprint == corpus.fingerprint
    was_extracted_before = not is_known_text and info.fingerprint in corpus.earlier_fingerprints
    generator_version = min(info.settings.generator_version, GENERATOR_VERSION)
    if (generator_version < GENERATOR_VERSION or was_extracted_before) and is_complete(
        info, root, built_vocabulary(stage, dataset), lengths
    ):
        # An earlier release built all of it, and nothing is added: samples of two generators, or sentences of two
        # extractors, are not mixed.
        settings = settings.model_copy(update={"generator_version": generator_version})
        is_known_text = is_known_text or was_extracted_before
    # All differences at once, the text included.
    differing = _differences(info.settings, settings)
    differing += [f"predictions per sequence at {old[0]} tokens: was {old[1]}, is {new[1]}" for old, new in shared]
    if not is_known_text:
        if info.corpus_sha256 is not None and digest_corpus(corpus) != info.corpus_sha256:
            differing.append(
                "text: an earlier release has extracted it, and extraction from Wikipedia dumps has changed"
                if was_extracted_before
                else f"text: was {info.source}, is {corpus.source} with other content"
            )
        info = info.model_copy(update={"source": corpus.source, "fingerprint": corpus.fingerprint})
    if differing:
        raise InputError(
            f"{root}: holds a dataset built with other settings\n" + "\n".join(f"  {line}" for line in differing),
            hint=_remedy(stage, info.settings, shared, differing),
        )
    return info


def _shared_folders(stage: PrepareStage, lengths: list[Length], built: list[Length]) -> list[tuple[Length, Length]]:
    """Return pairs of lengths whose shards would lie in one folder, where one would replace the other.

    The folders of some recipes say nothing of predictions.
    """
    first: dict[str, Length] = {}
    pairs = [(first.setdefault(folder_name(stage, length, None), length), length) for length in (*built, *lengths)]
    return [(one, other) for one, other in pairs if one != other]


def _refuse_shared_folders(stage: PrepareStage, root: Path, shared: list[tuple[Length, Length]]) -> None:
    for (tokens, predictions), (_, others) in shared:
        raise InputError(
            f"{root}: got {predictions} and {others} predictions per sequence at {tokens} tokens; allowed with recipe "
            f"{stage.recipe}: one number, since the folder's name says nothing of it",
            hint=f"set the same maxPredictionsPerSequence (bert-data build: --length {tokens}:{predictions}) wherever "
            "these shards are read, or name other shards there",
        )


def _remedy(stage: PrepareStage, old: BuildSettings, shared: list[tuple[Length, Length]], differing: list[str]) -> str:
    """Return what to do about settings that differ, all of which a recipe may set where an earlier release did not."""
    known = published_settings(stage.recipe)
    given = [name for name, value in known.items() if getattr(stage, name) == value != getattr(old, name)]
    # Another text, or another recipe, is another dataset, whatever the rest.
    if len(given) + len(shared) < len(differing):
        return _CHOOSE_ANOTHER
    written = [f"{_FIELDS.get(name, name)}: {getattr(old, name)}" for name in given]
    written += [f"maxPredictionsPerSequence: {one[1]} wherever {one[0]} tokens are read" for one, _ in shared]
    return (
        f"recipe {stage.recipe} sets what a job or command leaves open; to keep this dataset write "
        f"{', '.join(written)}; or {_CHOOSE_ANOTHER}"
    )


def is_complete(info: DatasetInfo, root: Path, vocabulary_path: Path, lengths: list[Length]) -> bool:
    """Return whether all lengths are built and all of their files exist. Reads no shard.

    Raises:
        InputError: the vocabulary is not the one that the dataset was built with.
    """
    if not info.complete or not vocabulary_path.exists():
        return False
    sha256 = read_vocabulary(vocabulary_path).sha256
    if sha256 != info.vocabulary_sha256:
        raise InputError(
            f"{vocabulary_path}: not the vocabulary that {root} was built with (SHA-256 {sha256}, "
            f"was {info.vocabulary_sha256})",
            hint=f"put the old one back, or {_CHOOSE_ANOTHER}",
        )
    built = {(length.sequence_length, length.max_predictions): length for length in info.lengths}
    # Names only: opening thousands of files would take seconds each time that a finished stage is skipped.
    return all(
        length in built
        and all((root / folder / name).is_file() for folder, names in built[length].files.items() for name in names)
        for length in lengths
    )


def built_vocabulary(stage: PrepareStage, dataset: DatasetConfig) -> Path:
    """Return where the vocabulary is read or written."""
    path = vocabulary_path(dataset)
    is_missing = dataset.vocabulary_file is None and not path.exists()
    return Path(dataset.folder) / TOKENIZER_FILE if is_missing and stage.tokenizer == "byte-bpe" else path


def _given_vocabulary(stage: PrepareStage, dataset: DatasetConfig, info: DatasetInfo | None) -> Vocabulary | None:
    """Return a vocabulary that exists already, None for one to be trained; reading it checks it.

    Raises:
        InputError: it cannot be read, or is of WordPiece where byte-level BPE is asked for; or the one to be trained
            is too small.
    """
    # A vocab.txt in the folder of a new dataset was put there by the user; in a dataset that trains, by the build.
    path = vocabulary_path(dataset)
    is_byte_bpe = stage.tokenizer == "byte-bpe"
    if dataset.vocabulary_file is None:
        trained_here = info is not None and info.settings.vocabulary == _TRAINED
        if trained_here or not path.exists():
            if is_byte_bpe and stage.vocabulary_size < MIN_ENTRIES:
                raise InputError(
                    f"vocabularySize: got {stage.vocabulary_size}; allowed with tokenizer byte-bpe: at least "
                    f"{MIN_ENTRIES}, of which 256 are for single bytes"
                )
            return None
    vocabulary = read_vocabulary(path)
    if is_byte_bpe and not vocabulary.is_byte_level:
        raise InputError(
            f"tokenizer: got byte-bpe, and the vocabulary {path} of WordPiece; allowed: a vocabulary of that kind",
            hint="leave tokenizer empty to take the vocabulary as it is, or take the file away to have one learnt",
        )
    return vocabulary


def corpus_weights(stage: PrepareStage) -> tuple[float, ...]:
    """Return the weights of the corpora; none where they make no difference."""
    weights = tuple(corpus.weight for corpus in stage.all_corpora)
    return weights if set(weights) - {1.0} else ()


def _settings(stage: PrepareStage, given: Vocabulary | None) -> BuildSettings:
    """Return what is compared; raises InputError where the vocabulary's tokenizer and the build differ on the case."""
    said = None if given is None else given.settings.lower_case
    if given is not None and said is not None and said != stage.lower_case:
        raise InputError(
            f"lowerCase: got {str(stage.lower_case).lower()}; allowed: {str(said).lower()}, as the tokenizer's files "
            "beside the vocabulary say",
            hint=f"set lowerCase: {str(said).lower()} ({'without' if said else 'in bert-data build'} --cased); or, if "
            "these files are not the vocabulary's, take them away",
        )
    is_byte_level = stage.tokenizer == "byte-bpe" if given is None else given.is_byte_level
    same = {name: getattr(stage, name) for name in BuildSettings.model_fields if name in PrepareStage.model_fields}
    resolved = {
        "generator_version": GENERATOR_VERSION,
        "vocabulary_size": stage.vocabulary_size if given is None else None,
        "vocabulary": _TRAINED if given is None else given.sha256,
        "layout": loader_layout(stage),
        "num_balanced_shards": target.num_shards if (target := resharding(stage)) else None,
        "corpus_name": corpus_name([it.path for it in stage.all_corpora]) if needs_corpus_name(stage) else None,
        "weights": corpus_weights(stage),
        "tokenizer": _BYTE_BPE if is_byte_level else given and _other_than_berts(given, stage.lower_case),
        "lower_case": stage.lower_case and not is_byte_level,
    }
    return BuildSettings(**{**same, **resolved})


def _other_than_berts(vocabulary: Vocabulary, lower_case: bool) -> str | None:
    """Return in words how text is split where that is not as BERT does, apart from its case."""
    assert not isinstance(vocabulary.settings, ByteBpe), "its kind says enough"
    settings = vocabulary.settings.plainly(lower_case)
    changes = [
        f"{field.name} {value}"
        for field in fields(settings)
        if field.name != "lower_case" and (value := getattr(settings, field.name)) != field.default
    ]
    return ", ".join(changes) or None


def _differences(old: BuildSettings, new: BuildSettings) -> list[str]:
    return [
        f"{name}: was {getattr(old, name)}, is {getattr(new, name)}"
        for name in BuildSettings.model_fields
        if getattr(old, name) != getattr(new, name)
    ]


def _refuse_foreign_shards(stage: PrepareStage, root: Path, lengths: list[Length], corpus: str | None) -> None:
    for length in lengths:
        folder = root / folder_name(stage, length, corpus)
        if folder.is_dir() and list_shards(folder):
            raise InputError(
                f"{folder}: holds shards, but {root} has no dataset.json that says how they were built",
                hint=f"train on them as they are, without a prepare stage; or {_CHOOSE_ANOTHER}",
            )
