"""Whether a run's text loses its capitals and accents before it is split into tokens."""

from __future__ import annotations

import logging
from pathlib import Path

from bert_trainer.checkpoints.tokenizer_files import is_lower_case, read_lower_case
from bert_trainer.config.stages import PrepareStage
from bert_trainer.dataset.shards.dataset_info import DatasetInfo, find_dataset_info
from bert_trainer.errors import InputError
from bert_trainer.training.session import Session

logger = logging.getLogger(__name__)


def lower_case_of(session: Session) -> bool:
    """Return whether the session's tokenizer drops capitals and accents. Reads files: for rank 0.

    What was done to the text says it first, that is the prepare stage or the data set's own description; then the
    tokenizer's settings beside the initial checkpoint; without any of them the vocabulary, which is cased if one of its
    entries has a capital letter. At the end of a training nothing here is an error.
    """
    prepare = next((stage for stage in session.config.stages if isinstance(stage, PrepareStage)), None)
    if prepare is not None:
        return prepare.lower_case
    dataset = dataset_of(session)
    if dataset is not None:
        return dataset.settings.lower_case
    start = session.config.initial_checkpoint
    if start is not None and start.load != "none":
        try:
            said = read_lower_case(Path(start.path))
        except InputError as error:
            logger.warning("%s; the vocabulary's letters say how text is split", error.message)
            said = None
        if said is not None:
            return said
    return is_lower_case(session.vocabulary)


def dataset_of(session: Session) -> DatasetInfo | None:
    """Return what is known of the data set that was trained on; None of shards that another program made."""
    # What was measured on comes last: it may be another's shards.
    folders = [data.folder for data in session.evaluation_data.values()]
    folders += [data.folder for data in session.training_data.values()]
    try:
        found = find_dataset_info(folders[-1].paths[0].parent) if folders else None
    except InputError:
        return None  # training did not need it either
    return None if found is None else found[1]
