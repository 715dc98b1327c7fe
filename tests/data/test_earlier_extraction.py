"""A dataset from a dump stays what it is when the rules change by which text is extracted; half of one is refused.

Input: a dump whose article the first rules read otherwise: it is built as they have it, then looked at again.
Observed: the record, the files, the refusal.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bert_job.run_config import DatasetConfig
from bert_job.run_stages import Corpus, PrepareStage
from bert_trainer.dataset.build.pipeline import build_dataset
from bert_trainer.dataset.corpus import corpora
from bert_trainer.dataset.corpus.formats import wikipedia
from bert_trainer.dataset.shards.dataset_info import DatasetInfo, read_dataset_info
from bert_trainer.errors import InputError
from silent import Silent
from small_build import contents
from small_dumps import dump, page

LENGTH, ADDED = (32, 5), (64, 10)


def build(folder: Path, *lengths: tuple[int, int]) -> DatasetInfo:
    texts = tuple(Corpus(path=str(folder / name)) for name in ("wiki.xml", "other.txt"))
    stage = PrepareStage(corpora=texts, vocabulary_size=120, num_shards=2, num_processes=1)
    return build_dataset(stage, DatasetConfig(folder=str(folder / "data")), list(lengths), Silent())


@pytest.fixture(params=[1, 2])
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Return a folder with a complete dataset that an earlier extractor read the text of."""
    pages = [page(f"P{n}", f"Page {n} tells of cats. It has {{{{x|{n}}}}} and more. They sleep.") for n in range(40)]
    (tmp_path / "wiki.xml").write_bytes(dump(*pages))
    (tmp_path / "other.txt").write_text("Dogs bark at night. Cats do not.\n\n" * 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpora, "EXTRACTOR_VERSION", request.param)
        # It showed nothing in the place of a template, and kept the sentence.
        patch.setattr(wikipedia, "HOLE", "\ufdd1")
        build(tmp_path, LENGTH)
    return tmp_path


def test_a_complete_dataset_is_used_without_a_look_at_the_dump(folder: Path) -> None:
    before, files = read_dataset_info(folder / "data"), contents(folder / "data")
    time_ns = (folder / "wiki.xml").stat().st_mtime_ns
    (folder / "wiki.xml").write_bytes(b"." * (folder / "wiki.xml").stat().st_size)
    os.utime(folder / "wiki.xml", ns=(time_ns, time_ns))
    assert build(folder, LENGTH) == before
    assert contents(folder / "data") == files


def test_lengths_are_not_added_to_it(folder: Path) -> None:
    files = contents(folder / "data")
    with pytest.raises(InputError) as raised:
        build(folder, LENGTH, ADDED)
    assert "text: an earlier release has extracted it, and extraction from Wikipedia dumps has changed" in (
        raised.value.message
    )
    assert "with other content" not in raised.value.message
    assert contents(folder / "data") == files


def test_other_text_is_still_other_text(folder: Path) -> None:
    pages = [page(f"P{number}", f"Page {number} tells of dogs. They bark.") for number in range(40)]
    (folder / "wiki.xml").write_bytes(dump(*pages))
    with pytest.raises(InputError, match="with other content"):
        build(folder, LENGTH)
