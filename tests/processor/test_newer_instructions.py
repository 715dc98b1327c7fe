"""What AMX and AVX-512's BF16 and FP16 compute, on processors that have them; elsewhere these tests say what they need.

The last part holds everywhere: what tells such processors apart, and what tells precisions apart.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from bert_trainer.model.backends.cpu import library
from bert_trainer.model.backends.cpu.capability import check_flags, prepare_processor
from bert_trainer.model.backends.processor import ask_kernel
from bert_trainer.model.torch_releases import allow_bf16_products
from bert_trainer.system.processor import read_flags, read_model_name
from in_process import losses, train
from left_out import INSTRUCTIONS
from tiny_run import environment, pretrain_stage, run_config, write_dataset

CPUINFO = Path(__file__).parents[1] / "fixtures" / "cpuinfo"
HERE = library.processor_flags()


def needs(flag: str) -> pytest.MarkDecorator:
    """Return what skips a test on a processor without an instruction set."""
    return pytest.mark.skipif(flag not in HERE, reason=f"requires a processor with {flag}")


def case(flag: str, *values: object) -> object:
    """Return values of a test that needs an instruction set, which is the first of them."""
    return pytest.param(flag, *values, marks=needs(flag))


@pytest.fixture(autouse=True)
def counted(request: pytest.FixtureRequest, record_property: pytest.FixtureRequest) -> None:
    """Have the run's last lines count the test, if it needs anything."""
    if "flag" in request.fixturenames:
        record_property(INSTRUCTIONS, request.getfixturevalue("flag"))  # type: ignore[operator]


@pytest.fixture(autouse=True)
def fp32_precision() -> Iterator[None]:
    yield
    allow_bf16_products(False)


def operands() -> tuple[Tensor, Tensor]:
    """Return rows [64, 512] and weights [256, 512] in fp32, whose products sum up 512 terms of about 1."""
    generator = torch.Generator().manual_seed(5)
    return torch.randn(64, 512, generator=generator), torch.randn(256, 512, generator=generator)


def multiply(precision: str) -> Tensor:
    """Return rows times weights as the trainer computes them at a precision."""
    prepare_processor(precision)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
        return torch.nn.functional.linear(*operands())


def error_of(product: Tensor) -> float:
    """Return the largest error, in units of the standard deviation of a product, sqrt(512)."""
    rows, weights = operands()
    exact = rows.double() @ weights.double().T
    return float((product.double() - exact).abs().max() / 512**0.5)


def inputs_are_rounded(product: Tensor) -> bool:
    """Tell whether a product is that of bf16 inputs, with sums and result in fp32."""
    rows, weights = (value.bfloat16().double() for value in operands())
    rounded = rows @ weights.T
    is_sum_of_them = float((product.double() - rounded).abs().max() / 512**0.5) < 1e-5
    return is_sum_of_them and not torch.equal(product, product.bfloat16().float())


def kernels(cap: str | None, *precisions: str) -> list[str]:
    """Return oneDNN's kernels of some precisions in a process of their own: it reads its cap once."""
    code = (
        "import sys\nfrom bert_trainer.model.backends.cpu.capability import prepare_processor\n"
        "from bert_trainer.model.backends.processor import ask_kernel\n"
        "for precision in sys.argv[1:]:\n    prepare_processor(precision)\n    print(ask_kernel(precision))"
    )
    variables = environment() | ({"DNNL_MAX_CPU_ISA": cap} if cap else {})
    command = [sys.executable, "-c", code, *precisions]
    ended = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60, check=True)
    return ended.stdout.splitlines()


# oneDNN has two names for these sets: avx512_core_amx and avx10_1_512_amx.
@pytest.mark.parametrize(
    ("flag", "precision", "pattern"),
    [
        case("amx_bf16", "bf16", "_amx"),
        case("amx_bf16", "bf32", "_amx"),
        case("avx512_bf16", "bf16", "avx512_core_bf16|avx10|_amx"),
        case("avx512_fp16", "fp16", "avx512_core_fp16|avx10"),
        case("amx_fp16", "fp16", "_amx_fp16"),
    ],
)
def test_products_run_on_the_instructions_of_their_precision(flag: str, precision: str, pattern: str) -> None:
    prepare_processor(precision)
    assert re.search(f"^oneDNN .*({pattern})", ask_kernel(precision)), flag


@pytest.mark.parametrize(
    ("flag", "cap", "precision", "absent"),
    [
        case("amx_bf16", "AVX512_CORE_BF16", "bf16", "_amx"),
        case("amx_bf16", "AVX512_CORE_BF16", "bf32", "_amx"),
        case("amx_fp16", "AVX512_CORE_AMX", "fp16", "_amx_fp16"),
        case("avx512_bf16", "AVX512_CORE", "bf16", "core_bf16|avx10|_amx"),
        case("avx512_fp16", "AVX512_CORE_BF16", "fp16", "core_fp16|avx10"),
    ],
)
def test_a_cap_keeps_them_away(flag: str, cap: str, precision: str, absent: str) -> None:
    free, capped = kernels(None, precision), kernels(cap, precision)
    assert re.search(absent, free[0]), flag
    assert not re.search(absent, capped[0])


@pytest.mark.parametrize("flag", [case("amx_bf16")])
def test_bf32_rounds_what_it_multiplies_and_nothing_else(flag: str) -> None:
    bf32 = multiply("bf32")
    assert inputs_are_rounded(bf32), flag
    assert not inputs_are_rounded(multiply("fp32"))
    assert error_of(multiply("fp32")) < 1e-5 < 1e-3 < error_of(bf32) < error_of(multiply("bf16"))


@pytest.mark.parametrize(
    ("flag", "precision"),
    [case("amx_bf16", "bf32"), case("avx512_bf16", "bf16"), case("avx512_fp16", "fp16"), case("amx_fp16", "fp16")],
)
def test_a_model_learns_at_that_precision(flag: str, precision: str, tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data")
    schedule = {"learning_rate": 0.1, "warmup": {"steps": 5}, "decay": "poly"}
    stage = pretrain_stage(global_batch_size=32, micro_batch_size=32, length={"steps": 30}, **schedule)
    config = run_config(tmp_path / precision, dataset, stages=[stage], precision=precision, checkpoint={"keep": 1})
    train(config)
    found = losses(tmp_path / precision)
    assert found[-1] < found[0] - 0.7, flag


def test_precisions_are_told_apart_by_what_they_round() -> None:
    """What the tests above conclude from, on products that any processor computes."""
    rows, weights = operands()
    exact = torch.nn.functional.linear(rows, weights)
    rounded = torch.nn.functional.linear(rows.bfloat16().float(), weights.bfloat16().float())
    assert not inputs_are_rounded(exact)
    assert inputs_are_rounded(rounded)
    assert not inputs_are_rounded(rounded.bfloat16().float())
    assert error_of(exact) < 1e-5 < 1e-3 < error_of(rounded) < error_of(rounded.bfloat16().float())


FLAGS = ("amx_bf16", "amx_int8", "avx512_bf16", "avx512_fp16", "avx512f")


@pytest.mark.parametrize(
    ("file", "name", "flags", "refused", "slow"),
    [
        ("ice-lake", "Intel(R) Xeon(R) Platinum 8380 CPU @ 2.30GHz", FLAGS[4:], ["bf32"], ["bf16", "fp16"]),
        ("sapphire-rapids", "Intel(R) Xeon(R) Platinum 8480+", FLAGS, [], []),
        ("granite-rapids", "Intel(R) Xeon(R) 6980P", FLAGS, [], []),
        ("zen-5", "AMD EPYC 9755 128-Core Processor", ("avx512_bf16", "avx512f"), ["bf32"], ["fp16"]),
    ],
)
def test_processors_are_told_apart(
    file: str, name: str, flags: tuple[str, ...], refused: list[str], slow: list[str]
) -> None:
    text = (CPUINFO / f"{file}.txt").read_text()
    found = read_flags(text)
    assert read_model_name(text) == name
    assert found.intersection(FLAGS) == set(flags)
    for precision in ("fp32", "bf32", "avx-fp32", "bf16", "fp16", "fp64"):
        if precision in refused:
            with pytest.raises(Exception, match="no amx_bf16"):
                check_flags(precision, found)
        else:
            assert (check_flags(precision, found) is not None) == (precision in slow)


@pytest.mark.parametrize("has_it", [True, False])
def test_amx_fp16_which_linux_does_not_show_is_asked_for(monkeypatch: pytest.MonkeyPatch, has_it: bool) -> None:
    monkeypatch.setattr(library, "_CPUINFO", str(CPUINFO / "granite-rapids.txt"))
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_fp16": has_it}, raising=False)
    assert ("amx_fp16" in library.processor_flags.__wrapped__()) == has_it
    assert "amx_bf16" in library.processor_flags.__wrapped__()


def test_a_processor_without_a_name_is_unknown() -> None:
    assert read_model_name("processor\t: 0\nFeatures\t: fp asimd\n") == "unknown processor"
