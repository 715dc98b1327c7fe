"""What a precision needs of a processor, and what a rank says that it really got."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from bert_trainer.errors import UnsupportedPrecision
from bert_trainer.model.backends.cpu import capability, library
from bert_trainer.model.backends.cpu.capability import check_flags
from bert_trainer.model.backends.processor import ask_kernel, describe_processor, listen
from bert_trainer.model.torch_releases import allow_bf16_products
from bert_trainer.system import processor
from bert_trainer.system.processor import find_library, read_flags
from tiny_run import environment, pretrain_stage, run_document, run_trainer, write_dataset

XEON_4 = frozenset(["avx2", "avx512f", "avx512_bf16", "amx_bf16", "amx_tile", "amx_int8", "avx512_fp16"])
XEON_3 = frozenset(["avx2", "avx512f", "avx512_vnni"])
EPYC = frozenset(["avx2", "avx512f", "avx512_bf16"])


@pytest.fixture(autouse=True)
def fp32_precision() -> Iterator[None]:
    yield
    allow_bf16_products(False)


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        ("processor\t: 0\nflags\t\t: fpu avx2\nbugs\t: x\n\nflags\t\t: other\n", {"fpu", "avx2"}),
        ("processor\t: 0\nFeatures\t: fp asimd bf16\n", {"fp", "asimd", "bf16"}),
        ("nothing", set()),
    ],
)
def test_flags_are_the_first_processor_s(text: str, flags: set[str]) -> None:
    assert read_flags(text) == flags


@pytest.mark.parametrize("precision", ["fp32", "bf32", "avx-fp32", "bf16", "fp16", "fp64"])
def test_a_xeon_with_amx_has_them_all_without_a_warning(precision: str) -> None:
    assert check_flags(precision, XEON_4) is None


@pytest.mark.parametrize(
    ("precision", "flags", "words"),
    [
        ("bf32", EPYC, "allowed: fp32, to which it would fall back, or bf16, since this processor has no amx_bf16"),
        ("bf32", frozenset(), "no amx_bf16"),
        ("avx-fp32", frozenset({"asimd"}), "no avx2 or avx512f"),
    ],
)
def test_what_would_silently_be_another_precision_is_refused(precision: str, flags: frozenset[str], words: str) -> None:
    with pytest.raises(UnsupportedPrecision, match=re.escape(words)):
        check_flags(precision, flags)


def test_what_is_merely_slow_is_told() -> None:
    assert "has none of amx_bf16, avx512_bf16" in (check_flags("bf16", XEON_3) or "")
    assert "slower than with fp32" in (check_flags("fp16", EPYC) or "")
    assert check_flags("bf16", EPYC) is None
    assert check_flags("fp32", frozenset()) is None


@pytest.mark.skipif(not hasattr(torch.backends.mkldnn, "matmul"), reason="requires torch 2.9 or newer, which has bf32")
def test_bf32_is_a_switch_that_others_turn_back(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = f"flags : {' '.join(XEON_4)}\n"
    monkeypatch.setattr(library, "processor_flags", lambda: read_flags(flags))
    capability.prepare_processor("bf32")
    assert torch.backends.mkldnn.matmul.fp32_precision == "bf16"  # type: ignore[attr-defined]
    # oneDNN is asked now, and told that it may round.
    rows, weights = torch.ones(64, 256), torch.ones(128, 256)
    if torch.backends.cpu.get_cpu_capability() == "AVX512":
        assert "attr-fpmath:bf16" in listen(lambda: torch.nn.functional.linear(rows, weights))
    for precision in ("fp32", "avx-fp32"):
        capability.prepare_processor(precision)
        assert torch.backends.mkldnn.matmul.fp32_precision == "ieee"  # type: ignore[attr-defined]


MAPS = """\
7f0-7f1 r-xp 00000000 08:01 1  /usr/lib/x86_64-linux-gnu/libjemalloc.so.2
7f1-7f2 r-xp 00000000 08:01 2  /opt/venv/lib/libiomp5.so
7f2-7f3 r-xp 00000000 08:01 3  /opt/venv/lib/python3.11/site-packages/torch/lib/libgomp-a34b3233.so.1
7f3-7f4 rw-p 00000000 00:00 0
"""


def test_libraries_are_those_that_are_really_loaded() -> None:
    assert find_library(MAPS, processor.ALLOCATORS) == "jemalloc (libjemalloc.so.2)"
    # Preloaded, it takes the place of the one that torch brings.
    assert find_library(MAPS, processor.OPENMP) == "Intel (libiomp5.so)"
    assert find_library("7f3-7f4 rw-p 00000000 00:00 0\n", processor.ALLOCATORS) is None


def test_a_rank_tells_what_it_has() -> None:
    line = describe_processor(3, "fp32", "avx2")
    found = re.fullmatch(
        r"rank 3 on \S+: processors ([-\d,]+) \((\d+) cores\), 1 threads, allocator \S.*, OpenMP .*, "
        r"DNNL_MAX_CPU_ISA (\S.*), fp32 products by .*, kernels avx2",
        line,
    )
    assert found is not None, line
    assert int(found[2]) <= len(os.sched_getaffinity(0))


@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() != "AVX512", reason="requires AVX-512")
def test_onednn_names_its_kernel_and_obeys_the_cap(capfd: pytest.CaptureFixture[str]) -> None:
    assert ask_kernel("bf16").startswith("oneDNN ")
    assert capfd.readouterr().out == ""
    code = "from bert_trainer.model.backends.processor import ask_kernel; print(ask_kernel('bf16'))"
    capped = subprocess.run(
        [sys.executable, "-c", code],
        env={**environment(), "DNNL_MAX_CPU_ISA": "AVX2"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert capped.stdout == "no oneDNN kernel\n"


@pytest.mark.horovod
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_every_rank_says_it_before_the_first_step_and_a_refusal_comes_before_the_folder(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data")
    stages = [pretrain_stage(length={"steps": 3})]
    run = run_document(tmp_path / "out", dataset, stages=stages, world={"ranks": 2, "hosts": 1}, precision="avx-fp32")
    finished = run_trainer(run, tmp_path / "run.json", timeout_s=120)
    assert finished.returncode == 0, finished.stderr
    for rank in (0, 1):
        assert re.search(rf"^rank {rank} on \S+: .*avx-fp32 products by", finished.stderr, re.MULTILINE)
    if "amx_bf16" in read_flags(Path("/proc/cpuinfo").read_text()):
        return
    another = {**run, "world": {"ranks": 1, "hosts": 1}, "precision": "bf32", "output_folder": str(tmp_path / "no")}
    refused = run_trainer(another, tmp_path / "no.json", timeout_s=120)
    assert refused.returncode == 2
    assert "reason: UnsupportedPrecision" in refused.stderr
    assert not (tmp_path / "no").exists()
