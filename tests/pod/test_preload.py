"""One allocator and one OpenMP runtime, found in the image or missing from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bert_trainer.errors import InputError
from bert_trainer.pod.rank import choose_preload


def test_nothing_is_preloaded_by_default(tmp_path: Path) -> None:
    assert choose_preload({}, [tmp_path]) == {}
    assert choose_preload({"BERT_ALLOCATOR": "system", "BERT_OPENMP": "gnu"}, [tmp_path]) == {}


def test_what_is_chosen_comes_first_and_in_one_variable(tmp_path: Path) -> None:
    for name in ("libjemalloc.so.2", "libiomp5.so"):
        (tmp_path / name).touch()
    chosen = {"BERT_ALLOCATOR": "jemalloc", "BERT_OPENMP": "intel", "LD_PRELOAD": "/own.so", "OMP_NUM_THREADS": "4"}
    preload = choose_preload(chosen, [tmp_path / "nowhere", tmp_path])
    assert preload == {"LD_PRELOAD": f"{tmp_path}/libjemalloc.so.2:{tmp_path}/libiomp5.so:/own.so"}


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"BERT_ALLOCATOR": "tcmalloc"}, "the image has no libtcmalloc_minimal.so.4"),
        ({"BERT_ALLOCATOR": "fast"}, "got 'fast'; allowed: system, jemalloc, tcmalloc"),
        ({"BERT_OPENMP": "intel"}, "the image has no libiomp5.so\nhint: build the image with OPENMP=intel"),
        ({"BERT_OPENMP": "llvm"}, "got 'llvm'; allowed: gnu, intel"),
    ],
)
def test_a_missing_library_is_named(tmp_path: Path, environment: dict[str, str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        choose_preload(environment, [tmp_path])
