"""What the GPU benchmark refuses, prints and sums up."""

from __future__ import annotations

import math
import re

import gpu
import pytest
import torch

CPU, GPU = torch.device("cpu"), torch.device("cuda")
FAST = gpu.Result("real tokens", 512, [2.0, 2.0, 2.5], 2048, 524_288, 1e15, 60.5, 1.01, 10.9)
PEER = gpu.Result("Hugging Face", 512, [6.0, 8.0, 6.0], 2048, 524_288, 1e15, math.nan, 2.0, 10.8)


def test_ratios_are_taken_round_by_round() -> None:
    fast, peer = gpu.render_rows([FAST, PEER], peak_tflops=989.0, products_tflops=800.0)
    assert fast[2] == "1,024 (819.2-1,024)"
    assert fast[4:8] == ["500", "50.6%", "62.5%", "3 (2.4-4)"]
    assert peer[7:9] == ["1", "-"]


def test_the_table_has_a_cell_for_every_column() -> None:
    lines = gpu.render_table(gpu.render_rows([FAST, PEER], None, 800.0)).splitlines()
    assert len({line.count("|") for line in lines}) == 1
    assert lines[2].split(" | ")[5] == "-"


def test_the_last_line_names_the_first_fast_side() -> None:
    text = gpu.render_summary({512: [FAST, PEER]}, 989.0)
    assert text == "bench-gpu: real512=1024 ratio512=3 mfu512=0.506"


@pytest.mark.parametrize(
    ("name", "tflops"),
    [("NVIDIA H200", 989), ("NVIDIA H100 PCIe", 756), ("NVIDIA H100 80GB HBM3", 989), ("NVIDIA T4", None)],
)
def test_peak_rates_are_found_by_name(name: str, tflops: float | None) -> None:
    assert gpu.find_peak_tflops(name) == tflops


def test_attention_follows_the_device_and_is_refused_elsewhere() -> None:
    assert gpu.choose_attention("auto", GPU) == ["flash", "varlen"]
    assert gpu.choose_attention("auto", CPU) == ["rows"]
    for asked, device in (("flash", CPU), ("rows", GPU), ("magic", GPU)):
        with pytest.raises(ValueError, match=re.escape(repr(asked))):
            gpu.choose_attention(asked, device)


def test_cards_without_bf16_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"sm_70 \(Tesla V100\)"):
        gpu.check_capability((7, 0), "Tesla V100")
    gpu.check_capability((9, 0), "NVIDIA H200")


def test_what_is_dropped_on_which_side_is_said() -> None:
    assert "none with varlen" in gpu.describe_dropout(["flash", "varlen"])
    assert "at the peer and with flash" in gpu.describe_dropout(["flash", "varlen"])
    assert "none with" not in gpu.describe_dropout(["rows"])
    assert "at the peer, none with varlen" in gpu.describe_dropout(["varlen"])


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_it_runs_on_a_cpu_and_says_that_this_is_a_check(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = "--device cpu --preset tiny --phases 128 --sequences 6 --rounds 2 --micro-tokens 512"
    monkeypatch.setattr("sys.argv", ["gpu.py", *small.split(), "--peer-micro-tokens", "512"])
    gpu.main()
    printed = capsys.readouterr().out
    assert "CHECK ONLY" in printed
    assert "Hugging Face, SDPA, eager" in printed
    assert re.search(r"^bench-gpu: real128=\S+ ratio128=\S+$", printed, re.MULTILINE)
