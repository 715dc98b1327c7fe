"""Published ways to build a dataset, by name: what each of them sets where a job does not say otherwise.

Sources: bertPrep.py and create_datasets_from_start.sh of NVIDIA's DeepLearningExamples (2020);
parallel_create_hdf5.sh and chop_hdf5_files.py of MLPerf's and Intel's BERT.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from pydantic.alias_generators import to_camel

from bert_job.dataset_names import RecipeName, SamplesOf, WrittenLayout
from bert_job.evaluation import EvaluateSpec
from bert_job.preparation import PrepareSpec
from bert_job.pretraining import PretrainSpec
from bert_job.section import SPECIAL_TOKENS
from bert_job.training import TrainingSpec

DUPE_FACTORS: Mapping[SamplesOf, int] = MappingProxyType({"pairs": 5, "documents": 1})
"""Without a recipe: Devlin et al.'s data was made with 5; documents are packed to be seen once in each epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What a recipe sets beside the names of folders and files."""

    dupe_factor: int
    num_shards: int
    layout: WrittenLayout
    """Of the files that its loader reads."""
    num_balanced_shards: int | None = None
    max_predictions: int | None = None
    """At every length; None: 15 % of it."""


RECIPES: Mapping[RecipeName, Recipe] = MappingProxyType(
    {
        "nvidia": Recipe(dupe_factor=5, num_shards=256, layout="nvidia"),
        "mlperf": Recipe(dupe_factor=10, num_shards=500, layout="intel", num_balanced_shards=2048, max_predictions=76),
    }
)
PUBLISHED_LENGTHS = (128, 512)
"""Of Devlin et al. (2019), and of both recipes. At these, 15 % is what NVIDIA's recipe says as well."""


def find_prepare(spec: TrainingSpec) -> tuple[int, PrepareSpec] | None:
    """Return the job's prepare stage and its position."""
    return next(((number, stage.prepare) for number, stage in enumerate(spec.stages) if stage.prepare), None)


def resolve_dupe_factor(prepare: PrepareSpec) -> int:
    """Return how often every document is sampled: as written, else as in the recipe, else as its samples are."""
    default = RECIPES[prepare.recipe].dupe_factor if prepare.recipe else DUPE_FACTORS[prepare.samples or "pairs"]
    return prepare.dupe_factor or default


def predictions_of_length(sequence_length: int) -> int:
    """Return 15 % of a sequence, rounded up to a multiple of 4, which gives the published 20 and 80.

    At most the tokens that can be masked.
    """
    # -(-a // b) rounds up.
    predictions = -(-sequence_length * 15 // 100)
    return min(-(-predictions // 4) * 4, sequence_length - SPECIAL_TOKENS)


def predictions_of_dataset(spec: TrainingSpec, sequence_length: int) -> int:
    """Return the predictions per sequence in the dataset's shards of a length, unless a stage says otherwise.

    Those of the recipe that the job prepares them by; 15 % where there is none, or the job does not prepare them.
    """
    found = find_prepare(spec)
    return predictions_of_recipe(found[1].recipe if found else None, sequence_length)


def predictions_of_recipe(recipe: RecipeName | None, sequence_length: int) -> int:
    """Return the predictions per sequence that a recipe has, 15 % without one or where it says none."""
    published = RECIPES[recipe].max_predictions if recipe else None
    if published is None:
        return predictions_of_length(sequence_length)
    return min(published, sequence_length - SPECIAL_TOKENS)


def list_lengths(spec: TrainingSpec) -> tuple[tuple[int, int], ...]:
    """Return the tokens and predictions per sequence that sequenceLengths adds to what the stages read."""
    found = find_prepare(spec)
    if found is None:
        return ()
    own = found[1].max_predictions_per_sequence
    # What a stage reads has that stage's predictions; a folder of the recipe mlperf could not hold both.
    read = {length for _, length, _ in _readers(spec)}
    lengths = dict.fromkeys(found[1].sequence_lengths or ())
    return tuple((length, own or predictions_of_dataset(spec, length)) for length in lengths if length not in read)


def describe_recipe(spec: TrainingSpec) -> Iterator[str]:
    """Yield a line for every value that comes from the recipe: what the job leaves open and the recipe says."""
    found = find_prepare(spec)
    if found is None or found[1].recipe is None:
        return
    number, prepare = found
    recipe, source = RECIPES[found[1].recipe], f"from recipe {found[1].recipe}"
    for name in ("dupe_factor", "num_shards", "num_balanced_shards", "layout"):
        value = getattr(recipe, name)
        # Rows without masks have one layout.
        is_open = getattr(prepare, name) is None and not (name == "layout" and prepare.masking == "dynamic")
        if is_open and value is not None:
            yield f"spec.stages[{number}].prepare.{to_camel(name)}: {value}, {source}"
    for length, predictions in list_lengths(spec):
        if prepare.max_predictions_per_sequence is None and _is_published(recipe, length):
            path = f"spec.stages[{number}].prepare.maxPredictionsPerSequence"
            yield f"{path}: {predictions} at {length} tokens, {source}"
    for path, length, written in _readers(spec):
        if written is None and _is_published(recipe, length):
            yield f"{path}.maxPredictionsPerSequence: {predictions_of_dataset(spec, length)}, {source}"


def _is_published(recipe: Recipe, sequence_length: int) -> bool:
    return recipe.max_predictions is not None or sequence_length in PUBLISHED_LENGTHS


def _readers(spec: TrainingSpec) -> Iterator[tuple[str, int, int | None]]:
    """Yield the stages that read the job's own dataset: path, tokens and, where they are written, predictions."""
    trained: PretrainSpec | None = None
    for number, stage in enumerate(spec.stages):
        trained = stage.pretrain or trained
        section: PretrainSpec | EvaluateSpec | None = stage.pretrain or stage.evaluate
        if section is None or trained is None or section.shards is not None:
            continue
        length, predictions = section.sequence_length or trained.sequence_length, section.max_predictions_per_sequence
        if predictions is None and length == trained.sequence_length:
            predictions = trained.max_predictions_per_sequence
        yield f"spec.stages[{number}].{stage.kinds[0]}", length, predictions
