"""Which kernels run, and what runs where there are none."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from bert_trainer.checkpoints.checkpoint import Environment
from bert_trainer.model.backends.cpu import build, encoder, library
from bert_trainer.model.backends.cpu.encoder import CpuBackend
from bert_trainer.model.backends.eager import EagerBackend
from bert_trainer.model.bert import Bert
from random_rows import model_config, random_batch

CPU = torch.device("cpu")
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def described(precision: str, head_size: int = 64) -> str:
    """Return what a rank's line says of the kernels."""
    return encoder.find(CPU, TYPES[precision], head_size).describe(0, precision).rpartition(", kernels ")[2]


@pytest.fixture(autouse=True)
def _asked_anew() -> Iterator[None]:
    library.find.cache_clear()
    yield
    library.find.cache_clear()


def test_the_best_one_that_this_processor_runs_is_taken_and_named() -> None:
    runnable = [name for name, (_, needed) in build.flavours().items() if needed <= library.processor_flags()]
    found, reason = library.find()
    assert found is not None, reason
    assert found.flavour == runnable[0]
    assert described("bf16") == described("fp32") == runnable[0]
    assert described("fp16") == "none in fp16"


def test_a_variable_turns_them_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(library.SWITCH, "off")
    assert described("fp32") == "none (BERT_TRAINER_KERNELS=off)"
    assert isinstance(encoder.find(CPU, torch.float32, 64), EagerBackend)


def test_a_run_that_goes_on_without_them_is_told_that_its_bits_will_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    def environment() -> Environment:
        return Environment.current(world_size=1, precision="fp32", device=torch.device("cpu"))

    before = environment()
    assert before.differences(environment()) == []
    library.find.cache_clear()
    monkeypatch.setenv(library.SWITCH, "off")
    (difference,) = before.differences(environment())
    assert difference.startswith("kernels ")
    assert difference.endswith(" -> none")


def test_libraries_of_other_sources_are_not_loaded_and_the_remedy_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built_before = build.build()
    monkeypatch.setattr(build, "LIBRARIES", tmp_path)
    assert "python -m bert_trainer.model.backends.cpu.build" in described("fp32")
    (tmp_path / "kernels-0123456789ab-avx2.so").touch()
    for library_file in built_before:  # compiling all of them once more takes half a minute
        shutil.copy(library_file, tmp_path)
    built = build.build()
    assert sorted(tmp_path.iterdir()) == sorted(built)


@pytest.mark.parametrize("head_size", [8, 24])
def test_heads_that_fill_no_vector_take_the_plain_operations(head_size: int) -> None:
    model = Bert(model_config(2 * head_size, num_attention_heads=2), 50)
    model.initialize(1)
    batch = random_batch([5, 9], sequence_length=9, predictions=2, vocabulary_size=50, seed=1)
    assert isinstance(model.backend, EagerBackend)
    assert torch.isfinite(model(batch, batch.dropout_keys(1, 1)).masked_lm)
    assert described("fp32", head_size) == f"none for heads of {head_size} features"


def test_half_precision_of_the_other_kind_takes_the_plain_operations() -> None:
    model = Bert(model_config(32), 50)
    assert isinstance(model.backend, CpuBackend)
    with torch.autocast("cpu", dtype=torch.float16):
        assert isinstance(model.backend, EagerBackend)
    assert isinstance(model.double().backend, EagerBackend)
