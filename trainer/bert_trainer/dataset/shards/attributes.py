"""Attributes of a file, and errors of a layout that name the file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np

from bert_job.dataset_names import WrittenLayout
from bert_trainer.dataset.shards.ragged import UnorderedSegmentsError
from bert_trainer.errors import InputError


def name_attributes(
    shape: tuple[int, int],
    layout: WrittenLayout,
    *,
    vocabulary_sha256: str | None,
    generator_version: int | None,
    masked: bool,
    documents: bool,
    made_from: str | None,
) -> dict[str, str | int | None]:
    """Return the attributes of a file; arguments as in ``write_shard``."""
    return {
        "sequence_length": shape[0],
        "max_predictions": shape[1],
        "vocabulary_sha256": vocabulary_sha256,
        "generator_version": generator_version,
        "made_from": made_from,
        "masking": ("static" if masked else "none") if layout == "compact" else None,
        "samples": "documents" if documents else None,
    }


def write_attributes(file: h5py.File, attributes: Mapping[str, str | int | None]) -> None:
    """Write the attributes that are not None."""
    for name, value in attributes.items():
        if isinstance(value, str):
            # Of fixed length: text of variable length would go to a heap, which has no checksum and which readers skip.
            file.attrs[name] = np.array(value.encode(), dtype=f"S{max(1, len(value.encode()))}")
        elif value is not None:
            file.attrs[name] = value


def check_layout(path: Path, layout: WrittenLayout, *, masked: bool, documents: bool) -> None:
    """Refuse samples that a layout does not tell from others. path: the file that holds them, or is to.

    Raises:
        InputError: the layout needs masked samples of pairs.
    """
    if layout != "compact" and (documents or not masked):
        raise InputError(
            f"{path}: layout {layout} cannot hold {'documents' if documents else 'samples without masks'}; "
            "allowed: compact",
            hint="only the compact layout says that its samples are documents, or for the loader to mask",
        )


@contextmanager
def errors_naming(path: Path, layout: WrittenLayout, *, masked: bool, documents: bool) -> Iterator[None]:
    """Add the name of the file to errors about samples that its layout cannot hold.

    Raises:
        InputError: an id is too large for the layout, segments are out of order, or the layout needs masked samples of
            pairs.
    """
    check_layout(path, layout, masked=masked, documents=documents)
    try:
        yield
    except (InputError, UnorderedSegmentsError) as error:
        hint = error.hint if isinstance(error, InputError) else None
        what = error.args[0] if isinstance(error, InputError) else f"layout {layout} cannot hold it: {error}"
        # Disk errors name the file already.
        if str(what).startswith(f"{path}: "):
            raise
        raise InputError(f"{path}: {str(what).partition(chr(10))[0]}", hint=hint) from error
