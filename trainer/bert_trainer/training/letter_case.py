"""Whether a run's text loses its capitals before it is split into tokens; what else splits it is its vocabulary's."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from bert_job.run_stages import PrepareStage, Stage
from bert_job.weights import InitialCheckpointSpec
from bert_trainer.checkpoints.description import read_settings
from bert_trainer.checkpoints.tokenizer_files import is_lower_case
from bert_trainer.dataset.shards.dataset_info import DatasetInfo, find_dataset_info
from bert_trainer.errors import InputError
from bert_trainer.training.run_data import RunData

logger = logging.getLogger(__name__)


def lower_case_of(stages: Sequence[Stage], start: InitialCheckpointSpec | None, data: RunData) -> bool:
    """Return whether a run's tokenizer drops capitals. Reads files: for rank 0.

    What was done to the text says it first, that is the prepare stage or the data set's own description; then the
    tokenizer's settings beside the initial checkpoint, or those beside the vocabulary; without any of them the
    vocabulary, which is cased if one of its entries has a capital letter. At the end of a training nothing here is an
    error.
    """
    if data.vocabulary.is_byte_level:
        return False  # its file says what is done to text
    prepare = next((stage for stage in stages if isinstance(stage, PrepareStage)), None)
    if prepare is not None:
        return prepare.lower_case
    dataset = dataset_of(data)
    if dataset is not None:
        return dataset.settings.lower_case
    if start is not None and start.load != "none":
        try:
            settings = read_settings(Path(start.path))
        except InputError as error:
            logger.warning("%s; the vocabulary says how text is split", error.message)
            settings = None
        if settings is not None and settings.lower_case is not None:
            return settings.lower_case
    return is_lower_case(data.vocabulary)


def dataset_of(data: RunData) -> DatasetInfo | None:
    """Return what is known of the data set that was trained on; None of shards that another program made."""
    # What was measured on comes last: it may be another's shards.
    folders = [measured.folder for measured in data.evaluation.values()]
    folders += [trained.folder for trained in data.training.values()]
    try:
        found = find_dataset_info(folders[-1].paths[0].parent) if folders else None
    except InputError:
        return None  # training did not need it either
    return None if found is None else found[1]
